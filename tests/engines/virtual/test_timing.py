"""Runs without tensors: models of which only the sizes are known, bytes of answers, buckets, and rings of workers."""

from __future__ import annotations

import cProfile
import random
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from tiny import finished, tiny
from torch import nn

from pslab.config.cluster import MEASURED, PRESETS, Cluster, resolve_cluster
from pslab.config.run import Run
from pslab.config.spec import build
from pslab.engines.emulation.faults import Faults
from pslab.engines.server.ledger import PUSH_COLUMNS
from pslab.engines.virtual.timing import even_bytes, execute
from pslab.engines.worker.phases import PHASE_COLUMNS, PHASES
from pslab.lab.runs.resolve import resolve
from pslab.policies.partition import Buckets, Cut
from pslab.tensors.compression import compression
from pslab.tensors.compression.bits import positions
from pslab.tensors.compression.frame import length
from pslab.tensors.compression.pieces import DRAWN
from pslab.tensors.compression.uncompressed import dense_bytes
from pslab.tensors.update.part import Part
from pslab.tensors.workload.keyspace import Keyspace
from pslab.tensors.workload.sizes import PUBLISHED, ModelSizes

LAB = {"preset": "lab", "slow": {0: 3.0}}
THIN = {**LAB, "bandwidth_bit_s": 1e6}
LINK = {"bandwidth_bit_s": 4e6, "latency_s": 1e-4, "compute_s": 4e-3, "compute_sigma": 0.2}


class Merged:
    """Ranges of the user's that merge layers: so many by so many, from the first one on."""

    layered = True

    def __init__(self, size: int) -> None:
        self.size = size

    def cut(self, layers: Sequence[slice]) -> tuple[Cut, ...]:
        merged = [layers[at : at + self.size] for at in range(0, len(layers), self.size)]
        return tuple(Cut(number, each[0].start, each[-1].stop) for number, each in enumerate(merged))


@pytest.mark.parametrize("size", [1, 2, 4, 6])
def test_layers_that_are_merged_into_one_range_compute_as_long(size: int):
    cluster = {"compute_s": 1.0, "bandwidth_bit_s": 1e12}
    run = tiny(engine="timing", cluster=cluster, model=deep, ranges=Merged(size), workers=2, pushes=10)
    assert finished(run).facts["seconds"] == pytest.approx(5.0, rel=1e-4)


