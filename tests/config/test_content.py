"""The content of an object: what changes a run changes it, and nothing else does."""

from __future__ import annotations

import abc
import contextlib
import copy
import enum
import functools
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cells import CELLS, of_all_cells, of_cell
from torch import nn

from pslab.config.content import Unknown, content
from pslab.config.run import Run


@pytest.mark.parametrize("kind", CELLS)
def test_what_an_object_does_is_its_content(kind: str):
    cell = CELLS[kind]
    assert content(of_cell(cell.format(4))) == content(of_cell(cell.format(4)))
    assert content(of_cell(cell.format(4))) != content(of_cell(cell.format(9)))


def test_where_it_was_written_is_not():
    text = CELLS["class"].format(4)
    assert content(of_cell(text)) == content(of_cell("\n\n# a remark\n" + text))


def used(value: Any) -> None:
    """Do what Python remembers on an object's class."""
    with contextlib.suppress(TypeError):
        pickle.dumps(value)
    kind = value if isinstance(value, type) else type(value)
    getattr(kind, "__annotations__", None)
    copy.deepcopy(value)


class Plain:
    size = 3


class Slotted:
    __slots__ = ("size",)


class Derived(Plain, abc.ABC):
    run = Run()


class Flags(enum.Flag):
    A, B = 1, 2


@pytest.mark.parametrize("value", [Plain, Plain(), Slotted(), Derived(), Flags.A, [Run()]],
                         ids=["class", "plain", "slotted", "derived", "flag", "run"])  # fmt: skip
def test_what_python_remembers_is_not(value: Any):
    before = content(value)
    used(value)
    assert len(Flags.A | Flags.B) == 2
    assert Derived.run.digest
    assert all(each.digest for each in value) if isinstance(value, list) else True
    assert content(value) == before


def test_a_global_that_is_not_reached_is_not():
    text = CELLS["constant"].format(4)
    assert content(of_cell(text)) == content(of_cell(text + "OTHER = 7\n"))


MADE: dict[str, Callable[[float], Any]] = {
    "tensor": lambda x: torch.arange(40_000.0) + x, "array": lambda x: np.arange(40_000) + x,
    "parameter": lambda x: nn.Parameter(torch.full((9,), x)), "half": lambda x: torch.full((3,), x).to(torch.bfloat16),
    "gradient": lambda x: nn.Sequential(nn.Linear(2, 2)).requires_grad_(x > 4), "list": lambda x: {"a": [x]},
    "device": lambda x: torch.device("cpu", int(x)), "dtype": lambda x: torch.float16 if x > 4 else torch.float32,
    "scalar": np.float64, "length": lambda x: [None] * int(x), "complex": lambda x: torch.full((3,), x) * 1j,
    "generator": lambda x: np.random.default_rng(int(x)), "partial": lambda x: functools.partial(torch.add, alpha=x),
    "set": lambda x: {x, "a", None},
}  # fmt: skip


@pytest.mark.parametrize("made", MADE.values(), ids=[*MADE])
def test_numbers_are_compared_by_their_bits(made: Any):
    torch.manual_seed(0)
    one = made(4.0)
    torch.manual_seed(0)
    assert content(made(4.0)) == content(one) != content(made(9.0))


def test_a_tensor_that_differs_in_the_middle_differs():
    one = torch.zeros(100, 100)
    other = one.clone()
    other[50, 50] = 1
    assert content(one) != content(other)
    assert content(one) != content(one.view(-1))
    assert content(one) != content(one.double())


def test_two_networks_with_different_weights_differ():
    one, other = (nn.Sequential(nn.Linear(3, 3)) for _ in range(2))
    assert content(one) != content(other)
    other.load_state_dict(one.state_dict())
    assert content(one) == content(other)


def test_true_is_not_one_and_a_text_is_not_bytes():
    values = [True, 1, 1.0, "1", b"1", None, (1,), [1], {1}, frozenset({1}), 1j, -0.0, 0.0, {1: 1}]
    assert len({content(value) for value in values}) == len(values)


@pytest.mark.parametrize(
    "value", [threading.Lock(), (each for each in "ab"), sys.stderr], ids=["lock", "generator", "file"]
)
def test_what_only_this_process_knows_is_unknown(value: object):
    with pytest.raises(Unknown, match="cannot be sent to another process"):
        content([value])


def test_a_function_that_reaches_a_lock_is_unknown():
    with pytest.raises(Unknown, match="lock"):
        content(of_cell("import threading\nLOCK = threading.Lock()\ndef factory():\n    return LOCK\n"))


def test_an_object_that_is_nested_without_end_is_unknown():
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(Unknown, match="nested too deeply"):
        content(deep)


def test_another_process_with_other_hashes_finds_the_same_content(tmp_path: Path):
    script = "import sys; sys.path[:0] = sys.argv[1:]; import cells; print(*cells.of_all_cells())"
    folders = [str(Path(__file__).parents[1] / "support"), str(Path(__file__).parents[2])]
    done = subprocess.run([sys.executable, "-c", script, *folders], env={**os.environ, "PYTHONHASHSEED": "1"},
                          capture_output=True, text=True, check=True, cwd=tmp_path)  # fmt: skip
    assert done.stdout.split() == of_all_cells()
