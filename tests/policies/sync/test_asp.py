"""ASP against a trace by hand."""

from __future__ import annotations

from simulate import simulate

from pslab.policies.sync.asp import ASP


def test_asp_vector():
    trace = simulate(ASP(), [2, 3], 12)
    assert trace.pushes == {0: [2, 4, 6, 8, 10, 12], 1: [3, 6, 9, 12]}
    assert trace.waited == {0: 0, 1: 0}
