"""Pipes between a parent and its children: orders go down by cloudpickle, reports come up as JSON and arrays."""

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
    """Let what is sent raise BlockingIOError once the other end has read nothing for so long, and what is received once
    it has sent nothing more of a message that it began: it may be stopped."""
    with socket.socket(fileno=os.dup(pipe.fileno())) as own:
        timeval = struct.pack("ll", int(limit_s), int(limit_s % 1 * 1e6))
        for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            own.setsockopt(socket.SOL_SOCKET, option, timeval)


def order(pipe: Connection, verb: str, argument: Any = None) -> None:
    """Send an order from a parent to its own child, and nowhere else: a user's objects travel by value."""
    pipe.send_bytes(cloudpickle.dumps((verb, argument)))


def order_plain(pipe: Connection, verb: str, argument: Any) -> None:
    """Send an order as JSON: for orders by the thousand, of plain lists and numbers."""
    pipe.send_bytes(json.dumps([verb, argument]).encode())


def await_order(pipe: Connection) -> tuple[str, Any]:
    """The child's next order; EOFError when the parent has closed the pipe."""
    return read_order(pipe.recv_bytes())


def read_order(message: bytes) -> tuple[str, Any]:
    """An order, as it came.

    Raises:
        ImportError: this process lacks a module that the parent has. And what the user's
            objects raise.
    """
    if message.startswith(b"["):  # which no pickle does
        verb, argument = json.loads(message)
        return str(verb), argument
    try:
        verb, argument = with_operators(partial(cloudpickle.loads, message))  # perhaps a torchvision model
    except ImportError as error:
        raise type(error)(f"{error}, which the notebook imports; its workers do not find it") from None
    return str(verb), argument


def report(
    pipe: Connection, kind: str, body: dict[str, Any] | None = None, table: np.ndarray | None = None,
    content: Iterable[memoryview] = (),
) -> None:  # fmt: skip
    """Send a report from a child to its parent. The `content` arrives in one piece."""
    rows = NO_TABLE if table is None else np.ascontiguousarray(table, dtype=np.float64)
    head = json.dumps({"kind": kind, "body": body or {}, "shape": rows.shape}).encode()
    pipe.send_bytes(b"".join((len(head).to_bytes(4, "little"), head, rows.data, *content)))


class LifeSigns:
    """The reports "alive" of a process that waits on purpose, or does little between two waits: one each eighth of a
    lease, however often `give` is called, and whatever the process reads meanwhile."""

    def __init__(self, parent: Connection, lease_s: float) -> None:
        self._parent, self.period_s, self._given_s = parent, lease_s / LOOKS, time.monotonic()

    def give(self) -> None:
        """Report it, if that is due."""
        if (now := time.monotonic()) - self._given_s >= self.period_s:
            report(self._parent, ALIVE)
            self._given_s = now


def await_report(pipe: Connection) -> Report:
    """The next report of a child; EOFError when it is gone."""
    message = memoryview(pipe.recv_bytes())
    begin = 4 + int.from_bytes(message[:4], "little")
    head = json.loads(bytes(message[4:begin]))
    end = begin + 8 * math.prod(head["shape"])
    table = np.frombuffer(bytes(message[begin:end])).reshape(head["shape"])
    return Report(head["kind"], head["body"], table, message[end:])
