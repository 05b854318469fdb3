"""Why one policy is sooner at a goal than another, or needs fewer bytes: the difference in pieces and in a sentence."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import permutations
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from pslab.config.run import Run
from pslab.errors import ConfigError
from pslab.lab.plots.labels import caption, name
from pslab.lab.records.frames import Given, fields_of, unique
from pslab.lab.records.intervals import ACTIVITIES, AT_SERVER, NOBODY, activity, inside, records
from pslab.lab.records.merit import SECONDS, Merit, merit_of
from pslab.lab.records.record import Result
from pslab.lab.records.summary import held_at, measured
from pslab.lab.records.units import SPACE

#: What a policy is made of, in the order in which it is changed.
CHOSEN = ("prune", "sync", "quantize", "rate", "ranges", "order")
ITERATIONS, REST, SERVER = "iterations", "rest", "server"
PIECES = ("compute", "select", "push", SERVER, "pull", "wait", REST, ITERATIONS)
#: What "9.8 s less" is said of; a phase that is not here has its name.
WORDS = {"compute": "computing", "select": "pruning and encoding", "push": "pushing", SERVER: "time at the server",
         "pull": "pulling", "wait": "waiting", REST: "other time"}  # fmt: skip
COUNTED = {"push": "pushed", "pull": "pulled", "compute": "computed"}  # the same of bytes and gradients
TELLING = 0.1  # of what is saved, or paid, altogether: what is less than that is in no sentence
SAME = 1e-3  # of what is needed to the goal: what is less is no difference
VARIED = ("learning_rate", "pushes", "seconds", "push_weight")  # may differ between two policies: in no caption
MOST = 3  # pieces of either kind in a sentence
LEVEL = 0.95  # of the winner's pushes are no staler


# -- by activity -----------------------------------------------------------------------------------


class _Until(NamedTuple):
    """A run until it holds the goal."""

    need: float
    iterations: float  #: gradients / workers
    spent: pd.Series  #: of the merit, seconds of the mean worker, by piece and waits_for; they sum to `need`
    staleness: np.ndarray


def why(
    default: Given, winner: Given, goal: float, merit: Merit = SECONDS,
    alone: Given = (),
) -> pd.DataFrame:  # fmt: skip
    """Split the difference between winner and default, in their needs to the goal, into pieces that sum to it.

    An iteration is as many gradients as workers. Of seconds a piece is what the mean worker spends on an activity in
    one, of bytes what all of them push or pull in one; times the default's iterations. `iterations` is what the
    winner's further ones need. Each is the mean over the seeds that both have.

    Columns: piece (PIECES), waits_for (-1: for no worker), words, default and winner (what they need of it until the
    goal; NaN of `iterations`), difference (negative: saved). `attrs`: goal, merit (its name), seeds; default and
    winner, the policies in words, and default_need, default_iterations, default_staleness and the same of the winner;
    winner_stalest, the staleness that a share of LEVEL of its pushes does not exceed; the lines of a caption, the
    sentence, and the floor: what fresher gradients can save at most, "" if that is not known.

    Args:
        default, winner: runs that differ in the seed alone.
        goal: the accuracy (0 to 1), or value of the runs' metric; see `held`.
        merit: what is explained.
        alone: runs of the single machine at its best learning rate, whose gradients are never stale.

    Raises:
        ConfigError: no common seed; one of them does not hold the goal there, or holds it before its first push.
    """
    sides = [{result.run.seed: result for result in unique(side)} for side in (default, winner)]
    seeds = [seed for seed in sides[0] if seed in sides[1]]
    if not seeds:
        raise ConfigError("winner", sorted(sides[1]), f"no seed is also the default's; it has {sorted(sides[0])}")
    pairs = [tuple(_until(side[seed], goal, merit) for side in sides) for seed in seeds]
    tables = [_pieces(*pair) for pair in pairs]
    names = list(dict.fromkeys(key for table in tables for key in table.index))
    names.sort(key=lambda key: (PIECES.index(key[0]) if key[0] in PIECES else PIECES.index(REST), key))
    every = pd.concat([table.reindex(names, fill_value=0.0) for table in tables])
    mean = every.groupby(level=[0, 1], sort=False).mean()
    table = mean.rename_axis(["piece", "waits_for"]).reset_index()
    table.loc[table.piece == ITERATIONS, ["default", "winner"]] = math.nan
    runs = [side[seeds[0]].run for side in sides]
    table.attrs |= {"goal": goal, "merit": merit.name, "seeds": len(seeds)}
    for who, own, words in zip(("default", "winner"), zip(*pairs, strict=True), _named(*runs), strict=True):
        stale = np.concatenate([each.staleness for each in own])
        table.attrs |= {who: words, f"{who}_need": float(np.mean([each.need for each in own])),
                        f"{who}_iterations": float(np.mean([each.iterations for each in own])),
                        f"{who}_staleness": float(stale.mean())}  # fmt: skip
    table.attrs["winner_stalest"] = float(np.quantile(stale, LEVEL))
    table.attrs["caption"] = _caption(side[seed] for side in sides for seed in seeds)
    table.insert(2, "words", [_words(row.piece, row.waits_for, row.difference, merit) for row in records(table)])
    table.attrs["sentence"] = sentence(table)
    table.attrs["floor"] = _floor(sides[1].values(), alone, goal, merit)
    return table


def _until(result: Result, goal: float, merit: Merit) -> _Until:
    at_s, pushes, *parts = held_at(result, goal, "seconds", "pushes", *merit.columns)
    if not 0 < at_s < math.inf:
        what = "does not hold the goal" if at_s else "holds the goal before its first push"
        raise ConfigError("goal", goal, f"{_named(result.run)[0]} {what} with seed {result.run.seed}: choose a goal "
                                        "that every run reaches, and only by training")  # fmt: skip
    spent = _activities(result, at_s) if merit is SECONDS else _counted(dict(zip(merit.columns, parts, strict=True)))
    applied = max(1, int((result.pushes.seconds <= at_s).sum()))  # a goal that the first push reaches is held before it
    return _Until(sum(parts), pushes / result.run.workers, spent, result.pushes.staleness.to_numpy(float)[:applied])


def _activities(result: Result, until_s: float) -> pd.Series:
    """Seconds of the mean worker until then."""
    table = inside(activity(result), -math.inf, until_s)
    piece = table.phase.replace({**ACTIVITIES, **dict.fromkeys(AT_SERVER, SERVER)})
    spent: pd.Series = (table.end_s - table.begin_s).groupby([piece, table.waits_for]).sum() / result.run.workers
    spent.loc[REST, NOBODY] = until_s - spent.sum()
    return spent


def _counted(amounts: Mapping[str, float]) -> pd.Series:
    """Return the counts by piece; an iteration of any policy has as many gradients."""
    pieces = {"bytes_up": "push", "bytes_down": "pull", "pushes": "compute"}
    return pd.Series({(pieces[column], NOBODY): amount for column, amount in amounts.items()})


def _pieces(default: _Until, winner: _Until) -> pd.DataFrame:
    """default, winner and difference by piece and waits_for, of one seed."""
    both = pd.DataFrame({"default": default.spent, "winner": winner.spent}).fillna(0.0)
    each = both.winner / winner.iterations - both.default / default.iterations
    both["difference"] = each * default.iterations
    more = (winner.iterations - default.iterations) * winner.need / winner.iterations
    both.loc[(ITERATIONS, NOBODY), :] = [0.0, 0.0, more]
    return both


def _floor(winner: Given, alone: Given, goal: float, merit: Merit) -> str:
    """What fresher gradients can save the winner at most: those beyond the single machine's, on the seeds that both
    have, each at what a gradient of the winner needs."""
    own = {result.run.seed: result for result in unique(winner)}
    pairs = [(held_at(own[result.run.seed], goal, "pushes", *merit.columns), held_at(result, goal, "pushes")[0])
             for result in unique(alone) if result.run.seed in own]  # fmt: skip
    arrived = [(pushes, sum(parts), least) for (pushes, *parts), least in pairs if math.isfinite(least)]
    if not arrived:
        return ""
    gradients, need, least = np.mean(arrived, axis=0)
    name = _named(next(iter(own.values())).run)[0]
    if gradients <= least:
        return (f"{name} needs {gradients:.0f} gradients, the single machine {least:.0f}: fresher ones can save "
                "nothing")  # fmt: skip
    most = merit.text(need * (1 - least / gradients), need)
    return (f"{name} needs {gradients:.0f} gradients, the single machine {least:.0f}: no synchronization policy can "
            f"save more than {most} by fresher ones")  # fmt: skip


def _named(*runs: Run) -> list[str]:
    """Each policy in words: its synchronization and its pruning, and what else of it differs from the defaults."""
    usual = Run()
    more = [field for field in CHOSEN[2:] if any(getattr(run, field) != getattr(usual, field) for run in runs)]
    return [", ".join(name(field, getattr(run, field)) for field in ("sync", "prune", *more)) for run in runs]


def _caption(results: Iterable[Result]) -> list[str]:
    return caption(results, (*VARIED, *CHOSEN), "means over")


# -- in words --------------------------------------------------------------------------------------


def sentence(table: pd.DataFrame) -> str:
    """A table of `why` in a sentence of its largest savings and prices.

    ``"12.1 s sooner: 9.8 s less pulling, 4.0 s less waiting for worker 0; paid with 1.7 s for 14 % more iterations, at
    a mean staleness of 2.9"``.
    """
    total, whole, merit = float(table.difference.sum()), table.attrs["default_need"], merit_of(table.attrs["merit"])
    most = max(whole, table.attrs["winner_need"])
    if abs(total) < SAME * whole:
        return f"{merit.same} {table.attrs['default']}: after {merit.text(whole, most)}"
    pieces = _with_one_wait(table)
    with_it, against = (_told(pieces, sign, most) for sign in ((-1, 1) if total < 0 else (1, -1)))
    found = f"{merit.text(abs(total), most)} {merit.less if total < 0 else merit.more}: {', '.join(with_it)}"
    return found + (f"; {'paid with' if total < 0 else 'in return for'} {', '.join(against)}" if against else "")


def _told(table: pd.DataFrame, sign: int, most: float) -> list[str]:
    """The largest pieces of one sign, in words."""
    own = table[sign * table.difference > 0]
    least = max(TELLING * own.difference.abs().sum(), SAME * most)
    largest = own[own.difference.abs() >= least].sort_values("difference", key=abs, ascending=False, kind="stable")
    return [_piece(row, table.attrs, most) for row in records(largest.head(MOST))]


def _with_one_wait(table: pd.DataFrame) -> pd.DataFrame:
    """The table, where waiting is mostly for one worker; else with all of it in one row, because each is small."""
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
    found = f"{share:.0f}" if share >= 1 else f"{share:.1g}"
    if row.difference < 0:
        return f"{size} by {found}{SPACE}% {row.words}"
    stale_words = f", at a mean staleness of {stale:.1f}" if stale >= 0.05 else ""
    return f"{size} for {found}{SPACE}% {row.words}{stale_words}"


def _words(piece: str, waits_for: int, size: float, merit: Merit) -> str:
    if piece == ITERATIONS:
        return f"{'more' if size > 0 else 'fewer'} iterations"
    if waits_for != NOBODY:
        return f"waiting for worker {waits_for}"
    return (WORDS if merit is SECONDS else COUNTED).get(piece, piece)


# -- by choice -------------------------------------------------------------------------------------


def by_choice(
    results: Given, default: Run, winner: Run, goal: float, merit: Merit = SECONDS
) -> pd.DataFrame:
    """What is needed to the goal from the default to the winner, one choice after another: the pruning rule, then the
    synchronization, and so on, or in another order where more of those policies were tried.

    A policy between them that was not tried is left out, so that the next row has several choices. Each has its best
    learning rate. All are means over the seeds that all of the rows have.

    Columns: changed (the fields of Run that differ from the row above), policy (these in words), learning_rate,
    need, at_least (a seed ended before it held the goal: then it would have needed more), seeds. The first row is the
    default. `attrs`: merit (its name), the winner in words, the lines of a caption.

    Args:
        results: of these and of other policies, at any learning rates and seeds.
        default, winner: of their fields only those of CHOSEN are read.

    Raises:
        ConfigError: one of the two has no result, or they have no common seed.
    """
    rates: dict[Policy, dict[float, dict[int, _Arrival]]] = {}
    for result in unique(results):
        need, whole = measured(result, merit.measure, goal), sum(measured(result, name) for name in merit.columns)
        arrival = _Arrival(min(need, whole), math.isfinite(need))
        tried = rates.setdefault(fields_of(result.run, CHOSEN), {})
        tried.setdefault(result.run.learning_rate, {})[result.run.seed] = arrival
    first, last = (fields_of(run, CHOSEN) for run in (default, winner))
    for who, run, policy in (("default", default, first), ("winner", winner, last)):
        if policy not in rates:
            raise ConfigError(who, _named(run)[0], "none of these results is of this policy")
    best = {policy: min(own.items(), key=lambda pair: _rank(pair[1].values())) for policy, own in rates.items()}
    shared = {*best[first][1]} & {*best[last][1]}
    if not shared:
        raise ConfigError("winner", sorted(best[last][1]), f"no seed is also the default's: {sorted(best[first][1])}")
    known = {policy: own for policy, (_, own) in best.items() if min(shared) in own}
    path = max(_paths(first, last, known), key=lambda path: (sum(_arrived(known[each]) for each in path), len(path)))
    seeds = sorted(shared.intersection(*(known[policy] for policy in path)))
    rows = []
    for before, policy in zip([first, *path], path, strict=False):
        changed = [field for field, old, new in zip(CHOSEN, before, policy, strict=True) if old != new]
        arrivals = [known[policy][seed] for seed in seeds]
        words = [name(field, value) for field, value in zip(CHOSEN, policy, strict=True) if field in changed]
        rows.append({"changed": ", ".join(changed), "policy": ", ".join(words) or _named(default)[0],
                     "learning_rate": best[policy][0], "need": float(np.mean([each.need for each in arrivals])),
                     "at_least": not all(each.arrived for each in arrivals), "seeds": len(seeds)})  # fmt: skip
    table = pd.DataFrame(rows)
    runs = [result for result in unique(results) if fields_of(result.run, CHOSEN) in path and result.run.seed in seeds]
    table.attrs |= {"merit": merit.name, "winner": _named(winner)[0], "caption": _caption(runs)}
    return table


Policy = tuple[Any, ...]  # the values of CHOSEN


class _Arrival(NamedTuple):
    """The need of a run to the goal, or to its end if it did not arrive."""

    need: float
    arrived: bool


def _rank(arrivals: Iterable[_Arrival]) -> tuple[float, float]:
    """Of a learning rate: most seeds arrive, then the soonest."""
    own = list(arrivals)
    return -sum(each.arrived for each in own), float(np.mean([each.need for each in own]))


def _arrived(arrivals: Mapping[int, _Arrival]) -> bool:
    return all(each.arrived for each in arrivals.values())


def _paths(first: Policy, last: Policy, known: Iterable[Policy]) -> list[list[Policy]]:
    """For each order in which choices can be changed: the known policies from the first to the last."""
    places = [place for place, (old, new) in enumerate(zip(first, last, strict=True)) if old != new]
    there, found = {*known}, []
    for order in permutations(places):
        between = [tuple(last[place] if place in order[:count] else first[place] for place in range(len(first)))
                   for count in range(len(order) + 1)]  # fmt: skip
        found.append([policy for policy in between if policy in there])
    return found
