"""What the runs of 60_ranges say, in numbers and in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from pslab.lab.plots.accuracy import series
from pslab.lab.records.time_to_accuracy import final, first
from pslab.lab.studies import ranging
from pslab.lab.studies.studies import curves, notes
from pslab.policies.planning.range_size import exchange_s

if TYPE_CHECKING:
    from pslab.lab.records.record import Result

GOAL = 0.95


def table(results: Sequence[Result]) -> pd.DataFrame:
    """A row for each size in virtual time, and one for real processes: ms per iteration, measured and by the model."""
    chosen, rows = ranging.timed(results), []
    keys = ranging.keys_of(chosen)
    for _, each in ranging.exchanges(chosen).sort_values(["keys", "kind"]).iterrows():
        rows.append({
            "range": each["kind"], "keys": f"{each['keys']:.0f}", "ranges in a sweep": -(-keys // int(each["keys"])),
            "ms per iteration": _ms(each.whole_s), "by the model": _ms(each.model_s), "idle": _ms(each.idle_s),
            "link unused": _ms(each.unused_s)})  # fmt: skip
    for result in ranging.real(results):
        size = int(min(ranging.size_of(result.run) or keys, keys))
        found = ranging.iterations(result)
        line, compute_s, _ = ranging.model([result], keys)
        told = max(compute_s, exchange_s(line, size))
        mark = "*" if result.manifest.get("honest") is False else ""
        rows.append({"range": f"real processes{mark}", "keys": f"{size}", "ranges in a sweep": -(-keys // size),
                     "ms per iteration": _ms(found.whole_s.median()), "by the model": _ms(told),
                     "idle": _ms(found.idle_s.median()), "link unused": _ms(found.unused_s.median())})  # fmt: skip
    return pd.DataFrame(rows).set_index("range")


def learned(results: Sequence[Result]) -> pd.DataFrame:
    """A row for each run: keys, seed, whether the rest is kept, accuracy (%) at its end, and at the instant at which
    the first of its seed has ended."""
    keys, rows = ranging.keys_of(results), []
    for seed in sorted({r.run.seed for r in results}):
        own = [r for r in results if r.run.seed == seed]
        drawn = [(r, series(r, "seconds")) for r in own]
        until_s = min(by_time.x.iloc[-1] for _, by_time in drawn)
        for result, by_time in drawn:
            size = ranging.size_of(result.run)
            rows.append({
                "keys": ranging.settled(result) if size is None else min(size, keys), "seed": seed,
                "kind": "fitted" if size is None else "everything" if size > keys else "range",
                "kept": ranging.keeps(result.run), "seconds": by_time.x.iloc[-1],
                "accuracy": by_time.y.iloc[-1], "until_s": until_s,
                "in_time": float(np.interp(until_s, by_time.x, by_time.y))})  # fmt: skip
    return pd.DataFrame(rows)


def findings(results: Sequence[Result]) -> str:
    """What is seen in these runs, and in no others."""
    marks = notes(curves(ranging.real(results)))
    return "\n".join([*_size(results), *_fit(results), *_learned(results), *_goal(results), *marks])


def _size(results: Sequence[Result]) -> Iterator[str]:
    chosen = ranging.timed(results)
    found, best = ranging.exchanges(chosen), ranging.crossing(chosen)
    fitted, whole = (found[found.kind == kind].iloc[0] for kind in ("fitted", "everything"))
    yield (f"The cluster's r* is {best} keys, the fitted size {fitted['keys']:.0f}: an iteration takes "
           f"{_ms(fitted.whole_s)} ms, of which the worker is idle for {_ms(fitted.idle_s)} ms and the link unused for "
           f"{_ms(fitted.unused_s)} ms; with everything it takes {_ms(whole.whole_s)} ms.")  # fmt: skip


def _fit(results: Sequence[Result]) -> Iterator[str]:
    for result in ranging.changing(results):
        before, after = ranging.levels(result)
        for name, level, keys in (("Before", *before), ("After", *after)):
            yield f"{name} the bandwidth halves r* is {level} keys, and workers settle at {keys:.0f} (median)."


def _learned(results: Sequence[Result]) -> Iterator[str]:
    found = learned(ranging.trained(results))
    told = {"everything": found[found.kind == "everything"], "the fitted size": found[found.kind == "fitted"],
            "the rest dropped": found[~found.kept]}  # fmt: skip
    for column, words in (("accuracy", "after as many pushes"), ("in_time", "after as much time")):
        each = [f"{name} {rows[column].median():.1f} %" for name, rows in told.items()]
        yield f"Accuracy {words}: {', '.join(each)} (medians over seeds)."


def _goal(results: Sequence[Result]) -> Iterator[str]:
    long = ranging.trained(results, long=True)
    for name, ranges in (("ranges", True), ("everything", False)):
        own = [r for r in long if (ranging.size_of(r.run) != float("inf")) == ranges]
        ends = [100 * final(r) for r in own]
        there = [first(r, GOAL)["seconds"] for r in own]
        reached = int(np.isfinite(there).sum())
        when = f", after {np.nanmedian(there):.1f} s" if reached else ""
        spent_s = np.median([r.accuracy.seconds.iloc[-1] for r in own])
        yield (f"On the longer way, with {name}: at the end {np.median(ends):.2f} % ({min(ends):.2f} to "
               f"{max(ends):.2f}), in {spent_s:.1f} s; {reached} of {len(own)} seeds are at {100 * GOAL:g} % at an "
               f"evaluation{when}.")  # fmt: skip


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.1f}"
