"""Several servers on real processes: the same weights, and what happens when one of them dies or stands still."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np
import pytest
from tiny import tiny

from pslab.engines.execute import execute
from pslab.engines.job.wire import WHOLE, Gradient, Wanted, pack, unpack
from pslab.engines.local.stores import frame_of, number_of, order_of
from pslab.engines.processes import pool as pools
from pslab.engines.server.store import Work
from pslab.errors import WorkerDied
from pslab.lab.judge.tables import tables_of
from pslab.lab.runs.calibrate import calibrated
from pslab.lab.runs.resolve import resolve
from pslab.lab.runs.run import run
from pslab.protocol.messages import NO_WORKER, Pull, Push
from pslab.protocol.server import Discard, Reply, Step
from pslab.protocol.store import Forget, Snapshot

PUSHES = tuple(Push(worker, 1, 3, 2, Gradient(WHOLE, 965, 0.5, 0.1), 1) for worker in range(2))
LINKS = {"bandwidth_bit_s": 1e8, "latency_s": 1e-3, "server_bandwidth_bit_s": 1e8, "compute_s": 2e-3}


@pytest.mark.parametrize(
    ("order", "work"),
    [(Step(1, PUSHES, True, 4), Work(0.25, [2, 3, 3])), (Snapshot(3), Work()), (Forget(2), Work()),
     (Reply(Pull(1, 1, 4, 2, Wanted(3, 9, 0.1)), 4, NO_WORKER), Work())],
)  # fmt: skip
def test_an_order_is_read_as_it_was_written(order: Any, work: Work):
    assert order_of(list(unpack(pack(frame_of(order, work))))) == (order, work)


def test_for_what_is_dropped_nothing_is_to_be_done():
    assert order_of(frame_of(Discard(1, PUSHES[0]), Work()))[0] is None


@pytest.mark.parametrize("fields", [{}, {"cluster": LINKS, "prune": "static:5%", "pull": "changed"}], ids=str)
def test_bsp_ends_with_the_weights_of_one_server(fields: dict[str, Any]):
    expected = execute(resolve(tiny(engine="virtual", workers=2, **{**fields, "cluster": LINKS})), lambda news: None)
    for servers in (1, 2, 4):
        wanted = tiny(workers=2, servers=servers, **fields)
        outcome = execute(resolve(wanted), lambda news: None)
        assert outcome.weights.tobytes() == expected.weights.tobytes()
        assert np.array_equal(outcome.accuracy[:, [0, 2, 3]], expected.accuracy[:, [0, 2, 3]])
        assert tables_of(wanted, outcome)[2]["verdict"] == "valid"


@pytest.mark.parametrize("fields", [{"sync": "asp", "ranges": "layers"},
                                    {"sync": "eager:2", "cluster": LINKS}], ids=str)  # fmt: skip
def test_histories_without_a_barrier_are_valid(fields: dict[str, Any]):
    wanted = tiny(workers=2, servers=2, **fields)
    facts = tables_of(wanted, execute(resolve(wanted), lambda news: None))[2]
    assert (facts["verdict"], facts.get("violations")) == ("valid", None)
    assert facts["pushes"] == 40


@pytest.mark.parametrize(("on_death", "by", "words"), [
    ("continue", signal.SIGKILL, "is gone"),
    pytest.param("stop", signal.SIGSTOP, "was stopped by a signal", marks=pytest.mark.slow),
])  # fmt: skip
def test_a_server_that_dies_ends_the_run_by_name(on_death: str, by: int, words: str):
    wanted = tiny(workers=2, servers=2, sync="asp", pushes=10**6, on_death=on_death, lease_s=1.0,
                  cluster={"compute_s": 1e-3}, eval_every=40)  # fmt: skip
    sent = list[int]()

    def on_progress(news: dict[str, Any]) -> None:
        if news.get("pushes", 0) > 40 and not sent and pools._kept is not None:
            sent.append(pools._kept.processes[number_of(2, 1)].pid)
            os.kill(sent[0], by)

    with pytest.raises(WorkerDied, match=f"server 1 of 2 {words}") as raised:
        execute(resolve(wanted), on_progress)
    outcome = raised.value.outcome
    assert outcome is not None
    assert outcome.facts["pushes"] >= 40
    assert len(outcome.pushes) > 40
    assert len(outcome.accuracy) > 1
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
