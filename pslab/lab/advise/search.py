"""Search for the policy that holds a target soonest on a cluster: ``advise(base, target=0.9)``.

All runs are in virtual time. Their order depends only on their results, and each run is recorded. A search that is
called again reads these records in seconds, and an interrupted search continues.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from pslab.config.cluster import resolve_cluster
from pslab.config.metric import metric_of
from pslab.config.run import FIELDS, FREE, Run
from pslab.errors import ConfigError, PslabError
from pslab.lab.advise.advice import Advice
from pslab.lab.advise.race import RaceAnswer, Trial, around, race, rounded_up
from pslab.lab.advise.space import candidates, refusal, resolved, runs_of, simplicity
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
        search = _Search(base, target, merit_of(merit), folder, bar, minutes)
        grids = search.prepare(space, learning_rates, int(seeds[0]), pushes)
        simple = {name: simplicity(base.but(**fields)) for name, fields in search.policies.items()}
        answer = race(grids, search.default, search.needs, simplicity=simple, seeds=[*map(int, seeds)], tie=tie,
                      sure=sure, capped=merit != "bytes")  # fmt: skip
        return search.advice(answer, tie)


class _Search:
    """The runs of a call of `advise`: the short runs before the race, the runs that the race asks for, and the runs of
    its winner with other ranges and orders."""

    def __init__(self, base: Run, target: float, merit: Merit, folder: Path, bar: tqdm, minutes: float) -> None:
        self._given, self._target, self._merit, self._place, self._bar = base, float(target), merit, folder, bar
        self._begun_s, self._notes = time.monotonic(), list[str]()
        self._until_s = self._begun_s + 60 * minutes
        self._base = self._modelled(base)
        self._most, self._budgets = base.pushes or int(FIELDS["pushes"].default), dict[str, int]()  # most pushes
        self._done: dict[str, tuple[str, Result]] = {}  # by digest: the policy and the result of each finished run
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
        pruned = short.but(prune="static:1%", pull="changed")
        both = base.prune == FIELDS["prune"].default and not refusal(short, pruned)
        self._bar.set_description_str("measuring this machine")
        made = sweep([short, pruned] if both else [short], results=self._place, progress=False)
        self._notes.append(f"costs were measured on this machine by {' and '.join(result.digest for result in made)}")
        dense, *others = map(calibrated, made)
        for other in others:  # the costs of selecting and coding, and the server's of finding changed weights
            find_s = max(0.0, other.get("serve_s", 0.0) - dense.get("serve_s", 0.0))
            dense |= {name: other[name] for name in MEASURED.values() if name in other}
            dense |= {"find_s": find_s} if find_s else {}
        return base.but(**plain, cluster={**dense, **given})

    # -- before the race -----------------------------------------------------------------------------------

    def prepare(
        self, space: Any, rates: Sequence[float] | None, seed: int, pushes: int | None
    ) -> dict[str, Sequence[float]]:
        """Choose the candidates and their budgets; return their first learning rates, in the order of the race."""
        self.policies, self._refused = candidates(self._base, space)
        self.default = next(iter(self.policies))
        self._paces_s = self._probed(seed)
        self._most = pushes or self._most
        self._every = max(self._base.workers, round(self._most / EVALUATIONS))
        centre, needed = self._pilot(self.default, self._base.learning_rate, seed)
        if not math.isfinite(needed):
            raise Unreached(self._unreached())
        if not needed:
            raise ConfigError("target", self._target, "the initial weights hold it already: set a harder target")
        # a target that is held early needs more frequent evaluations than the pilot's budget suggests
        self._every = max(self._base.workers, min(self._every, round(ROOM * needed / EVALUATIONS)))
        centres = self._centres(centre, seed) if rates is None else {}
        self._budgets = dict.fromkeys(self.policies, pushes or self._budget(ROOM * needed))
        if pushes is None:
            self._budgets[self.default] = self._budget(OWN_ROOM * needed)
        # the default runs first: every answer is compared with it, even if the minutes suffice for few policies
        order = sorted(self._paces_s, key=lambda name: (name != self.default, self._paces_s[name]))
        return {name: rates or around(centres[name]) for name in order}

    def _budget(self, pushes: float) -> int:
        """Return a budget in whole rounds: these pushes and the evaluations that show that the target is held."""
        return self._base.workers * math.ceil((pushes + BEHIND_IT * self._every) / self._base.workers)

    def _probed(self, seed: int) -> dict[str, float]:
        """Return the seconds per iteration of each policy, measured by a short run that is evaluated only at its
        ends."""
        runs = []
        for fields in self.policies.values():
            run = self._base.but(**fields, seed=seed)
            experiment = resolved(run)
            freely = run.workers * (PROBED + FREE_OF_BOUND * (experiment.traits.window or 0))
            pushes = max(freely, STEPS * (least_budget(experiment.sync, run.workers) or 0))
            runs.append(run.but(pushes=pushes, eval_every=pushes, target_accuracy=None, target_held=False))
        results = self._sweep(runs, f"the pace of {len(runs)} policies")
        return dict(zip(self.policies, map(iteration_s, results), strict=True))

    def _centres(self, centre: float, seed: int) -> dict[str, float]:
        """Return the middle of each policy's grid of learning rates, given the default's middle. Policies whose rates
        have another scale, because of an inner optimizer or a momentum, have a pilot of their own."""
        usual = dict[str, float | None]()  # policy: its inner optimizer's usual rate, if it has one
        alike = dict[str, list[str]]()  # policies whose rates have the same scale
        for name, fields in self.policies.items():
            experiment = resolved(self._base.but(**fields))
            inner, rule = experiment.inner, experiment.prune
            usual[name] = inner.spec.usual_rate if inner else None
            alike.setdefault(repr((inner, rule if getattr(rule, "momentum", 0.0) else None)), []).append(name)
        gradients = centre if usual[self.default] is None else float(FIELDS["learning_rate"].default)
        centres = dict.fromkeys(self.policies, centre)
        for names in alike.values():
            if self.default not in names:
                best, _ = self._pilot(names[0], usual[names[0]] or gradients, seed)
                centres |= dict.fromkeys(names, best)
        return centres

    def _pilot(self, policy: str, around: float, seed: int) -> tuple[float, float]:
        """Return a policy's best learning rate with one seed, and its pushes to the target (inf if none holds it)."""
        rates, ranks, pushes = [around * factor for factor in PILOTED], dict[float, tuple[float, ...]](), {}
        for _ in range(WIDER + 1):
            runs = [self._run(policy, rate, seed) for rate in rates]
            for result in self._sweep(runs, f"learning rates of {policy}", [policy] * len(runs)):
                rate, need = result.run.learning_rate, measured(result, self._merit.measure, self._target)
                evaluated = metric_of(self._base).rank(measured(result, "best_accuracy"))
                # if no rate holds the target: the rate with the best evaluation; of equal ones the smallest
                ranks[rate] = (need, abs(math.log(rate / around))) if need < math.inf else (need, -evaluated, rate)
                pushes[rate] = held(result, self._target)[1]
            best = min(ranks, key=ranks.__getitem__)
            if best not in (min(ranks), max(ranks)):
                break
            rates = [best / 2 if best == min(ranks) else best * 2]
        return best, pushes[best]

    def _unreached(self) -> str:
        metric = metric_of(self._base)
        results = [result for name, result in self._done.values() if name == self.default]
        best = max(results, key=lambda other: (metric.rank(measured(other, "best_accuracy")), -other.run.learning_rate))
        top = measured(best, "best_accuracy")
        after = best.accuracy.pushes.to_numpy()[(best.accuracy.accuracy - top).abs().argmin()]
        lower, rates = rounded(top, metric), sorted({result.run.learning_rate for result in results})
        rate = best.run.learning_rate
        end = {rates[0]: ", the smallest tried,", rates[-1]: ", the largest tried,"}.get(rate, "")
        ways = [f"learning_rate={rate:g} in the base"] if end else []
        ways += [f"a target of {metric.goal(lower, SPACE)}"] if metric.rank(lower) <= metric.rank(top) else []
        ways += [f"pushes={ROOM * self._most}"]
        return (f"{self.default} holds {metric.goal(self._target, SPACE)} within {self._most} pushes at none of the "
                f"learning rates {', '.join(map('{:g}'.format, rates))}; the best was {metric.text(top, SPACE)} at "
                f"rate {rate:g}{end} after {after:.0f} pushes. Try {' or '.join(ways)}. "
                "These runs are recorded and will not be repeated")  # fmt: skip

    # -- the race ------------------------------------------------------------------------------------------

    def needs(self, trials: Sequence[Trial]) -> dict[Trial, float]:
        """Run the trials and return their needs; trials after the time limit or an interrupt are left out."""
        needs: dict[Trial, float] = {}
        for at in range(0, len(trials), AT_ONCE):
            if time.monotonic() > self._until_s and self._raced:  # the default has run, so there is an answer
                break
            now = trials[at : at + AT_ONCE]
            names = dict.fromkeys(f"{trial.policy} with seed {trial.seed}" for trial in now)
            runs = [self._run(*trial) for trial in now]
            try:
                results = self._sweep(runs, ", ".join(names), [trial.policy for trial in now])
            except KeyboardInterrupt as interrupt:  # return the best answer so far; a next call continues these runs
                if not self._raced:
                    raise
                self._notes.append(f"ended by an interrupt ({interrupt}): call it again to continue where it stopped")
                break
            self._raced = True
            needs |= {trial: measured(result, self._merit.measure, self._target)
                      for trial, result in zip(now, results, strict=True)}  # fmt: skip
        return needs

    def _run(self, policy: str, rate: float, seed: int, cap: float = math.inf) -> Run:
        """Return a run that stops when it holds the target, or two evaluations after its cap, when a miss is sure."""
        more, pushes, seconds = 2 * self._every, self._budgets.get(policy, self._most), None
        if math.isfinite(cap) and self._merit is SECONDS:
            seconds = rounded_up(cap + more / self._base.workers * self._paces_s[policy])
        elif math.isfinite(cap):  # the merit is gradients
            pushes = min(pushes, self._base.workers * math.ceil((cap + more) / self._base.workers))
        base = self._base.but(**self.policies[policy])
        return base.but(learning_rate=rate, seed=seed, eval_every=self._every, pushes=pushes, seconds=seconds)

    def _sweep(self, runs: Sequence[Run], what: str, policies: Sequence[str] = ()) -> list[Result]:
        """Execute runs, and note the results of these policies, one for each run."""
        self._bar.set_description_str(f"trying {what}")
        finished = sweep(runs, results=self._place, progress=False)
        self._done |= {result.digest: (name, result) for name, result in zip(policies, finished, strict=False)}
        return finished

    # -- after the race ------------------------------------------------------------------------------------

    def advice(self, answer: RaceAnswer, tie: float) -> Advice:
        """Return the answer with its runs, and with other ranges and another order if they are sooner by more than a
        tie."""
        if answer.ending == "time":
            self._notes.append("for lack of time, ranges and orders were not tried")
        # an undecided race leaves no time for this; bytes and gradients do not depend on the order
        tried = answer.policy != self.default and answer.decided and self._merit is SECONDS
        extra = self._path(answer, tie) if tried else {}
        names, done = zip(*self._done.values(), strict=True)
        results = table(done, [{"policy": name} for name in names])
        gradients = float(sum(result.manifest["pushes"] for result in done))
        cost = {"runs": float(len(done)), "gradients": gradients, "seconds": time.monotonic() - self._begun_s}
        fields = {**self.policies[answer.policy], **extra, "learning_rate": answer.learning_rate}
        whole = max(self._budgets.values())
        runs = {name: self._run(name, answer.standing(name).learning_rate, 0).but(pushes=whole)
                for name in self.policies}  # fmt: skip
        return Advice(self._given.but(**fields), answer, self._target, results, self._refused, cost,
                      tuple(self._notes), self._merit, runs, self._place)  # fmt: skip

    def _path(self, answer: RaceAnswer, tie: float) -> dict[str, Any]:
        """Return the `ranges` and `order` that make the winner sooner by more than a tie; {} if none do."""
        policy, rate = answer.policy, answer.learning_rate
        took_s = {seed: rounded_up(need) for seed, need in answer.standing(policy).needs.items() if need < math.inf}
        best, fields = math.log(1 - tie), dict[str, Any]()
        for extra in PATHS:
            runs = [self._run(policy, rate, seed, cap).but(**extra) for seed, cap in took_s.items()]
            if refusal(self._base, runs[0]):  # the policy cannot run with these ranges and this order
                continue
            results = self._sweep(runs, f"ranges and orders of {policy}", [policy] * len(runs))
            shares = [held(result, self._target)[0] / took_s[result.run.seed] for result in results]
            if (gain := sum(map(math.log, shares)) / len(shares)) < best:
                best, fields = gain, dict(extra)
        return fields
