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
