"""Requests layer by layer, end to end: the same weights as without, sooner, on every engine."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import torch
from tiny import Diverges, net, tiny
from torch import nn

from pslab.config.run import Run
from pslab.lab.records.record import Result
from pslab.lab.runs.run import sweep

LINK = {"bandwidth_bit_s": 4e6, "latency_s": 1e-4, "compute_s": 4e-3}


class Attention(nn.Module):
    """Rows of a digit as a sequence; the attention's output projection calls no hook."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.attention = nn.Linear(7, 8), nn.MultiheadAttention(8, 2, batch_first=True)
        self.output = nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.project(x.squeeze(1))
        return self.output((x + self.attention(x, x, x, need_weights=False)[0]).mean(1))


class Wide(nn.Sequential):
    """So wide that libraries sum up its products in different orders."""

    def __init__(self) -> None:
        super().__init__(*net(512))


class Normalized(nn.Module):
    """Convolution and batch normalization: a model with buffers, which no process may share."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.output = nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.Linear(100, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.output(self.norm(self.conv(x)).relu().flatten(1))


class InputFirst:
    """The request of the layer that is nearest to the input."""

    def pick(self, ready: tuple[Any, ...], view: Any) -> Any:
        return min(ready, key=lambda request: view.layers[request.range])


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[Result]]:
    results = tmp_path_factory.mktemp("results")
    return functools.partial(sweep, results=results, progress=False)


def layered(run: Run, **fields: Any) -> Run:
    return run.but(ranges="layers", **fields)


FIELDS: dict[str, dict[str, Any]] = {
    "dense": {}, "attention": {"model": Attention}, "pruned": {"prune": "static:10%", "pull": "changed"},
    "normalized": {"model": Normalized}, "momentum": {"optimizer": "sgd:momentum=0.9", "schedule": "linear"},
    "adagrad": {"rate": "adagrad", "learning_rate": 0.02},
}  # fmt: skip
SYNCS = ("asp", "backup:1", "ssp:1", "dssp:1,2", "elastic:2")


def on_every_engine(names: Iterable[str], really: int) -> list[Any]:
    """Each in virtual time; on real processes the first few, and all of them where time does not matter."""
    real = [pytest.param("local", name, marks=[pytest.mark.slow] if place >= really else [])
            for place, name in enumerate(names)]  # fmt: skip
    return [*(("virtual", name) for name in names), *real]


@pytest.mark.one_of(4)
@pytest.mark.parametrize(("engine", "name"), on_every_engine(tuple(FIELDS), 3))
def test_layered_bsp_leaves_the_bits_of_whole_bsp(make: Callable[..., list[Result]], engine: str, name: str):
    whole = tiny(workers=2, engine=engine, cluster=LINK, pushes=12, **FIELDS[name])
    results = make([whole, layered(whole), whole.but(ranges="layers:300")])
    for result in results:
        assert result.manifest["verdict"] == "valid", result.manifest
    assert (results[0].weights == results[1].weights).all()
    if name != "pruned":  # whose rule selects from each slice of a layer
        assert (results[0].weights == results[2].weights).all()
    assert results[0].weights.std() > 0


@pytest.mark.parametrize("library", ["mkl", "onednn"])
def test_layers_are_multiplied_by_the_library_of_the_whole_model(
    make: Callable[..., list[Result]], library: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PSLAB_PRODUCTS", library)
    whole = tiny(workers=2, engine="local", cluster=LINK, pushes=4, model=Wide, batch_size=64)
    apart, together = make([layered(whole), whole])
    assert torch.equal(torch.as_tensor(apart.weights), torch.as_tensor(together.weights))


@pytest.mark.one_of(6)
@pytest.mark.parametrize(("engine", "sync"), on_every_engine(SYNCS, 2))
def test_layered_runs_of_every_policy_learn_and_are_valid(make: Callable[..., list[Result]], engine: str, sync: str):
    run = layered(tiny(workers=3, engine=engine, sync=sync, pushes=90, cluster={**LINK, "slow": {0: 2.0}}))
    (result,) = make([run])
    assert result.manifest["verdict"] == "valid", result.manifest
    accuracy = result.accuracy.accuracy
    assert accuracy.iloc[-1] > accuracy.iloc[0] + 0.2


@pytest.mark.parametrize("engine", ["virtual", "local"])
def test_communication_hides_behind_computation(make: Callable[..., list[Result]], engine: str):
    run = tiny(workers=2, engine=engine, pushes=20, cluster=LINK, sync="asp")
    whole, by_layer = make([run, layered(run)])
    pushed = by_layer.phases[by_layer.phases.phase == "push"]
    computed = by_layer.phases[by_layer.phases.phase == "compute"]
    for worker in (0, 1):
        own = computed[(computed.worker == worker) & (computed.iteration == 3)]
        first = pushed[(pushed.worker == worker) & (pushed.iteration == 3)].begin_s.min()
        assert first < own.end_s.max()  # a push begins while lower layers go backward
    assert set(by_layer.pushes.range) == {0, 1}
    assert set(whole.pushes.range) == {0}


def test_a_layers_forward_pass_waits_for_its_own_weights_alone(make: Callable[..., list[Result]]):
    """Forward passes of the first layer begin before the last layer's weights are there."""
    slow = {**LINK, "bandwidth_bit_s": 1e6, "duplex": "half", "latency_s": 0.0}
    run = layered(tiny(workers=1, engine="virtual", sync="bsp", pushes=10, cluster=slow), order=InputFirst())
    (result,) = make([run])
    begun = result.phases[result.phases.phase == "compute"].groupby("iteration").begin_s.min()
    pulled = result.phases[result.phases.phase == "pull"].groupby("iteration").end_s.max()
    assert (begun.to_numpy()[1:8] < pulled.to_numpy()[:7]).all()


def test_a_layered_worker_leaves_and_joins_again(make: Callable[..., list[Result]]):
    moves = {"leave": {1: 0.1}, "join": {1: 0.2}}
    (result,) = make([layered(tiny(workers=3, engine="virtual", sync="asp", pushes=90, cluster={**LINK, **moves}))])
    assert result.manifest["verdict"] == "valid", result.manifest
    there = result.pushes[result.pushes.worker == 1].seconds
    assert not ((there > 0.11) & (there < 0.2)).any()
    assert (there > 0.2).any()


def test_divergence_is_a_result_in_the_midst_of_a_backward_pass(make: Callable[..., list[Result]]):
    for engine in ("virtual", "local"):
        (result,) = make([layered(tiny(workers=2, engine=engine, model=Diverges, cluster=LINK))])
        assert result.manifest["outcome"] == "diverged"


def test_layer_shares_may_be_given(make: Callable[..., list[Result]]):
    shares = ((0.0, 1.0), (0.0, 0.0))
    run = layered(tiny(workers=1, engine="timing", pushes=5, cluster={"compute_s": 2.0, "layer_shares": shares}))
    (result,) = make([run])
    ends = result.phases[result.phases.phase == "compute"].groupby("iteration").end_s.max()
    assert np.diff(ends) == pytest.approx(2.0)
