"""The text of an own object makes the same object in another process: it has the same content."""

from __future__ import annotations

import ast
import linecache
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest
from cells import CELLS

from pslab.config.content import content
from pslab.config.run import Run
from pslab.errors import ConfigError
from pslab.lab.records.export import export
from pslab.lab.records.own_source import cells_of, statements_of, texts_of
from pslab.lab.records.results import load
from pslab.lab.runs.run import run

HEAD = """import dataclasses, functools, torch
from torch import nn
from torch.nn import functional as F
WIDTH = {'a': [3]}
"""
#: Cells, the last of which ends with the object; what is set on an object afterwards is in no text.
OBJECTS = {kind: f"{cell.format(4)}\n{'factory' if 'factory' in cell else 'Net'}\n"
           for kind, cell in CELLS.items() if kind != "slots"} | {
    "two cells": "class Base(nn.Module):\n    @property\n    def wide(self):\n        return WIDTH['a']\n# %%\n"
                 "class Net(Base):\n    def __init__(self, wide=WIDTH):\n        super().__init__()\nNet",
    "an object": "@dataclasses.dataclass(frozen=True)\nclass Turns:\n    every: int = 2\n    also: tuple = ()\n"
                 "    def start(self, x):\n        return WIDTH\nTurns(every=10, also=(1, 'b'))",
    "a helper": "def helper(x):\n    return F.relu(x) + len(WIDTH)\n# %%\ndef loss(output, target):\n    x = 3\n"
                "    return helper(output - target) * x\nloss.lower_is_better = True\nx = object()\nloss",
    "two closures": "def make(k, other):\n    def loss(output, target):\n        return k * other(output, target)\n"
                    "    return loss\nmake(2.0, functools.partial(F.huber_loss, delta=0.5))",
    "a lambda": "one, two = (lambda x: x + 1), (lambda x: x + len(WIDTH))\ntwo",
    "a lambda in a closure": "def make(k):\n    return lambda x: k + x\nmake(3)",
    "indented": "if True:\n    class Net:\n        def f(self):\n            return 1\nNet",
    "numbers of a cell": "x = torch.arange(6.0)\ny = x + 1\n# %%\ndef data():\n    return x, y, x, y\ndata",
}  # fmt: skip

Cells = Callable[..., Any]


@pytest.fixture
def cells(monkeypatch: pytest.MonkeyPatch) -> Cells:
    """A new kernel that executes cells, and gives what the last one ends with."""

    def execute(texts: list[str]) -> Any:
        main = types.ModuleType("__main__")
        main.In = [""]  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "__main__", main)
        for number, text in enumerate(texts):
            name = f"<cell {number} {hash(text)}>"
            linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name
            main.In.append(text)  # type: ignore[attr-defined]
            tree = ast.parse(text)
            last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else ast.parse("None").body[0]
            exec(compile(tree, name, "exec"), vars(main))
            value = eval(compile(ast.Expression(last.value), name, "eval"), vars(main))
        return value

    return execute


@pytest.mark.parametrize("kind", OBJECTS)
def test_a_new_kernel_makes_the_same_object_of_its_text(kind: str, cells: Cells):
    value = cells([HEAD, *OBJECTS[kind].split("# %%")])
    before, text = content(value), texts_of(Run(model=value))["model"]
    assert "NotImplementedError" not in text
    statements, last = statements_of(text)
    assert content(cells([*cells_of(statements), last])) == before


FILE = """
from torch import nn
WIDTH = 6
class Net(nn.Linear):
    def __init__(self):
        super().__init__(WIDTH, 3)
"""
STUDY = """
import torch
from pslab import Run, run
from users_net import Net
# %%
x = torch.arange(64 * 9.0).view(64, 9) / 600
class Tanh(Net):
    def forward(self, x):
        return super().forward(x).tanh()
# %%
run(Run(model=Tanh, data=lambda: (x[:, :6], x[:, 6:]) * 2, loss='mse', metric='loss', workers=2, batch_size=16,
        pushes=4, engine='virtual', cluster='lab'))
"""


@pytest.mark.slow
def test_a_colleague_runs_the_notebook_of_a_record(cells: Cells, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "users_net.py").write_text(FILE)
    with monkeypatch.context() as here:
        here.syspath_prepend(str(tmp_path))
        here.setenv("PSLAB_RESULTS", str(tmp_path / "results"))
        record = cells(STUDY.split("# %%"))
        record = load(record.digest, record.path.parents[1])
    del sys.modules["users_net"]
    with pytest.raises(ConfigError, match=r"your Tanh, which the record does not contain: .*model=Tanh.*--to notebook"):
        run(record.run, results=tmp_path / "other")
    export(record, "notebook", tmp_path / "out")
    notebook = nbformat.read(tmp_path / "out" / f"{record.digest}.ipynb", as_version=4)
    assert [cell.source for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])] != []
    (elsewhere := tmp_path / "elsewhere").mkdir()
    monkeypatch.syspath_prepend(str(elsewhere))
    monkeypatch.setenv("PSLAB_RESULTS", str(elsewhere / "results"))
    texts = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    for written in (text for text in texts if text.startswith("%%writefile")):
        (elsewhere / written.split()[1]).write_text(written.partition("\n")[2])
    again = cells([text for text in texts if not text.startswith("%%writefile")])
    del sys.modules["users_net"]
    assert (again.digest, again.cached) == (record.digest, False)
    assert again.manifest["weights_sha256"] == record.manifest["weights_sha256"]
