"""The same run over each fleet: the same bits, and a valid history."""

from __future__ import annotations

import dataclasses
import gc
import os
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import elsewhere
import pytest
import shifted
from conducted import Acts, Look, Signals, judged, quiet
from tiny import finished, tiny

from pslab.config.run import Run
from pslab.engines.execute import execute
from pslab.engines.experiment.experiment import Outcome
from pslab.engines.local.lines.ends import number_of
from pslab.engines.processes import pool
from pslab.engines.processes.fleets import loopback
from pslab.engines.worker.phases import PHASE_COLUMNS
from pslab.errors import ConfigError, WorkerDied
from pslab.lab.runs.resolve import resolve

Conduct = Callable[..., Outcome]
LINKS = {"compute_s": 2e-3, "latency_s": 1e-3, "bandwidth_bit_s": 1e8}
KEYED = {"data": "planted:rows=200,keys=240,per_row=6,communities=4", "model": "linear", "pull": "keys",
         "batch_size": 8}  # fmt: skip
ALONE: dict[str, Any] = {"sync": "asp", "workers": 1}
FEW = [{**ALONE, "prune": "static:5%", "pull": "changed"}, {**ALONE, **KEYED},
       {**ALONE, "ranges": "layers", "order": "needed", "cluster": LINKS}]  # fmt: skip
MORE: list[dict[str, Any]] = [
    {}, ALONE, {**ALONE, "sync": "eager"}, {"cluster": LINKS, "prune": "static:5%", "pull": "changed"},
    {**ALONE, "sync": "eager", "prune": "static:5%", "pull": "changed"}, {**ALONE, "sync": "eager", "cluster": LINKS},
    {**ALONE, "prune": "dgc"}, {**ALONE, "prune": "range:7", "pull": "range"},
    {**ALONE, "sync": "eager", "prune": "range:7", "pull": "range"}, {**ALONE, "prune": "std:2", "pull": "whole"},
    {"sync": "average:1", "pushes": 64}, {**ALONE, "sync": "downpour:1,2"},
    {**KEYED, "workers": 2}, {**KEYED, "workers": 2, "servers": 2, "placement": "parsa", "partition": "two-step"},
    {**ALONE, "optimizer": "adam", "pull": "changed"},
    {"servers": 2, "prune": "static:5%", "pull": "changed", "cluster": LINKS}, {**KEYED, "workers": 2, "servers": 3},
    {**ALONE, "rate": "adagrad:server"}, {**ALONE, "rate": "dynsgd"}, {"evaluate": "beside"},
]  # fmt: skip
VALID: list[dict[str, Any]] = [
    {"sync": "asp"}, {"sync": "asp", "servers": 2}, {"sync": "ssp:1", "servers": 3, "ranges": "layers:200"},
    {"sync": "eager:2", "servers": 2}, {"sync": "backup:1", "servers": 2, "cluster": LINKS}, {"sync": "ssp:0"},
    {"sync": "ssp:1", "ranges": "layers", "cluster": LINKS}, {"sync": "backup:1"},
    {"sync": "dssp:1,4"}, {"sync": "elastic:4"}, {"sync": "eager:2", "prune": "static:5%", "pull": "changed"},
    {"sync": "asp", "cluster": {**LINKS, "faults": [{"what": "duplicate", "probability": 0.1}]}},
    {"sync": "asp", "pushes": None, "seconds": 0.3},
]  # fmt: skip


@pytest.fixture(scope="module")
def beside() -> Iterator[Conduct]:
    """Runs of several fleets, whose pools are kept beside each other."""
    kept = {"local": pool._kept}

    def conduct_beside(run: Run, look: Look = quiet) -> Outcome:
        pool._kept = kept.get(run.fleet)
        try:
            return execute(resolve(run), look)
        finally:
            kept[run.fleet] = pool._kept

    yield conduct_beside
    for fleet in kept.keys() - {"local"}:
        pool._kept = kept[fleet]
        pool.release(kill=True)
    pool._kept = kept["local"]


@pytest.mark.parametrize("fields", [*FEW, *(pytest.param(more, marks=pytest.mark.slow) for more in MORE)], ids=str)
def test_without_shared_memory_a_run_has_the_same_bits(fields: dict[str, Any], beside: Conduct):
    expected, run = beside(tiny(**{"workers": 2, **fields})), tiny(**{"workers": 2, **fields, "fleet": "loopback"})
    outcome = beside(run)
    assert outcome.weights.tobytes() == expected.weights.tobytes()
    assert outcome.accuracy[:, [0, 2, 3]].tobytes() == expected.accuracy[:, [0, 2, 3]].tobytes()
    assert len(outcome.pushes) == len(expected.pushes)
    assert judged(run, outcome) == {"verdict": "valid"}


