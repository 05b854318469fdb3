"""SSP's bound, and one event at a time."""

from __future__ import annotations

import pytest
from driven import Driven
from simulate import simulate

from pslab.policies.sync.ssp import SSP
from pslab.protocol.messages import Apply, Start


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_ssp_lead_is_the_staleness_plus_the_push_itself(staleness):
    # a worker may start an iteration `staleness` ahead of the slowest; once pushed it counts as done
    assert simulate(SSP(staleness), [1, 10], 100).gap_max == staleness + 1


def test_ssp_releases_waiting_workers_when_the_slowest_leaves():
    driven = Driven(SSP(1), 2)
    assert [driven.push(0), driven.push(0)] == [(Apply(0, 0),), (Apply(0, 1),)]
    assert driven.ask(0) == ()
    assert driven.leave(1) == (Start(0, 2),)


def test_ssp_never_starts_a_worker_that_left():
    driven = Driven(SSP(0), 3)
    driven.push(0)
    assert driven.ask(0) == driven.leave(0) == ()
    assert driven.state == ()
