"""The ranges that an iteration exchanges: all of them, or fragments of the model in turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Rotation(NamedTuple):
    """Iteration i exchanges fragment i mod `fragments`, to which every range of such a number belongs.

    A range's turns are the iterations that exchange it, numbered from 0: its clocks and its window count these. Of one
    fragment an iteration and a turn have the same number.
    """

    fragments: int = 1

    def turn(self, index: int, iteration: int) -> int:
        """How many turns of a range come before an iteration."""
        if self.fragments == 1:
            return iteration
        return -((index % self.fragments - iteration) // self.fragments)

    def iteration(self, index: int, turn: int) -> int:
        """The iteration of a range's turn."""
        if self.fragments == 1:
            return turn
        return index % self.fragments + turn * self.fragments

    def joined(self, index: int, turns: int) -> int:
        """The first iteration before which a range has had so many turns."""
        return self.iteration(index, turns - 1) + 1 if turns else 0

    def complete(self, turns: Sequence[int]) -> int:
        """How many iterations are complete, whose ranges have had so many turns."""
        return sum(min(turns[fragment :: self.fragments]) for fragment in range(self.fragments))

    def ranges(self, iteration: int, count: int) -> range:
        """The ranges, of so many, that an iteration exchanges."""
        return range(iteration % self.fragments, count, self.fragments)


ALL = Rotation()  # each iteration exchanges every range
