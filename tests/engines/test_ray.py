"""Runs on a Ray cluster of two nodes on this machine: the same bits as in virtual time, and what becomes of a run that
loses a process."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from ray_nodes import Nodes, number_of
from tiny import Diverges, Raises, finished, tiny

from pslab.config.run import Run
from pslab.engines.execute import execute
from pslab.engines.experiment.experiment import Interrupted, Outcome
from pslab.engines.ray import actors
from pslab.errors import StartFailed, WorkerDied, WorkerFailed
from pslab.lab.judge import tables_of
from pslab.lab.runs.resolve import resolve

LINKS = {"compute_s": 0.01, "slow": {1: 2.0}}


@pytest.fixture(scope="module")
def nodes(request: pytest.FixtureRequest) -> Iterator[Nodes]:
    here = [item for item in request.session.items if item.path == request.path]
    found = Nodes(alone=not any(item.get_closest_marker("slow") for item in here))  # only those kill nodes
    yield found
    actors.release()
    found.close()


def on(nodes: Nodes, **fields: Any) -> Run:
    """A run of two workers on these nodes."""
    given = {"workers": 2, "pushes": 20, "eval_every": 10**6, "ray": {"address": nodes.address, "cpus": 0.5}, **fields}
    return tiny(engine="ray", **given)


def checked(run: Run) -> Outcome:
    """The outcome of a run whose record is valid."""
    found = finished(run)
    assert tables_of(run, found)[2]["verdict"] == "valid"
    return found


def differences(nodes: Nodes, fields: dict[str, Any]) -> list[str]:
    """What a run of rounds leaves that virtual time does not."""
    found = checked(run := on(nodes, **fields))
    other = finished(run.but(engine="virtual", ray=None, cluster=LINKS))
    columns = [0, 2, 3]  # pushes, accuracy, loss
    pairs = {"weights": (found.weights, other.weights),
             "accuracy": (found.accuracy[:, columns], other.accuracy[:, columns])}  # fmt: skip
    return [f"{what} of {fields}" for what, pair in pairs.items() if not np.array_equal(*pair)]


def test_a_run_is_that_of_virtual_time_or_of_its_recorded_order_and_ends_as_it_is_to(nodes: Nodes):
    """One test, because each process of pytest that runs a test of Ray starts a cluster of its own. Runs with equally
    many processes come one after another, because they share their actors."""
    pruned: dict[str, Any] = {"prune": "static:5%", "pull": "changed"}
    drawn: list[dict[str, Any]] = [
        {"optimizer": "adam"}, pruned, {"quantize": "int8", "downlink": "int8", "sync": "local:2"},
        {"sync": "admm:2,rho=0.5"}, {"sync": "streaming:4,2,overlap=1"},
        {"model": "linear", "data": "functions", "pull": "keys"},
    ]  # fmt: skip
    assert [each for fields in drawn for each in differences(nodes, fields)] == []
    ends: list[tuple[str, dict[str, Any]]] = [
        *(("budget", {"sync": sync}) for sync in ("ssp:1", "eager", "backup:1", "adiloco:2")),
        ("diverged", {"model": Diverges}), ("seconds", {"pushes": None, "seconds": 0.5, "eval_every": None}),
        ("target", {"pushes": 10**6, "eval_every": 4, "target_accuracy": 0.3}),
        ("budget", {"sync": "asp", "servers": 2}),
    ]  # fmt: skip
    for outcome, fields in ends:
        assert checked(on(nodes, **fields)).facts["outcome"] == outcome
    assert differences(nodes, {"servers": 2, "eval_every": 4, **pruned}) == []
    with pytest.raises(WorkerFailed, match="the model broke here"):
        finished(on(nodes, servers=2, model=Raises))
    with pytest.raises(StartFailed, match="3 processes need 300 CPUs, and the Ray cluster has 16"):
        finished(on(nodes, ray={"address": nodes.address, "cpus": 100.0}))


@pytest.mark.slow
def test_an_interrupt_ends_the_run_with_what_it_completed(nodes: Nodes):
    def interrupt(found: actors.Actors) -> None:
        raise KeyboardInterrupt

    run = on(nodes, pushes=10**6)
    with pytest.raises(Interrupted) as caught:
        execute(resolve(run), losing(run, interrupt))
    assert caught.value.outcome.facts["outcome"] == "interrupted"
    assert caught.value.outcome.facts["pushes"] >= 20


# --- what dies -------------------------------------------------------------------------------------------------------


def losing(run: Run, kill: Callable[[actors.Actors], None], pushes: int = 20) -> Callable[[dict[str, Any]], None]:
    """A receiver of news that calls `kill` once, when so many pushes have come."""
    done = list[bool]()

    def hear(news: dict[str, Any]) -> None:
        if news.get("pushes", 0) >= pushes and not done:
            done.append(True)
            kill(actors.acquire(run, lambda: None))

    return hear


def kill_worker(found: actors.Actors) -> None:
    os.kill(number_of(found.workers[1]), signal.SIGKILL)


def kill_server(found: actors.Actors) -> None:
    os.kill(number_of(found.decider), signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize("on_death", ["restart", "continue"])
def test_a_run_goes_on_without_a_killed_worker_or_with_another_one(nodes: Nodes, on_death: str):
    run = on(nodes, pushes=600, on_death=on_death)
    found = execute(resolve(run), losing(run, kill_worker))
    facts = tables_of(run, found)[2]
    assert (facts["verdict"], facts["outcome"], facts["pushes"]) == ("valid", "budget", 600)
    assert [each["worker"] for each in facts["lives" if on_death == "restart" else "deaths"]] == [1]
    if on_death == "restart":
        assert np.array_equal(found.weights, finished(run).weights)


@pytest.mark.slow
@pytest.mark.parametrize(("kill", "words", "ends"), [
    (kill_worker, "worker 1 is gone", "died"), (kill_server, "server is gone", "interrupted")])  # fmt: skip
def test_a_killed_process_of_a_run_that_is_to_stop_leaves_what_it_had_completed(
    nodes: Nodes, kill: Any, words: str, ends: str
):
    run = on(nodes, pushes=10**6)
    with pytest.raises(WorkerDied, match=words) as caught:
        execute(resolve(run), losing(run, kill))
    outcome = caught.value.outcome
    assert outcome.facts["outcome"] == ends, "the server says how the run ended, if there is one"
    assert outcome.facts["pushes"] >= 20 <= len(outcome.pushes)
    assert len(outcome.weights) == len(finished(on(nodes)).weights)


@pytest.mark.slow
def test_workers_of_a_killed_node_are_replaced_on_another_one(nodes: Nodes):
    def kill_node(found: actors.Actors) -> None:
        raylets = {nodes.of(worker) for worker in found.workers} - {nodes.of(found.decider)}
        nodes.signal(raylets.pop(), signal.SIGKILL)

    run = on(nodes, pushes=600, on_death="restart")
    facts = tables_of(run, execute(resolve(run), losing(run, kill_node)))[2]
    assert (facts["verdict"], facts["pushes"]) == ("valid", 600)
    assert facts["lives"][-1]["joined"] is not None, (facts["lives"], facts["deaths"], facts["seconds"])
