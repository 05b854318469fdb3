"""Search for the policy that holds a target soonest on a cluster: ``advise(base, target=0.9)``.

All runs are in virtual time. Their order depends only on their results, and each run is recorded. A search that is
called again reads these records in seconds, and an interrupted search continues.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from pslab.config.cluster import resolve_cluster
from pslab.config.metric import metric_of
from pslab.config.run import FIELDS, FREE, Run
from pslab.errors import ConfigError, PslabError
from pslab.lab.advise.advice import Advice
from pslab.lab.advise.race import RaceAnswer, Trial, around, race, rounded_up
from pslab.lab.advise.space import candidates, runs_of, simplicity
from pslab.lab.records import journal
from pslab.lab.records.frames import table
from pslab.lab.records.merit import SECONDS, Merit, merit_of
from pslab.lab.records.record import Result, default_results
from pslab.lab.records.summary import held, iteration_s, measured
from pslab.lab.records.tuning import rounded
from pslab.lab.records.units import SPACE
from pslab.lab.runs.calibrate import MEASURED, calibrated, short_run
from pslab.lab.runs.run import sweep
from pslab.protocol.server import least_budget

PROBED = 12  # iterations of the run that measures a policy's pace
STEPS = 3  # the least steps of that run: the pace does not count the first and the last one
FREE_OF_BOUND = 3  # further iterations of that run, in multiples of the staleness bound: a worker reaches it late
PILOTED = (0.25, 0.5, 1.0, 2.0, 4.0)  # the pilot's rates, as multiples of the base's, to find the grids' centre
WIDER = 3  # the pilot is widened at most this often, if its best rate lies at an end
ROOM, OWN_ROOM = 4, 2  # budgets of other policies and of the default, in multiples of the default's need
EVALUATIONS = 40  # evaluations of the pilot's runs, and of the longest run of the race
BEHIND_IT = 3  # evaluations of a run after the target: the median of three must reach it
OWN = ("learning_rate", "ranges", "order", "eval_every")  # fields in which runs of a policy differ, except seed, budget
AT_ONCE = 4  # runs at once, on any number of cores, so that the race is repeatable
PATHS = ({"ranges": "layers"}, {"ranges": "layers", "order": "front"}, {"ranges": "layers", "order": "needed"})


class Unreached(PslabError):
    """No learning rate of the default policy holds the target within its pushes; its runs are recorded."""


def advise(
    base: Run, *, target: float, space: Any = None, learning_rates: Sequence[float] | None = None,
    seeds: Sequence[int] = range(8), minutes: float = 5.0, pushes: int | None = None, tie: float = 0.05,
    sure: float = 0.92, merit: str = "seconds", results: Path | str | None = None,
    progress: bool | None = None,
) -> Advice:  # fmt: skip
    """Search for the policy that holds the target soonest, or with the fewest bytes or gradients, on a cluster.

    The base gives the model, the data, the workers and the cluster; its policy is the default that the answer is
    compared with. A run *holds* a target once the running median of three evaluations reaches it. Each policy is
    compared at its best learning rate, on the same seeds. A run stops as soon as its seconds or gradients are too many
    to win. If the merit is bytes, it stops when it holds the target.

    Args:
        target: an accuracy from 0 to 1, or a value of the base's metric, such as a loss with `metric="loss"`.
        space: the policies, as axes for `grid` or as its table; None: pslab.lab.advise.space.DEFAULT_SPACE.
        learning_rates: the first rates of each policy; None: rates around the default's best one.
        seeds: the seeds that may be used; a decision needs at least three.
        minutes: a time limit, after which the best answer so far is returned.
        pushes: the largest budget of a run; None: four times the default's need.
        tie: two policies whose needs differ by at most this share count as equal.
        sure: the probability of being the best, or within a tie of it, with which a policy is advised.
        merit: the quantity to minimize until the target is held: seconds, bytes (sent and received) or gradients.
        progress: whether to show the current trial; None: as `sweep` does.

    Raises:
        ConfigError: Run, `grid` or the race refuses a value, or the initial weights hold the target.
        Unreached: no rate of the default policy holds the target.
        And the errors of `sweep`; every run that has ended is recorded.
    """
    metric_of(base).check_goal("target", target)
    if not minutes > 0:
        raise ConfigError("minutes", minutes, "must be above 0, such as 5")
    if not seeds:
        raise ConfigError("seeds", list(seeds), "must be a list of at least one seed, such as range(8)")
    runs_of(base, space)  # refuses a misspelt axis before this machine is measured
    folder = default_results() if results is None else Path(results)
    hidden = journal.active() if progress is None else not progress
    with tqdm(disable=hidden, leave=False, bar_format=f"{{desc}} ({{elapsed}} of at most {minutes:g} min)") as bar:
        asking = _Asking(base, target, merit_of(merit), folder, bar, time.monotonic() + 60 * minutes)
        return asking.advice(space, learning_rates, [int(seed) for seed in seeds], pushes, tie, sure)


class _Asking:
    """A call of `advise`: its settings, its runs so far, and the choice of the next runs."""

    def __init__(self, base: Run, target: float, merit: Merit, folder: Path, bar: tqdm, until_s: float) -> None:
        self._given, self._target, self._merit, self._place, self._bar = base, float(target), merit, folder, bar
        self._until_s, self._begun_s, self._notes = until_s, time.monotonic(), list[str]()
        self._base = self._modelled(base)
        self._most, self._budgets = base.pushes or int(FIELDS["pushes"].default), dict[str, int]()  # most pushes
        self._done: dict[str, tuple[Result, str]] = {}  # by digest: each finished run and its policy
        self._raced = False  # whether a run of the race has finished

    def _modelled(self, base: Run) -> Run:
        """Return the base in virtual time; if its cluster gives no compute time, with this machine's measured costs."""
        plain = {"engine": "virtual", "seconds": None, "target_accuracy": self._target, "target_held": True,
                 "schedule": "constant", "evaluate": "after", "ray": None, "dilation": "auto",
                 "keep_weights": False}  # fmt: skip
        if base.schedule != "constant":
            self._notes.append("the learning rate was constant: a schedule that ends with the budget would favour "
                               "policies with a larger budget")  # fmt: skip
        given = {} if isinstance(base.cluster, str) else {**base.cluster}
        if (costs := resolve_cluster(base.cluster).costs) != "none":
            self._notes.append(f"costs that the cluster does not give are taken from the table {costs}")
        if resolve_cluster(base.cluster).modelled(base.workers):
            return base.but(**plain)
        short = short_run(base).but(cluster=FREE)
        self._bar.set_description_str("measuring this machine")
        made = sweep([short, *_pruned(short)], results=self._place, progress=False)
        self._notes.append(f"costs were measured on this machine by {' and '.join(result.digest for result in made)}")
        measured_, *pruned = map(calibrated, made)
        for other in pruned:  # the costs of selecting and coding, and the server's of finding changed weights
            find_s = max(0.0, other.get("serve_s", 0.0) - measured_.get("serve_s", 0.0))
            measured_ |= {name: other[name] for name in MEASURED.values() if name in other}
            measured_ |= {"find_s": find_s} if find_s else {}
        return base.but(**plain, cluster={**measured_, **given})

    def advice(
        self, space: Any, rates: Sequence[float] | None, seeds: Sequence[int], pushes: int | None, tie: float,
        sure: float,
    ) -> Advice:  # fmt: skip
        """Search as described in `advise`."""
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
        # the default runs first: every answer is compared with it, even if the minutes suffice for few policies
        order = sorted(self._paces, key=lambda name: (name != self._default, self._paces[name]))
        simple = {name: simplicity(self._base.but(**fields)) for name, fields in self._policies.items()}
        answer = race({name: grids[name] for name in order}, self._default, self._needs, simplicity=simple, seeds=seeds,
                      tie=tie, sure=sure, capped=self._merit.name != "bytes")  # fmt: skip
        if answer.ending == "time":
            self._notes.append("for lack of time, ranges and orders were not tried")
        return self._advice(answer)

    def _budget(self, pushes: float) -> int:
        """Return a budget in whole rounds: these pushes and the evaluations that show that the target is held."""
        return self._base.workers * math.ceil((pushes + BEHIND_IT * self._every) / self._base.workers)

    # -- before the race -----------------------------------------------------------------------------------

    def _probed(self, seed: int) -> dict[str, float]:
        """Return the seconds per iteration of each policy, measured by a short run that is evaluated only at its
        ends."""
        from pslab.lab.runs.resolve import resolve  # loads torch

        runs = []
        for fields in self._policies.values():
            run = self._base.but(**fields, seed=seed)
            experiment = resolve(run)
            freely = run.workers * (PROBED + FREE_OF_BOUND * (experiment.traits.window or 0))
            pushes = max(freely, STEPS * (least_budget(experiment.sync, run.workers) or 0))
            runs.append(run.but(pushes=pushes, eval_every=pushes, target_accuracy=None, target_held=False))
        return dict(zip(self._policies, map(iteration_s, self._sweep(runs, what="the pace")), strict=True))

    def _grids(self, rates: Sequence[float] | None, seed: int) -> tuple[dict[str, Sequence[float]], float]:
        """Return the first learning rates of each policy, and the pushes that the default needs at its best rate."""
        from pslab.lab.runs.resolve import resolve  # loads torch

        centre, needed = self._pilot(self._default, self._base.learning_rate, seed)
        if not math.isfinite(needed):
            raise Unreached(self._unreached(self._most))
        if not needed:
            raise ConfigError("target", self._target, "the initial weights hold it already: set a harder target")
        # a target that is held early needs more frequent evaluations than the pilot's budget suggests
        self._every = max(self._base.workers, min(self._every, round(ROOM * needed / EVALUATIONS)))
        usual = dict[str, float | None]()  # policy: its inner optimizer's usual rate, if it has one
        alike = dict[str, list[str]]()  # policies whose rates have the same scale: same inner optimizer and momentum
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
        """Return a policy's best learning rate with one seed, and its pushes to the target (inf if none holds it)."""
        rates, tried = [around * factor for factor in PILOTED], dict[float, tuple[float, float, float]]()
        measure, rank = self._merit.measure, metric_of(self._base).rank
        for _ in range(WIDER + 1):
            runs = [self._run(policy, rate, seed) for rate in rates]
            tried |= {result.run.learning_rate: (
                measured(result, measure, self._target), -rank(measured(result, "best_accuracy")),
                held(result, self._target)[1]) for result in self._sweep(runs, policy)}  # fmt: skip
            best = min(tried, key=lambda rate: (tried[rate][0], abs(math.log(rate / around))))
            if not math.isfinite(tried[best][0]):  # the rate with the best evaluation; of equal ones the smallest
                best = min(tried, key=lambda rate: (tried[rate][1], rate))
            if best not in (min(tried), max(tried)):
                break
            rates = [best / 2 if best == min(tried) else best * 2]
        return best, tried[best][2]

    def _unreached(self, most: int) -> str:
        metric = metric_of(self._base)
        results = [result for result, name in self._done.values() if name == self._default]
        best = max(results, key=lambda other: (metric.rank(measured(other, "best_accuracy")), -other.run.learning_rate))
        top = measured(best, "best_accuracy")
        after = best.accuracy.pushes.to_numpy()[(best.accuracy.accuracy - top).abs().argmin()]
        lower, rates = rounded(top, metric), sorted({result.run.learning_rate for result in results})
        rate = best.run.learning_rate
        end = {rates[0]: ", the smallest tried,", rates[-1]: ", the largest tried,"}.get(rate, "")
        ways = [f"learning_rate={rate:g} in the base"] if end else []
        ways += [f"a target of {metric.goal(lower, SPACE)}"] if metric.rank(lower) <= metric.rank(top) else []
        return (f"{self._default} holds {metric.goal(self._target, SPACE)} within {most} pushes at none of the "
                f"learning rates {', '.join(map('{:g}'.format, rates))}; the best was {metric.text(top, SPACE)} at "
                f"rate {rate:g}{end} after {after:.0f} pushes. Try {' or '.join([*ways, f'pushes={ROOM * most}'])}. "
                "These runs are recorded and will not be repeated")  # fmt: skip

    # -- the race ------------------------------------------------------------------------------------------

    def _run(self, policy: str, rate: float, seed: int, cap: float = math.inf) -> Run:
        """Return a run that stops when it holds the target, or two evaluations after its cap, when a miss is sure."""
        more, pushes, seconds = 2 * self._every, self._budgets.get(policy, self._most), None
        if math.isfinite(cap) and self._merit is SECONDS:
            seconds = rounded_up(cap + more / self._base.workers * self._paces[policy])
        elif math.isfinite(cap):  # the merit is gradients
            pushes = min(pushes, self._base.workers * math.ceil((cap + more) / self._base.workers))
        base = self._base.but(**self._policies[policy])
        return base.but(learning_rate=rate, seed=seed, eval_every=self._every, pushes=pushes, seconds=seconds)

    def _needs(self, trials: Sequence[Trial]) -> dict[Trial, float]:
        """Run the trials and return their needs; trials after the time limit or an interrupt are left out."""
        finished: dict[Trial, Result] = {}
        for at in range(0, len(trials), AT_ONCE):
            if time.monotonic() > self._until_s and self._raced:  # the default has run, so there is an answer
                break
            now = trials[at : at + AT_ONCE]
            names = dict.fromkeys(f"{trial.policy} with seed {trial.seed}" for trial in now)
            self._bar.set_description_str(f"trying {', '.join(names)}")
            runs = [self._run(*trial) for trial in now]
            try:
                finished |= dict(zip(now, sweep(runs, results=self._place, progress=False), strict=True))
            except KeyboardInterrupt as interrupt:  # return the best answer so far; a next call continues these runs
                if not self._raced:
                    raise
                self._notes.append(f"ended by an interrupt ({interrupt}): call it again to continue where it stopped")
                break
            self._raced = True
        self._done |= {result.digest: (result, trial.policy) for trial, result in finished.items()}
        return {trial: measured(result, self._merit.measure, self._target) for trial, result in finished.items()}

    def _sweep(self, runs: Sequence[Run], policy: str = "", what: str = "learning rates") -> list[Result]:
        self._bar.set_description_str(f"trying {what} of {policy or f'{len(runs)} policies'}")
        finished = sweep(runs, results=self._place, progress=False)
        self._done |= {result.digest: (result, policy) for result in finished if policy}
        return finished

    # -- after the race ------------------------------------------------------------------------------------

    def _advice(self, answer: RaceAnswer) -> Advice:
        before = self._at(answer, self._default)
        extra = self._way(answer)
        winner = self._at(answer, answer.policy, extra)
        done = list(self._done.values())
        results = table([result for result, _ in done], [{"policy": name} for _, name in done])
        gradients = float(sum(result.manifest["pushes"] for result, _ in self._done.values()))
        cost = {"runs": float(len(self._done)), "gradients": gradients, "seconds": time.monotonic() - self._begun_s}
        fields = {**self._policies[answer.policy], **extra, "learning_rate": answer.learning_rate}
        best_rates = {standing.policy: standing.learning_rate for standing in answer.standings}
        whole = max(self._budgets.values())
        runs = {name: self._run(name, best_rates[name], 0).but(pushes=whole) for name in self._policies}
        return Advice(self._given.but(**fields), answer, self._target, results, self._refused, before, winner, cost,
                      tuple(self._notes), self._merit, runs, self._place)  # fmt: skip

    def _at(self, answer: RaceAnswer, policy: str, extra: Mapping[str, Any] | None = None) -> list[Result]:
        """Return the runs of a policy at its best rate that hold the target, one for each seed."""
        wanted = self._run(policy, answer.standing(policy).learning_rate, 0).but(**(extra or {}))
        at_best: dict[int, Result] = {}
        for result, name in self._done.values():
            same = all(getattr(result.run, field) == getattr(wanted, field) for field in OWN)
            if name == policy and same and math.isfinite(held(result, self._target)[0]):
                at_best.setdefault(result.run.seed, result)
        return list(at_best.values())

    def _way(self, answer: RaceAnswer) -> dict[str, Any]:
        """Return the `ranges` and `order` that make the winner sooner by more than a tie; {} if none do."""
        # an undecided race leaves no time for this; bytes and gradients do not depend on the order
        if answer.policy == self._default or not answer.decided or self._merit is not SECONDS:
            return {}
        finished = self._at(answer, answer.policy)
        whole = {result.run.seed: rounded_up(held(result, self._target)[0]) for result in finished}
        best, fields = math.log(1 - self._tie), dict[str, Any]()
        for extra in PATHS:
            try:
                runs = [self._run(answer.policy, answer.learning_rate, seed, took).but(**extra)
                        for seed, took in whole.items()]  # fmt: skip
                finished = self._sweep(runs, answer.policy, "ranges and orders")
            except ConfigError:  # the policy cannot run with these ranges and this order
                continue
            shares = [held(result, self._target)[0] / whole[result.run.seed] for result in finished]
            if (gain := sum(map(math.log, shares)) / len(shares)) < best:
                best, fields = gain, dict(extra)
        return fields


def _pruned(dense: Run) -> list[Run]:
    """Return the run with pruned pushes and pulls, to measure their costs; [] if it prunes already, or cannot prune."""
    from pslab.lab.runs.resolve import resolve  # loads torch

    if dense.prune != FIELDS["prune"].default:
        return []
    run = dense.but(prune="static:1%", pull="changed")
    try:
        resolve(run)
    except ConfigError:
        return []
    return [run]
