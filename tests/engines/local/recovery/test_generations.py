"""Two generations of a checkpoint in shared memory: whatever is killed in the midst of it, one is whole."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from pslab.engines.experiment.checkpoint.file import pack
from pslab.engines.experiment.checkpoint.flatten import flatten
from pslab.engines.experiment.shared_memory import Arena
from pslab.engines.local.recovery.generations import Generations, newest


def generations() -> Generations:
    found = Generations((Arena(), Arena()))
    found.clear()
    return found


def part(number: int, **facts: object) -> list[memoryview]:
    return pack({"number": number, **facts}, flatten([np.full(100, number)], {}))


def whole(*each: Generations) -> tuple[int, object] | None:
    """The number of the newest checkpoint, and that which its first part has as a fact."""
    found = newest(each)
    return None if found is None else (found.number, found.facts["number"])


def test_the_newer_generation_stays_whole_while_the_older_is_written(monkeypatch: pytest.MonkeyPatch):
    found = generations()
    assert whole(found) is None
    for number in (1, 2):
        found.write(number, part(number))
        assert whole(found) == (number, number)

    def broken() -> Iterator[memoryview]:
        yield from part(3)[:1]
        raise KeyboardInterrupt

    class Breaking(list[memoryview]):
        armed = False

        def __iter__(self) -> Iterator[memoryview]:
            return broken() if self.armed else super().__iter__()

    half = Breaking(part(3))
    monkeypatch.setattr(Arena, "reserve", lambda self, size_bytes: setattr(half, "armed", True))
    with pytest.raises(KeyboardInterrupt):
        found.write(3, half)
    assert whole(found) == (2, 2)


def test_a_part_counts_when_it_has_its_number():
    found = generations()
    found.write(1, part(1))
    found.lay(2, part(2))
    assert whole(found) == (1, 1)
    found.complete(2)
    assert whole(found) == (2, 2)


def test_a_damaged_generation_is_passed_over():
    found = generations()
    for number in (1, 2):
        found.write(number, part(number))
    found._arenas[0].bytes(200, 1)[0] ^= 1  # of the second, whose number is even
    assert whole(found) == (1, 1)


def test_a_checkpoint_is_whole_if_every_server_has_its_part():
    each = decider, *others = [generations() for _ in range(3)]
    for own in each:
        own.write(1, part(1))
    others[0].write(2, part(2))
    decider.lay(2, part(2))
    assert whole(*each) == (1, 1)  # the decider was killed, or one of the others was
    others[1].write(2, part(2))
    decider.complete(2)
    others[0].write(3, part(3))  # the next one was begun
    assert whole(*each) == (2, 2)
    decider.write(3, part(3))  # of which the last one has no part
    assert whole(*each) == (2, 2)
    found = newest(each)
    assert found is not None
    assert [bytes(p) for p in found.parts] == [b"".join(part(2))] * 3


def test_a_part_of_a_checkpoint_that_never_was_whole_is_written_over():
    """All went back to the first one, of which the parts must stay whole until all have the next."""
    each = decider, other = [generations() for _ in range(2)]
    for own in each:
        own.write(1, part(1))
    other.write(2, part(2, life="before"))
    other.lay(2, part(2))
    assert whole(*each) == (1, 1)
    other.complete(2)
    decider.write(2, part(2))
    assert whole(*each) == (2, 2)
