"""Messages between processes that only the other end of their line can have sent: each once, and in their order.

Behind each message is a tag: keyed BLAKE2b (RFC 7693) of its number on the line and its bytes. The key is one of this
line and direction, which both ends have from their handshake. So nothing can be altered, left out, repeated or added on
the way; it can be read. Lines that no other process reaches, as socket pairs, have no tags.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from hashlib import blake2b
from multiprocessing.connection import Connection

from pslab.errors import FrameError

TAG_BYTES = 16
Bytes = bytes | memoryview


class Tags:
    """Those of one line: of what is sent, and of what comes.

    Args:
        secret: what both ends have, and no other process.
        dials: whether this end has dialled.
        payload: whether the numbers that messages are about have tags, too.
    """

    def __init__(self, secret: bytes, *, dials: bool, payload: bool = False) -> None:
        keys = [blake2b(role, key=secret, digest_size=32).digest() for role in (b"dials", b"listens")]
        self._sends, self._hears = keys if dials else reversed(keys)
        self._sent = self._heard = 0
        self.payload = payload

    def of(self, parts: Iterable[Bytes]) -> bytes:
        """The tag of what is sent next, in these parts."""
        self._sent += 1
        return _tag(self._sends, self._sent, parts)

    def check(self, tag: Bytes, parts: Iterable[Bytes]) -> None:
        """FrameError if what has come next is not what the other end has sent next."""
        self._heard += 1
        if not hmac.compare_digest(tag, _tag(self._hears, self._heard, parts)):
            raise FrameError("a message that is not the next one of its other end: it was altered on the way")


class TaggedLine(Connection):
    """A connection to a process that has proved its number, whose messages have tags."""

    tags: Tags


def tags_of(line: Connection) -> Tags | None:
    """Those of a line to another host; None on a socket pair."""
    return getattr(line, "tags", None)


def payload_tags_of(line: Connection) -> Tags | None:
    """Those of a line on which the numbers that messages are about have tags, too; else None."""
    tags = tags_of(line)
    return tags if tags is not None and tags.payload else None


def tagged(tags: Tags | None, message: bytes) -> bytes:
    """A message that is sent next, and its tag where there is one."""
    return message if tags is None else message + tags.of((message,))


def send(line: Connection, message: bytes) -> None:
    """Send a message and its tag."""
    line.send_bytes(tagged(tags_of(line), message))


def receive(line: Connection) -> bytes:
    """The next message; FrameError if its tag is wrong."""
    message, tags = line.recv_bytes(), tags_of(line)
    if tags is None:
        return message
    tags.check(message[-TAG_BYTES:], (message[:-TAG_BYTES],))
    return message[:-TAG_BYTES]


def _tag(key: bytes, number: int, parts: Iterable[Bytes]) -> bytes:
    found = blake2b(number.to_bytes(8, "little"), key=key, digest_size=TAG_BYTES)
    for part in parts:
        found.update(part)
    return found.digest()
