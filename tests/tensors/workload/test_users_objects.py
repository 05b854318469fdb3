"""A user's objects against plain torch: models of every structure, with losses, metrics and data of every form.

A new kind of object is a row: its model and inputs, a loss, a metric or a form of data. The oracle trains on the same
first weights with torch.optim, one worker after another, and evaluates all test examples at once.
"""

from __future__ import annotations

import itertools
import pickle
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import cloudpickle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import Parts, huber, tiny, worst
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.swa_utils import update_bn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset, default_collate
from whole import in_process

from pslab.lab.runs.resolve import resolve
from pslab.lab.runs.run import sweep
from pslab.tensors.workload.data import Batches, Dataset, resolve_data
from pslab.tensors.workload.keyspace import KeyRange, Keyspace
from pslab.tensors.workload.models import CNN, MLP, build_model, in_dtype
from pslab.tensors.workload.module_copies import copied
from pslab.tensors.workload.running_statistics import calibration_batches


def tied() -> nn.Module:
    """A small language model whose output layer is its embedding."""
    module = Parts(lambda m, x: m.output(m.hidden(m.embedding(x))), embedding=nn.Embedding(7, 4),
                   hidden=nn.Linear(4, 4), output=nn.Linear(4, 7))  # fmt: skip
    module.output.weight = module.embedding.weight
    return module


def scalars() -> nn.Module:
    """Parameters without dimensions, and of one element, in the root module itself."""
    return Parts(lambda m, x: m.linear(x) * m.scale + m.shift, scale=nn.Parameter(torch.tensor(2.0)),
                 shift=nn.Parameter(torch.tensor([1.0])), linear=nn.Linear(3, 2))  # fmt: skip


def lstm() -> nn.Module:
    return Parts(lambda m, x: m.lstm(x)[0], lstm=nn.LSTM(3, 4, num_layers=2, proj_size=2, batch_first=True))


def attention() -> nn.Module:
    heads = nn.MultiheadAttention(4, 2, add_bias_kv=True, batch_first=True)
    return Parts(lambda m, x: m.attention(x, x, x)[0], attention=heads)


def frozen() -> nn.Module:
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    module[2].requires_grad_(False)
    module[4].bias.requires_grad_(False)
    return module


class Hooked(nn.Module):
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


class Doubled(torch.autograd.Function):
    """Twice the input, whose gradient is clipped."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return (2 * gradient).clamp(-0.1, 0.1)


class Adversarial(nn.Module):
    """Takes a backward pass for the gradient of its inputs, and leaves the gradients of its weights, or zeroes them."""

    def __init__(self, zero: bool) -> None:
        super().__init__()
        self.layer, self.zero = nn.Linear(6, 3), zero

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            x = x.clone().requires_grad_()
            self.layer(x).pow(2).mean().backward()
            x = (x + 0.1 * x.grad.sign()).detach()  # type: ignore[union-attr]
            if self.zero:
                self.zero_grad()
        return self.layer(x)


class Merging(nn.Module):
    """Adds its factors into a frozen weight in evaluation mode, and takes them out in training mode, as LoRA does."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.merged = nn.Parameter(torch.ones(2, 4), requires_grad=False), False
        self.a, self.b = nn.Parameter(torch.linspace(-1, 1, 4).view(1, 4)), nn.Parameter(torch.zeros(2, 1))

    def train(self, mode: bool = True) -> Merging:
        if mode == self.merged:
            self.weight.data += (-1 if mode else 1) * self.b.data @ self.a.data
        self.merged = not mode
        return super().train(mode)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight.t() + (0 if self.merged else x @ self.a.t() @ self.b.t())


def sigmoid(module: Any, x: Tensor) -> Tensor:
    return checkpoint(torch.sigmoid, module.layer(x), use_reentrant=False)


def normal(*shape: int) -> Callable[[int], Tensor]:
    return lambda count: torch.randn(count, *shape)


def tokens(classes: int) -> Callable[[int], Tensor]:
    return lambda count: torch.randint(classes, (count, 2))


