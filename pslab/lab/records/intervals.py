"""The activity of each worker over time, from a record: spans, releases, steps, waiting, and a typical window."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from pslab.lab.records.record import Result

NOBODY = -1  # stands for "waits for no worker"
#: Phases that are shown as part of another phase.
ACTIVITIES = {"encode": "select", "decode": "pull"}
AT_SERVER = ("apply", "serve")  # a worker is idle while the server handles its message
#: Groups of phases; phases of different groups overlap if a worker pushes and pulls while it computes.
WAYS = {"computing": ("compute", "select", "encode"), "pushing": ("push", "apply"),
        "pulling": ("wait", "serve", "pull", "decode")}  # fmt: skip
#: If a worker's phases overlap, the last one in this order counts as its activity.
FOREMOST = ("push", "apply", "pull", "serve", "wait", "decode", "encode", "select", "compute")
CANDIDATES = 64  # windows that are compared


def spans(result: Result) -> pd.DataFrame:
    """Return the phases in order of worker and begin, with a column `activity`, except phases with end_s < begin_s."""
    table = result.phases.assign(activity=result.phases.phase.replace(ACTIVITIES))
    table = table[table.end_s >= table.begin_s].sort_values(["worker", "begin_s", "end_s"], kind="stable")
    return table.reset_index(drop=True)


def releases(result: Result) -> pd.DataFrame:
    """Return every wait that another worker ended: worker, iteration, begin_s, at_s, by, by_iteration.

    `by_iteration` is the iteration of that other worker's last push before `at_s` (-1: none is recorded).
    """
    waits = result.phases[(result.phases.phase == "wait") & (result.phases.waits_for != NOBODY)]
    table = waits.rename(columns={"end_s": "at_s", "waits_for": "by"})
    table = table[["worker", "iteration", "begin_s", "at_s", "by"]].astype({"by": int, "at_s": float})
    taken = result.phases[result.phases.phase == "apply"].sort_values("begin_s")
    taken = taken[["worker", "iteration", "begin_s"]].set_axis(["by", "by_iteration", "taken_s"], axis=1)
    taken = taken.astype({"by": int, "by_iteration": float, "taken_s": float})
    joined = pd.merge_asof(table.sort_values("at_s"), taken, left_on="at_s", right_on="taken_s", by="by")
    return joined.drop(columns="taken_s").assign(by_iteration=joined.by_iteration.fillna(-1).astype(int))


def steps(result: Result) -> pd.DataFrame:
    """Return the server's steps: range, version, at_s, pushes (the number in the step), staleness (the largest).

    A step with several pushes ends at a barrier.
    """
    groups = result.pushes.groupby(["range", "version_applied"], as_index=False)
    table = groups.agg(at_s=("seconds", "max"), pushes=("push", "size"), staleness=("staleness", "max"))
    return table.rename(columns={"version_applied": "version"}).sort_values("at_s", kind="stable", ignore_index=True)


def barriers(result: Result) -> pd.DataFrame:
    """Return the steps that applied several pushes at once."""
    table = steps(result)
    return table[table.pushes > 1].reset_index(drop=True)


def common_starts(result: Result) -> pd.DataFrame:
    """Return the instants at which all workers began on the same weights: version, at_s (when the last worker began).

    Under a policy that applies each push on arrival, these are its barriers.
    """
    pulled = result.pushes.groupby("version_pulled").worker.nunique()
    common = pulled[(pulled == result.run.workers) & (pulled.index > 0)].index
    firsts = result.pushes[result.pushes.version_pulled.isin(common)]
    begins = result.phases[result.phases.phase == "compute"][["worker", "iteration", "begin_s"]]
    lasts = firsts.merge(begins, on=["worker", "iteration"]).groupby("version_pulled").begin_s.max()
    return pd.DataFrame({"version": lasts.index.to_numpy(), "at_s": lasts.to_numpy(float)})


def inside(table: pd.DataFrame, begin_s: float, end_s: float) -> pd.DataFrame:
    """Return the spans that overlap a window, cut off at the window's begin and end."""
    part = table[(table.end_s > begin_s) & (table.begin_s < end_s)]
    return part.assign(begin_s=part.begin_s.clip(lower=begin_s), end_s=part.end_s.clip(upper=end_s))


def overlapped(result: Result) -> bool:
    """Whether a worker's pulls overlap with its computing, as with an eager worker."""
    return bool(_within(result.phases, "pull").any())