@pytest.mark.parametrize("fields", [*VALID[:1], *(pytest.param(more, marks=pytest.mark.slow) for more in VALID[1:])],
                         ids=str)  # fmt: skip
def test_without_shared_memory_every_history_is_valid(fields: dict[str, Any], beside: Conduct):
    run = tiny(**{"workers": 3, **fields, "fleet": "loopback"})
    assert judged(run, beside(run)) == {"verdict": "valid"}


def test_a_run_of_another_fleet_has_a_name_of_its_own():
    assert tiny(fleet="local").digest == tiny().digest != tiny(fleet="loopback").digest


@pytest.mark.parametrize(
    ("fields", "words"),
    [({"engine": "virtual", "cluster": LINKS}, "in virtual time no process waits for another"),
     ({"fleet": "loopbak"}, "loopback")],
)  # fmt: skip
def test_what_cannot_be_is_refused_before_a_process_starts(fields: dict[str, Any], words: str):
    with pytest.raises(ConfigError, match=words):
        resolve(tiny(**{"fleet": "loopback", **fields}))


# --- what goes wrong --------------------------------------------------------------------------------------------------


def babbles(server: int) -> None:
    """Send what is no frame to a server."""
    from pslab.engines.local.lines.stream import Stream

    streams = [each for each in gc.get_objects() if isinstance(each, Stream)]
    stream = next(each for each in streams if each._buffers is not None and each._buffers._server == server)
    os.write(stream._stream, bytes(range(256)))


@pytest.mark.parametrize("server", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_worker_that_sends_what_is_no_frame_ends_by_name_and_the_run_goes_on(server: int, beside: Conduct):
    """Whichever server it sends that to; the others cannot end the run before it does."""
    run = tiny(model=partial(Acts, partial(babbles, server)), workers=3, sync="ssp:3", pushes=60, fleet="loopback",
               on_death="continue", servers=1 + server)  # fmt: skip
    outcome = beside(run)
    (death,) = outcome.facts["deaths"]
    assert death["worker"] == 1
    assert death["how"].startswith("has sent what is no frame of this run: messages of 50462976 bytes; a frame has")
    assert outcome.facts["pushes"] == 60
    assert judged(run, outcome) == {"verdict": "valid"}


def test_a_run_goes_on_without_a_worker_that_is_killed_and_what_that_did_is_in_the_record(beside: Conduct):
    """All but its last moments: nobody else has its memory."""
    cluster = {"compute_s": 0.04, "faults": [{"what": "kill", "worker": 1, "iteration": 15}]}
    run = tiny(workers=2, sync="asp", pushes=40, fleet="loopback", on_death="continue", cluster=cluster)
    outcome = beside(run)
    assert judged(run, outcome) == {"verdict": "valid"}
    assert outcome.facts["pushes"] == run.pushes
    (death,) = outcome.facts["deaths"]
    assert (death["worker"], death["how"]) == (1, "is gone (killed by SIGKILL)")
    phases = outcome.phases[outcome.phases[:, PHASE_COLUMNS.index("worker")] == 1]
    assert 1 < phases[:, PHASE_COLUMNS.index("iteration")].max() <= 15


def ended(run: Run, number: int, by: int, beside: Conduct, missed: int = 0) -> Outcome:
    """A run of which a process gets a signal once it has made some pushes; so many of its budget may be missed."""
    signals = Signals(number, by)
    outcome = beside(run, signals)
    assert signals.sent
    assert judged(run, outcome) == {"verdict": "valid"}
    assert run.pushes is not None
    assert 0 <= run.pushes - outcome.facts["pushes"] <= missed
    return outcome


DYING: dict[str, Any] = {"workers": 3, "pushes": 300, "sync": "asp", "cluster": {"compute_s": 0.01},
                         "fleet": "loopback", "lease_s": 1.0, "checkpoint_every": 20}  # fmt: skip


@pytest.mark.slow
def test_a_run_goes_on_without_a_worker_that_is_stopped(beside: Conduct):
    (death,) = ended(tiny(**DYING, on_death="continue"), 1, signal.SIGSTOP, beside).facts["deaths"]
    assert death["worker"] == 1
    assert death["how"].startswith("was stopped by a signal and has been silent")


@pytest.mark.slow
@pytest.mark.parametrize("fields", [{}, {"prune": "static:5%"}], ids=str)
def test_a_new_process_dials_the_server_and_goes_on_in_its_workers_place(fields: dict[str, Any], beside: Conduct):
    run = tiny(**{**DYING, "sync": "bsp", **fields}, on_death="restart")
    (life,) = ended(run, 1, signal.SIGKILL, beside).facts["lives"]
    assert (life["worker"], life["joined"]) == (1, life["iteration"])
    assert life["kept"] == ("zero" if "prune" in fields else "nothing kept")  # that was the process's own


@pytest.mark.slow
@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGSTOP])
def test_a_new_server_goes_on_from_the_checkpoint_that_the_parent_has(by: int, beside: Conduct):
    facts = ended(tiny(**DYING, on_death="restart"), pool.SERVER, by, beside).facts
    (rewind,) = facts["rewinds"]
    assert 0 <= rewind["pushes"] - rewind["to_pushes"] <= 20 + 3


