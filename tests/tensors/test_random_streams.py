"""Random streams are pinned: if one of these numbers changes, no recorded run can be repeated."""

from __future__ import annotations

import copy
import gc
import random
from typing import Any

import numpy as np
import pytest
import torch
from tiny import global_states

from pslab.tensors.random_streams import (
    Generators,
    generator,
    numpy_generator,
    restored_globals,
    seed_globals,
    seed_of,
)


def test_streams_are_pinned_and_each_name_is_another_one() -> None:
    assert seed_of(0) == 7_520_536_977_032_167_579
    assert seed_of(7, "epoch", 3) == 6_137_592_112_203_514_467
    assert numpy_generator(0, "epoch", 0).permutation(8).tolist() == [0, 7, 5, 1, 3, 2, 6, 4]
    before = torch.random.get_rng_state()
    assert torch.randperm(8, generator=generator(0, "epoch", 0)).tolist() == [4, 6, 0, 2, 1, 3, 5, 7]
    assert torch.equal(before, torch.random.get_rng_state())
    seeds = [seed_of(0, "x", i) for i in range(1000)]
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert (max(seeds) > 2**62, len(set(seeds))) == (True, 1000)
    streams = [(0, "a", "b"), (0, "ab"), (0, "a", 1), (0, "a1"), (0, 1), (0, "1"), (0, "a,b"), (1, "a"), (0, "a"),
               (0, 1, "a")]  # fmt: skip
    assert len({seed_of(*names) for names in streams}) == len(streams)
    assert seed_of(np.int64(3), "epoch", np.int64(4)) == seed_of(3, "epoch", 4)
    with pytest.raises(TypeError):
        seed_of(0, 1.5)  # type: ignore[arg-type]


def test_global_generators_start_at_pinned_streams_of_their_own_and_are_restored() -> None:
    def draw(*names: str | int) -> tuple[float, ...]:
        seed_globals(3, *names)
        return random.random(), np.random.rand(), float(torch.rand((), dtype=torch.float64))

    before = global_states()
    with restored_globals():
        first, again, other = draw("layers", 0, 1), draw("layers", 0, 1), draw("layers", 0, 2)
        assert len({*first, *other}) == 6
        assert first == again
        assert global_states() != before
        seed_globals(0, "layers", 1, 2)
        assert torch.initial_seed() == seed_of(0, "layers", 1, 2)
        assert (random.randrange(10**6), np.random.randint(10**6)) == (360008, 75674)
    assert global_states() == before


class Holder:
    """Holds a generator and a number, nothing that Python's garbage collector tracks."""

    def __init__(self) -> None:
        self.draw, self.count = torch.Generator(), 3


@pytest.mark.parametrize("make", [Holder, lambda: copy.deepcopy(Holder()), lambda: [({"a": (torch.Generator(), 1)},)]],
                         ids=["object", "copy", "containers"])  # fmt: skip
def test_generators_are_found_in_what_python_does_not_track(make: Any) -> None:
    holder = make()
    gc.collect()  # which ends the tracking of such tuples
    held = holder.draw if isinstance(holder, Holder) else holder[0][0]["a"][0]
    Generators(holder).seed(5, "x")
    first = held.initial_seed()
    Generators(holder).seed(6, "x")
    assert held.initial_seed() != first
