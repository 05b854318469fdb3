"""Processes that compute only where no other wants to."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from pslab.engines.processes.precedence import let_others_first

linux = pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="the system has no such class")


@pytest.fixture
def child() -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process.pid


@linux
def test_a_process_lets_others_first_and_comes_back(child: int):
    assert let_others_first([child], True)
    assert os.sched_getscheduler(child) == os.SCHED_IDLE
    assert let_others_first([child], False)
    assert os.sched_getscheduler(child) == os.SCHED_OTHER


@linux
def test_what_somebody_else_has_chosen_stays(child: int):
    os.sched_setscheduler(child, os.SCHED_BATCH, os.sched_param(0))
    assert not let_others_first([child], True)
    assert os.sched_getscheduler(child) == os.SCHED_BATCH


def test_elsewhere_nothing_happens(child: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr(os, "SCHED_IDLE", raising=False)
    assert not let_others_first([child], True)


@linux
def test_a_process_that_is_gone_is_no_error(child: int):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert not let_others_first([gone.pid], True)
