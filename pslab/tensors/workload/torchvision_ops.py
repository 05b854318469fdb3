"""The only place that imports torchvision, and only when it is called: the import costs 1.6 s and 87 MB.

torchvision's wheels are built for CUDA. Beside a torch for the CPU their compiled operators do not load and the
import fails ("operator torchvision::nms does not exist"), although data sets, transforms and models are pure Python.
Declaring the missing operators, without an implementation, is enough for them.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable
from types import ModuleType
from typing import TypeVar

import torch

T = TypeVar("T")
MISSING = re.compile(r"operator (torchvision::\w+) does not exist")
SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def with_operators(load: Callable[[], T]) -> T:
    """What `load()` returns; operators of torchvision that an import in it misses are declared, and it is called again.

    For whatever may import torchvision: unpickling a model that came from it, importing a user's module.
    """
    declared: set[str] = set()
    while True:
        try:
            return load()
        except RuntimeError as error:
            missing = MISSING.search(str(error))
            if missing is None or missing[1] in declared:
                raise
            # declared before the first attempt, an operator would clash with the compiled one of a CUDA build
            declared.add(missing[1])
            for name in [n for n in sys.modules if n.partition(".")[0] == "torchvision"]:
                del sys.modules[name]
            torch.library.define(missing[1], SCHEMA)


def torchvision() -> ModuleType:
    """The package torchvision, importable beside a CUDA and beside a CPU build of torch."""
    return with_operators(lambda: importlib.import_module("torchvision"))
