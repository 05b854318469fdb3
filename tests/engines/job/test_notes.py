"""Control records and the pipes between parent and child."""

from __future__ import annotations

import struct
from multiprocessing import Pipe

import numpy as np
import pytest

from pslab.engines.job.notes import PULL, PUSH, WHOLE, Note, pack, unpack
from pslab.engines.processes.channel import await_order, await_report, order, report


def test_notes_travel_unchanged():
    notes = [Note(PUSH, 3, 2, 2**40, 7, WHOLE, 5, 0.1, 0.2, 0.3, 0.4, float("inf")), Note(PULL, 1, 0, 4, 9)]
    assert list(unpack(pack(notes))) == notes


def test_half_a_note_is_refused():
    frame = pack([Note(PUSH)])
    for length in (1, len(frame) - 1):
        with pytest.raises(struct.error):
            list(unpack(frame[:length]))


def test_reports_carry_tables():
    here, there = Pipe()
    table = np.random.default_rng(0).standard_normal((5, 3))
    report(there, "worked", {"a": 1, "b": None}, table)
    report(there, "ready")
    first, second = await_report(here), await_report(here)
    assert (first.kind, first.body) == ("worked", {"a": 1, "b": None})
    assert np.array_equal(first.table, table)
    assert (second.kind, second.body, second.table.size) == ("ready", {}, 0)


def test_orders_carry_objects_by_value():
    class Local:
        bound = 3

    here, there = Pipe()
    order(here, "prepare", Local())
    verb, argument = await_order(there)
    assert verb == "prepare"
    assert argument.bound == 3


def test_a_closed_pipe_says_so():
    here, there = Pipe()
    there.close()
    with pytest.raises(EOFError):
        await_report(here)
