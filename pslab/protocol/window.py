"""The sliding window of valid iterations (Tsai, slides 2017; equals SSP with staleness = length - 1).

For each valid iteration it counts the workers that have pushed it; the iteration at the low bound leaves when all of
them have. A push costs O(1), the low bound O(1), memory O(length), whatever the number of workers. At most one shift
follows a push: the worker that completes the low bound has not yet pushed the iteration behind it. Without a length
every iteration from the low bound on is valid, and memory is O(lead of the fastest worker).
"""

from __future__ import annotations

from pslab.errors import ProtocolError


class Window:
    """The clocks of one key range: how many workers have pushed which iterations."""

    __slots__ = ("base", "counts", "length", "members")

    def __init__(self, members: int, length: int | None) -> None:
        if members < 1 or (length is not None and length < 1):
            raise ProtocolError(f"a window needs members and a length of at least 1, not {members} and {length}")
        self.members, self.length = members, length
        self.base = 0  #: the low bound: the least clock of all workers
        self.counts: dict[int, int] = {}

    def valid(self, iteration: int) -> bool:
        """May a push of this iteration be counted?"""
        return self.base <= iteration and (self.length is None or iteration < self.base + self.length)

    def push(self, iteration: int) -> bool:
        """Count a push; True if the low bound moved.

        Raises:
            ProtocolError: the iteration is not valid; nothing was counted.
        """
        if not self.valid(iteration):
            raise ProtocolError(f"iteration {iteration} is outside the window [{self.base}, {self.base}+{self.length})")
        count = self.counts.get(iteration, 0) + 1
        if iteration == self.base and count == self.members:
            self.counts.pop(iteration, None)
            self.base += 1
            return True
        self.counts[iteration] = count
        return False

    def leave(self, clock: int) -> bool:
        """A member whose next iteration is `clock` is gone; True if the low bound moved, or if nobody is left."""
        if clock < self.base:
            raise ProtocolError(f"a member with clock {clock} below the low bound {self.base} cannot leave")
        for iteration in range(self.base, clock):
            self._lower(iteration)
        self.members -= 1
        before = self.base
        while self.members > 0 and self.counts.get(self.base, 0) == self.members:
            del self.counts[self.base]
            self.base += 1
        return self.base > before or not self.members

    def join(self, clock: int) -> None:
        """A member is there whose next iteration is `clock`, from the low bound on: it counts as having pushed those
        before."""
        if clock < self.base:
            raise ProtocolError(f"a member cannot join with clock {clock}, below the low bound {self.base}")
        if not self.members:
            self.base = clock  # nobody is there to push what is behind
        self.members += 1
        for iteration in range(self.base, clock):
            self.counts[iteration] = self.counts.get(iteration, 0) + 1

    def _lower(self, iteration: int) -> None:
        count = self.counts[iteration] - 1
        if count:
            self.counts[iteration] = count
        else:
            del self.counts[iteration]
