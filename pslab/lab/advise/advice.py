"""The answer of `advise`: which policy, why, and how sure that is; and its verification on real processes."""

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
from pslab.lab.advise.race import LOUD, RaceAnswer, Standing
from pslab.lab.advise.why import by_choice, sentence, why
from pslab.lab.records.frames import table
from pslab.lab.records.merit import SECONDS, Merit
from pslab.lab.records.record import Result
from pslab.lab.records.summary import held, measured, over_seeds
from pslab.lab.records.units import DASH, SPACE
from pslab.lab.runs.run import sweep

LONGER = 1.5  # of the pushes that virtual time needs, what real processes have at most
UNDECIDED = {"seeds": "no seeds are left", "time": "the minutes are used up",
             "unsafe": "no policy arrives with each seed", "noise": "the seeds differ too much"}  # fmt: skip
AGREES = 0.15  # share by which seconds on real processes may differ from the predicted ones
ENDLESS: dict[str, Any] = {"pushes": 1, "seconds": None}  # what two runs have that differ in their ends alone


@dataclass(frozen=True)
class Advice:
    """The answer of `advise`, from records alone.

    In a notebook it is a card; `run` is what to paste, `table` what was compared, `why` the pieces of the difference.
    """

    run: Run  #: the base with the policy that is advised
    answer: RaceAnswer  #: of the race: each policy's standing, and how it ended
    target: float
    results: pd.DataFrame  #: all finished runs of the race, with a column `policy`
    refused: Mapping[str, str]  #: what cannot be run, and the sentence that says why
    default: Sequence[Result]  #: the runs of the default policy at its best rate
    winner: Sequence[Result]  #: those of the advised one, on the same seeds
    cost: Mapping[str, float]  #: runs, gradients, seconds that they took now, share of what exhaustive search takes
    notes: Sequence[str] = ()  #: what else is to be known of this answer
    merit: Merit = SECONDS  #: what the policies are compared by
    alone: Sequence[Result] = ()  #: the single machine at its best rate; none undecided
    _runs: Mapping[str, Run] = field(default_factory=dict, repr=False)  # in virtual time, at each policy's best rate
    _place: Path | None = field(default=None, repr=False)

    @property
    def default_policy(self) -> str:
        """The policy of the base, in the words of the table."""
        return next(iter(self._runs))

    @property
    def decided(self) -> bool:
        """Whether the data decide: for one policy, or for a tie."""
        return self.answer.decided

    @cached_property
    def table(self) -> pd.DataFrame:
        """A row for each policy, the soonest first: learning_rate, seeds, arrived, held_s (or held_bytes, held_pushes:
        the median over seeds; NaN unless more than half arrive), low, high, ratio (to the soonest on each seed, by the
        geometric mean; at least that much where `at_least`), chance (that it is the best, or within a tie of it),
        alive."""
        return pd.DataFrame([_row(each, self.merit) for each in self.answer.standings]).set_index("policy")

    @cached_property
    def why(self) -> pd.DataFrame:
        """The pieces by which the advised policy needs more or less than the default, and what fresher gradients could
        save at most; see pslab.lab.advise.why."""
        return why(self.default, self.winner, self.target, self.merit, self.alone)

    @cached_property
    def choices(self) -> pd.DataFrame:
        """The way from the default to the advised policy, one choice after another, as far as those between were tried;
        see `by_choice` in pslab.lab.advise.why. `plots.why` draws it, too."""
        ends = self._runs[self.default_policy], self._runs[self.answer.policy]
        return by_choice(self.best, *ends, self.target, self.merit)

    @cached_property
    def best(self) -> pd.DataFrame:
        """Each policy at its best learning rate, as far as its runs went: those that were too late had been ended."""
        found = self._longest
        whole = [replace(result, run=self._runs[policy].but(seed=seed)) for (policy, seed), result in found.items()]
        return table(whole, [{"policy": policy} for policy, _ in found], {"policy": list(self.table.index)})

    @cached_property
    def _longest(self) -> dict[tuple[str, int], Result]:
        """By policy and seed, the run at its best learning rate that went furthest."""
        found: dict[tuple[str, int], Result] = {}
        for policy, result in zip(self.results.policy, self.results.result, strict=True):
            run = result.run
            if run.but(**ENDLESS) == self._runs[policy].but(seed=run.seed, **ENDLESS):
                longer = found.setdefault((policy, run.seed), result)
                found[policy, run.seed] = max(result, longer, key=lambda each: each.seconds)
        return found

    @property
    def words(self) -> str:
        """The answer in a sentence or two."""
        best, text = self.answer.standing(self.answer.policy), self.merit.text
        goal, needed = metric_of(self.run).goal(self.target, SPACE), text(self._median(self.winner))
        first = ", ".join([best.policy, f"learning rate {best.learning_rate:g}", *self._path])
        ending, all_of_them = self.answer.ending, len(self.answer.standings)
        other, usual = best.policy != self.default_policy, self.answer.standing(self.default_policy)
        lost = f"; the default holds it with {len(usual.arrived)} of {len(usual.needs)} seeds" if usual.unsafe else ""
        tried = sum(bool(each.needs) for each in self.answer.standings)
        if ending == "time" and not other and tried < min(2, all_of_them):
            minutes = self.cost["seconds"] / 60
            return (f"no answer yet: {minutes:.2g} minutes sufficed for {tried} of {all_of_them} policies, the "
                    f"default: {first} holds {goal} after {needed}. Give minutes={5 * math.ceil(minutes)}")  # fmt: skip
        if ending == "tie":
            others = " and ".join(name for name in self.answer.among if name != best.policy)
            said = f"a tie of {best.policy} and {others}: take {first}, the simplest; it holds {goal} after {needed}"
        elif self.decided:
            among = " of the policies that hold it with every seed" if other and lost else ""
            sure = "" if math.isnan(best.chance) else f", sure to {_percent(best.chance)}{among}"
            said = f"{first}: holds {goal} after {needed}{sure}"
        else:
            open_ = f" between {' and '.join(self.answer.among)}" if len(self.answer.among) > 1 else ""
            said = f"not decided{open_} ({UNDECIDED[ending]}); soonest so far is {first}: {goal} after {needed}"
        if other and lost:
            return said + lost
        if other and len(self.default):
            said += f", {self._compared()} the default ({text(self._median(self.default))})"
            if len(self.why):
                said += f". {self._means} {sentence(self.why)}"
        return said

    @property
    def _means(self) -> str:
        """The seeds that the pieces are of, and their means: other numbers than the medians of all seeds."""
        facts = self.why.attrs
        before, needed = (self.merit.text(facts[f"{who}_need"], facts["default_need"]) for who in ("default", "winner"))
        return f"On average over {facts['seeds']} common seed{'s' * (facts['seeds'] > 1)} {needed} instead of {before},"

    @property
    def _path(self) -> list[str]:
        """The ranges and the order of requests that it is advised with, where these are not the policy's."""
        own = self._runs[self.answer.policy]
        return [f"{field} {value}" for field in ("ranges", "order")
                if (value := getattr(self.run, field)) != getattr(own, field)]  # fmt: skip

    def _median(self, results: Sequence[Result]) -> float:
        return over_seeds(measured(result, self.merit.measure, self.target) for result in results)[0]

    def _compared(self) -> str:
        """How the advised policy stands beside the default: in the geometric mean over the seeds that both have."""
        own, before = ({result.run.seed: measured(result, self.merit.measure, self.target) for result in results}
                       for results in (self.winner, self.default))  # fmt: skip
        ratio = math.exp(float(np.mean([math.log(before[seed] / own[seed]) for seed in own if seed in before])))
        if round(ratio, 1) == 1:
            return f"about {self.merit.same}"
        if self.merit is SECONDS:
            return f"{ratio:.2g} times as soon as"
        return f"{_percent(1 / ratio)} of the {self.merit.name} of"

    def __repr__(self) -> str:
        return f"<Advice {'' if self.decided else 'un'}decided: {self.words}>"

    def _repr_html_(self) -> str:
        """A card for a notebook: the sentence, the table, what to paste."""
        table = self.shown.to_html(index=False, border=0).replace("<table", "<table cellpadding='4'", 1)
        paste = html.escape(repr(self.run))
        remarks = "".join(f"<p style='opacity:.8'>{html.escape(each)}</p>" for each in self.remarks)
        return f"<p><b>{html.escape(self.words)}</b></p>{table}<p><code>{paste}</code></p>{remarks}"

    @property
    def shown(self) -> pd.DataFrame:
        """The table as a person reads it."""
        least = "times the soonest" if self.merit is SECONDS else "times the least"
        return pd.DataFrame([{
            "policy": each.policy, "learning rate": f"{each.learning_rate:g}" if each.arrived else DASH,
            "seeds that hold it": f"{len(each.arrived)} of {len(each.needs)}",
            "held after": DASH if math.isnan(need := over_seeds(each.needs.values())[0]) else self.merit.text(need),
            least: f"{'≥ ' if each.capped else ''}{each.ratio:.2f}" if each.needs else "not tried",
            "best or as good": "" if math.isnan(each.chance) or not each.needs else _percent(each.chance)}
            for each in self.answer.standings])  # fmt: skip

    @property
    def remarks(self) -> list[str]:
        """Return remarks: costs, rates at an end of their grid, unsafe and refused policies."""
        found = list(self.notes)
        ends = [each.policy for each in self.answer.standings if each.alive and each.at_end]
        found += [f"the best learning rate tried lies at an end of the grid of {', '.join(ends)}"] if ends else []
        if len(self.alone) and (floor := self.why.attrs["floor"]):
            found.append(floor)
        found += [f"{each.policy} is not safe: {len(each.arrived)} of {len(each.needs)} seeds arrive"
                  for each in self.answer.standings if each.unsafe]  # fmt: skip
        if self.answer.ending == "noise":
            found.append(f"needs differ by {_percent(self.answer.noise)} in ways that no policy or seed explains: "
                         f"above {_percent(LOUD)} so few seeds decide nothing")  # fmt: skip
        if self.refused:
            found.append("cannot be run: " + "; ".join(f"{name} ({why})" for name, why in self.refused.items()))
        read = ("best or as good: the chance to be the best or within a tie of it; ratios are to the soonest with each "
                "seed, in the geometric mean; held after: the median of all seeds")  # fmt: skip
        return [*found, f"{read}; {self.cost['runs']:.0f} runs, {self.cost['gradients']:.0f} gradients"]

    def verify(self, top: int = 3, seeds: Sequence[int] = (0, 1), *, progress: bool | None = None) -> pd.DataFrame:
        """Run the soonest policies and the default on real processes: a row each, beside the predictions.

        Columns: learning_rate, seeds (that hold the target on both), predicted_s and measured_s (their means), ratio,
        pushes_ratio, dilation, emulation_ok, verdict: agrees (within 15 %, or two deviations of the seeds of the race),
        differs, or cannot tell, where the emulation was not kept or no seed holds the target on both.

        Raises:
            What `sweep` raises.
        """
        soonest = [each.policy for each in self.answer.standings if each.arrived and not each.unsafe][:top]
        rows = []
        for name in dict.fromkeys([*soonest, self.default_policy]):
            alone = self._runs[name]
            predicted = sweep([alone.but(seed=seed) for seed in seeds], results=self._place, progress=progress)
            need = [held(result, self.target) for result in predicted]
            most = max((pushes for _, pushes in need if math.isfinite(pushes)), default=math.inf)
            most = min(float(alone.pushes or 0), LONGER * most + 3 * (alone.eval_every or 0))  # of which it is held
            real = alone.but(engine="local", cluster=self.run.cluster, pushes=math.ceil(most), target_accuracy=None,
                             target_held=False)  # which is evaluated after it, and disturbs nothing
            found = sweep([real.but(seed=seed) for seed in seeds], results=self._place, progress=progress)
            arrived = [at_s for (policy, _), result in self._longest.items()
                       if policy == name and math.isfinite(at_s := held(result, self.target)[0])]  # fmt: skip
            spread_s = float(np.std(arrived or (0.0,)))
            verdict = _verdict(need, found, self.target, 2 * spread_s)
            rows.append({"policy": name, "learning_rate": alone.learning_rate, **verdict})
        return pd.DataFrame(rows).set_index("policy")


