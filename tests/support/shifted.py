"""A process whose monotonic clock shows another time than those of the others, as on another machine."""

from __future__ import annotations

import time

from pslab.engines.processes.fleets import loopback

AHEAD_S = 1000.0
FASTER = 0.05  # seconds that such a clock gains in a second
_begin = loopback.begin


def begin(number: int, way: loopback.Rendezvous) -> None:
    """As the fleet's own, but for the clock of each worker, from before anything has looked at it: it is ahead, and
    goes faster, by twice as much at worker 1."""
    if number >= 0:
        real, start_s, faster = time.monotonic, time.monotonic(), FASTER * (1 + number)
        time.monotonic = lambda: real() + AHEAD_S + faster * (real() - start_s)
    _begin(number, way)
