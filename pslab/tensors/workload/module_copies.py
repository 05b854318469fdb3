"""Complete copies of a module, and the refusal of modules that cannot be copied completely.

A run trains copies: each process gets a pickled copy of the module, with weights from the server. A hook or the class
of a parameter, or a tensor that was computed from parameters before the run, would be lost silently.
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
    """Return a deep copy with the attributes of parameters, which torch's copy loses; `memo` as for copy.deepcopy."""
    memo = {} if memo is None else memo
    copy_of = copy.deepcopy(module, memo)
    for parameter in module.parameters():
        memo[id(parameter)].__dict__.update(copy.deepcopy(parameter.__dict__, memo))
    return copy_of


def check_carried(module: nn.Module) -> None:
    """Refuse a module that a copy in another process could not reproduce completely.

    Raises:
        ConfigError: the copy would lack a part; the message names the parameter or the module.
    """
    inside = {id(component) for component in (*module.modules(), *module.parameters(), *module.buffers())}
    problems = (problem for path, part in module.named_modules() for problem in _problems(path, part, inside))
    if any(getattr(torch_module, name, None) for name in GLOBAL_HOOKS):
        problem = "torch has hooks for all modules of this process (register_module_forward_hook, ...), which workers' "
        raise ConfigError("model", type(module).__name__, f"{problem}processes lack: register hooks on the model")
    known = {id(parameter) for part in module.modules() for parameter in part._parameters.values()
             if parameter is not None and parameter.requires_grad}  # fmt: skip
    if known != {id(parameter) for parameter in module.parameters() if parameter.requires_grad}:
        problem = "parameters() must return exactly the trainable parameters of its modules, which a run trains: "
        how = "set requires_grad_(False) on parameters that are not to be trained"
        raise ConfigError("model", type(module).__name__, f"{problem}{how}")
    for problem in chain(problems, _sharing(module)):
        raise ConfigError("model", type(module).__name__, problem)


def check_trains(module: nn.Module, before: Iterable[tuple[str, nn.Parameter, bool]]) -> None:
    """Refuse a module whose pass changed requires_grad; `before`: (name, parameter, requires_grad before the pass).

    Raises:
        ConfigError: requires_grad was changed; the message names the parameter.
    """
    for name, parameter, trained in before:
        if parameter.requires_grad != trained:
            problem = (f"a training pass sets requires_grad of parameter {name} to {not trained}, but servers have "
                       "only the parameters that are trained at the start: do not change requires_grad, and use "
                       "parameter.detach() where it must not be trained")  # fmt: skip
            raise ConfigError("model", type(module).__name__, problem)


def check_patched(module: nn.Module, *functions: object) -> None:
    """Refuse functions that this process has replaced in torch, or in another library's class of the model, the loss
    or the metric: workers import the originals.

    Raises:
        ConfigError: a function was replaced; the message names it.
    """
    objects = *module.modules(), *functions
    kinds = dict.fromkeys(kind for item in objects for kind in type(item).__mro__ if installed(kind.__module__))
    owners: tuple[Any, ...] = (*kinds, torch, torch.Tensor, nn.functional)
    for owner in owners:
        for name, value in vars(owner).items():
            if not installed(origin := _origin(value)):
                problem = f"{owner.__name__}.{name} was replaced in this process by code of {origin}, and workers "
                how = "import the library's original: write a class or a function for your model instead"
                raise ConfigError("model", type(module).__name__, problem + how)


def _origin(value: Any) -> str:
    """Return the name of the module that defines a function, or the class of another object."""
    value = value.fget if isinstance(value, property) else value
    value = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
    if isinstance(value, types.FunctionType):
        return str(value.__globals__.get("__name__", "torch"))  # generated code has none
    return str((value if isinstance(value, type) else type(value)).__module__)


def _sharing(module: nn.Module) -> Iterator[str]:
    """Yield a problem for each pair of tensors that share memory, if one is trained: copies would not share it."""
    tensors = [(name, tensor) for name, tensor in (*module.named_parameters(), *module.named_buffers())
               if tensor.layout == torch.strided and not tensor.is_meta and tensor.numel()]  # fmt: skip
    end, last, trains = 0, "", False
    for name, tensor in sorted(tensors, key=lambda named: named[1].data_ptr()):
        if tensor.data_ptr() < end and (trains or tensor.requires_grad):
            yield (f"{last} and {name} share memory, and in copies each would have its own: use one Parameter for both "
                   "(b.weight = a.weight), or clone() one")  # fmt: skip
        size = 1 + sum((count - 1) * stride for count, stride in zip(tensor.shape, tensor.stride(), strict=True))
        if (stop := tensor.data_ptr() + size * tensor.itemsize) > end:
            end, last, trains = stop, name, tensor.requires_grad


def _enclosed(value: Any, inside: set[int], seen: set[int], function: str = "") -> str:
    """Return the name of a function in `value` that refers to a part of the model (ids in `inside`), or ""."""
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
    return next((function_name for part in parts if (function_name := _enclosed(part, inside, seen, function))), "")


def _problems(path: str, module: nn.Module, inside: set[int]) -> list[str]:
    prefix = f"{path}." if path else ""
    name = f"module {path} ({type(module).__name__})" if path else "it"
    problems = [f"parameter {prefix}{name} {problem}" for name, parameter in module.named_parameters(recurse=False)
                if (problem := _of_parameter(parameter))]  # fmt: skip
    problems += [f"buffer {prefix}{name} {LAZY}" for name, buffer in module.named_buffers(recurse=False)
                 if nn.parameter.is_lazy(buffer)]  # fmt: skip
    problems += [f"{name} has in {key} the function {function}, which refers to a part of this object and not of the "
                 "copy that is trained: let it use the module that it gets as an argument, or make it a method"
                 for key, value in vars(module).items() if (function := _enclosed(value, inside, set()))]  # fmt: skip
    if isinstance(module, AveragedModel) and any(p.requires_grad for p in module.parameters()):
        problems.append(f"{name} averages only if update_parameters is called after each step, which no run does: "
                        "give the model inside it")  # fmt: skip
    if parametrize.is_parametrized(module):
        problems.append(f"{name} is parametrized, which torch cannot pickle for a worker: compute the weight in "
                        "forward, or call parametrize.remove_parametrizations")  # fmt: skip
    problems += [f"{name} has {key}, a tensor computed from parameters before the run, as torch.nn.utils.prune, "
                 "weight_norm and spectral_norm do; a copy would not update it: compute it in forward, or call "
                 "prune.remove or remove_weight_norm" for key, value in vars(module).items()
                 if isinstance(value, Tensor) and value.grad_fn is not None]  # fmt: skip
    return problems


def _of_parameter(parameter: Any) -> str:
    if nn.parameter.is_lazy(parameter):
        return LAZY
    hooks = [*(parameter._backward_hooks or {}).values(),
             *(getattr(parameter, "_post_accumulate_grad_hooks", None) or {}).values()]  # fmt: skip
    if hooks:
        called = getattr(hooks[0], "__qualname__", type(hooks[0]).__name__)
        return (f"has a hook ({called}), which is lost when a worker's process gets the model: in forward, hook a "
                "tensor computed from it: w = 1 * parameter; if w.requires_grad: w.register_hook(...)")  # fmt: skip
    if type(parameter) is not nn.Parameter:
        return (f"is of the class {type(parameter).__name__}, but a worker's process gets a plain Parameter: use "
                "nn.Parameter, whose attributes are kept")  # fmt: skip
    return ""
