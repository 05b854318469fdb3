"""pslab trace: which record, which files, and the error when there is none."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import handmade
import pytest

from pslab.__main__ import main
from pslab.errors import ConfigError, RecordError
from pslab.lab.commands.records.trace import find_record
from pslab.lab.plots.perfetto import perfetto
from pslab.lab.records.record import Result


@pytest.fixture
def results(tmp_path: Path) -> dict[str, Result]:
    """Two records in one folder, by their policy."""
    return {"bsp": handmade.bsp(tmp_path), "asp": handmade.asp(tmp_path)}


def trace(tmp_path: Path, *words: str) -> int:
    return main(["trace", *words, "--results", str(tmp_path)])


# -- the record ------------------------------------------------------------------------------------


def test_a_digest_its_start_and_a_directory_name_a_record(tmp_path: Path, results: dict[str, Result]):
    result = results["asp"]
    for name in (result.digest, result.digest[:6], result.digest[:6].upper(), str(result.path)):
        assert find_record(name, tmp_path).path == result.path


def test_an_unknown_digest_lists_the_nearest_first(tmp_path: Path, results: dict[str, Result]):
    digest = results["asp"].digest
    wrong = digest[:5] + ("0" if digest[5] != "0" else "1") + digest[6:]
    with pytest.raises(ConfigError) as caught:
        find_record(wrong, tmp_path)
    said = str(caught.value).splitlines()
    assert said[1] == f"  {digest}  ASP, dense, 2 workers, seed 0"
    assert results["bsp"].digest in said[2]


def test_the_start_of_several_digests_lists_them(tmp_path: Path, results: dict[str, Result]):
    (tmp_path / "runs" / results["bsp"].digest).rename(tmp_path / "runs" / f"{results['asp'].digest[:4]}aaaa")
    with pytest.raises(ConfigError, match="2 digests start so") as caught:
        find_record(results["asp"].digest[:4], tmp_path)
    assert results["asp"].digest in str(caught.value)


@pytest.mark.parametrize("name", ["", "no/such/directory"])
def test_a_name_without_a_record_is_refused(tmp_path: Path, results: dict[str, Result], name: str):
    with pytest.raises(ConfigError, match="nearest"):
        find_record(name, tmp_path)


def test_a_folder_without_records_is_reported(tmp_path: Path):
    with pytest.raises(ConfigError, match="there is no record in"):
        find_record("abc", tmp_path)


def test_an_incomplete_record_is_reported(tmp_path: Path, results: dict[str, Result]):
    (results["asp"].path / "phases.csv").unlink()
    with pytest.raises(RecordError, match=r"phases\.csv missing"):
        find_record(results["asp"].digest, tmp_path)
    with pytest.raises(ConfigError, match=r"\(incomplete\)"):
        find_record("zzzz", tmp_path)


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


def test_a_trace_needs_no_torch(tmp_path: Path, results: dict[str, Result]):
    words = ["trace", results["asp"].digest, "--results", str(tmp_path)]
    code = f"import sys; from pslab.__main__ import main; sys.exit(main({words!r}) or 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
