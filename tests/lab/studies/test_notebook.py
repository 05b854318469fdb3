"""What a notebook calls: its parameters, its claims and its figures, and what the batch reads of them."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import handmade
import nbformat
import numpy as np
import plotly.graph_objects as go
import pytest

from pslab.config.run import Run
from pslab.errors import ConfigError
from pslab.lab.studies import parameters as module
from pslab.lab.studies.claims import claim
from pslab.lab.studies.figures import NO_IMAGES, save
from pslab.lab.studies.parameters import check, check_named, declared, given, of_notebook, parameters

CELL = """# Parameters
families = {"static": ["static:1%"]}  # name: thresholds
syncs = ["bsp", "asp"]
pushes = 625
learning_rate = 0.5
rates = [0.1, 0.2]
scale = 2.0
live = None
quiet = False
cluster = {"compute_s": 0.02}
"""
NAMES = declared("10_pruning", CELL)
DEFAULTS = {"policies": ["bsp", "ssp:3"], "families": {"static": ["static:1%"], "none": []}, "model": "mlp",
            "small": {"model": "mlp:8", "pushes": 3}, "network": "MLP", "both": "constant", "live": None}  # fmt: skip


# -- parameters --------------------------------------------------------------------------------------


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
    (tmp_path / "broken.ipynb").write_text("{")
    untagged = r"lacks the tag .parameters., so its defaults would overwrite .* inspector"
    for name, words in (("untagged", untagged), ("broken", "cannot be read"), ("none", "cannot be read")):
        with pytest.raises(ConfigError, match=words):
            of_notebook(tmp_path / f"{name}.ipynb")


def test_in_a_notebook_its_own_cells_are_read(monkeypatch: pytest.MonkeyPatch):
    shell = SimpleNamespace(user_ns={"In": ["", CELL, "check"], **NAMES})
    monkeypatch.setattr("IPython.get_ipython", lambda: shell)
    assert (parameters("10_pruning"), module.current()) == (NAMES, "10_pruning")
    monkeypatch.setenv(module.PACKAGE, "/elsewhere/pslab/__init__.py")
    with pytest.raises(ConfigError, match="install only one of the two"):
        parameters("10_pruning")


# -- claims ------------------------------------------------------------------------------------------

TEXT = "it takes {value:.2f} of the time"
GOOD = handmade.curve(None, Run(pushes=4), [0.1, 0.2])


@pytest.mark.parametrize(("value", "bounds", "words"), [
    (0.514, {"at_most": 0.6}, ""),
    (0.7, {"at_most": 0.6}, "0.7 is not at most 0.6"), (0.5, {"at_least": 0.6}, "0.5 is not at least 0.6"),
    (0.7, {"at_least": 0.1, "at_most": 0.6}, "0.7 is not at least 0.1 and at most 0.6"),
    (math.nan, {"at_most": 0.6}, "nan is not at most 0.6"), (math.inf, {"at_most": 0.6}, "inf is not"),
    (0.7, {"at_most": 0.6, "results": [GOOD]}, "0.7 is not"), (np.float64(0.7), {"at_most": np.float64(0.6)}, "0.7 is"),
])  # fmt: skip
def test_a_claim_that_holds_is_a_title_and_one_that_does_not_is_loud(value, bounds, words, capsys):
    made = claim(TEXT, value, **bounds)
    assert made.holds is (not words)  # and no boolean of NumPy, which is no JSON
    assert made.title == (None if words else "it takes 0.51 of the time")
    assert repr(made).startswith(f"{'✗' if words else '✓'} it takes")
    assert words in (said := capsys.readouterr().err)
    assert bool(said) == bool(words)


def test_other_parameters_and_broken_emulations_are_not_judged(capsys: pytest.CaptureFixture):
    bad = handmade.curve(None, Run(pushes=4, seed=1), [0.1, 0.2], emulation_ok=False)
    others, slow = claim(TEXT, 9.0, at_most=1, given=False), claim(TEXT, 9.0, at_most=1, results=[GOOD, bad])
    assert (others.holds, slow.holds, others.title) == (None, None, None)
    assert repr(slow).startswith("not judged (the machine did not keep up")
    assert capsys.readouterr().err == ""


def test_a_title_says_how_many_seeds_it_rests_on_and_which_runs_diverged():
    bsp = [handmade.curve(None, Run(pushes=4, seed=seed), [0.1, 0.2]) for seed in range(3)]
    asp = handmade.curve(None, Run(pushes=4, sync="asp"), [0.1], outcome="diverged")
    for results, words in ((bsp[:1], "one seed"), ([*bsp, bsp[0]], "3 seeds"),
                           ([*bsp, asp], "1–3 seeds, 1 of 4 runs diverged")):  # fmt: skip
        assert claim(TEXT, 0.5, at_most=1, results=results).title == f"it takes 0.50 of the time ({words})"
    every = claim("every seed arrives", 0.5, at_most=1, results=bsp[:1])
    assert every.title == "every seed arrives (there is one seed)"


# -- figures -----------------------------------------------------------------------------------------


@pytest.fixture
def figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PSLAB_RESULTS", str(tmp_path))
    monkeypatch.setattr(module, "_current", "10_pruning")
    return tmp_path / "figures"


def test_a_notebook_shows_a_figure_whose_pictures_are_written_without_a_browser_unless_declined(figures, monkeypatch):
    shown: list[Any] = []
    monkeypatch.setattr("pslab.lab.studies.figures.kernel", object)
    monkeypatch.setattr("IPython.display.display", lambda *each: shown.extend(each))
    monkeypatch.setenv("PATH", "")
    save("accuracy", drawn := go.Figure(go.Scatter(y=[1, 2]), layout={"meta": {"caption": ["4 workers", "1 < 2"]}}))
    assert shown[0] is drawn
    assert "4 workers<br>1 &lt; 2" in shown[1].data
    save("declined", go.Figure(), images=False)
    monkeypatch.setenv(NO_IMAGES, "1")
    save("later", go.Figure())
    kinds = {name: {path.suffix for path in figures.glob(f"10_pruning-{name}.*")} for name in (
        "accuracy", "declined", "later")}  # fmt: skip
    assert kinds == {"accuracy": {".json", ".html", ".png", ".svg", ".pdf", ".txt"}, "declined": {".json", ".html"},
                     "later": {".json", ".html"}}  # fmt: skip


def test_names_that_are_none_for_a_file_are_refused(figures: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("", "../time", "Time", "a b"):
        with pytest.raises(ConfigError, match="must have only small letters"):
            save(name, go.Figure())
    monkeypatch.setattr(module, "_current", "")
    with pytest.raises(ConfigError, match=r"call parameters.*in a script"):
        save("time", go.Figure())
    assert not figures.exists()
