"""Runs in a thread: they end, are stopped, say what went wrong, and never meet others."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny import Raises, tiny

import pslab.engines.local.engine
from pslab.errors import StartFailed
from pslab.lab.records.results import load
from pslab.lab.runs.background import Background, current
from pslab.lab.runs.run import run

LIMIT_S = 60.0
LONG = {"pushes": 100_000, "cluster": {"compute_s": 0.005}, "evaluate": "beside"}


@pytest.fixture
def pushed(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set once the first round of a run's four workers is applied: pushes are counted before that."""
    seen, real = threading.Event(), pslab.engines.local.engine.execute

    def watched(experiment: object, on_progress: Callable[[dict], None]):
        def heard(news: dict) -> None:
            if news.get("pushes", 0) >= 4:
                seen.set()
            on_progress(news)

        return real(experiment, heard)

    monkeypatch.setattr(pslab.engines.local.engine, "execute", watched)
    return seen


def test_runs_are_executed_and_the_caller_goes_on(tmp_path: Path):
    wanted = [tiny(sync=sync) for sync in ("bsp", "asp")]
    background = Background(wanted, tmp_path)
    assert current() is background
    assert background.wait(LIMIT_S)
    assert [result.digest for result in background.finished] == [each.digest for each in wanted]
    assert (background.alive, background.error, background.note, current()) == (False, "", "", None)


def test_what_is_completed_beside_a_run_that_fails_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    real = pslab.engines.local.engine.execute

    def failing(experiment, on_progress):
        if experiment.run.seed == 0:
            raise MemoryError("of 9 GB")
        return real(experiment, on_progress)

    monkeypatch.setattr(pslab.engines.local.engine, "execute", failing)
    background = Background([tiny(seed=seed, pushes=8) for seed in (0, 1)], tmp_path)
    assert background.wait(LIMIT_S)
    assert [result.run.seed for result in background.finished] == [1]
    assert background.error.startswith("1 of 2 runs failed; the others are recorded:")


def test_a_stop_ends_the_run_in_order_and_keeps_it(tmp_path: Path, pushed: threading.Event):
    background = Background([tiny(**LONG), tiny(**LONG, seed=1)], tmp_path)
    assert pushed.wait(LIMIT_S)
    background.stop()
    assert background.wait(LIMIT_S)
    assert (background.finished, background.error) == ([], "")
    assert "kept in" in background.note
    (kept,) = (tmp_path / "interrupted").iterdir()
    assert (load(kept).run.seed, len(load(kept).accuracy) > 0) == (0, True)
    assert list((tmp_path / "runs").iterdir()) == []
    assert run(tiny(), results=tmp_path, progress=False).manifest["pushes"] == 40


def test_a_second_one_is_refused_while_one_is_under_way(tmp_path: Path, pushed: threading.Event):
    background = Background([tiny(**LONG)], tmp_path)
    try:
        with pytest.raises(StartFailed, match="under way in this notebook already"):
            Background([tiny()], tmp_path)
        assert pushed.wait(LIMIT_S)
        with pytest.raises(StartFailed, match="in the background"):
            run(tiny(seed=5), results=tmp_path, progress=False)
    finally:
        background.stop()
        background.wait(LIMIT_S)
    assert run(tiny(seed=5), results=tmp_path, progress=False).manifest["pushes"] == 40


@pytest.mark.parametrize(("fields", "field", "words"), [
    ({"sync": "bps"}, "sync", "did you mean 'bsp'"), ({"model": Raises}, "", "the model broke here"),
])  # fmt: skip
def test_what_is_wrong_is_said_with_its_field(tmp_path: Path, fields: dict, field: str, words: str):
    background = Background([tiny(**fields)], tmp_path)
    assert background.wait(LIMIT_S)
    assert background.field == field
    assert words in background.error
