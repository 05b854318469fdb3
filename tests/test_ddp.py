"""pslab's compressors under torch's DistributedDataParallel: the weights of a run under a barrier, to the bit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.distributed as dist
from parallel import BATCH, PROCESSES, RATE, Case, Trained, both
from tiny import finished, net, tiny
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import pslab
from pslab.config.table import ROWS
from pslab.errors import ConfigError, FrameError

DECAY = {"weight_decay": 0.01}  # not plain SGD: the server, too, adds up gradients before it steps
COMPRESSORS = {
    "dense": Case(optimizer=DECAY),
    "static": Case("static:5%", optimizer={"momentum": 0.9}),
    "std": Case("std:2", optimizer={"momentum": 0.9}),
    "dgc": Case("dgc:5%,warm_up=0", optimizer=DECAY),
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
           for name in ("static", "dgc", "static, then qsgd", "signum", "dynamic", "powersgd", "demo",
                        "ef21", "sketch")}  # fmt: skip
OTHERS = {"in pieces": IN_PIECES, "single": replace(IN_PIECES, dtype=torch.float32),
          "broken": replace(COMPRESSORS["static"], broken=2)}  # fmt: skip


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Trained, ...]]:
    """What both processes end with in every case: they are spawned once."""
    cases = {**COMPRESSORS, **STOPPED, **OTHERS}
    return dict(zip(cases, both([*cases.values()], tmp_path_factory.mktemp("ddp")), strict=True))


def in_the_lab(case: Case) -> np.ndarray:
    """The weights of a run with one worker for each process."""
    optimizer = "sgd:" + ",".join(f"{name}={value}" for name, value in case.optimizer.items())
    run = tiny(engine="virtual", cluster="lab", workers=PROCESSES, prune=case.prune, quantize=case.quantize,
               batch_size=BATCH, learning_rate=RATE, optimizer=optimizer, seed=case.seed,
               pushes=PROCESSES * case.steps, dtype=str(case.dtype).removeprefix("torch."))  # fmt: skip
    return finished(run).weights


@pytest.mark.parametrize("name", [*COMPRESSORS, "in pieces", "single"])
def test_the_weights_are_those_of_a_run_under_a_barrier_to_the_bit(name: str, ended: dict[str, tuple[Trained, ...]]):
    case, (first, second) = {**COMPRESSORS, **OTHERS}[name], ended[name]
    assert (first.error, second.error) == ("", "")
    assert torch.equal(first.weights, second.weights)
    assert first.weights.numpy().tobytes() == in_the_lab(case).tobytes()


@pytest.mark.parametrize("name", STOPPED)
def test_training_that_goes_on_from_a_checkpoint_has_the_bits_of_one_that_was_not_stopped(
    name: str, ended: dict[str, tuple[Trained, ...]]
):
    for stopped, whole in zip(ended[name], ended[name.partition(", stopped")[0]], strict=True):
        assert stopped.error == ""
        assert torch.equal(stopped.weights, whole.weights)
        if whole.residual is not None:
            assert torch.equal(stopped.residual, whole.residual)


def test_a_gradient_that_is_not_finite_ends_training_in_all_processes(ended: dict[str, tuple[Trained, ...]]):
    there, here = ended["broken"]
    assert there.error == "NonFinite: process 1, gradient 2: it is not finite"
    assert here.error.startswith("NonFinite: process 1, gradient 2: the")
    assert torch.equal(there.weights, here.weights)


def test_pruned_and_quantized_gradients_take_a_few_bytes(ended: dict[str, tuple[Trained, ...]]):
    sent = {name: found[0].sent_bytes / COMPRESSORS[name].steps for name, found in ended.items() if name in COMPRESSORS}
    n, pieces = 1930, (1568, 32, 320, 10)
    assert sent["dense"] == 12 + len(pieces) * (1 + 4) + 8 * n
    # heads, and parts that begin at multiples of 8 bytes
    assert 0 <= sent["efsign"] - sum(4 + -(-size // 8) for size in pieces) <= 12 + len(pieces) * (1 + 2 * (4 + 8))
    assert sent["static"] < sent["dense"] / 10
    assert sent["static, then qsgd"] < sent["static"] / 3


# -- one process -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DistributedDataParallel]:
    """A model that this process trains by itself."""
    where = (tmp_path_factory.mktemp("alone") / "store").as_uri()
    dist.init_process_group("gloo", init_method=where, rank=0, world_size=1)
    yield DistributedDataParallel(net())
    dist.destroy_process_group()


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in ("prune", "quantize") for name in ROWS[kind]])
def test_every_rule_has_a_hook_but_one_whose_ranges_are_pulled(kind: str, name: str, alone: DistributedDataParallel):
    rule = {kind: ROWS[kind][name].example or name}
    if name == "range":
        with pytest.raises(ConfigError, match="nothing is pulled"):
            pslab.ddp.hook(alone, **rule)
        return
    model = DistributedDataParallel(net())
    model.register_comm_hook(*pslab.ddp.hook(model, **rule, epoch_iterations=10))
    model(torch.ones(4, 49)).square().sum().backward()
    assert all(bool(parameter.grad.isfinite().all()) for parameter in model.parameters())
    assert any(bool(parameter.grad.any()) for parameter in model.parameters())


@pytest.mark.parametrize("size", [-1, 2**62])
def test_a_size_that_no_frame_has_is_refused(
    size: int, alone: DistributedDataParallel, monkeypatch: pytest.MonkeyPatch
):
    gather = dist.all_gather

    def forged(found: list[torch.Tensor], own: torch.Tensor, group: object) -> None:
        gather(found, own, group=group)
        if own.dtype == torch.int64:
            found[0].fill_(size)

    model = DistributedDataParallel(net())
    model.register_comm_hook(*pslab.ddp.hook(model, "static:5%"))
    monkeypatch.setattr(dist, "all_gather", forged)
    with pytest.raises(FrameError, match=rf"process 0, gradient 0: a frame of {size} bytes; at most \d+"):
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


@pytest.mark.parametrize(
    ("field", "arguments", "words"),
    [
        ("prune", {"prune": "statik:1%"}, "did you mean 'static'"),
        ("prune", {"prune": "dgc:1%"}, "epoch_iterations=len(loader)"),
        ("quantize", {"prune": "static:1%", "quantize": "sign"}, "use prune='none', or efsign instead"),
        ("quantize", {"prune": "static:1%,residual=off", "quantize": "onebit"}, "residual=on in both"),
        ("seed", {"seed": -1}, "from 0 to"),
    ],
)
def test_what_cannot_be_sent_is_refused_before_training(
    field: str, arguments: dict[str, object], words: str, alone: DistributedDataParallel
):
    with pytest.raises(ConfigError) as refused:
        pslab.ddp.hook(alone, **arguments)
    assert refused.value.field == field
    assert words in str(refused.value)


def test_a_bare_module_a_group_without_gloo_and_short_floats_are_refused(
    alone: DistributedDataParallel, monkeypatch: pytest.MonkeyPatch
):
    with pytest.raises(ConfigError, match="wrap it first"):
        pslab.ddp.hook(net())
    with pytest.raises(ConfigError, match="bfloat16"):
        pslab.ddp.hook(DistributedDataParallel(net().to(torch.bfloat16)))
    monkeypatch.setattr(dist, "get_backend", lambda group: "nccl")
    with pytest.raises(ConfigError, match="new_group"):
        pslab.ddp.hook(alone)


def test_a_state_of_another_rule_model_or_process_is_refused(alone: DistributedDataParallel):
    own, _ = pslab.ddp.hook(alone, "static:1%")
    others = [pslab.ddp.hook(alone, "static:2%")[0], pslab.ddp.hook(DistributedDataParallel(net(16)), "static:1%")[0]]
    for field, state in zip(("prune", "entries"), others, strict=True):
        with pytest.raises(ConfigError) as refused:
            own.load_state_dict(state.state_dict())
        assert refused.value.field == field
    saved = own.state_dict()
    with pytest.raises(ConfigError, match="process=1"):
        own.load_state_dict({**saved, "of": {**saved["of"], "process": 1}})
