"""A working copy of the notebooks and their data, and a study of one's own from the shortest study."""

from __future__ import annotations

import filecmp
import importlib.metadata
import tomllib
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest

from pslab.__main__ import main
from pslab.errors import ConfigError
from pslab.lab.commands import init
from pslab.lab.records.record import default_results
from pslab.lab.studies.batch import folder, plan
from pslab.tensors.workload.data import data_root

ROOT = Path(__file__).parents[3]


def test_a_working_copy_is_whole_and_its_notebooks_are_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    place = tmp_path / "mine" / "lab"
    assert main(["init", str(place)]) == 0
    said = capsys.readouterr().out
    assert f"are in {place}" in said
    commands = [line.strip() for line in said.splitlines() if line.startswith("  pslab ")]
    kept = (place / "README.md").read_text().splitlines()
    assert [line.strip() for line in kept if line.startswith("    pslab ")] == commands != []
    for kind in ("notebooks/*.ipynb", "notebooks/batch.yaml", "data/MNIST/raw/*.gz"):
        names = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob(kind))
        assert names == sorted(path.relative_to(place).as_posix() for path in place.glob(kind)) != []
        assert filecmp.cmpfiles(ROOT, place, names, shallow=False) == (names, [], [])
    monkeypatch.chdir(place / "notebooks")
    monkeypatch.delenv("PSLAB_RESULTS", raising=False)
    monkeypatch.delenv("PSLAB_DATA", raising=False)
    assert (folder(Path.cwd()), default_results(), data_root()) == (
        place / "notebooks", place / "results", place / "data")  # fmt: skip
    assert main(["figures", "--dry-run", "--only", "02_first_study"]) == 0
    assert "to be executed: 02_first_study" in capsys.readouterr().out
    assert main(["init", str(tmp_path / "lab"), "--study", "90_mine"]) == 0
    assert (tmp_path / "lab" / "notebooks" / "90_mine.ipynb").is_file()


def test_what_is_there_is_not_written_over(tmp_path: Path):
    (tmp_path / "file").write_text("mine")
    for taken in (tmp_path, tmp_path / "file"):
        with pytest.raises(ConfigError, match="exists and is not empty"):
            init.lay_out(taken)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_of_a_wheel_the_files_are_taken_that_it_has_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    site = tmp_path / "lib" / "python3" / "site-packages"
    names = ("pslab/errors.py", "../../../share/pslab/notebooks/00_tour.ipynb")
    installed = SimpleNamespace(files=list(map(importlib.metadata.PackagePath, names)))
    for file in installed.files:
        file.dist = importlib.metadata.PathDistribution(site / "pslab_workbench.dist-info")
    monkeypatch.setattr(init, "distributions", lambda name: [installed])
    monkeypatch.setattr(init, "__file__", str(site / "pslab" / "lab" / "commands" / "init.py"))
    ((name, file),) = init.files()
    assert name == "notebooks/00_tour.ipynb"
    assert file.resolve() == (tmp_path / "share" / "pslab" / name).resolve()
    monkeypatch.setattr(init, "distributions", lambda name: [])
    with pytest.raises(ConfigError, match="has no notebooks"):
        init.lay_out(tmp_path / "new")


def test_the_wheel_has_what_a_working_copy_needs():
    given = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["data-files"]
    names = {f"{folder}/{pattern.rpartition('/')[2]}".removeprefix(init.SHARED): (folder, pattern)
             for folder, patterns in given.items() for pattern in patterns}  # fmt: skip
    assert sorted(names) == sorted(init.KEPT)
    assert all(pattern.startswith(folder.removeprefix(init.SHARED)) for folder, pattern in names.values())


@pytest.fixture
def notebooks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project's folder of notebooks, with the study that new ones begin as; the project is the working directory."""
    found = tmp_path / "notebooks"
    found.mkdir()
    for name in (f"{init.MODEL}.ipynb", "batch.yaml"):
        (found / name).write_text((ROOT / "notebooks" / name).read_text())
    monkeypatch.chdir(tmp_path)
    return found


def test_a_new_study_is_planned_and_has_its_own_name_or_is_refused(notebooks: Path, capsys: pytest.CaptureFixture[str]):
    batch = notebooks / "batch.yaml"
    before = batch.read_text()
    assert main(["init", "--study", init.MODEL]) == 2
    assert "exists already" in capsys.readouterr().err
    assert batch.read_text() == before
    assert main(["init", "--study", "90_who_waits"]) == 0
    assert "pslab figures --only 90_who_waits" in capsys.readouterr().out
    notebook = nbformat.read(notebooks / "90_who_waits.ipynb", 4)
    nbformat.validate(notebook)
    text = "".join(cell.source for cell in notebook.cells)
    assert text.startswith("# Who waits: what do you ask?")
    assert 'parameters("90_who_waits");' in text
    assert init.MODEL not in text
    entries = batch.read_text()
    assert entries.startswith(before)
    batch.write_text(entries.removeprefix(before))  # the others are not here
    (entry,) = plan(notebooks, notebooks.parent / "results", only=["90_who_waits"], tiny=True)
    assert entry.notebook == "90_who_waits"
    (notebooks / f"{init.MODEL}.ipynb").unlink()
    assert main(["init", "--study", "90_mine"]) == 2
    assert "but a new study is made from it" in capsys.readouterr().err
    assert [path.stem for path in notebooks.glob("*.ipynb")] == ["90_who_waits"]