@pytest.mark.slow
@pytest.mark.parametrize(("number", "fields"), [(1, {}), (pool.SERVER, {}), (number_of(3, 1), {}),
                                                (number_of(3, 2), {}),
                                                (number_of(3, 2), {"optimizer": "adam", "learning_rate": 0.01})],
                         ids=str)  # fmt: skip
def test_with_several_servers_no_bit_changes_whichever_process_is_killed(
    number: int, fields: dict[str, Any], beside: Conduct
):
    run = tiny(**{**DYING, "sync": "bsp", "servers": 3, **fields}, on_death="restart")
    undisturbed = beside(run)
    outcome = ended(run, number, signal.SIGKILL, beside)
    assert outcome.weights.tobytes() == undisturbed.weights.tobytes()
    assert outcome.accuracy[:, [0, 2, 3]].tobytes() == undisturbed.accuracy[:, [0, 2, 3]].tobytes()
    begun_again = 0 if number == 1 else 1
    assert len(outcome.facts.get("rewinds", ())) == begun_again
    assert len(outcome.facts["lives"]) == (3 if begun_again else 1)
    for rewind in outcome.facts.get("rewinds", ()):
        assert 0 <= rewind["pushes"] - rewind["to_pushes"] <= 20 + 3


@pytest.mark.slow
def test_a_worker_that_is_killed_amid_the_ranges_of_an_iteration_costs_at_most_its_push_of_that_round(beside: Conduct):
    """It leaves and joins where some servers have its push and others have not; the round ends without it."""
    run = tiny(**{**DYING, "sync": "bsp", "servers": 3}, ranges="layers:200", on_death="restart")
    facts = ended(run, 1, signal.SIGKILL, beside, missed=1).facts
    assert [life["worker"] for life in facts["lives"]] == [1]
    assert "rewinds" not in facts


@pytest.mark.slow
@pytest.mark.parametrize(("on_death", "servers"), [("restart", 2), ("stop", 2)])
@pytest.mark.parametrize("compute_s", [0.01, 0.2])
def test_a_server_that_stands_still_is_named_and_no_worker(
    on_death: str, servers: int, compute_s: float, beside: Conduct
):
    run = tiny(**{**DYING, "pushes": 120, "cluster": {"compute_s": compute_s}}, servers=servers, on_death=on_death)
    words = "server 1 of 2 was stopped by a signal and has been silent for longer than its lease of 1 s while storing"
    if on_death == "stop":
        with pytest.raises(WorkerDied, match=words):
            ended(run, number_of(3, 1), signal.SIGSTOP, beside)
    else:
        (rewind,) = ended(run, number_of(3, 1), signal.SIGSTOP, beside).facts["rewinds"]
        assert rewind["how"] == words


