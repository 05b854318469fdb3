"""Memory that processes do not share: a process that reads a message sees the bytes that it is about."""

from __future__ import annotations

from collections.abc import Iterator
from multiprocessing import Pipe
from typing import Any

import numpy as np
import pytest

from pslab.engines.processes.channel import await_order, await_report, order, report
from pslab.engines.processes.fleets import private_memory
from pslab.engines.processes.fleets.private_memory import PatchedPipe, PrivateArena
from pslab.engines.server.rows import Rows, rows_in

PARENT, PAGE = -1, 4096


class Ends:
    """A parent and two children, with two arenas each."""

    def __init__(self, *, passes: bool = False, behind: bool = False) -> None:
        self.here = [PrivateArena(), PrivateArena()]
        self.there = [[PrivateArena(), PrivateArena(passes=passes)] for _ in range(2)]
        pipes = [Pipe() for _ in self.there]
        self.down: list[Any] = [PatchedPipe(ours, self.here, child) for child, (ours, _) in enumerate(pipes)]
        self.up: list[Any] = [PatchedPipe(theirs, arenas, PARENT, behind=behind)
                              for arenas, (_, theirs) in zip(self.there, pipes, strict=True)]  # fmt: skip

    def order(self, *children: int) -> None:
        """The children read an order."""
        for child in children:
            order(self.down[child], "start", ())
            await_order(self.up[child])

    def report(self) -> None:
        """The parent reads a report of child 0."""
        report(self.up[0], "progress")
        await_report(self.down[0])


@pytest.fixture
def ends(request: pytest.FixtureRequest) -> Iterator[Ends]:
    found = Ends(**getattr(request, "param", {}))
    yield found
    for pipe in (*found.down, *found.up):
        pipe.close()
    for arena in (*found.here, *found.there[0], *found.there[1]):
        arena.close()


def write(arena: PrivateArena, offset: int, content: bytes, to: int | None = None, *, shown: bool = True) -> None:
    arena.reserve(offset + len(content))
    arena.bytes(offset, len(content))[:] = content
    if shown:
        arena.show(offset, len(content), to)


def test_a_process_sees_the_bytes_as_they_are_when_it_reads_a_message(ends: Ends):
    write(ends.here[1], 100, b"weights")
    ends.order(0)
    assert bytes(ends.there[0][1].bytes(100, 7)) == b"weights"
    assert ends.there[1][1].size_bytes == 0  # it has read nothing yet
    write(ends.here[1], 100, b"WEIGHTS", shown=False)
    ends.order(1)
    assert bytes(ends.there[1][1].bytes(100, 7)) == b"WEIGHTS"
    assert bytes(ends.there[0][1].bytes(100, 7)) == b"weights"


def test_bytes_for_one_process_go_to_no_other(ends: Ends):
    write(ends.here[0], 0, b"snapshot", to=1)
    ends.order(0, 1)
    assert [bytes(arena.bytes(0, 8)) for arena, _ in ends.there] == [bytes(8), b"snapshot"]


def test_bytes_that_were_shown_outlive_their_process(ends: Ends):
    write(ends.there[0][0], PAGE, b"checkpoint")
    report(ends.up[0], "checkpoint", {"pushes": 3})
    ends.up[0].close()
    assert await_report(ends.down[0]).body == {"pushes": 3}
    assert bytes(ends.here[0].bytes(PAGE, 10)) == b"checkpoint"
    ends.order(1)
    assert ends.there[1][0].size_bytes == 0  # no other process has been sent them


def test_a_place_that_is_given_back_is_zero_everywhere(ends: Ends):
    write(ends.here[0], 0, bytes([7]) * 3 * PAGE)
    ends.order(0)
    ends.here[0].give_back()
    write(ends.here[0], PAGE, b"new")
    ends.order(0, 1)
    expected = bytes(PAGE) + b"new" + bytes(2 * PAGE - 3)
    assert [bytes(arena.bytes(0, 3 * PAGE)) for arena, _ in ends.there] == [expected] * 2


