"""The sliding window of valid iterations (Tsai, slides 2017; equals SSP with staleness = length - 1).

For each valid iteration the window counts the workers that have pushed it; the low bound rises when all workers have
pushed the iteration at it. A push and the low bound cost O(1), memory is O(length), for any number of workers. A
push raises the low bound by at most one: the worker that completes an iteration has not yet pushed the next one.
Without a length every iteration from the low bound on is valid, and memory is O(lead of the fastest worker).
"""

from __future__ import annotations

from pslab.errors import ProtocolError


class Window:
    """The clocks of one key range: how many workers have pushed which iterations."""

    __slots__ = ("base", "counts", "length", "members")

    def __init__(self, members: int, length: int | None) -> None:
        if members < 1 or (length is not None and length < 1):
            raise ProtocolError(f"a window of {members} workers and length {length}: both must be at least 1")
        self.members, self.length = members, length
        self.base = 0  #: the low bound: the least clock of all workers
        self.counts: dict[int, int] = {}

    def valid(self, iteration: int) -> bool:
        """Whether a push of this iteration may be counted."""
        return self.base <= iteration and (self.length is None or iteration < self.base + self.length)

    def push(self, iteration: int) -> bool:
        """Count a push; return whether the low bound rose.

        Raises:
            ProtocolError: the iteration is not valid; nothing was counted.
        """
        if not self.valid(iteration):
            raise ProtocolError(f"iteration {iteration} is outside the window: start {self.base}, length {self.length}")
        count = self.counts.get(iteration, 0) + 1
        if iteration == self.base and count == self.members:
            self.counts.pop(iteration, None)
            self.base += 1
            return True
        self.counts[iteration] = count
        return False

    def leave(self, clock: int) -> bool:
        """Remove a member whose next iteration is `clock`; return whether the low bound rose or no member remains."""
        if clock < self.base:
            raise ProtocolError(f"a member cannot leave with clock {clock}, below the low bound {self.base}")
        for iteration in range(self.base, clock):
            self._lower(iteration)
        self.members -= 1
        before = self.base
        while self.members > 0 and self.counts.get(self.base, 0) == self.members:
            del self.counts[self.base]
            self.base += 1
        return self.base > before or not self.members

    def join(self, clock: int) -> None:
        """Add a member whose next iteration is `clock`; its earlier iterations count as pushed."""
        if clock < self.base:
            raise ProtocolError(f"a member cannot join with clock {clock}, below the low bound {self.base}")
        if not self.members:
            self.base = clock  # no member is left to push the iterations before it
        self.members += 1
        for iteration in range(self.base, clock):
            self.counts[iteration] = self.counts.get(iteration, 0) + 1

    def _lower(self, iteration: int) -> None:
        count = self.counts[iteration] - 1
        if count:
            self.counts[iteration] = count
        else:
            del self.counts[iteration]
