"""Parallel SGD: each worker trains alone for one or more passes over the data, then the models are averaged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pslab.config.parameters import Bounds, OneOf, check
from pslab.errors import ConfigError
from pslab.policies.methods.local_sgd import LocalSGD
from pslab.policies.sync.bsp import BSP
from pslab.protocol.traits import Lengths


@dataclass(frozen=True)
class Average(BSP):
    """Parallel SGD: local SGD whose period is a number of passes over the data, or the whole budget.

    Zinkevich et al. average once, at the end (`passes=none`); Hegde and Usmani average after each pass. In a pass each
    worker takes its share of the examples.

    Source: Zinkevich et al. (NIPS 2010); Hegde and Usmani (Stanford report 2016)
    """

    passes: Annotated[
        float | None, Bounds(above=0), "passes over the data between two averagings; none: one averaging, at the end"
    ] = None
    over: Annotated[str, OneOf("users", "all"), "the workers that a weight of sparse data is averaged over"] = "users"
    barrier: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check(self)

    def sized(self, lengths: Lengths) -> LocalSGD:
        """Return local SGD with the period for a run of these lengths.

        Raises:
            ConfigError: averaging at the end needs a budget, and the run has none.
        """
        if self.passes is not None:
            return LocalSGD(max(1, round(self.passes * lengths.passed)), over=self.over)
        if lengths.budget is None:
            problem = (
                "averaging once, at the end, needs the run's length: set pushes, or use sync='average:1' for each pass"
            )
            raise ConfigError("pushes", None, problem)
        return LocalSGD(lengths.budget, over=self.over)
