"""The race between policies: the runs that are worth their gradients, and the moment at which their needs decide.

    answer = race({"asp": around(0.2), "bsp": around(0.2)}, "bsp", needs, simplicity=...)

`needs` executes the runs that the race asks for, which are independent of each other, and says what each needed to hold
the target: seconds, or bytes, or gradients, whatever is to be small.

| seed | arms that run |
|---|---|
| the first | each policy's grid of learning rates, in the order given, each ended at CAP times the soonest |
| second and third | the best two arms of each policy whose mean is within BEHIND of the leader's |
| later ones | the best arm of each of these; and the likeliest rival, until the leader is sure |
| the second, again | before an answer: the best arm of each policy that had one seed only |
| up to LASTING | before an answer: the arm that it names |

An arm is a policy with a learning rate. Arms are compared on the same seeds, so a trial may end as soon as it is too
late to matter. The default policy is never capped, and its best arm has three seeds: the answer is compared with it.
After each seed a policy whose best rate is the smallest or the largest tried gets the next one beyond it.

An answer is decided if a policy is the best, or within a tie of it, with probability `sure`, by three seeds at least
and by two of every other policy. Noise above LOUD decides nothing: so few seeds do not tell its kind. A policy that
misses the target with a seed is not advised while another one never did; and where some do, the leader may miss it yet.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pslab.errors import ConfigError, nearest
from pslab.lab.advise.confidence import Comparison
from pslab.lab.records.tuning import beyond

CAP, WIDE_CAP = 1.5, 3.0  # times the soonest on a seed: of all arms on the first one, and of those that go on
BEHIND = (1.5, 1.3, 1.15, 1.1)  # times the leader's mean, after each seed; the last one goes on
LEAST = 3  # seeds before anything is decided, and that the default policy has
LASTING = 8  # seeds with which an advised policy is to hold the target, if there are so many
TWO = 2  # rates of a policy that go on until the third seed
LOUD = 0.2  # noise of log need
GENEROUS = 2.0  # a cap of so many times the arm's own largest need: what does not arrive within it never does
MISSES = 0.2  # of the seeds, by a policy that misses some
DECIDED = ("alone", "sure", "tie")
DIGITS = 3  # of a cap


class Arm(NamedTuple):
    """A policy with a learning rate."""

    policy: str
    learning_rate: float


class Trial(NamedTuple):
    """A run that a race asks for."""

    policy: str
    learning_rate: float
    seed: int
    #: the need beyond which it is out, infinite if its run ends by its pushes alone. Whether a target is held is known
    #: two evaluations after it was reached: its run ends so much later
    cap: float = math.inf

    @property
    def arm(self) -> Arm:
        """The arm that runs."""
        return Arm(self.policy, self.learning_rate)


@dataclass(frozen=True)
class Standing:
    """The result of a race for one policy, at its best learning rate."""

    policy: str
    learning_rate: float
    needs: Mapping[int, float]  #: by seed, what it needed; infinite where it did not arrive within its cap
    caps: Mapping[int, float]  #: by seed
    rates: tuple[float, ...]  #: all that were tried
    ratio: float  #: of its need to the least on each seed, by the geometric mean; a capped need counts as its cap
    chance: float  #: that it is the best policy or within a tie of it; 0 if it is unsafe, NaN if nothing is known
    alive: bool  #: whether it was in the race at the end
    unsafe: bool  #: whether a seed did not arrive though it had the time

    @property
    def at_end(self) -> bool:
        """Whether the best rate is the smallest or the largest that was tried."""
        return len(self.rates) > 1 and self.learning_rate in (self.rates[0], self.rates[-1])

    @property
    def arrived(self) -> tuple[float, ...]:
        """The needs that are finite."""
        return tuple(filter(math.isfinite, self.needs.values()))

    @property
    def capped(self) -> bool:
        """Whether its ratio is a lower bound."""
        return not self.unsafe and math.inf in self.needs.values()


@dataclass(frozen=True)
class RaceAnswer:
    """How a race ended."""

    policy: str  #: that is advised
    learning_rate: float
    #: one policy stands alone, is best for sure, or several tie; where it is not decided: the seeds or the time were
    #: used up, the noise is too large, or all policies are unsafe
    ending: str
    among: tuple[str, ...]  #: the policies that tie or that it is not decided between, the simplest first; or the one
    standings: tuple[Standing, ...]  #: of each policy, the soonest first
    noise: float = math.nan  #: the deviation of log need that neither policy nor seed explains

    @property
    def decided(self) -> bool:
        """Whether the data decide; a tie is an answer too."""
        return self.ending in DECIDED

    def standing(self, policy: str) -> Standing:
        """The standing of a policy of the race."""
        return next(each for each in self.standings if each.policy == policy)


Needs = Callable[[Sequence[Trial]], Mapping[Trial, float]]


def race(
    grids: Mapping[str, Sequence[float]], default: str, needs: Needs, *, simplicity: Mapping[str, tuple[int, ...]],
    seeds: Sequence[int] = range(8), tie: float = 0.05, sure: float = 0.92, wider: int = 3, capped: bool = True,
) -> RaceAnswer:  # fmt: skip
    """Return which policy is the best, or that this is not decided.

    Args:
        grids: learning rates by policy, in the order in which policies begin.
        default: the policy that the answer is compared with.
        needs: executes trials; what it leaves out had no time left, and the race ends.
        simplicity: by policy, smaller for a simpler one: of a tie the simplest is advised.
        seeds: at most these, in their order.
        tie: the share by which the needs of two policies may differ that count as equal.
        sure: the probability with which a race is decided.
        wider: how often a grid is widened at each of its ends.
        capped: whether runs can be ended by their need.

    Raises:
        ConfigError: no policy, no seed, an empty grid, an unknown default, a share out of its bounds; no run holds the
            target.
    """
    if not grids or not all(grids.values()):
        raise ConfigError("space", dict(grids), "a race needs a policy, and each policy a learning rate")
    if default not in grids:
        raise ConfigError("default", default, f"no policy of this race; {nearest(default, grids)}")
    if not seeds or len({*seeds}) < len(seeds):
        raise ConfigError("seeds", list(seeds), "must be a list of at least one seed, each of them once, as [0, 1]")
    if tie <= 0:
        raise ConfigError("tie", tie, "must be a share above 0, such as 0.05: nothing is equal to the last bit")
    if not 0.5 <= sure < 1:
        raise ConfigError("sure", sure, "must be a probability from 0.5, below 1, such as 0.9")
    own = _Race({policy: tuple(sorted({*map(float, rates)})) for policy, rates in grids.items()}, default, needs,
                simplicity, tuple(seeds), tie, sure, wider, capped)  # fmt: skip
    return own.answer(own.run())


class _NoTime(Exception):
    """Runs were left out."""


@dataclass
class _Race:
    """A race under way."""

    grids: Mapping[str, tuple[float, ...]]
    default: str
    needs: Needs
    simplicity: Mapping[str, tuple[int, ...]]
    seeds: tuple[int, ...]
    tie: float
    sure: float
    wider: int
    capped: bool

    def __post_init__(self) -> None:
        self.told = {Arm(policy, rate): dict[int, Trial]() for policy, rates in self.grids.items() for rate in rates}
        self.need = dict[Trial, float]()
        self.noise = math.nan
        self._note()

    # -- which runs ------------------------------------------------------------------------------------

    def run(self) -> str:
        """Run seed after seed; return how the race ended."""
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
        """Run the next seed: the leader and the default, which cap the others, then those."""
        seeds, arms = self.seeds[:count], self._alive(count - 1)
        usual = self._best(self.default)[:TWO] if count <= LEAST else []
        self._run([*arms[:1], *usual], seeds, WIDE_CAP)
        self._run(arms, seeds, WIDE_CAP)
        while self._widen(dict.fromkeys(arm.policy for arm in arms), WIDE_CAP):
            pass

    def _alive(self, count: int) -> list[Arm]:
        """The arms that may be the best after so many seeds, the leader first."""
        if not (ranked := sorted(filter(self.told.__getitem__, self.told), key=self._rank)):
            return []
        bound = self.gap[ranked[0]] + math.log(BEHIND[min(count, len(BEHIND)) - 1])
        each = TWO if count < LEAST else 1
        found = [arm for arm in ranked if self.gap[arm] <= bound and arm not in self.unsafe
                 and arm in self._best(arm.policy)[:each]] or ranked[:1]  # fmt: skip
        if count >= LEAST and len(found) == 1:
            chances = {policy: chance for policy, chance in self._chances().items() if policy != found[0].policy}
            found += self._best(max(chances, key=chances.__getitem__))[:1] if chances else []
        return found

    def _best(self, policy: str) -> list[Arm]:
        """The arms of a policy, the best one first."""
        return sorted((arm for arm in self.told if arm.policy == policy), key=self._rank)

    def _run(self, arms: Iterable[Arm], seeds: Iterable[int], cap: float) -> None:
        """Run what these arms lack on these seeds."""
        trials = dict[Trial, None]()
        for seed in seeds:
            for arm in arms:
                least = math.inf if arm.policy == self.default or not self.capped else self.least.get(seed, math.inf)
                own = Trial(*arm, seed, rounded_up(cap * least))
                before = self.told[arm].get(seed)
                late = before is not None and math.isinf(self.need[before]) and before.cap < CAP * least
                if before is None or late:  # which was too late for a leader that is unsafe
                    trials[own] = None
        found = self.needs([*trials]) if trials else {}
        for trial, need in found.items():
            if not need > 0:
                raise ConfigError("need", need, f"{trial} must need more than 0, infinite if it never arrives")
            self.told[trial.arm][trial.seed], self.need[trial] = trial, need if need <= trial.cap else math.inf
        self._note()
        if len(found) < len(trials):
            raise _NoTime

    def _widen(self, policies: Iterable[str], cap: float) -> bool:
        """Run the next rate beyond the best one of each policy where that one arrives and is at an end of its grid, on
        the seeds that the best one has; whether there is one."""
        found = False
        for policy in policies:
            best, grid = self._best(policy)[0], self.grids[policy]
            tried = [arm.learning_rate for arm in self.told if arm.policy == policy]
            rate = beyond((best.learning_rate,), [(each,) for each in tried]) if all(self._arrived(best)) else None
            lower = rate is not None and rate < best.learning_rate
            if rate is not None and sum(each < grid[0] if lower else each > grid[-1] for each in tried) < self.wider:
                self.told[Arm(policy, rate)], found = {}, True
                self._run([Arm(policy, rate)], self.told[best], cap)
        return found

    # -- what is known ---------------------------------------------------------------------------------

    def _note(self) -> None:
        """Note of each arm whether it is unsafe, and how far behind the soonest of each seed it is."""
        self.unsafe = {arm for arm, own in self.told.items() if self._misses(own.values())}
        self.least = dict[int, float]()
        for arm, own in self.told.items():
            for seed, trial in own.items() if arm not in self.unsafe else ():
                self.least[seed] = min(self.need[trial], self.least.get(seed, math.inf))
        self.gap = {arm: self._behind(own.values()) for arm, own in self.told.items()}

    def _misses(self, own: Iterable[Trial]) -> bool:
        """Whether one of an arm's runs missed the target though it had the time, to its last push or a generous cap."""
        most = max((need for trial in own if math.isfinite(need := self.need[trial])), default=math.inf)
        return any(math.isinf(self.need[trial]) and trial.cap >= GENEROUS * most for trial in own)

    def _behind(self, own: Iterable[Trial]) -> float:
        """Return the mean, over seeds, of the logarithm of an arm's need divided by the soonest arm's: a lower bound
        where a need was capped; infinite if no run of the arm has a known need."""
        known = [trial for trial in own if max(self._bound(trial), self.least.get(trial.seed, math.inf)) < math.inf]
        gaps = [math.log(self._bound(trial) / self.least[trial.seed]) for trial in known]
        return sum(gaps) / len(gaps) if gaps else math.inf

    def _bound(self, trial: Trial) -> float:
        return min(self.need[trial], trial.cap)

    def _arrived(self, arm: Arm) -> list[bool]:
        """Whether each run of an arm held the target."""
        return [math.isfinite(self.need[trial]) for trial in self.told[arm].values()]

    def _rank(self, arm: Arm) -> tuple[object, ...]:
        """Return a key that sorts arms: arriving ones first, then the sooner, then the nearer to the grid's middle."""
        grid = self.grids[arm.policy]
        return (not self.told[arm], arm in self.unsafe, self.gap[arm], not all(self._arrived(arm)),
                abs(math.log(arm.learning_rate / grid[len(grid) // 2])))  # fmt: skip

    def _chances(self) -> dict[str, float]:
        """By policy, the chance that it is the best or within a tie of it."""
        bests = [self._best(policy) for policy in self.grids]
        arms = [best for best, *_ in bests if best not in self.unsafe and math.isfinite(self.gap[best])]
        if not arms:
            return {}
        nothing = Trial("", 0.0, 0, math.nan)
        trials = [[self.told[arm].get(seed, nothing) for seed in self.seeds] for arm in arms]
        needs = np.array([[math.nan if trial is nothing else self._bound(trial) for trial in own] for own in trials])
        needs[np.isinf(needs)] = math.nan
        seen = ~np.isnan(needs).all(axis=0)
        bounds = np.array([[self.need.get(trial, 0.0) == math.inf for trial in own] for own in trials])
        compared = Comparison(needs[:, seen], bounds[:, seen])
        if len(arms) > 1 and not compared.degrees:
            return dict.fromkeys((arm.policy for arm in arms), math.nan)
        self.noise = compared.noise if compared.degrees else math.nan
        missing = self._missing()
        found = dict[str, float]()
        for arm, chance in zip(arms, compared.chances(self.tie).tolist(), strict=True):
            yet = missing * (1 - MISSES) ** len(self.told[arm])  # that it is one that misses, and did not so far
            found[arm.policy] = chance * (1 - yet / (yet + 1 - missing))
        return found

    def _missing(self) -> float:
        """Return the estimated share of policies that miss the target with some seeds: the policies seen to miss,
        divided by the policies whose number of seeds would have shown a miss; two unseen policies are added."""
        seeds = dict.fromkeys(self.grids, 0)
        for arm, own in self.told.items():
            seeds[arm.policy] = max(seeds[arm.policy], len(own))
        some = {arm.policy for arm in self.unsafe if any(self._arrived(arm))}
        return (len(some) + 0.4) / (sum(1 - (1 - MISSES) ** count for count in seeds.values() if count > 1) + 2)

    def _ending(self, count: int) -> str:
        """How the race ends after so many seeds; "" if it goes on."""
        if all(self._best(policy)[0] in self.unsafe for policy in self.grids):
            return "unsafe"
        if count < LEAST and (count < len(self.seeds) or len(self.grids) > 1):
            return ""
        if not self._named():
            return ""
        once = [best for policy in self.grids if len(self.told[(best := self._best(policy)[0])]) < TWO]
        self._run(once, self.seeds[1:TWO], CAP)
        for policy in self._named()[:1]:
            self._run(self._best(policy)[:1], self.seeds[:LASTING], WIDE_CAP)
        if len(self._chances()) == 1:
            return "alone"
        named = self._named()
        return "" if not named else "sure" if len(named) == 1 else "tie"

    def _named(self) -> list[str]:
        """The policies that are the best for sure, or within a tie of it, the simplest first; or the only one that
        arrives with each seed."""
        chances = self._chances()
        found = [policy for policy, chance in chances.items()
                 if len(chances) == 1 or (chance >= self.sure and not self.noise > LOUD)]  # fmt: skip
        return sorted(found, key=lambda policy: self.simplicity[policy])

    # -- how it ended ----------------------------------------------------------------------------------

    def answer(self, ending: str) -> RaceAnswer:
        """Return the answer by the runs so far.

        Raises:
            ConfigError: no run has held the target.
        """
        chances = self._chances()
        alive = {arm.policy for arm in self._alive(max(map(len, self.told.values())))}
        standings = sorted((self._standing(policy, chances.get(policy, 0.0), alive) for policy in self.grids),
                           key=lambda each: (each.unsafe, not each.arrived, each.ratio))  # fmt: skip
        if (first := next((each for each in standings if each.arrived), None)) is None:
            raise ConfigError("target", "held by no run", "there is nothing to compare: lower it, or give more pushes")
        among = self._named() if ending in DECIDED else sorted(alive, key=self.simplicity.__getitem__)
        if ending in DECIDED:
            first = next(each for each in standings if each.policy == among[0])
        return RaceAnswer(first.policy, first.learning_rate, ending, tuple(among or [first.policy]), tuple(standings),
                          self.noise)  # fmt: skip

    def _standing(self, policy: str, chance: float, alive: Iterable[str]) -> Standing:
        best, *_ = self._best(policy)
        own = {seed: self.told[best][seed] for seed in self.seeds if seed in self.told[best]}
        rates = sorted(arm.learning_rate for arm, own in self.told.items() if arm.policy == policy and own)
        return Standing(
            policy, best.learning_rate, {seed: self.need[trial] for seed, trial in own.items()},
            {seed: trial.cap for seed, trial in own.items()}, tuple(rates), math.exp(self.gap[best]), chance,
            policy in alive, best in self.unsafe,
        )  # fmt: skip


def around(centre: float) -> tuple[float, ...]:
    """The grid of learning rates with which a policy begins."""
    return centre / 2, centre, 2 * centre


def rounded_up(need: float) -> float:
    """Up to three digits, so that a run's digest does not hang on the last bits of what another one needed."""
    if math.isinf(need):
        return need
    unit = 10.0 ** (math.floor(math.log10(need)) - DIGITS + 1)
    return float(f"{math.ceil(round(need / unit, 9)) * unit:.{DIGITS}g}")
