"""Refuses, before any process starts, user's objects that would differ in a worker's process."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import lru_cache

import torch

from pslab.config import sources
from pslab.config.content import CODE, Survey, settings_of, survey
from pslab.config.metric import LOWER
from pslab.config.run import NAMED, USERS, Run
from pslab.engines.processes.anew import Settings, settings_anew
from pslab.errors import ConfigError
from pslab.tensors.workload.data import Column, Dataset
from pslab.tensors.workload.torchvision_ops import import_named

CPU = torch.device("cpu")
BUILT_HERE = ("model", "data")  # may contain a network: workers get only the model's weights and the data's examples


def check_defaults(run: Run) -> None:
    """Refuse a default dtype or device of tensors that was set in this process: workers have torch's defaults.

    Raises:
        ConfigError: torch.get_default_dtype() is not float32, or torch.get_default_device() is not the CPU.
    """
    for field, name, default, value in (("dtype", "set_default_dtype", torch.float32, torch.get_default_dtype()),
                                        ("device", "set_default_device", CPU, torch.get_default_device())):  # fmt: skip
        if value != default:
            called = f"torch.{name}({value}) was called in this process, but workers have the default {default}"
            how = f"call torch.{name}({default}) and set the run's {field}"
            raise ConfigError(field, getattr(run, field), f"{called}: {how}, or create tensors with {field}=x.{field}")


def check_objects(run: Run, dataset: Dataset) -> None:
    """Refuse user's objects that contain a network in training, or depend on settings that only this process has.

    Raises:
        ConfigError: there is such an object, or a user's module cannot be imported in another process.
    """
    _checked.clear()
    surveys = {field: _surveyed(run, field, dataset) for field in NAMED}
    for field, surveyed in surveys.items():
        if surveyed.trained and field not in BUILT_HERE:
            value = getattr(run, field)
            problem = f"contains {surveyed.trained} that requires a gradient, but only the run's model is trained"
            how = "use only outputs and targets, or freeze the network: requires_grad_(False)"
            raise ConfigError(field, getattr(value, "__name__", value), f"{problem}: {how}")
        if run.engine != "timing":  # the timing engine has no workers
            _check_settings(field, surveyed.settings)
    _checked.update(name for survey in surveys.values() for name in survey.settings)


def note_trial() -> None:
    """Note the values of the checked settings after pslab's trial of the model, which may have filled a cache."""
    for module, names in _by_module(_checked).items():
        _left.update((name, digest) for name, (digest, _) in settings_of(sys.modules[module], names).items())
    _checked.clear()


def _surveyed(run: Run, field: str, dataset: Dataset) -> Survey:
    if field == "data":  # code that makes examples runs in this process alone
        return survey([part.source for part in (dataset.train_x, dataset.test_x) if isinstance(part, Column)])
    value = getattr(run, field)
    if field in USERS and isinstance(value, str):
        path, colon, _ = value.partition(":")
        users = colon and all(part.isidentifier() for part in path.split(".")) and sources.of(path)
        return survey(import_named(field, value.removesuffix(LOWER))) if users else Survey()
    return run.surveys.get(field, Survey())


def _check_settings(field: str, reached: Iterable[str]) -> None:
    for module, names in _by_module(reached).items():
        here, anew = settings_of(sys.modules[module], names), _anew(module, (*sources.of(module).items(),))
        if isinstance(anew, str):
            problem = f"cannot be imported in another process, as workers import it ({anew})"
            raise ConfigError(field, module, f"{problem}: correct it, or put it into the working directory")
        other = [name for name in names if name in here
                 and here[name][0] not in (anew.get(name, ("absent", ""))[0], _left.get(name))]  # fmt: skip
        for name in sorted(other, key=lambda name: here[name][1] == CODE):  # values before the code using them
            ours, theirs = here[name][1], anew.get(name, ("", "absent"))[1]
            differs = "other code here than" if ours == theirs else f"{ours} in this process, and {theirs}"
            problem = f"is {differs} where workers import {module} anew: pass it as an argument, or edit the file"
            raise ConfigError(field, name.replace(":", "."), problem)


def _by_module(names: Iterable[str]) -> dict[str, list[str]]:
    imported = dict[str, list[str]]()
    for name in sorted(names):
        imported.setdefault(name.partition(":")[0], []).append(name)
    return imported


@lru_cache(maxsize=64)
def _anew(module: str, files: tuple[tuple[str, str], ...]) -> Settings | str:
    return settings_anew(module)


_checked: set[str] = set()
_left: dict[str, str] = {}  # setting -> its digest after a trial
