"""Progress: one line that rewrites itself on a terminal, few lines elsewhere, none if nobody wants them."""

from __future__ import annotations

import io

import pytest

from pslab.config.run import Run
from pslab.lab.runs import progress
from pslab.lab.runs.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_a_terminal_sees_rate_and_time_left_in_one_line(clock):
    stream = Terminal()
    shown = Progress(3, stream=stream)
    shown.begin(Run(pushes=100, sync="ssp:3", prune="std:2"))
    clock[0] = 2.0
    shown.update({"pushes": 20, "seconds": 2.0})
    assert stream.getvalue() == "\r[1/3] ssp:3 std:2 W=4 seed 0: 20/100 pushes, 10/s, 8 s left"
    shown.end(10.0, 0.975)
    assert stream.getvalue().splitlines()[-1].split("\r")[-1].rstrip().endswith("97.50% after 10.0 s")


def test_elsewhere_there_are_few_lines_and_no_carriage_returns(clock):
    stream = io.StringIO()
    shown = Progress(1, stream=stream)
    shown.begin(Run(pushes=None, seconds=60.0))
    for second in range(1, 31):
        clock[0] = float(second)
        shown.update({"pushes": second, "seconds": float(second)})
    shown.end(60.0, 0.5)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 4
    assert lines[0] == "[run] bsp none W=4 seed 0: 10 pushes, 1/s, 50 s left"
    assert "\r" not in stream.getvalue()


def test_nothing_is_shown_if_it_is_not_wanted(clock):
    stream = Terminal()
    shown = Progress(1, shown=False, stream=stream)
    shown.begin(Run())
    clock[0] = 100.0
    shown.update({"pushes": 1, "seconds": 1.0})
    shown.end(1.0, 0.1)
    assert stream.getvalue() == ""