@pytest.mark.slow
@pytest.mark.parametrize("servers", [1, 2])
def test_the_others_go_on_without_a_worker_that_stands_still_and_cannot_be_killed(servers: int, beside: Conduct):
    """As on a host that is frozen: the system there keeps its lines open."""
    signals, kills = Signals(1, signal.SIGSTOP), list[int]()

    def look(news: dict[str, Any]) -> None:
        signals(news)
        if signals.sent and not kills and pool._kept is not None:
            process = pool._kept.processes[1]
            kill, process.kill = process.kill, lambda: kills.append(1) if len(kills) < 2 else kill()
            kills.append(0)

    run = tiny(**{**DYING, "sync": "bsp"}, servers=servers, on_death="continue")
    outcome = beside(run, look)
    (death,) = outcome.facts["deaths"]
    assert (death["worker"], kills) == (1, [0, 1])
    assert judged(run, outcome) == {"verdict": "valid"}


@pytest.mark.usefixtures("small_pool")
def test_clocks_far_apart_that_drift_are_measured_again_and_the_bound_says_how_far_they_went(
    monkeypatch: pytest.MonkeyPatch
):
    """Those of the workers show a thousand seconds more than the server's."""
    monkeypatch.setattr(pool, "_kept", None)
    monkeypatch.setattr(loopback, "begin", shifted.begin)
    try:
        run, now = tiny(workers=2, sync="asp", fleet="loopback", cluster=LINKS), time.monotonic
        outcomes, instants = list[Outcome](), [now()]
        for _ in range(2):
            outcomes.append(finished(run))
            instants.append(now())
    finally:
        pool.release()
    for outcome in outcomes:
        assert judged(run, outcome) == {"verdict": "valid"}
        bound_s, begin_s, end_s = outcome.facts["clock_bound_s"], outcome.phases[:, 3], outcome.phases[:, 4]
        assert bound_s >= 0.9 * 2 * shifted.FASTER * end_s.max()
        assert begin_s.min() >= -bound_s
        assert (end_s - begin_s).min() >= 0.0
        assert end_s.max() < shifted.AHEAD_S / 2
    begin_s, middle_s, end_s = instants
    assert outcomes[1].facts["clock_bound_s"] < 2 * shifted.FASTER * (end_s - (begin_s + middle_s) / 2)  # anew


@pytest.mark.slow
@pytest.mark.usefixtures("small_pool")
@pytest.mark.parametrize("fields", [{}, KEYED], ids=["dense", "keyed"])
@pytest.mark.parametrize("servers", [1, 2, 4])
def test_workers_that_share_one_copy_of_the_data_on_another_host_change_no_bit(
    fields: dict[str, Any], servers: int, beside: Conduct, monkeypatch: pytest.MonkeyPatch
):
    """Also after others in the same processes, and when the one that was sent the data is replaced."""
    here = tiny(**{**DYING, "sync": "bsp", "workers": 4, "pushes": 100, **fields, "fleet": "local"}, servers=servers)
    expected = beside(here)
    monkeypatch.setattr(pool, "_kept", None)
    monkeypatch.setattr(loopback, "begin", elsewhere.begin)
    try:
        for kill in [False] if "pull" in fields else [False, True]:  # which cannot be replaced where keys are pulled
            finished(tiny(**ALONE, fleet="loopback"))
            run = dataclasses.replace(here, fleet="loopback", on_death="restart" if kill else "stop")
            signals = Signals(1, signal.SIGKILL)
            outcome = execute(resolve(run), signals if kill else quiet)
            assert len(outcome.facts.get("lives", ())) == kill
            assert outcome.weights.tobytes() == expected.weights.tobytes()
            assert judged(run, outcome) == {"verdict": "valid"}
    finally:
        pool.release(kill=True)


@pytest.mark.usefixtures("small_pool")
def test_a_model_that_a_host_has_no_memory_for_is_refused_by_the_hosts_name_before_it_is_sent(
    beside: Conduct, monkeypatch: pytest.MonkeyPatch
):
    run = tiny(workers=2, servers=2, evaluate="beside", fleet="loopback")
    needed = (1 + 1 + 2 * 3 + 1) * 4 * 1930  # the servers' parts, first weights, of the workers, of the evaluator

    def free(free_bytes: int | None) -> None:
        monkeypatch.setattr(pool.Pool, "free", lambda self, numbers: {"10.0.0.7": (sorted(numbers), free_bytes)})

    for enough in (needed, None):
        free(enough)
        assert beside(run).facts["pushes"] == run.pushes
    free(needed - 1)
    monkeypatch.delattr(pool.Pool, "share")
    words = r"on 10\.0\.0\.7, with 2 workers and 2 servers, its 1,930 weights take at least"
    with pytest.raises(ConfigError, match=words):
        beside(run)
