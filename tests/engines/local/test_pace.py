"""How slowly an emulated cluster must run: by what a rehearsal measured, and after an attempt that was not kept."""

from __future__ import annotations

import os
import signal
import time

import pytest
from tiny import tiny

from pslab.engines.local import engine, pace
from pslab.engines.local.engine import execute
from pslab.engines.local.pace import AIM_SHARE, DILATIONS, Pace, emulation, kept, larger
from pslab.engines.processes import pool, precedence
from pslab.engines.worker.phases import PHASES
from pslab.lab.judge import tables_of
from pslab.lab.runs.resolve import resolve

STEADY = {"compute_s": 0.02}


def lost(overrun: float, late: float, dilation: float = 1.0) -> dict[str, float]:
    return {"compute_overrun_share": overrun, "late_message_share": late, "dilation": dilation}


@pytest.mark.parametrize(("gradient_s", "late_s", "dilation"), [
    (0.008, 0.0001, 1.0), (0.019, 0.0, 1.0), (0.03, 0.0, 1.5), (0.021, 0.0, 1.25), (0.008, 0.001, 4.0),
    (9.0, 0.0, 64.0), (0.2, 0.0, 10.0),
])  # fmt: skip
def test_dilation_is_the_least_that_loses_little(gradient_s: float, late_s: float, dilation: float):
    experiment, pace = resolve(tiny(cluster=STEADY)), Pace((gradient_s,), late_s)
    assert pace.dilation(experiment) == dilation
    below = DILATIONS[max(0, DILATIONS.index(dilation) - 1)]
    assert dilation == 1 or pace.late_share(experiment, below) > AIM_SHARE


def test_stragglers_need_less_than_their_fast_peers():
    pace = Pace((0.03,), 0.0)
    slow = {"compute_s": 0.02, "slow": dict.fromkeys(range(4), 3.0)}
    assert pace.dilation(resolve(tiny(cluster=slow))) == 1.0
    assert pace.dilation(resolve(tiny(cluster={"trace": {w: [0.06, 0.05] for w in range(4)}}))) == 1.0
    assert pace.dilation(resolve(tiny(cluster={**slow, "slow": {0: 3.0}}))) > 1


def test_gradients_of_which_some_take_long_are_late_though_their_mean_is_not():
    experiment = resolve(tiny(cluster=STEADY))
    mean_s = experiment.cluster.compute_s * 0.9
    assert Pace((mean_s,), 0.0).dilation(experiment) == 1.0
    assert Pace((0.5 * mean_s, 0.5 * mean_s, 0.5 * mean_s, 2.5 * mean_s), 0.0).dilation(experiment) > 1.5


def test_choosing_that_waits_for_others_asks_for_a_slower_cluster_and_less_so_where_workers_compute_seldom():
    experiment = resolve(tiny(cluster=STEADY))
    seldom, often = (Pace((share * 0.02,), 0.0, 0.003) for share in (0.2, 0.9))
    assert seldom.late_share(experiment) == pytest.approx(0.15 * 0.2**2)
    assert often.late_share(experiment) == pytest.approx(0.15 * 0.9**2)
    assert often.late_share(experiment, 2.0) == pytest.approx(0.15 / 2 * 0.45**2)
    assert (seldom.dilation(experiment), often.dilation(experiment)) == (1.0, 2.0)


def test_what_computes_as_fast_as_the_machine_is_in_real_time():
    assert Pace((9.0,), 1.0).dilation(resolve(tiny(cluster={"latency_s": 0.01}))) == 1.0


def test_another_attempt_is_slower_by_what_was_lost():
    assert larger(lost(0.04, 0.02)) == 2.0  # at least
    assert larger(lost(0.5, 0.0, 2.0)) == pytest.approx(4.8)
    assert larger(lost(0.0, 0.12, 2.0)) == pytest.approx(8.0)
    assert larger(lost(1.0, 1.0, 32.0)) == 64.0
    assert (kept(lost(0.02, 0.03)), kept(lost(0.03, 0.03))) == (True, False)
    assert Pace((0.0,), 0.0).dilation(resolve(tiny(cluster=STEADY)), least=2.1) == 2.5


def test_ranges_that_are_late_together_are_late_once():
    worked = [{"alive_s": 10.0, "overrun_s": 0.0, "late_s": 0.0, "real_s": 5.0}]
    for ranges in ("whole", "layers"):
        experiment = resolve(tiny(engine="local", ranges=ranges, cluster=STEADY))
        served = {"late_s_mean": 0.01, "late_s_99th": 0.02, "messages": 100 * len(experiment.parts), "stalled_s": 0.0}
        assert emulation(experiment, worked, served)["late_message_share"] == pytest.approx(0.1)


# -- runs ------------------------------------------------------------------------------------------


def facts_of(look=lambda news: None, **fields):
    return execute(resolve(tiny(**{"workers": 2, "pushes": 8, **fields})), look).facts


def paces(monkeypatch: pytest.MonkeyPatch, *gradients_s: float) -> None:
    """Rehearsals find out these, one after the other."""
    found = iter(gradients_s)
    monkeypatch.setattr(pace, "measured", lambda *given: Pace((next(found),), 0.0))


