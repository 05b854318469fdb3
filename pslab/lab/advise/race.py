"""The race between policies: which runs are worth their gradients, and when what they need decides.

A race executes nothing: it asks for trials, which are independent runs, and is told what each needed to hold the
target: seconds, or bytes, or gradients, whatever is to be small.

    race = Race({"asp": around(0.2), "bsp": around(0.2)}, "bsp", simplicity=...)
    race.tell(what the pilot's runs needed)
    while not race.over:
        race.tell({trial: what its run needed for trial in race.ask()})
    race.answer()

| round | arms that run |
|---|---|
| seed 1 | each policy's grid of learning rates, in the order given |
| seeds 2 and 3 | those whose mean is within BEHIND of the leader's, of a policy the best two |
| from seed 4 | the same, of a policy the best one; and the likeliest rival, until the leader is sure |

An arm is a policy with a learning rate. Arms are compared on the same seeds, so a trial may end as soon as it is too
late to matter: CAP times the soonest on its seed. The default policy is never capped, and its best two arms have three
seeds at least: the answer is compared with it. After each seed a policy whose best rate is the smallest or the largest
that was tried gets the next one beyond it. An arm that breaks a limit is out, caps no other, and is never advised.
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
GENEROUS = 2.0  # a cap of so many times the arm's own largest need: what does not arrive within it never does
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
    #: the need beyond which it is out, infinite if its run ends by its pushes alone. Whether a target is held is known
    #: two evaluations after it was reached: its run ends so much later
    cap: float = math.inf

    @property
    def arm(self) -> Arm:
        return Arm(self.policy, self.learning_rate)


@dataclass(frozen=True)
class Standing:
    """What a race found of one policy, at its best learning rate."""

    policy: str
    learning_rate: float
    needs: Mapping[int, float]  #: by seed, what it needed; infinite where it did not arrive within its cap
    caps: Mapping[int, float]  #: by seed
    rates: tuple[float, ...]  #: all that were tried
    ratio: float  #: of its need to the least on each seed, by the geometric mean; what was capped counts as its cap
    chance: float  #: that it is the best policy; 0 if it is unsafe, NaN if too few seeds are known
    alive: bool  #: whether it was in the race at the end
    unsafe: bool  #: whether a seed did not arrive though it had the time, or a limit was broken
    broken: str = ""  #: the limit that it breaks, and by how much

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
    #: one policy stands alone, is best for sure, or several tie; where it is not decided: seeds or time were used up,
    #: all policies are unsafe, or "" while the race goes on
    ending: str
    among: tuple[str, ...]  #: the policies that tie or that it is not decided between, the simplest first; or the one
    standings: tuple[Standing, ...]  #: of each policy, the soonest first

    @property
    def decided(self) -> bool:
        """Whether the data decide; a tie is an answer too."""
        return self.ending in DECIDED

    def standing(self, policy: str) -> Standing:
        """That of a policy of the race."""
        return next(each for each in self.standings if each.policy == policy)


class _Compared(NamedTuple):
    """How the policies compare."""

    arms: list[Arm]  #: those that arrived, the soonest first; of a policy of which none did the best one
    comparison: Comparison | None  #: of their needs, where one was capped of its cap, which is less; None without arms
    #: by policy, that it is the best: the sum over its arms; NaN if nothing is known of the noise
    chances: dict[str, float]


class Race:
    """A race between policies, each with a grid of learning rates.

    Args:
        grids: learning rates by policy, in the order in which policies begin: the soonest seconds per gradient first.
        default: the policy that the answer is compared with.
        simplicity: by policy, what is simpler is smaller: of a tie the simplest is advised.
        seeds: at most these, in their order.
        tie: the share by which the needs of two policies may differ that count as equal.
        sure: the probability with which a race is decided.
        wider: how often a grid is widened at each of its ends.
        cap: times the least on its seed, at which a run ends; infinite where runs cannot be ended so.

    Raises:
        ConfigError: no policy, no seed, an empty grid, an unknown default, a share out of its bounds.
    """

    def __init__(
        self, grids: Mapping[str, Sequence[float]], default: str, *, simplicity: Mapping[str, tuple[int, ...]],
        seeds: Sequence[int] = range(8), tie: float = 0.05, sure: float = 0.9, wider: int = 3, cap: float = CAP,
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
        self._capped_at = cap
        self._simplicity = dict(simplicity)
        self._grids = {policy: tuple(sorted({*map(float, rates)})) for policy, rates in grids.items()}
        self._heard: dict[Arm, dict[int, tuple[float, float]]] = {
            Arm(policy, rate): {} for policy, rates in self._grids.items() for rate in rates
        }  # the need and the cap, by arm and seed
        self._broken: dict[Arm, str] = {}  # the limit that an arm breaks
        self._begun, self._round, self._ending = 0, 1, ""
        self._running: list[Arm] = []
        self._asked: list[Trial] = []
        self._latest: _Compared | None = None  # what is known, if it was asked for since it was last told
        self._least: dict[int, float] = {}  # by seed, of an arm that is not unsafe
        self._go_on()

    # -- what a driver uses ----------------------------------------------------------------------------

    def ask(self) -> list[Trial]:
        """The next runs, independent of each other; none if the race is over. Tell them all before asking again: what
        is asked next then depends on their needs alone."""
        return list(self._asked)

    def tell(self, needs: Mapping[Trial, float], broken: Mapping[Trial, str] | None = None) -> None:
        """What each run needed until it held the target; infinite if it did not. Others than were asked for are
        welcome, such as the default policy's from a pilot.

        Args:
            broken: of runs that break a limit, which and by how much, in words.

        Raises:
            ConfigError: a policy or a seed that is not in the race, or a need that none can be.
        """
        for trial, words in (broken or {}).items():
            self._broken.setdefault(trial.arm, words)
        for trial, need in needs.items():
            if trial.policy not in self._grids:
                raise ConfigError("policy", trial.policy, f"is not in this race; {nearest(trial.policy, self._grids)}")
            if trial.seed not in self.seeds:
                raise ConfigError("seed", trial.seed, f"is not in this race: its seeds are {[*self.seeds]}")
            if not need > 0:
                raise ConfigError("need", need, f"{trial} must need more than 0, infinite if it never arrives")
            self._heard.setdefault(trial.arm, {})[trial.seed] = need, trial.cap
        self._least, self._latest = {}, None
        for heard in (heard for arm, heard in self._heard.items() if not self._unsafe(arm)):
            for seed, (need, _) in heard.items():
                self._least[seed] = min(need, self._least.get(seed, math.inf))
        self._go_on()

    def join(self, grids: Mapping[str, Sequence[float]], simplicity: Mapping[str, tuple[int, ...]]) -> None:
        """Further policies, each with its learning rates: they begin as the others did, with the first seed."""
        self._simplicity |= simplicity
        for policy, rates in grids.items():
            self._grids[policy] = tuple(sorted({*map(float, rates)}))
            self._heard |= {Arm(policy, rate): {} for rate in self._grids[policy]}
        self._round, self._running, self._ending = 1, [], ""
        self._go_on()

    @property
    def over(self) -> bool:
        """Whether nothing is left to ask."""
        return not self._asked

    @property
    def led(self) -> bool:
        """Whether a run has held the target and keeps the limits, so that there is something to advise."""
        return bool(self._least) and min(self._least.values()) < math.inf

    def out_of_time(self) -> None:
        """End now, with what is known."""
        self._ending, self._asked = self._ending or "time", []

    def answer(self) -> RaceAnswer:
        """What is known now.

        Raises:
            ConfigError: no run has held the target. If those that have all break a limit, one of them is the answer.
        """
        alive, chances = {arm.policy for arm in self._alive() if self._heard[arm]}, self._compared().chances
        standings = [self._standing(policy, policy in alive, chances.get(policy, 0.0)) for policy in self._grids]
        standings.sort(key=lambda each: (each.unsafe, not each.alive, each.ratio, -len(each.arrived), each.arrived))
        if (first := next((each for each in standings if each.arrived), None)) is None:
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
        their needs cap the others'."""
        found = []
        for seed in self.seeds[: self._round]:
            wanted = [arm for arm in self._running if self._lacks(arm, seed)]
            if self._round > 1 and math.isinf(self._least.get(seed, math.inf)):
                wanted = [arm for arm in wanted if arm == wanted[0] or arm.policy == self.default]
            found += [Trial(*arm, seed, self._cap(arm, seed)) for arm in wanted]
        return found

    def _lacks(self, arm: Arm, seed: int) -> bool:
        """Whether its need is not known, nor that it is beyond the cap, which grows where a leader was unsafe."""
        need, cap = self._heard[arm].get(seed, (math.inf, 0.0))
        return math.isinf(need) and cap < self._cap(arm, seed)

    def _cap(self, arm: Arm, seed: int) -> float:
        least = math.inf if arm.policy == self.default else self._least.get(seed, math.inf)
        return rounded_up(self._capped_at * least)

    def _widen(self, policies: Iterable[str]) -> bool:
        """Add the next rate beyond the best one of each policy, where that is at an end; whether there is one."""
        found = []
        for policy in policies:
            arms, grid = self._arms(policy), self._grids[policy]
            known = (arm for arm in arms if self._heard[arm] and self._arrived(arm))
            if not (arrived := [arm for arm in known if math.isfinite(self._gap(arm))]):
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
        best two."""
        if seeds == 1:
            return [arm for policy in list(self._grids)[: self._begun] for arm in self._arms(policy)]
        alive = self._alive()
        own = [arm for arm in self._arms(self.default) if arm in self._broken or not self._out(arm)]
        own.sort(key=lambda arm: (not self._arrived(arm), self._gap(arm)))
        return alive + [arm for arm in own[:TWO] if seeds <= LEAST and arm not in alive]

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
        return all(math.isfinite(need) for need, _ in self._heard[arm].values())

    def _out(self, arm: Arm) -> bool:
        """Whether a run of it did not hold the target within its cap, or it breaks a limit."""
        heard = self._heard[arm].items()
        late = any(math.isinf(need) and not self._lacks(arm, seed) for seed, (need, _) in heard)
        return late or arm in self._broken

    def _unsafe(self, arm: Arm) -> bool:
        """Whether a run of it did not hold the target though it had the time, to its last push or a generous cap; or it
        breaks a limit."""
        heard = self._heard[arm].values()
        own = max((need for need, _ in heard if math.isfinite(need)), default=math.inf)
        return arm in self._broken or any(math.isinf(need) and cap >= GENEROUS * own for need, cap in heard)

    def _gap(self, arm: Arm) -> float:
        """The mean of the logarithm of its need less that of the soonest on each of its seeds; a lower bound where it
        was capped. Infinite if none of its runs says anything; 0 if there is none, so that it runs."""
        if not self._heard[arm]:
            return 0.0
        known = {seed: min(each) for seed, each in self._heard[arm].items() if math.isfinite(min(each))}
        gaps = [math.log(need / least) for seed, need in known.items()
                if math.isfinite(least := self._least.get(seed, math.inf))]  # fmt: skip
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
        """The arms of which a need is known, or that it is beyond a cap; none that is unsafe."""
        return [arm for arm, heard in self._heard.items()
                if heard and not self._unsafe(arm) and math.isfinite(self._gap(arm))]  # fmt: skip

    def _compared(self) -> _Compared:
        """How the policies compare by all that was told."""
        if self._latest is None:
            known = sorted(self._known(), key=lambda arm: (self._out(arm), self._gap(arm)))
            best = {arm.policy: arm for arm in reversed(known)}
            arms = [arm for arm in known if arm == best[arm.policy] or not self._out(arm)]
            heard = [self._heard[arm] for arm in arms]
            needs = np.array([[min(told.get(seed, (math.nan,))) for seed in self.seeds] for told in heard])
            compared = Comparison(needs[:, ~np.isnan(needs).all(axis=0)]) if arms else None
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
        order = {arm: (self._unsafe(arm), self._out(arm), not self._arrived(arm), self._gap(arm),
                       min(self._heard[arm].values())) for arm in tried}  # fmt: skip
        best = min(tried, key=order.__getitem__) if tried else self._arms(policy)[0]
        needs, caps = ({seed: self._heard[best][seed][of] for seed in self.seeds if seed in self._heard[best]}
                       for of in (0, 1))  # fmt: skip
        return Standing(
            policy, best.learning_rate, needs, caps, tuple(arm.learning_rate for arm in tried),
            math.exp(self._gap(best)) if tried else math.inf, chance, alive, self._unsafe(best),
            self._broken.get(best, ""),
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
