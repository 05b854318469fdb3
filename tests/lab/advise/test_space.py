"""space: the candidates of a race, and what cannot run. throughput: policies by the seconds of an iteration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pslab import throughput
from pslab.config.run import Run
from pslab.engines.experiment.wire import REQUEST_BYTES
from pslab.lab.advise.space import DEFAULT_SPACE, candidates, simplicity, words_of
from pslab.lab.runs.grid import grid
from pslab.lab.runs.resolve import resolve
from pslab.tensors.compression.uncompressed import dense_bytes


def base(**fields: object) -> Run:
    return Run.of({"model": "mlp:8", "data": "mnist:512,64", "engine": "virtual", "cluster": "lab", **fields})


@pytest.mark.parametrize(("fields", "space", "count", "refused"), [
    ({}, None, 13, {}), ({"sync": "ssp:5", "prune": "std:2", "rate": "dynsgd", "pull": "changed"}, None, 14, None),
    ({}, {"sync": ["bsp", "asp"], "pull": ["whole", "range"]}, 4, {"bsp range": "range", "asp range": "range"}),
    ({"workers": 2}, None, 13, {"backup:1 static:1%": "needs 3 for rounds of two pushes"}),
    ({"workers": 1}, None, 13, None),
], ids=["default", "another policy", "pulls", "two workers", "one worker"])  # fmt: skip
def test_candidates_all_can_run_the_default_first_and_what_cannot_is_listed_with_its_sentence(
    fields: dict, space: Any, count: int, refused: dict | None
):
    found, why = candidates(base(**fields), space)
    assert len(found) + len(why) == count
    assert next(iter(found.values())) == {}
    for each in found.values():
        resolve(base(**{**fields, **each}))
    assert refused is None or ({*why} == {*refused} and all(words in why[name] for name, words in refused.items()))
    assert next(iter(found)) == ("ssp:5 std:2 dynsgd" if "sync" in fields else "bsp")
    if fields.get("workers") == 1:
        assert {each.get("sync", "bsp") for each in found.values()} == {"bsp"}
        assert "with one worker all policies are the same" in why["local:8"]


def test_a_space_may_be_axes_or_runs():
    axes = {"sync": ["bsp", "asp"], "prune": ["none", "static:1%"]}
    found, _ = candidates(base(), axes)
    assert [*found] == ["bsp", "bsp static:1%", "asp none", "asp static:1%"]
    assert found["asp static:1%"] == {"sync": "asp", "prune": "static:1%"}
    assert candidates(base(), grid(base(), **axes, learning_rate=[0.1, 0.2], seed=[0, 1]))[0] == found


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


SHAPES = [(300, 200), (200, 300), (10, 200)]
CLUSTER = {"compute_s": 0.05, "bandwidth_bit_s": 8e6, "latency_s": 0.002}
POLICIES = {"policy": {"dense": {}, "half": {"quantize": "fp16", "downlink": "fp16"}, "eager": {"sync": "eager"},
                       "cut": {"ranges": "layers"}, "deviation": {"prune": "std:2"}}}  # fmt: skip


def test_policies_are_listed_by_the_seconds_of_their_iterations_at_both_ends(tmp_path: Path):
    base = Run(model=SHAPES, workers=3, cluster={**CLUSTER, "costs": "epyc-core", "message_s": 0.0, "apply_s": 0.0,
                                                 "serve_s": 0.0, "decode_s": 0.0})  # fmt: skip
    table = throughput(base, POLICIES, results=tmp_path, progress=False)
    size = sum(rows * columns for rows, columns in SHAPES)
    sent = 2 * dense_bytes(size, 4) + REQUEST_BYTES
    assert table.whole_s["bsp"] == pytest.approx(0.05 + 2 * 0.002 + sent / 1e6)
    assert [*table.index] == [*table.sort_values("whole_s").index]
    assert {*table.index} == {"bsp", "half", "eager", "cut"}
    assert (table.loc["cut"] == table.loc["bsp"]).all(), "both ends of ranges are tried, whatever a policy says"
    both = table.drop("eager")
    assert (both.layers_s < both.whole_s).all()
    assert table.layers_s.isna().to_dict() == {name: name == "eager" for name in table.index}
    assert "needs known lengths of messages" in table.attrs["refused"]["deviation"]
    assert table.attrs["costs"] == "epyc-core"
