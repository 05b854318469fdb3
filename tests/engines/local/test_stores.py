"""Several servers on real processes: the same weights, and what happens when one of them dies or stands still."""

from __future__ import annotations

import signal
import time
from multiprocessing import Pipe
from typing import Any

import numpy as np
import pytest
import torch
from conducted import Signals, conduct, judged, quiet
from contexts import context_of_a_server
from tiny import tiny

from pslab.engines.execute import execute
from pslab.engines.experiment.wire import WHOLE, Carried, PushInfo, Stop, Wanted, pack, unpack
from pslab.engines.local.lines.stream import Stream
from pslab.engines.local.remote_store import RemoteStore
from pslab.engines.local.store import LocalStore, frame_of, order_of
from pslab.engines.processes import pool as pools
from pslab.engines.processes.channel import ALIVE
from pslab.engines.processes.child import number_of
from pslab.engines.processes.watch import LOOKS
from pslab.engines.server.clock import WallClock
from pslab.engines.server.store import Work
from pslab.errors import WorkerDied
from pslab.lab.runs.calibrate import calibrated
from pslab.lab.runs.resolve import resolve
from pslab.lab.runs.run import run
from pslab.protocol.messages import NO_WORKER, Pull, Push
from pslab.protocol.server import Discard, Reply, Step
from pslab.protocol.store import Forget, Keep, Snapshot

PUSHES = tuple(Push(worker, 1, 3, 2, PushInfo(WHOLE, 965, 0.5, 0.1), 1) for worker in range(2))
LINKS = {"bandwidth_bit_s": 1e8, "latency_s": 1e-3, "server_bandwidth_bit_s": 1e8, "compute_s": 2e-3}


@pytest.mark.parametrize(
    ("order", "work"),
    [(Step(1, PUSHES, True, 4), Work(0.25, [2, 3, 3])), (Snapshot(3), Work()), (Forget(2), Work()), (Keep(7), Work()),
     (Reply(Pull(1, 1, 4, 2, Wanted(3, 9, 0.1)), 4, NO_WORKER), Work())],
)  # fmt: skip
def test_an_order_is_read_as_it_was_written(order: Any, work: Work):
    found = order_of(list(unpack(pack(frame_of(order, work)))))
    assert (type(found[0]), found) == (type(order), (order, work))


def test_for_what_is_dropped_nothing_is_to_be_done():
    assert order_of(frame_of(Discard(1, PUSHES[0]), Work()))[0] is None


def stepped(store: LocalStore, line: Stream, *orders: Any) -> list[Any]:
    """What comes of these orders, and the end of the run."""
    for order in orders:
        line.send(frame_of(order, Work(0.1, [])))
    line.send([Stop(0)])
    store.run(1.0)
    *done, last = (message for frame in line.frames() for message in frame)
    assert last == Stop(0)
    return done


def test_a_store_goes_on_from_its_part_of_a_checkpoint():
    job, context, line = context_of_a_server(optimizer="sgd:momentum=0.5", pull="changed", prune="none")
    layout, (piece,) = job.layout, job.held[1]
    weights = context.arena.tensor(layout.server, layout.size, layout.dtype)
    context.arena.tensor(layout.gradients[0][0], layout.size, layout.dtype).uniform_(-1, 1)
    payload = PushInfo(WHOLE, job.parts[1].size, 0.5, 0.1)
    first, second = (Step(1, (Push(0, 1, version, version, payload, 0),), False, version + 1) for version in range(2))
    done = stepped(LocalStore(context, job, 1), line, first, Keep(7), second)
    assert [type(message) for message in done] == [Carried, Carried, Carried]
    part = next(said for said in context.parent.reports() if said.kind == "part")  # type: ignore[attr-defined]
    assert part.body == {"number": 7, "facts": {}}
    after = weights.clone()
    weights.zero_()
    again = LocalStore(context, job, 1, bytearray(part.content))
    assert not torch.equal(weights[piece], after[piece])
    assert not weights[: piece.start].any()  # another server's
    stepped(again, line, second)
    assert torch.equal(weights[piece], after[piece])