#: The module and its inputs, and each layer with its number of keys.
MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Tensor], list[tuple[str, int]]]] = {
    "mlp": (lambda: MLP(12, 5, 3), normal(3, 4), [("hidden1", 5), ("hidden2", 5), ("hidden3", 5), ("output", 3)]),
    "cnn": (CNN, normal(1, 28, 28), [("conv1", 16), ("norm1", 16), ("conv2", 32), ("norm2", 32), ("output", 10)]),
    "linear": (lambda: nn.Linear(3, 2), normal(3), [("Linear", 2)]),
    "no bias": (lambda: nn.Linear(3, 2, bias=False), normal(3), [("Linear", 2)]),
    "tied": (tied, tokens(7), [("embedding", 7), ("hidden", 4), ("output", 7)]),
    "shared module": (lambda: nn.Sequential(*[nn.Linear(3, 3)] * 2, nn.Linear(3, 2)), normal(3), [("0", 3), ("2", 2)]),
    "lstm": (lstm, normal(5, 3), [("lstm.weight_ih_l0", 16), ("lstm.weight_hr_l0", 2), ("lstm.weight_ih_l1", 16),
                                  ("lstm.weight_hr_l1", 2)]),
    "attention": (attention, normal(5, 4), [("attention.in_proj_weight", 12), ("attention.bias_k", 1),
                                            ("attention.out_proj", 4)]),
    "frozen": (frozen, normal(3), [("0", 4), ("4", 2)]),
    "transposed": (lambda: nn.ConvTranspose2d(2, 5, 3), normal(2, 4, 4), [("weight", 2), ("bias", 5)]),
    "scalars": (scalars, normal(3), [("Parts", 1), ("linear", 2)]),
    "sparse gradients": (lambda: nn.Sequential(nn.Embedding(6, 3, sparse=True), nn.Linear(3, 2)), tokens(6),
                         [("0", 6), ("1", 2)]),
    "hooks": (Hooked, normal(4), [("first", 3), ("last", 2)]),
}  # fmt: skip
#: Models that are compared in whole runs alone, with their inputs: their passes have gradients or modes of their own.
PASSES: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Tensor]]] = {
    "own function": (lambda: Parts(lambda m, x: Doubled.apply(m.layer(x)), layer=nn.Linear(6, 3)), normal(6)),
    "checkpointed": (lambda: Parts(sigmoid, layer=nn.Linear(6, 3)), normal(6)),
    "zero_grad in forward": (lambda: Adversarial(True), normal(6)),
    "backward in forward": (lambda: Adversarial(False), normal(6)),
    "merged in evaluation": (Merging, normal(4)),
}


def made(name: str) -> tuple[nn.Module, Tensor]:
    """A module of MODELS in float64, and an input for it."""
    torch.manual_seed(0)
    factory, inputs, _ = MODELS[name]
    module, x = factory().double(), inputs(2)
    return module, x.double() if x.is_floating_point() else x


def loss_of(module: nn.Module, x: Tensor) -> Tensor:
    y = module(x)
    return (y * torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view(y.shape)).square().sum()


def trainable(module: nn.Module) -> list[nn.Parameter]:
    return [p for p in module.parameters() if p.requires_grad]


def flat(module: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in trainable(module)])


