"""Control messages between worker and server processes of one machine: fixed records, no pickle.

One frame on a pipe is one or more records. Numbers that a driver adds to a protocol message (sizes, instants) travel in
the same record.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

PUSH, PULL, WEIGHTS, ACK, GO, STOP, DIVERGED, GONE, BLOCKED = range(9)
SERVER = -1  # its number among the processes; workers count from 0
WHOLE = -1  # size_bytes of a payload that lies in shared memory as it is, without a frame


class Note(NamedTuple):
    """One control record; fields that a kind does not use are zero."""

    kind: int
    worker: int = 0
    range: int = 0
    iteration: int = 0
    version: int = 0
    size_bytes: int = 0  #: of the payload's frame, or WHOLE
    other: int = 0  #: PUSH: entries sent; WEIGHTS: the worker that was waited for; PULL: the first key wanted
    sent_s: float = 0.0  #: PUSH, PULL: handed to the link; WEIGHTS: the weights are written, the link has them
    begun_s: float = 0.0  #: WEIGHTS, ACK: the server took the worker's push
    done_s: float = 0.0  #: WEIGHTS, ACK: ... and had dealt with it
    released_s: float = 0.0  #: WEIGHTS: the policy started the worker
    value: float = 0.0  #: PUSH: the loss on its batch; WEIGHTS: when the server heard the request
    #: PUSH: the staleness that its worker saw; WEIGHTS: the worker's pushes that are in them; PULL: the key behind the
    #: last one wanted, 0 for all
    own: int = 0

    @property
    def wanted(self) -> tuple[int, int]:
        """The keys that a PULL asks for, if not for all: the first, and the one behind the last."""
        return self.other, self.own


_RECORD = struct.Struct("<BHIqqqqdddddq")
PULL_BYTES = _RECORD.size  #: what a request for weights costs on a link


def pack(notes: Iterable[Note]) -> bytes:
    """Notes -> one frame."""
    return b"".join(_RECORD.pack(*note) for note in notes)


def apart(notes: Sequence[Note]) -> list[list[Note]]:
    """An eager worker's frame as it goes on a link: requests are small, and wait for no push's bytes."""
    parts = [[note for note in notes if note.kind == PULL], [note for note in notes if note.kind != PULL]]
    return [part for part in parts if part]


def unpack(frame: bytes) -> Iterator[Note]:
    """One frame -> its notes; struct.error if it is not made of whole records."""
    return map(Note._make, _RECORD.iter_unpack(frame))