@pytest.mark.parametrize("ends", [{"passes": True}], indirect=True)
def test_an_arena_that_passes_gives_back_what_was_sent(ends: Ends):
    write(ends.there[0][1], 0, bytes([7]) * PAGE)
    ends.report()
    assert bytes(ends.here[1].bytes(0, PAGE)) == bytes([7]) * PAGE
    assert bytes(ends.there[0][1].bytes(0, PAGE)) == bytes(PAGE)


def test_a_new_process_gets_all_that_lies_there(ends: Ends):
    for page in (0, 5):
        write(ends.here[0], PAGE * page, b"data")
    ends.here[0].reserve(9 * PAGE)
    ends.here[0].read_by(0)
    ends.here[0].show_all(0)
    ends.order(0)
    assert ends.there[0][0].size_bytes == 9 * PAGE
    assert bytes(ends.there[0][0].bytes(0, 9 * PAGE)) == bytes(ends.here[0].bytes(0, 9 * PAGE))


def test_rows_go_with_each_message_and_no_others_are_sent_again(ends: Ends):
    own, sent = ends.there[0][1], list[int]()
    rows = Rows(2, own)

    def seen() -> np.ndarray:
        patches = own.patches(PARENT)
        sent.append(sum(patch.size_bytes for patch in patches))
        for patch in patches:
            own.show(patch.offset, patch.size_bytes)
        ends.report()
        return rows_in(ends.here[1], 2)

    assert seen().shape == (0, 2)
    for number in range(3):
        rows.append((number, -number))
    assert seen().tolist() == [[0, 0], [1, -1], [2, -2]]
    seen()
    assert sent[1:] == [3 * 16 + 8, 0]
    rows.put(1, 1, [9.0])
    assert seen().tolist() == [[0, 0], [1, 9], [2, -2]]
    assert sent[3] == 2 * 16 + 8
    for number in range(2000):
        rows.append((number, 0.0))
    assert np.array_equal(seen(), rows.table())
    rows.sort(0, 1)
    assert np.array_equal(seen(), rows.table())
    rows.restore([2, own, 1])
    assert len(seen()) == 1


@pytest.mark.parametrize("ends", [{"passes": True, "behind": True}], indirect=True)
def test_a_process_goes_on_while_much_is_sent_and_all_comes_in_order(ends: Ends):
    """The parent does not read yet."""
    content = bytes(range(256)) * (1 << 16)  # 16 MB, more than a pipe takes
    (_, snapshots), up = ends.there[0], ends.up[0]
    report(up, "progress", {"number": 0})
    assert not up.late
    for number in (1, 2):
        write(snapshots, (number - 1) * len(content), content)
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


@pytest.mark.parametrize("ends", [{"behind": True}], indirect=True)
def test_messages_that_are_late_are_not_waited_for_when_no_process_reads_any_more(ends: Ends):
    write(ends.there[0][0], 0, bytes(1 << 24))
    report(ends.up[0], "checkpoint")
    ends.down[0].close()
    ends.up[0].flush()
    assert not ends.up[0].late
    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        report(ends.up[0], "progress")


