"""The content of an object and the files of a module: what changes a run changes them, and nothing else does."""

from __future__ import annotations

import abc
import contextlib
import copy
import enum
import functools
import importlib
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cells import CELLS, of_all_cells, of_cell
from torch import nn

from pslab.config import sources
from pslab.config.content import Unknown, content
from pslab.config.run import Run
from pslab.errors import ConfigError


def test_what_an_object_does_is_its_content_and_where_it_was_written_and_a_global_that_is_not_reached_are_not():
    for kind, cell in CELLS.items():
        assert content(of_cell(cell.format(4))) == content(of_cell(cell.format(4))), kind
        assert content(of_cell(cell.format(4))) != content(of_cell(cell.format(9))), kind
    for text, other in (("class", "\n\n# a remark\n{}"), ("constant", "{}OTHER = 7\n")):
        cell = CELLS[text].format(4)
        assert content(of_cell(cell)) == content(of_cell(other.format(cell)))


class Plain:
    size = 3


class Slotted:
    __slots__ = ("size",)


class Derived(Plain, abc.ABC):
    run = Run()


class Flags(enum.Flag):
    A, B = 1, 2


def test_what_python_remembers_on_a_class_that_is_used_is_not():
    values = [Plain, Plain(), Slotted(), Derived(), Flags.A, [Run()]]
    before = [content(value) for value in values]
    for value in values:
        with contextlib.suppress(TypeError):
            pickle.dumps(value)
        getattr(value if isinstance(value, type) else type(value), "__annotations__", None)
        copy.deepcopy(value)
    assert len(Flags.A | Flags.B) == 2
    assert Derived.run.digest
    assert values[-1][0].digest
    assert [content(value) for value in values] == before


MADE: dict[str, Callable[[float], Any]] = {
    "tensor": lambda x: torch.arange(40_000.0) + x, "array": lambda x: np.arange(40_000) + x,
    "parameter": lambda x: nn.Parameter(torch.full((9,), x)), "half": lambda x: torch.full((3,), x).to(torch.bfloat16),
    "gradient": lambda x: nn.Sequential(nn.Linear(2, 2)).requires_grad_(x > 4), "list": lambda x: {"a": [x]},
    "device": lambda x: torch.device("cpu", int(x)), "dtype": lambda x: torch.float16 if x > 4 else torch.float32,
    "scalar": np.float64, "length": lambda x: [None] * int(x), "complex": lambda x: torch.full((3,), x) * 1j,
    "generator": lambda x: np.random.default_rng(int(x)), "partial": lambda x: functools.partial(torch.add, alpha=x),
    "set": lambda x: {x, "a", None},
}  # fmt: skip


def test_numbers_are_compared_by_their_bits_and_their_types():
    for kind, made in MADE.items():
        torch.manual_seed(0)
        one = made(4.0)
        torch.manual_seed(0)
        assert content(made(4.0)) == content(one) != content(made(9.0)), kind
    one = torch.zeros(100, 100)
    other = one.clone()
    other[50, 50] = 1
    assert content(one) not in (content(other), content(one.view(-1)), content(one.double()))
    values = [True, 1, 1.0, "1", b"1", None, (1,), [1], {1}, frozenset({1}), 1j, -0.0, 0.0, {1: 1}]
    assert len({content(value) for value in values}) == len(values)


def test_what_only_this_process_knows_or_is_nested_without_end_is_unknown():
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    reaching = of_cell("import threading\nLOCK = threading.Lock()\ndef factory():\n    return LOCK\n")
    for value, words in ((threading.Lock(), "cannot be sent"), ((each for each in "ab"), "cannot be sent to another"),
                         (sys.stderr, "cannot be sent to another process"), (reaching, "lock"),
                         (deep, "nested too deeply")):  # fmt: skip
        with pytest.raises(Unknown, match=words):
            content([value])


