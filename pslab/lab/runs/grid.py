"""grid(base, **axes): every combination of the values on each axis; tuned(runs): a grid that grows beyond its ends."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

from pslab.config.cluster import BY_WORKER, COSTS, cluster_fields
from pslab.config.parameters import plain
from pslab.config.run import FIELDS, Run
from pslab.errors import ConfigError, nearest
from pslab.lab.records import frames, tuning
from pslab.lab.runs.run import sweep

NETWORK = ("bandwidth_bit_s", "latency_s", "server_bandwidth_bit_s", "duplex", "overhead_s", "bandwidth_at",
           "colocated", "aggregate", "wire_bytes")  # fmt: skip
REFUSED = ("raise", "drop")


class RefusedCombinations(UserWarning):
    """Combinations of a grid that no run can have were left out."""


def grid(base: Run | pd.DataFrame, *, refused: str = "raise", **axes: Any) -> pd.DataFrame:
    """Return a table with a row for each combination: a column for each axis, the other fields that the entries change,
    and the column `run`; the last axis changes fastest.

    An axis is a field of Run with a list of values or with {name: value}; or a new name with {name: fields}, where a
    list among the fields is that entry's own axis and a cluster is laid over the base's:

        grid(base, sync=["bsp", "asp"], seed=[0, 1])
        grid(base, family={"static": {"prune": ["none", "static:1%"]}, "std": {"prune": ["none", "std:2"]}})

    Args:
        base: a run; or a table of runs or results, each of whose runs is a base, and whose axes stay:
            `grid(best(results), seed=[0, 1, 2])`.
        refused: what becomes of a combination that no run can have, such as a rule that needs rounds under ASP:
            raise, here or when the sweep begins; drop it, with a warning that lists each with its reason.

    Raises:
        ConfigError: an axis without values or with an unknown field, or what Run refuses; with drop, nothing is left.
    """
    if refused not in REFUSED:
        raise ConfigError("refused", refused, nearest(str(refused), REFUSED))
    named = {name: _entries(name, values) for name, values in axes.items()}
    pairs: list[tuple[Run, dict[str, Any]]] = []
    dropped: dict[str, list[str]] = {}  # why -> which
    for (run, start), chosen in product(_bases(base), combinations({name: [*axis] for name, axis in named.items()})):
        point = {name: plain(entry) for name, entry in chosen.items()}
        fields: dict[str, Any] = {}
        for name, entry in chosen.items():
            given = named[name][entry]
            if "cluster" in given and name not in FIELDS:
                given = {**given, "cluster": _over(fields.get("cluster", run.cluster), given["cluster"])}
            fields |= given
        for values in combinations({name: listed(value) for name, value in fields.items()}):
            try:
                made = run.but(**values) if refused == "raise" else _possible(run.but(**values))
            except ConfigError as error:
                if refused == "raise":
                    raise
                words = ", ".join(f"{name} {plain(value)}" for name, value in {**point, **values}.items())
                dropped.setdefault(str(error), []).append(words)
            else:
                changed = {name: plain(getattr(made, name)) for name in values if name in start}
                pairs.append((made, {**start, **changed, **point}))
    if dropped:
        _say(dropped, pairs)
    orders = {} if isinstance(base, Run) else base.attrs.get(frames.ORDERS, {})
    orders = {**orders, **{name: [plain(entry) for entry in entries] for name, entries in named.items()}}
    return frames.table([run for run, _ in pairs], [point for _, point in pairs], orders)


def _bases(base: Run | pd.DataFrame) -> Iterable[tuple[Run, dict[str, Any]]]:
    """The runs that axes are laid over, at their points."""
    if isinstance(base, Run):
        return [(base, {})]
    rows = frames.runs_in(base)
    names = [name for name in rows if name in (*frames.axes(rows), frames.CHOICE)]
    return [(run, {name: cell for name, cell in zip(names, cells, strict=True) if not frames.missing(cell)})
            for run, *cells in zip(rows.run, *(rows[name] for name in names), strict=True)]  # fmt: skip


def combinations(axes: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    """Each combination of the axes' values; the last axis changes fastest."""
    for values in product(*axes.values()):
        yield dict(zip(axes, values, strict=True))


def listed(value: Any) -> list[Any]:
    """A list as it is; one value as a list."""
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _possible(run: Run) -> Run:
    """The run, if it can be executed.

    Raises:
        ConfigError: what a sweep would refuse.
    """
    from pslab.lab.runs.resolve import resolve  # with torch, which other grids do without

    resolve(run)
    return run


