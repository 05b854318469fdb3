"""The policies that a race tries where none are given, and which of them a run can have."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pandas as pd

from pslab.config import spec
from pslab.config.parameters import plain
from pslab.config.run import FIELDS, Run
from pslab.config.table import KINDS, find
from pslab.errors import ConfigError, in_a_sentence
from pslab.lab.records.frames import axes, runs_in, values
from pslab.lab.runs.grid import grid
from pslab.policies.sync.backup import Backup

TUNED = {"learning_rate": "learning_rates=", "seed": "seeds="}  # what a race tries by itself
GIVEN = ("model", "data", "loss", "metric", "workers", "cluster", "device")  # what the policies are to suit
STOPS = ("pushes", "seconds", "target_accuracy", "target_held", "eval_every",
         "engine", "keep_weights")  # what a race decides
SIMPLEST = ("bsp", "backup", "ssp", "asp")  # of two that are equally soon the one that stands first here


def _sparse(prune: str, *syncs: str) -> dict[str, dict[str, str]]:
    """Candidates whose answers are short, too: little has changed since the last pull."""
    return {f"{sync} {prune}": {"sync": sync, "prune": prune, "pull": "changed"} for sync in syncs}


#: An axis as `grid` takes it: what waits for all, for most, for none, for the clock; each with what is sent seldom.
DEFAULT_SPACE: Mapping[str, Mapping[str, Any]] = MappingProxyType({"policy": {
    "bsp": {"sync": "bsp", "prune": "none"},
    "local:8": {"sync": "local:8", "prune": "none"},
    **_sparse("static:10%", "asp"),
    **_sparse("static:1%", "bsp", "backup:1", "ssp:3", "asp", "dssp", "elastic:15", "eager"),
    **_sparse("dgc:1%", "bsp", "ssp:3", "asp"),
}})  # fmt: skip


def runs_of(base: Run, space: Mapping[str, Any] | pd.DataFrame | None = None) -> pd.DataFrame:
    """The runs that a space names, which is not yet to say that they can be; see `candidates`.

    Raises:
        ConfigError: an axis of what a race tunes by itself, or what `grid` refuses.
    """
    space = DEFAULT_SPACE if space is None else space
    if not isinstance(space, (Mapping, pd.DataFrame)):
        raise ConfigError("space", space, "must be axes, such as {'sync': ['bsp', 'asp']}, or a table of grid(...)")
    for name in (*TUNED, *GIVEN, *STOPS) if isinstance(space, Mapping) else ():
        if name in space:
            how = f"give {TUNED[name]} instead" if name in TUNED else "a candidate is a policy: set it in the base"
            raise ConfigError("space", name, f"every candidate has the same values of it: {how}")
    return runs_in(space) if isinstance(space, pd.DataFrame) else grid(base, **space)


def candidates(
    base: Run, space: Mapping[str, Any] | pd.DataFrame | None = None
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """The fields by which each candidate differs from the base, by its words, and why others cannot run, by theirs.

    The first one is the default policy, which differs in nothing.

    Args:
        base: the run whose policy is the default.
        space: axes as `grid` takes them, or runs; None: DEFAULT_SPACE.

    Raises:
        ConfigError: an axis of what a race tunes by itself, what `grid` refuses, a name that nothing has, or a base
            that cannot run.
    """
    from pslab.lab.runs.resolve import resolve  # with torch, which an answer that is read does without

    resolve(base)  # what is wrong with it is wrong with all
    runs = runs_of(base, space)
    found, refused = {words_of(base): dict[str, Any]()}, dict[str, str]()
    named = [values(runs, name) for name in axes(runs) if name not in TUNED]
    for run, *point in zip(runs.run, *named, strict=True):
        fields = {name: value for name in FIELDS
                  if name not in (*TUNED, *STOPS) and (value := getattr(run, name)) != getattr(base, name)}  # fmt: skip
        if other := [name for name in GIVEN if name in fields]:
            raise ConfigError("space", run, f"its {other[0]} is not the base's: a candidate is a policy")
        for name in filter(KINDS.__contains__, fields):
            spec.resolve(name, fields[name])  # a slip in one name is no policy that cannot run with the base
        if fields not in found.values():
            words = " ".join(str(value) for value in point if value is not None) or words_of(run)
            more = ", ".join(f"{name} {plain(value)}" for name, value in fields.items()) if words in found else ""
            found[f"{words} ({more})" if more else words] = fields
    for words, fields in list(found.items())[1:]:
        try:
            _check(base, base.but(**fields))
        except ConfigError as error:
            refused[words] = in_a_sentence(error)
            del found[words]
    return found, refused


def _check(base: Run, run: Run) -> None:
    """Refuse policies that cannot run, or that differ from another by name alone.

    Raises:
        ConfigError: what `resolve` refuses; a policy that needs more workers.
    """
    from pslab.lab.runs.resolve import resolve

    sync = resolve(run).sync
    if run.workers == 1 and run.sync != base.sync:
        raise ConfigError("sync", run.sync, "one worker waits for nobody: it is the same as the default; use more")
    if isinstance(sync, Backup) and run.workers - sync.spare < 2 and run.sync != base.sync:
        least = sync.spare + 2
        raise ConfigError("workers", run.workers, f"{run.sync} needs {least}: a round is to be of two pushes at least")


def words_of(run: Run) -> str:
    """A policy in words, as DEFAULT_SPACE has them: ``"ssp:3 static:1%"``."""
    shown = [name for name in ("sync", "prune", "quantize", "rate")
             if name == "sync" or getattr(run, name) != FIELDS[name].default]  # fmt: skip
    return " ".join(str(plain(getattr(run, name))) for name in shown)


def simplicity(run: Run) -> tuple[int, ...]:
    """Smaller where a policy is simpler: by its synchronization, dense before pruned, and a constant rate first."""
    row = find("sync", run.sync)
    place = SIMPLEST.index(row.name) if row is not None and row.name in SIMPLEST else len(SIMPLEST)
    return place, *(int(getattr(run, name) != FIELDS[name].default) for name in ("prune", "rate"))
