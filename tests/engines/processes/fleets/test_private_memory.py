"""Memory that processes do not share: who is told of something sees it."""

from __future__ import annotations

from multiprocessing import Pipe
from typing import Any

import numpy as np
import pytest

from pslab.engines.processes.channel import await_order, await_report, order, report
from pslab.engines.processes.fleets import private_memory
from pslab.engines.processes.fleets.private_memory import PatchedPipe, PrivateArena
from pslab.engines.server.rows import Rows, rows_in

PARENT = -1


class Ends:
    """A parent and two children, with two arenas each."""

    def __init__(self, passes: bool = False, behind: bool = False) -> None:
        self.here = [PrivateArena(), PrivateArena()]
        self.there = [[PrivateArena(), PrivateArena(passes=passes)] for _ in range(2)]
        pipes = [Pipe() for _ in self.there]
        self.down: list[Any] = [PatchedPipe(ours, self.here, child) for child, (ours, _) in enumerate(pipes)]
        self.up: list[Any] = [PatchedPipe(theirs, arenas, PARENT, behind=behind)
                              for arenas, (_, theirs) in zip(self.there, pipes, strict=True)]  # fmt: skip

    def close(self) -> None:
        for pipe in (*self.down, *self.up):
            pipe.close()
        for arena in (*self.here, *self.there[0], *self.there[1]):
            arena.close()


@pytest.fixture
def ends():
    found = Ends()
    yield found
    found.close()


def wrote(arena: PrivateArena, offset: int, content: bytes) -> None:
    arena.reserve(offset + len(content))
    arena.bytes(offset, len(content))[:] = content


def test_who_is_told_of_something_sees_it(ends: Ends):
    wrote(ends.here[1], 100, b"weights")
    ends.here[1].show(100, 7)
    order(ends.down[0], "start", ())
    assert ends.there[0][1].size_bytes == 0
    assert await_order(ends.up[0]) == ("start", ())
    assert bytes(ends.there[0][1].bytes(100, 7)) == b"weights"
    assert ends.there[1][1].size_bytes == 0  # was told of nothing yet
    wrote(ends.here[1], 100, b"WEIGHTS")
    order(ends.down[1], "start", ())
    await_order(ends.up[1])
    assert bytes(ends.there[1][1].bytes(100, 7)) == b"WEIGHTS"  # as they are when it is told
    assert bytes(ends.there[0][1].bytes(100, 7)) == b"weights"


def test_what_one_is_to_see_no_other_does(ends: Ends):
    wrote(ends.here[0], 0, b"snapshot")
    ends.here[0].show(0, 8, to=1)
    for child in range(2):
        order(ends.down[child], "evaluate", ())
        await_order(ends.up[child])
    assert bytes(ends.there[1][0].bytes(0, 8)) == b"snapshot"
    assert bytes(ends.there[0][0].bytes(0, 8)) == bytes(8)


def test_what_is_shown_outlives_its_process(ends: Ends):
    wrote(ends.there[0][0], 4096, b"checkpoint")
    ends.there[0][0].show(4096, 10)
    report(ends.up[0], "checkpoint", {"pushes": 3})
    ends.up[0].close()
    assert await_report(ends.down[0]).body == {"pushes": 3}
    assert bytes(ends.here[0].bytes(4096, 10)) == b"checkpoint"
    assert ends.here[0].patches(1) == []  # nobody else has been told


def test_what_is_given_back_is_nothing_anywhere(ends: Ends):
    wrote(ends.here[0], 0, bytes([7]) * 3 * 4096)
    ends.here[0].show(0, 3 * 4096)
    order(ends.down[0], "start", ())
    await_order(ends.up[0])
    ends.here[0].give_back()
    wrote(ends.here[0], 4096, b"new")
    ends.here[0].show(4096, 3)
    for child in range(2):
        order(ends.down[child], "start", ())
        await_order(ends.up[child])
        found = bytes(ends.there[child][0].bytes(0, 3 * 4096))
        assert found == bytes(4096) + b"new" + bytes(2 * 4096 - 3)


