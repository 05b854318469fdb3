"""Anonymous shared memory: it grows, is shared with children, and has no name."""

from __future__ import annotations

import mmap
import multiprocessing as mp
import os

import pytest
import torch

from pslab.engines.experiment import shared_memory as arena
from pslab.engines.experiment.shared_memory import Arena, aligned


def double(shared: Arena, count: int) -> None:
    shared.tensor(64, count, torch.float32).mul_(2)


def test_a_child_writes_what_the_parent_reads():
    shared = Arena()
    shared.reserve(64 + 4 * 8)
    numbers = shared.tensor(64, 8, torch.float32)
    numbers.copy_(torch.arange(8))
    child = mp.get_context("forkserver").Process(target=double, args=(shared, 8))
    child.start()
    child.join()
    assert child.exitcode == 0
    assert numbers.tolist() == [0, 2, 4, 6, 8, 10, 12, 14]


def test_growing_keeps_what_was_there():
    shared = Arena()
    shared.reserve(64)
    before = shared.tensor(0, 16, torch.float32)
    before.fill_(7)
    shared.reserve(1 << 20)
    after = shared.tensor(0, 1 << 18, torch.float32)
    assert after[:16].tolist() == [7] * 16
    after[0] = 1
    assert before[0] == 1
    shared.reserve(8)  # never shrinks
    assert shared.tensor(1 << 19, 4, torch.float32).tolist() == [0] * 4


@pytest.mark.parametrize("count", [1000, 3 << 20])
def test_what_is_taken_is_moved(monkeypatch, count):
    monkeypatch.setattr(arena, "PIECE_BYTES", 1 << 20)
    shared, numbers = Arena(), torch.arange(float(count))
    shared.reserve(64 + 4 * count + 4096)
    shared.tensor(64, count, torch.float32).copy_(numbers)
    shared.bytes(64 + 4 * count, 4)[:] = b"next"
    assert torch.equal(shared.taken(64, count, torch.float32), numbers)
    assert bytes(shared.bytes(64 + 4 * count, 4)) == b"next"
    if hasattr(mmap, "MADV_REMOVE"):
        pieces = 1 + 4 * count // (1 << 20)
        assert sum(len(piece) for _, piece in shared.written(0, shared.size_bytes)) <= (pieces + 2) * mmap.PAGESIZE


def test_shared_memory_has_no_name():
    before = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    shared = Arena()
    shared.reserve(1 << 16)
    assert not before or set(os.listdir("/dev/shm")) == before


def test_without_memfd_an_unlinked_file_serves(monkeypatch):
    monkeypatch.delattr(os, "memfd_create", raising=False)
    shared = Arena()
    shared.reserve(4096)
    shared.bytes(0, 4)[:] = b"abcd"
    assert bytes(shared.bytes(0, 4)) == b"abcd"
    assert os.fstat(shared._descriptor).st_nlink == 0


def test_closing_twice_is_harmless_and_views_live_on():
    shared = Arena()
    shared.reserve(64)
    view = shared.tensor(0, 4, torch.float64)
    shared.close()
    shared.close()
    view.fill_(1)
    assert view.sum() == 4


def test_the_pages_of_a_place_are_given_back_and_its_neighbours_stay():
    page, shared = mmap.PAGESIZE, Arena()
    shared.reserve(8 * page)
    shared.bytes(0, 8 * page)[:] = b"x" * 8 * page
    shared.give_back(page - 1, 3 * page)  # of four pages, in part of two
    assert sum(len(piece) for _, piece in shared.written(0, 8 * page)) == 6 * page
    assert bytes(shared.bytes(0, 8 * page)) == b"x" * page + bytes(2 * page) + b"x" * 5 * page
    shared.give_back(5 * page, 10)  # less than a page
    assert shared.bytes(5 * page, 1)[0] == ord("x")
    shared.give_back()
    assert list(shared.written(0, 8 * page)) == []


@pytest.mark.parametrize(("size", "whole"), [(0, 0), (1, 64), (64, 64), (65, 128)])
def test_sizes_are_whole_cache_lines(size, whole):
    assert aligned(size) == whole
    assert arena.ALIGNMENT == 64


def test_weights_that_are_zero_touch_no_page_and_replace_what_was_there():
    import torch

    here = Arena()
    here.reserve(1 << 16)
    values = torch.zeros(1 << 14)
    here.put(0, values)
    assert not list(here.written(0, 1 << 16))
    values[3] = -0.0
    here.put(0, values)
    assert here.tensor(0, 1 << 14, torch.float32).numpy().tobytes() == values.numpy().tobytes()
    here.put(0, torch.zeros(1 << 14))
    assert not here.tensor(0, 1 << 14, torch.float32).view(torch.int32).any()
    here.close()
