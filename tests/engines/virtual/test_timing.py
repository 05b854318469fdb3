"""Runs without tensors: the same instants, sizes and pushes as with them."""

from __future__ import annotations

import cProfile
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from tiny import finished, tiny
from tools.audit.verdict import audit
from torch import nn

from pslab.config.cluster import MEASURED, PRESETS, Cluster
from pslab.config.run import Run
from pslab.config.table import ROWS
from pslab.engines.experiment.wire import PushInfo, Wanted
from pslab.engines.server.ledger import PUSH_COLUMNS
from pslab.engines.virtual.timing import Sizes, execute, job_without_tensors
from pslab.errors import ConfigError
from pslab.lab.runs import machine
from pslab.lab.runs.resolve import resolve
from pslab.policies.partition import Cut
from pslab.protocol.messages import NO_WORKER, Pull, Push
from pslab.protocol.server import Reply, Step
from pslab.tensors.compression.bits import positions
from pslab.tensors.compression.frame import length
from pslab.tensors.compression.uncompressed import dense_bytes

LAB = {"preset": "lab", "slow": {0: 3.0}}
KILL = {"what": "kill", "worker": 1, "iteration": 3}
THIN = {**LAB, "bandwidth_bit_s": 1e6}
LINK = {"bandwidth_bit_s": 4e6, "latency_s": 1e-4, "compute_s": 4e-3, "compute_sigma": 0.2}


class Buckets:
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
    run = tiny(engine="timing", cluster=cluster, model=deep, ranges=Buckets(size), workers=2, pushes=10)
    assert finished(run).facts["seconds"] == pytest.approx(5.0, rel=1e-4)


@pytest.mark.parametrize("fields", [{}, {"prune": "static:5%"}], ids=str)
def test_merged_layers_end_in_the_weights_of_the_whole_model(fields: dict[str, Any]):
    run = tiny(engine="virtual", cluster=LINK, model=deep, **fields)
    expected, found = (finished(run.but(ranges=ranges)) for ranges in ("whole", Buckets(2)))
    assert found.weights.tobytes() == expected.weights.tobytes()


def deep() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(49, 8), *(nn.Linear(8, 8) for _ in range(4)), nn.Linear(8, 10))


@pytest.mark.parametrize("fields", [{}, {"sync": "asp"}, {"sync": "backup:1"}, {"servers": 4}], ids=str)
def test_what_a_run_takes_grows_with_the_number_of_its_ranges_and_not_with_its_square(fields: dict[str, Any]):
    counts = []
    for most in (8, 4):
        run = tiny(engine="timing", cluster=LINK, pushes=12, ranges=f"layers:{most}", **fields)
        experiment, profile = resolve(run), cProfile.Profile()
        profile.runcall(execute, experiment, lambda news: None)
        counts.append((len(experiment.parts), sum(each.callcount for each in profile.getstats())))
    (few, cheap), (many, dear) = counts
    assert dear / cheap < 1.15 * many / few


@pytest.mark.one_of(2)
@pytest.mark.parametrize(
    "fields",
    [*({"sync": sync, "prune": "range:5", "pull": "range", "cluster": THIN} for sync in ("bsp", "asp", "eager")),
     {"sync": "ssp:2", "ranges": "layers", "cluster": LINK}, {"sync": "elastic:2", "cluster": LAB},
     *({"sync": "asp", "rate": rate, "cluster": LAB} for rate in ROWS["rate"]),
     {"quantize": "qsgd:4", "sync": "asp", "cluster": THIN},
     {"quantize": "efsign", "ranges": "layers", "cluster": LINK},
     {"prune": "randomk:5%", "quantize": "int8", "cluster": THIN, "sync": "local:3"},
     {"prune": "range:5", "pull": "range", "quantize": "e3m0", "cluster": THIN, "sync": "eager"},
     {"prune": "lowrank:1", "sync": "asp", "ranges": "layers:400", "cluster": LINK},
     {"prune": "powersgd:2,after=2", "quantize": "fp16", "cluster": THIN, "sync": "local:2"},
     {"prune": "demo:topk=4,chunk=16", "cluster": LAB},
     {"prune": "sketch:cols=30", "ranges": "layers", "cluster": LINK},
     {"prune": "lowrank:1", "sync": "streaming:4,2", "cluster": THIN},
     {"downlink": "int8", "cluster": THIN},
     {"downlink": "efsign", "ranges": "layers", "sync": "ssp:2", "cluster": LINK},
     {"downlink": "int8", "servers": 2, "ranges": "layers:400", "sync": "asp", "cluster": {**LAB, "faults": [KILL]},
      "on_death": "restart", "lease_s": 1.0}],
    ids=str,
)  # fmt: skip
def test_a_run_without_tensors_takes_as_long_and_sends_as_much(fields: dict[str, Any]):
    run = tiny(engine="virtual", pushes=24, **fields)
    with_tensors, without = (finished(run.but(engine=engine))
                             for engine in ("virtual", "timing"))  # fmt: skip
    assert np.array_equal(with_tensors.phases, without.phases)
    one, two = (
        pd.DataFrame(each.pushes, columns=PUSH_COLUMNS).drop(columns="loss") for each in (with_tensors, without)
    )
    pd.testing.assert_frame_equal(one, two)
    pushes = two.assign(loss=np.nan)[list(PUSH_COLUMNS)].astype(dict.fromkeys(PUSH_COLUMNS[:7], int))
    assert audit(run.but(engine="timing"), {"pushes": pushes}, without.facts).verdict != "invalid"


