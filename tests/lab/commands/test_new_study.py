"""A notebook of one's own, from the shortest study."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

from pslab.__main__ import main
from pslab.errors import ConfigError
from pslab.lab.commands.new_study import MODEL
from pslab.lab.studies.batch import plan

NOTEBOOKS = Path(__file__).parents[3] / "notebooks"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with the study that new ones begin as."""
    for name in (f"{MODEL}.ipynb", "batch.yaml"):
        (tmp_path / name).write_text((NOTEBOOKS / name).read_text())
    return tmp_path


def made(place: Path, name: str) -> int:
    return main(["new-study", name, "--notebooks", str(place)])


def test_a_new_study_is_planned_and_has_its_own_name(place: Path, capsys: pytest.CaptureFixture[str]):
    before = (place / "batch.yaml").read_text()
    assert made(place, "90_who_waits") == 0
    assert "pslab figures --only 90_who_waits" in capsys.readouterr().out
    notebook = nbformat.read(place / "90_who_waits.ipynb", 4)
    nbformat.validate(notebook)
    assert notebook.cells[0].source.startswith("# Who waits: what do you ask?")
    assert 'parameters("90_who_waits");' in "".join(cell.source for cell in notebook.cells)
    assert MODEL not in "".join(cell.source for cell in notebook.cells)
    entries = (place / "batch.yaml").read_text()
    assert entries.startswith(before)
    (place / "batch.yaml").write_text(entries.removeprefix(before))  # the others are not here
    (entry,) = plan(place, place / "results", only=["90_who_waits"], tiny=True)
    assert entry.notebook == "90_who_waits"


def test_a_name_that_is_taken_or_cannot_be_is_refused(place: Path, capsys: pytest.CaptureFixture[str]):
    before = (place / "batch.yaml").read_text()
    for name, words in ((MODEL, "is there already"), ("../90", "letters, digits"), ("a b", "letters, digits")):
        assert made(place, name) == 2
        assert words in capsys.readouterr().err
    assert (place / "batch.yaml").read_text() == before
    assert len(list(place.glob("*.ipynb"))) == 1


def test_where_there_is_no_study_to_begin_from_it_is_said(tmp_path: Path):
    from pslab.lab.commands import new_study

    with pytest.raises(ConfigError, match="has no batch"):
        new_study.main(options("x", tmp_path))


def options(name: str, place: Path):
    import argparse

    return argparse.Namespace(name=name, notebooks=place)