def test_another_process_with_other_hashes_finds_the_same_content_and_digest(tmp_path: Path):
    script = ("import sys; sys.path[:0] = sys.argv[1:]; import cells; from pslab.config.run import Run; "
              "print(Run(cluster={'serve_s': 1, 'find_s': 2}).digest, *cells.of_all_cells())")  # fmt: skip
    folders = [str(Path(__file__).parents[1] / "support"), str(Path(__file__).parents[2])]
    done = subprocess.run([sys.executable, "-c", script, *folders], env={**os.environ, "PYTHONHASHSEED": "1"},
                          capture_output=True, text=True, check=True, cwd=tmp_path)  # fmt: skip
    assert done.stdout.split() == [Run(cluster={"find_s": 2, "serve_s": 1}).digest, *of_all_cells()]


Write = Callable[..., None]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes files of the user, which this process can import."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def put(**files: str) -> None:
        for name, text in files.items():
            path = tmp_path / f"{name}.py"
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        importlib.invalidate_caches()

    yield put
    for name in [name for name in sys.modules if name.startswith("users")]:
        del sys.modules[name]


def test_modules_that_are_reached_are_sources_too_and_what_is_installed_is_none(write: Write):
    write(users_a="import json\nimport users_b", users_b="def f():\n    from users_c import x", users_c="x = 1",
          users_d="")  # fmt: skip
    assert list(sources.of("users_a")) == ["users_a", "users_b", "users_c"]
    assert all(map(sources.installed, ("torch.nn", "json", "sys", "builtins", "pandas", "pslab.config.run")))
    assert sources.of("torch") == sources.of("json") == {}
    write(**{"users_p/__init__": "", "users_p/a": "from . import b\nfrom .c import x", "users_p/b": "",
             "users_p/c": "x = 1"})  # fmt: skip
    assert list(sources.of("users_p.a")) == ["users_p", "users_p.a", "users_p.b", "users_p.c"]


def test_an_edited_file_is_another_experiment(write: Write):
    files = {"users_a": "import users_b\nclass Net:\n    pass\n", "users_b": "SIZE = 1\n"}
    write(**files)
    before = Run(model="users_a:Net").digest
    assert Run(model="users_a:Net").digest == before
    for edited, text in files.items():
        write(**{**files, edited: text + "SIZE = 2\n"})
        assert Run(model="users_a:Net").digest != before


@pytest.mark.parametrize("given", [lambda: "users_a:Net", lambda: sys.modules["users_a"].Net], ids=["text", "class"])
def test_a_file_that_was_edited_after_its_import_is_refused_until_it_is_reloaded(write: Write, given: Any):
    write(users_a="class Net:\n    size = 1\n    def make(self):\n        pass\n")
    module = importlib.import_module("users_a")
    before, edits = Run(model=given()).digest, sources.edits()
    write(users_a="class Net:\n    size = 22\n    def make(self):\n        pass\n")
    with pytest.raises(ConfigError, match=r"model=.*users_a\.py was edited after it was imported.*reload\(users_a\)"):
        print(Run(model=given()).digest)
    importlib.reload(module)
    assert Run(model=given()).digest != before
    assert sources.edits() == edits + 1


def test_a_folder_is_what_its_files_hold_wherever_it_lies_and_whenever_they_were_written(tmp_path):
    for folder in ("one", "two", "three"):
        (tmp_path / folder / "a").mkdir(parents=True)
        (tmp_path / folder / "a" / "x.png").write_bytes(b"picture")
    (tmp_path / "three" / "a" / "x.png").write_bytes(b"another")
    os.utime(tmp_path / "two" / "a" / "x.png", (0, 0))
    one, two, three = (sources.folder(tmp_path / name) for name in ("one", "two", "three"))
    assert one == two != three
    assert sources.folder(tmp_path / "none") == ""
    edits = sources.edits()
    assert sources.folder(tmp_path / "one") == one
    assert sources.edits() == edits
    (tmp_path / "one" / "y.png").write_bytes(b"picture")
    os.utime(tmp_path / "one", ns=(1, 1))  # however coarse the clock of the file system
    assert sources.folder(tmp_path / "one") != one
    assert sources.edits() == edits + 1
