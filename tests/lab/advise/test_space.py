"""space: the candidates of a race, and what cannot run."""

from __future__ import annotations

import pytest

from pslab.config.run import Run
from pslab.errors import ConfigError
from pslab.lab.advise.space import DEFAULT_SPACE, candidates, simplicity, words_of
from pslab.lab.runs.grid import grid
from pslab.lab.runs.resolve import resolve


def base(**fields: object) -> Run:
    return Run.of({"model": "mlp:8", "data": "mnist:512,64", "engine": "virtual", "cluster": "lab", **fields})


def test_the_default_space_has_thirteen_candidates_that_all_can_run():
    found, refused = candidates(base())
    assert next(iter(found)) == "bsp"
    assert (len(found), [*found["bsp"]], refused) == (13, [], {})
    for fields in found.values():
        resolve(base(**fields))


def test_the_default_policy_is_first_and_differs_in_nothing():
    found, refused = candidates(base(sync="ssp:5", prune="std:2", rate="dynsgd", pull="changed"))
    assert next(iter(found.items())) == ("ssp:5 std:2 dynsgd", {})
    assert len(found) + len(refused) == 14


def test_a_space_may_be_axes_or_runs():
    axes = {"sync": ["bsp", "asp"], "prune": ["none", "static:1%"]}
    found, _ = candidates(base(), axes)
    assert [*found] == ["bsp", "bsp static:1%", "asp none", "asp static:1%"]
    assert found["asp static:1%"] == {"sync": "asp", "prune": "static:1%"}
    assert candidates(base(), grid(base(), **axes, learning_rate=[0.1, 0.2], seed=[0, 1]))[0] == found


def test_what_cannot_run_is_listed_with_its_sentence():
    found, refused = candidates(base(), {"sync": ["bsp", "asp"], "pull": ["whole", "range"]})
    assert [*found] == ["bsp", "asp whole"]
    assert [*refused] == ["bsp range", "asp range"]
    assert all("range" in why for why in refused.values())


def test_backup_workers_need_a_third_worker():
    found, refused = candidates(base(workers=2))
    assert [*refused] == ["backup:1 static:1%"]
    assert "needs 3: a round is to be of two pushes" in refused["backup:1 static:1%"]
    assert len(found) == 12


def test_one_worker_has_one_way_of_waiting():
    found, refused = candidates(base(workers=1))
    assert {fields.get("sync", "bsp") for fields in found.values()} == {"bsp"}
    assert "one worker waits for nobody" in refused["local:8"]


def test_a_base_that_cannot_run_is_refused():
    with pytest.raises(ConfigError, match="need 8192 examples"):
        candidates(base(workers=2, batch_size=4096), {"sync": ["bsp", "asp"]})


@pytest.mark.parametrize(("axis", "words"), [("learning_rate", "give learning_rates= instead"),
                                             ("seed", "give seeds= instead"), ("model", "set it in the base"),
                                             ("pushes", "set it in the base")])  # fmt: skip
def test_an_axis_that_is_no_policys_is_refused(axis: str, words: str):
    with pytest.raises(ConfigError, match=words):
        candidates(base(), {axis: [1, 2]})


def test_runs_of_another_problem_are_refused():
    with pytest.raises(ConfigError, match="its model is not the base's"):
        candidates(base(), grid(base(model="mlp:4"), sync=["bsp", "asp"]))


def test_an_unknown_axis_or_value_is_refused_with_the_nearest_right_one():
    with pytest.raises(ConfigError, match="did you mean 'sync'"):
        candidates(base(), {"snyc": ["bsp"]})
    with pytest.raises(ConfigError, match="did you mean 'ssp'"):
        candidates(base(), {"sync": ["bsp", "spp:3"]})


def test_simpler_is_what_waits_for_all_then_for_most_then_for_none_and_dense_before_pruned():
    policies = [("bsp", "none"), ("bsp", "static:1%"), ("backup:1", "none"), ("ssp:3", "none"), ("asp", "none"),
                ("asp", "dgc:1%"), ("dssp", "none")]  # fmt: skip
    ranks = [simplicity(base(sync=sync, prune=prune)) for sync, prune in policies]
    assert ranks == sorted({*ranks})
    assert simplicity(base(sync="asp")) < simplicity(base(sync="asp", rate="dynsgd"))
    assert simplicity(base(sync="dssp")) == simplicity(base(sync="elastic:15"))


def test_the_words_of_the_default_space_are_those_of_its_policies():
    for words, fields in DEFAULT_SPACE["policy"].items():
        assert words_of(base(**fields)) == words
