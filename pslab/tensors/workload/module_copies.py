"""Copies of a module with all that it carries, and the refusal, by name, of what no copy can carry.

A run trains copies: each process has the module once more, pickled, on weights that the server sent. A hook of a
parameter, its class, and a tensor that was computed from parameters before the run are lost on the way, in silence.
"""

from __future__ import annotations

import copy
import gc
import types
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.nn.utils import parametrize
from torch.optim.swa_utils import AveragedModel

from pslab.config.sources import installed
from pslab.errors import ConfigError

GLOBAL_HOOKS = ("_global_forward_pre_hooks", "_global_forward_hooks", "_global_backward_pre_hooks",
                "_global_backward_hooks")  # fmt: skip

LAZY = "is lazy: call the module once on a sample to determine its shape"


def copied(module: nn.Module, memo: dict[int, Any] | None = None) -> nn.Module:
    """Return a deep copy that keeps attributes of parameters, which torch's own copy loses. `memo` as in deepcopy."""
    memo = {} if memo is None else memo
    copy_of = copy.deepcopy(module, memo)
    for parameter in module.parameters():
        memo[id(parameter)].__dict__.update(copy.deepcopy(parameter.__dict__, memo))
    return copy_of


def check_carried(module: nn.Module) -> None:
    """Refuse a module that carries what its copies in other processes would not have.

    Raises:
        ConfigError: it does; the message names the parameter or the module.
    """
    inside = {id(each) for each in (*module.modules(), *module.parameters(), *module.buffers())}
    problems = (problem for path, part in module.named_modules() for problem in _problems(path, part, inside))
    if any(getattr(torch_module, name, None) for name in GLOBAL_HOOKS):
        problem = "torch has hooks for all modules of this process (register_module_forward_hook, ...), which workers' "
        raise ConfigError("model", type(module).__name__, f"{problem}processes lack: register hooks on the model")
    known = {id(parameter) for part in module.modules() for parameter in part._parameters.values()
             if parameter is not None and parameter.requires_grad}  # fmt: skip
    if known != {id(parameter) for parameter in module.parameters() if parameter.requires_grad}:
        problem = "its parameters() gives others than its modules have, which a run trains: freeze those to be left"
        raise ConfigError("model", type(module).__name__, f"{problem} (requires_grad_(False))")
    for problem in chain(problems, _sharing(module)):
        raise ConfigError("model", type(module).__name__, problem)


def check_trains(module: nn.Module, before: Iterable[tuple[str, nn.Parameter, bool]]) -> None:
    """Refuse a pass that has changed which parameters train; `before`: their names, and whether each of them did.

    Raises:
        ConfigError: it has; the message names the parameter.
    """
    for name, parameter, trained in before:
        if parameter.requires_grad != trained:
            problem = (f"a training pass sets requires_grad of parameter {name} to {not trained}, and servers have the "
                       "parameters that train at the start: leave it, and use parameter.detach() where it is not to "
                       "train")  # fmt: skip
            raise ConfigError("model", type(module).__name__, problem)


def check_patched(module: nn.Module, *functions: object) -> None:
    """Refuse what this process has put into torch, or into a class of another library that the model, the loss or the
    metric is of: workers import these anew.

    Raises:
        ConfigError: something; the message names it.
    """
    objects = *module.modules(), *functions
    kinds = dict.fromkeys(kind for each in objects for kind in type(each).__mro__ if installed(kind.__module__))
    owners: tuple[Any, ...] = (*kinds, torch, torch.Tensor, nn.functional)
    for owner in owners:
        for name, value in vars(owner).items():
            if not installed(origin := _origin(value)):
                problem = f"{owner.__name__}.{name} was replaced in this process by code of {origin}, and workers have "
                how = "the library's own: write a class or a function for your model instead"
                raise ConfigError("model", type(module).__name__, problem + how)


def _origin(value: Any) -> str:
    """The module of which a function, or anything that takes its part, has its code."""
    value = value.fget if isinstance(value, property) else value
    value = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
    if isinstance(value, types.FunctionType):
        return str(value.__globals__.get("__name__", "torch"))  # generated code has none
    return str((value if isinstance(value, type) else type(value)).__module__)