@pytest.mark.parametrize(("prune", "within"), [("static:1%", 1.5), ("static:10%", 1.5), ("none", 1.2)])
def test_answers_are_as_long_as_if_pushes_had_nothing_in_common(prune: str, within: float):
    run = tiny(engine="virtual", pushes=60, sync="asp", prune=prune, pull="changed", cluster=THIN)
    real, without = (pd.DataFrame(finished(run.but(engine=engine)).pushes, columns=PUSH_COLUMNS)
                     for engine in ("virtual", "timing"))  # fmt: skip
    assert 1 <= without.bytes_down.sum() / real.bytes_down.sum() < within
    assert without.bytes_up.sum() == pytest.approx(real.bytes_up.sum(), rel=0.1)


def test_compressed_answers_are_as_long_as_real_ones():
    run = tiny(engine="virtual", pushes=60, sync="asp", downlink="static:5%+fp16", cluster=THIN)
    real, without = (pd.DataFrame(finished(run.but(engine=engine)).pushes, columns=PUSH_COLUMNS)
                     for engine in ("virtual", "timing"))  # fmt: skip
    assert without.bytes_down.sum() == pytest.approx(real.bytes_down.sum(), rel=0.02)


def test_an_answer_has_what_the_pushes_since_the_last_one_change():
    def laid(**fields: object) -> list[int]:
        run = tiny(engine="timing", prune="static:1%", pull="changed", cluster=LAB, **fields)
        job = job_without_tensors(resolve(run))
        sizes, (part,) = Sizes(job), job.parts
        for version in (1, 2):
            pushes = tuple(Push(worker, 0, 0, 0, PushInfo(1, part.size // 2, 0.0, 0.0)) for worker in range(version))
            sizes.apply(Step(0, pushes, True, version), 1.0, ())
        return [sizes.lay(Reply(Pull(0, 0, 1, before, Wanted(0, 0)), 2, NO_WORKER)) for before in (0, 1, 2)]

    def spread(count: int) -> int:
        even = torch.arange(count) * 1930 // max(1, count)
        return dense_bytes(1930, 4) if count == 1930 else length([[positions(even, 1930), torch.zeros(count)]])

    assert laid() == [spread(round(1930 * share)) for share in (0.875, 0.75, 0.0)]
    assert laid(optimizer="adam") == [spread(count) for count in (1930, 1930, 0)]


@pytest.mark.parametrize("fields", [
    {"prune": "std:2"}, {"prune": "dynamic"}, {"prune": "static:1%,mode=frozen"}, {"prune": "std:2,warm_up=1"},
    {"pull": "keys"}, {"downlink": "std:2"},
], ids=str)  # fmt: skip
def test_pushes_of_unknown_length_need_tensors(fields: dict[str, Any]):
    words = r"how much is sent: use (none, static, dgc, .*, with pull='whole'|static, a code)|nobody knows the keys"
    with pytest.raises(ConfigError, match=words):
        resolve(tiny(engine="timing", cluster=LAB, **fields))


def test_a_large_model_needs_no_tensors():
    run = Run(model="torchvision:vgg16", engine="timing", ranges="layers", cluster={"compute_s": 0.5})
    experiment = resolve(run)
    assert experiment.keyspace.size == 138_357_544
    assert experiment.weights.device.type == "meta"
    assert len(experiment.parts) == len(experiment.layer_shares) == 16


class Wide(nn.Module):
    """165 million weights."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(784, 12_000), nn.Linear(12_000, 12_000)
        self.output = nn.Linear(12_000, 1_000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.output(self.last(self.first(x.flatten(1)).relu()).relu())
        return output


def test_a_large_model_of_ones_own_is_timed_without_its_weights(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(machine, "free_memory_bytes", lambda: 2**20)
    experiment = resolve(Run(model=Wide, engine="timing", ranges="layers", cluster="lab", pushes=16))
    assert experiment.weights.is_meta
    assert (experiment.keyspace.size, len(experiment.layer_shares)) == (165_433_000, 3)
    assert finished(experiment).facts["pushes"] == 16
    with pytest.raises(ConfigError, match="GiB are free here: use a smaller model"):  # where weights are made
        resolve(Run(model="mlp:12000", engine="virtual", cluster="lab"))


def test_a_presets_costs_are_those_of_the_runs_own_weights():
    size = sum(part.size for part in resolve(tiny(engine="timing", cluster="lab")).parts)
    ours, given = (resolve(tiny(engine="timing", cluster=cluster)).cluster
                   for cluster in ("lab", {"preset": "lab", "decode_s": 1.0}))  # fmt: skip
    assert ours.select_s == pytest.approx(1.4e-3 * size / MEASURED)
    assert ours.message_s == PRESETS["lab"]["message_s"]
    assert (given.decode_s, given.apply_s) == (1.0, ours.apply_s)
    assert resolve(Run(engine="timing", cluster="lab")).cluster == Cluster(**PRESETS["lab"])
