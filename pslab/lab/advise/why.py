"""Why one policy reaches a goal sooner, or with fewer bytes, than another: in pieces and in a sentence."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from pslab.config.metric import metric_of
from pslab.config.run import Run
from pslab.errors import ConfigError
from pslab.lab.plots.labels import caption, name
from pslab.lab.records.frames import Given, unique
from pslab.lab.records.intervals import ACTIVITIES, AT_SERVER, NOBODY, activity, inside, records
from pslab.lab.records.merit import SECONDS, Merit, merit_of
from pslab.lab.records.record import Result
from pslab.lab.records.summary import held_at
from pslab.lab.records.units import SPACE

#: The fields of Run that make a policy's name, in their order.
CHOSEN = ("prune", "sync", "quantize", "rate", "ranges", "order")
ITERATIONS, REST, SERVER = "iterations", "rest", "server"
PIECES = ("compute", "select", "push", SERVER, "pull", "wait", REST, ITERATIONS)
#: Piece -> its words after "9.8 s less". A phase without words is called by its name.
WORDS = {"compute": "computing", "select": "compressing", "push": "pushing", SERVER: "time at the server",
         "pull": "pulling", "wait": "waiting", REST: "other time"}  # fmt: skip
AMOUNTS = {"bytes_up": "push", "bytes_down": "pull", "pushes": "compute"}  # by column of a merit, its piece
COUNTED = {"push": "pushed", "pull": "pulled", "compute": "computed"}  # piece -> its word for bytes and gradients
TELLING = 0.1  # pieces below this share of all savings, or of all additional costs, are left out of the sentence
SAME = 1e-3  # a difference below this share of the need counts as none
VARIED = ("learning_rate", "pushes", "seconds", "push_weight")  # may differ between policies: not in captions
MOST = 3  # pieces of either sign in a sentence
LEVEL = 0.95  # the quantile of the winner's staleness that is reported


# -- by activity -----------------------------------------------------------------------------------


class _Until(NamedTuple):
    """The part of a run until it holds the goal."""

    need: float  #: seconds, bytes or gradients
    iterations: float  #: gradients / workers
    spent: pd.Series  #: `need` by piece and waits_for; seconds are the mean worker's
    staleness: np.ndarray


def why(default: Given, winner: Given, goal: float, merit: Merit = SECONDS) -> pd.DataFrame:
    """Split the difference between what the winner and the default take to reach the goal into pieces that sum to it.

    An iteration is one gradient per worker. A piece is the difference of an activity per iteration (the seconds that
    the mean worker spends, or the bytes or gradients of all workers), times the default's iterations. The piece
    `iterations` is the cost of the winner's additional iterations. All values are means over the common seeds.

    Columns: piece (PIECES), waits_for (-1: for no worker), words, default and winner (their amounts of this piece until
    the goal; NaN for `iterations`), difference (negative: saved).

    `attrs`:
    - goal, merit (its name), seeds (their number); default and winner (the policies' names);
    - default_need (the seconds, bytes or gradients to the goal), default_iterations, default_staleness (the mean), the
      same for the winner, and winner_stalest, the LEVEL quantile of its staleness;
    - caption (lines for a figure) and sentence.

    Args:
        default, winner: runs that differ only in the seed.
        goal: the accuracy (0 to 1), or the value of the runs' metric; see `held`.
        merit: seconds, bytes or gradients.

    Raises:
        ConfigError: there is no common seed, or a run on it does not hold the goal, or holds it before its first push.
    """
    sides = [{result.run.seed: result for result in unique(side)} for side in (default, winner)]
    seeds = [seed for seed in sides[0] if seed in sides[1]]
    if not seeds:
        raise ConfigError("winner", sorted(sides[1]), f"shares no seed with the default, which has {sorted(sides[0])}: "
                                                "run both with the same seeds")  # fmt: skip
    metric_of(sides[0][seeds[0]].run).check_goal("goal", goal)
    pairs = [tuple(_until(side[seed], goal, merit) for side in sides) for seed in seeds]
    tables = [_pieces(*pair) for pair in pairs]
    mean = pd.concat(tables).groupby(level=[0, 1]).sum() / len(tables)
    names = sorted(mean.index, key=lambda key: (PIECES.index(key[0]), key))
    table = mean.loc[names].rename_axis(["piece", "waits_for"]).reset_index()
    table.loc[table.piece == ITERATIONS, ["default", "winner"]] = math.nan
    runs = [side[seeds[0]].run for side in sides]
    table.attrs |= {"goal": goal, "merit": merit.name, "seeds": len(seeds)}
    for who, runs_, words in zip(("default", "winner"), zip(*pairs, strict=True), _named(*runs), strict=True):
        stale = np.concatenate([until.staleness for until in runs_])
        table.attrs |= {who: words, f"{who}_need": float(np.mean([until.need for until in runs_])),
                        f"{who}_iterations": float(np.mean([until.iterations for until in runs_])),
                        f"{who}_staleness": float(stale.mean())}  # fmt: skip
    table.attrs["winner_stalest"] = float(np.quantile(stale, LEVEL))
    table.attrs["caption"] = caption([side[seed] for side in sides for seed in seeds], (*VARIED, *CHOSEN), "means over")
    table.insert(2, "words", [_words(row.piece, row.waits_for, row.difference, merit) for row in records(table)])
    table.attrs["sentence"] = sentence(table)
    return table


def _until(result: Result, goal: float, merit: Merit) -> _Until:
    at_s, pushes, *parts = held_at(result, goal, "seconds", "pushes", *merit.columns)
    if not 0 < at_s < math.inf:
        what = "does not hold the goal" if at_s else "holds the goal before its first push"
        raise ConfigError("goal", goal, f"{_named(result.run)[0]} {what} with seed {result.run.seed}: choose a goal "
                                        "that every run reaches after its first push")  # fmt: skip
    if merit is SECONDS:
        spent = _activities(result, at_s)
    else:
        amounts = {(AMOUNTS[column], NOBODY): size for column, size in zip(merit.columns, parts, strict=True)}
        spent = pd.Series(amounts)
    applied = max(1, int((result.pushes.seconds <= at_s).sum()))  # the goal may be held before the first push
    return _Until(sum(parts), pushes / result.run.workers, spent, result.pushes.staleness.to_numpy(float)[:applied])


def _activities(result: Result, until_s: float) -> pd.Series:
    """Return the mean worker's seconds until an instant, by piece and waits_for."""
    table = inside(activity(result), -math.inf, until_s)
    piece = table.phase.replace({**ACTIVITIES, **dict.fromkeys(AT_SERVER, SERVER)})
    spent: pd.Series = (table.end_s - table.begin_s).groupby([piece, table.waits_for]).sum() / result.run.workers
    spent.loc[REST, NOBODY] = until_s - spent.sum()
    return spent


def _pieces(default: _Until, winner: _Until) -> pd.DataFrame:
    """Return default, winner and difference by piece and waits_for, for one seed."""
    both = pd.DataFrame({"default": default.spent, "winner": winner.spent}).fillna(0.0)
    more_each = both.winner / winner.iterations - both.default / default.iterations
    both["difference"] = more_each * default.iterations
    more = (winner.iterations - default.iterations) * winner.need / winner.iterations
    both.loc[(ITERATIONS, NOBODY), :] = [0.0, 0.0, more]
    return both


def _named(*runs: Run) -> list[str]:
    """Return each policy's name: synchronization, pruning, and the fields in which a run differs from the defaults."""
    usual = Run()
    more = [field for field in CHOSEN[2:] if any(getattr(run, field) != getattr(usual, field) for run in runs)]
    return [", ".join(name(field, getattr(run, field)) for field in ("sync", "prune", *more)) for run in runs]


# -- in words --------------------------------------------------------------------------------------


def sentence(table: pd.DataFrame) -> str:
    """Return a sentence with the largest savings and additional costs in a table of `why`.

    ``"12.1 s sooner: 9.8 s less pulling, 4.0 s less waiting for worker 0; paid with 1.7 s for 14 % more iterations, at
    a mean staleness of 2.9"``.
    """
    total, whole, merit = float(table.difference.sum()), table.attrs["default_need"], merit_of(table.attrs["merit"])
    most = max(whole, table.attrs["winner_need"])
    if abs(total) < SAME * whole:
        return f"{merit.same} {table.attrs['default']}: after {merit.text(whole, most)}"
    pieces = _with_one_wait(table)
    with_it, against = (_told(pieces, sign, most) for sign in ((-1, 1) if total < 0 else (1, -1)))
    words = f"{merit.text(abs(total), most)} {merit.less if total < 0 else merit.more}: {', '.join(with_it)}"
    return words + (f"; {'paid with' if total < 0 else 'in return for'} {', '.join(against)}" if against else "")


def _told(table: pd.DataFrame, sign: int, most: float) -> list[str]:
    """Return the largest pieces of one sign in words: savings (-1) or additional costs (1)."""
    some = table[sign * table.difference > 0]
    least = max(TELLING * some.difference.abs().sum(), SAME * most)
    largest = some[some.difference.abs() >= least].sort_values("difference", key=abs, ascending=False, kind="stable")
    return [_piece(row, table.attrs, most) for row in records(largest.head(MOST))]


def _with_one_wait(table: pd.DataFrame) -> pd.DataFrame:
    """Merge the waits for all workers into one row, unless most of the waiting is for one worker."""
    waits = table[(table.piece == "wait") & (table.waits_for != NOBODY)]
    if not len(waits) or waits.difference.abs().max() > waits.difference.abs().sum() / 2:
        return table
    one = waits.iloc[:1].assign(words="waiting for others", **waits[["default", "winner", "difference"]].sum())
    return pd.concat([table.drop(waits.index), one])


def _piece(row: Any, facts: Mapping[Any, Any], most: float) -> str:
    size = merit_of(facts["merit"]).text(abs(row.difference), most)
    if row.piece != ITERATIONS:
        return f"{size} {'more' if row.difference > 0 else 'less'} {row.words}"
    share, stale = 100 * abs(facts["winner_iterations"] / facts["default_iterations"] - 1), facts["winner_staleness"]
    percent = f"{share:.0f}" if share >= 1 else f"{share:.1g}"
    if row.difference < 0:
        return f"{size} by {percent}{SPACE}% {row.words}"
    stale_words = f", at a mean staleness of {stale:.1f}" if stale >= 0.05 else ""
    return f"{size} for {percent}{SPACE}% {row.words}{stale_words}"


def _words(piece: str, waits_for: int, size: float, merit: Merit) -> str:
    if piece == ITERATIONS:
        return f"{'more' if size > 0 else 'fewer'} iterations"
    if waits_for != NOBODY:
        return f"waiting for worker {waits_for}"
    return (WORDS if merit is SECONDS else COUNTED).get(piece, piece)
