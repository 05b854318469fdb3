"""save: a notebook's figures are files named after it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest

from pslab.errors import ConfigError
from pslab.lab.records import journal
from pslab.lab.studies import parameters
from pslab.lab.studies.figures import NO_IMAGES, VARIANT, save, stem


@pytest.fixture
def figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PSLAB_RESULTS", str(tmp_path))
    monkeypatch.setattr(parameters, "_current", "10_pruning")
    return tmp_path / "figures"


def test_pictures_are_written_without_a_browser_unless_they_are_declined(
    figures: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PATH", "")
    save("accuracy", go.Figure(go.Scatter(x=[1, 2], y=[1, 2])))
    kinds = {path.suffix for path in figures.glob("10_pruning-accuracy.*")}
    assert kinds == {".json", ".html", ".png", ".svg", ".pdf"}
    save("declined", go.Figure(), images=False)
    monkeypatch.setenv(NO_IMAGES, "1")
    save("later", go.Figure())
    assert not [path for name in ("declined", "later") for path in figures.glob(f"*{name}.png")]


def test_notebook_shows_figure_and_caption(figures: Path, monkeypatch: pytest.MonkeyPatch):
    shown: list[Any] = []
    monkeypatch.setattr("pslab.lab.studies.figures.kernel", object)
    monkeypatch.setattr("IPython.display.display", lambda *each: shown.extend(each))
    drawn = go.Figure(layout={"meta": {"caption": ["4 workers", "1 < 2"]}})
    save("accuracy", drawn)
    assert shown[0] is drawn
    assert "4 workers<br>1 &lt; 2" in shown[1].data


def test_a_variant_names_its_files_and_the_journal_has_them(figures: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(VARIANT, "best-rates")
    monkeypatch.setenv(journal.JOURNAL, str(figures.parent / "journal"))
    save("time", go.Figure())
    assert (figures / "10_pruning-best-rates-time.json").is_file()
    assert journal.entries(figures.parent / "journal") == [{"figure": "10_pruning-best-rates-time"}]
    assert stem("10_pruning") == "10_pruning"


def test_names_that_are_none_for_a_file_are_refused(figures: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("", "../time", "Time", "a b"):
        with pytest.raises(ConfigError, match="must have only small letters"):
            save(name, go.Figure())
    assert not figures.exists()
    monkeypatch.setattr(parameters, "_current", "")
    with pytest.raises(ConfigError, match="call parameters"):
        save("time", go.Figure())
