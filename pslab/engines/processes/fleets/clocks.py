"""How far two monotonic clocks are apart, by messages between them.

A message that is answered with the other clock's instant bounds their difference by half its round trip, whichever of
its two ways took longer; of several the shortest one bounds it best (Cristian, Distributed Computing 3, 1989).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Offset(NamedTuple):
    """What another clock shows more than one's own, in seconds, and how far off that may be."""

    seconds: float
    bound_s: float


SAME = Offset(0.0, 0.0)  # of processes that read one clock


def offset(pings: Iterable[tuple[float, float, float]]) -> Offset:
    """The difference of two clocks from pings: each was sent and its answer received at these instants of one's own,
    and the other showed the middle number meanwhile. Two that agree within the bound are one: those of one machine.
    ValueError if there is none."""
    sent_s, theirs_s, received_s = min(pings, key=lambda ping: ping[2] - ping[0])
    found = Offset(theirs_s - (sent_s + received_s) / 2, (received_s - sent_s) / 2)
    return SAME if abs(found.seconds) <= found.bound_s else found
