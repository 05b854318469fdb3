"""Policies by the seconds of an iteration."""

from __future__ import annotations

from pathlib import Path

import pytest

from pslab import Run, throughput
from pslab.engines.experiment.wire import REQUEST_BYTES
from pslab.tensors.compression.uncompressed import dense_bytes

SHAPES = [(300, 200), (200, 300), (10, 200)]
CLUSTER = {"compute_s": 0.05, "bandwidth_bit_s": 8e6, "latency_s": 0.002}
POLICIES = {"policy": {"dense": {}, "half": {"quantize": "fp16", "downlink": "fp16"}, "eager": {"sync": "eager"},
                       "deviation": {"prune": "std:2"}}}  # fmt: skip


def test_policies_are_listed_by_the_seconds_of_their_iterations_at_both_ends(tmp_path: Path):
    base = Run(model=SHAPES, workers=3, cluster={**CLUSTER, "costs": "epyc-core", "message_s": 0.0, "apply_s": 0.0,
                                                 "serve_s": 0.0, "decode_s": 0.0})  # fmt: skip
    table = throughput(base, POLICIES, results=tmp_path, progress=False)
    size = sum(rows * columns for rows, columns in SHAPES)
    sent = 2 * dense_bytes(size, 4) + REQUEST_BYTES
    assert table.whole_s["bsp"] == pytest.approx(0.05 + 2 * 0.002 + sent / 1e6)
    assert [*table.index] == [*table.sort_values("whole_s").index]
    assert {*table.index} == {"bsp", "half", "eager"}
    both = table.drop("eager")
    assert (both.layers_s < both.whole_s).all()
    assert table.layers_s.isna().to_dict() == {name: name == "eager" for name in table.index}
    assert "needs known lengths of messages" in table.attrs["refused"]["deviation"]
    assert table.attrs["costs"] == "epyc-core"
