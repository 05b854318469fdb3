"""The parameters of a notebook: declared by its own first cell, checked by what is declared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest

from pslab.errors import ConfigError
from pslab.lab.studies import parameters as module
from pslab.lab.studies.parameters import check, check_named, declared, given, of_notebook, parameters

CELL = """# Parameters
families = {"static": ["static:1%"]}  # name: thresholds
syncs = ["bsp", "asp"]
pushes = 625
learning_rate = 0.5
rates = [0.1, 0.2]
scale = 2.0
sizes = [1, 2]
live = None
quiet = False
cluster = {"compute_s": 0.02}
"""
NAMES = declared("10_pruning", CELL)


def test_the_first_cell_declares_names_and_defaults():
    assert list(NAMES) == ["families", "syncs", "pushes", "learning_rate", "rates", "scale", "sizes", "live", "quiet",
                           "cluster"]  # fmt: skip
    assert NAMES["families"] == {"static": ["static:1%"]}


DEFAULTS = {"policies": ["bsp", "ssp:3"], "families": {"static": ["static:1%"], "none": []}, "model": "mlp",
            "small": {"model": "mlp:8", "pushes": 3}, "network": "MLP", "both": "constant", "live": None}  # fmt: skip


def test_values_like_their_defaults_and_names_that_exist_or_cannot_be_known_are_admitted():
    for values in ({"live": True}, {"live": [1]}, {"scale": 3}, {"rates": [1, 0.5]}, {"rates": (0.1,)}, {"quiet": True},
                   {"cluster": "lab"}, {"cluster": {"slow": {0: 3.0}}}, {"learning_rate": 1}, {"families": {}},
                   {"syncs": ["ssp:3"]}):  # fmt: skip
        check("10_pruning", NAMES, values)
    for name, value in (("policies", ["asp", "dssp:3,12"]), ("families", {"mine": ["none", "dgc:0.1%"]}),
                        ("small", {"model": "cnn"}), ("model", "torchvision:resnet18"), ("model", "mine:net"),
                        ("network", "a word"), ("both", "of two kinds"), ("live", "anything")):  # fmt: skip
        check_named(name, DEFAULTS[name], value)


def test_later_cells_give_values_and_a_name_that_was_misspelt_before_the_last_check_is_forgiven():
    cells = ["", CELL, "# Parameters\npushes = 32", "check"]
    assert given("10_pruning", cells, {**NAMES, "pushes": 32, "In": cells, "other": 7}) == {**NAMES, "pushes": 32}
    cells = ["", CELL, "# Parameters\npushs = 32", "check"]
    namespace: dict[str, Any] = {**NAMES, "pushs": 32}
    with pytest.raises(ConfigError, match="did you mean 'pushes'"):
        given("10_pruning", cells, namespace)
    mended = [*cells, "# Parameters\npushes = 16", "check"]
    assert given("10_pruning", mended, {**namespace, "pushes": 16})["pushes"] == 16


def test_a_notebook_on_disk_says_what_it_declares(tmp_path: Path):
    cells = [nbformat.v4.new_markdown_cell("# Parameters of a study"),
             nbformat.v4.new_code_cell(CELL, metadata={"tags": ["parameters"]}),
             nbformat.v4.new_code_cell("# Parameters\nlater = 1")]  # fmt: skip
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "10_pruning.ipynb")
    assert of_notebook(tmp_path / "10_pruning.ipynb") == NAMES
    cells[1].metadata = {}
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "untagged.ipynb")
    with pytest.raises(ConfigError, match=r"lacks the tag .parameters., so its defaults would overwrite .* inspector"):
        of_notebook(tmp_path / "untagged.ipynb")
    (tmp_path / "broken.ipynb").write_text("{")
    for name in ("broken", "none"):
        with pytest.raises(ConfigError, match="cannot be read"):
            of_notebook(tmp_path / f"{name}.ipynb")


class Shell:
    """What IPython's shell has to do with it."""

    def __init__(self, cells: list[str]) -> None:
        self.user_ns = {"In": cells, **NAMES}


def test_in_a_notebook_its_own_cells_are_read(monkeypatch: pytest.MonkeyPatch):
    IPython = pytest.importorskip("IPython")  # noqa: N806
    monkeypatch.setattr(IPython, "get_ipython", lambda: Shell(["", CELL, "check"]))
    assert parameters("10_pruning") == NAMES
    assert module.current() == "10_pruning"
    monkeypatch.setenv(module.PACKAGE, "/elsewhere/pslab/__init__.py")
    with pytest.raises(ConfigError, match="install only one of the two"):
        parameters("10_pruning")
