"""The clock on the wall may be set, by an hour and at any time: no run, no limit and no record depends on it."""

from __future__ import annotations

import itertools
import re
import time
from pathlib import Path

import numpy as np
import pytest
from tiny import tiny

from pslab.lab.runs.run import run

PACKAGE = Path(__file__).parents[1] / "pslab"
AGES = {"lab/live/state.py", "engines/experiment/checkpoint/store.py", "lab/runs/machine.py", "lab/records/drafts.py"}
WALL = r"\b(time|datetime|date)\.(time|time_ns|localtime|gmtime|ctime|now|today|utcnow)\b"


def test_no_module_but_those_that_ask_for_the_age_of_files_reads_the_wall_clock():
    texts = {file.relative_to(PACKAGE).as_posix(): file.read_text() for file in PACKAGE.rglob("*.py")}
    assert {name for name, text in texts.items() if re.search(WALL, text)} <= AGES
    assert [name for name, text in texts.items() if re.search(r"(?m)^ *from (time|datetime) import", text)] == []


@pytest.mark.parametrize("engine", ["local", "virtual"])
def test_a_clock_that_is_set_during_a_run_changes_nothing(tmp_path, monkeypatch, engine):
    wanted = tiny(engine=engine, cluster={"compute_s": 0.001}, pushes=24, eval_every=8)
    before = run(wanted, results=tmp_path / "undisturbed", progress=False)
    real, jumps = time.time, itertools.cycle([3600.0, -3600.0, 0.0])
    monkeypatch.setattr(time, "time", lambda: real() + next(jumps))
    after = run(wanted, results=tmp_path / "set", progress=False)
    assert after.manifest["verdict"] == before.manifest["verdict"] == "valid"
    assert np.array_equal(after.weights, before.weights)
    assert after.accuracy.accuracy.tolist() == before.accuracy.accuracy.tolist()
    assert 0 < after.manifest["seconds"] < 60
    for name in ("phases", "arrivals"):
        table = getattr(after, name)
        assert (table.filter(regex="seconds|begin_s|end_s") < 60).all(axis=None)