@pytest.mark.parametrize("name", MODELS)
def test_a_shell_that_was_sent_computes_what_the_module_computes_in_flat_vectors(name: str):
    module, x = made(name)
    keyspace, reference = Keyspace.of(module), copied(module)
    assert [(layer.name, len(layer.keys)) for layer in keyspace.layers] == MODELS[name][2]
    assert (keyspace.size, keyspace.dtype) == (len(flat(module)), torch.float64)
    shell = keyspace.shell(module)
    assert sum(p.numel() for p in trainable(shell)) == 0
    assert all(map(torch.equal, module.state_dict().values(), reference.state_dict().values()))
    shell, keyspace = cloudpickle.loads(cloudpickle.dumps((shell, keyspace)))
    weights, gradient = keyspace.flatten(module), torch.zeros(keyspace.size, dtype=torch.float64)
    keyspace.bind(shell, weights, gradient)
    for _ in range(3):  # the views must outlive zero_() and backward()
        step = torch.randn(keyspace.size, dtype=torch.float64) / 10
        weights += step
        with torch.no_grad():
            for p, change in zip(trainable(reference), step.split([s.size for s in keyspace.parameters]), strict=True):
                p += change.view(p.shape)
        gradient.zero_()
        torch.testing.assert_close(shell(x), reference(x), rtol=1e-12, atol=1e-12)
        loss_of(shell, x).backward()
        wanted = torch.autograd.grad(loss_of(reference, x), trainable(reference))
        dense = torch.cat([g.to_dense().reshape(-1) for g in wanted])
        torch.testing.assert_close(gradient, dense, rtol=1e-10, atol=1e-10)
        assert gradient.abs().sum() > 0
    for p, slot in zip(trainable(shell), keyspace.parameters, strict=True):
        assert p.grad is not None
        assert p.data_ptr() - weights.data_ptr() == p.grad.data_ptr() - gradient.data_ptr() == slot.offset * 8
    assert [p.requires_grad for p in shell.parameters()] == [p.requires_grad for p in module.parameters()]


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(sorted(MODELS)), st.data())
def test_slices_of_a_partition_tile_the_vector(name: str, data: st.DataObject):
    keyspace = KEYSPACES[name]
    cuts = data.draw(st.sets(st.integers(1, keyspace.keys - 1), max_size=6)) if keyspace.keys > 1 else set()
    seen = torch.zeros(keyspace.size, dtype=torch.int64)
    for start, stop in itertools.pairwise([0, *sorted(cuts), keyspace.keys]):
        parts = keyspace.slices(KeyRange(start, stop))
        assert all(a.stop < b.start for a, b in itertools.pairwise(parts)), "ascending, and merged where adjacent"
        single = [p for key in range(start, stop) for p in keyspace.slices(KeyRange(key, key + 1))]
        assert sum(p.stop - p.start for p in parts) == sum(p.stop - p.start for p in single)
        for part in parts:
            seen[part] += 1
    assert bool((seen == 1).all())
    for start, stop in ((-1, 1), (0, 0), (0, keyspace.keys + 1)):
        with pytest.raises(ValueError, match="must have 0 <= start < stop"):
            keyspace.slices(KeyRange(start, stop))


KEYSPACES = {name: Keyspace.of(made(name)[0]) for name in MODELS}


