"""The default policies of a race, and the check of which policies can run with a base."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pandas as pd

from pslab.config import spec
from pslab.config.parameters import plain
from pslab.config.run import FIELDS, Run
from pslab.config.table import KINDS, find
from pslab.errors import ConfigError, in_a_sentence
from pslab.lab.records.frames import axes, runs_in, values
from pslab.lab.runs.grid import grid
from pslab.policies.sync.backup import Backup

if TYPE_CHECKING:
    from pslab.engines.experiment.experiment import Experiment

TUNED = {"learning_rate": "learning_rates=", "seed": "seeds="}  # fields that a race varies, with the argument of each
GIVEN = ("model", "data", "loss", "metric", "workers", "cluster", "device")  # fields of the base that all policies have
#: Fields that a race sets.
STOPS = ("pushes", "seconds", "target_accuracy", "target_held", "eval_every", "engine", "keep_weights")
SIMPLEST = ("bsp", "backup", "ssp", "asp")  # the simplest first: in a tie the simplest policy is advised


def _sparse(prune: str, *syncs: str) -> dict[str, dict[str, str]]:
    """Return a candidate for each synchronization policy, with this pruning rule and pull="changed"."""
    # few weights change between two pulls, so the answers are short
    return {f"{sync} {prune}": {"sync": sync, "prune": prune, "pull": "changed"} for sync in syncs}


#: The default axis for `grid`: two dense policies, then synchronization policies with pruned pushes.
DEFAULT_SPACE: Mapping[str, Mapping[str, Any]] = MappingProxyType({"policy": {
    "bsp": {"sync": "bsp", "prune": "none"},
    "local:8": {"sync": "local:8", "prune": "none"},
    **_sparse("static:10%", "asp"),
    **_sparse("static:1%", "bsp", "backup:1", "ssp:3", "asp", "dssp", "elastic:15", "eager"),
    **_sparse("dgc:1%", "bsp", "ssp:3", "asp"),
}})  # fmt: skip


def runs_of(base: Run, space: Mapping[str, Any] | pd.DataFrame | None = None) -> pd.DataFrame:
    """Return the runs that a space describes, without checking that they can run; see `candidates`.

    Raises:
        ConfigError: an axis is a field that a race sets or tunes itself, or `grid` refuses the space.
    """
    space = DEFAULT_SPACE if space is None else space
    if not isinstance(space, (Mapping, pd.DataFrame)):
        raise ConfigError("space", space, "must be axes, such as {'sync': ['bsp', 'asp']}, or a table of grid(...)")
    for name in (*TUNED, *GIVEN, *STOPS) if isinstance(space, Mapping) else ():
        if name in space:
            how = f"use the argument {TUNED[name]} instead" if name in TUNED else "set it in the base"
            raise ConfigError("space", name, f"cannot be an axis of a space, as all candidates share its values: {how}")
    return runs_in(space) if isinstance(space, pd.DataFrame) else grid(base, **space)


def candidates(
    base: Run, space: Mapping[str, Any] | pd.DataFrame | None = None
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Return (by candidate's name, its fields that differ from the base's), and (by name, why a candidate cannot run).

    The first candidate is the base's own policy, for which no field differs.

    Args:
        base: the run whose policy is the default.
        space: axes for `grid`, or runs; None: DEFAULT_SPACE.

    Raises:
        ConfigError: an axis is a field that a race sets or tunes itself, `grid` refuses the space, a name is unknown,
            or the base cannot run.
    """
    resolved(base)  # otherwise a mistake in the base would be reported for every candidate
    runs = runs_of(base, space)
    policies, refused = {words_of(base): dict[str, Any]()}, dict[str, str]()
    seen = [*policies.values()]
    named = [values(runs, name) for name in axes(runs) if name not in TUNED]
    for run, *point in zip(runs.run, *named, strict=True):
        fields = {name: value for name in FIELDS
                  if name not in (*TUNED, *STOPS) and (value := getattr(run, name)) != getattr(base, name)}  # fmt: skip
        if other := [name for name in GIVEN if name in fields]:
            raise ConfigError("space", run, f"its {other[0]} differs from the base's, but a candidate is only a "
                                            "policy: set it in the base")  # fmt: skip
        for name in filter(KINDS.__contains__, fields):
            spec.resolve(name, fields[name])  # a misspelt name is an error, not a policy that cannot run
        if fields in seen:
            continue
        seen.append(fields)
        words = " ".join(str(value) for value in point if value is not None) or words_of(run)
        if words in (*policies, *refused):
            words += f" ({', '.join(f'{name} {plain(value)}' for name, value in fields.items())})"
        if reason := refusal(base, base.but(**fields)):
            refused[words] = reason
        else:
            policies[words] = fields
    return policies, refused


def resolved(run: Run) -> Experiment:
    """Resolve a run.

    Raises:
        ConfigError: the run is impossible.
    """
    from pslab.lab.runs.resolve import resolve  # imported late, because it loads torch

    return resolve(run)


def refusal(base: Run, run: Run) -> str:
    """Return the reason why a run is impossible, or why its policy differs from the base's only by name; "" if there is
    none."""
    try:
        sync = resolved(run).sync
    except ConfigError as error:
        return in_a_sentence(error)
    if run.sync != base.sync and run.workers == 1:
        problem = "with one worker all policies are the same: set workers=2 or more"
        return in_a_sentence(ConfigError("sync", run.sync, problem))
    if run.sync != base.sync and isinstance(sync, Backup) and run.workers - sync.spare < 2:
        problem = f"{run.sync} needs {sync.spare + 2} for rounds of two pushes: add workers"
        return in_a_sentence(ConfigError("workers", run.workers, problem))
    return ""


def words_of(run: Run) -> str:
    """Return a policy's name, as in DEFAULT_SPACE: ``"ssp:3 static:1%"``."""
    shown = [name for name in ("sync", "prune", "quantize", "rate")
             if name == "sync" or getattr(run, name) != FIELDS[name].default]  # fmt: skip
    return " ".join(str(plain(getattr(run, name))) for name in shown)


def simplicity(run: Run) -> tuple[int, ...]:
    """Return a key that is smaller for a simpler policy: by `sync`, then dense first, then a constant rate first."""
    row = find("sync", run.sync)
    rank = SIMPLEST.index(row.name) if row is not None and row.name in SIMPLEST else len(SIMPLEST)
    return rank, *(int(getattr(run, name) != FIELDS[name].default) for name in ("prune", "rate"))