def test_positions_that_are_evenly_spread_have_the_length_of_their_code():
    for seed in range(300):
        draw = random.Random(seed)
        size = draw.choice([1, 7, 1000, draw.randint(1, 400_000)])
        count = min(size, draw.choice([0, 1, size // 2, size, draw.randint(0, size), draw.randint(0, 2 + size // 150)]))
        indices = torch.arange(count) * size // max(count, 1)
        assert even_bytes(count, size) == len(positions(indices, size)), (count, size)


def test_a_layer_is_pushed_during_the_last_of_several_gradients():
    """Two equal layers: the first one's exchange is what `layers` leaves of the exchange of both."""
    for sync, gradients in (("asp", 1), ("local:4", 4), ("diloco:3", 3)):
        for ranges, exchanged in (("layers", 1), ("whole", 2)):
            cluster = {"compute_s": 1.0, "bandwidth_bit_s": 8 * 4e6 / 0.1, "layer_shares": ((1, 2), (1, 2))}
            run = timed(model=[(1_000_000,), (1_000_000,)], workers=1, sync=sync, ranges=ranges, cluster=cluster,
                        pushes=6 * gradients)  # fmt: skip
            table = pd.DataFrame(finished(run).pushes, columns=PUSH_COLUMNS)
            ends = table.groupby("iteration").seconds.max()
            assert np.diff(ends) == pytest.approx(gradients + 2 * 0.1 * exchanged, rel=1e-4), (sync, ranges)


def test_killed_workers_are_replaced_after_the_lease_and_the_restart_and_not_without_end():
    faults = [{"what": "kill", "worker": 1, "per_hour": 60}]
    run = timed(model=[(10, 10)], workers=2, sync="asp", on_death="restart", lease_s=3.0, seconds=600.0, pushes=10**6,
                cluster={"compute_s": 1.0, "faults": faults, "restart_s": 20.0})  # fmt: skip
    outcome, plan, since_s = finished(run), Faults(resolve_cluster(run.cluster), run.seed), 0.0
    phases, lives = pd.DataFrame(outcome.phases, columns=PHASE_COLUMNS), outcome.facts["lives"]
    begun = phases[(phases.phase == PHASES.index("compute")) & (phases.worker == 1)].begin_s
    assert len(lives) > 3
    for life in lives:
        killed_s = plan.kill_s(1, since_s)
        since_s = killed_s + 3 + 20
        assert (life["worker"], life["seconds"]) == (1, pytest.approx(killed_s + 3))
        assert not begun.between(killed_s, since_s, inclusive="neither").any()
        assert since_s > 600 or begun.between(since_s, since_s + 0.01).any()
    # no worker lives for a second
    hopeless = finished(run.but(cluster={"compute_s": 1.0, "faults": [{"what": "kill", "per_hour": 1e5}]}))
    assert (hopeless.facts["outcome"], len(hopeless.pushes), len(hopeless.facts["deaths"])) == ("died", 0, 2)


def deep() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(49, 8), *(nn.Linear(8, 8) for _ in range(4)), nn.Linear(8, 10))


@pytest.mark.parametrize("fields", [{"sync": "backup:1"}, {"servers": 4}], ids=str)
def test_what_a_run_takes_grows_with_the_number_of_its_ranges_and_not_with_its_square(fields: dict[str, Any]):
    counts = []
    for most in (8, 4):
        run = tiny(engine="timing", cluster=LINK, pushes=8, ranges=f"layers:{most}", **fields)
        experiment, profile = resolve(run), cProfile.Profile()
        profile.runcall(execute, experiment, lambda news: None)
        counts.append((len(experiment.parts), sum(each.callcount for each in profile.getstats())))
    (few, cheap), (many, dear) = counts
    assert dear / cheap < 1.15 * many / few


@pytest.mark.parametrize(("fields", "within"), [
    ({"prune": "static:1%", "pull": "changed"}, 1.5), ({"prune": "static:10%", "pull": "changed"}, 1.5),
    ({"pull": "changed"}, 1.2), ({"downlink": "static:5%+fp16"}, 1.02)], ids=str)  # fmt: skip
def test_answers_are_as_long_as_if_pushes_had_nothing_in_common(fields: dict[str, Any], within: float):
    run = tiny(engine="virtual", pushes=60, sync="asp", cluster=THIN, **fields)
    real, without = (pd.DataFrame(finished(run.but(engine=engine)).pushes, columns=PUSH_COLUMNS)
                     for engine in ("virtual", "timing"))  # fmt: skip
    assert 0.98 <= without.bytes_down.sum() / real.bytes_down.sum() < within
    assert without.bytes_up.sum() == pytest.approx(real.bytes_up.sum(), rel=0.1)


def test_a_presets_costs_are_those_of_the_runs_own_weights():
    size = sum(part.size for part in resolve(tiny(engine="timing", cluster="lab")).parts)
    ours, given = (resolve(tiny(engine="timing", cluster=cluster)).cluster
                   for cluster in ("lab", {"preset": "lab", "decode_s": 1.0}))  # fmt: skip
    assert ours.select_s == pytest.approx(1.4e-3 * size / MEASURED)
    assert ours.message_s == PRESETS["lab"]["message_s"]
    assert (given.decode_s, given.apply_s) == (1.0, ours.apply_s)
    assert resolve(Run(engine="timing", cluster="lab")).cluster == Cluster(**PRESETS["lab"])


TWINS = ("resnet18", "resnet50", "vgg16", "resnet101", "resnet152", "vgg19")


def operations(width: int, depth: int, tokens: int, matrix: int, words: int) -> float:
    """Return a transformer's operations; `matrix` counts the weights behind attention (Narayanan et al., SC 2021)."""
    return depth * tokens * (8 * width**2 + 4 * tokens * width + 2 * matrix) + 2 * tokens * width * words


#: Weights, as their authors' own implementations count them, and operations; torchvision counts those of Inception.
TOTALS = {
    "inception-v3": (23_834_568, 2 * 5.713e9),
    "bert-large": (335_141_888, operations(1024, 24, 512, 8 * 1024**2, 0) + 2 * 1024**2),
    "gpt2": (124_439_808, operations(768, 12, 1024, 8 * 768**2, 50257)),
    "llama-7b": (6_738_415_616, operations(4096, 32, 2048, 3 * 4096 * 11008, 32000)),
}
SHAPES = [(64, 49), (64,), (10, 64), (10,)]
DENSE = {"compute_s": 0.02, "bandwidth_bit_s": 8e6}


def timed(**fields: Any) -> Run:
    return Run(**{"engine": "timing", "cluster": DENSE, "pushes": 12, **fields})


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (number > 2))
                                  for number, name in enumerate(TWINS)])  # fmt: skip