def test_a_key_is_a_neuron_with_its_weights_and_bias_keyspaces_and_shells_are_small_and_a_shell_has_its_own_buffers():
    module = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    keyspace = Keyspace.of(module)
    value = torch.cat([keyspace.flatten(module)[part] for part in keyspace.slices(KeyRange(3, 4))])
    assert value.tolist() == [*module[1].weight[1].tolist(), module[1].bias[1].item()]
    mlp, cnn = MLP(), made("cnn")[0]
    keyspace = Keyspace.of(mlp)
    assert (keyspace.size, keyspace.keys, keyspace.layers[1].flat) == (932_362, 1546, slice(401_920, 664_576))
    assert pickle.loads(pickle.dumps(keyspace)) == keyspace
    assert hash(keyspace) == hash(Keyspace.of(MLP()))
    assert (len(pickle.dumps(keyspace)), len(cloudpickle.dumps(keyspace.shell(mlp)))) < (2000, 932_362 * 4 // 500)
    cnn(MODELS["cnn"][1](2).double())
    shell = Keyspace.of(cnn).shell(cnn)
    assert torch.equal(shell.norm1.running_mean, cnn.norm1.running_mean)
    assert shell.norm1.running_mean.data_ptr() != cnn.norm1.running_mean.data_ptr()
    hooked = Hooked()
    for copy_of in (build_model(hooked, 0), copied(Keyspace.of(hooked).shell(hooked))):
        assert (copy_of.first.weight.gain, copy_of.last.bias.gain) == (3.0, 2.0)


def rmse(output: Tensor, target: Tensor) -> Tensor:
    return functional.mse_loss(output, target).sqrt()


def several(output: Tensor, target: Tensor) -> dict[str, Any]:
    return {"error": rmse(output, target), "worst": worst(output, target), "bias": (output - target).mean()}


def right(output: Tensor, target: Tensor, ignored: int = -100) -> Tensor:
    return (output.argmax(1) == target)[target != ignored].double().mean()


class Mean:
    """The mean error over all outputs so far, as metrics have it that are reset for each evaluation."""

    total = count = 0.0

    def __call__(self, output: Tensor, target: Tensor) -> float:
        self.total, self.count = self.total + float((output - target).abs().mean(1).sum()), self.count + len(target)
        return self.total / self.count


class InTraining(nn.Module):
    """A loss that is larger in training."""

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        return functional.mse_loss(output, target) * (2 if self.training else 1)


rmse.lower_is_better = several.lower_is_better = True  # type: ignore[attr-defined]
LOSSES: list[tuple[Any, Any]] = [("mse", functional.mse_loss), (huber, huber), (nn.SmoothL1Loss(), nn.SmoothL1Loss()),
                                 ("l1", functional.l1_loss)]  # fmt: skip


def readable(batch: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
    return default_collate([(x, y) for x, y in batch if not y.isnan().any()])


def partly_read(x: Tensor, y: Tensor, test_x: Tensor, test_y: Tensor) -> tuple[TensorDataset, DataLoader]:
    """Test examples of which every second one cannot be read."""
    lost = torch.stack([test_y, torch.full_like(test_y, torch.nan)], 1).flatten(0, 1)
    return TensorDataset(x, y), DataLoader(TensorDataset(test_x.repeat_interleave(2, 0), lost), collate_fn=readable)


FORMS: list[Callable[..., Any]] = [
    lambda *tensors: tensors,
    lambda x, y, *test: (TensorDataset(x, y), TensorDataset(*test)),
    lambda x, y, *test: (DataLoader(TensorDataset(x, y), batch_size=7, shuffle=True), DataLoader(TensorDataset(*test))),
    partly_read,
]


def plainly(run: Any, data: tuple[Tensor, ...], loss: Any) -> nn.Module:
    """Train in torch alone: the mean of the workers' gradients, each of a pass and a batch of its own."""
    dtype = getattr(torch, run.dtype)
    module = in_dtype(build_model(run.model, run.seed), dtype)
    x, y = (part.to(dtype) if part.is_floating_point() else part for part in data[:2])
    optimizer = torch.optim.SGD(trainable(module), lr=run.learning_rate)
    batches = [Batches(len(y), run.workers, worker, run.batch_size, run.seed) for worker in range(run.workers)]
    for step in range(run.pushes // run.workers):
        gradients = []
        for own in batches:
            module.zero_grad()  # a backward pass in forward adds to the gradient
            rows = torch.from_numpy(own.at(step))
            loss(module(x[rows]), y[rows]).backward()
            # torch's SGD takes sparse gradients, but not together with dense ones
            gradients.append([parameter.grad.to_dense() for parameter in trainable(module)])
        for parameter, *each in zip(trainable(module), *gradients, strict=True):
            parameter.grad = sum(each) / run.workers
        optimizer.step()
    return module


def check_run(model: Any, data: tuple[Tensor, ...], form: Any, losses: tuple[Any, Any], metric: Any,
              plain_metric: Any = None, **fields: Any) -> None:  # fmt: skip
    """Compare weights and the last evaluation of a run in virtual time with those of plain torch."""
    run = tiny(model=model, data=lambda: form(*data), loss=losses[0], metric=metric, workers=2, batch_size=4, pushes=12,
               learning_rate=0.01, engine="virtual", cluster="lab", **fields)  # fmt: skip
    outcome, module = in_process(run), plainly(run, data, losses[1])
    dtype = getattr(torch, run.dtype)
    close = {"rtol": 1e-9, "atol": 1e-12} if dtype == torch.float64 else {"rtol": 1e-4, "atol": 1e-6}
    torch.testing.assert_close(torch.from_numpy(outcome.weights.copy()), flat(module), **close)
    x, y = (part.to(dtype) if part.is_floating_point() else part for part in data[2:])
    if any(isinstance(part, (nn.BatchNorm1d, nn.BatchNorm2d)) for part in module.modules()):
        dataset = resolve_data(lambda: form(*data))
        update_bn([each.to(dtype) for each in calibration_batches(dataset, run.seed)], module)
    plain_metric = plain_metric or (metric if callable(metric) else losses[1])
    for each in (module, losses[1], plain_metric):
        if isinstance(each, nn.Module):
            each.eval()
    with torch.no_grad():
        output = module(x)
        values = plain_metric(output, y)
        values = list(values.values()) if isinstance(values, dict) else [values]
        values = [torch.as_tensor(each) for each in (values[0], losses[1](output, y), *values[1:])]
    wanted = [float(each.double().mean()) for each in values]
    assert outcome.accuracy[-1][2:].tolist() == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("name", [*MODELS, *PASSES])
def test_a_run_is_plain_torch_on_the_same_weights(name: str):
    torch.manual_seed(1)
    number, (factory, inputs, *_) = [*MODELS, *PASSES].index(name), {**MODELS, **PASSES}[name]
    train, test = inputs(40), inputs(13)
    with torch.no_grad():
        targets = [torch.randn_like(factory().eval()(x)) for x in (train, test)]
    for round_, dtype in enumerate(("float64", "float32")):
        pick = number + round_
        check_run(factory, (train, targets[0], test, targets[1]), FORMS[pick // 2 % 4], LOSSES[pick % 4],
                  ["loss", rmse, worst, several][(pick + pick // 4) % 4], dtype=dtype)  # fmt: skip


def test_an_evaluation_is_that_of_fresh_objects():
    data = [torch.randn(*shape) for shape in ((40, 4), (40, 2), (13, 4), (13, 2))]
    loss = InTraining()
    for losses, metric in ((LOSSES[0], Mean()), ((loss, loss), "loss"), (LOSSES[0], InTraining())):
        check_run(nn.Linear(4, 2), (*data,), FORMS[0], losses, metric, eval_every=4)


def test_no_single_example_is_left_for_a_last_batch():
    """Of such a batch torch normalizes nothing, and squeezes too much."""
    net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
    model = Parts(lambda m, x: m.net(x).squeeze(), net=net)
    for train, test in ((257, 1001), (513, 3)):
        data = torch.randn(train, 4), torch.randn(train), torch.randn(test, 4), torch.randn(test)
        check_run(model, data, FORMS[0], LOSSES[0], "loss", dtype="float64")


def bytes_of(x: Tensor, y: Tensor, test_x: Tensor, test_y: Tensor) -> Dataset:
    return Dataset("bytes", x.byte(), y, test_x.byte(), test_y, mean=None, std=1.0, classes=256)


SCORES: list[tuple[Any, Any, tuple[int, ...]]] = [
    ("cross_entropy", functional.cross_entropy, ()), ("cross_entropy", functional.cross_entropy, (5,)),
    *((loss, loss, ()) for loss in (nn.CrossEntropyLoss(weight=torch.tensor([1.0, 5.0, 25.0])), nn.CrossEntropyLoss(),
                                    nn.CrossEntropyLoss(ignore_index=255))),
]  # fmt: skip


def test_scores_of_classes_are_trained_and_evaluated_as_torch_does():
    """Also of classes in order, of which a loss weighs some more, and if examples are read during the run."""
    torch.manual_seed(2)
    for number, (name, loss, scores) in enumerate(SCORES):
        ignored = getattr(loss, "ignore_index", -100)
        for form in FORMS[: 3 if number in (2, 4) else 1]:
            data = [torch.randn(40, 4), torch.randint(3, (40, *scores)).sort(0).values, torch.randn(1500, 4),
                    torch.randint(3, (1500, *scores)).sort(0).values]  # fmt: skip
            if number > 2:
                data[1][::7] = data[3][::7] = ignored
            model = nn.Sequential(nn.Linear(4, 3 * (scores or (1,))[0]), nn.Unflatten(1, (3, *scores)))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                check_run(model, (*data,), form, (name, loss), "accuracy", partial(right, ignored=ignored))
    words = [torch.randint(256, (count, 9)) for count in (40, 40, 13, 13)]
    check_run("gpt:8,layers=1", (*words,), bytes_of, SCORES[0][:2], "accuracy", right)
    data = torch.randn(40, 4), torch.randint(3, (40,))
    run = tiny(model=model, data=lambda: data * 2, loss=SCORES[2][0], batch_size=4, engine="virtual", cluster="lab")
    with pytest.warns(UserWarning, match="several workers compute another mean than one process, as in torch's DDP"):
        resolve(run)


def test_a_metric_may_return_several_values_of_which_goals_go_by_the_first(tmp_path):
    x, y = torch.randn(80, 4), torch.cat([torch.zeros(50, 1), torch.full((30, 1), 10.0)])
    one = tiny(model=nn.Linear(4, 1), data=lambda: (x, y, x, y), loss="mse", metric=several, pushes=4, batch_size=8,
               learning_rate=0.01, engine="virtual", cluster="lab", target_accuracy=100.0)  # fmt: skip
    result, other = sweep([one, one.but(seed=1)], results=tmp_path)
    assert [*other.accuracy] == [*result.accuracy]
    wanted, last = several(result.model()(x).detach(), y), result.accuracy.iloc[-1]
    assert (result.manifest["outcome"], result.final) == ("target", last.accuracy)
    assert result.run.reaches_target([last.accuracy])
    assert (last.accuracy, last.worst, last.bias) == pytest.approx([float(each.mean()) for each in wanted.values()])