def computed_over(phases: pd.DataFrame, phase: str) -> pd.Series:
    """Return for each span of this phase, by its row's index, the seconds in which its worker also computes."""
    rows = []
    for worker, spans in phases[phases.phase == phase].groupby("worker"):
        computing = phases[(phases.worker == worker) & (phases.phase == "compute")].sort_values("begin_s")
        edges = np.stack([computing.begin_s, computing.end_s], axis=1).ravel()
        # seconds of computing until an instant: grows by one a second inside a computation, and is constant outside
        until = np.stack([np.zeros(len(computing)), computing.end_s - computing.begin_s], axis=1).ravel().cumsum()
        seconds = np.interp(spans.end_s, edges, until) - np.interp(spans.begin_s, edges, until) if len(edges) else 0.0
        rows.append(pd.Series(seconds, index=spans.index, dtype=float))
    return pd.concat(rows) if rows else pd.Series(dtype=float)


def _within(phases: pd.DataFrame, phase: str) -> pd.Series:
    # whether each span of this phase begins within one of its worker's computations
    spans = phases[phases.phase == phase].sort_values("begin_s").astype({"begin_s": float, "worker": int})
    computing = phases[phases.phase == "compute"].sort_values("begin_s").astype({"begin_s": float, "worker": int})
    last = pd.merge_asof(spans, computing[["worker", "begin_s", "end_s"]], on="begin_s", by="worker",
                         suffixes=("", "_computing"), allow_exact_matches=False)  # fmt: skip
    return last.begin_s < last.end_s_computing


def activity(result: Result) -> pd.DataFrame:
    """Return the activities: worker, phase, waits_for (-1: none), begin_s, end_s.

    The activities of a worker never overlap: a transfer counts only while the worker does not compute.
    """
    parts = []
    for worker, intervals in result.phases.groupby("worker"):
        instants, rows = _foremost(intervals)
        there = rows >= 0
        phase = intervals.phase.to_numpy()[rows[there]]
        parts.append(pd.DataFrame({
            "worker": worker, "phase": phase,
            "waits_for": np.where(phase == "wait", intervals.waits_for.to_numpy()[rows[there]], NOBODY),
            "begin_s": instants[:-1][there], "end_s": instants[1:][there]}))  # fmt: skip
    columns = ["worker", "phase", "waits_for", "begin_s", "end_s"]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=columns)


