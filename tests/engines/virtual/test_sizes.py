"""Models of which only the sizes are known, numbers of fewer bytes, buckets, and rings of workers."""

from __future__ import annotations

import random
from bisect import bisect_right
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from tiny import finished, tiny

from pslab.config.run import Run
from pslab.engines.server.ledger import PUSH_COLUMNS
from pslab.errors import ConfigError
from pslab.lab.runs.resolve import resolve
from pslab.policies.partition import Buckets
from pslab.tensors.compression import compression
from pslab.tensors.compression.frame import length
from pslab.tensors.compression.pieces import DRAWN
from pslab.tensors.compression.uncompressed import dense_bytes
from pslab.tensors.workload.keyspace import Keyspace
from pslab.tensors.workload.sizes import PUBLISHED, ModelSizes

TWINS = ("resnet18", "resnet50", "resnet101", "resnet152", "vgg16", "vgg19")
#: Weights, as their authors' own implementations count them.
TOTALS = {"inception-v3": 23_834_568, "bert-large": 335_141_888, "gpt2": 124_439_808, "llama-7b": 6_738_415_616}
SHAPES = [(64, 49), (64,), (10, 64), (10,)]
DENSE = {"compute_s": 0.02, "bandwidth_bit_s": 8e6}


def timed(**fields: Any) -> Run:
    return Run(**{"engine": "timing", "cluster": DENSE, "pushes": 12, **fields})


@pytest.mark.parametrize("name", TWINS)
def test_a_model_by_sizes_has_the_layers_and_the_shares_of_its_module(name: str):
    ours, module = (resolve(timed(model=f"{kind}:{name}", ranges="layers")) for kind in ("sizes", "torchvision"))
    assert [slot.shape for slot in ours.keyspace.parameters] == [slot.shape for slot in module.keyspace.parameters]
    begins, merged = [layer.start for layer in ours.keyspace.layers], np.zeros((len(ours.layer_shares), 2))
    for layer, share in zip(module.keyspace.layers, module.layer_shares, strict=True):
        merged[bisect_right(begins, layer.start) - 1] += share
    assert np.array(ours.layer_shares) == pytest.approx(merged, rel=2e-3)


def test_other_models_have_as_many_weights_as_published():
    assert {name: Keyspace.of(ModelSizes(name)()).size for name in PUBLISHED.keys() - set(TWINS)} == TOTALS


def test_a_list_of_shapes_is_a_model_as_its_text_is():
    run = timed(model=SHAPES, pushes=4)
    assert run == timed(model="sizes:64x49+64+10x64+10", pushes=4)
    assert [slot.shape for slot in resolve(run).keyspace.parameters] == SHAPES
    assert finished(run).facts["pushes"] == 4


@pytest.mark.parametrize(("fields", "words"), [
    ({"model": "sizes:resnet51"}, "did you mean 'resnet50'"), ({"model": "sizes:10x0"}, "no model whose sizes"),
    ({"model": "sizes:10x-1"}, "no model whose sizes"), ({"model": []}, "no model whose sizes|needs of"),
    *(({"engine": engine}, "no operations.*engine='timing'.*torchvision:resnet50") for engine in ("virtual", "local")),
    ({"engine": "virtual", "model": "mlp", "cluster": {**DENSE, "wire_bytes": 2}}, "use engine='timing', or quantize"),
    ({"cluster": {"preset": "lab", "costs": "epic-core"}}, "did you mean 'epyc-core'"),
    *(({"cluster": {**DENSE, "aggregate": "allreduce"}, **fields}, words) for fields, words in (
        ({"sync": "asp"}, "sync.*every worker: use bsp"), ({"servers": 2}, "servers.*use servers=1"),
        ({"prune": "static:1%"}, "prune.*use none, powersgd"), ({"quantize": "int8"}, "quantize.*use none, fp16, bf16"),
        ({"downlink": "int8"}, "downlink.*use none"), ({"prune": "static:1%", "pull": "changed"}, "pull.*use whole"),
        ({"engine": "local", "model": "mlp"}, "engine.*use engine='virtual' or 'timing'"))),
    *(({"cluster": {**DENSE, "aggregate": "allreduce", **given}}, f"cluster.{next(iter(given))}.*leave it out")
      for given in ({"colocated": True}, {"server_bandwidth_bit_s": 1e9}, {"leave": {0: 1.0}},
                    {"faults": [{"what": "drop", "at_s": 1.0}]})),
], ids=str)  # fmt: skip
def test_what_shapes_and_rings_cannot_do_is_refused_with_the_way_out(fields: dict[str, Any], words: str):
    with pytest.raises(ConfigError, match=words):
        resolve(timed(**{"model": "sizes:resnet18", **fields}))


@pytest.mark.parametrize(("rules", "within"), [
    (("static:1%", "none"), 0.02), (("static:1%", "int8"), 0.02), (("dgc:0.1%", "none"), 0.02),
    (("none", "fp16"), 1e-6), (("none", "int8"), 1e-3), (("none", "efsign"), 1e-3), (("none", "qsgd:4"), 1e-3),
    (("lowrank:2", "none"), 1e-6), (("powersgd:2", "fp16"), 1e-6), (("sketch:cols=5000", "none"), 1e-6),
], ids=str)  # fmt: skip
def test_a_push_of_a_large_model_is_as_long_as_its_sample_says(rules: tuple[str, str], within: float):
    from pslab.config.spec import build
    from pslab.tensors.update.part import Part

    keyspace = Keyspace.of(ModelSizes("900x1700+1700+2000x700")())
    assert keyspace.size > 2 * DRAWN
    made = compression(build("prune", rules[0]), build("quantize", rules[1]), [Part((slice(0, keyspace.size),))],
                       keyspace)  # fmt: skip
    assert made is not None
    kept = {name: memory.zeros("cpu") for name, memory in made.memories.items()}
    pieces, count = made.push(0, torch.randn(keyspace.size), kept, turn=0)
    assert made.sizes(0, 4, turn=0) == [pytest.approx(length(pieces), rel=within), pytest.approx(count, rel=within)]


