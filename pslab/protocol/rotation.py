"""The ranges that an iteration exchanges: all ranges, or one fragment of the model at a time, in turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Rotation(NamedTuple):
    """Iteration i exchanges fragment i mod `fragments`; range r belongs to fragment r mod `fragments`.

    A range's turns are the iterations that exchange it, numbered from 0; its clocks and its window count turns. With
    one fragment, iterations and turns have the same numbers.
    """

    fragments: int = 1

    def turn(self, index: int, iteration: int) -> int:
        """Return the number of turns of a range before an iteration."""
        if self.fragments == 1:
            return iteration
        return -((index % self.fragments - iteration) // self.fragments)

    def iteration(self, index: int, turn: int) -> int:
        """Return the iteration of a range's turn."""
        if self.fragments == 1:
            return turn
        return index % self.fragments + turn * self.fragments

    def joined(self, index: int, turns: int) -> int:
        """Return the first iteration before which a range has had `turns` turns."""
        return self.iteration(index, turns - 1) + 1 if turns else 0

    def complete(self, turns: Sequence[int]) -> int:
        """Return the number of complete iterations, if the ranges have had these numbers of turns."""
        return sum(min(turns[fragment :: self.fragments]) for fragment in range(self.fragments))

    def ranges(self, iteration: int, count: int) -> range:
        """Return the numbers of the ranges that an iteration exchanges, of a model with `count` ranges."""
        return range(iteration % self.fragments, count, self.fragments)


ALL = Rotation()  # each iteration exchanges every range
