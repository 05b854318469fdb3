"""grid(base, **axes): runs for every combination of values; tuned(runs): a sweep that extends an axis at its ends."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

from pslab.config.cluster import BY_WORKER, COSTS, cluster_fields
from pslab.config.metric import metric_of
from pslab.config.parameters import number, plain
from pslab.config.run import FIELDS, USERS, Run
from pslab.config.spec import split
from pslab.config.table import KINDS
from pslab.errors import ConfigError, nearest
from pslab.lab.records import frames, tuning
from pslab.lab.runs.run import sweep

NETWORK = ("bandwidth_bit_s", "latency_s", "server_bandwidth_bit_s", "duplex", "overhead_s", "bandwidth_at",
           "bandwidth_of", "latency_of", "per_host", "intra_host_bandwidth_bit_s", "colocated", "aggregate",
           "wire_bytes")  # fmt: skip
REFUSED = ("raise", "drop")


class RefusedCombinations(UserWarning):
    """Impossible combinations of values were left out of a grid."""


def grid(base: Run | pd.DataFrame, *, refused: str = "raise", **axes: Any) -> pd.DataFrame:
    """Return a table with a row for each combination of values; the last axis changes fastest.

    Columns: the axes, the other fields that the entries change, and `run`. An axis is a field of Run with a list of
    values or with {name: value}; or a new name with {name: fields}. A list among these fields is an axis of this entry
    alone, and a cluster's fields are merged into the base's cluster:

        grid(base, sync=["bsp", "asp"], seed=[0, 1])
        grid(base, family={"static": {"prune": ["none", "static:1%"]}, "std": {"prune": ["none", "std:2"]}})

    Args:
        base: a run; or a table of runs or results, as in `grid(best(results), seed=[0, 1, 2])`: each of its runs is
            combined with the new axes, and its own axes stay columns.
        refused: the treatment of an impossible combination, such as a rule that needs rounds under ASP: "raise" an
            error (here, or when the sweep begins), or "drop" the combination, with a warning that has the reason.

    Raises:
        ConfigError: an axis without values, with an unknown field, or with two spellings of one value; or a value that
            Run refuses; with "drop", all combinations are impossible.
    """
    if refused not in REFUSED:
        raise ConfigError("refused", refused, nearest(str(refused), REFUSED))
    named = {name: _entries(name, values) for name, values in axes.items()}
    pairs: list[tuple[Run, dict[str, Any]]] = []
    dropped: dict[str, list[str]] = {}  # reason -> combinations
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
    if isinstance(base, Run):
        return [(base, {})]
    rows = frames.runs_in(base)
    names = [name for name in rows if name in (*frames.axes(rows), frames.CHOICE)]
    return [(run, {name: cell for name, cell in zip(names, cells, strict=True) if not frames.missing(cell)})
            for run, *cells in zip(rows.run, *(rows[name] for name in names), strict=True)]  # fmt: skip


def combinations(axes: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    """Yield each combination of the axes' values; the last axis changes fastest."""
    for values in product(*axes.values()):
        yield dict(zip(axes, values, strict=True))


def listed(value: Any) -> list[Any]:
    """Return a list or tuple as a list, and any other value as a list of this value alone."""
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _possible(run: Run) -> Run:
    from pslab.lab.runs.resolve import resolve  # loads torch, which other grids do not need

    resolve(run)
    return run


def _say(dropped: Mapping[str, Sequence[str]], used: Sequence[Any]) -> None:
    """Warn of combinations that were left out, by reason; raise ConfigError if all were left out."""
    count = sum(map(len, dropped.values()))
    lines = [line for why, which in dropped.items() for line in (why, *(f"  {words}" for words in which))]
    text = "\n".join([f"{count} of {count + len(used)} combinations are refused:", *lines])
    if not used:
        raise ConfigError("refused", "drop", f"no combination is left: {text}")
    warnings.warn(text, RefusedCombinations, stacklevel=3)


def _entries(name: str, values: Any) -> dict[Any, dict[str, Any]]:
    if name in frames.ITEMS:
        raise ConfigError(name, values, f"tables have a column {name!r} already: give the axis another name")
    if isinstance(values, Mapping) and values:
        if name in FIELDS:
            return {entry: {name: value} for entry, value in values.items()}
        for fields in values.values():
            _check_fields(name, values, fields)
        return {entry: dict(fields) for entry, fields in values.items()}
    if name not in FIELDS:
        known = nearest(name, [*FIELDS, "refused"])
        problem = f"Run has no such field; {known}. A new axis maps names to fields: {{'dense': {{'prune': 'none'}}}}"
        raise ConfigError(name, values, problem)
    if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Sequence) or not len(values):
        like = values if values and isinstance(values, (str, int, float)) else FIELDS[name].default
        problem = f"must be a list with at least one entry, such as {[like]}, or map names to values"
        raise ConfigError(name, values, problem)
    spelt: dict[Any, str] = {}  # by a value's name and numbers, which "static:1%" and "Static:0.01" have in common
    for value in values if name in KINDS and name not in USERS else ():
        if isinstance(value, str) and (first := spelt.setdefault(_content(value), value)) != value:
            raise ConfigError(name, value, f"is the same as {first!r}: leave one out")
    return {plain(value): {name: value} for value in values}


def _content(text: str) -> Any:
    # the name and the values of a policy's string, with its numbers as numbers; equal ones are the same policy
    def known(value: str) -> float | str:
        try:
            return number(value)
        except ValueError:
            return value

    name, positional, named = split(text)
    return name, *map(known, positional), *sorted((key, known(value)) for key, value in named.items())


def _check_fields(name: str, values: Any, fields: Any) -> None:
    if not isinstance(fields, Mapping):
        raise ConfigError(name, values, "must map each name to fields of Run, as in {'dense': {'prune': 'none'}}")
    for field, value in fields.items():
        if field not in FIELDS:
            raise ConfigError(name, field, f"Run has no such field; {nearest(str(field), FIELDS)}")
        if isinstance(value, (list, tuple)) and not value:
            raise ConfigError(name, {field: value}, "must be a list with at least one entry, such as [0]")


def _over(base: Any, cluster: Any) -> Any:
    """Return the cluster `base` with the fields of `cluster` replaced; a name of a cluster replaces `base` wholly."""
    if not isinstance(cluster, Mapping):
        return cluster
    if not cluster:
        return base
    below = {"preset": base} if isinstance(base, str) else dict(base)
    return {name: value for name, value in {**below, **cluster}.items() if (name, value) != ("preset", "free")}


def alone(run: Run) -> Run:
    """Return a single-machine run to compare a run with: the same modelled computation, no network, no pruning."""
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
    """Execute a grid, extend it until no best value of `over` lies at an end of its values, and return the results.

    If the best value (see `best`) of a group of runs is the smallest or largest value tried, the next value beyond it
    is tried, too, at the ratio of the last two. Figures say how many best values are still at an end afterwards.

    Args:
        goal: the accuracy (0 to 1) of the measure; None: `pslab.goal` of the results so far.
        rounds: the largest number of extensions.
    """
    asked = frames.runs_in(runs)
    for metric in {metric_of(run) for run in asked.run} if goal is not None else ():
        metric.check_goal("goal", goal)
    made = sweep(asked, results=results, progress=progress)
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