def _verdict(
    need: Sequence[tuple[float, float]], real: Sequence[Result], target: float, spread_s: float
) -> dict[str, Any]:
    """Compare the prediction for some seeds, as (seconds, pushes), with their runs on real processes."""
    took = [held(result, target) for result in real]
    both = [np.array(pair) for pair in zip(need, took, strict=True) if math.isfinite(pair[0][0] + pair[1][0])]
    kept = all(result.emulation_ok for result in real)
    means = np.mean(both, axis=0) if both else np.full((2, 2), math.nan)  # [predicted, measured], [seconds, pushes]
    (predicted_s, _), (measured_s, _) = means
    close = abs(measured_s - predicted_s) <= max(AGREES * predicted_s, spread_s)
    verdict = "agrees" if close else "differs"
    if not kept or not both:
        verdict = "cannot tell: " + ("no seed holds the target on both" if kept else "the emulation was not kept")
    return {"seeds": len(both), "predicted_s": predicted_s, "measured_s": measured_s,
            "ratio": measured_s / predicted_s, "pushes_ratio": means[1, 1] / means[0, 1],
            "dilation": max(float(result.manifest.get("dilation", 1.0)) for result in real), "emulation_ok": kept,
            "verdict": verdict}  # fmt: skip


def _row(each: Standing, merit: Merit) -> dict[str, Any]:
    middle, low, high = over_seeds(each.needs.values())
    return {"policy": each.policy, "learning_rate": each.learning_rate, "seeds": len(each.needs),
            "arrived": len(each.arrived), merit.measure: middle, "low": low, "high": high, "ratio": each.ratio,
            "at_least": each.capped, "chance": each.chance, "alive": each.alive}  # fmt: skip


def _percent(share: float) -> str:
    return f"{100 * share:.0f}{SPACE}%"
