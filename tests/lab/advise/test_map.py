"""A map computes where policies are near each other, and predicts the rest."""

from __future__ import annotations

import math
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import handmade
import numpy as np
import pytest
from atlas import atlas, taken
from tiny import tiny

from pslab.config.run import Run
from pslab.errors import ConfigError
from pslab.lab.advise import map as maps
from pslab.lab.advise.map import CAPPED, COMPUTED, PREDICTED, advise_map
from pslab.lab.records import journal
from pslab.lab.records.results import Results

MINE: dict[str, Any] = {"preset": "lab", "bandwidth_bit_s": 1e7}
BASE = tiny(cluster=MINE, workers=2, pushes=40, learning_rate=0.1, keep_weights=False)
FAR = {"bandwidth_bit_s": [4e6, 2e7, 1e8, 5e8, 2e9], "spread": {h: {"slow": {0: h}} for h in (1.0, 2.0, 3.0, 4.0, 5.0)}}
SPACE = {"policy": {"asp": {"sync": "asp", "prune": "static:1%"}, "ssp": {"sync": "ssp:3", "prune": "static:1%"}}}
POLICIES = [("asp", "none"), ("asp", "static:1%"), ("ssp:3", "static:1%")]
ANCHORS = {*product((4e6, 2e9), (1.0, 5.0)), (1e8, 3.0)}


class Imagined:
    """Runs that take what `taken` says; it is held after 30 of 40 pushes, with the highest rate alone."""

    def __init__(self, learns: float = 0.2) -> None:
        self.learns, self.runs = learns, list[Run]()

    def __call__(self, runs: Any, **how: Any) -> Results:
        self.runs += runs
        return Results([self._result(each) for each in runs])

    def _result(self, each: Run) -> Any:
        cluster = dict(each.cluster)  # type: ignore[arg-type]
        push_s = taken(str(each.sync), str(each.prune), cluster["bandwidth_bit_s"], cluster["slow"][0]) / 40
        pushes = min(each.pushes or 0, int((each.seconds or math.inf) / push_s) if each.seconds else 10**9)
        at = np.linspace(0, pushes, 9)
        accuracy = np.interp(at, [0, 30, 40], [0.1, 0.9, 0.95] if each.learning_rate == self.learns else [0.1] * 3)
        return handmade.curve(None, each.but(pushes=max(1, pushes)), accuracy.tolist(), (push_s * at).tolist())


@pytest.fixture
def imagined(monkeypatch: pytest.MonkeyPatch) -> Imagined:
    made = Imagined()
    monkeypatch.setattr(maps, "sweep", made)
    return made


def surveyed(**changed: Any) -> maps.Map:
    """The map of three policies on 25 clusters."""
    return advise_map(BASE.but(sync="asp"), **{"target": 0.9, "seeds": (0, 1), "space": SPACE, **FAR, **changed})


# -- what is run -----------------------------------------------------------------------------------


def test_every_cell_whose_two_soonest_are_near_each_other_is_computed_and_no_other_but_the_anchors(imagined: Imagined):
    found = surveyed()
    computed = 0
    for (bandwidth, spread), own in found.table.groupby(["bandwidth_bit_s", "spread"]):
        first, second, _ = sorted(taken(*policy, bandwidth, spread) for policy in POLICIES)
        near = math.log(second / first) < 2 * maps.LEAST_SIGMA
        (how,) = found.winner[(found.winner.bandwidth_bit_s == bandwidth) & (found.winner.spread == spread)].how
        assert how == (COMPUTED if near or (bandwidth, spread) in ANCHORS else PREDICTED)
        computed += near and (bandwidth, spread) not in ANCHORS
        assert own.seconds.min() == pytest.approx(0.75 * first, rel=1e-6)  # and the prediction is right
    assert 0 < computed < 20


