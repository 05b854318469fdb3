"""Rounds of all workers leave the same bits in virtual time and in real processes, however a run is cut
into ranges, servers and a budget."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from tiny import finished, net, tiny
from whole import in_process

from pslab.config.products import CHOICE, ONEDNN
from pslab.engines.experiment.experiment import Outcome
from pslab.lab.judge import tables_of

LINKS = {"compute_s": 1e-3, "bandwidth_bit_s": 1e8, "server_bandwidth_bit_s": 2e8, "latency_s": 1e-4}


def drawn(seed: int) -> dict[str, Any]:
    """The fields of a run whose step is a round."""
    draw = random.Random(seed)
    sync = draw.choice(["bsp", "bsp", "local:3", "admm:2,rho=0.5"])
    sparse, workers = sync == "bsp" and draw.random() < 0.5, draw.randint(2, 4)
    ranges = draw.choice(["whole", "layers", "layers:200", "layers:400"]) if sync == "bsp" else "whole"
    servers = 1 if sync.startswith("admm") else draw.randint(1, 2 if ranges == "layers" else 3)
    return {
        "sync": sync, "workers": workers, "seed": seed, "pushes": draw.randint(1, 30),
        "ranges": ranges, "servers": servers,
        "prune": "static:5%" if sparse else "none", "pull": draw.choice(["whole", "changed"]) if sparse else "whole",
        "optimizer": draw.choice(["sgd", "sgd:momentum=0.5"]) if sync == "bsp" else "sgd", "learning_rate": 0.05,
        "eval_every": 10**6,
        "quantize": "none" if sync.startswith("admm") else draw.choice(["none", "none", "int8", "qsgd:4", "efsign"]),
        "downlink": "none",
    } | ({} if sync.startswith("admm") or draw.random() < 0.5 else {
        "pull": "whole", "downlink": draw.choice(["int8", "static:20%+fp16", "qsgd:4,residual=on"]),
    })  # fmt: skip


def problem(seed: int, fields: dict[str, Any]) -> str:
    """How a run on these processes differs from virtual time, or is not valid."""
    wanted = tiny(**fields)  # as fast as they are: no bit depends on when something comes
    expected = in_process(tiny(**fields, engine="virtual", cluster={**LINKS, "slow": {0: 1.0 + seed % 3}}))
    found = finished(wanted)
    facts = tables_of(wanted, found)[2]
    same = found.weights.tobytes() == expected.weights.tobytes() and counts(found) == counts(expected)
    return "" if same and facts["verdict"] != "invalid" else f"{seed}: {facts.get('violations')} {fields}"


def counts(outcome: Outcome) -> list[Any]:
    return [outcome.facts[name] for name in ("outcome", "pushes", "accepted")]


@pytest.mark.parametrize("seeds", [(2, 3, 5), *(pytest.param(range(first, first + 38), marks=pytest.mark.slow)
                                                for first in range(0, 190, 38))], ids=str)  # fmt: skip
def test_rounds_leave_the_same_bits_on_every_engine(seeds: Sequence[int]):
    assert list(filter(None, (problem(seed, drawn(seed)) for seed in seeds))) == []


@pytest.mark.one_of(3)
@pytest.mark.parametrize("fields", [
    {"prune": "lowrank:2"}, {"prune": "powersgd:2", "ranges": "layers", "servers": 2}, {"prune": "ef21:5%"},
    {"prune": "powersgd:1,after=2", "sync": "local:2", "quantize": "fp16"}, {"quantize": "signum"},
    {"prune": "demo:topk=4,chunk=16", "servers": 3, "ranges": "layers:400"},
    {"prune": "powersgd:2", "sync": "diloco:2"}, {"downlink": "static:20%+int8", "servers": 2, "ranges": "layers:400"},
    {"downlink": "efsign", "sync": "local:2", "prune": "static:5%"},
    {"prune": "sketch:cols=30", "servers": 2, "ranges": "layers:400", "pull": "changed"},
], ids=str)  # fmt: skip
def test_aggregates_of_pushes_are_the_same_on_every_engine(fields: dict[str, Any]):
    assert problem(1, {"sync": "bsp", "workers": 3, "pushes": 21, "learning_rate": 0.02, **fields}) == ""


@pytest.mark.parametrize("fields", [
    {"sync": "streaming:6,2,overlap=2,alpha=0.5"},
    {"sync": "streaming:4,1,overlap=1,merge=carry", "prune": "static:10%", "pull": "changed", "servers": 2},
    {"sync": "streaming:4,2,overlap=1", "quantize": "e3m0:residual=on", "servers": 2},
    {"sync": "decoupled:6,2,overlap=2,quorum=2", "schedule": "linear"},  # a round, though the policy does not say so
], ids=str)  # fmt: skip
def test_steps_that_follow_a_push_leave_the_same_bits_on_every_engine(fields: dict[str, Any]):
    assert problem(2, {"learning_rate": 0.01, "pushes": 48, "workers": 2, "eval_every": 10**6, **fields}) == ""


@pytest.mark.parametrize("fields", [{}, {"prune": "static:5%"}, {"prune": "dgc:5%", "workers": 3}], ids=str)
def test_with_onednn_all_processes_leave_the_same_bits(fields: dict[str, Any], monkeypatch):
    """Children follow their parent, whatever is in their own environment; with MKL only the last bits are others."""
    wanted = tiny(**{"workers": 2, "sync": "bsp", "model": partial(net, 96), **fields})
    usual = in_process(wanted.but(engine="virtual", cluster=LINKS))
    finished(wanted.but(pushes=2))  # the pool begins
    monkeypatch.setenv(CHOICE, ONEDNN)
    expected, again = (in_process(wanted.but(engine="virtual", cluster=LINKS)) for _ in range(2))
    found = finished(wanted)
    assert expected.weights.tobytes() == again.weights.tobytes() == found.weights.tobytes() != usual.weights.tobytes()
    assert expected.accuracy[-1].tolist()[2:] == again.accuracy[-1].tolist()[2:] == found.accuracy[-1].tolist()[2:]
    assert np.allclose(expected.weights, usual.weights, atol=1e-3)


@pytest.mark.parametrize("pushes", range(1, 9))
@pytest.mark.parametrize("fields", [{"ranges": "layers"}, {"servers": 2}, {"servers": 2, "sync": "local:2"},
                                    {"sync": "streaming:4,2,overlap=1"}],
                         ids=str)  # fmt: skip
def test_several_ranges_end_with_the_last_round_that_the_budget_holds(fields: dict[str, Any], pushes: int):
    whole = {name: value for name, value in fields.items() if name == "sync"}
    run = {"engine": "virtual", "workers": 3, "pushes": pushes, "cluster": {**LINKS, "slow": {1: 2.0}}}
    expected, found = in_process(tiny(**run, **whole)), in_process(tiny(**run, **fields))
    assert found.weights.tobytes() == expected.weights.tobytes()
    assert found.facts["pushes"] == found.facts["accepted"] == expected.facts["pushes"]
    verdict = tables_of(tiny(**run, **fields), found)[2]["verdict"]
    assert verdict == ("valid" if found.facts["pushes"] else "unknown")


def test_where_a_worker_leaves_and_joins_the_end_is_a_whole_round():
    cluster = {**LINKS, "leave": {1: 0.02}, "join": {1: 0.06}}
    for pushes in range(60, 64):
        wanted = tiny(engine="virtual", workers=3, ranges="layers", pushes=pushes, cluster=cluster, on_death="continue")
        facts = tables_of(wanted, in_process(wanted))[2]
        assert (facts["verdict"], facts["outcome"], facts["accepted"]) == ("valid", "budget", facts["pushes"])
