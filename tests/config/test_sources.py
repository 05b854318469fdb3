"""A module of the user's is its files: an edit is another one, and is never taken for what was imported before."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pslab.config import sources
from pslab.config.run import Run
from pslab.errors import ConfigError

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


def test_what_is_installed_is_no_source():
    assert all(map(sources.installed, ("torch.nn", "json", "sys", "builtins", "pandas", "pslab.config.run")))
    assert sources.of("torch") == sources.of("json") == {}


def test_modules_that_are_reached_are_sources_too(write: Write):
    write(users_a="import json\nimport users_b", users_b="def f():\n    from users_c import x", users_c="x = 1",
          users_d="")  # fmt: skip
    assert list(sources.of("users_a")) == ["users_a", "users_b", "users_c"]


def test_a_package_reaches_its_own_modules(write: Write):
    write(**{"users_p/__init__": "", "users_p/a": "from . import b\nfrom .c import x", "users_p/b": "",
             "users_p/c": "x = 1"})  # fmt: skip
    assert list(sources.of("users_p.a")) == ["users_p", "users_p.a", "users_p.b", "users_p.c"]


@pytest.mark.parametrize("edited", ["users_a", "users_b"])
def test_an_edited_file_is_another_experiment(write: Write, edited: str):
    files = {"users_a": "import users_b\nclass Net:\n    pass\n", "users_b": "SIZE = 1\n"}
    write(**files)
    before = Run(model="users_a:Net").digest
    assert Run(model="users_a:Net").digest == before
    write(**{edited: files[edited] + "SIZE = 2\n"})
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
    for place in ("one", "two", "three"):
        (tmp_path / place / "a").mkdir(parents=True)
        (tmp_path / place / "a" / "x.png").write_bytes(b"picture")
    (tmp_path / "three" / "a" / "x.png").write_bytes(b"another")
    os.utime(tmp_path / "two" / "a" / "x.png", (0, 0))
    one, two, three = (sources.folder(tmp_path / place) for place in ("one", "two", "three"))
    assert one == two != three
    assert sources.folder(tmp_path / "none") == ""


def test_a_file_that_is_added_to_a_folder_changes_it_and_what_was_found_of_it_is_stale(tmp_path):
    before, edits = sources.folder(tmp_path), sources.edits()
    assert sources.folder(tmp_path) == before
    assert sources.edits() == edits
    (tmp_path / "x.png").write_bytes(b"picture")
    os.utime(tmp_path, ns=(1, 1))  # however coarse the clock of the file system
    assert sources.folder(tmp_path) != before
    assert sources.edits() == edits + 1
