"""Rules that hold of every synchronization policy, and how the policies compare."""

from __future__ import annotations

import numpy as np
import pytest
from simulate import simulate
from tiny import tiny

from pslab.config.spec import build
from pslab.errors import ProtocolError
from pslab.lab.runs.run import run
from pslab.policies.sync.asp import ASP
from pslab.policies.sync.backup import Backup
from pslab.policies.sync.bsp import BSP
from pslab.policies.sync.dssp import DSSP
from pslab.policies.sync.elastic import ElasticBSP
from pslab.policies.sync.ssp import SSP
from pslab.protocol.messages import Asked, Start

PRUNED = {"prune": "static:5%", "pull": "changed"}
SPEEDS = [1.0, 1.37, 2.11, 2.9]
POLICIES = [BSP(), SSP(1), SSP(3), ASP(), Backup(1), DSSP(1, 4), DSSP(grant="literal"), ElasticBSP(3),
            ElasticBSP(3, include_last=True)]  # fmt: skip


@pytest.mark.parametrize(("sync", "compute_s", "until_s", "pushes", "waited"), [
    (ASP(), [2, 3], 12, [[2, 4, 6, 8, 10, 12], [3, 6, 9, 12]], [0, 0]),
    (BSP(), [2, 3], 12, [[2, 5, 8, 11], [3, 6, 9, 12]], [4, 0]),
    (SSP(1), [1, 4], 16, [[1, 2, 5, 9, 13], [4, 8, 12, 16]], [11, 0]),
    (SSP(1), [2, 3], 12, [[2, 4, 6, 8, 11], [3, 6, 9, 12]], [2, 0]),
])  # fmt: skip
def test_traces_by_hand(sync, compute_s, until_s, pushes, waited):
    """When each worker pushes, and how long it waits."""
    trace = simulate(sync, compute_s, until_s)
    assert (trace.pushes, trace.waited) == (dict(enumerate(pushes)), dict(enumerate(waited)))
    rounds = [[(push.worker, push.iteration) for push in step.pushes] for step in trace.steps if step.aggregate]
    assert rounds == ([[(0, t), (1, t)] for t in range(4)] if sync == BSP() else [])


@pytest.mark.parametrize("ranges", [1, 3])
@pytest.mark.parametrize("sync", POLICIES, ids=repr)
def test_duplicate_messages_change_nothing(sync, ranges):
    for compute_s in ([2, 3, 5], [1, 4], SPEEDS):
        once, twice = (simulate(sync, compute_s, 60, ranges=ranges, copies=copies) for copies in (1, 2))
        assert (twice.pushes, twice.waited, twice.searched) == (once.pushes, once.waited, once.searched)
        assert [step.pushes for step in twice.steps] == [step.pushes for step in once.steps]
        assert twice.dropped == once.dropped
        assert twice.refused
        assert not once.refused


@pytest.mark.parametrize("sync", POLICIES, ids=repr)
def test_the_number_of_ranges_does_not_change_when_workers_start(sync):
    assert simulate(sync, [2, 3], 60, ranges=4).pushes == simulate(sync, [2, 3], 60).pushes


@pytest.mark.parametrize("ranges", [1, 2])
@pytest.mark.parametrize("compute_s", [[1, 4], [2, 3, 7], [1, 1, 1, 5]], ids=str)
@pytest.mark.parametrize(
    ("sync", "limit"), [(BSP(), SSP(0)), (BSP(), Backup(0)), (SSP(2), DSSP(2, 0))], ids=repr
)  # fmt: skip
def test_policies_are_equal_in_the_limit(sync, limit, compute_s, ranges):
    ours, theirs = (simulate(each, compute_s, 60, ranges=ranges) for each in (sync, limit))
    assert (ours.pushes, ours.waited) == (theirs.pushes, theirs.waited)
    assert not theirs.dropped


@pytest.mark.parametrize(("sync", "limit", "fields"), [
    ("backup:0", "bsp", PRUNED), ("local:1", "bsp", {**PRUNED, "schedule": "linear"}),
    ("local:1", "bsp", {"optimizer": "adam"}), ("downpour", "asp", PRUNED), ("downpour", "asp", {"optimizer": "adam"}),
    ("average:1", "local:4", {"batch_size": 64, "pushes": 32}),  # a pass of a worker's quarter of the data
], ids=str)  # fmt: skip
def test_whole_runs_are_equal_in_the_limit(tmp_path, sync, limit, fields):
    ours, theirs = (
        run(tiny(engine="virtual", sync=each, cluster="steady", **fields), results=tmp_path, progress=False)
        for each in (sync, limit)
    )
    assert np.array_equal(ours.weights, theirs.weights)
    assert ours.pushes.equals(theirs.pushes)
    assert (ours.manifest["verdict"], ours.manifest["dropped"]) == ("valid", 0)


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_ssp_lead_is_the_staleness_plus_the_push_itself(staleness):
    # a worker may start an iteration `staleness` ahead of the slowest; once pushed it counts as done
    assert simulate(SSP(staleness), [1, 10], 100).gap_max == staleness + 1


@pytest.mark.parametrize(("compute_s", "totals"), [
    ([1, 3], {BSP(): 200, SSP(3): 203, SSP(15): 215, ASP(): 400, DSSP(): 204, DSSP(grant="literal"): 393}),
    (SPEEDS, {BSP(): 413, SSP(3): 422, ASP(): 763, ElasticBSP(15): 754}),
], ids=["two", "four"])  # fmt: skip
def test_pushes_in_300_s_of_a_heterogeneous_cluster(compute_s, totals):
    assert {sync: sum(map(len, simulate(sync, compute_s, 300).pushes.values())) for sync in totals} == totals


class NeverStarts(SSP):
    def step(self, state, event, clocks):
        return state, tuple(d for d in super().step(state, event, clocks)[1] if not isinstance(d, Start))


class AlwaysStarts(SSP):
    def step(self, state, event, clocks):
        if isinstance(event, Asked):
            return state, (Start(event.worker, event.iteration),)
        return super().step(state, event, clocks)


class StartsWorkerZero(ASP):
    def step(self, state, event, clocks):
        return state, (Start(0, 1),)


def test_broken_policies_are_noticed():
    assert {w: len(p) for w, p in simulate(NeverStarts(1), [1, 4], 100).pushes.items()} == {0: 1, 1: 1}
    assert simulate(AlwaysStarts(1), [1, 4], 100).refused  # the window does not count a push beyond the bound
    with pytest.raises(ProtocolError, match="no worker asked for"):
        simulate(StartsWorkerZero(), [1, 2], 10)


@pytest.mark.parametrize(("text", "sync", "window"), [
    ("dssp", DSSP(3, 12), 16), ("dssp:3,12", DSSP(3, 12), 16),
    ("dssp:1,2,grant=literal", DSSP(1, 2, "literal"), None), ("dssp:1,2,cap=off", DSSP(1, 2, cap=False), None),
    ("dssp:1,2,literal,cap=on", DSSP(1, 2, "literal", cap=True), 4),
    ("elastic", ElasticBSP(15), None), ("elastic:15", ElasticBSP(15), None),
    ("elastic:4,lru,predict=median,k=3,include_last=on", ElasticBSP(4, "lru", "median", 3, include_last=True), None),
])  # fmt: skip
def test_strings_name_policies_and_their_windows(text, sync, window):
    assert build("sync", text) == sync
    assert sync.window == window