def test_a_model_by_sizes_has_the_layers_and_the_shares_of_its_module(name: str):
    ours, module = (resolve(timed(model=f"{kind}:{name}", ranges="layers")) for kind in ("sizes", "torchvision"))
    assert [slot.shape for slot in ours.keyspace.parameters] == [slot.shape for slot in module.keyspace.parameters]
    begins, merged = [layer.start for layer in ours.keyspace.layers], np.zeros((len(ours.layer_shares), 2))
    for layer, share in zip(module.keyspace.layers, module.layer_shares, strict=True):
        merged[bisect_right(begins, layer.start) - 1] += share
    assert np.array(ours.layer_shares) == pytest.approx(merged, rel=2e-3)


def test_other_models_have_as_many_weights_and_operations_as_published():
    assert TOTALS.keys() == PUBLISHED.keys() - set(TWINS)
    for name, (weights, flops) in TOTALS.items():
        module = ModelSizes(name)()
        assert (Keyspace.of(module).size, sum(module.flops)) == (weights, pytest.approx(flops, rel=1e-4)), name


@pytest.mark.parametrize(("prune", "quantize", "within"), [
    ("static:1%", "int8", 0.02), ("dgc:0.1%", "none", 0.02), ("none", "fp16", 1e-6), ("none", "efsign", 1e-3),
    ("none", "qsgd:4", 1e-3), ("lowrank:2", "none", 1e-6), ("powersgd:2", "fp16", 1e-6),
    ("sketch:cols=5000", "none", 1e-6),
])  # fmt: skip
def test_a_push_of_a_large_model_is_as_long_as_its_sample_says(prune: str, quantize: str, within: float):
    keyspace = Keyspace.of(ModelSizes("900x1700+1700+2000x700")())
    assert keyspace.size > 2 * DRAWN
    parts = [Part((slice(0, keyspace.size),))]
    made = compression(build("prune", prune), build("quantize", quantize), parts, keyspace)
    assert made is not None
    kept = {name: memory.zeros("cpu") for name, memory in made.memories.items()}
    gradient = torch.randn(keyspace.size, generator=torch.Generator().manual_seed(0))
    pieces, count = made.push(0, gradient, kept, turn=0)
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


def test_a_bucket_takes_layers_from_the_last_one_on_until_it_is_full():
    for seed in range(24):
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


def test_a_ring_takes_two_passes_of_its_workers():
    """2 (W - 1) latencies and 2 (W - 1) / W of the bytes on the slowest link; half duplex takes twice as long."""
    for seed in range(24):
        chance = random.Random(seed)
        workers, rounds, rows = chance.randint(1, 9), 4, chance.randint(8, 400)
        latency_s, byte_s = chance.choice([0.0, 1e-3, 0.02]), chance.uniform(1e3, 1e6)
        compute_s, duplex = chance.uniform(0.01, 1), chance.choice(["full", "half"])
        wire, prune = chance.choice([2, 4]), chance.choice(["none", "powersgd:2"])
        cluster = {"aggregate": "allreduce", "bandwidth_bit_s": 8 * byte_s, "latency_s": latency_s, "duplex": duplex,
                   "compute_s": compute_s, "wire_bytes": wire}  # fmt: skip
        per_host, inside_byte_s = chance.choice([(1, 1e9), (3, 1e9), (4, 500.0)])
        cluster |= {"per_host": per_host, "intra_host_bandwidth_bit_s": 8 * inside_byte_s}
        if chance.random() < 0.3:  # in effect during the whole run
            cluster["bandwidth_at"], byte_s = {1e-9: 4 * byte_s * 8}, 4 * byte_s
        byte_s = min(byte_s if workers > per_host else 1e9, inside_byte_s)
        run = timed(model=[(rows, 60)], workers=workers, pushes=rounds * workers, cluster=cluster, prune=prune)
        table = pd.DataFrame(finished(run).pushes, columns=PUSH_COLUMNS)
        ends = table.groupby("iteration").seconds.max().to_numpy()
        factored = prune != "none" and 4 * (rows + 60) < rows * 60
        sizes = [dense_bytes(2 * (60, rows)[turn % 2] if factored else rows * 60, wire) for turn in range(rounds)]
        shared = (workers - 1) / workers * (2 if duplex == "half" else 1) / byte_s
        pass_s = [(workers - 1) * latency_s + size * shared for size in sizes]
        steps = [answer + compute_s + push for answer, push in pairwise(pass_s)]
        assert np.diff(ends) == pytest.approx(steps, rel=1e-6, abs=1e-9)
