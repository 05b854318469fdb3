"""What a live view reads: drafts that grow, and what becomes of them."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from pslab.config.run import Run
from pslab.lab.live.state import FINISHED, INTERRUPTED, LOST, SILENT, SILENT_S, UNDER_WAY, Doing, Track, Watcher
from pslab.lab.records.drafts import LIVE, Draft

RUN = Run(workers=2, pushes=100)
WORKERS = [{"doing": "waiting", "for": [1], "iteration": 4}, {"doing": "computing", "for": [], "iteration": 3}]
PROGRESS = {"pushes": 40, "seconds": 2.0, "workers": WORKERS}


def point(pushes: int, accuracy: float = 0.5) -> dict[str, float]:
    return {"index": pushes, "pushes": pushes, "seconds": pushes / 20, "accuracy": accuracy, "loss": 1.0}


def tables(pushes: int) -> dict[str, pd.DataFrame]:
    accuracy = pd.DataFrame({"pushes": [0, pushes], "iteration": [0, pushes / 2], "seconds": [0.0, 5.0],
                             "accuracy": [0.1, 0.9], "loss": [2.3, 0.3]})  # fmt: skip
    return {"accuracy": accuracy, "phases": pd.DataFrame({"a": []}), "pushes": pd.DataFrame({"a": []})}


FACTS = {"pushes": 100, "seconds": 5.0, "outcome": "budget"}


@pytest.fixture
def watcher(tmp_path: Path) -> Watcher:
    return Watcher(tmp_path)


def test_a_run_of_another_process_is_seen_followed_and_begun_again(tmp_path: Path, watcher: Watcher):
    assert not watcher.poll()
    draft = Draft(RUN, tmp_path)
    draft.note(PROGRESS)
    assert watcher.poll()
    (track,) = watcher.under_way
    assert (track.run, track.digest, track.state, track.pushes) == (RUN, RUN.digest, UNDER_WAY, 40)
    assert [kept[-1] for kept in track.workers] == [Doing("waiting", (1,), 4), Doing("computing", (), 3)]
    assert not watcher.poll()
    draft.note(point(20))
    draft.note(point(10))  # evaluated later, taken sooner
    assert watcher.poll()
    assert [p.pushes for p in track.points] == [10, 20]

    draft.note({"pushes": 0, "seconds": 0.0, "repeated": "the machine did not keep the pace: once again, slower"})
    watcher.poll()
    assert (track.pushes, track.seconds, track.points, track.again) == (0, 0.0, [], "once again, slower")


@pytest.mark.parametrize("run", [RUN, RUN.but(pushes=None, seconds=5.0)])
def test_rate_and_time_left_are_by_this_machines_clock_and_not_by_the_clusters(run: Run):
    """40 % after 2 s of cluster time; the next 20 % take 30 s here."""
    track = Track(run, run.digest, pushes=40, seconds=2.0)
    assert track.pace(100.0) is None, "one look says nothing of a pace"
    track.seen = 100.0, track.fraction, track.pushes
    track.take({"pushes": 60, "seconds": 3.0})
    assert track.pace(130.0) == pytest.approx((20 / 30, 60.0))


def test_a_finished_runs_record_takes_the_drafts_place(tmp_path: Path, watcher: Watcher):
    draft = Draft(RUN, tmp_path)
    draft.note(point(10))
    watcher.poll()
    draft.save(tables(100), np.zeros(3), FACTS)
    assert watcher.poll()
    track = watcher.tracks[RUN.digest]
    assert (track.state, track.path) == (FINISHED, tmp_path / "runs" / RUN.digest)
    assert [(p.pushes, p.accuracy) for p in track.points] == [(0, 0.1), (100, 0.9)]
    assert not watcher.poll()


def test_an_interrupted_run_is_found_where_it_is_kept(tmp_path: Path, watcher: Watcher):
    draft = Draft(RUN, tmp_path)
    watcher.poll()
    draft.set_aside(tables(60), np.zeros(3), {**FACTS, "pushes": 60})
    watcher.poll()
    track = watcher.tracks[RUN.digest]
    assert (track.state, track.pushes) == (INTERRUPTED, 60)


def test_what_an_earlier_run_left_is_not_taken_for_this_ones(tmp_path: Path, watcher: Watcher):
    old = Draft(RUN, tmp_path).set_aside(tables(60), np.zeros(3), FACTS)
    os.utime(old.path / "manifest.json", (1e9, 1e9))
    draft = Draft(RUN, tmp_path)
    draft.note(point(10))
    watcher.poll()
    draft.drop()
    watcher.poll()
    track = watcher.tracks[RUN.digest]
    assert (track.state, [p.pushes for p in track.points]) == (LOST, [10])


def test_finished_runs_are_shown_when_they_are_chosen_and_drafts_of_the_dead_are_not(tmp_path, watcher: Watcher):
    Draft(RUN, tmp_path).save(tables(100), np.zeros(3), FACTS)
    dead = Draft(RUN.but(seed=2), tmp_path)
    os.utime(dead.path / LIVE, (time.time() - 2 * SILENT_S,) * 2)
    watcher.poll()
    assert watcher.tracks == {}
    watcher.show([RUN, RUN.but(seed=1)])
    assert [track.state for track in watcher.tracks.values()] == [FINISHED]


def test_a_run_that_falls_silent_is_said_to_be(tmp_path: Path, watcher: Watcher, monkeypatch: pytest.MonkeyPatch):
    draft = Draft(RUN, tmp_path)
    watcher.poll()
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + SILENT_S + 1)
    assert watcher.poll()
    assert watcher.tracks[RUN.digest].state == SILENT
    draft.note(PROGRESS)
    watcher.poll()
    assert watcher.tracks[RUN.digest].state == UNDER_WAY


def test_a_draft_that_cannot_be_understood_is_left_alone(tmp_path: Path, watcher: Watcher):
    strange = Draft(RUN, tmp_path)
    (strange.path / LIVE).write_text('{"digest": "0", "run": {"colour": "red"}}\n')
    Draft(RUN.but(seed=1), tmp_path)
    watcher.poll()
    watcher.poll()
    assert [track.run.seed for track in watcher.tracks.values()] == [1]
