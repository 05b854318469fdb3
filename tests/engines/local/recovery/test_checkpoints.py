"""When a checkpoint of several servers is begun, and when it is whole."""

from __future__ import annotations

from typing import Any

from contexts import context_of_a_server
from hypothesis import given
from hypothesis import strategies as st

from pslab.engines.local.recovery.checkpoints import CheckpointParts
from pslab.engines.local.recovery.server_state import ServerCheckpoints
from pslab.engines.server.clock import WallClock


@given(st.permutations([0, 0, 0, 1, 1, 1, 2, 2, 2]))
def test_the_newest_checkpoint_is_the_last_one_of_which_every_server_has_sent_its_part(order: list[int]):
    """Each server sends its parts one after another; all others may be ahead of it or behind."""
    found, sent = CheckpointParts((7, 8, 9)), [0, 0, 0]
    for server in order:
        sent[server] += 1
        before = found.newest
        whole = found.take(7 + server, {"number": sent[server], "facts": {"number": sent[server], "server": server}},
                           memoryview(b"part"))  # fmt: skip
        assert (0 if found.newest is None else found.newest.facts["number"]) == min(sent)
        assert (whole is None) == (found.newest is before)
    assert found.newest is not None
    assert found.newest.facts["server"] == 0


def test_parts_from_before_all_went_back_do_not_count():
    found = CheckpointParts((0, 1))
    part = {"number": 1, "facts": {}}, memoryview(b"part")
    assert found.take(0, *part) is None
    found.forget_torn()
    assert found.take(1, *part) is None
    assert found.take(0, *part) is not None


def test_a_server_begins_no_other_checkpoint_before_the_parent_has_one_whole():
    job, context, _ = context_of_a_server(servers=3, on_death="restart", checkpoint_every=4)
    transport: Any = object()
    clock = WallClock()
    found = ServerCheckpoints(job, context, transport, clock, [], [])
    state = found.first()
    machine = state.driver.machine
    machine.gradients = 4
    assert found.due(machine)
    found.begin(state)
    machine.gradients = 8
    assert not found.due(machine)
    found.whole()
    assert found.due(machine)
