"""pslab's compressors under torch's DistributedDataParallel: the weights of a run under a barrier, to the bit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from parallel import BATCH, PROCESSES, RATE, Case, both
from refusals import check_refused
from tiny import net, tiny
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from whole import in_process

import pslab
from pslab.config.table import ROWS
from pslab.errors import ConfigError, FrameError

DECAY = {"weight_decay": 0.01}  # not plain SGD: the server, too, adds up gradients before it steps
COMPRESSORS = {
    "dense": Case(optimizer=DECAY),
    "static": Case("static:5%", optimizer={"momentum": 0.9}),
    "dgc that warms up and clips": Case("dgc:5%,clip=0.5,warm_up=1", optimizer=DECAY, more={"epoch_iterations": 32}),
    "dynamic": Case("dynamic:3,mode=literal", optimizer=DECAY),
    "randomk": Case("randomk:10%", optimizer=DECAY),
    "qsgd": Case(quantize="qsgd:4", optimizer=DECAY),
    "efsign": Case(quantize="efsign", optimizer=DECAY),
    "signum": Case(quantize="signum:0.9", optimizer=DECAY),
    "static, then qsgd": Case("static:5%", "qsgd:4,residual=on", optimizer={"momentum": 0.9}),
    "adaq, then onebit": Case("adaq:5%", "onebit", optimizer=DECAY),
    "lowrank": Case("lowrank:2", optimizer=DECAY),
    "powersgd": Case("powersgd:2,after=1", "fp16", optimizer=DECAY),
    "demo": Case("demo:topk=4,chunk=16", optimizer=DECAY),
    "ef21": Case("ef21:5%", optimizer=DECAY),
    "sketch": Case("sketch:cols=100", "fp16", optimizer=DECAY),
}
IN_PIECES = replace(COMPRESSORS["static, then qsgd"], bucket_mb=0.002)  # 1,930 numbers in several buckets
STOPPED = {f"{name}, stopped": replace(COMPRESSORS[name], stopped=3)
           for name in ("static", "dgc that warms up and clips", "static, then qsgd", "signum", "dynamic", "powersgd",
                        "demo", "ef21", "sketch")}  # fmt: skip
OTHERS = {"in pieces": IN_PIECES, "single": replace(IN_PIECES, dtype=torch.float32),
          "broken": replace(COMPRESSORS["static"], broken=2)}  # fmt: skip
CASES = {**COMPRESSORS, **STOPPED, **OTHERS}
#: One of each kind: whole, sparse, with a momentum, coded, both, factors, and what is combined at the server.
FIRST = {"dense", "static", "dgc that warms up and clips", "efsign", "static, then qsgd", "powersgd", "ef21", "single",
         "broken", "dgc that warms up and clips, stopped", "powersgd, stopped",
         "static, then qsgd, stopped"}  # fmt: skip


def in_the_lab(case: Case) -> np.ndarray:
    """The weights of a run with one worker for each process."""
    optimizer = "sgd:" + ",".join(f"{name}={value}" for name, value in case.optimizer.items())
    run = tiny(engine="virtual", cluster="lab", workers=PROCESSES, prune=case.prune, quantize=case.quantize,
               batch_size=BATCH, learning_rate=RATE, optimizer=optimizer, seed=case.seed,
               pushes=PROCESSES * case.steps, dtype=str(case.dtype).removeprefix("torch."))  # fmt: skip
    return in_process(run).weights


@pytest.mark.parametrize("names", [FIRST, pytest.param({*CASES} - FIRST, marks=pytest.mark.slow)], ids=["", "others"])
def test_two_processes_end_with_the_bits_of_a_run_under_a_barrier_also_from_a_checkpoint(
    names: set[str], tmp_path: Path
):
    asked = {*names, *(name.partition(", stopped")[0] for name in names)}
    cases = {name: case for name, case in CASES.items() if name in asked}
    ended = dict(zip(cases, both([*cases.values()], tmp_path), strict=True))
    for name, (first, second) in ended.items():
        whole = ended[name.partition(", stopped")[0]]
        if name == "broken":
            assert first.error.startswith("NonFinite: process 1, gradient 2: its gradient is not finite: load a ")
            assert second.error.startswith("NonFinite: process 1, gradient 2: the")
            assert torch.equal(first.weights, second.weights)
            continue
        assert (first.error, second.error) == ("", ""), name
        assert first.weights.numpy().tobytes() == in_the_lab(CASES[name]).tobytes(), name
        for stopped, alone in zip((first, second), whole, strict=True):
            assert torch.equal(stopped.weights, first.weights), name
            assert stopped.residual is None or torch.equal(stopped.residual, alone.residual), name
    if "dense" in names:
        sent = {name: found[0].sent_bytes / CASES[name].steps for name, found in ended.items()}
        pieces = (1568, 32, 320, 10)  # of a frame with heads, whose parts begin at multiples of 8 bytes
        assert sent["dense"] == 12 + len(pieces) * (1 + 4) + 8 * sum(pieces)
        assert 0 <= sent["efsign"] - sum(4 + -(-size // 8) for size in pieces) <= 12 + len(pieces) * (1 + 2 * (4 + 8))
        assert sent["static"] < sent["dense"] / 10
        assert sent["static, then qsgd"] < sent["static"] / 3


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DistributedDataParallel]:
    """A model that this process trains by itself."""
    where = (tmp_path_factory.mktemp("alone") / "store").as_uri()
    dist.init_process_group("gloo", init_method=where, rank=0, world_size=1)
    yield DistributedDataParallel(net())
    dist.destroy_process_group()


def test_every_rule_has_a_hook_but_one_whose_ranges_are_pulled(alone: DistributedDataParallel):
    for kind, name in [(row.kind, row.name) for rows in (ROWS["prune"], ROWS["quantize"]) for row in rows.values()]:
        if name == "range":
            continue
        model = DistributedDataParallel(net())
        rule = {kind: ROWS[kind][name].example or name}
        model.register_comm_hook(*pslab.ddp.hook(model, **rule, epoch_iterations=10))
        model(torch.ones(4, 49)).square().sum().backward()
        assert all(bool(parameter.grad.isfinite().all()) for parameter in model.parameters()), name
        assert any(bool(parameter.grad.any()) for parameter in model.parameters()), name


@pytest.mark.parametrize("size", [-1, 2**62])
def test_a_size_that_no_frame_has_is_refused(
    size: int, alone: DistributedDataParallel, monkeypatch: pytest.MonkeyPatch
):
    model = DistributedDataParallel(net())
    model.register_comm_hook(*pslab.ddp.hook(model, "static:5%"))
    monkeypatch.setattr(dist, "all_gather", lambda found, own, group: found[0].fill_(size))
    with pytest.raises(FrameError, match=rf"process 0, gradient 0: a frame of {size} bytes, but at most \d+"):
        model(torch.ones(4, 49)).square().sum().backward()


def test_a_rule_of_ones_own_is_sent_and_the_rest_is_kept(alone: DistributedDataParallel):
    class Half:
        residual = True

        def select(self, v: torch.Tensor) -> torch.Tensor:
            return torch.arange(len(v) // 2)

    model = DistributedDataParallel(nn.Linear(3, 2, bias=False))
    state, hook = pslab.ddp.hook(model, Half())
    model.register_comm_hook(state, hook)
    model(torch.ones(1, 3)).sum().backward()
    assert model.module.weight.grad.flatten().tolist() == [1, 1, 1, 0, 0, 0]
    assert state.state_dict()["kept"]["residual"].tolist() == [0, 0, 0, 1, 1, 1]


def test_what_cannot_be_sent_is_refused_before_training(
    alone: DistributedDataParallel, monkeypatch: pytest.MonkeyPatch
):
    own, saved = (state := pslab.ddp.hook(alone, "static:1%")[0]), state.state_dict()
    check_refused([
        *((field, lambda more=more: pslab.ddp.hook(alone, **more), words) for field, more, words in (
            ("prune", {"prune": "statik:1%"}, "did you mean 'static'"),
            ("prune", {"prune": ROWS["prune"]["range"].example}, "needs pulls, and DDP has none"),
            ("prune", {"prune": "dgc:1%"}, r"epoch_iterations=len\(loader\)"),
            ("quantize", {"prune": "static:1%", "quantize": "sign"}, "use prune='none', or quantize='efsign'"),
            ("quantize", {"prune": "static:1%,residual=off", "quantize": "onebit"}, "residual=on in both"),
            ("seed", {"seed": -1}, "from 0 to"))),
        ("prune", lambda: own.load_state_dict(pslab.ddp.hook(alone, "static:2%")[0].state_dict()), ""),
        ("entries", lambda: own.load_state_dict(
            pslab.ddp.hook(DistributedDataParallel(net(16)), "static:1%")[0].state_dict()), ""),
        ("process", lambda: own.load_state_dict({**saved, "of": {**saved["of"], "process": 1}}), "process=1"),
    ])  # fmt: skip
    for model, words in ((net(), "must be wrapped"), (DistributedDataParallel(net().to(torch.bfloat16)), "bfloat16")):
        with pytest.raises(ConfigError, match=words):
            pslab.ddp.hook(model)
    monkeypatch.setattr(dist, "get_backend", lambda group: "nccl")
    with pytest.raises(ConfigError, match="new_group"):
        pslab.ddp.hook(alone)
