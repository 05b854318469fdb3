"""Own objects: workers have them as the notebook has them, or the run is refused; a second run has the same digest."""

from __future__ import annotations

import enum
import functools
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from cells import of_cell
from torch import nn

from pslab.config.run import Run
from pslab.errors import ConfigError
from pslab.lab.runs.resolve import resolve
from pslab.lab.runs.run import run

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
    module = importlib.import_module("users_module")
    cell: dict[str, Any] = {"__name__": "__main__"}
    exec(CELL, cell)
    yield SimpleNamespace(module=module, other=sys.modules["users_other"], cell=cell["cell"], inside=cell["inside"],
                          held=cell["Held"]())  # fmt: skip
    del sys.modules["users_module"], sys.modules["users_other"]


#: What is set where -> the fields of a run that reaches it, and the words of the refusal.
SET: dict[str, tuple[Callable[[Any], Any], dict[str, Callable[[Any], Any]], str]] = {
    "a global": (lambda u: setattr(u.module, "GAIN", 2.0), {"model": lambda u: u.module.Net},
                 "users_module.GAIN': is 2.0 in this process, and 1.0 where workers import users_module"),
    "by name": (lambda u: setattr(u.module, "GAIN", 2.0), {"model": lambda u: "users_module:Net"}, "GAIN': is 2.0"),
    "an item": (lambda u: u.module.CONFIG.update(gain=3.0), {"model": lambda u: u.module.Net}, "'gain': 3.0"),
    "of a class": (lambda u: setattr(u.module.Net, "scale", 2.0), {"model": lambda u: u.module.Net()},
                   "users_module.Net.scale': is 2.0"),
    "imported": (lambda u: setattr(u.module, "FACTOR", 2.0), {"model": lambda u: u.module.Net},
                 "users_module.FACTOR': is 2.0"),
    "another": (lambda u: setattr(u.other, "FACTOR", 2.0), {"model": lambda u: u.module.Net},
                "users_other.FACTOR': is 2.0"),
    "a method": (lambda u: setattr(u.module.Net, "forward", lambda net, x: net.layer(x)),
                 {"model": lambda u: u.module.Net},
                 "Net.forward': is other code here than where workers import"),
    "a loss": (lambda u: setattr(u.module, "GAIN", 2.0), {"loss": lambda u: u.module.scaled}, "GAIN': is 2.0"),
    "a metric": (lambda u: setattr(u.module, "GAIN", 2.0), {"metric": lambda u: u.module.scaled}, "GAIN': is 2.0"),
    "a helper": (lambda u: setattr(u.module, "squared", u.cell), {"loss": lambda u: u.module.scaled},
                 "squared': is other code"),
    "a cell": (lambda u: setattr(u.module, "GAIN", 2.0), {"loss": lambda u: u.cell}, "GAIN': is 2.0"),
    "an import": (lambda u: setattr(u.module, "GAIN", 2.0), {"loss": lambda u: u.inside}, "GAIN': is 2.0"),
    "a module in an object": (lambda u: setattr(u.module, "GAIN", 2.0), {"loss": lambda u: u.held}, "GAIN': is 2.0"),
}  # fmt: skip


@pytest.mark.one_of(3)
@pytest.mark.parametrize(("change", "fields", "words"), SET.values(), ids=[*SET])
def test_a_setting_that_only_the_notebook_has_is_refused(users: Any, change: Any, fields: Any, words: str):
    before = tried(**{name: make(users) for name, make in fields.items()})
    resolve(before)
    change(users)
    after = tried(**{name: make(users) for name, make in fields.items()})
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
    cell: dict[str, Any] = {"__name__": "__main__"}
    exec("SCALE = 1.0\ndef loss(output, target):\n    return SCALE * ((output - target) ** 2).mean()\n", cell)
    wanted = tried(loss=cell["loss"])
    first = run(wanted, results=tmp_path)
    cell["SCALE"] = 3.0
    second = run(wanted, results=tmp_path)
    assert (first.digest != second.digest, first.final != second.final) == (True, True)


class Penalty:
    def __init__(self, net: nn.Module) -> None:
        self.net = net

    def __call__(self, *given: Any) -> Any:
        return nn.functional.mse_loss(*given) + sum(each.pow(2).sum() for each in self.net.parameters())


class Falling:
    needs_budget = False

    def __init__(self, net: nn.Module) -> None:
        self.net = net

    def factor(self, used: float) -> float:
        return 1 / (1 + float(self.net.weight.norm()))


@pytest.mark.parametrize("field", ["loss", "metric", "schedule"])
def test_a_network_in_training_is_no_part_of_a_loss_a_metric_or_a_policy(field: str):
    run = tried(**{field: (Falling if field == "schedule" else Penalty)(small())})
    with pytest.raises(ConfigError, match=rf"{field}=.* contains a Parameter that requires a gradient.*freeze"):
        resolve(run)


def test_defaults_of_torch_that_only_the_notebook_has_are_refused():
    for field, setter, default, other in (("dtype", torch.set_default_dtype, torch.float32, torch.float64),
                                          ("device", torch.set_default_device, None, "meta")):  # fmt: skip
        setter(other)
        try:
            with pytest.raises(ConfigError, match=rf"{field}=.*torch.set_default_{field}\(.*was called in this"):
                resolve(tried())
        finally:
            setter(default)


class Flag(enum.Flag):
    A, B = 1, 2


class Combines:
    kinds = Flag

    def __call__(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return nn.functional.mse_loss(output, target) * (Flag.A | Flag.B).value


#: Each kind of own object.
KINDS: dict[str, dict[str, Any]] = {
    "a class": {"model": of_cell("from torch import nn\nclass Half:\n    def __call__(self, x):\n        return x / 2\n"
                                 "class factory(nn.Linear):\n    def __init__(self):\n        super().__init__(6, 3)\n"
                                 "        self.half = Half()\n    def forward(self, x):\n"
                                 "        return super().forward(self.half(x))\n")},
    "an instance": {"model": nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3))},
    "a loss": {"loss": of_cell("from torch import nn\nclass Loss:\n    def __call__(self, *given):\n"
                               "        return nn.functional.mse_loss(*given)\nfactory = Loss()\n")},
    "a loss that counts": {"loss": of_cell("from torch import nn\nclass Loss(nn.Module):\n    count = 0\n"
                                           "    def forward(self, *given):\n        self.count += 1\n"
                                           "        return nn.functional.mse_loss(*given)\nfactory = Loss()\n")},
    "flags": {"loss": Combines()},
    "a partial": {"metric": functools.partial(nn.functional.huber_loss, delta=0.5)},
}  # fmt: skip


@pytest.mark.one_of(3)
@pytest.mark.parametrize("fields", KINDS.values(), ids=[*KINDS])
def test_a_run_has_the_same_digest_when_it_has_been_run(fields: dict[str, Any], tmp_path: Path):
    first = run(tried(**fields), results=tmp_path)
    second = run(tried(**fields), results=tmp_path)
    assert (second.digest, second.cached) == (first.digest, True)
