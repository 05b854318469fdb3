"""Own objects: workers have them as the notebook has them, or the run is refused; a second run has the same
digest. Parameters that no loss reaches stay as they are, as in torch, whatever optimizer or codes a run has."""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from cells import of_cell
from tiny import finished
from torch import Tensor, nn

from pslab.config.run import Run
from pslab.errors import ConfigError, WorkerFailed
from pslab.lab.runs.resolve import resolve
from pslab.lab.runs.run import run
from pslab.tensors.workload.models import build_model

OTHER = "FACTOR = 1.0\n"
MODULE = """
from torch import nn
import users_other
from users_other import FACTOR
GAIN = 1.0
CONFIG = {"gain": 1.0}
UNREACHED = 1.0
SEEN = {}

class Net(nn.Module):
    scale = 1.0

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x):
        SEEN[len(x)] = True
        return self.layer(x) * GAIN * CONFIG["gain"] * self.scale * FACTOR * users_other.FACTOR

def scaled(output, target):
    return GAIN * squared(output, target)

def squared(output, target):
    return ((output - target) ** 2).mean()
"""
CELL = """
from torch import nn
import users_module
def cell(output, target):
    return users_module.GAIN * nn.functional.mse_loss(output, target)
def inside(output, target):
    import users_module
    return users_module.GAIN * nn.functional.mse_loss(output, target)
class Held:
    settings = users_module
    def __call__(self, output, target):
        return self.settings.GAIN * nn.functional.mse_loss(output, target)
"""


def examples() -> tuple[torch.Tensor, ...]:
    rows = torch.arange(64.0 * 9).view(64, 9) / 600
    return rows[:, :6], rows[:, 6:], rows[:, :6], rows[:, 6:]


def small() -> nn.Module:
    return nn.Linear(6, 3)


def tried(**fields: Any) -> Run:
    given = {"model": small, "data": examples, "loss": "mse", "metric": "loss", "workers": 2, "batch_size": 16,
             "pushes": 2, "engine": "virtual", "cluster": "lab"}  # fmt: skip
    return Run.of({**given, **fields})


@pytest.fixture
def users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A module of the user's, with another one, and a cell that reads its settings."""
    (tmp_path / "users_module.py").write_text(MODULE)
    (tmp_path / "users_other.py").write_text(OTHER)
    monkeypatch.syspath_prepend(str(tmp_path))
    cell: dict[str, Any] = {"__name__": "__main__", "module": importlib.import_module("users_module")}
    exec(CELL, cell)
    yield SimpleNamespace(**cell, other=sys.modules["users_other"])
    del sys.modules["users_module"], sys.modules["users_other"]


NET, GAIN = {"model": "module.Net"}, "GAIN': is 2.0"
#: What is set where -> the statement, the field of a run that reaches it, and the words of the refusal.
SET: dict[str, tuple[str, dict[str, str], str]] = {
    "a global": ("module.GAIN = 2.0", NET,
                 "users_module.GAIN': is 2.0 in this process, and 1.0 where workers import users_module"),
    "by name": ("module.GAIN = 2.0", {"model": "'users_module:Net'"}, GAIN),
    "an item": ("module.CONFIG['gain'] = 3.0", NET, "'gain': 3.0"),
    "of a class": ("module.Net.scale = 2.0", {"model": "module.Net()"}, "users_module.Net.scale': is 2.0"),
    "imported": ("module.FACTOR = 2.0", NET, "users_module.FACTOR': is 2.0"),
    "another": ("other.FACTOR = 2.0", NET, "users_other.FACTOR': is 2.0"),
    "a method": ("module.Net.forward = lambda net, x: net.layer(x)", NET,
                 "Net.forward': is other code here than where workers import"),
    "a loss": ("module.GAIN = 2.0", {"loss": "module.scaled"}, GAIN),
    "a metric": ("module.GAIN = 2.0", {"metric": "module.scaled"}, GAIN),
    "a helper": ("module.squared = cell", {"loss": "module.scaled"}, "squared': is other code"),
    "a cell": ("module.GAIN = 2.0", {"loss": "cell"}, GAIN),
    "an import": ("module.GAIN = 2.0", {"loss": "inside"}, GAIN),
    "a module in an object": ("module.GAIN = 2.0", {"loss": "Held()"}, GAIN),
}  # fmt: skip


@pytest.mark.one_of(3)
@pytest.mark.parametrize(("change", "fields", "words"), SET.values(), ids=[*SET])
def test_a_setting_that_only_the_notebook_has_is_refused(users: Any, change: str, fields: dict[str, str], words: str):
    before = tried(**{name: eval(text, vars(users)) for name, text in fields.items()})
    resolve(before)
    exec(change, vars(users))
    after = tried(**{name: eval(text, vars(users)) for name, text in fields.items()})
    assert isinstance(after.model, str) or after.digest != before.digest
    for _ in range(2):  # and again
        with pytest.raises(ConfigError) as error:
            resolve(after)
        assert words in str(error.value)
    resolve(after.but(engine="timing"))  # without workers