def _say(dropped: Mapping[str, Sequence[str]], used: Sequence[Any]) -> None:
    """Warn of combinations that were left out: a line for each reason, and under it the combinations.

    Raises:
        ConfigError: nothing is left.
    """
    count = sum(map(len, dropped.values()))
    lines = [line for why, which in dropped.items() for line in (why, *(f"  {words}" for words in which))]
    text = "\n".join([f"{count} of {count + len(used)} combinations are refused:", *lines])
    if not used:
        raise ConfigError("refused", "drop", f"nothing is left: {text}")
    warnings.warn(text, RefusedCombinations, stacklevel=3)


def _entries(name: str, values: Any) -> dict[Any, dict[str, Any]]:
    """The entries of an axis: entry -> fields of Run."""
    if name in frames.ITEMS:
        raise ConfigError(name, values, f"results have a column {name!r} already: give the axis another name")
    if isinstance(values, Mapping) and values:
        if name in FIELDS:
            return {entry: {name: value} for entry, value in values.items()}
        for fields in values.values():
            _check_fields(name, values, fields)
        return {entry: dict(fields) for entry, fields in values.items()}
    if name not in FIELDS:
        known = nearest(name, [*FIELDS, "refused"])
        problem = f"Run has no such field; {known}; an axis of another name maps names to fields"
        raise ConfigError(name, values, problem)
    if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Sequence) or not len(values):
        raise ConfigError(name, values, "must be a list with at least one entry, such as [0], or map names to values")
    return {plain(value): {name: value} for value in values}


def _check_fields(name: str, values: Any, fields: Any) -> None:
    if not isinstance(fields, Mapping):
        raise ConfigError(name, values, "must map each name to fields of Run, as in {'dense': {'prune': 'none'}}")
    for field, value in fields.items():
        if field not in FIELDS:
            raise ConfigError(name, field, f"Run has no such field; {nearest(str(field), FIELDS)}")
        if isinstance(value, (list, tuple)) and not value:
            raise ConfigError(name, {field: value}, "must be a list with at least one entry")


def _over(base: Any, cluster: Any) -> Any:
    """A cluster laid over another: its fields win; a name takes the whole place."""
    if not isinstance(cluster, Mapping):
        return cluster
    if not cluster:
        return base
    below = {"preset": base} if isinstance(base, str) else dict(base)
    return {name: value for name, value in {**below, **cluster}.items() if (name, value) != ("preset", "free")}


def alone(run: Run) -> Run:
    """The single machine beside a distributed run: the same modelled computation, no network, nothing pruned."""
    cluster = run.cluster
    if cluster != "free":
        exchange = {*NETWORK, *COSTS, "costs"} - {"apply_s"}
        cluster = {name: value for name, value in cluster_fields(cluster).items() if name not in exchange}
        for name in {*BY_WORKER} & {*cluster}:
            cluster[name] = {worker: value for worker, value in cluster[name].items() if int(worker) == 0}
    return run.but(workers=1, sync="bsp", prune="none", pull="whole", placement="even", push_weight=None,
                   cluster=cluster)  # fmt: skip


def tuned(
    runs: pd.DataFrame, *, over: str = "learning_rate", goal: float | None = None, measure: str = "seconds_to_goal",
    rounds: int = 4, results: Path | str | None = None, progress: bool | None = None,
) -> pd.DataFrame:  # fmt: skip
    """Return the results of a grid in which every candidate is tried with the same effort.

    While the best value of `over` (see `best`) of some runs is the smallest or the largest that was tried with them,
    the next one beyond it is tried too, at the ratio of the last two; at most so many `rounds`, after which figures
    say how many still lie at an end.

    Args:
        goal: the accuracy (0 to 1) that counts; None: what `pslab.goal` says of the results so far.
    """
    made = sweep(frames.runs_in(runs), results=results, progress=progress)
    for _ in range(rounds):
        at = tuning.goal(made, over=over) if goal is None else goal
        chosen = tuning.best(made, over=over, goal=at, measure=measure)
        more = [grid(chosen.iloc[[row]].drop(columns="choice"), **dict[str, Any]({over: [choice.beyond]}))
                for row, choice in enumerate(chosen.choice)
                if isinstance(choice, frames.Choice) and choice.beyond is not None]  # fmt: skip
        if not more:
            break
        wider = pd.concat([made, sweep(pd.concat(more), results=results, progress=progress)])
        wider.attrs = made.attrs
        made = frames.table(wider.result.tolist(), [point for _, point in _bases(wider)], made.attrs.get(frames.ORDERS))
    made.attrs[frames.ORDERS] = {**made.attrs.get(frames.ORDERS, {}), over: sorted(frames.levels(made, over))}
    return made
