"""The main loop of a spawned process. The order `start` gives it a role, and later orders call the role's methods.

This module imports no role, so that the thread that watches the parent runs before any slow import begins.
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
SERVER = -1  # the number of the server's process, to which every other process has a pipe; the others count from 0


def name(number: int) -> str:
    """Return the name of a process in error messages, unless its role gives it another one (Role.called)."""
    return "server" if number == SERVER else f"worker {number}"


def number_of(workers: int, server: int) -> int:
    """Return the number of a server's process in the pool; server 0 has the number SERVER instead."""
    return workers + server - 1


@dataclass(frozen=True)
class Role:
    """A role given by the name of its class, so that the parent need not import the class."""

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
    """The pipes and the shared memory of a process, the same in every role."""

    number: int  #: the worker's number, or SERVER
    parent: Connection
    pipes: list[Connection]  #: one pipe to the server; in the server's process, one pipe to each worker
    arena: Arena  #: the tensors of a run
    data: Arena
    snapshots: Arena
    ledger: tuple[Arena, Arena]  #: the server's tables
    phases: Arena | None = None  #: a worker's table of phases

    def attached(self) -> Connection:
        """Receive from the parent the pipe to a new process, and return it."""
        return Connection(recv_handle(self.parent))

    def report_snapshot(self, body: dict[str, Any]) -> None:
        """Report that a snapshot of the weights was taken."""
        from pslab.engines.processes.channel import report

        report(self.parent, "snapshot", body)


def main(context: ProcessContext) -> None:
    """Execute orders until the parent closes the pipe or ends.

    `look_in` adds folders to sys.path. `start` creates the role by calling its first argument with the context and its
    other arguments; then "prepared" is reported. Every other order calls the method of the role with that name.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the notebook's process handles an interrupt: it stops this process
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
        except (EOFError, OSError):  # the parent has ended
            return
        try:
            verb, arguments = read_order(message)
            if verb == "look_in":
                sys.path += [folder for folder in arguments if folder not in sys.path]
            elif verb == "start":
                role, (make, *given) = None, arguments
                gc.collect()  # skips the objects of the imports, which were frozen above
                with contextlib.suppress(OSError, AttributeError):  # another C library than glibc
                    ctypes.CDLL(None).malloc_trim(0)  # else memory use would grow from run to run
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


def _die_with_fork_server() -> None:
    """Let the kernel kill this process when the fork server ends, if this is Linux and a fork server started it.

    The thread of `die_with_parent` is not enough: it cannot run while C code holds the interpreter's lock. The fork
    server ends with the notebook's process, once no process has the write end of its pipe open. Each child inherits
    this end in order to start children of its own; this process starts none, so it closes the end.
    """
    server: Any = getattr(forkserver, "_forkserver", None)
    if (alive := getattr(server, "_forkserver_alive_fd", None)) is None:
        return
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        os.close(alive)
        server._forkserver_alive_fd = None


def die_with_parent() -> None:
    """Wait until the parent has ended, then end this process at once."""
    parent = mp.parent_process()
    assert parent is not None  # the process that has spawned it
    parent.join()
    os._exit(1)
