"""A pool that cannot be spawned says why, and leaves nothing: no process, no descriptor."""

from __future__ import annotations

import errno
import gc
import mmap
import multiprocessing
import os
import subprocess
import sys
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess

import pytest

from pslab.engines.job.shared_memory import Arena
from pslab.engines.processes import pool
from pslab.errors import StartFailed


def breaking(monkeypatch, owner, name, count, error):
    """Let the count-th call raise."""
    original, calls = getattr(owner, name), []

    def counted(*arguments, **named):
        calls.append(arguments)
        if len(calls) == count:
            raise OSError(error, os.strerror(error))
        return original(*arguments, **named)

    monkeypatch.setattr(owner, name, counted)


def descriptors():
    gc.collect()
    return sorted(os.readlink(f"/proc/self/fd/{each}") for each in os.listdir("/proc/self/fd")
                  if os.path.islink(f"/proc/self/fd/{each}"))  # fmt: skip


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="needs Linux's /proc")
@pytest.mark.parametrize(
    ("owner", "name", "count", "error", "words"),
    [(os, "memfd_create", 4, errno.EMFILE, r"Too many open files; at most \d+ files are allowed here: see `ulimit -n`"),
     (BaseContext, "Pipe", 2, errno.EMFILE, "Too many open files"),
     (BaseContext, "Pipe", 5, errno.EMFILE, "Too many open files"),
     (BaseProcess, "start", 1, errno.EAGAIN, r"temporarily unavailable; at most -?\d+ processes .* `ulimit -u`"),
     (BaseProcess, "start", 3, errno.ENOMEM, "4 processes could not be started: .*Cannot allocate memory")],
    ids=["memory-files", "workers-pipes", "children-pipes", "processes", "memory"],
)  # fmt: skip
def test_what_the_system_does_not_have_is_a_failed_start_that_leaves_nothing(
    monkeypatch, owner, name, count, error, words
):
    resource_tracker.ensure_running()  # multiprocessing's own, which stay
    forkserver.ensure_running()
    before, children = descriptors(), set(multiprocessing.active_children())
    with monkeypatch.context() as patch:
        breaking(patch, owner, name, count, error)
        with pytest.raises(StartFailed, match=words) as held:  # a notebook keeps the last error, and its frames
            pool.Pool(3, lambda: None)
    assert descriptors() == before
    del held
    assert set(multiprocessing.active_children()) == children


@pytest.mark.parametrize(("owner", "name"), [(os, "ftruncate"), (mmap, "mmap")])
def test_shared_memory_that_cannot_be_had_is_a_failed_start(monkeypatch, owner, name):
    arena = Arena()
    breaking(monkeypatch, owner, name, 1, errno.ENOMEM)
    with pytest.raises(StartFailed, match=r"4,096 bytes of shared memory cannot be had: .*Cannot allocate memory"):
        use(arena)
    arena.close()


def use(arena):
    arena.reserve(4096)
    arena.bytes(0, 4096)


def test_a_child_watches_its_parent_before_it_imports_torch():
    """What it is given is unpickled before its main begins, and must not cost the seconds that torch takes."""
    code = "import sys, pslab.engines.processes.child, pslab.engines.job.shared_memory; print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout.strip() == "False"
