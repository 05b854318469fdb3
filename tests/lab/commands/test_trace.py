"""pslab trace: which record, which files, and the error when there is none."""

from __future__ import annotations

import json
from pathlib import Path

import handmade
import pytest

from pslab.__main__ import main
from pslab.lab.plots.perfetto import perfetto
from pslab.lab.records.record import Result


@pytest.fixture
def results(tmp_path: Path) -> dict[str, Result]:
    """Two records in one folder, by their policy."""
    return {"bsp": handmade.bsp(tmp_path), "asp": handmade.asp(tmp_path)}


def trace(tmp_path: Path, *words: str) -> int:
    return main(["trace", *words, "--results", str(tmp_path)])


# -- the files -------------------------------------------------------------------------------------


def test_both_files_go_to_the_results(tmp_path: Path, results: dict[str, Result], capsys: pytest.CaptureFixture):
    result = results["bsp"]
    assert trace(tmp_path, result.digest[:8]) == 0
    files = [tmp_path / "traces" / f"{result.digest}.{kind}" for kind in ("json", "html")]
    assert capsys.readouterr().out.split() == [str(file) for file in files]
    assert json.loads(files[0].read_text()) == perfetto(result)
    assert "Who waits for whom" in files[1].read_text()


def test_only_the_requested_file_is_written(tmp_path: Path, results: dict[str, Result]):
    assert trace(tmp_path, results["asp"].digest, "--html", str(tmp_path / "here" / "asp.html")) == 0
    assert [file.name for file in (tmp_path / "here").iterdir()] == ["asp.html"]
    assert not (tmp_path / "traces").exists()


def test_a_window_cuts_both(tmp_path: Path, results: dict[str, Result]):
    out, html = tmp_path / "asp.json", tmp_path / "asp.html"
    window = ["--from", "2", "--to", "5"]
    assert trace(tmp_path, results["asp"].digest, "--out", str(out), "--html", str(html), *window) == 0
    assert json.loads(out.read_text()) == perfetto(results["asp"], 2.0, 5.0)
    assert '"range":[2.0,5.0]' in html.read_text()


@pytest.mark.parametrize("window", [["--from", "6.5"], ["--to", "0"], ["--from", "3", "--to", "2"], ["--from", "nan"]])
def test_an_empty_window_is_refused(
    tmp_path: Path, results: dict[str, Result], capsys: pytest.CaptureFixture, window: list[str]
):
    assert trace(tmp_path, results["asp"].digest, *window) == 2
    assert "the run is from 0 to 6.000 s" in capsys.readouterr().err
    assert not (tmp_path / "traces").exists()


def test_exit_statuses(tmp_path: Path, results: dict[str, Result], capsys: pytest.CaptureFixture):
    assert trace(tmp_path, "zzzz") == 2
    assert "pslab trace: record='zzzz'" in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    assert trace(tmp_path, results["asp"].digest, "--out", str(tmp_path / "file" / "x.json")) == 1
    assert "cannot be written" in capsys.readouterr().err