def test_a_store_that_always_has_something_to_do_says_that_it_lives(monkeypatch: pytest.MonkeyPatch):
    """Orders come closer together than its signs of life, and take no CPU time that the system counts."""
    job, context, line = context_of_a_server()
    now_s, store = time.monotonic(), LocalStore(context, job, 1)
    for turn in range(4 * LOOKS):
        monkeypatch.setattr(time, "monotonic", lambda now_s=now_s + turn * job.run.lease_s / LOOKS / 2: now_s)
        line.send(frame_of(Forget(0), Work()))
        store._turn()
    assert {said.kind for said in context.parent.reports()} == {ALIVE}  # type: ignore[attr-defined]


def test_a_server_is_not_dead_where_its_messages_come_closer_together_than_its_signs_of_life():
    fields = {"workers": 1, "servers": 2, "sync": "asp", "pushes": 14, "cluster": {"compute_s": 0.05}}
    assert conduct(**fields, lease_s=0.3, eval_every=14).facts["pushes"] == 14




def test_a_successor_waits_for_weights_that_are_laid_for_its_predecessor():
    job, context, _ = context_of_a_server()
    pipe = Pipe()
    store = RemoteStore(job, context._replace(pipes=[None, None, pipe[0]]), 1, WallClock())
    store.hand(Reply(Pull(1, 1, 4, 2, Wanted(3, 9, 0.1)), 0, NO_WORKER), Work())
    assert [store.answers(worker) for worker in range(2)] == [False, True]


def test_snapshots_and_weights_of_several_servers_are_those_of_one():
    fields = {"cluster": LINKS, "prune": "threshold:0.01", "pull": "changed"}
    expected, outcome = conduct(engine="virtual", **fields), conduct(servers=4, **fields)
    assert outcome.weights.tobytes() == expected.weights.tobytes()
    assert np.array_equal(outcome.accuracy[:, [0, 2, 3]], expected.accuracy[:, [0, 2, 3]])


@pytest.mark.parametrize("fields", [{"sync": "asp", "ranges": "layers"},
                                    {"sync": "eager:2", "cluster": LINKS}], ids=str)  # fmt: skip
def test_histories_without_a_barrier_are_valid(fields: dict[str, Any]):
    wanted = tiny(workers=2, servers=2, **fields)
    outcome = execute(resolve(wanted), quiet)
    assert judged(wanted, outcome) == {"verdict": "valid"}
    assert outcome.facts["pushes"] == 40


@pytest.mark.parametrize(("on_death", "by", "words"), [
    ("continue", signal.SIGKILL, "is gone"),
    pytest.param("stop", signal.SIGSTOP, "was stopped by a signal", marks=pytest.mark.slow),
])  # fmt: skip
def test_a_server_that_dies_ends_the_run_by_name(on_death: str, by: int, words: str):
    signals = Signals(number_of(2, 1), by, after=40)
    with pytest.raises(WorkerDied, match=f"server 1 of 2 {words}") as raised:
        conduct(signals, servers=2, sync="asp", pushes=10**6, on_death=on_death, lease_s=1.0, eval_every=40,
                cluster={"compute_s": 1e-3})  # fmt: skip
    outcome = raised.value.outcome
    assert outcome is not None
    assert outcome.facts["pushes"] >= 40
    assert len(outcome.pushes) > 40
    assert len(outcome.weights) == 1930
    assert pools._kept is None  # no process is left


@pytest.mark.slow
def test_virtual_time_is_that_of_real_processes_with_two_servers(tmp_path):
    cluster = {"compute_s": 0.02, "bandwidth_bit_s": 1e7, "server_bandwidth_bit_s": 1e7, "latency_s": 2e-3}
    wanted = tiny(workers=2, servers=2, pushes=200, cluster=cluster, dilation="auto")
    local = run(wanted, results=tmp_path, progress=False)
    assert local.manifest["emulation_ok"]
    virtual = run(local.run.but(engine="virtual", cluster=calibrated(local)), results=tmp_path, progress=False)
    assert virtual.manifest["seconds"] == pytest.approx(local.manifest["seconds"], rel=0.1)
    assert np.array_equal(virtual.weights, local.weights)
