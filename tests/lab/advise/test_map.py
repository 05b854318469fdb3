"""A map runs every policy on every cluster, ends what is too late, and says which is the soonest where."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import handmade
import numpy as np
import pandas as pd
import pytest
from atlas import atlas, taken
from tiny import tiny

from pslab.config.run import Run
from pslab.errors import ConfigError
from pslab.lab.advise import map as maps
from pslab.lab.advise.map import CAPPED, COMPUTED, LEFT, advise_map
from pslab.lab.plots.labels import name
from pslab.lab.records.frames import where
from pslab.lab.records.record import Result
from pslab.lab.records.summary import held

MINE: dict[str, Any] = {"preset": "lab", "bandwidth_bit_s": 1e7}
BASE = tiny(cluster=MINE, workers=2, pushes=40, learning_rate=0.1, keep_weights=False)
FAR = {"bandwidth_bit_s": [4e6, 2e7, 1e8, 5e8, 2e9], "spread": {h: {"slow": {0: h}} for h in (1.0, 2.0, 3.0, 4.0, 5.0)}}
SPACE = {"policy": {"asp": {"sync": "asp", "prune": "static:1%"}, "ssp": {"sync": "ssp:3", "prune": "static:1%"}}}
POLICIES = [("asp", "none"), ("asp", "static:1%"), ("ssp:3", "static:1%")]
SLOWER = 1.05  # runs of seed 1 take so many times as long as runs of seed 0
ANCHORS = {*product((4e6, 2e9), (1.0, 5.0)), (1e8, 3.0)}


class Imagined:
    """Runs that take what `taken` says; it is held after 30 of 40 pushes, with a cluster's best rate alone."""

    def __init__(self) -> None:
        self.best_rate: Callable[[float], float] = lambda bandwidth_bit_s: 0.2
        self.runs = list[Run]()

    def __call__(self, runs: Any, **how: Any) -> list[Result]:
        self.runs += runs
        return [self._result(each) for each in runs]

    def _result(self, each: Run) -> Any:
        cluster: Any = each.cluster
        whole_s = taken(str(each.sync), str(each.prune), cluster["bandwidth_bit_s"], cluster["slow"].get(0, 1.0))
        push_s = whole_s * SLOWER**each.seed / 40
        pushes = min(each.pushes or 0, int((each.seconds or math.inf) / push_s) if each.seconds else 10**9)
        at = np.linspace(0, pushes, 9)
        learns = each.learning_rate == self.best_rate(cluster["bandwidth_bit_s"])
        accuracy = np.interp(at, [0, 30, 40], [0.1, 0.9, 0.95] if learns else [0.1] * 3)
        return handmade.curve(None, each.but(pushes=max(1, pushes)), accuracy.tolist(), (push_s * at).tolist())


@pytest.fixture
def imagined(monkeypatch: pytest.MonkeyPatch) -> Imagined:
    made = Imagined()
    monkeypatch.setattr(maps, "sweep", made)
    return made


def surveyed(**changed: Any) -> maps.Map:
    """The map of policies none of which is in rounds, on 25 clusters."""
    return advise_map(BASE.but(sync="asp"), **{"target": 0.9, "seeds": (0, 1), "space": SPACE, **FAR, **changed})


def test_every_cell_is_computed_with_every_seed_unless_it_takes_too_long(imagined: Imagined):
    found, runs = surveyed(), imagined.runs
    soonest = found.table.groupby(["bandwidth_bit_s", "spread"]).seconds.transform("min")
    assert {*found.table.how} == {COMPUTED, CAPPED}
    names = {", ".join((name("sync", sync), name("prune", prune))): (sync, prune) for sync, prune in POLICIES}
    for row, least in zip(found.table.itertuples(), soonest, strict=True):
        policy = names[row.policy]
        expected = 0.75 * taken(*policy, row.bandwidth_bit_s, row.spread)
        if row.how == CAPPED:
            assert math.isinf(row.seconds)
            assert expected > 0.8 * maps.CAP * least, "that it is held is known some evaluations later"
        else:
            assert row.seconds == pytest.approx(expected * math.sqrt(SLOWER), rel=0.1)
            assert (row.low * SLOWER, row.high) == pytest.approx((row.high, row.seconds * math.sqrt(SLOWER)))
    assert found.table.attrs["caption"][-1] == "25 cells computed"
    assert {each.seed for each in runs} == {0, 1}
    # rates are tried at the corners and the centre, and beyond while the best lies at an end
    cells = {(each.cluster["bandwidth_bit_s"], each.cluster["slow"][0]) for each in runs  # type: ignore[index]
             if each.learning_rate != 0.2}  # fmt: skip
    assert cells == ANCHORS
    assert {each.learning_rate for each in runs} == {0.05, 0.1, 0.2, 0.4}
    # runs end at a few times the soonest of their cell and seed
    later = [each for each in runs if each.seed == 1 and each.seconds is not None]
    assert later
    for each in later:
        cluster: Any = each.cluster
        times = [0.75 * taken(*policy, cluster["bandwidth_bit_s"], cluster["slow"][0]) for policy in POLICIES]
        assert any(each.seconds == pytest.approx(maps.CAP * seconds, rel=0.1) for seconds in times)