def test_each_rate_is_tried_with_the_first_seed_at_the_anchors_and_the_best_goes_on(imagined: Imagined):
    surveyed(minutes=0)
    tried = Counter((each.learning_rate, each.seed) for each in imagined.runs if each.pushes == 40)
    assert tried[0.05, 0] == tried[0.1, 0] == tried[0.2, 0] == 3 * 5
    assert tried[0.4, 0] == 3 * 5  # the best one lay at an end
    assert not tried[0.8, 0] + tried[0.05, 1] + tried[0.1, 1] + tried[0.4, 1]
    each_s = [[taken(*policy, *anchor) for policy in POLICIES] for anchor in ANCHORS]
    near = sum(seconds <= maps.CAP * min(own) for own in each_s for seconds in own)
    assert tried[0.2, 1] == near < 3 * 5  # what is far from the soonest has one seed


def test_a_third_axis_has_corners_of_its_own_and_stands_in_the_table(imagined: Imagined):
    few = {name: (values if isinstance(values, list) else [*values.items()])[::4] for name, values in FAR.items()}
    found = surveyed(minutes=0, **{**few, "spread": dict(few["spread"])}, latency_s=[0.0, 1e-3])
    assert found.table.attrs["axes"] == ["bandwidth_bit_s", "spread", "latency_s"]
    assert len(found.winner) == 2 * 2 * 2
    assert (found.winner.how == COMPUTED).all()  # each is a corner
    assert {each.cluster["latency_s"] for each in imagined.runs} == {0.0, 1e-3}  # type: ignore[index]
    assert found.regret.columns.names == found.table.attrs["axes"]


def test_runs_end_at_a_few_times_the_soonest_of_their_cell_and_seed(imagined: Imagined):
    surveyed()
    later = [each for each in imagined.runs if each.pushes == 40 and each.seed == 1]
    assert later
    for each in later:
        cluster: Any = each.cluster
        soonest = min(taken(*policy, cluster["bandwidth_bit_s"], cluster["slow"][0]) for policy in POLICIES)
        assert 0.75 * maps.CAP * soonest <= each.seconds < 0.755 * maps.CAP * soonest


def test_time_that_is_up_leaves_cells_predicted_and_says_so(imagined: Imagined):
    found = surveyed(minutes=0)
    assert "time was up before" in found.table.attrs["caption"][-1]
    assert (found.winner.how == COMPUTED).sum() == 5
    assert "time was up" not in surveyed().table.attrs["caption"][-1]


def test_a_goal_that_no_policy_holds_is_refused_with_the_best_evaluation(imagined: Imagined):
    imagined.learns = 7.0
    with pytest.raises(ConfigError, match=r"no policy holds it within 40 pushes; the best evaluation is 10\.00%"):
        surveyed()


def test_a_small_map_of_real_runs_reads_its_records_when_it_is_asked_again(tmp_path: Path, monkeypatch):
    base = tiny(cluster=MINE, workers=2, pushes=32, learning_rate=0.2, keep_weights=False, eval_every=4)
    how: dict[str, Any] = {"target": 0.3, "seeds": [0], "learning_rates": [0.4], "results": tmp_path, "progress": False,
                           "space": {"policy": {"asp": {"sync": "asp", "prune": "static:5%"}}},
                           "bandwidth_bit_s": [1e6, 1e8], "spread": {1.0: {"slow": {}}, 3.0: {"slow": {0: 3.0}}}}
    found = advise_map(base, **how)
    assert {*found.table.how} <= {COMPUTED, CAPPED}  # each cell is a corner
    slow = found.results.where(policy="BSP, dense", bandwidth_bit_s=1e6, spread=1.0)[0]
    assert slow.run.cluster == {**MINE, "bandwidth_bit_s": 1e6, "slow": {}}
    (row,) = found.table[(found.table.policy == "BSP, dense") & (found.table.bandwidth_bit_s == 1e6)
                         & (found.table.spread == 1.0)].itertuples()
    assert row.how == CAPPED or row.seconds == pytest.approx(maps.held(slow, 0.3)[0], rel=1e-12)
    monkeypatch.setenv(journal.JOURNAL, str(tmp_path / "journal"))
    assert advise_map(base, **how).table.equals(found.table)
    assert {*journal.collected(journal.entries(tmp_path / "journal"), "missing")} == {0}


