"""What studies ask of their parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pslab.config.spec import build
from pslab.errors import ConfigError
from pslab.protocol.server import first_step


def listed(name: str, value: Any) -> list[Any]:
    """The entries of a parameter that must have some.

    Raises:
        ConfigError: it is no list, or empty.
    """
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Sequence) or not len(value):
        raise ConfigError(name, value, "must be a list with at least one entry, such as [0]")
    return list(value)


def averages(policy: Any) -> bool:
    """Whether a policy's step is the mean of several pushes, which has no push weight. One worker's push shows it."""
    try:
        sync = build("sync", policy) if isinstance(policy, str) else policy
        step = first_step(sync, 1)
    except (ConfigError, AttributeError):
        step = None  # Run or resolve refuse it, or a record holds its source text alone
    return step is not None and step.aggregate
