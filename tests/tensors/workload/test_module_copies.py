"""What a module carries beside its weights: kept in the copies that a run trains, or refused by name."""

from __future__ import annotations

import copy
import functools
import warnings
from typing import Any

import cloudpickle
import pytest
import torch
from tiny import finished, tiny
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune
from torch.optim.swa_utils import AveragedModel

from pslab.errors import ConfigError
from pslab.lab.runs.resolve import resolve
from pslab.tensors.workload.keyspace import Keyspace
from pslab.tensors.workload.models import build_model, check_model
from pslab.tensors.workload.module_copies import copied

X, Y = torch.linspace(-1, 2, 24).view(6, 4), torch.linspace(0, 1, 12).view(6, 2)


def halved(gradient: Tensor) -> Tensor:
    return gradient / 2


def hooked(kind: str) -> nn.Module:
    module = nn.Linear(4, 2)
    hook: Any = halved if kind == "register_hook" else lambda parameter: None
    getattr(module.bias, kind)(hook)
    return module


def of_class() -> nn.Module:
    class Marked(nn.Parameter):
        pass

    module = nn.Linear(4, 2)
    module.weight = Marked(module.weight.detach())
    return module


def normed() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return nn.Sequential(nn.utils.weight_norm(nn.Linear(4, 2)))


class Head(nn.Sequential):
    """Names some of its parameters alone."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 2), nn.Linear(2, 2))

    def parameters(self, recurse: bool = True) -> Any:
        return self[1].parameters()


def sharing(kind: str) -> nn.Module:
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    if kind == "buffer":
        module.register_buffer("twin", module[0].weight.detach()[2:])
    else:
        module[1].weight.data = module[0].weight.data
    return module


def enclosing(kind: str) -> nn.Module:
    """A function in a module refers to the object: in evaluation alone, or to say whether it trains."""
    module: Any = nn.Sequential(nn.Linear(4, 2))
    forward = module[0].forward
    if kind == "hook":
        module[0].register_forward_hook(lambda own, x, output: output if own.training else output * module[0].bias)
    elif kind == "table":
        module.table = {"drop": [functools.partial(lambda x, net: x, net=1), lambda x, net=module: x * net.training]}
    else:
        module[0].forward = lambda x: 2 * forward(x)
    return module


LOST = {
    "hook": (lambda: hooked("register_hook"), "parameter bias has a hook .halved., which is lost .* hook in forward"),
    "hook after accumulation": (lambda: hooked("register_post_accumulate_grad_hook"), "parameter bias has a hook"),
    "class": (of_class, "parameter weight is of the class Marked"),
    "other parameters": (Head, r"its parameters\(\) gives others than its modules have"),
    "shared memory": (lambda: sharing("parameter"), "0.weight and 1.weight share memory, .*use one Parameter"),
    "shared with a buffer": (lambda: sharing("buffer"), "0.weight and twin share memory"),
    "hook that holds": (lambda: enclosing("hook"), r"module 0 \(Linear\) has in _forward_hooks the function enclosing"),
    "function that holds": (lambda: enclosing("table"), "it has in table the function .*or be a method"),
    "forward that holds": (lambda: enclosing("forward"), r"module 0 \(Linear\) has in forward the function enclosing"),
    "averaged": (lambda: AveragedModel(nn.Linear(4, 2)), "update_parameters .*: give the model that it averages"),
    "parametrized": (lambda: parametrizations.weight_norm(nn.Linear(4, 2)), "is parametrized, .*compute the weight in"),
    "pruned": (lambda: prune.l1_unstructured(nn.Linear(4, 2), "weight", 0.5), "it keeps weight, .*call prune.remove"),
    "normed": (normed, r"module 0 \(Linear\) keeps weight, a tensor computed from parameters .*remove_weight_norm"),
    "lazy": (lambda: nn.LazyLinear(2), "parameter weight is lazy: call the module once on a sample"),
    "lazy statistics": (lambda: nn.Sequential(nn.LazyBatchNorm1d(affine=False)), "buffer 0.running_mean is lazy"),
}  # fmt: skip


@pytest.mark.parametrize("given", ["object", "factory"])
@pytest.mark.parametrize("kind", LOST)
def test_what_a_copy_would_lose_is_refused_by_name(kind: str, given: str):
    factory, problem = LOST[kind]
    with pytest.raises(ConfigError, match=problem) as caught:
        build_model(factory() if given == "object" else factory, 0)
    assert caught.value.field == "model"


def test_parts_of_one_tensor_and_shared_parameters_are_taken():
    both, tied = torch.ones(2, 4, 4), nn.Linear(4, 4)
    parts = nn.ParameterList([nn.Parameter(both[0]), nn.Parameter(both[1])])
    build_model(nn.Sequential(parts, tied, tied), 0)


@pytest.mark.parametrize(("owner", "name"), [(nn.GELU, "forward"), (nn.functional, "gelu"), (nn.Module, "__call__")])
def test_what_was_replaced_in_a_library_is_refused(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str):
    run = tiny(model=lambda: nn.Sequential(nn.Linear(4, 2), nn.GELU()), data=lambda: (X, Y, X, Y), loss="mse",
               metric="loss", workers=1, batch_size=6, engine="virtual", cluster="lab")  # fmt: skip
    resolve(run)
    before = getattr(owner, name)
    monkeypatch.setattr(owner, name, functools.wraps(before)(lambda *given: before(*given)))
    words = f"{owner.__name__}.{name} was replaced in this process by code of {__name__}, and workers have"
    with pytest.raises(ConfigError, match=words):
        resolve(run)


def test_hooks_for_all_modules_of_a_process_are_refused():
    hook = nn.modules.module.register_module_forward_hook(lambda module, x, output: output)
    try:
        with pytest.raises(ConfigError, match=r"register_module_forward_hook, .*register hooks on the model"):
            build_model(nn.Linear(4, 2), 0)
    finally:
        hook.remove()


class Averaging(nn.Module):
    """Moves a second copy of its weights in each training pass."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(4, 2)
        self.mean = copy.deepcopy(self.net).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return self.mean(x)
        for mean, parameter in zip(self.mean.parameters(), self.net.parameters(), strict=True):
            mean.data += 0.1 * (parameter.detach() - mean + 1)
        return self.net(x)


