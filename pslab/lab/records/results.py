"""Finished runs with the columns of their grid, and the tidy table of all their evaluations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from pslab.config.metric import metric_of
from pslab.config.run import FIELDS, Run
from pslab.lab.records.places import CHOICE, Place, Placed, combinations, listed, merged, plain, value_of
from pslab.lab.records.record import Result

HIDDEN = ("pushes", "seconds", "loss")  # fields of Run with the names of evaluations' columns
SHOWN = tuple(name for name in FIELDS if name not in HIDDEN)


@dataclass(frozen=True)
class Choice:
    """How a run was chosen among those that differ in `over` alone."""

    over: str
    measure: str
    goal: float | None
    among: int  #: how many values there were
    at_end: bool  #: whether the chosen one is the smallest or the largest of them
    beyond: float | None = None  #: then the next number in that direction, by the ratio of the last two


class Runs(Placed[Run]):
    """Runs that `grid` made; `sweep` turns them into Results with the same columns."""

    def finished(self, results: Iterable[Result]) -> Results:
        """The results of these runs, in their order, in the same places."""
        return Results(results, self.columns, self.orders)

    def words(self, index: int) -> str:
        """What tells this run apart: ``"sync ssp:3, seed 1 (0123456789abcdef)"``."""
        run, place = self[index], next(iter(self.columns[index]), {})
        names = [*self.differing(), *(["seed"] if len(self.levels("seed")) > 1 else [])]
        told = ", ".join(f"{name} {value_of(run, place, name)}" for name in names)
        return f"{told} ({run.digest})" if told else run.digest


class Results(Placed[Result]):
    """Finished runs."""

    def again(self, **fields: Any) -> Runs:
        """The same runs with other fields, for each combination of their values: `best(...).again(seed=[0, 1, 2])`."""
        pairs: list[tuple[Run, Sequence[Place]]] = []
        for result, places in zip(self, self.columns, strict=True):
            for chosen in combinations({name: listed(value) for name, value in fields.items()}):
                own = [{**place, **{name: plain(value) for name, value in chosen.items() if name in place}}
                       for place in places]  # fmt: skip
                pairs.append((result.run.but(**chosen), own))
        return Runs(*merged(pairs), {name: values for name, values in self.orders.items() if name not in fields})

    def notes(self) -> list[str]:
        """How `best` chose among these results, in a sentence for each kind of choice."""
        kinds: dict[tuple[str, str, str], list[Choice]] = {}
        found = {(run.but(seed=0).digest, place[CHOICE]): run for run, place in self._places() if CHOICE in place}
        for (_, choice), run in sorted(found.items(), key=lambda pair: pair[0][0]):
            aimed = "" if choice.goal is None else metric_of(run).goal(choice.goal, " ")
            kinds.setdefault((choice.over, choice.measure, aimed), []).append(choice)
        return [_sentence(*kind, choices) for kind, choices in kinds.items()]


def _sentence(over: str, measure: str, aimed: str, choices: Sequence[Choice]) -> str:
    aim = f" to {aimed}" if aimed and measure.endswith("_to_goal") else ""
    words = measure.removesuffix("_to_goal").replace("_", " ")
    ends = sum(choice.at_end for choice in choices)
    edge = f"; {ends} of {len(choices)} lie at an end of their grid" if ends else ""
    return f"each at its best {over.replace('_', ' ')} by {words}{aim}{edge}"


WITH_ALL = "server ", "the run was ended"  # how the words for the end of a process begin that ended with all others


def recovered(result: Result) -> str:
    """What a run went on after, in words: ends of itself, of its workers' processes, its servers; "" if nothing was."""
    manifest = result.manifest
    resumed, again, begun = (manifest.get(name, ()) for name in ("resumed", "rewinds", "fallen_starts"))
    own = (life for life in manifest.get("lives", ()) if not life["how"].startswith(WITH_ALL))
    workers = sorted({life["worker"] for life in own})
    words = [f"went on at push {each['pushes']} from the checkpoint of {each['made']}" for each in resumed[-1:]]
    words += [f"its server was replaced {_times(len(again))}"] if again else []
    many = "s" * (len(workers) > 1)
    words += [f"processes of worker{many} {', '.join(map(str, workers))} were replaced"] if workers else []
    words += [f"began again {_times(len(begun))}"] if begun else []
    return "; ".join(words)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def single(run: Run, others: Iterable[Run]) -> bool:
    """Whether this is the single machine beside runs of several workers."""
    return run.workers == 1 and any(other.workers > 1 for other in others)


# -- one row per evaluation ------------------------------------------------------------------------


def tidy(results: Results | Iterable[Result]) -> pd.DataFrame:
    """A row for each evaluation: the axes, the fields of Run but its budget and loss, `digest`, and `evaluations`'
    columns. An axis with the name of one of these, such as loss, is `loss_of_run`.

    A single machine's iteration counts as many pushes as that of the runs beside it, so that all have seen as many
    samples at one place.
    """
    found = results if isinstance(results, Results) else Results(results)
    runs = [result.run for result in found]
    sizes = {run.workers for run in runs if run.workers > 1}
    tables = []
    for result, places in zip(found, found.columns, strict=True):
        table = evaluations(result)
        if single(result.run, runs) and len(sizes) == 1:
            table = table.assign(iteration=table.pushes / min(sizes))
        for place in places:
            columns = {name + "_of_run" * (name in HIDDEN): value_of(result.run, place, name)
                       for name in (*place, *SHOWN) if name != CHOICE}  # fmt: skip
            tables.append(pd.DataFrame({**columns, "digest": result.digest}, index=table.index).join(table))
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()


def evaluations(result: Result) -> pd.DataFrame:
    """One run's finite evaluations: pushes, iteration (pushes / workers), seconds, accuracy (0 to 1; or the metric),
    loss; the bytes on the wire until then: of pushes (bytes_up), of pulls (bytes_down), and of both (bytes); and the
    rounds: how often each worker has pushed, in the mean."""
    table = result.accuracy.sort_values("pushes", kind="stable").drop_duplicates("pushes")
    table = table[np.isfinite(table.accuracy)].reset_index(drop=True)
    sent = {name: _sent_until(result.pushes, table.seconds.to_numpy(), columns) for name, columns in BYTES.items()}
    each = result.run.workers * result.pushes.range.nunique()
    held = result.pushes.assign(rounds=(result.pushes.bytes_up > 0) / each)
    sent["rounds"] = _sent_until(held, table.seconds.to_numpy(), ("rounds",))
    found: pd.DataFrame = table[["pushes", "iteration", "seconds", "accuracy", "loss"]].assign(**sent)
    return found


BYTES = {"bytes": ("bytes_up", "bytes_down"), "bytes_up": ("bytes_up",), "bytes_down": ("bytes_down",)}


def _sent_until(table: pd.DataFrame, seconds: np.ndarray, columns: Sequence[str]) -> np.ndarray:
    """Sums over the pushes until each of these instants, such as of the bytes that they, and their pulls, took."""
    order = np.argsort(table.seconds.to_numpy(), kind="stable")
    total = np.concatenate([[0.0], np.cumsum(table[list(columns)].sum(axis=1).to_numpy(float)[order])])
    sent: np.ndarray = total[np.searchsorted(table.seconds.to_numpy()[order], seconds, side="right")]
    return sent
