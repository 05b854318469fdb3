"""The answer of `advise`: the policy, the reasons and the probability; and how to verify it on real processes."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pslab.config.metric import metric_of
from pslab.config.run import Run
from pslab.lab.advise.race import LOUD, RaceAnswer
from pslab.lab.advise.why import sentence, why
from pslab.lab.records.frames import table
from pslab.lab.records.merit import SECONDS, Merit
from pslab.lab.records.record import Result
from pslab.lab.records.summary import held, measured, over_seeds
from pslab.lab.records.units import DASH, SPACE
from pslab.lab.runs.run import sweep

LONGER = 1.5  # real processes get at most this multiple of the pushes that virtual time needs
UNDECIDED = {"seeds": "no seeds are left", "time": "the minutes are used up",
             "unsafe": "no policy arrives with each seed", "noise": "the seeds differ too much"}  # fmt: skip
AGREES = 0.15  # share by which measured seconds may differ from the predicted seconds
PAIRED = ["predicted_s", "predicted_pushes", "measured_s", "measured_pushes"]
#: With these fields, runs that differ only in seed and budget are equal.
ENDLESS: dict[str, Any] = {"seed": 0, "pushes": 1, "seconds": None}


@dataclass(frozen=True)
class Advice:
    """The answer of `advise`, computed from the records of its runs.

    A notebook shows it as a card. Paste `run` into a cell to use the answer. `table` compares all policies; `why`
    splits the difference between the advised policy and the default into pieces.
    """

    run: Run  #: the base with the advised policy
    answer: RaceAnswer  #: the outcome of the race, with each policy's standing
    target: float
    results: pd.DataFrame  #: all finished runs of the race, with a column `policy`
    refused: Mapping[str, str]  #: by policy that cannot run, the reason
    cost: Mapping[str, float]  #: the numbers of runs and of gradients, and the seconds that the call took
    notes: Sequence[str] = ()  #: further remarks on this answer
    merit: Merit = SECONDS  #: the quantity by which the policies are compared
    _runs: Mapping[str, Run] = field(default_factory=dict, repr=False)  # by policy: in virtual time, at its best rate
    _place: Path | None = field(default=None, repr=False)

    @property
    def default_policy(self) -> str:
        """The name of the base's policy in `table`."""
        return next(iter(self._runs))

    @property
    def decided(self) -> bool:
        """Whether the runs suffice to decide for one policy, or for a tie."""
        return self.answer.decided

    @cached_property
    def table(self) -> pd.DataFrame:
        """Return a row for each policy, the soonest first.

        Columns: learning_rate (the best one tried), seeds (their number), arrived (how many of them hold the target),
        held_s, held_bytes or held_pushes (by `merit`: the median over seeds; NaN unless more than half of them hold
        it), low, high, ratio (to the soonest policy on each seed, geometric mean), at_least (whether `ratio` is a lower
        bound), chance (the probability of being the best or within a tie of it), alive (whether the policy could still
        win at the end).
        """
        needs = (self.merit.measure, "low", "high")
        return pd.DataFrame([{
            "policy": standing.policy, "learning_rate": standing.learning_rate, "seeds": len(standing.needs),
            "arrived": len(standing.arrived), **dict(zip(needs, over_seeds(standing.needs.values()), strict=True)),
            "ratio": standing.ratio, "at_least": standing.capped, "chance": standing.chance, "alive": standing.alive}
            for standing in self.answer.standings]).set_index("policy")  # fmt: skip

    @cached_property
    def why(self) -> pd.DataFrame:
        """Return the difference between the winner and the default in pieces; see `why` of pslab.lab.advise.why."""
        return why(self.default, self.winner, self.target, self.merit)

    @cached_property
    def default(self) -> list[Result]:
        """Return the runs of the default policy at its best rate that hold the target, one for each seed."""
        return self._holding(self.default_policy)

    @cached_property
    def winner(self) -> list[Result]:
        """Return the runs of the advised policy that hold the target, one for each seed."""
        return self._holding(self.answer.policy, ranges=self.run.ranges, order=self.run.order)

    def _holding(self, policy: str, **path: Any) -> list[Result]:
        results = self._longest({policy: self._runs[policy].but(**path)}).values()
        return [result for result in results if math.isfinite(held(result, self.target)[0])]

    @cached_property
    def best(self) -> pd.DataFrame:
        """Return a table with the longest run of each policy and seed, at the policy's best learning rate. Runs that
        were too slow to win were stopped early."""
        longest = self._longest(self._runs)
        whole = [replace(result, run=self._runs[policy].but(seed=seed)) for (policy, seed), result in longest.items()]
        return table(whole, [{"policy": policy} for policy, _ in longest], {"policy": list(self.table.index)})

    def _longest(self, runs: Mapping[str, Run]) -> dict[tuple[str, int], Result]:
        """Return, by policy and seed, the longest result that differs from the policy's run only in seed and budget."""
        longest: dict[tuple[str, int], Result] = {}
        for policy, result in zip(self.results.policy, self.results.result, strict=True):
            if policy in runs and result.run.but(**ENDLESS) == runs[policy].but(**ENDLESS):
                before = longest.setdefault((policy, result.run.seed), result)
                longest[policy, result.run.seed] = max(before, result, key=lambda other: other.seconds)
        return longest

    @property
    def words(self) -> str:
        """The answer in one or two sentences."""
        ending, best, usual = self.answer.ending, *map(self.answer.standing, (self.answer.policy, self.default_policy))
        text = self.merit.text
        reached = f"{metric_of(self.run).goal(self.target, SPACE)} after {text(self._median(self.winner))}"
        path = [f"{field} {value}" for field in ("ranges", "order")  # the search has added them
                if (value := getattr(self.run, field)) != getattr(self._runs[best.policy], field)]  # fmt: skip
        first = ", ".join([best.policy, f"learning rate {best.learning_rate:g}", *path])
        other = best.policy != self.default_policy
        lost = f"; the default holds it with {len(usual.arrived)} of {len(usual.needs)} seeds" if usual.unsafe else ""
        all_of_them, tried = len(self.answer.standings), sum(bool(standing.needs) for standing in self.answer.standings)
        if ending == "time" and not other and tried < min(2, all_of_them):
            minutes = self.cost["seconds"] / 60
            return (f"no answer yet: {minutes:.2g} minutes sufficed for {tried} of {all_of_them} policies, the "
                    f"default: {first} holds {reached}. Give minutes={5 * math.ceil(minutes)}")  # fmt: skip
        if ending == "tie":
            others = " and ".join(name for name in self.answer.among if name != best.policy)
            text_ = f"a tie of {best.policy} and {others}: take {first}, the simplest; it holds {reached}"
        elif self.decided:
            among = " of the policies that hold it with every seed" if other and lost else ""
            sure = "" if math.isnan(best.chance) else f", sure to {_percent(best.chance)}{among}"
            text_ = f"{first}: holds {reached}{sure}"
        else:
            open_ = f" between {' and '.join(self.answer.among)}" if len(self.answer.among) > 1 else ""
            text_ = f"not decided{open_} ({UNDECIDED[ending]}); soonest so far is {first}: {reached}"
        if not other:
            return text_
        if lost or not self.default:
            return text_ + lost
        facts = self.why.attrs  # its values are means over the common seeds; the medians are over all seeds
        need, before = (text(facts[f"{who}_need"], facts["default_need"]) for who in ("winner", "default"))
        common = f"{facts['seeds']} common seed{'s' * (facts['seeds'] > 1)}"
        return (f"{text_}, {self._compared()} the default ({text(self._median(self.default))}). On average over "
                f"{common} {need} instead of {before}, {sentence(self.why)}")  # fmt: skip

    def _median(self, results: Sequence[Result]) -> float:
        return over_seeds(measured(result, self.merit.measure, self.target) for result in results)[0]

    def _compared(self) -> str:
        """Return how the winner compares with the default: ``"1.5 times as soon as"``, a mean over common seeds."""
        needs, before = ({result.run.seed: measured(result, self.merit.measure, self.target) for result in results}
                       for results in (self.winner, self.default))  # fmt: skip
        ratio = math.exp(float(np.mean([math.log(before[seed] / needs[seed]) for seed in needs if seed in before])))
        if round(ratio, 1) == 1:
            return f"about {self.merit.same}"
        if self.merit is SECONDS:
            return f"{ratio:.2g} times as soon as"
        return f"{_percent(1 / ratio)} of the {self.merit.name} of"

    def __repr__(self) -> str:
        return f"<Advice {'' if self.decided else 'un'}decided: {self.words}>"

    def _repr_html_(self) -> str:
        table = self.shown.to_html(index=False, border=0).replace("<table", "<table cellpadding='4'", 1)
        paste = html.escape(repr(self.run))
        remarks = "".join(f"<p style='opacity:.8'>{html.escape(remark)}</p>" for remark in self.remarks)
        return f"<p><b>{html.escape(self.words)}</b></p>{table}<p><code>{paste}</code></p>{remarks}"

    @property
    def shown(self) -> pd.DataFrame:
        """`table` with titles, and values with units."""
        least = "times the soonest" if self.merit is SECONDS else "times the least"
        whole = self.decided or all(standing.needs for standing in self.answer.standings)  # else no chance is known
        return pd.DataFrame([{
            "policy": standing.policy, "learning rate": f"{standing.learning_rate:g}" if standing.arrived else DASH,
            "seeds that hold it": f"{len(standing.arrived)} of {len(standing.needs)}",
            "held after": DASH if math.isnan(need := over_seeds(standing.needs.values())[0]) else self.merit.text(need),
            least: f"{'≥ ' if standing.capped else ''}{standing.ratio:.2f}" if standing.needs else "not tried",
            "best or as good": _percent(standing.chance) if standing.needs and whole and not math.isnan(standing.chance)
            else DASH}
            for standing in self.answer.standings])  # fmt: skip

    @property
    def remarks(self) -> list[str]:
        """Return remarks on the answer: rates at an end of their grid, unsafe and refused policies, noise, costs."""
        lines = list(self.notes)
        ends = [standing.policy for standing in self.answer.standings if standing.alive and standing.at_end]
        lines += [f"the best learning rate tried lies at an end of the grid of {', '.join(ends)}"] if ends else []
        lines += [f"{standing.policy} is not safe: {len(standing.arrived)} of {len(standing.needs)} seeds arrive"
                  for standing in self.answer.standings if standing.unsafe]  # fmt: skip
        if self.answer.ending == "noise":
            lines.append(f"needs differ by {_percent(self.answer.noise)} beyond the effects of policy and seed: "
                         f"above {_percent(LOUD)} so few seeds do not suffice to decide")  # fmt: skip
        if self.refused:
            lines.append("cannot be run: " + "; ".join(f"{name} ({why})" for name, why in self.refused.items()))
        read = ("best or as good: the chance to be the best or within a tie of it; ratios are to the soonest with each "
                "seed, in the geometric mean; held after: the median of all seeds")  # fmt: skip
        return [*lines, f"{read}; {self.cost['runs']:.0f} runs, {self.cost['gradients']:.0f} gradients"]

    def verify(self, top: int = 3, seeds: Sequence[int] = (0, 1), *, progress: bool | None = None) -> pd.DataFrame:
        """Run the `top` soonest policies and the default on real processes; return their measured and predicted times.

        Columns: learning_rate; seeds (how many hold the target both in virtual time and on real processes); predicted_s
        and measured_s (means over these seeds); ratio (measured / predicted); pushes_ratio (the same ratio of pushes);
        dilation (the largest of the runs); emulation_ok; verdict. The verdict is "agrees" if the times differ by at
        most 15 %, or by two standard deviations over the race's seeds; else "differs". It begins with "cannot tell" if
        the emulation was not kept, or if no seed holds the target in both.

        Raises: the errors of `sweep`.
        """
        safe = [other.policy for other in self.answer.standings if other.arrived and not other.unsafe]
        rows = []
        for name in dict.fromkeys([*safe[:top], self.default_policy]):
            virtual = self._runs[name]
            predicted = sweep([virtual.but(seed=seed) for seed in seeds], results=self._place, progress=progress)
            need = [held(result, self.target) for result in predicted]
            most = max((pushes for _, pushes in need if math.isfinite(pushes)), default=math.inf)
            most = min(float(virtual.pushes or 0), LONGER * most + 3 * (virtual.eval_every or 0))  # 3: for the median
            # evaluated after the run, so that evaluations do not slow it down
            real = virtual.but(engine="local", cluster=self.run.cluster, pushes=math.ceil(most), target_held=False,
                               target_accuracy=None)  # fmt: skip
            made = sweep([real.but(seed=seed) for seed in seeds], results=self._place, progress=progress)
            pairs = [(*before, *held(result, self.target)) for before, result in zip(need, made, strict=True)]
            both = pd.DataFrame(pairs, columns=PAIRED).replace(math.inf, math.nan).dropna()
            mean, emulated = both.mean(), all(result.emulation_ok for result in made)
            spread_s = np.std([held(result, self.target)[0] for result in self._holding(name)] or [0.0])
            close = abs(mean.measured_s - mean.predicted_s) <= max(AGREES * mean.predicted_s, 2 * spread_s)
            verdict = ("cannot tell: the emulation was not kept" if not emulated else
                       "cannot tell: no seed holds the target on both" if both.empty else
                       "agrees" if close else "differs")  # fmt: skip
            rows.append({
                "policy": name, "learning_rate": virtual.learning_rate, "seeds": len(both),
                "predicted_s": mean.predicted_s, "measured_s": mean.measured_s,
                "ratio": mean.measured_s / mean.predicted_s,
                "pushes_ratio": mean.measured_pushes / mean.predicted_pushes,
                "dilation": max(float(result.manifest.get("dilation", 1.0)) for result in made),
                "emulation_ok": emulated, "verdict": verdict})  # fmt: skip
        return pd.DataFrame(rows).set_index("policy")


def _percent(share: float) -> str:
    return f"{100 * share:.0f}{SPACE}%"