def test_much_travels_in_pieces(ends: Ends, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(private_memory, "PIECE_BYTES", 1000)
    content, own = bytes(range(256)) * 10, ends.there[0][0]
    write(own, 100, content)
    sizes = [piece.size_bytes for patch in own.patches(PARENT) for piece in patch.pieces()]
    assert sizes == [0, 1000, 1000, 560]
    own.show(100, len(content))
    ends.report()
    assert bytes(ends.here[0].bytes(100, len(content))) == content


def test_what_moves_is_given_back_here_and_zero_pages_are_not_sent(ends: Ends):
    write(ends.there[0][0], 40 * PAGE, b"here" * PAGE, shown=False)
    ends.there[0][0].show_written(0, 44 * PAGE, moves=True)
    ends.report()
    assert bytes(ends.here[0].bytes(40 * PAGE, 8)) == b"herehere"
    assert not list(ends.there[0][0].written(0, 44 * PAGE))
    assert not list(ends.here[0].written(0, 40 * PAGE))


HERE: list[Any] = ["here", "/proc/1/fd/3", 1, 3]
THERE: list[Any] = ["there", "/proc/1/fd/3", 1, 3]


def copied(*addresses: list[Any]) -> PrivateArena:
    """An arena of which the readers 0, 1, ... have copies at these addresses."""
    found = PrivateArena()
    for reader, address in enumerate(addresses):
        found.read_by(reader)
        found.copied_at(reader, address)
    return found


def carriers(arena: PrivateArena, *gone: int) -> list[int]:
    """The processes that take the changes, and confirm."""
    found = list[int]()
    while (carrier := arena.carrier(gone)) is not None:
        found.append(carrier)
        arena.confirm(carrier)
    return found


def test_a_process_that_maps_an_arena_sees_it_and_is_sent_nothing():
    arena = PrivateArena()
    mapped = PrivateArena.at(arena.address())
    if mapped is None:
        pytest.skip("no /proc here")
    arena.read_by(0)
    arena.copied_at(0, mapped.address())
    write(arena, PAGE, b"seen")
    assert arena.carrier(()) is None
    assert arena.patches(0) == []
    assert bytes(mapped.bytes(PAGE, 4)) == b"seen"
    mapped.close()
    arena.close()


def test_of_processes_that_map_one_copy_the_first_takes_each_change_for_all():
    arena = copied(HERE, THERE, HERE)
    assert carriers(arena) == []  # there is nothing
    for _ in range(2):
        write(arena, 0, b"data")
        assert carriers(arena) == [0, 1]
        assert [bool(arena.patches(reader)) for reader in range(3)] == [True, True, False]
        assert carriers(arena) == []
    arena.close()


def test_where_the_carrier_is_gone_before_it_has_confirmed_another_process_takes_all():
    arena = copied(HERE, THERE, HERE)
    write(arena, 0, bytes(PAGE))
    arena.carrier(())
    arena.patches(0)  # which is sent, and comes to nothing
    assert carriers(arena, 0) == [1, 2]
    assert sum(patch.size_bytes for patch in arena.patches(2) if patch.kept) == PAGE
    write(arena, 0, b"more")
    assert carriers(arena, 0) == [1, 2]
    assert sum(patch.size_bytes for patch in arena.patches(2)) == 4
    arena.close()


def test_a_new_process_with_a_copy_of_others_lacks_nothing_and_one_with_its_own_all():
    arena = copied(HERE, HERE)
    write(arena, 0, b"data")
    carriers(arena)
    arena.copied_at(0, HERE)
    assert carriers(arena) == []
    arena.copied_at(0, THERE)
    assert carriers(arena) == [0]
    arena.copied_at(0, ["there", "/proc/1/fd/3", 1, 4])  # nobody has the copy of before any more
    arena.copied_at(0, THERE)
    assert carriers(arena) == [0]
    arena.close()


def test_a_process_is_told_of_the_copies_on_its_host_and_no_others():
    arena = copied(HERE, THERE)
    own = arena.address()
    assert arena.addresses("there") == [THERE]
    arena.copied_at(0, own)
    assert arena.addresses(own[0]) == [own, own]
    arena.close()


@pytest.mark.parametrize("altered", [0, 1, 3])
def test_an_arena_of_another_host_or_another_file_is_not_mapped(altered: int):
    arena = PrivateArena()
    address = arena.address()
    address[altered] = {0: "another host", 1: "/proc/self/fd/9999", 3: address[3] + 1}[altered]
    assert PrivateArena.at(address) is None
    arena.close()
