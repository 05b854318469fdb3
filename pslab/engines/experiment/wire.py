"""The payloads that engines add to the protocol's messages, and the encoding of messages as bytes, without pickle.

A message is a tuple of `pslab.protocol.messages`, or one of those below. Its payload has sizes and instants, in seconds
since the run started; the numbers of gradients and weights are in shared memory. A frame is a list of messages that are
sent together. Each kind of message has a record of fixed length.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from pslab.protocol.messages import Ack, Pull, Push, Weights

FIRST = -1  # the iteration of a Go to workers that start with the run
WHOLE = -1  # size_bytes of a payload that is stored unencoded in shared memory
REQUEST_BYTES = 87  # the modelled bytes of a pull on an emulated link, not the length of its record


# --- payloads -----------------------------------------------------------------------------------------------------


class PushInfo(NamedTuple):
    """The payload of a Push; worker, range and iteration give the offset of its entries (see Layout)."""

    size_bytes: int  #: of the encoded entries, or WHOLE; 0: no entry is pushed
    entries: int  #: the number of pushed entries
    loss: float  #: on the batch
    sent_s: float = 0.0


class Wanted(NamedTuple):
    """The payload of a Pull: the requested keys, from `start` up to but not including `stop`.

    0, 0 requests all keys, or the keys that a frame in shared memory lists (see Layout.asked).
    """

    start: int
    stop: int
    sent_s: float = 0.0
    size_bytes: int = REQUEST_BYTES  #: on an emulated link; of such a frame: 0 without one


class Answer(NamedTuple):
    """The payload of Weights."""

    size_bytes: int  #: of the encoded entries, or WHOLE; 0: the worker continues with its present weights
    released_by: int  #: the worker that was waited for
    taken_s: float  #: when the server received the worker's last push on the range
    done_s: float  #: when it had processed this push
    asked_s: float  #: when it received the request
    released_s: float  #: when the policy started the worker
    sent_s: float  #: when the weights were put on the link


class Taken(NamedTuple):
    """The payload of an Ack."""

    taken_s: float  #: when the server received the push
    done_s: float  #: when it had processed the push


# --- messages that are not the protocol's -------------------------------------------------------------------------


class Go(NamedTuple):
    """Server -> worker: start to compute."""

    zero_s: float  #: the start of the run, on the machine's monotonic clock
    iteration: int = FIRST  #: for a process that replaces another: its first iteration, whose weights are under way
    spared: int = FIRST  #: for such a process: faults up to this iteration killed its predecessors, and are ignored


class Stop(NamedTuple):
    """Server -> worker: the run is over. Worker -> server: no message follows."""

    worker: int


class Diverged(NamedTuple):
    """Worker -> server: the gradient of this iteration is not finite."""

    worker: int
    iteration: int


class Blocked(NamedTuple):
    """Worker -> server: the computation waits for the weights of this range."""

    worker: int
    range: int


class Ordered(NamedTuple):
    """Deciding server -> another server: an order; the pushes of a step, or the request of a reply, follow."""

    kind: int  #: see pslab.engines.local.store
    about: int  #: the number of the range, snapshot, checkpoint or worker
    version: int = 0  #: of the weights after a step, or in a reply
    flag: bool = False  #: for a step: whether it is a mean; for a reply: whether it is empty
    rate: float = 0.0  #: the learning rate of a step


class ComputedOn(NamedTuple):
    """Deciding server -> another server, after a step: a version on which a worker computes at that moment."""

    version: int


class Carried(NamedTuple):
    """Another server -> deciding server: its oldest order is executed."""

    size_bytes: int  #: of the weights of a reply
    begin_s: float
    done_s: float


class Gone(NamedTuple):
    """An event of the transport, never sent: no more messages come from this worker."""

    worker: int


Message = Push | Pull | Weights | Ack | Go | Stop | Diverged | Blocked | Gone | Ordered | ComputedOn | Carried
Frame = list[Any]  # of messages


# --- records ------------------------------------------------------------------------------------------------------


class _Record:
    """The encoding of one kind of message: the kind's number, then the fields, with the payload's fields inlined."""

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
    """Return the bytes of a frame of messages."""
    return b"".join([_OF[type(message)].pack(message) for message in frame])


def unpack(frame: bytes) -> Iterator[Any]:
    """Yield the messages of a frame's bytes; raise struct.error if a record is unknown or incomplete."""
    at, end = 0, len(frame)
    while at < end:
        if (kind := frame[at]) >= len(_RECORDS):
            raise struct.error(f"no kind of message has the number {kind}; numbers are 0 to {len(_RECORDS) - 1}")
        record = _RECORDS[kind]
        yield record.unpack(frame, at)
        at += record.struct.size