def test_a_cell_takes_the_best_rate_of_the_nearest_anchor_that_arrives(imagined: Imagined):
    """With a fast network a lower rate is the best; on the slowest no rate arrives."""
    imagined.best_rate = lambda bandwidth_bit_s: {4e6: 7.0, 2e9: 0.1}.get(bandwidth_bit_s, 0.2)
    surveyed(seeds=(0,))
    tried: dict[Any, set[float]] = defaultdict(set)
    for each in imagined.runs:
        cluster: Any = each.cluster
        if (each.sync, each.prune) == POLICIES[1]:  # which is soon enough not to be stopped
            tried[cluster["bandwidth_bit_s"], cluster["slow"].get(0, 1.0)].add(each.learning_rate)
    assert len(tried) == 25
    for (bandwidth, spread), rates in tried.items():
        column, row = FAR["bandwidth_bit_s"].index(bandwidth), [*FAR["spread"]].index(spread)
        to_centre, to_corners = math.hypot(column - 2, row - 2), math.hypot(4 - column, min(row, 4 - row))
        if (bandwidth, spread) not in ANCHORS:
            assert rates == {0.2 if to_centre < to_corners else 0.1}, (bandwidth, spread)


def test_time_that_is_up_leaves_cells_empty_and_a_goal_that_no_policy_holds_is_refused(imagined: Imagined):
    found = surveyed(minutes=1e-9)
    assert found.table.attrs["caption"][-1] == "time was up before 20 of 25 cells were computed"
    assert (found.winner.how == LEFT).sum() == 20
    assert not found.winner[found.winner.how == LEFT].policy.any()
    imagined.best_rate = lambda bandwidth_bit_s: 7.0
    with pytest.raises(ConfigError, match=r"no policy holds it within 40 pushes; the best evaluation is 10\.00%"):
        surveyed()


def test_a_small_map_of_real_runs_has_each_runs_own_seconds(tmp_path: Path):
    base = tiny(cluster=MINE, workers=2, pushes=32, learning_rate=0.2, keep_weights=False, eval_every=4)
    how: dict[str, Any] = {
        "target": 0.3, "seeds": [0], "learning_rates": [0.4], "results": tmp_path, "progress": False,
        "space": {"policy": {"asp": {"sync": "asp", "prune": "static:5%"}}}, "bandwidth_bit_s": [1e6, 1e8],
        "spread": {1.0: {"slow": {}}, 3.0: {"slow": {0: 3.0}}}}  # fmt: skip
    found = advise_map(base, **how)
    point: dict[str, Any] = {"policy": "BSP, dense", "bandwidth_bit_s": 1e8, "spread": 1.0}
    own = where(found.results, **point)
    (row,) = found.table[(found.table[[*point]] == pd.Series(point)).all(axis=1)].itertuples()
    assert own.run.iloc[0].cluster == {**MINE, "bandwidth_bit_s": 1e8, "slow": {}}
    assert row.seconds == pytest.approx(min(held(each, 0.3)[0] for each in own.result))
    assert (found.winner.how == COMPUTED).all()
    before = sorted((tmp_path / "runs").iterdir())
    assert advise_map(base, **how).table.equals(found.table)
    assert sorted((tmp_path / "runs").iterdir()) == before, "asked again it computes nothing"


def test_without_axes_bandwidths_lie_around_the_base_and_speeds_are_spread_over_all_workers(imagined: Imagined):
    found = advise_map(BASE.but(sync="asp", workers=3), target=0.9, seeds=(0,), space=SPACE)
    assert {*found.table.bandwidth_bit_s} == {3.7e5, 1.1e6, 3.3e6, 1e7, 3e7, 9e7}
    assert len(found.winner) == 30
    speeds = [each.cluster["slow"] for each in imagined.runs]  # type: ignore[index]
    assert {0: 3.0, 1: pytest.approx(math.sqrt(3.0))} in speeds


def test_a_winner_is_the_soonest_with_its_ties_and_the_best_everywhere_has_the_least_worst_regret():
    found = atlas()
    cell = found.winner[(found.winner.bandwidth_bit_s == 1.2e7) & (found.winner.spread == 1.5)].iloc[0]
    seconds = {pair: taken(*pair, 1.2e7, 1.5) for pair in (("bsp", "none"), ("asp", "static:1%"), ("bsp", "static:1%"))}
    assert cell.policy == "ASP, static 1\u00a0%"
    assert cell.sooner == pytest.approx(seconds["bsp", "none"] / seconds["asp", "static:1%"])
    assert cell.ties == ("BSP, static 1\u00a0%",)
    assert found.best_everywhere == "ASP, static 1\u00a0%" == found.regret.index[0]
    assert found.regret.index[-1] == "ASP, dense"
    # its runs on the slowest links were stopped; with equal speeds BSP with pruning is soonest
    least = max(share * taken("asp", "none", bandwidth, 1.0) / taken("bsp", "static:1%", bandwidth, 1.0)
                for share, bandwidth in ((0.4, 4e6), (0.9, 1.2e7)))  # fmt: skip
    assert found.words == (f"ASP, static 1\u00a0% never takes more than 1.30 times the soonest; ASP, dense takes "
                           f"more than {least:.1f} times it")  # fmt: skip
    assert atlas(policies=[("bsp", "none")]).words == "BSP, dense is the soonest everywhere"
    assert atlas(policies=[("asp", "none")], bandwidths=[4e6]).words == "ASP, dense loses the least"


def test_a_default_that_does_not_arrive_is_at_least_so_much_later():
    found = atlas(policies=[("asp", "none"), ("bsp", "static:1%")], bandwidths=[4e6, 1e9], spreads=[1.0])
    first, second = found.winner.itertuples()
    assert (first.at_least, second.at_least) == (True, False)
    assert first.sooner == pytest.approx(0.4 * taken("asp", "none", 4e6, 1.0) / taken("bsp", "static:1%", 4e6, 1.0))
    assert CAPPED in {*found.table.how}
