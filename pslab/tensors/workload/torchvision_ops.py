"""The only module that imports torchvision, and only when called: the import takes 1.6 s and 87 MB.

The wheels of torchvision are built for CUDA. With a CPU build of torch their compiled operators do not load, and the
import fails ("operator torchvision::nms does not exist"), although datasets, transforms and models are pure Python.
Declaring the missing operators, without an implementation, is enough for these.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, TypeVar

import torch

from pslab.config import spec

T = TypeVar("T")
MISSING = re.compile(r"operator (torchvision::\w+) does not exist")
SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def with_operators(load: Callable[[], T]) -> T:
    """Return the result of `load()`; call it again after declaring each operator of torchvision that it misses.

    Use it for every call that may import torchvision: unpickling a model of torchvision, importing a user's module.
    """
    declared: set[str] = set()
    while True:
        try:
            return load()
        except RuntimeError as error:
            missing = MISSING.search(str(error))
            if missing is None or missing[1] in declared:
                raise
            # not before the first attempt: the declaration would clash with the compiled operator of a CUDA build
            declared.add(missing[1])
            for name in [n for n in sys.modules if n.partition(".")[0] == "torchvision"]:
                del sys.modules[name]
            torch.library.define(missing[1], SCHEMA)


def import_named(field: str, text: str) -> Any:
    """Import "module:name", as `pslab.config.spec.import_named` does, from a module that may import torchvision."""
    return spec.import_named(field, text, lambda path: with_operators(lambda: importlib.import_module(path)))


def torchvision() -> ModuleType:
    """Import torchvision, with a CUDA or a CPU build of torch."""
    return with_operators(lambda: importlib.import_module("torchvision"))
