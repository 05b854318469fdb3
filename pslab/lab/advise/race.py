"""The race between policies: which runs are worth their gradients, and when their times decide.

A race executes nothing: it asks for trials, which are independent runs, and is told the seconds until each held the
target.

    race = Race({"asp": around(0.2), "bsp": around(0.2)}, "bsp", simplicity=...)
    race.tell(times of the pilot)
    while not race.over:
        race.tell({trial: held seconds of its run for trial in race.ask()})
    race.answer()

| round | arms that run |
|---|---|
| seed 1 | each policy's grid of learning rates, in the order given |
| seeds 2 and 3 | those whose mean is within BEHIND of the leader's, of a policy the best two |
| from seed 4 | the same, of a policy the best one; and the likeliest rival, until the leader is sure |

An arm is a policy with a learning rate. Arms are compared on the same seeds, so a trial may end as soon as it is too
late to matter: CAP times the soonest on its seed. The default policy is never capped, and its best arm has three seeds
at least: the answer is compared with it. After each seed a policy whose best rate is the smallest or the largest that
was tried gets the next one beyond it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pslab.errors import ConfigError, nearest
from pslab.lab.advise.confidence import Comparison
from pslab.lab.records.tuning import beyond

CAP = 1.5  # times the soonest: a tighter cap with later seeds throws out by one seed's noise what is as good
BEHIND = (1.5, 1.3, 1.2, 1.15, 1.1)  # times the leader's mean, after each seed; the last one goes on
LEAST = 3  # seeds before anything is decided, and that the default policy has
TWO = 2  # rates of a policy that go on until the third seed
DECIDED = ("alone", "sure", "tie")
GENEROUS = 2.0  # a cap of so many times the arm's own longest time: what does not arrive within it never does
DIGITS = 3  # of a cap


class Arm(NamedTuple):
    """What is compared."""

    policy: str
    learning_rate: float


@dataclass(frozen=True)
class Trial:
    """A run that a race asks for."""

    policy: str
    learning_rate: float
    seed: int
    #: the time beyond which it is out, infinite if it ends by its pushes alone. Whether a target is held is known two
    #: evaluations after it was reached: its run ends so much later
    cap_s: float = math.inf

    @property
    def arm(self) -> Arm:
        return Arm(self.policy, self.learning_rate)


@dataclass(frozen=True)
class Standing:
    """What a race found of one policy, at its best learning rate."""

    policy: str
    learning_rate: float
    times_s: Mapping[int, float]  #: by seed; infinite where it did not arrive within its cap
    caps_s: Mapping[int, float]  #: by seed
    rates: tuple[float, ...]  #: all that were tried
    ratio: float  #: of its time to the soonest on each seed, by the geometric mean; what was capped counts as its cap
    chance: float  #: that it is the best policy; 0 if it is unsafe, NaN if too few seeds are known
    alive: bool  #: whether it was in the race at the end
    unsafe: bool  #: whether a seed did not arrive though it had the time

    @property
    def at_end(self) -> bool:
        """Whether the best rate is the smallest or the largest that was tried."""
        return len(self.rates) > 1 and self.learning_rate in (self.rates[0], self.rates[-1])

    @property
    def arrived_s(self) -> tuple[float, ...]:
        """The times that are finite."""
        return tuple(filter(math.isfinite, self.times_s.values()))

    @property
    def capped(self) -> bool:
        """Whether its ratio is a lower bound."""
        return not self.unsafe and math.inf in self.times_s.values()


@dataclass(frozen=True)
class RaceAnswer:
    """How a race ended."""

    policy: str  #: that is advised
    learning_rate: float
    #: one policy stands alone, is best for sure, or several tie; where it is not decided: seeds or time were used up,
    #: all policies are unsafe, or "" while the race goes on
    ending: str
    among: tuple[str, ...]  #: the policies that tie or that it is not decided between, the simplest first; or the one
    standings: tuple[Standing, ...]  #: of each policy, the soonest first

    @property
    def decided(self) -> bool:
        """Whether the times decide; a tie is an answer too."""
        return self.ending in DECIDED

    def standing(self, policy: str) -> Standing:
        """That of a policy of the race."""
        return next(each for each in self.standings if each.policy == policy)


class _Compared(NamedTuple):
    """How the policies compare."""

    arms: list[Arm]  #: those that arrived, the soonest first; of a policy of which none did the best one
    comparison: Comparison | None  #: of their times, where one was capped of its cap, which is less; None without arms
    #: by policy, that it is the best: the sum over its arms; NaN if nothing is known of the noise
    chances: dict[str, float]


class Race:
    """A race between policies, each with a grid of learning rates.

    Args:
        grids: learning rates by policy, in the order in which policies begin: the soonest seconds per gradient first.
        default: the policy that the answer is compared with.
        simplicity: by policy, what is simpler is smaller: of a tie the simplest is advised.
        seeds: at most these, in their order.
        tie: the share of time by which two policies may differ that count as equal.
        sure: the probability with which a race is decided.
        wider: how often a grid is widened at each of its ends.

    Raises:
        ConfigError: no policy, no seed, an empty grid, an unknown default, a share out of its bounds.
    """

    def __init__(
        self, grids: Mapping[str, Sequence[float]], default: str, *, simplicity: Mapping[str, tuple[int, ...]],
        seeds: Sequence[int] = range(8), tie: float = 0.05, sure: float = 0.9, wider: int = 3,
    ) -> None:  # fmt: skip
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
        self.default, self.seeds, self.tie, self.sure, self.wider = default, tuple(seeds), tie, sure, wider
        self._simplicity = simplicity
        self._grids = {policy: tuple(sorted({*map(float, rates)})) for policy, rates in grids.items()}
        self._heard: dict[Arm, dict[int, tuple[float, float]]] = {
            Arm(policy, rate): {} for policy, rates in self._grids.items() for rate in rates
        }  # the time and the cap, by arm and seed
        self._begun, self._round, self._ending = 0, 1, ""
        self._running: list[Arm] = []
        self._asked: list[Trial] = []
        self._latest: _Compared | None = None  # what is known, if it was asked for since the last times
        self._soonest_s: dict[int, float] = {}  # by seed, of an arm that is not unsafe
        self._go_on()

    # -- what a driver uses ----------------------------------------------------------------------------

    def ask(self) -> list[Trial]:
        """The next runs, independent of each other; none if the race is over. Tell them all before asking again: what
        is asked next then depends on their times alone."""
        return list(self._asked)

    def tell(self, times_s: Mapping[Trial, float]) -> None:
        """The seconds until each run held the target; infinite if it did not. Others than were asked for are welcome,
        such as the default policy's from a pilot.

        Raises:
            ConfigError: a policy or a seed that is not in the race, or a time that none can be.
        """
        for trial, time_s in times_s.items():
            if trial.policy not in self._grids:
                raise ConfigError("policy", trial.policy, f"is not in this race; {nearest(trial.policy, self._grids)}")
            if trial.seed not in self.seeds:
                raise ConfigError("seed", trial.seed, f"is not in this race: its seeds are {[*self.seeds]}")
            if not time_s > 0:
                raise ConfigError("time", time_s, f"{trial} must take a time above 0, infinite if it never arrives")
            self._heard.setdefault(trial.arm, {})[trial.seed] = time_s, trial.cap_s
        self._soonest_s, self._latest = {}, None
        for heard in (heard for arm, heard in self._heard.items() if not self._unsafe(arm)):
            for seed, (time_s, _) in heard.items():
                self._soonest_s[seed] = min(time_s, self._soonest_s.get(seed, math.inf))
        self._go_on()

    @property
    def over(self) -> bool:
        """Whether nothing is left to ask."""
        return not self._asked

    @property
    def led(self) -> bool:
        """Whether a run has held the target, so that there is something to answer."""
        return any(math.isfinite(time_s) for heard in self._heard.values() for time_s, _ in heard.values())

    def out_of_time(self) -> None:
        """End now, with what is known."""
        self._ending, self._asked = self._ending or "time", []

    def answer(self) -> RaceAnswer:
        """What is known now.

        Raises:
            ConfigError: no run has held the target.
        """
        alive, chances = {arm.policy for arm in self._alive() if self._heard[arm]}, self._compared().chances
        standings = [self._standing(policy, policy in alive, chances.get(policy, 0.0)) for policy in self._grids]
        standings.sort(key=lambda each: (each.unsafe, not each.alive, each.ratio, -len(each.arrived_s), each.arrived_s))
        if (first := next((each for each in standings if each.arrived_s), None)) is None:
            raise ConfigError("target", "held by no run", "there is nothing to compare: lower it, or give more pushes")
        among = sorted(alive or [first.policy], key=lambda policy: self._simplicity[policy])
        if self._ending in ("alone", "sure"):
            among = [max(chances, key=chances.__getitem__)]
        if self._ending in DECIDED:  # of a tie the simplest
            first = next(each for each in standings if each.policy == among[0])
        return RaceAnswer(first.policy, first.learning_rate, self._ending, tuple(among), tuple(standings))

    # -- what runs -------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        """From what was told to what is asked next, or to the end."""
        while not self._ending:
            self._asked = self._lacking()
            if self._asked:
                return
            more = self._widen(dict.fromkeys(arm.policy for arm in self._chosen(self._round)))
            if self._begun < len(self._grids):
                self._begun, more = self._begun + 1, True
            running = self._chosen(self._round)
            if more or running != self._running:  # what they lack, if anything, comes before another seed
                self._running = running
                continue
            self._ending = self._ended()
            if not self._ending:
                self._running = self._chosen(self._round + 1)
                self._round += 1

    def _lacking(self) -> list[Trial]:
        """What the running arms lack on the seeds so far. A new seed's first runs are the leader's and the default's:
        their times cap the others'."""
        found = []
        for seed in self.seeds[: self._round]:
            wanted = [arm for arm in self._running if self._lacks(arm, seed)]
            if self._round > 1 and math.isinf(self._soonest_s.get(seed, math.inf)):
                wanted = [arm for arm in wanted if arm == wanted[0] or arm.policy == self.default]
            found += [Trial(*arm, seed, self._cap_s(arm, seed)) for arm in wanted]
        return found

    def _lacks(self, arm: Arm, seed: int) -> bool:
        """Whether a time is not known, nor that it is beyond the cap, which grows where a leader was unsafe."""
        time_s, cap_s = self._heard[arm].get(seed, (math.inf, 0.0))
        return math.isinf(time_s) and cap_s < self._cap_s(arm, seed)

    def _cap_s(self, arm: Arm, seed: int) -> float:
        soonest_s = math.inf if arm.policy == self.default else self._soonest_s.get(seed, math.inf)
        return rounded_up(CAP * soonest_s)

    def _widen(self, policies: Iterable[str]) -> bool:
        """Add the next rate beyond the best one of each policy, where that is at an end; whether there is one."""
        found = []
        for policy in policies:
            arms, grid = self._arms(policy), self._grids[policy]
            if not (arrived := [arm for arm in arms if self._heard[arm] and self._arrived(arm)]):
                continue
            tried, best = [arm.learning_rate for arm in arms], min(arrived, key=self._gap).learning_rate
            rate = beyond((best,), [(each,) for each in tried])
            wider = 0 if rate is None else sum(each < grid[0] if rate < best else each > grid[-1] for each in tried)
            if rate is not None and wider < self.wider:
                found.append(Arm(policy, rate))
        self._heard |= {arm: {} for arm in found}
        return bool(found)

    def _chosen(self, seeds: int) -> list[Arm]:
        """The arms that run so many seeds: all the first one; then those alive, the leader first, and the default's
        best."""
        if seeds == 1:
            return [arm for policy in list(self._grids)[: self._begun] for arm in self._arms(policy)]
        alive = self._alive()
        own = sorted((arm for arm in self._arms(self.default) if not self._out(arm)), key=self._gap)
        return alive + [arm for arm in own[:1] if seeds <= LEAST and arm not in alive]

    def _alive(self) -> list[Arm]:
        """The arms that may be the best, the leader first; of a policy the best two, and from the third seed one."""
        gaps = {arm: self._gap(arm) for arm in self._heard if not self._out(arm)}
        leader = min((gap for arm, gap in gaps.items() if self._heard[arm] and self._arrived(arm)), default=math.inf)
        behind = math.log(BEHIND[min(self._round, len(BEHIND)) - 1])
        found: list[Arm] = []
        for arm in sorted(gaps, key=gaps.__getitem__):
            others = sum(other.policy == arm.policy for other in found)
            if gaps[arm] <= leader + behind and others < (TWO if self._round < LEAST else 1):
                found.append(arm)
        if self._round >= LEAST and len({arm.policy for arm in found}) == 1:
            found += self._rival(found[0].policy)
        return found

    def _rival(self, policy: str) -> list[Arm]:
        """The best arm of the policy that is the likeliest to be better than this one, until this one is sure."""
        arms, _, chances = self._compared()
        others = [arm for arm in arms if arm.policy != policy]
        if not others or chances[policy] >= self.sure:
            return []
        within = [arm for arm in others if not self._out(arm)]
        return [max(within or others, key=lambda arm: chances[arm.policy])]

    # -- what is known of an arm -----------------------------------------------------------------------

    def _arms(self, policy: str) -> list[Arm]:
        """Its arms, by learning rate."""
        return sorted(arm for arm in self._heard if arm.policy == policy)

    def _arrived(self, arm: Arm) -> bool:
        """Whether each run of it held the target."""
        return all(math.isfinite(time_s) for time_s, _ in self._heard[arm].values())

    def _out(self, arm: Arm) -> bool:
        """Whether a run of it did not hold the target within its cap."""
        return any(math.isinf(each) and not self._lacks(arm, seed) for seed, (each, _) in self._heard[arm].items())

    def _unsafe(self, arm: Arm) -> bool:
        """Whether a run of it did not hold the target though it had the time: to its last push, or a generous cap."""
        heard = self._heard[arm].values()
        own_s = max((time_s for time_s, _ in heard if math.isfinite(time_s)), default=math.inf)
        return any(math.isinf(time_s) and cap_s >= GENEROUS * own_s for time_s, cap_s in heard)

    def _gap(self, arm: Arm) -> float:
        """The mean of log T less that of the soonest on each of its seeds; a lower bound where it was capped. Infinite
        if none of its runs says anything; 0 if there is none, so that it runs."""
        if not self._heard[arm]:
            return 0.0
        known = {seed: min(each) for seed, each in self._heard[arm].items() if math.isfinite(min(each))}
        gaps = [math.log(time_s / soonest_s) for seed, time_s in known.items()
                if math.isfinite(soonest_s := self._soonest_s.get(seed, math.inf))]  # fmt: skip
        return sum(gaps) / len(gaps) if gaps else math.inf

    # -- how it ends -----------------------------------------------------------------------------------

    def _ended(self) -> str:
        """Why no further seed is needed; "" if one is."""
        alive, last = self._alive(), self._round == len(self.seeds)
        if not alive:
            return "unsafe"
        if self._round >= LEAST or (last and len(self._grids) == 1):
            arms, compared, chances = self._compared()
            if compared is None or len(chances) == 1:
                return "alone"
            if max(chances.values()) >= self.sure:
                return "sure"
            places = [arms.index(arm) for arm in alive]
            if compared.within(places[0], self.tie)[places].min() >= self.sure:
                return "tie"
        return "seeds" if last else ""

    def _known(self) -> list[Arm]:
        """The arms of which a time is known, or that it is beyond a cap; none that is unsafe."""
        return [arm for arm, heard in self._heard.items()
                if heard and not self._unsafe(arm) and math.isfinite(self._gap(arm))]  # fmt: skip

    def _compared(self) -> _Compared:
        """How the policies compare by all that was told."""
        if self._latest is None:
            known = sorted(self._known(), key=lambda arm: (self._out(arm), self._gap(arm)))
            best = {arm.policy: arm for arm in reversed(known)}
            arms = [arm for arm in known if arm == best[arm.policy] or not self._out(arm)]
            heard = [self._heard[arm] for arm in arms]
            times = np.array([[min(told.get(seed, (math.nan,))) for seed in self.seeds] for told in heard])
            compared = Comparison(times[:, ~np.isnan(times).all(axis=0)]) if arms else None
            chances = dict.fromkeys((arm.policy for arm in arms), 0.0)
            each = [math.nan] * len(arms)
            if compared is not None and (compared.degrees or len(arms) == 1):
                each = compared.chances().tolist()
            for arm, chance in zip(arms, each, strict=True):
                chances[arm.policy] += chance
            self._latest = _Compared(arms, compared, chances)
        return self._latest

    def _standing(self, policy: str, alive: bool, chance: float) -> Standing:
        tried = [arm for arm in self._arms(policy) if self._heard[arm]]
        order = {arm: (self._unsafe(arm), self._out(arm), self._gap(arm)) for arm in tried}
        best = min(tried, key=order.__getitem__) if tried else self._arms(policy)[0]
        times, caps = ({seed: self._heard[best][seed][of] for seed in self.seeds if seed in self._heard[best]}
                       for of in (0, 1))  # fmt: skip
        return Standing(
            policy, best.learning_rate, times, caps, tuple(arm.learning_rate for arm in tried),
            math.exp(self._gap(best)) if tried else math.inf, chance, alive, self._unsafe(best),
        )  # fmt: skip


def around(centre: float) -> tuple[float, ...]:
    """The grid of learning rates with which a policy begins."""
    return centre / 2, centre, 2 * centre


def rounded_up(seconds: float) -> float:
    """Up to three digits, so that a run's digest does not hang on the last bits of another one's time."""
    if math.isinf(seconds):
        return seconds
    unit = 10.0 ** (math.floor(math.log10(seconds)) - DIGITS + 1)
    return float(f"{math.ceil(round(seconds / unit, 9)) * unit:.{DIGITS}g}")