def test_what_passes_is_given_back_where_it_was_made():
    ends = Ends(passes=True)
    wrote(ends.there[0][1], 0, bytes([7]) * 4096)
    ends.there[0][1].show(0, 4096)
    report(ends.up[0], "snapshot")
    await_report(ends.down[0])
    assert bytes(ends.here[1].bytes(0, 4096)) == bytes([7]) * 4096
    assert bytes(ends.there[0][1].bytes(0, 4096)) == bytes(4096)
    ends.close()


def test_a_new_process_sees_all_that_lies_there(ends: Ends):
    for page in (0, 5):
        wrote(ends.here[0], 4096 * page, b"data")
    ends.here[0].reserve(9 * 4096)
    ends.here[0].read_by(0)
    ends.here[0].show_all(0)
    order(ends.down[0], "start", ())
    await_order(ends.up[0])
    assert ends.there[0][0].size_bytes == 9 * 4096
    assert bytes(ends.there[0][0].bytes(0, 9 * 4096)) == bytes(ends.here[0].bytes(0, 9 * 4096))


def test_rows_are_seen_with_each_message_and_no_others_are_sent_again(ends: Ends):
    rows, sent = Rows(2, ends.there[0][1]), []

    def told() -> np.ndarray:
        patches = ends.there[0][1].patches(PARENT)
        sent.append(sum(patch.size_bytes for patch in patches))
        for patch in patches:
            ends.there[0][1].show(patch.offset, patch.size_bytes)
        report(ends.up[0], "progress")
        await_report(ends.down[0])
        return rows_in(ends.here[1], 2)

    assert told().shape == (0, 2)
    for number in range(3):
        rows.append((number, -number))
    assert told().tolist() == [[0, 0], [1, -1], [2, -2]]
    told()
    assert sent[1:] == [3 * 16 + 8, 0]
    rows.put(1, 1, [9.0])
    assert told().tolist() == [[0, 0], [1, 9], [2, -2]]
    assert sent[3] == 2 * 16 + 8
    for number in range(2000):
        rows.append((number, 0.0))
    assert np.array_equal(told(), rows.table())
    rows.sort(0, 1)
    assert np.array_equal(told(), rows.table())
    rows.restore([2, ends.there[0][1], 1])
    assert len(told()) == 1


def test_a_process_goes_on_while_much_is_sent_and_all_comes_in_order():
    """Nobody reads yet."""
    ends, content = Ends(passes=True, behind=True), bytes(range(256)) * (1 << 16)  # 16 MB, more than a pipe takes
    (_, snapshots), up = ends.there[0], ends.up[0]
    report(up, "progress", {"number": 0})
    assert not up.late
    for number in (1, 2):
        begin = (number - 1) * len(content)
        wrote(snapshots, begin, content)
        snapshots.show(begin, len(content))
        report(up, "snapshot", {"number": number})
    report(up, "progress", {"number": 3})
    assert up.late
    assert [await_report(ends.down[0]).body["number"] for _ in range(4)] == [0, 1, 2, 3]
    assert bytes(ends.here[1].bytes(0, 2 * len(content))) == 2 * content
    up.flush()
    assert not up.late
    assert not any(snapshots.bytes(0, 2 * len(content)))  # given back
    report(up, "progress", {"number": 4})
    assert await_report(ends.down[0]).body == {"number": 4}
    ends.close()


def test_what_is_late_is_not_waited_for_when_nobody_reads_any_more():
    ends = Ends(behind=True)
    wrote(ends.there[0][0], 0, bytes(1 << 24))
    ends.there[0][0].show(0, 1 << 24)
    report(ends.up[0], "checkpoint")
    ends.down[0].close()
    ends.up[0].flush()
    assert not ends.up[0].late
    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        report(ends.up[0], "progress")
    ends.close()


def test_much_travels_in_pieces(ends: Ends, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(private_memory, "PIECE_BYTES", 1000)
    content = bytes(range(256)) * 10
    wrote(ends.there[0][0], 100, content)
    ends.there[0][0].show(100, len(content))
    sizes = [piece.size_bytes for patch in ends.there[0][0].patches(PARENT) for piece in patch.pieces()]
    assert sizes == [0, 1000, 1000, 560]
    ends.there[0][0].show(100, len(content))
    report(ends.up[0], "checkpoint")
    await_report(ends.down[0])
    assert bytes(ends.here[0].bytes(100, len(content))) == content
