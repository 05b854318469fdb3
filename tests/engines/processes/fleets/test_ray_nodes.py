"""A Ray cluster of several nodes, one of which dies or freezes with everything on it: the run does not."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest
from ray_nodes import Nodes
from tiny import tiny

from pslab.engines.execute import execute
from pslab.engines.experiment.experiment import Outcome
from pslab.engines.processes import pool
from pslab.engines.processes.pool import SERVER
from pslab.errors import WorkerDied
from pslab.lab.judge import tables_of
from pslab.lab.runs.resolve import resolve

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("small_pool")]

DYING: dict[str, Any] = {"workers": 3, "pushes": 300, "sync": "bsp", "cluster": {"compute_s": 0.02}, "lease_s": 3.0,
                         "checkpoint_every": 20}  # fmt: skip
BOTH = [signal.SIGKILL, signal.SIGSTOP]


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    pytest.importorskip("ray")
    pool.release()
    found = Nodes()
    yield found
    pool.release(kill=True)
    found.close()


class Falls:
    """The receiver of a run's news, by which one of the two nodes gets a signal: that with the server, or the other."""

    def __init__(self, nodes: Nodes, by: int, *, decides: bool) -> None:
        self._nodes, self._by, self._decides = nodes, by, decides
        self.on: dict[int, int] = {}  # the node of each process, as it was then
        self.gone: set[int] = set()  # the processes that were on the one

    def __call__(self, news: dict[str, Any]) -> None:
        if news.get("pushes", 0) > 40 and not self.on:
            assert pool._kept is not None
            self.on = {number: self._nodes.of(process) for number, process in pool._kept.processes.items()}
            self.gone = {number for number, on in self.on.items() if (on == self.on[SERVER]) == self._decides}
            self._nodes.signal(self.on[min(self.gone)], self._by)


def fall(nodes: Nodes, by: int, *, decides: bool, per_node: int | None = None, **fields: Any) -> tuple[Falls, Outcome]:
    nodes.fill()
    here = {"place": "ray", "address": nodes.address, "servers_apart": True, "workers_per_node": per_node}
    run, falls = tiny(**{**DYING, **fields}, fleet=here), Falls(nodes, by, decides=decides)
    try:
        outcome = execute(resolve(run), falls)
    finally:
        pool.release(kill=True)
    assert len(set(falls.on.values())) == 2, "processes were on both nodes"
    assert tables_of(run, outcome)[2]["verdict"] == "valid"
    assert outcome.facts["outcome"] == "budget"
    return falls, outcome


@pytest.mark.parametrize("by", BOTH)
def test_the_workers_of_a_node_that_dies_are_replaced_on_another(nodes: Nodes, by: int):
    falls, outcome = fall(nodes, by, decides=False, on_death="restart")
    assert {life["worker"] for life in outcome.facts["lives"]} == falls.gone
    assert all(life["joined"] == life["iteration"] for life in outcome.facts["lives"])


def test_the_others_go_on_without_the_workers_of_a_node_that_dies(nodes: Nodes):
    falls, outcome = fall(nodes, signal.SIGKILL, decides=False, per_node=2, on_death="continue")
    assert {death["worker"] for death in outcome.facts["deaths"]} == falls.gone


@pytest.mark.parametrize(("by", "servers"), [(signal.SIGKILL, 1), (signal.SIGSTOP, 1), (signal.SIGKILL, 2)])
def test_when_the_node_of_the_server_dies_the_run_goes_on_from_a_checkpoint(nodes: Nodes, by: int, servers: int):
    _, outcome = fall(nodes, by, decides=True, on_death="restart", servers=servers)
    (rewind,) = outcome.facts["rewinds"]
    assert 0 < rewind["to_pushes"] <= rewind["pushes"]


def test_a_run_that_replaces_nobody_keeps_what_it_has_when_the_node_of_the_server_dies(nodes: Nodes):
    with pytest.raises(WorkerDied, match="is gone") as error:
        fall(nodes, signal.SIGKILL, decides=True, on_death="continue")
    assert error.value.outcome is not None
    assert error.value.outcome.facts["pushes"] > 0