# -- what is asked ---------------------------------------------------------------------------------


def test_without_axes_bandwidths_lie_around_the_base_and_speeds_are_spread_over_all_workers():
    cells = maps._cells(BASE.but(workers=3), maps._default_axes(BASE.but(workers=3)))
    assert len(cells) == 30
    assert [*dict.fromkeys(bandwidth for bandwidth, _ in cells)] == [3.7e5, 1.1e6, 3.3e6, 1e7, 3e7, 9e7]
    cluster: Any = cells[1e7, 3.0].cluster
    assert cluster["slow"] == {0: 3.0, 1: pytest.approx(math.sqrt(3.0))}
    assert cells[1e7, 1.0].cluster["slow"] == {}  # type: ignore[index]


@pytest.mark.parametrize(("changed", "axes", "words"), [
    ({"cluster": "free"}, {}, "needs a modelled cluster to begin with"),
    ({"pushes": None, "seconds": 1.0}, {}, "a map needs a budget"),
    ({"workers": 1}, {}, "workers=1: the speeds of one worker have no spread"),
    ({}, {"bandwidth_bit_s": [1e6]}, "a map has two axes"),
    ({}, {"bandwith_bit_s": [1e6], "latency_s": [0.0]}, "did you mean 'bandwidth_bit_s'"),
    ({}, {"bandwidth_bit_s": 1e6, "latency_s": [0.0]}, "must be a list of values"),
    ({}, {"seed": {"a": {"latency_s": 0.0}}, "latency_s": [0.0]}, "is a field of Run"),
    ({}, {"target": 1.5}, "target_accuracy=1.5"),
])  # fmt: skip
def test_what_is_no_map_is_refused_before_a_run(imagined: Imagined, changed: dict, axes: dict, words: str):
    with pytest.raises(ConfigError, match=words):
        advise_map(BASE.but(**changed), **{"target": 0.9, **axes})
    assert not imagined.runs


# -- what it says ----------------------------------------------------------------------------------


def test_a_winner_is_the_soonest_with_its_ties_and_the_best_everywhere_has_the_least_worst_regret():
    found = atlas()
    cell = found.winner[(found.winner.bandwidth_bit_s == 1.2e7) & (found.winner.spread == 1.5)].iloc[0]
    seconds = {pair: taken(*pair, 1.2e7, 1.5) for pair in (("bsp", "none"), ("asp", "static:1%"), ("bsp", "static:1%"))}
    assert cell.policy == "ASP, static 1\u00a0%"
    assert cell.sooner == pytest.approx(seconds["bsp", "none"] / seconds["asp", "static:1%"])
    assert cell.ties == ("BSP, static 1\u00a0%",)
    assert found.best_everywhere == "ASP, static 1\u00a0%" == found.regret.index[0]
    assert found.regret.index[-1] == "ASP, dense"  # does not arrive on slow links
    assert found.words == ("ASP, static 1\u00a0% never takes more than 1.30 times the soonest; ASP, dense does "
                           "not arrive everywhere")  # fmt: skip


def test_a_policy_that_wins_each_cell_is_said_to_be_the_soonest_everywhere():
    found = atlas(policies=[("bsp", "none"), ("bsp", "static:1%")], bandwidths=[4e6, 1.2e7], spreads=[1.0])
    assert found.words.startswith("BSP, static 1\u00a0% is the soonest everywhere; BSP, dense takes up to")


def test_a_default_that_does_not_arrive_is_at_least_so_much_later():
    found = atlas(policies=[("asp", "none"), ("bsp", "static:1%")], bandwidths=[4e6, 1e9], spreads=[1.0])
    first, second = found.winner.itertuples()
    assert (first.at_least, second.at_least) == (True, False)
    assert first.sooner == pytest.approx(0.4 * taken("asp", "none", 4e6, 1.0) / taken("bsp", "static:1%", 4e6, 1.0))
    assert CAPPED in {*found.table.how}
