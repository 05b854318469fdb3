"""Options of a run on a Ray cluster: the cluster's address, and the cores and GPUs of each process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pslab.config.parameters import Bounds, check, check_names, parameters
from pslab.errors import ConfigError

COUNT = Bounds(at_least=0, at_most=1024)


@dataclass(frozen=True)
class RayOptions:
    """The options of `Run.ray`.

    Raises:
        ConfigError: an impossible value.
    """

    address: Annotated[str, "host:port; auto: the running cluster of this host, or a new one on it"] = "auto"
    cpus: Annotated[float, COUNT, "cores that Ray reserves for each worker and each server"] = 1.0
    gpus: Annotated[float, COUNT, "GPUs, or the share of one, that Ray reserves for each worker"] = 0.0

    def __post_init__(self) -> None:
        check(self, "ray.")

    @classmethod
    def of(cls, given: Any) -> RayOptions:
        """Return the options that a mapping gives; None stands for no options."""
        if given is None:
            return cls()
        if not isinstance(given, Mapping):
            names = ", ".join(parameters(RayOptions))
            raise ConfigError("ray", given, f"must be a mapping with some of {names}, as in {{'gpus': 0.5}}")
        check_names(given, parameters(RayOptions), "ray.", "there is no such option")
        return cls(**given)