def test_a_setting_that_is_not_reached_may_be_changed_and_a_trial_may_fill_a_cache(users: Any):
    for seed in range(2):
        users.module.UNREACHED = seed
        resolve(tried(model=users.module.Net, loss=lambda *given: nn.functional.l1_loss(*given), seed=seed))
    assert users.module.SEEN == {2: True}


def test_a_module_that_another_process_cannot_import_is_refused(users: Any, tmp_path: Path):
    here = f"import os\nassert os.getpid() == {os.getpid()}, 'no other process'\n"
    (tmp_path / "users_other.py").write_text(here + OTHER)
    importlib.reload(users.other)
    with pytest.raises(ConfigError, match=r"users_module': cannot be imported in another process.*: no other process"):
        resolve(tried(model=users.module.Net))


def test_a_global_that_was_changed_since_the_run_was_named_makes_another_record(tmp_path: Path):
    loss = of_cell("SCALE = 1.0\ndef factory(output, target):\n    return SCALE * ((output - target) ** 2).mean()\n")
    wanted = tried(loss=loss)
    first = run(wanted, results=tmp_path)
    loss.__globals__["SCALE"] = 3.0
    second = run(wanted, results=tmp_path)
    assert (first.digest != second.digest, first.final != second.final) == (True, True)


class Holds:
    """A loss, a metric or a schedule that depends on a network."""

    needs_budget = False

    def __init__(self, net: nn.Module) -> None:
        self.net = net

    def __call__(self, *given: Any) -> Any:
        return nn.functional.mse_loss(*given) + self.net.weight.norm()

    factor = __call__


@pytest.mark.parametrize("field", ["loss", "metric", "schedule"])
def test_a_network_in_training_is_no_part_of_a_loss_a_metric_or_a_policy(field: str):
    with pytest.raises(ConfigError, match=rf"{field}=.* contains a Parameter that requires a gradient.*freeze"):
        resolve(tried(**{field: Holds(small())}))


def test_defaults_of_torch_that_only_the_notebook_has_are_refused():
    for field, setter, default, other in (("dtype", torch.set_default_dtype, torch.float32, torch.float64),
                                          ("device", torch.set_default_device, None, "meta")):  # fmt: skip
        setter(other)
        try:
            with pytest.raises(ConfigError, match=rf"{field}=.*torch.set_default_{field}\(.*was called in this"):
                resolve(tried())
        finally:
            setter(default)


class Counts(nn.Module):
    """A loss that counts its calls."""

    count = 0

    def forward(self, *given: Any) -> Any:
        self.count += 1
        return nn.functional.mse_loss(*given)


@pytest.mark.parametrize("fields", [
    {"model": nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3))}, {"loss": Counts()},
    pytest.param({"metric": functools.partial(nn.functional.huber_loss, delta=0.5)}, marks=pytest.mark.slow),
], ids=["an instance", "a loss that counts", "a partial"])  # fmt: skip
def test_a_run_has_the_same_digest_when_it_has_been_run(fields: dict[str, Any], tmp_path: Path):
    first, second = (run(tried(**fields), results=tmp_path) for _ in range(2))
    assert (second.digest, second.cached) == (first.digest, True)


# -- parameters that no loss reaches ---------------------------------------------------------------


class Spare(nn.Module):
    """Two of its parts are not used, before and behind the one that is, unless an example is met that is not tried."""

    def __init__(self, late: bool = False) -> None:
        super().__init__()
        self.first, self.head, self.late = nn.Linear(6, 3), small(), late
        self.spare = nn.Parameter(torch.ones(5))

    def forward(self, x: Tensor) -> Tensor:
        met = self.late and bool((x == examples()[0][-5]).all(1).any())
        return self.head(x) + (self.spare.sum() if met else 0.0)


@pytest.mark.parametrize("quantize", ["none", "sign"])
def test_weights_are_those_of_torch_and_signs_do_not_move_them(quantize: str):
    wanted = tried(model=Spare, workers=1, batch_size=64, pushes=6, dtype="float64", learning_rate=0.01,
                   optimizer="sgd:weight_decay=0.1,momentum=0.9", quantize=quantize)  # fmt: skip
    with pytest.warns(UserWarning, match="no loss reaches spare, first.weight, first.bias of the model"):
        experiment = resolve(wanted)
    assert experiment.keyspace.size == 21
    model = build_model(Spare, experiment.run.seed).double()
    before = nn.utils.parameters_to_vector(model.parameters()).detach()
    steps = torch.optim.SGD(model.parameters(), lr=0.01, weight_decay=0.1, momentum=0.9)
    x, y = (part.double() for part in examples()[:2])
    for _ in range(6):
        steps.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        steps.step()
    wanted, weights = nn.utils.parameters_to_vector(model.parameters()), torch.tensor(finished(experiment).weights)
    if quantize == "none":
        torch.testing.assert_close(weights, wanted.detach())
    assert (before != weights).nonzero().flatten().tolist() == [*range(26, 47)]  # spare, first and head, in this order


def test_a_gradient_that_comes_later_ends_the_run_with_its_name():
    problem = "parameter spare got no gradient when the model was tried"
    with pytest.warns(UserWarning, match="no loss reaches"), pytest.raises(WorkerFailed, match=problem):
        finished(tried(model=Spare(late=True), workers=1, batch_size=4, pushes=40))
