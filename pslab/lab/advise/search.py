"""advise(base, target=0.9): which policy holds a target soonest on a cluster, why, and how sure that is.

All runs are in virtual time. Their order depends on their results alone, and each is a record: asked again, the search
walks through these records in seconds, and one that was interrupted goes on where it was.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pslab.config.cluster import resolve_cluster
from pslab.config.metric import metric_of
from pslab.config.run import FIELDS, FREE, Run
from pslab.errors import ConfigError, PslabError
from pslab.lab.advise.advice import Advice
from pslab.lab.advise.race import LEAST, RaceAnswer, Trial, around, race, rounded_up
from pslab.lab.advise.space import candidates, runs_of, simplicity
from pslab.lab.records import journal
from pslab.lab.records.frames import table
from pslab.lab.records.merit import SECONDS, Merit, merit_of
from pslab.lab.records.record import Result, default_results
from pslab.lab.records.summary import held, iteration_s, measured
from pslab.lab.records.tuning import rounded
from pslab.lab.records.units import SPACE
from pslab.lab.runs.calibrate import MEASURED, ROUNDS, calibrated
from pslab.lab.runs.grid import alone
from pslab.lab.runs.run import sweep
from pslab.protocol.server import least_budget

PROBED = 12  # iterations of the run that tells a policy's pace
STEPS = 3  # of policies whose workers compute many gradients for each: the first and the last are no part of the pace
FREE_OF_BOUND = 3  # times a policy's bound, in iterations more: it runs freely until some worker is there
PILOTED = (0.25, 0.5, 1.0, 2.0, 4.0)  # times the base's learning rate: where the grids' centre is looked for
WIDER = 3  # times that the pilot goes on beyond its best rate, if that lies at an end
ROOM, OWN_ROOM = 4, 2  # times the default's pushes to the target: what other policies have at most, and it itself
EVALUATIONS = 40  # of the runs that look for its learning rate, and of the longest run of the race
BEHIND_IT = 3  # evaluations that a run has behind the target: a median of three must have reached it
OWN = ("learning_rate", "ranges", "order", "eval_every")  # what runs of one policy differ in, but for seeds and ends
AT_ONCE = 4  # runs, however many cores there are: asked again, the race goes the same way
ALONE = "alone"  # the single machine, among the policies that have run
PATHS = ({"ranges": "layers"}, {"ranges": "layers", "order": "front"}, {"ranges": "layers", "order": "needed"})


class Unreached(PslabError):
    """No learning rate of the default policy holds the target within its pushes; the runs are records."""


def advise(
    base: Run, *, target: float, space: Any = None, learning_rates: Sequence[float] | None = None,
    seeds: Sequence[int] = range(8), minutes: float = 5.0, pushes: int | None = None, tie: float = 0.05,
    sure: float = 0.92, merit: str = "seconds", results: Path | str | None = None,
    progress: bool | None = None,
) -> Advice:  # fmt: skip
    """Which policy holds the target soonest on the base's cluster, in its own seconds; or with the fewest bytes.

    The base says what is trained, by how many workers, on which cluster; its policy is the default that the answer is
    compared with. A run *holds* a target where the running median of three evaluations reaches it. Each policy is
    compared at its own best learning rate, on the same seeds, and runs end as soon as they are too late to matter: by
    their seconds or their gradients, whichever are compared. What is compared by bytes runs until it holds the target.

    Args:
        target: an accuracy from 0 to 1, or a value of the base's metric: with `metric="loss"` a loss to come down to.
        space: what is compared: axes as `grid` takes them, or its table; None: pslab.lab.advise.space.DEFAULT_SPACE.
        learning_rates: what each policy begins with; None: around what is best for the default.
        seeds: at most these, three at least before anything is decided.
        minutes: after which it ends with the best answer so far.
        pushes: a run's most; None: four times what the default needs.
        tie: the share of time within which two policies count as equal.
        sure: the probability with which an answer is decided: that its policy is the best, or within a tie of it.
        merit: what is to be small until the target is held: seconds, bytes (sent and received), or gradients.
        progress: whether to say what is being tried; None: as `sweep` does.

    Raises:
        ConfigError: what Run, `grid` or the race refuse; nothing was started.
        Unreached: no rate of the default policy holds the target.
        And what `sweep` raises; every run that has ended is a record.
    """
    metric = metric_of(base)
    number = isinstance(target, (int, float)) and math.isfinite(target)
    if not number or (metric.share and not 0 < target <= 1):
        bounds = "above 0 and at most 1" if metric.share else f"that the {metric.name} can come to"
        percent = f": {target:g}{SPACE}% is {target / 100:g}" if number and metric.share and 1 < target <= 100 else ""
        raise ConfigError("target", target, f"must be a number {bounds}{percent}")
    if not minutes > 0:
        raise ConfigError("minutes", minutes, "must be above 0, such as 5")
    if not seeds:
        raise ConfigError("seeds", list(seeds), "must be a list of at least one seed, such as range(8)")
    runs_of(base, space)  # a slip in an axis is refused before this machine is measured
    place = default_results() if results is None else Path(results)
    with _Bar(progress, minutes) as bar:
        asking = _Asking(base, target, merit_of(merit), place, bar, time.monotonic() + 60 * minutes)
        return asking.advice(space, learning_rates, [int(seed) for seed in seeds], pushes, tie, sure)


class _Bar(contextlib.AbstractContextManager["_Bar"]):
    """A bar that shows the present step of the search, and the time that is left."""

    def __init__(self, shown: bool | None, minutes: float) -> None:
        from tqdm import tqdm  # which takes time to load

        hidden = journal.active() if shown is None else not shown
        self._bar = tqdm(disable=hidden, leave=False, bar_format=f"{{desc}} ({{elapsed}} of at most {minutes:g} min)")

    def say(self, doing: str) -> None:
        """Show the present trial."""
        self._bar.set_description_str(f"trying {doing}")

    def __exit__(self, *_: object) -> None:
        self._bar.close()


class _Asking:
    """An advice in the making."""

    def __init__(self, base: Run, target: float, merit: Merit, place: Path, bar: _Bar, until_s: float) -> None:
        self._given, self._target, self._merit, self._place, self._bar = base, float(target), merit, place, bar
        self._until_s, self._begun_s, self._notes = until_s, time.monotonic(), list[str]()
        self._base = self._modelled(base)
        self._most, self._budgets = base.pushes or int(FIELDS["pushes"].default), dict[str, int]()  # of runs, in pushes
        self._done: dict[str, tuple[Result, str]] = {}  # by digest: each run, and its policy
        self._raced = False  # whether a run of the race is over

    def _modelled(self, base: Run) -> Run:
        """The base in virtual time, on its cluster; where that models no computation, on what this machine takes."""
        plain = {"engine": "virtual", "seconds": None, "target_accuracy": self._target, "target_held": True,
                 "schedule": "constant", "evaluate": "after", "ray": None, "dilation": "auto",
                 "keep_weights": False}  # fmt: skip
        if base.schedule != "constant":
            self._notes.append("with a constant learning rate: a schedule that ends with the budget would favour "
                               "whoever has the larger one")  # fmt: skip
        given = {} if isinstance(base.cluster, str) else {**base.cluster}
        if (costs := resolve_cluster(base.cluster).costs) != "none":
            self._notes.append(f"costs that the cluster does not give are those of the table {costs}")
        if resolve_cluster(base.cluster).modelled(base.workers):
            return base.but(**plain)
        budget = ROUNDS * base.workers
        short = base.but(engine="local", ray=None, pushes=budget, eval_every=budget, evaluate="after", seconds=None,
                         target_accuracy=None, target_held=False, dilation=1, cluster=FREE)  # fmt: skip
        self._bar.say("what computing and messages cost on this machine")
        short_runs = sweep([short, *_pruned(short)], results=self._place, progress=False)
        self._notes.append(f"costs as measured on this machine by {' and '.join(each.digest for each in short_runs)}")
        return base.but(**plain, cluster={**_costs(*map(calibrated, short_runs)), **given})

    def advice(
        self, space: Any, rates: Sequence[float] | None, seeds: Sequence[int], pushes: int | None, tie: float,
        sure: float,
    ) -> Advice:  # fmt: skip
        """See `advise`."""
        self._policies, self._refused = candidates(self._base, space)
        self._tie = tie
        self._default = next(iter(self._policies))
        self._paces = self._probed(seeds[0])  # seconds of an iteration, by policy
        self._most = pushes or self._most
        self._every = max(self._base.workers, round(self._most / EVALUATIONS))
        grids, needed = self._grids(rates, seeds[0])
        self._budgets = dict.fromkeys(self._policies, pushes or self._budget(ROOM * needed))
        if pushes is None:
            self._budgets[self._default] = self._budget(OWN_ROOM * needed)
        # the default is first: what is asked is how much sooner another one is, also where the minutes are few
        order = sorted(self._paces, key=lambda name: (name != self._default, self._paces[name]))
        simple = {name: simplicity(self._base.but(**fields)) for name, fields in self._policies.items()}
        answer = race({name: grids[name] for name in order}, self._default, self._needs, simplicity=simple, seeds=seeds,
                      tie=tie, sure=sure, capped=self._merit.name != "bytes")  # fmt: skip
        if answer.ending == "time":
            self._notes.append("left out for lack of time: ranges and orders, the single machine")
        return self._advice(answer)

    def _budget(self, pushes: float) -> int:
        """So many pushes in whole rounds, and the evaluations that show that the target is held."""
        return self._base.workers * math.ceil((pushes + BEHIND_IT * self._every) / self._base.workers)

    # -- before the race -----------------------------------------------------------------------------------

    def _probed(self, seed: int) -> dict[str, float]:
        """Seconds per iteration of each policy, by a short run without evaluations."""
        from pslab.lab.runs.resolve import resolve  # with torch

        runs = []
        for fields in self._policies.values():
            run = self._base.but(**fields, seed=seed)
            experiment = resolve(run)
            freely = run.workers * (PROBED + FREE_OF_BOUND * (experiment.traits.window or 0))
            pushes = max(freely, STEPS * (least_budget(experiment.sync, run.workers) or 0))
            runs.append(run.but(pushes=pushes, eval_every=pushes, target_accuracy=None, target_held=False))
        return dict(zip(self._policies, map(iteration_s, self._sweep(runs, what="the pace")), strict=True))

    def _grids(self, rates: Sequence[float] | None, seed: int) -> tuple[dict[str, Sequence[float]], float]:
        """The learning rates that each policy begins with, and the pushes that the default needs at its best one."""
        from pslab.lab.runs.resolve import resolve  # with torch

        centre, needed = self._pilot(self._default, self._base.learning_rate, seed)
        if not math.isfinite(needed):
            raise Unreached(self._unreached(self._most))
        if not needed:
            raise ConfigError("target", self._target, "the first weights hold it already: give one to train for")
        # as often as the pilot's most pushes ask for, a near target is met between two evaluations
        self._every = max(self._base.workers, min(self._every, round(ROOM * needed / EVALUATIONS)))
        usual = dict[str, float | None]()  # of a worker's own optimizer: a rate that it takes
        alike = dict[str, list[str]]()  # policies by what their rates are of
        for name, fields in self._policies.items():
            experiment = resolve(self._base.but(**fields))
            inner, rule = experiment.inner, experiment.prune
            usual[name] = inner.spec.usual_rate if inner else None
            alike.setdefault(repr((inner, rule if getattr(rule, "momentum", 0.0) else None)), []).append(name)
        gradients = centre if usual[self._default] is None else float(FIELDS["learning_rate"].default)
        centres = dict.fromkeys(self._policies, centre)
        for first, *others in alike.values() if rates is None else ():
            if self._default not in (first, *others):
                best, _ = self._pilot(first, usual[first] or gradients, seed)
                centres |= dict.fromkeys((first, *others), best)
        grids = {name: rates or around(at) for name, at in centres.items()}
        return grids, needed

    def _pilot(self, policy: str, around: float, seed: int) -> tuple[float, float]:
        """The best learning rate of a policy with one seed, and how many pushes it needs to the target."""
        rates, tried = [around * factor for factor in PILOTED], dict[float, tuple[float, float, float]]()
        measure, rank = "held_pushes" if policy == ALONE else self._merit.measure, metric_of(self._base).rank
        for _ in range(WIDER + 1):
            runs = [self._run(policy, rate, seed) for rate in rates]
            tried |= {result.run.learning_rate: (
                measured(result, measure, self._target), -rank(measured(result, "best_accuracy")),
                held(result, self._target)[1]) for result in self._sweep(runs, policy)}  # fmt: skip
            best = min(tried, key=lambda rate: (tried[rate][0], abs(math.log(rate / around))))
            if not math.isfinite(tried[best][0]):  # what came nearest: of those that diverge alike the smallest rate
                best = min(tried, key=lambda rate: (tried[rate][1], rate))
            if best not in (min(tried), max(tried)):
                break
            rates = [best / 2 if best == min(tried) else best * 2]
        return best, tried[best][2]

    def _unreached(self, most: int) -> str:
        """Return the nearest trial, and a way out."""
        metric = metric_of(self._base)
        results = [result for result, name in self._done.values() if name == self._default]
        best = max(results, key=lambda each: (metric.rank(measured(each, "best_accuracy")), -each.run.learning_rate))
        top = measured(best, "best_accuracy")
        after = best.accuracy.pushes.to_numpy()[(best.accuracy.accuracy - top).abs().argmin()]
        lower, rates = rounded(top, metric), sorted({result.run.learning_rate for result in results})
        rate = best.run.learning_rate
        end = {rates[0]: ", the smallest of them,", rates[-1]: ", the largest of them,"}.get(rate, "")
        ways = [f"learning_rate={rate:g} in the base"] if end else []
        ways += [f"a target of {metric.goal(lower, SPACE)}"] if metric.rank(lower) <= metric.rank(top) else []
        return (f"{self._default} holds {metric.goal(self._target, SPACE)} within {most} pushes at none of the "
                f"learning rates {', '.join(f'{each:g}' for each in rates)}; the best was {metric.text(top, SPACE)} at "
                f"rate {rate:g}{end} after {after:.0f} pushes. Try {' or '.join([*ways, f'pushes={ROOM * most}'])}. "
                "These runs are records: nothing is lost")  # fmt: skip

    # -- the race ------------------------------------------------------------------------------------------

    def _run(self, policy: str, rate: float, seed: int, cap: float = math.inf) -> Run:
        """A run that ends once it holds the target, or once it is known that it did not before its cap: two evaluations
        later."""
        more, pushes, seconds = 2 * self._every, self._budgets.get(policy, self._most), None
        if math.isfinite(cap) and self._merit is SECONDS:
            seconds = rounded_up(cap + more / self._base.workers * self._paces[policy])
        elif math.isfinite(cap):  # of gradients
            pushes = min(pushes, self._base.workers * math.ceil((cap + more) / self._base.workers))
        base = alone(self._base) if policy == ALONE else self._base.but(**self._policies[policy])
        return base.but(learning_rate=rate, seed=seed, eval_every=self._every, pushes=pushes, seconds=seconds)

    def _needs(self, trials: Sequence[Trial]) -> dict[Trial, float]:
        """Return the need of each trial to hold the target, as far as time allowed."""
        found: dict[Trial, Result] = {}
        for at in range(0, len(trials), AT_ONCE):
            if time.monotonic() > self._until_s and self._raced:  # there is an answer: the default's
                break
            now = trials[at : at + AT_ONCE]
            self._bar.say(", ".join(dict.fromkeys(f"{each.policy} with seed {each.seed}" for each in now)))
            runs = [self._run(each.policy, each.learning_rate, each.seed, each.cap) for each in now]
            try:
                found |= dict(zip(now, sweep(runs, results=self._place, progress=False), strict=True))
            except KeyboardInterrupt as interrupt:  # the best answer so far; the runs under way go on another time
                if not self._raced:
                    raise
                self._notes.append(f"ended by an interrupt ({interrupt}): asked again, it goes on where it was")
                break
            self._raced = True
        self._done |= {result.digest: (result, trial.policy) for trial, result in found.items()}
        return {trial: measured(result, self._merit.measure, self._target) for trial, result in found.items()}

    def _sweep(self, runs: Sequence[Run], policy: str = "", what: str = "learning rates") -> list[Result]:
        whose = "the single machine" if policy == ALONE else policy or f"{len(runs)} policies"
        self._bar.say(f"{what} of {whose}")
        found = sweep(runs, results=self._place, progress=False)
        self._done |= {result.digest: (result, policy) for result in found if policy}
        return found

    # -- after it ------------------------------------------------------------------------------------------

    def _advice(self, answer: RaceAnswer) -> Advice:
        before = self._at(answer, self._default)
        extra = self._way(answer)
        winner = self._at(answer, answer.policy, extra)
        single = self._alone(answer, winner)
        done = [(result, name) for result, name in self._done.values() if name != ALONE]
        results = table([result for result, _ in done], [{"policy": name} for _, name in done])
        gradients = float(sum(result.manifest["pushes"] for result, _ in self._done.values()))
        arms = sum(len(each.rates) for each in answer.standings)
        seeds = max(len(each.needs) for each in answer.standings)
        cost = {"runs": float(len(self._done)), "gradients": gradients, "seconds": time.monotonic() - self._begun_s,
                "share": gradients / (arms * seeds * self._budgets[answer.policy])}  # fmt: skip
        fields = {**self._policies[answer.policy], **extra, "learning_rate": answer.learning_rate}
        own = {each.policy: each.learning_rate for each in answer.standings}
        whole = max(self._budgets.values())
        runs = {name: self._run(name, own[name], 0).but(pushes=whole) for name in self._policies}
        return Advice(self._given.but(**fields), answer, self._target, results, self._refused, before, winner, cost,
                      tuple(self._notes), self._merit, single, runs, self._place)  # fmt: skip

    def _at(self, answer: RaceAnswer, policy: str, extra: Mapping[str, Any] | None = None) -> list[Result]:
        """The runs of a policy at its best rate that hold the target, a seed each."""
        wanted = self._run(policy, answer.standing(policy).learning_rate, 0).but(**(extra or {}))
        found: dict[int, Result] = {}
        for result, name in self._done.values():
            same = all(getattr(result.run, field) == getattr(wanted, field) for field in OWN)
            if name == policy and same and math.isfinite(held(result, self._target)[0]):
                found.setdefault(result.run.seed, result)
        return list(found.values())

    def _way(self, answer: RaceAnswer) -> dict[str, Any]:
        """The ranges and order of requests with which the advised policy is sooner by more than a tie, if one is."""
        if answer.policy == self._default or not answer.decided:  # there is no time left for it
            return {}
        if self._merit is not SECONDS:  # they change when it is sent, and not what
            return {}
        found = self._at(answer, answer.policy)
        whole = {result.run.seed: rounded_up(held(result, self._target)[0]) for result in found}
        best, fields = math.log(1 - self._tie), dict[str, Any]()
        for extra in PATHS:
            try:
                runs = [self._run(answer.policy, answer.learning_rate, seed, took).but(**extra)
                        for seed, took in whole.items()]  # fmt: skip
                found = self._sweep(runs, answer.policy, "ranges and orders")
            except ConfigError:  # they cannot run together
                continue
            each = [held(result, self._target)[0] / whole[result.run.seed] for result in found]
            if (gain := sum(map(math.log, each)) / len(each)) < best:
                best, fields = gain, dict(extra)
        return fields

    def _alone(self, answer: RaceAnswer, winner: Sequence[Result]) -> list[Result]:
        """The single machine at its best learning rate, on the first seeds of the winner: none of its gradients is
        stale."""
        if self._base.workers == 1 or not answer.decided:  # there is no time left for it
            return []
        seeds = [result.run.seed for result in winner][:LEAST]
        self._budgets[ALONE] = self._budgets[self._default]
        rate, needed = self._pilot(ALONE, answer.standing(self._default).learning_rate, seeds[0])
        if not math.isfinite(needed):
            return []
        return self._sweep([self._run(ALONE, rate, seed) for seed in seeds], ALONE)


def _pruned(dense: Run) -> list[Run]:
    """The same run with short pushes and answers, which cost what dense ones do not; none if it has such, or cannot."""
    from pslab.lab.runs.resolve import resolve  # with torch

    if dense.prune != FIELDS["prune"].default:
        return []
    run = dense.but(prune="static:1%", pull="changed")
    try:
        resolve(run)
    except ConfigError:
        return []
    return [run]


def _costs(first: Mapping[str, Any], pruned: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the costs of dense gradients, and the additional costs of pruned gradients."""
    if pruned is None:
        return {**first}
    own = {name: pruned[name] for name in MEASURED.values() if name in pruned}
    found_s = max(0.0, pruned.get("serve_s", 0.0) - first.get("serve_s", 0.0))  # beyond an answer as it lies
    return {**first, **own, **({"find_s": found_s} if found_s else {})}