def _foremost(phases: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    # all begins and ends, sorted; and for each interval between two the row of the foremost phase, -1 without one
    begins, ends = phases.begin_s.to_numpy(float), phases.end_s.to_numpy(float)
    instants = np.unique([begins, ends])
    foremost = np.full(len(instants), -1)
    firsts, lasts = np.searchsorted(instants, begins), np.searchsorted(instants, ends)
    ranks = phases.phase.map({name: rank for rank, name in enumerate(FOREMOST)}).fillna(-1).to_numpy()
    for row in np.lexsort((begins, ranks)):
        foremost[firsts[row] : lasts[row]] = row
    return instants, foremost[:-1]


def budget(result: Result) -> pd.DataFrame:
    """Return each worker's time by phase and waits_for, in seconds and as a share; "gap" is time outside all phases."""
    table = activity(result)
    spent = (table.end_s - table.begin_s).groupby([table.worker, table.phase, table.waits_for]).sum()
    shares = spent.rename("seconds").reset_index()
    ends = result.phases.groupby("worker").agg(begin_s=("begin_s", "min"), end_s=("end_s", "max"))
    whole = (ends.end_s - ends.begin_s).rename("seconds")
    gaps = (whole - shares.groupby("worker").seconds.sum()).clip(lower=0.0).reset_index()
    shares = pd.concat([shares, gaps.assign(phase="gap", waits_for=NOBODY)], ignore_index=True)
    shares = shares.sort_values("worker", kind="stable", ignore_index=True)
    shares["share"] = shares.seconds / shares.groupby("worker").seconds.transform("sum")
    return shares[["worker", "phase", "waits_for", "seconds", "share"]]


def waiting(result: Result, begin_s: float = -np.inf, end_s: float = np.inf) -> float:
    """Return the share (0 to 1) of the time between two instants that workers spend waiting: a mean over workers.

    A worker's time lasts from its first phase to its last. Time in which a worker also computes is not waiting. Without
    workers the share is 0.
    """
    return _waiting(activity(result), begin_s, end_s)


def _waiting(table: pd.DataFrame, begin_s: float = -np.inf, end_s: float = np.inf) -> float:
    workers, waits = table.worker.to_numpy(int), (table.phase == "wait").to_numpy()
    begins, ends = (table[name].to_numpy(float).clip(begin_s, end_s) for name in ("begin_s", "end_s"))
    spent = np.bincount(workers, (ends - begins) * waits)
    firsts, lasts = np.full(len(spent), np.inf), np.full(len(spent), -np.inf)
    np.minimum.at(firsts, workers, begins)
    np.maximum.at(lasts, workers, ends)
    present = lasts > firsts
    return float(np.mean((spent[present] / (lasts - firsts)[present]).tolist() or [0.0]))


def lead(result: Result) -> int:
    """Return the most iterations by which a worker, when it started an iteration, was ahead of the slowest worker.

    At equal instants events of lower workers come first, but an iteration starts after the push that allowed the start.
    """
    waits, pushed, started = (result.phases[result.phases.phase == name] for name in ("wait", "push", "compute"))
    released = {(w.worker, w.iteration + 1): w.waits_for for w in records(waits) if w.waits_for != NOBODY}
    events = [(p.end_s, p.worker, 0, p.worker, p.iteration + 1) for p in records(pushed)]
    events += [(c.begin_s, released.get((c.worker, c.iteration), c.worker), 1, c.worker, c.iteration)
               for c in records(started)]  # fmt: skip
    clocks, most = [0] * result.run.workers, 0
    for _, _, starts, worker, clock in sorted(events):
        if starts:
            most = max(most, clock - min(clocks))
        else:
            clocks[worker] = clock
    return most


def duration(result: Result) -> float:
    """Return the seconds from the start of the run to the end of the last phase or push; 0 without any."""
    ends = [*result.phases.end_s, *result.pushes.seconds]
    return float(max(ends, default=0.0))


def window(results: Iterable[Result], iterations: float = 6) -> tuple[float, float]:
    """Return begin and end, in seconds, of a window that is typical of the runs; (0, 1) if no run has phases.

    The window is as long as this many iterations of the slowest worker, and begins in the middle half of its
    iterations. Of these windows, it is the one in which the share of waiting is most like the share in the whole runs.
    """
    timed = [result for result in results if len(result.phases)]
    if not timed:
        return 0.0, 1.0
    slowest = max(timed, key=_slowest_s)
    whole = min(map(duration, timed))
    length = min(iterations * _slowest_s(slowest), whole)
    tables = [activity(result) for result in timed]
    usual = [_waiting(table) for table in tables]
    begins = _begins(slowest)
    middle = begins[len(begins) // 4 : 3 * len(begins) // 4]

    def strangeness(begin_s: float) -> tuple[float, float]:
        here = [_waiting(table, begin_s, begin_s + length) for table in tables]
        unlike = round(sum(abs(a - b) for a, b in zip(here, usual, strict=True)), 6)
        return unlike, abs(begin_s - float(np.median(begins)))

    best = min(_spread(middle[middle <= whole - length]) or [whole - length], key=strangeness)
    return best, best + length


def _slowest_s(result: Result) -> float:
    """Return the median seconds between starts of the slowest worker's computations; without two, `duration`."""
    begins = _begins(result)
    if len(begins) > 1:
        return float(np.median(np.diff(begins)))
    return duration(result) if len(result.phases) else 0.0


def _begins(result: Result) -> np.ndarray:
    computing = result.phases[result.phases.phase == "compute"].sort_values("begin_s")
    begins = [times.to_numpy(float) for _, times in computing.groupby("worker").begin_s]
    return max(begins, key=lambda s: float(np.median(np.diff(s))) if len(s) > 1 else 0.0, default=np.zeros(0))


def _spread(values: np.ndarray) -> list[float]:
    # at most CANDIDATES of the values, evenly spaced
    places = np.linspace(0, len(values) - 1, min(len(values), CANDIDATES)).astype(int)
    return [float(value) for value in values[places]]


def records(table: pd.DataFrame) -> list[Any]:
    """Return the rows of a table as objects that have the columns as attributes."""
    return list(table.itertuples(index=False))


def rows_of(begins: Sequence[float], ends: Sequence[float], *, nested: bool = False) -> list[int]:
    """Return a row (0 is the lowest) for each span, so that spans on a row do not overlap.

    Spans must be sorted by begin, longer spans first. With `nested`, a span may lie wholly inside another on its row.
    """
    rows: list[list[float]] = []  # ends of the open spans on each row, outermost first
    listed = []
    for begin, end in zip(begins, ends, strict=True):
        for open_ in rows:
            while open_ and open_[-1] <= begin:
                open_.pop()
        free = (row for row, open_ in enumerate(rows) if not open_ or (nested and end <= open_[-1]))
        row = next(free, len(rows))
        if row == len(rows):
            rows.append([])
        rows[row].append(end)
        listed.append(row)
    return listed
