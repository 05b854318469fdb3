"""The pipes between a parent and its children."""

from __future__ import annotations

import os
from multiprocessing import Pipe

import numpy as np
import pytest

from pslab.engines.processes.channel import await_order, await_report, limit_waits, order, order_plain, report


def test_reports_carry_tables():
    here, there = Pipe()
    table = np.random.default_rng(0).standard_normal((5, 3))
    report(there, "worked", {"a": 1, "b": None}, table)
    report(there, "ready")
    first, second = await_report(here), await_report(here)
    assert (first.kind, first.body) == ("worked", {"a": 1, "b": None})
    assert np.array_equal(first.table, table)
    assert (second.kind, second.body, second.table.size) == ("ready", {}, 0)


def test_orders_carry_objects_by_value_and_plain_ones_numbers():
    class Local:
        bound = 3

    here, there = Pipe()
    order(here, "prepare", Local())
    verb, argument = await_order(there)
    assert (verb, argument.bound) == ("prepare", 3)
    order_plain(here, "produce", (1, [2.5]))
    assert await_order(there) == ("produce", [1, [2.5]])


def test_a_closed_pipe_ends_the_reports():
    here, there = Pipe()
    there.close()
    with pytest.raises(EOFError):
        await_report(here)


def test_who_neither_reads_nor_writes_on_is_not_waited_for_without_a_limit():
    here, there = Pipe()
    limit_waits(here, 0.05)
    with pytest.raises(BlockingIOError):
        here.send_bytes(bytes(2**24))
    os.write(there.fileno(), b"\0\0\0\x09half")  # of nine bytes
    with pytest.raises(BlockingIOError):
        await_report(here)
    here.close()
    there.close()
