"""Whether an answer holds on clusters near its own: which clusters, what runs again, and what is said."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pandas as pd
import pytest
from tiny import tiny

from pslab.lab.advise.sensitivity import BEST, HERE, nearby, sensitivity
from pslab.lab.records.merit import MERITS
from pslab.lab.records.record import Result
from pslab.lab.records.summary import held
from pslab.lab.runs.run import sweep

NET: dict[str, Any] = {"compute_s": 0.01, "bandwidth_bit_s": 1e6, "slow": {1: 2.0}}
GOAL = 0.5


def words(cluster: dict[str, Any], **fields: Any) -> dict[str, Any]:
    found = nearby(tiny(engine="virtual", cluster=cluster, **fields))
    return {name.replace("\u00a0", " "): each for name, each in found.items()}


def test_the_bandwidth_and_the_slowest_worker_are_half_and_twice_what_they_are():
    found = words(NET)
    assert [*found] == ["half the bandwidth (500 kbit/s)", "twice the bandwidth (2 Mbit/s)",
                        "worker 1 half as slow (×1)", "worker 1 twice as slow (×4)"]  # fmt: skip
    assert found["half the bandwidth (500 kbit/s)"] == {**NET, "bandwidth_bit_s": 5e5}
    assert found["worker 1 twice as slow (×4)"] == {**NET, "slow": {1: 4.0}}


@pytest.mark.parametrize(("cluster", "count"), [
    ({"compute_s": 0.01}, 1), ({"compute_s": 0.01, "slow": {0: 1.5}}, 1), ({"trace": {0: [0.01], 1: [0.01]}}, 0),
    ({"preset": "lab"}, 3),
])  # fmt: skip
def test_what_a_cluster_does_not_model_is_not_varied(cluster: dict[str, Any], count: int):
    assert len(words(cluster, workers=2)) == count


def test_a_bandwidth_that_changes_with_time_changes_in_proportion():
    found = words({"compute_s": 0.01, "bandwidth_bit_s": 1e6, "bandwidth_at": {0.5: 4e6}})
    assert found["half the bandwidth (500 kbit/s)"]["bandwidth_at"] == {0.5: 2e6}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return tmp_path_factory.mktemp("results")


@pytest.fixture(scope="module")
def known(place: Any) -> dict[str, dict[int, Result]]:
    base = tiny(engine="virtual", cluster=NET, keep_weights=False, pushes=80, eval_every=4, learning_rate=0.8)
    runs = {"bsp": base, "asp": base.but(sync="asp", prune="static:5%", learning_rate=1.6)}
    found = sweep(runs.values(), results=place, progress=False)
    assert all(held(result, GOAL)[0] < 10 for result in found)
    return {name: {0: result} for name, result in zip(runs, found, strict=True)}


def made(known: dict[str, dict[int, Result]], place: Any, **how: Any) -> pd.DataFrame:
    given: dict[str, Any] = {"top": 3, "seeds": 2, "tie": 0.05, "results": place, "progress": False}
    return sensitivity(known, GOAL, MERITS["seconds"], **{**given, **how})


def test_every_policy_runs_again_on_the_clusters_nearby(known: dict[str, dict[int, Result]], place: Any):
    before = {path.name for path in (place / "runs").iterdir()}
    table = made(known, place)
    ran = [json.loads((path / "manifest.json").read_text())["run"] for path in (place / "runs").iterdir()
           if path.name not in before]  # fmt: skip
    assert Counter(each["sync"] for each in ran) == dict.fromkeys(known, 4)
    assert table.loc[HERE, "bsp"] == pytest.approx(held(known["bsp"][0], GOAL)[0])
    assert (table.loc[table.index[1], [*known]] > table.loc[HERE, [*known]]).all()


def test_the_sentence_says_where_the_answer_holds_and_who_is_better_elsewhere(
    known: dict[str, dict[int, Result]], place: Any
):
    table = made({name: known[name] for name in ("bsp", "asp")}, place)
    assert (table[BEST] == "asp").all()
    assert table.attrs["sentence"].count("asp needs") == 4
    assert "instead of" in table.attrs["sentence"]
    table = made({name: known[name] for name in ("asp", "bsp")}, place)
    assert table.attrs["sentence"].startswith("asp is the best or within 5")
    assert table.attrs["sentence"].count("(") == 4


def test_policies_without_a_common_seed_are_left_out_and_one_alone_is_compared_with_none(
    known: dict[str, dict[int, Result]], place: Any
):
    table = made({"bsp": known["bsp"], "asp": {1: known["asp"][0]}}, place)
    assert [*table.columns] == ["bsp", BEST]
    assert table.attrs["sentence"] == "there is no policy to compare bsp with"
