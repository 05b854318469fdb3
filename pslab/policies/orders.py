"""Request orders: which of a worker's ready requests goes next?"""

from __future__ import annotations

from dataclasses import dataclass

from pslab.protocol.pool import Request, View


@dataclass(frozen=True)
class FIFO:
    """First in, first out: the request that became ready first.

    Source: Tsai (thesis report 2018).
    Example: fifo
    """

    def pick(self, ready: tuple[Request, ...], view: View) -> Request:
        return ready[0]
