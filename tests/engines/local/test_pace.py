"""How slowly an emulated cluster runs: as a run of its kind was kept last, and after an attempt that was not kept."""

from __future__ import annotations

import os
import signal
import time

import pytest
from tiny import tiny

from pslab.engines.local import local_run
from pslab.engines.local.engine import execute
from pslab.engines.local.pace import emulation, kept, larger
from pslab.engines.processes import pool, precedence
from pslab.engines.worker.phases import PHASES
from pslab.lab.judge import tables_of
from pslab.lab.runs.resolve import resolve


def lost(overrun: float, late: float, dilation: float = 1.0) -> dict[str, float]:
    return {"compute_overrun_share": overrun, "late_message_share": late, "dilation": dilation}


def test_another_attempt_is_slower_by_what_was_lost():
    for found, wanted in (
        (lost(0.04, 0.02), 2.0), (lost(0.5, 0.0, 2.0), 5.0),  # at least, and of 4.8 that are needed
        (lost(0.95, 0.0), 24.0), (lost(0.0, 0.12, 2.0), 8.0), (lost(1.0, 1.0, 32.0), 64.0),
    ):  # fmt: skip
        assert larger(found) == wanted
    assert (kept(lost(0.02, 0.03)), kept(lost(0.03, 0.03))) == (True, False)


def test_ranges_that_are_late_together_are_late_once():
    worked = [{"alive_s": 10.0, "overrun_s": 0.0, "late_s": 0.0, "real_s": 5.0}]
    for ranges in ("whole", "layers"):
        experiment = resolve(tiny(engine="local", ranges=ranges, cluster={"compute_s": 0.02}))
        served = {"late_s_mean": 0.01, "late_s_99th": 0.02, "messages": 100 * len(experiment.parts), "stalled_s": 0.0}
        assert emulation(experiment, worked, served)["late_message_share"] == pytest.approx(0.1)


# --- runs -------------------------------------------------------------------------------------------------------------


def facts_of(look=lambda news: None, **fields):
    return execute(resolve(tiny(**{"workers": 2, "pushes": 8, **fields})), look).facts


def test_a_dilated_run_is_recorded_in_the_clusters_seconds_and_its_stop_rule_is_in_them():
    """How fast those are the news of the run show."""
    seen = list[tuple[float, float]]()

    def look(news):
        if "workers" in news:
            seen.append((time.monotonic(), news["seconds"]))

    cluster = {"compute_s": 0.004, "latency_s": 0.002}
    wanted = tiny(sync="asp", workers=2, pushes=None, seconds=0.3, eval_every=8, cluster=cluster, dilation=10)
    outcome = execute(resolve(wanted), look)
    facts = tables_of(wanted, outcome)[2]
    assert (facts["dilation"], facts["outcome"], facts["verdict"]) == (10, "seconds", "valid")
    assert facts["seconds"] >= 0.3
    assert facts["pushes"] <= 2 * (1 + 0.3 / 0.008)
    assert seen[-1][0] - seen[0][0] > 5 * (seen[-1][1] - seen[0][1]) > 0
    _, _, phase, begin_s, end_s, *_ = outcome.phases.T
    for name, least_s in (("compute", 0.004), ("push", 0.002)):
        assert (end_s - begin_s)[phase == PHASES.index(name)].min() >= least_s - 1e-9


def test_where_nothing_is_emulated_nothing_can_be_late():
    facts = facts_of()
    found = facts["emulation"]
    assert (facts["emulation_ok"], found["dilation"], found["late_message_share"], found["compute_overrun_share"]) == (
        True, 1.0, 0.0, 0.0)  # fmt: skip


def test_what_was_not_kept_is_repeated_once_and_slower_unless_the_dilation_is_given(monkeypatch):
    """And a run begins with the dilation that was kept last in a run of its kind."""
    monkeypatch.setattr(local_run, "kept", lambda emulation: emulation["dilation"] > 1)
    news, fields = [], {"cluster": {"compute_s": 0.002}, "dilation": "auto"}
    first = facts_of(news.append, **fields, batch_size=3)
    assert sum(bool(item.get("repeated")) for item in news) == 1
    assert (first["dilation"] >= 2.0, first["repeated_after"]["dilation"], first["pushes"]) == (True, 1.0, 8)
    second, other = facts_of(**fields, seed=1, batch_size=3), facts_of(**fields, batch_size=5)
    assert (second["dilation"], "repeated_after" in second) == (first["dilation"], False)
    assert other["repeated_after"]["dilation"] == 1.0
    given = facts_of(**{**fields, "dilation": 1})
    assert (given["dilation"], "repeated_after" in given, given["emulation_ok"]) == (1.0, False, False)


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="the system has no such class")
@pytest.mark.parametrize(("awaited", "pushes"), [(1.0, 200), (0.0, 8)])
def test_workers_that_begin_to_starve_are_scheduled_as_others(monkeypatch, awaited, pushes):
    monkeypatch.setattr(precedence, "WINDOW_S", 0.0)
    monkeypatch.setattr(precedence, "used_and_awaited", lambda process: (0.0, awaited * time.monotonic()))
    wanted = tiny(workers=2, pushes=pushes, cluster={"compute_s": 0.01})
    found = execute(resolve(wanted), lambda _: None, yields=True).facts["emulation"]
    assert (not found["workers_let_others_first"], found.get("workers_starved", False)) == (bool(awaited),) * 2


def test_a_worker_that_is_stopped_while_it_waits_for_weights_is_late():
    """Stopped four times in a run in which it hardly ever computes; a stop as it installs weights is not noticed."""
    seen = list[float]()

    def stop_and_continue(news):
        if "seconds" in news and len(seen) < 8:
            seen.append(news["seconds"])
            os.kill(pool.acquire(2).processes[0].pid, signal.SIGSTOP if len(seen) % 2 else signal.SIGCONT)

    cluster = {"compute_s": 1e-4, "latency_s": 0.05}
    experiment = resolve(tiny(workers=2, pushes=60, cluster=cluster, dilation=1.0))
    facts = execute(experiment, stop_and_continue).facts
    stopped_s = sum(seen[1::2]) - sum(seen[::2])
    found = facts["emulation"]  # stopped as it sends, its push is late
    assert found["compute_overrun_share"] + found["late_message_share"] > stopped_s / 2 / 2 / facts["seconds"]
    assert len(seen) == 8
    assert not facts["emulation_ok"]
