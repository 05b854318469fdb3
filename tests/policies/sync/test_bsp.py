"""BSP against a trace by hand, and one event at a time."""

from __future__ import annotations

from driven import Driven
from simulate import simulate

from pslab.policies.sync.bsp import BSP
from pslab.protocol.messages import Aggregate, Start


def test_bsp_vector():
    trace = simulate(BSP(), [2, 3], 12)
    assert trace.pushes == {0: [2, 5, 8, 11], 1: [3, 6, 9, 12]}
    assert trace.waited == {0: 4, 1: 0}
    assert [(step.aggregate, [(p.worker, p.iteration) for p in step.pushes]) for step in trace.steps] == [
        (True, [(0, t), (1, t)]) for t in range(4)
    ]


def test_a_round_ends_when_the_missing_worker_leaves():
    driven = Driven(BSP(), 2)
    assert driven.push(0) == driven.ask(0) == ()
    assert driven.leave(1) == (Aggregate(((0, 0),)), Start(0, 1))
    assert driven.state == ((), ())


def test_what_an_event_copies_does_not_grow_with_the_workers():
    """A message of 1,024 workers costs what one of 4 does: most of a state is that of the one before."""
    driven, before = Driven(BSP(), 1024), set[int]()
    for worker in range(1023):
        driven.push(worker)
        driven.ask(worker)
        chunks = [chunk for held in driven.state for chunk in held]
        assert sum(len(chunk) for chunk in chunks if id(chunk) not in before) + len(chunks) <= 128
        before = {id(chunk) for chunk in chunks}
    assert driven.push(1023)[0] == Aggregate(tuple((worker, 0) for worker in range(1024)))