def _sharing(module: nn.Module) -> Iterator[str]:
    """Tensors of which one trains and which share memory: each would have its own in a copy."""
    tensors = [(name, each) for name, each in (*module.named_parameters(), *module.named_buffers())
               if each.layout == torch.strided and not each.is_meta and each.numel()]  # fmt: skip
    end, last, trains = 0, "", False
    for name, each in sorted(tensors, key=lambda named: named[1].data_ptr()):
        if each.data_ptr() < end and (trains or each.requires_grad):
            yield (f"{last} and {name} share memory, and in copies each would have its own: use one Parameter for both "
                   "(b.weight = a.weight), or clone() one")  # fmt: skip
        size = 1 + sum((count - 1) * stride for count, stride in zip(each.shape, each.stride(), strict=True))
        if (stop := each.data_ptr() + size * each.itemsize) > end:
            end, last, trains = stop, name, each.requires_grad


def _enclosed(value: Any, inside: set[int], seen: set[int], function: str = "") -> str:
    """The name of a function in this value that holds a part of the model, as no copy would follow; "" if none does."""
    if function and id(value) in inside:
        return function
    if id(value) in seen:
        return ""
    seen.add(id(value))
    if isinstance(value, types.FunctionType):
        function = function or value.__qualname__
        cells = [referent for cell in value.__closure__ or () for referent in gc.get_referents(cell)]
        parts = [*cells, *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
    elif isinstance(value, partial):
        parts = [value.func, *value.args, *value.keywords.values()]
    elif isinstance(value, types.MethodType):
        parts = [value.__func__, value.__self__]
    else:
        parts = [*value.values()] if isinstance(value, dict) else [*value] if isinstance(value, (list, tuple)) else []
    return next((found for part in parts if (found := _enclosed(part, inside, seen, function))), "")


def _problems(path: str, module: nn.Module, inside: set[int]) -> list[str]:
    prefix = f"{path}." if path else ""
    name = f"module {path} ({type(module).__name__})" if path else "it"
    found = [f"parameter {prefix}{name} {problem}" for name, parameter in module.named_parameters(recurse=False)
             if (problem := _of_parameter(parameter))]  # fmt: skip
    found += [f"buffer {prefix}{name} {LAZY}" for name, buffer in module.named_buffers(recurse=False)
              if nn.parameter.is_lazy(buffer)]  # fmt: skip
    found += [f"{name} has in {each} the function {function}, which holds a part of this object, where a trained copy "
              "has its own: let it use the module that it is given, or be a method"
              for each, value in vars(module).items() if (function := _enclosed(value, inside, set()))]  # fmt: skip
    if isinstance(module, AveragedModel) and any(p.requires_grad for p in module.parameters()):
        found.append(f"{name} averages where update_parameters is called after a step of an optimizer, which no run "
                     "does: give the model that it averages")  # fmt: skip
    if parametrize.is_parametrized(module):
        found.append(f"{name} is parametrized, which torch cannot pickle for a worker's process: compute the weight in "
                     "forward, or call parametrize.remove_parametrizations")  # fmt: skip
    found += [f"{name} keeps {each}, a tensor computed from parameters before the run, as torch.nn.utils.prune, "
              "weight_norm and spectral_norm do, which no copy would follow: compute it in forward, or call "
              "prune.remove or remove_weight_norm" for each, value in vars(module).items()
              if isinstance(value, Tensor) and value.grad_fn is not None]  # fmt: skip
    return found


def _of_parameter(parameter: Any) -> str:
    if nn.parameter.is_lazy(parameter):
        return LAZY
    hooks = [*(parameter._backward_hooks or {}).values(),
             *(getattr(parameter, "_post_accumulate_grad_hooks", None) or {}).values()]  # fmt: skip
    if hooks:
        called = getattr(hooks[0], "__qualname__", type(hooks[0]).__name__)
        return (f"has a hook ({called}), which is lost where a worker's process gets the model: hook in forward a "
                "tensor computed from it: w = 1 * parameter; if w.requires_grad: w.register_hook(...)")  # fmt: skip
    if type(parameter) is not nn.Parameter:
        return (f"is of the class {type(parameter).__name__}, and a worker's process gets a plain Parameter: use "
                "nn.Parameter, whose attributes are kept")  # fmt: skip
    return ""
