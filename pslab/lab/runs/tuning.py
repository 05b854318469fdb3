"""tuned(runs): a sweep whose grid grows until no best value lies at its end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pslab.lab.records import choosing
from pslab.lab.records.places import CHOICE
from pslab.lab.records.results import Results, Runs
from pslab.lab.runs.run import sweep


def tuned(
    runs: Runs, *, over: str = "learning_rate", goal: float | None = None, measure: str = "seconds_to_goal",
    rounds: int = 4, results: Path | str | None = None, progress: bool | None = None,
) -> Results:  # fmt: skip
    """The results of a grid in which every candidate is tried with the same effort.

    While the best value of `over` (see `best`) of some runs is the smallest or the largest that was tried with them,
    the next one beyond it is tried too, at the ratio of the last two; at most so many `rounds`, after which figures
    say how many still lie at an end.

    Args:
        goal: the accuracy (0 to 1) that counts; None: what `pslab.goal` says of the results so far.
    """
    found = sweep(runs, results=results, progress=progress)
    for _ in range(rounds):
        at = choosing.goal(found, over=over) if goal is None else goal
        more = [wider for result, place in _chosen(choosing.best(found, over=over, goal=at, measure=measure))
                if (wider := _wider(result, place, over)) is not None]  # fmt: skip
        if not more:
            break
        found = found + sweep(sum(more[1:], more[0]), results=results, progress=progress)
    return Results(found, found.columns, {**found.orders, over: sorted(found.levels(over))})


def _chosen(best: Results) -> list[tuple[Any, Any]]:
    return [(result, place) for result, places in zip(best, best.columns, strict=True) for place in places]


def _wider(result: Any, place: Any, over: str) -> Runs | None:
    """The chosen run with the value beyond the end of its grid; None if it does not lie at one."""
    if CHOICE not in place or place[CHOICE].beyond is None:
        return None
    plain = {name: value for name, value in place.items() if name != CHOICE}
    return Results([result], [[plain]]).again(**{over: place[CHOICE].beyond})
