"""A working copy of the notebooks and their data."""

from __future__ import annotations

import hashlib
import importlib.metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from pslab.__main__ import main
from pslab.errors import ConfigError
from pslab.lab.commands import init
from pslab.lab.records.record import default_results
from pslab.lab.studies.batch import folder
from pslab.tensors.workload.data import data_root

ROOT = Path(__file__).parents[3]


def content(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


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
        there = {path.name: content(path) for path in ROOT.glob(kind)}
        assert there == {path.name: content(path) for path in place.glob(kind)} != {}
    monkeypatch.chdir(place / "notebooks")
    monkeypatch.delenv("PSLAB_RESULTS", raising=False)
    monkeypatch.delenv("PSLAB_DATA", raising=False)
    assert (folder(Path.cwd()), default_results(), data_root()) == (
        place / "notebooks", place / "results", place / "data")  # fmt: skip
    assert main(["figures", "--dry-run", "--only", "02_first_study"]) == 0
    assert "to be executed: 02_first_study" in capsys.readouterr().out


def test_what_is_there_is_not_written_over(tmp_path: Path):
    (tmp_path / "file").write_text("mine")
    for taken in (tmp_path, tmp_path / "file"):
        with pytest.raises(ConfigError, match="is there, and not empty"):
            init.main(init_options(taken))
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
        init.main(init_options(tmp_path / "new"))


def init_options(place: Path):
    import argparse

    return argparse.Namespace(folder=place)


def test_the_wheel_has_what_a_working_copy_needs():
    import tomllib

    given = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["data-files"]
    named = {f"{place}/{pattern}".removeprefix(init.SHARED): pattern for place, patterns in given.items() for pattern in
             (pattern.rpartition("/")[2] for pattern in patterns)}  # fmt: skip
    assert sorted(named) == sorted(init.KEPT)
    assert all(pattern.startswith(place.removeprefix(init.SHARED)) for place, patterns in given.items() for pattern in
               patterns)  # fmt: skip
