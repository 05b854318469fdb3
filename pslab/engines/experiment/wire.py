"""Payloads that engines add to the protocol's messages, and each message as a fixed record of bytes, without pickle.

A message is the protocol's own tuple; its payload says where the numbers lie, how large they are, and when things
happened. Messages that travel as one are a frame. Instants are seconds since the run started.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from pslab.protocol.messages import Ack, Pull, Push, Weights

FIRST = -1  # the iteration of a Go to those that start with the run
WHOLE = -1  # size_bytes of a payload that lies in shared memory as it is, not encoded
REQUEST_BYTES = 87  # of a pull on an emulated link: a figure of the emulation, not the length of its record


# --- payloads -----------------------------------------------------------------------------------------------------


class PushInfo(NamedTuple):
    """Of a Push: where it lies follows from its worker, range and iteration (see Layout)."""

    size_bytes: int  #: of the encoded entries, or WHOLE; 0: nothing is pushed
    entries: int
    loss: float  #: on the batch
    sent_s: float = 0.0


class Wanted(NamedTuple):
    """Of a Pull: the keys that it asks for, from `start` until before `stop`; 0, 0 asks for all, or for those that a
    frame in shared memory names (see Layout.asked)."""

    start: int
    stop: int
    sent_s: float = 0.0
    size_bytes: int = REQUEST_BYTES  #: on an emulated link; of such a frame, which there is none of if it is 0


class Answer(NamedTuple):
    """Of Weights. The worker's last push on the range was `taken` by the server, and `done` once it was dealt with."""

    size_bytes: int  #: of the encoded entries, or WHOLE; 0: the worker goes on with the weights that it has
    released_by: int  #: the worker that was waited for
    taken_s: float
    done_s: float
    asked_s: float  #: the server took the request
    released_s: float  #: the policy started the worker
    sent_s: float  #: the weights were handed to the link


class Taken(NamedTuple):
    """Of an Ack: when the server took the push, and when it had dealt with it."""

    taken_s: float
    done_s: float


# --- messages that are not the protocol's -------------------------------------------------------------------------


class Go(NamedTuple):
    """Server -> worker: the run starts; its zero on the machine's monotonic clock.

    A process that takes another's place goes on with `iteration`, whose weights the server has asked for in its name.
    No fault kills it before its push of `spared`, or of one before that: they have killed the processes before it.
    """

    zero_s: float
    iteration: int = FIRST
    spared: int = FIRST


class Stop(NamedTuple):
    """Server -> worker: the run is over. Worker -> server: this was my last message."""

    worker: int


class Diverged(NamedTuple):
    """Worker -> server: the gradient of this iteration is not finite."""

    worker: int
    iteration: int


class Blocked(NamedTuple):
    """Worker -> server: computing waits for the weights of this range."""

    worker: int
    range: int


class Ordered(NamedTuple):
    """Server -> another one: what it is to do; the pushes or the request that this is about follow."""

    kind: int  #: see pslab.engines.local.store
    about: int  #: the range, the snapshot, or the worker
    version: int = 0
    flag: bool = False  #: of a step whether it is a mean, of a reply whether it is empty
    rate: float = 0.0


class ComputedOn(NamedTuple):
    """Server -> another one, behind a step: a version on which a worker computes while the step is applied."""

    version: int


class Carried(NamedTuple):
    """Another server -> the one that decides: its oldest order is done, a reply's weights in so many bytes."""

    size_bytes: int
    begin_s: float
    done_s: float


class Gone(NamedTuple):
    """An event of the transport, never a record: nothing more comes from this worker."""

    worker: int


Message = Push | Pull | Weights | Ack | Go | Stop | Diverged | Blocked | Gone | Ordered | ComputedOn | Carried
Frame = list[Any]  # of messages


# --- records ------------------------------------------------------------------------------------------------------


class _Record:
    """How one kind of message becomes bytes: its number, then its fields, with those of its payload in their place."""

    def __init__(self, number: int, kind: Any, layout: str, payload: Any = None) -> None:
        self.struct, self._number, self._kind, self._payload = struct.Struct(f"<B{layout}"), number, kind, payload
        self._at = kind._fields.index("payload") if payload else 0
        self._behind = self._at + len(payload._fields) if payload else 0

    def pack(self, message: Any) -> bytes:
        at = self._at
        if at:
            return self.struct.pack(self._number, *message[:at], *message[at], *message[at + 1 :])
        return self.struct.pack(self._number, *message)

    def unpack(self, frame: bytes, offset: int) -> Any:
        _, *fields = self.struct.unpack_from(frame, offset)
        if at := self._at:
            behind = self._behind
            return self._kind(*fields[:at], self._payload(*fields[at:behind]), *fields[behind:])
        return self._kind(*fields)


_KINDS: tuple[tuple[Any, ...], ...] = (
    (Push, "HIqqqqddqq", PushInfo),
    (Pull, "HIqqqqdq", Wanted),
    (Weights, "HIqqqhdddddqqqq", Answer),
    (Ack, "HIqdd", Taken),
    (Go, "dqq"),
    (Stop, "h"),
    (Diverged, "Hq"),
    (Blocked, "HI"),
    (Ordered, "BIq?d"),
    (ComputedOn, "q"),
    (Carried, "qdd"),
)
_RECORDS = [_Record(number, *kind) for number, kind in enumerate(_KINDS)]
_OF = {kind[0]: record for kind, record in zip(_KINDS, _RECORDS, strict=True)}


def pack(frame: Iterable[Message]) -> bytes:
    """Messages -> the bytes of one frame."""
    return b"".join([_OF[type(message)].pack(message) for message in frame])


def unpack(frame: bytes) -> Iterator[Any]:
    """The bytes of a frame -> its messages; struct.error if it is not made of whole records of known kinds."""
    at, end = 0, len(frame)
    while at < end:
        if (kind := frame[at]) >= len(_RECORDS):
            raise struct.error(f"no kind of message has the number {kind}; there are {len(_RECORDS)}")
        record = _RECORDS[kind]
        yield record.unpack(frame, at)
        at += record.struct.size
