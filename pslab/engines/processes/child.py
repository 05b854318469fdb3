"""A spawned process: it takes the role that the order `start` gives it, then does what that role is ordered to.

It knows no role, and the watcher on its parent stands before anything is imported that a role needs.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import multiprocessing as mp
import os
import signal
import sys
import threading
import traceback
from dataclasses import dataclass
from importlib import import_module
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from typing import TYPE_CHECKING, Any, NamedTuple

from pslab.errors import ConfigError

if TYPE_CHECKING:
    from pslab.engines.experiment.shared_memory import Arena


PR_SET_PDEATHSIG = 1  # of prctl(2)
SERVER = -1  # the number of the process to which all others have a line; they count from 0


def name(number: int) -> str:
    """The name of a process that has no role in messages."""
    return "server" if number == SERVER else f"worker {number}"


def number_of(workers: int, server: int) -> int:
    """The number of a server's process in the pool; not of server 0."""
    return workers + server - 1


@dataclass(frozen=True)
class Role:
    """A role by its name, so that the parent, which takes none, need not load its code."""

    path: str  #: "module:class"
    called: str  #: how messages name the process: "host {}"

    def __call__(self, context: ProcessContext, *arguments: Any) -> Any:
        module, _, made = self.path.partition(":")
        return getattr(import_module(module), made)(context, *arguments)


class Memory(NamedTuple):
    """The memory that a process shares with its parent; see ProcessContext."""

    arena: Arena
    data: Arena
    snapshots: Arena
    ledger: tuple[Arena, Arena]
    phases: Arena | None


class ProcessContext(NamedTuple):
    """The pipes and the memory that a process has for as long as it lives, whatever its role."""

    number: int  #: the worker's, or SERVER
    parent: Connection
    pipes: list[Connection]  #: to the server; the server's, to each worker
    arena: Arena  #: of a run's tensors
    data: Arena
    snapshots: Arena
    ledger: tuple[Arena, Arena]  #: the tables of the server's
    phases: Arena | None = None  #: the table of a worker's own

    def attached(self) -> Connection:
        """The line of a new process, which the parent says is there."""
        return Connection(recv_handle(self.parent))

    def report_snapshot(self, body: dict[str, Any]) -> None:
        """Report that a snapshot of the weights was taken."""
        from pslab.engines.processes.channel import report

        report(self.parent, "snapshot", body)


def main(context: ProcessContext) -> None:
    """Serve orders until the parent closes the pipe or is gone.

    The order `look_in` gives folders of modules. `start` gives a callable and its arguments: called with the context
    before them it makes the role, and "prepared" is reported. Every other order names a method of the role, and gives
    its arguments.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the notebook's interrupt is for the notebook: it stops us in order
    _die_with_fork_server()
    threading.Thread(target=die_with_parent, daemon=True).start()
    import torch

    from pslab.engines.processes.channel import read_order, report

    torch.set_num_threads(1)  # one and two threads give different bits; parallelism is between gradients
    report(context.parent, "ready")
    gc.freeze()
    role: Any = None
    while True:
        try:
            message = context.parent.recv_bytes()
        except (EOFError, OSError):  # the parent is gone
            return
        try:
            verb, arguments = read_order(message)
            if verb == "look_in":
                sys.path += [folder for folder in arguments if folder not in sys.path]
            elif verb == "start":
                role, (make, *given) = None, arguments
                _give_memory_back()
                role = make(context, *given)
                report(context.parent, "prepared")
            else:
                getattr(role, verb)(*arguments)
        except Exception as error:  # a user's model or policy may raise anything; the parent ends the run
            text = str(error) if isinstance(error, ConfigError) else traceback.format_exc()
            body = {"iteration": getattr(role, "iteration", 0), "traceback": text}
            try:
                report(context.parent, "failed", body)
            except OSError:  # the parent has closed the pipe: it needs nothing more
                return


def _give_memory_back() -> None:
    """Give the system back the memory that the role before has left: its cycles, and the holes of evaluations, would
    grow from run to run. Objects of the imports are not looked through."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # another C library than glibc
        ctypes.CDLL(None).malloc_trim(0)


def _die_with_fork_server() -> None:
    """Let the kernel kill this process where the fork server ends, as the thread beside it cannot while C code keeps
    the interpreter's lock. Linux alone does it; a process that no fork server has started has that thread alone.

    The fork server ends with the notebook's process, unless another one holds the pipe by which it knows: each child
    is handed it, to start others, which none of these does.
    """
    server: Any = getattr(forkserver, "_forkserver", None)
    if (alive := getattr(server, "_forkserver_alive_fd", None)) is None:
        return
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        os.close(alive)
        server._forkserver_alive_fd = None


def die_with_parent() -> None:
    """End this process once its parent is gone."""
    parent = mp.parent_process()
    assert parent is not None  # who has spawned it
    parent.join()
    os._exit(1)
