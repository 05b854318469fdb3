"""The race between policies: which runs to execute next, and when their results decide.

    answer = race({"asp": around(0.2), "bsp": around(0.2)}, "bsp", needs, simplicity=...)

An arm is a policy with a learning rate. The need of a run is the seconds, bytes or gradients that it takes to hold the
target; less is better. The function `needs` executes several independent runs, and returns the need of each.

| seed | arms that run |
|---|---|
| the first | each policy's grid of learning rates, in the given order; a run ends at CAP times the soonest |
| second and third | the best two arms of each policy whose mean is within BEHIND of the leader's |
| later ones | the best arm of each of these policies; and the likeliest rival, until the leader is sure |
| the second, again | before an answer: the best arm of each policy that has only one seed |
| up to LASTING | before an answer: the arm that would be advised |

Arms are compared on the same seeds, so a run may stop at a cap, when it has taken too long to win. All policies are
compared with the default policy, so its runs have no cap, and its best arm runs three seeds. After each seed, a policy
whose best rate is the smallest or the largest tried also tries the next rate beyond it.

A race is decided if a policy is the best, or within a tie of it, with probability `sure`, on at least three seeds, and
every other policy has two. If the noise is above LOUD, nothing is decided: so few seeds do not show its distribution. A
policy that misses the target with a seed is not advised if another policy never misses it. If some policies miss it,
the leader's probability is lowered, because the leader may still miss it with a further seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pslab.errors import ConfigError, nearest
from pslab.lab.advise.confidence import compared
from pslab.lab.records.tuning import beyond

CAP, WIDE_CAP = 1.5, 3.0  # caps on the first seed and on later ones, as multiples of the least need on the seed
BEHIND = (1.5, 1.3, 1.15, 1.1)  # after each seed, arms within this multiple of the leader's mean continue
LEAST = 3  # seeds before a decision, and seeds of the default policy
LASTING = 8  # seeds with which an advised policy must hold the target, if that many are given
TWO = 2  # rates of a policy that continue until the third seed
WIDER = 3  # a grid is widened at most this often at each end
LOUD = 0.2  # the largest standard deviation of log need with which a race is decided
GENEROUS = 2.0  # a run that misses the target within this multiple of its arm's largest need counts as a miss
MISSES = 0.2  # the assumed share of seeds that an unsafe policy misses
DECIDED = ("alone", "sure", "tie")
DIGITS = 3  # significant digits of a cap


class Arm(NamedTuple):
    """A policy with a learning rate."""

    policy: str
    learning_rate: float


class Trial(NamedTuple):
    """A run that a race asks for."""

    policy: str
    learning_rate: float
    seed: int
    #: the need beyond which the arm loses; infinite if only the budget ends the run. The run ends two evaluations
    #: later, when it is known whether the target was held
    cap: float = math.inf

    @property
    def arm(self) -> Arm:
        """The policy and the learning rate of the run."""
        return Arm(self.policy, self.learning_rate)


@dataclass(frozen=True)
class Standing:
    """The result of a race for one policy, at its best learning rate."""

    policy: str
    learning_rate: float
    needs: Mapping[int, float]  #: by seed, the need of the run; infinite if it missed the target within its cap
    rates: tuple[float, ...]  #: all learning rates that were tried
    ratio: float  #: need / least need on the seed, geometric mean over seeds; a run that was stopped counts as its cap
    chance: float  #: the probability of being the best or within a tie of it; 0 if unsafe, NaN if unknown
    alive: bool  #: whether the policy could still win at the end
    unsafe: bool  #: whether a run missed the target although it had enough time

    @property
    def at_end(self) -> bool:
        """Whether the best rate is the smallest or the largest that was tried."""
        return len(self.rates) > 1 and self.learning_rate in (self.rates[0], self.rates[-1])

    @property
    def arrived(self) -> tuple[float, ...]:
        """The needs (seconds, bytes or gradients) of the runs that held the target."""
        return tuple(filter(math.isfinite, self.needs.values()))

    @property
    def capped(self) -> bool:
        """Whether `ratio` is a lower bound, because a run was stopped at its cap."""
        return not self.unsafe and math.inf in self.needs.values()


@dataclass(frozen=True)
class RaceAnswer:
    """The outcome of a race."""

    policy: str  #: the advised policy
    learning_rate: float
    #: decided: "alone" (only one policy can be compared), "sure" (one is the best) or "tie"; not decided: "seeds" or
    #: "time" (used up), "noise" (too large), "unsafe" (all policies miss the target with some seeds)
    ending: str
    among: tuple[str, ...]  #: the policies that tie, or that remain undecided, the simplest first
    standings: tuple[Standing, ...]  #: of each policy, the soonest first
    noise: float = math.nan  #: the standard deviation of log need that neither policy nor seed explains

    @property
    def decided(self) -> bool:
        """Whether the race is decided; a tie counts as decided."""
        return self.ending in DECIDED

    def standing(self, policy: str) -> Standing:
        """Return the standing of a policy in the race."""
        return next(standing for standing in self.standings if standing.policy == policy)


Needs = Callable[[Sequence[Trial]], Mapping[Trial, float]]


def race(
    grids: Mapping[str, Sequence[float]], default: str, needs: Needs, *, simplicity: Mapping[str, tuple[int, ...]],
    seeds: Sequence[int] = range(8), tie: float = 0.05, sure: float = 0.92, capped: bool = True,
) -> RaceAnswer:  # fmt: skip
    """Run the race; return the best policy, or the reason why the race is undecided.

    Args:
        grids: learning rates by policy, in the order in which policies begin.
        default: the policy that the answer is compared with.
        needs: executes trials and returns their needs. If it omits a trial, the time is up, and the race ends.
        simplicity: by policy, a key that is smaller for a simpler policy; in a tie the simplest is advised.
        seeds: the seeds, in the order of their use.
        tie: needs of two policies that differ by at most this share count as equal.
        sure: the probability of being the best, or within a tie of it, that decides a race.
        capped: whether a run can be stopped at its cap.

    Raises:
        ConfigError: no policy, no seed, an empty grid, an unknown default, a share outside its bounds; or no run holds
            the target.
    """
    if not grids or not all(grids.values()):
        problem = "must map at least one policy to at least one learning rate, as in {'bsp': [0.1]}"
        raise ConfigError("grids", dict(grids), problem)
    if default not in grids:
        raise ConfigError("default", default, f"must be a policy of this race; {nearest(default, grids)}")
    if not seeds or len({*seeds}) < len(seeds):
        raise ConfigError("seeds", list(seeds), "must be a list of one or more different seeds, such as [0, 1]")
    if tie <= 0:
        raise ConfigError("tie", tie, "must be a share above 0, such as 0.05, because needs are never exactly equal")
    if not 0.5 <= sure < 1:
        raise ConfigError("sure", sure, "must be a probability from 0.5, below 1, such as 0.9")
    race_ = _Race({policy: tuple(sorted({*map(float, rates)})) for policy, rates in grids.items()}, default, needs,
                  simplicity, tuple(seeds), tie, sure, capped)  # fmt: skip
    return race_.answer(race_.run())


class _NoTime(Exception):
    """Some trials were not run, because the time is up."""


@dataclass
class _Race:
    """The runs of a race so far, and the decisions that follow from them."""

    grids: Mapping[str, tuple[float, ...]]
    default: str
    needs: Needs
    simplicity: Mapping[str, tuple[int, ...]]
    seeds: tuple[int, ...]
    tie: float
    sure: float
    capped: bool

    def __post_init__(self) -> None:
        #: by arm and seed, the need and the cap of the run
        self.runs = {Arm(policy, rate): dict[int, tuple[float, float]]()
                     for policy, rates in self.grids.items() for rate in rates}  # fmt: skip
        self.noise = math.nan
        self._note()

    # -- which runs ------------------------------------------------------------------------------------

    def run(self) -> str:
        """Run seed after seed until the race ends; return its `RaceAnswer.ending`."""
        try:
            for policy in self.grids:
                self._run(self._best(policy), self.seeds[:1], CAP)
                self._widen([policy], CAP)
            for count in range(1, len(self.seeds) + 1):
                if count > 1:
                    self._seed(count)
                if ending := self._ending(count):
                    return ending
        except _NoTime:
            return "time"
        return "noise" if self.noise > LOUD else "seeds"

    def _seed(self, count: int) -> None:
        """Run the next seed: first the leader and the default, because their needs set the caps of the other arms."""
        seeds, arms = self.seeds[:count], self._alive(count - 1)
        usual = self._best(self.default)[:TWO] if count <= LEAST else []
        self._run([*arms[:1], *usual], seeds, WIDE_CAP)
        self._run(arms, seeds, WIDE_CAP)
        while self._widen(dict.fromkeys(arm.policy for arm in arms), WIDE_CAP):
            pass

    def _alive(self, count: int) -> list[Arm]:
        """Return the arms that can still win after `count` seeds, the leader first."""
        if not (ranked := sorted(filter(self.runs.__getitem__, self.runs), key=self._rank)):
            return []
        bound = self.gap[ranked[0]] + math.log(BEHIND[min(count, len(BEHIND)) - 1])
        most = TWO if count < LEAST else 1
        alive = [arm for arm in ranked if self.gap[arm] <= bound and arm not in self.unsafe
                 and arm in self._best(arm.policy)[:most]] or ranked[:1]  # fmt: skip
        if count >= LEAST and len(alive) == 1:
            chances = {policy: chance for policy, chance in self._chances().items() if policy != alive[0].policy}
            alive += self._best(max(chances, key=chances.__getitem__))[:1] if chances else []
        return alive

    def _best(self, policy: str) -> list[Arm]:
        return sorted((arm for arm in self.runs if arm.policy == policy), key=self._rank)

    def _run(self, arms: Iterable[Arm], seeds: Iterable[int], cap: float) -> None:
        """Run the missing trials of these arms on these seeds; raise _NoTime if some were not run."""
        trials = dict[Trial, None]()
        for seed in seeds:
            for arm in arms:
                least = math.inf if arm.policy == self.default or not self.capped else self.least.get(seed, math.inf)
                need, before = self.runs[arm].get(seed, (math.inf, 0.0))
                if math.isinf(need) and before < CAP * least:  # run again if its cap came from an unsafe leader
                    trials[Trial(*arm, seed, rounded_up(cap * least))] = None
        needs = self.needs([*trials]) if trials else {}
        for trial, need in needs.items():
            if not need > 0:
                raise ConfigError("need", need, f"must be above 0, and math.inf if {trial} misses the target")
            self.runs[trial.arm][trial.seed] = need if need <= trial.cap else math.inf, trial.cap
        self._note()
        if len(needs) < len(trials):
            raise _NoTime

    def _widen(self, policies: Iterable[str], cap: float) -> bool:
        """Try the next rate beyond a policy's best one, on the same seeds, if the best one always holds the target and
        is the smallest or the largest tried; return whether any rate was tried."""
        widened = False
        for policy in policies:
            best, grid = self._best(policy)[0], self.grids[policy]
            tried = [arm.learning_rate for arm in self.runs if arm.policy == policy]
            rate = beyond((best.learning_rate,), [(other,) for other in tried]) if all(self._arrived(best)) else None
            lower = rate is not None and rate < best.learning_rate
            if rate is not None and sum(other < grid[0] if lower else other > grid[-1] for other in tried) < WIDER:
                self.runs[Arm(policy, rate)], widened = {}, True
                self._run([Arm(policy, rate)], self.runs[best], cap)
        return widened

    # -- results ---------------------------------------------------------------------------------------

    def _note(self) -> None:
        """Compute `unsafe`, the `least` need on each seed, and each arm's `gap`: the mean over seeds of log(need /
        least need). A gap is a lower bound if a run was stopped at its cap, and infinite if no need is known."""
        self.unsafe = {arm for arm, runs in self.runs.items() if self._misses(runs.values())}
        self.least, self.gap = dict[int, float](), dict[Arm, float]()
        for arm, runs in self.runs.items():
            for seed, (need, _) in runs.items() if arm not in self.unsafe else ():
                self.least[seed] = min(need, self.least.get(seed, math.inf))
        for arm, runs in self.runs.items():
            bounds = {seed: min(run) for seed, run in runs.items()}
            gaps = [math.log(bound / self.least[seed]) for seed, bound in bounds.items()
                    if max(bound, self.least.get(seed, math.inf)) < math.inf]  # fmt: skip
            self.gap[arm] = sum(gaps) / len(gaps) if gaps else math.inf

    def _misses(self, runs: Collection[tuple[float, float]]) -> bool:
        """Whether a run missed the target without a cap, or with a cap of GENEROUS times the arm's largest need."""
        most = max((need for need, _ in runs if math.isfinite(need)), default=math.inf)
        return any(math.isinf(need) and cap >= GENEROUS * most for need, cap in runs)

    def _arrived(self, arm: Arm) -> list[bool]:
        """Return, for each run of an arm, whether it held the target."""
        return [math.isfinite(need) for need, _ in self.runs[arm].values()]

    def _rank(self, arm: Arm) -> tuple[object, ...]:
        """Return a sort key: arms that hold the target first, then by gap, then by distance from the grid's middle."""
        grid = self.grids[arm.policy]
        return (not self.runs[arm], arm in self.unsafe, self.gap[arm], not all(self._arrived(arm)),
                abs(math.log(arm.learning_rate / grid[len(grid) // 2])))  # fmt: skip

    def _chances(self) -> dict[str, float]:
        """Return, by policy, the probability that it is the best or within a tie of it; NaN if the noise is unknown.
        Unsafe policies are left out. Set `noise`."""
        bests = [self._best(policy)[0] for policy in self.grids]
        arms = [best for best in bests if best not in self.unsafe and math.isfinite(self.gap[best])]
        if not arms:
            return {}
        runs = [[self.runs[arm].get(seed, (math.nan, math.nan)) for seed in self.seeds] for arm in arms]
        needs, caps = np.moveaxis(np.array(runs), 2, 0)
        bounds = np.fmin(needs, caps)
        bounds[np.isinf(bounds)] = math.nan
        seen = ~np.isnan(bounds).all(axis=0)
        chances, noise = compared(bounds[:, seen], np.isinf(needs)[:, seen], self.tie)
        if len(arms) == 1 or not math.isnan(noise):
            self.noise = noise
        missing = self._missing()
        yet = [missing * (1 - MISSES) ** len(self.runs[arm]) for arm in arms]  # unsafe, but without a miss so far
        return {arm.policy: chance * (1 - unsafe / (unsafe + 1 - missing))
                for arm, chance, unsafe in zip(arms, chances.tolist(), yet, strict=True)}  # fmt: skip

    def _missing(self) -> float:
        """Estimate the share of policies that miss the target with some seeds: policies that missed it, over policies
        with enough seeds to show it. The prior is two more policies, of which 0.4 miss it."""
        seeds = dict.fromkeys(self.grids, 0)
        for arm, runs in self.runs.items():
            seeds[arm.policy] = max(seeds[arm.policy], len(runs))
        some = {arm.policy for arm in self.unsafe if any(self._arrived(arm))}
        return (len(some) + 0.4) / (sum(1 - (1 - MISSES) ** count for count in seeds.values() if count > 1) + 2)

    def _ending(self, count: int) -> str:
        """Return the race's ending after `count` seeds, perhaps after further trials; "" if it continues."""
        if all(self._best(policy)[0] in self.unsafe for policy in self.grids):
            return "unsafe"
        if count < LEAST and (count < len(self.seeds) or len(self.grids) > 1):
            return ""
        for most in (TWO, LEAST) if count == len(self.seeds) else ():
            few = self._seen_less_than(most)
            if not self._named() and self._may_be_sure(few):
                self._run(few, self.seeds[1:most], CAP)
        if not self._named():
            return ""
        self._run(self._seen_less_than(TWO), self.seeds[1:TWO], CAP)
        for policy in self._named()[:1]:
            self._run(self._best(policy)[:1], self.seeds[:LASTING], WIDE_CAP)
        if len(self._chances()) == 1:
            return "alone"
        named = self._named()
        return "" if not named else "sure" if len(named) == 1 else "tie"

    def _seen_less_than(self, runs: int) -> list[Arm]:
        """Return the best arm of each policy whose best arm has fewer than `runs` runs."""
        return [best for policy in self.grids if len(self.runs[(best := self._best(policy)[0])]) < runs]

    def _may_be_sure(self, few: Collection[Arm]) -> bool:
        """Whether more runs of these arms may leave the leader `sure`: each has a chance, because few runs show little.
        Where runs miss the target, a leader would be advised that has not missed it yet."""
        chances = self._chances()
        doubt = sum(chances.get(arm.policy, 0.0) for arm in few)
        missed = any(any(self._arrived(arm)) for arm in self.unsafe)
        return not missed and max(chances.values(), default=0.0) + doubt >= self.sure

    def _named(self) -> list[str]:
        """Return the policies that are the best, or within a tie of it, with probability `sure`, the simplest first. If
        only one policy can be compared, it is returned regardless of its probability."""
        chances = self._chances()
        named = [policy for policy, chance in chances.items()
                 if len(chances) == 1 or (chance >= self.sure and not self.noise > LOUD)]  # fmt: skip
        return sorted(named, key=lambda policy: self.simplicity[policy])

    # -- the outcome -----------------------------------------------------------------------------------

    def answer(self, ending: str) -> RaceAnswer:
        chances = self._chances()
        alive = dict.fromkeys(arm.policy for arm in self._alive(max(map(len, self.runs.values()))))
        standings = sorted((self._standing(policy, chances.get(policy, 0.0), policy in alive) for policy in self.grids),
                           key=lambda standing: (standing.unsafe, not standing.arrived, standing.ratio))  # fmt: skip
        if (first := next((standing for standing in standings if standing.arrived), None)) is None:
            raise ConfigError("target", "held by no run", "nothing to compare: set an easier target, or more pushes")
        among = self._named() if ending in DECIDED else sorted(alive, key=self.simplicity.__getitem__)
        if ending in DECIDED:
            first = next(standing for standing in standings if standing.policy == among[0])
        return RaceAnswer(first.policy, first.learning_rate, ending, tuple(among or [first.policy]), tuple(standings),
                          self.noise)  # fmt: skip

    def _standing(self, policy: str, chance: float, alive: bool) -> Standing:
        best = self._best(policy)[0]
        needs = {seed: self.runs[best][seed][0] for seed in self.seeds if seed in self.runs[best]}
        rates = sorted(arm.learning_rate for arm, runs in self.runs.items() if arm.policy == policy and runs)
        return Standing(policy, best.learning_rate, needs, tuple(rates), math.exp(self.gap[best]), chance, alive,
                        best in self.unsafe)  # fmt: skip


def around(centre: float) -> tuple[float, ...]:
    """Return the first learning rates of a policy: half the centre, the centre, and twice the centre."""
    return centre / 2, centre, 2 * centre


def rounded_up(need: float) -> float:
    """Return a need rounded up to three significant digits: digests then do not depend on last bits of other runs."""
    if math.isinf(need):
        return need
    unit = 10.0 ** (math.floor(math.log10(need)) - DIGITS + 1)
    return float(f"{math.ceil(round(need / unit, 9)) * unit:.{DIGITS}g}")
