"""Messages on the pipe between a parent and a child process: orders to the child, reports to the parent."""

from __future__ import annotations

import json
import math
import os
import socket
import struct
import time
from collections.abc import Iterable
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import cloudpickle
import numpy as np

from pslab.engines.processes.watch import LOOKS
from pslab.tensors.workload.torchvision_ops import with_operators

ALIVE = "alive"  # the kind of report of a process that waits on purpose
NO_TABLE = np.empty((0, 0))


class Report(NamedTuple):
    """A message of a child to its parent."""

    kind: str
    body: dict[str, Any]
    table: np.ndarray  # float64 [rows, columns], perhaps empty
    content: memoryview = memoryview(b"")


def limit_waits(pipe: Connection, limit_s: float) -> None:
    """Set a timeout on a pipe, since the other process may be stopped: sending or receiving raises BlockingIOError if
    the other process has read nothing, or sent nothing, for `limit_s` seconds."""
    with socket.socket(fileno=os.dup(pipe.fileno())) as copy:
        timeval = struct.pack("ll", int(limit_s), int(limit_s % 1 * 1e6))
        for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            copy.setsockopt(socket.SOL_SOCKET, option, timeval)


def order(pipe: Connection, verb: str, argument: Any = None) -> None:
    """Send an order, a method's name and its argument, to a child by cloudpickle: a user's objects go by value."""
    pipe.send_bytes(cloudpickle.dumps((verb, argument)))


def order_plain(pipe: Connection, verb: str, argument: Any) -> None:
    """Send an order whose argument is made of plain lists and numbers as JSON, which is fast for frequent orders."""
    pipe.send_bytes(json.dumps([verb, argument]).encode())


def await_order(pipe: Connection) -> tuple[str, Any]:
    """Wait for the child's next order and return it; raise EOFError if the parent has closed the pipe."""
    return read_order(pipe.recv_bytes())


def read_order(message: bytes) -> tuple[str, Any]:
    """Return the verb and the argument of an order.

    Raises:
        ImportError: this process cannot import a module that the parent has imported.
        Exception: a user's object cannot be unpickled.
    """
    if message.startswith(b"["):  # JSON: no pickle starts with "["
        verb, argument = json.loads(message)
        return str(verb), argument
    try:
        verb, argument = with_operators(partial(cloudpickle.loads, message))  # perhaps a torchvision model
    except ImportError as error:
        problem = "the notebook has imported this module, but a worker process cannot: add its folder to sys.path"
        raise type(error)(f"{error}; {problem}") from None
    return str(verb), argument


def report(
    pipe: Connection, kind: str, body: dict[str, Any] | None = None, table: np.ndarray | None = None,
    content: Iterable[memoryview] = (),
) -> None:  # fmt: skip
    """Send a report from a child to its parent; the pieces of `content` arrive as one."""
    rows = NO_TABLE if table is None else np.ascontiguousarray(table, dtype=np.float64)
    head = json.dumps({"kind": kind, "body": body or {}, "shape": rows.shape}).encode()
    pipe.send_bytes(b"".join((len(head).to_bytes(4, "little"), head, rows.data, *content)))


class LifeSigns:
    """Sends the report "alive" for a process that waits on purpose or uses little CPU time.

    `give` sends at most one such report in each eighth of a lease. A loop that waits for messages must wake up after
    `period_s` seconds to call `give`.
    """

    def __init__(self, parent: Connection, lease_s: float) -> None:
        self._parent, self.period_s, self._given_s = parent, lease_s / LOOKS, time.monotonic()

    def give(self) -> None:
        """Report "alive" if the last such report is at least `period_s` seconds old."""
        if (now := time.monotonic()) - self._given_s >= self.period_s:
            report(self._parent, ALIVE)
            self._given_s = now


def await_report(pipe: Connection) -> Report:
    """Wait for a child's next report and return it; raise EOFError if the child has ended."""
    message = memoryview(pipe.recv_bytes())
    begin = 4 + int.from_bytes(message[:4], "little")
    head = json.loads(bytes(message[4:begin]))
    end = begin + 8 * math.prod(head["shape"])
    table = np.frombuffer(bytes(message[begin:end])).reshape(head["shape"])
    return Report(head["kind"], head["body"], table, message[end:])