class Enclosed(nn.Module):
    """A hook refers to the object, not to the module that it is called with."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.gain = nn.Linear(4, 2), nn.Parameter(torch.ones(2))
        self.net.register_forward_hook(lambda module, x, output: output * self.gain)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


@pytest.mark.parametrize(("model", "problem"), [(Averaging, "parameter mean.weight is changed by a training pass"),
                                                (Enclosed, "computes with parameter gain of this object")])  # fmt: skip
def test_passes_that_use_or_change_what_is_not_trained_are_refused(model: type[nn.Module], problem: str):
    with pytest.raises(ConfigError, match=problem):
        check_model(model(), X, Y, nn.functional.mse_loss, None)


class Scaled(nn.Module):
    """Its forward pass reads attributes of its parameters, and the hooks of its module scale a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 3), nn.Linear(3, 2)
        self.first.weight.gain, self.last.bias.gain = 3.0, 2.0  # type: ignore[assignment]
        self.last.bias.requires_grad_(False)
        self.last.register_full_backward_hook(lambda module, inputs, outputs: tuple(each / 2 for each in inputs))
        self.last.register_full_backward_pre_hook(lambda module, outputs: tuple(each / 5 for each in outputs))
        self.last.register_forward_pre_hook(lambda module, inputs: (inputs[0] * module.bias.gain,))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x) * self.first.weight.gain))


def test_attributes_of_parameters_are_in_every_copy():
    module = Scaled()
    shell = cloudpickle.loads(cloudpickle.dumps(Keyspace.of(module).shell(module)))
    for copy_of in (build_model(module, 0), copied(shell)):
        assert (copy_of.first.weight.gain, copy_of.last.bias.gain) == (3.0, 2.0)


def test_hooks_of_modules_train_as_in_torch():
    run = tiny(model=Scaled, data=lambda: (X, Y, X, Y), loss="mse", metric="loss", workers=1, batch_size=6, pushes=5,
               engine="virtual", cluster="lab", dtype="float64")  # fmt: skip
    plain = build_model(Scaled, run.seed).double()
    trained = [parameter for parameter in plain.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=run.learning_rate)
    for _ in range(run.pushes or 0):
        optimizer.zero_grad()
        nn.functional.mse_loss(plain(X.double()), Y.double()).backward()
        optimizer.step()
    wanted = torch.cat([parameter.detach().flatten() for parameter in trained])
    torch.testing.assert_close(torch.from_numpy(finished(run).weights.copy()), wanted)
