"""A pool that cannot be spawned says why, and leaves nothing: no process, no descriptor."""

from __future__ import annotations

import errno
import gc
import importlib
import mmap
import multiprocessing
import os
import signal
import threading
import time
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess

import pytest

from pslab.engines.experiment.shared_memory import Arena
from pslab.engines.processes import pool
from pslab.engines.processes.channel import limit_waits
from pslab.engines.processes.watch import PREPARING
from pslab.errors import StartFailed, WorkerDied, WorkerFailed


def breaking(monkeypatch, owner, name, count, error):
    """Let the count-th call raise."""
    original, calls = getattr(owner, name), []

    def counted(*arguments, **named):
        calls.append(arguments)
        if len(calls) == count:
            raise OSError(error, os.strerror(error)) if isinstance(error, int) else OSError(error)
        return original(*arguments, **named)

    monkeypatch.setattr(owner, name, counted)


def descriptors():
    gc.collect()
    return sorted(os.readlink(f"/proc/self/fd/{each}") for each in os.listdir("/proc/self/fd")
                  if os.path.islink(f"/proc/self/fd/{each}"))  # fmt: skip


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="needs Linux's /proc")
@pytest.mark.parametrize(
    ("owner", "name", "count", "error", "words"),
    [(os, "memfd_create", 4, errno.EMFILE, r"Too many open files; at most \d+ files are allowed: raise .* `ulimit -n`"),
     (BaseContext, "Pipe", 2, errno.EMFILE, "Too many open files"),
     (BaseContext, "Pipe", 5, errno.EMFILE, "Too many open files"),
     (BaseProcess, "start", 1, errno.EAGAIN, r"temporarily unavailable; at most -?\d+ processes .* `ulimit -u`"),
     (BaseProcess, "start", 1, "AF_UNIX path too long", "at most 107 characters; set TMPDIR to a shorter one than /"),
     (BaseProcess, "start", 3, errno.ENOMEM, "4 processes could not be started: .*Cannot allocate memory")],
    ids=["memory-files", "workers-pipes", "children-pipes", "processes", "sockets", "memory"],
)  # fmt: skip
def test_what_the_system_does_not_have_is_a_failed_start_that_leaves_nothing(
    monkeypatch, owner, name, count, error, words
):
    resource_tracker.ensure_running()  # multiprocessing's own, which stay
    forkserver.ensure_running()
    children, before = set(multiprocessing.active_children()), descriptors()
    with monkeypatch.context() as patch:
        breaking(patch, owner, name, count, error)
        with pytest.raises(StartFailed, match=words) as held:  # a notebook keeps the last error, and its frames
            pool.Pool(3, lambda: None)
    assert descriptors() == before
    del held
    assert set(multiprocessing.active_children()) == children


@pytest.mark.parametrize(("owner", "name"), [(os, "ftruncate"), (mmap, "mmap")])
def test_shared_memory_that_cannot_be_had_is_a_failed_start(monkeypatch, owner, name):
    def use(arena):
        arena.reserve(4096)
        arena.bytes(0, 4096)

    arena = Arena()
    breaking(monkeypatch, owner, name, 1, errno.ENOMEM)
    with pytest.raises(StartFailed, match=r"4,096 bytes of shared memory could .*Cannot allocate memory"):
        use(arena)
    arena.close()


def test_a_fork_server_that_ends_while_a_pool_starts_is_replaced_once(monkeypatch):
    start, calls = BaseProcess.start, []

    def ending(process):
        calls.append(process)
        if len(calls) == 2:
            server = forkserver._forkserver._forkserver_pid
            os.kill(server, signal.SIGSTOP)  # until it is asked for a child
            threading.Timer(0.2, os.kill, (server, signal.SIGKILL)).start()
        start(process)

    pool.release(kill=True)
    monkeypatch.setattr(BaseProcess, "start", ending)
    found = pool.acquire(2)
    assert found.alive
    assert len(calls) == 2 + 1 + found.workers
    pool.release(kill=True)


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="needs Linux's /proc")
def test_processes_that_take_the_places_of_others_leave_no_descriptor():
    own = pool.Pool(2, lambda: None)
    forks = forkserver._forkserver._forkserver_pid

    def opened() -> list[int]:
        return [len(os.listdir(f"/proc/{process}/fd")) for process in ("self", forks)]

    def replace() -> None:
        own.replace(0)
        own.attach(0)
        own.renew(range(2), lambda: None)

    try:
        replace()
        first, until_s = opened(), time.monotonic() + 300
        for _ in range(2):
            replace()
        while (more := max(map(int.__sub__, opened(), first))) > 0 and time.monotonic() < until_s:
            pass  # the fork server has a descriptor of each child that has ended until it notices
        assert more <= 0
    finally:
        own.close(kill=True)


# --- children that do not keep up their part --------------------------------------------------------------------------

LONG_S = 60.0


@pytest.fixture
def own_pool(monkeypatch):
    """A pool of one worker and a server, on whose pipes nothing is waited for."""
    found = pool.Pool(1, lambda: None)
    monkeypatch.setattr(pool, "PIPE_LIMIT_S", 0.01)  # for what is said; pipes have their limit since they were made
    for pipe in found.pipes.values():
        limit_waits(pipe, pool.PIPE_LIMIT_S)
    yield found
    found.close(kill=True)


def reports(found):
    """The next reports of the worker."""
    while not (each := found.reports({0: PREPARING}, LONG_S, lambda number: False)):
        pass
    return [report for _, report in each]


def test_an_order_that_is_not_read_is_an_end_where_reports_are_awaited(own_pool):
    os.kill(own_pool.processes[0].pid, signal.SIGSTOP)
    own_pool.order(0, "never", bytes(2**22))  # more than its pipe holds
    own_pool.order(0, "never again")  # at once: nothing is waited for twice
    assert not own_pool.alive  # it serves no other run
    with pytest.raises(WorkerDied, match=r"worker 0 has not read its orders for 0.01 s"):
        reports(own_pool)


def test_a_process_that_stops_amid_a_report_is_not_waited_for_without_a_limit(own_pool):
    def stops(context):
        os.write(context.parent.fileno(), b"\0\0\0\x09half")  # of nine bytes
        os.kill(os.getpid(), signal.SIGSTOP)

    assert own_pool.alive
    own_pool.start(0, stops)
    with pytest.raises(WorkerDied, match=r"worker 0 has written half a report, and nothing for 0.01 s"):
        reports(own_pool)


# --- roles ------------------------------------------------------------------------------------------------------------


class Unknown:
    """An object of a module that a child does not find."""

    def __reduce__(self):
        return importlib.import_module, ("module_that_is_not_there",)


def test_a_process_that_lacks_a_module_says_which_and_serves_the_next_run(monkeypatch, tmp_path):
    """Also one from a folder of modules that a notebook has added since the process was started."""
    roles = pool.Pool(1, lambda: None)
    try:
        roles.start(0, Unknown())
        with pytest.raises(WorkerFailed, match=r"No module named 'module_that_is_not_there'; .* a worker process cann"):
            reports(roles)
        (tmp_path / "module_of_a_user.py").write_text("def role(context):\n    pass\n")
        monkeypatch.syspath_prepend(tmp_path)
        for role in (lambda context: None, importlib.import_module("module_of_a_user").role):
            roles.start(0, role)
            assert reports(roles)[0].kind == "prepared"
    finally:
        roles.close(kill=True)