def test_a_dilated_run_is_recorded_in_the_clusters_seconds_and_its_stop_rule_is_in_them():
    """How fast those are the news of the run show."""
    seen = list[tuple[float, float]]()

    def look(news):
        if "workers" in news:
            seen.append((time.monotonic(), news["seconds"]))

    cluster = {"compute_s": 0.004, "latency_s": 0.002}
    wanted = tiny(sync="asp", workers=2, pushes=None, seconds=0.1, eval_every=8, cluster=cluster, dilation=10)
    outcome = execute(resolve(wanted), look)
    facts = tables_of(wanted, outcome)[2]
    assert (facts["dilation"], facts["outcome"], facts["verdict"]) == (10, "seconds", "valid")
    assert facts["seconds"] >= 0.1
    assert facts["pushes"] <= 2 * (1 + 0.1 / 0.008)
    assert seen[-1][0] - seen[0][0] > 5 * (seen[-1][1] - seen[0][1]) > 0
    _, _, phase, begin_s, end_s, *_ = outcome.phases.T
    for name, least_s in (("compute", 0.004), ("push", 0.002)):
        assert (end_s - begin_s)[phase == PHASES.index(name)].min() >= least_s - 1e-9


@pytest.mark.parametrize("dilation", ["auto", 1])
def test_what_was_not_kept_is_repeated_once_and_slower_unless_the_dilation_is_given(monkeypatch, dilation):
    monkeypatch.setattr(engine, "kept", lambda emulation: False)
    paces(monkeypatch, *[0.001] * 4)
    news = []
    facts = facts_of(news.append, cluster={"compute_s": 0.002}, dilation=dilation)
    assert [sum(bool(item.get("repeated")) for item in news), "repeated_after" in facts] == [dilation == "auto"] * 2
    assert facts["dilation"] >= 2.0 if dilation == "auto" else facts["dilation"] == 1.0
    assert facts.get("repeated_after", facts)["dilation"] == 1.0
    assert not facts["emulation_ok"]
    assert facts["pushes"] == 8


def test_where_nothing_is_emulated_nothing_is_rehearsed_and_nothing_can_be_late(monkeypatch):
    monkeypatch.setattr(pace, "measured", None)
    facts = facts_of()
    assert facts["emulation_ok"]
    found = facts["emulation"]
    assert (found["dilation"], found["late_message_share"], found["compute_overrun_share"]) == (1.0, 0.0, 0.0)


def test_workers_that_are_starved_are_scheduled_as_others(monkeypatch):
    paces(monkeypatch, *[0.001, 0.002] * 2)
    wanted = resolve(tiny(workers=2, pushes=8, cluster={"compute_s": 0.05}, dilation=1))
    assert not execute(wanted, lambda _: None).facts["emulation"]["workers_let_others_first"]
    assert execute(wanted, lambda _: None, yields=True).facts["emulation"]["rehearsed_gradient_s"] == 0.002


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="the system has no such class")
@pytest.mark.parametrize(("awaited", "pushes"), [(1.0, 60), (0.0, 8)])
def test_workers_that_begin_to_starve_are_scheduled_as_others(monkeypatch, awaited, pushes):
    monkeypatch.setattr(precedence, "WINDOW_S", 0.0)
    monkeypatch.setattr(precedence, "used_and_awaited", lambda process: (0.0, awaited * time.monotonic()))
    wanted = tiny(workers=2, pushes=pushes, cluster={"compute_s": 0.01})
    found = execute(resolve(wanted), lambda _: None, yields=True).facts["emulation"]
    assert (not found["workers_let_others_first"], found.get("workers_starved", False)) == (bool(awaited),) * 2


def test_a_rehearsal_changes_no_model():
    plain, emulated = (execute(resolve(tiny(workers=2, pushes=8, seed=3, **fields)), lambda _: None)
                       for fields in ({}, {"cluster": {"compute_s": 0.002}, "dilation": 1}))  # fmt: skip
    assert emulated.weights.tobytes() == plain.weights.tobytes()


def test_a_worker_that_is_stopped_while_it_waits_for_weights_is_late():
    """Stopped for 0.4 s of a run in which it hardly ever computes."""
    seen, until_s = list[float](), [0.0]

    def stop_and_continue(news):
        if "seconds" in news:
            seen.append(news["seconds"])
            if len(seen) == 2:
                until_s[0] = seen[-1] + 0.4
            if len(seen) >= 2:
                at_work = seen[-1] >= until_s[0]
                os.kill(pool.acquire(2).processes[0].pid, signal.SIGCONT if at_work else signal.SIGSTOP)

    cluster = {"compute_s": 1e-4, "latency_s": 0.02}
    experiment = resolve(tiny(workers=2, pushes=60, cluster=cluster, dilation=1.0))
    facts = execute(experiment, stop_and_continue).facts
    found = facts["emulation"]  # stopped as it sends, its push is late
    assert found["compute_overrun_share"] + found["late_message_share"] > 0.2 / 2 / facts["seconds"]
    assert not facts["emulation_ok"]