def test_numbers_of_two_bytes_take_half_of_the_time_on_a_link():
    def bytes_of(wire: int | None, **fields: Any) -> pd.DataFrame:
        run = timed(model=SHAPES, cluster={**DENSE, **({} if wire is None else {"wire_bytes": wire})}, **fields)
        table = pd.DataFrame(finished(run).pushes, columns=PUSH_COLUMNS)
        return table[["bytes_up", "bytes_down"]].iloc[0].tolist()

    size = 64 * 50 + 10 * 65
    for wire, number in ((None, 4), (2, 2), (1, 1)):
        assert bytes_of(wire) == [dense_bytes(size, number)] * 2
    whole, half = (bytes_of(wire, prune="static:10%")[0] for wire in (4, 2))
    assert whole - half == pytest.approx(2 * round(0.1 * size), abs=16)
    assert bytes_of(2, quantize="int8")[0] == pytest.approx(bytes_of(4, quantize="int8")[0], abs=16)


@pytest.mark.parametrize("seed", range(24))
def test_a_bucket_takes_layers_from_the_last_one_on_until_it_is_full(seed: int):
    chance = random.Random(seed)
    edges = [0, *np.cumsum([chance.randint(1, 40) for _ in range(chance.randint(1, 12))]).tolist()]
    layers = [slice(*each) for each in pairwise(edges)]
    buckets = Buckets(chance.randint(1, 80), chance.randint(1, 20))
    expected, filled, least = list[list[slice]](), list[slice](), buckets.first
    for layer in reversed(layers):
        filled.append(layer)
        if sum(each.stop - each.start for each in filled) >= least:
            expected, filled, least = [*expected, filled], [], buckets.least
    expected += [filled] * bool(filled)
    assert [(cut.layer, cut.start, cut.stop) for cut in reversed(buckets.cut(layers))] == [
        (layers.index(each[-1]), each[-1].start, each[0].stop) for each in expected]  # fmt: skip


@pytest.mark.parametrize("seed", range(24))
def test_a_ring_takes_two_passes_of_its_workers(seed: int):
    """2 (W - 1) latencies and 2 (W - 1) / W of the bytes on each link, whatever the engine; half duplex takes twice."""
    chance = random.Random(seed)
    workers, rounds, rows = chance.randint(1, 9), 4, chance.randint(8, 400)
    latency_s, byte_s, compute_s = chance.choice([0.0, 1e-3, 0.02]), chance.uniform(1e3, 1e6), chance.uniform(0.01, 1)
    duplex, wire, prune = chance.choice(["full", "half"]), chance.choice([2, 4]), chance.choice(["none", "powersgd:2"])
    cluster = {"aggregate": "allreduce", "bandwidth_bit_s": 8 * byte_s, "latency_s": latency_s, "duplex": duplex,
               "compute_s": compute_s, "wire_bytes": wire}  # fmt: skip
    run = timed(model=[(rows, 60)], workers=workers, pushes=rounds * workers, cluster=cluster, prune=prune)
    table = pd.DataFrame(finished(run).pushes, columns=PUSH_COLUMNS)
    ends = table.groupby("iteration").seconds.max().to_numpy()
    sizes = [dense_bytes(rows * 60 if prune == "none" else 2 * (60, rows)[turn % 2], wire) for turn in range(rounds)]
    factored = prune == "none" or 4 * (rows + 60) < rows * 60
    sizes = sizes if factored else [dense_bytes(rows * 60, wire)] * rounds
    shared = (workers - 1) / workers * (2 if duplex == "half" else 1) / byte_s
    pass_s = [(workers - 1) * latency_s + size * shared for size in sizes]
    steps = [answer + compute_s + push for answer, push in pairwise(pass_s)]
    assert np.diff(ends) == pytest.approx(steps, rel=1e-6, abs=1e-9)


def test_a_model_of_one_layer_is_cut_among_servers_by_layers_too():
    experiment = resolve(timed(model=[(400, 300)], ranges="layers", servers=3))
    assert [(part.size, part.layer) for part in experiment.parts] == [(40_000, 0)] * 3


def test_what_factors_take_grows_with_their_rank():
    factors = {rule: resolve(timed(model=[(400, 300)], prune=rule)).select_factor
               for name in ("powersgd", "lowrank") for rule in (f"{name}:{rank}" for rank in (1, 2, 6))}  # fmt: skip
    expected = {"powersgd:1": 19.2, "powersgd:2": 20, "powersgd:6": 23.2, "lowrank:1": 19.14, "lowrank:2": 22,
                "lowrank:6": 33.44}  # fmt: skip
    assert factors == pytest.approx(expected)


def test_a_ring_moves_the_same_gradients_as_servers():
    cluster = {**DENSE, "latency_s": 1e-3}
    ring, servers = (finished(tiny(engine="virtual", cluster={**cluster, "aggregate": aggregate}))
                     for aggregate in ("allreduce", "servers"))  # fmt: skip
    assert ring.weights.tobytes() == servers.weights.tobytes()
    assert ring.facts["seconds"] != servers.facts["seconds"]
