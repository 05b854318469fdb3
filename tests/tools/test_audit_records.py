"""Rules of the audit that need a whole record: true records pass, and each changed in one way is found."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from falsified import (
    Falsify,
    both,
    cell,
    everywhere,
    exchanged,
    fact,
    facts,
    falsified,
    faster,
    hidden_drop,
    phase,
    relabelled,
    table,
    without,
)
from histories import assert_invalid, assert_valid, recorded, swapped

from pslab.config.run import Run
from pslab.lab.records.results import load
from pslab.lab.runs.run import sweep

SMALL = {"model": "tiny:net", "data": "tiny:digits", "batch_size": 16, "pushes": 40, "keep_weights": True,
         "dilation": 1, "cluster": {"preset": "lab", "slow": {0: 2.0}}}  # fmt: skip
RUNS = {
    "bsp": {"engine": "virtual", "sync": "bsp"},
    "ssp": {"engine": "virtual", "sync": "ssp:1", "prune": "static:5%", "pull": "changed"},
    "asp": {"engine": "virtual", "sync": "asp"},
    "backup": {"engine": "virtual", "sync": "backup:1"},
    "leave": {"engine": "virtual", "sync": "asp", "cluster": {**SMALL["cluster"], "leave": {2: 0.1}}},
    "beside": {"engine": "virtual", "sync": "asp", "servers": 2, "cluster": {**SMALL["cluster"], "colocated": True}},
    "local": {"sync": "ssp:1", "cluster": {"compute_s": 0.002, "slow": {0: 3.0}}},
    "pruned": {"sync": "asp", "prune": "static:5%", "pull": "changed", "cluster": {"compute_s": 0.002}},
    "restarted": {"sync": "bsp", "on_death": "restart", "cluster": {"compute_s": 0.004, "faults": [
        {"what": "kill", "worker": 1, "iteration": 4}]}},
    "slow links": {"sync": "bsp", "on_death": "restart", "cluster": {"compute_s": 0.004, "latency_s": 0.02, "faults": [
        {"what": "kill", "worker": 1, "iteration": 4}]}},
}


def pushed_s(folder: Path, worker: int, iteration: int) -> float:
    """When a push arrived."""
    a = pd.read_csv(folder / "arrivals.csv")
    return float(a[(a.worker == worker) & (a.kind == "push") & (a.iteration == iteration)].seconds.iloc[0])


def ended_before_a_push_arrived(iteration: int) -> Falsify:
    """The process that ended did so while this push of its was still on its way."""
    return lambda folder: fact("lives", lambda lives: [
        {**lives[0], "iteration": iteration, "seconds": pushed_s(folder, 1, iteration) - 1e-3}])(folder)  # fmt: skip


def invented_life(folder: Path) -> None:
    """Worker 2's process has ended between its second and its third push, and another one has followed."""
    seconds = pushed_s(folder, 2, 2) - 1e-4
    facts(phases_lost=[2], lives=[{"worker": 2, "iteration": 2, "seconds": seconds, "how": "is gone", "joined": 2,
                                   "kept": "nothing kept"}])(folder)  # fmt: skip


def shares(**changed: float) -> Falsify:
    """What was measured of the emulation is something else."""
    return fact("emulation", lambda found: {**found, **changed})


def passed_as_real(folder: Path) -> None:
    """A run in virtual time is one of real processes."""
    without("events", "server_busy_s", "turning_s")(folder)
    relabelled(engine="local")(folder)
    fact("wall_s", lambda found: found + 60)(folder)


def overrun(folder: Path) -> None:
    """All computations took much longer, and the emulation was kept: instants are ten times as late."""
    table("phases", lambda p: p.assign(begin_s=p.begin_s * 10, end_s=p.end_s * 10))(folder)
    for name in ("accuracy", "pushes", "arrivals"):
        table(name, lambda found: found.assign(seconds=found.seconds * 10))(folder)
    both(fact("seconds", lambda found: found * 10), fact("wall_s", lambda found: found + 60))(folder)
    both(shares(compute_overrun_share=0.0, late_message_share=0.0), facts(emulation_ok=True))(folder)


REWIND = {"seconds": 0.05, "how": "server is gone", "pushes": 20, "to_pushes": 10, "to_seconds": 0.02}
#: The record, its change, and words of the violation.
CHANGED: dict[str, tuple[str, Falsify, str]] = {
    "arrivals are cut off": ("ssp", table("arrivals", lambda a: a[: len(a) * 9 // 10]), "it arrived at nan s"),
    "another seed": ("bsp", relabelled(seed=9), "the cluster's is"),
    "a slower cluster": ("asp", relabelled(cluster={"preset": "lab", "slow": {0: 3.0}}), "the cluster's is 0.06316"),
    "another evaluation period": ("asp", relabelled(eval_every=4), "it is due after 4 pushes"),
    "two arrivals are swapped": ("ssp", table("arrivals", lambda a: swapped(
        a, 10, 14, "worker", "iteration", "version")), "its computation began at"),
    "a drop is hidden": ("backup", hidden_drop, "it arrived at nan s"),
    "a worker never left": ("leave", table("arrivals", lambda a: a[a.kind != "leave"]), "the server was not notified"),
    "a density is lower": ("ssp", cell("pushes", 5, "density", lambda density: density / 2), "no whole number of the"),
    "a push has a byte more": ("bsp", cell("pushes", 5, "bytes_up", lambda size: size + 1), "takes 7744 to 7744"),
    "a pull has a byte less": ("asp", cell("pushes", 5, "bytes_down", lambda size: size - 1), "took 7743 bytes of"),
    "less crossed the network": ("beside", facts(network_bytes=200_000), "200000 bytes crossed the network"),
    "what passed no link crossed the network": ("beside", lambda folder: facts(network_bytes=int(
        pd.read_csv(folder / "pushes.csv")[["bytes_up", "bytes_down"]].to_numpy().sum()))(folder), "by the pushes and"),
    "a pull begins sooner": ("asp", phase("pull", begin_s=-1e-4), "its pull begins at"),
    "a computation is shorter": ("asp", phase("compute", begin_s=1e-4), "the cluster's is"),
    "a computation is shorter than modelled": ("local", table("phases", lambda p: p.assign(
        begin_s=p.begin_s.mask(p.phase == "compute", p.end_s - 0.001))), "for 0.001 s; the cluster's is 0.006 s"),
    "everything is twice as fast": (
        "asp", both(everywhere(faster), fact("seconds", lambda seconds: seconds / 2)), "the cluster's is"),
    "two workers have each other's name": ("asp", everywhere(exchanged), "the cluster's is"),
    "an evaluation is removed": ("bsp", table("accuracy", lambda a: a.drop(index=3)), "it is due after"),
    "an evaluation is moved": ("asp", cell("accuracy", 3, "seconds", lambda seconds: seconds - 0.001), "it is due"),
    "an accuracy is above 1": ("bsp", cell("accuracy", 5, "accuracy", lambda accuracy: 1.01), "pushes is 1.01"),
    "the run is shorter": ("asp", fact("seconds", lambda seconds: seconds - 0.01), "after the run"),
    "phases of a worker that lived are lost": ("local", facts(phases_lost=[0]), "none of its processes has ended"),
    "phases of nobody are lost": ("asp", facts(phases_lost=[7]), "the manifest names worker 7"),
    "a life is invented": ("local", invented_life, "processes were replaced, and the run has on_death='stop'"),
    "a life is invented where lives are allowed": ("restarted", invented_life, "holding no weights"),
    "a life is invented where links are slow": ("slow links", invented_life, "holding no weights"),
    "a push was on a link that takes no time": ("restarted", ended_before_a_push_arrived(3), "holding no weights"),
    "two pushes were on a link": ("slow links", ended_before_a_push_arrived(2), "holding no weights"),
    "lives are removed": ("restarted", without("lives"), "the worker holds version"),
    "a life joins sooner": ("restarted", fact("lives", lambda lives: [{**lives[0], "joined": 3}]),
                            "the next one was to ask for iteration 3"),
    "a life without a successor": ("restarted", fact("lives", lambda lives: [{**lives[0], "joined": None}]),
                                   "and none followed"),
    "a rewind is invented": ("local", facts(rewinds=[REWIND]), "processes were replaced"),
    "a rewind is invented where they are allowed": ("restarted", facts(rewinds=[REWIND]), "and no worker did"),
    "a death is invented": ("local", facts(deaths=[{"worker": 1, "seconds": 0.01, "iteration": 3, "how": "is gone"}]),
                            "on_death='stop' ends a run then"),
    "a divergence is invented": ("local", facts(diverged={"worker": 1, "iteration": 3}), "the run ended by 'budget'"),
    "an end by divergence is invented": ("bsp", facts(outcome="diverged", diverged={"worker": 1, "iteration": 3}),
                                         "counts no refused message"),
    "... and counted as refused": ("bsp", facts(outcome="diverged", refused=1, diverged={"worker": 1, "iteration": 3}),
                                   "was not finite, and was pushed"),
    "the emulation was kept": ("local", both(shares(compute_overrun_share=0.2), facts(emulation_ok=True)),
                               "emulation_ok is True; overruns and late messages take 0."),
    "the emulation was not kept": ("local", both(shares(compute_overrun_share=0.0, late_message_share=0.0),
                                                 facts(emulation_ok=False)), "emulation_ok is False"),
    "the word on the emulation is gone": ("local", without("emulation_ok"), "emulation_ok is None"),
    "another dilation": ("local", fact("dilation", lambda found: 64.0 if found != 64 else 48.0), "dilation of"),
    "another dilation, twice": ("local", both(facts(dilation=7.0), shares(dilation=7.0)), "a dilation of 7"),
    "a dilation for which time is too short": (
        "local", both(facts(dilation=64.0, wall_s=1.0, preparation_s=0.9), shares(dilation=64.0)), "by the clock"),
    "virtual time is dilated": ("asp", facts(dilation=2.0), "nothing is emulated in virtual time"),
    "a wait is for another worker": ("local", table("phases", lambda p: p.assign(
        waits_for=p.waits_for.where(p.phase != "wait", (p.worker + 1) % 4))), "is said to be for worker"),
    "a wait in virtual time is for another worker": ("ssp", table("phases", lambda p: p.assign(
        waits_for=p.waits_for.where(p.phase != "wait", (p.worker + 1) % 4))), "is said to be for worker"),
    "links were slower": ("local", relabelled(cluster={**RUNS["local"]["cluster"], "bandwidth_bit_s": 1e5}),
                         "the cluster's links take"),
    "links had a latency": ("local", relabelled(cluster={**RUNS["local"]["cluster"], "latency_s": 1.0}),
                            "the cluster's links take"),
    "a run in virtual time was of real processes": ("bsp", passed_as_real, "to the last bit: they are of virtual time"),
    "overruns are in the phases alone": ("local", overrun, "by the phases, computations took"),
    "pruned gradients were dense": ("pruned", relabelled(prune="none"), "bytes"),
    "dense gradients were pruned": ("local", relabelled(prune="static:5%"), "its encode begins at nan s"),
}  # fmt: skip


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    runs = [Run.of({**SMALL, **fields}) for fields in RUNS.values()]
    done = sweep(runs, results=tmp_path_factory.mktemp("true"), progress=False)
    return {name: result.path for name, result in zip(RUNS, done, strict=True)}


@pytest.mark.parametrize("name", RUNS)
def test_a_true_record_passes(records, name):
    assert_valid(recorded(load(records[name])))


@pytest.mark.one_of(5)
@pytest.mark.parametrize("what", CHANGED)
def test_a_changed_record_is_found(records, tmp_path, what):
    name, falsify, words = CHANGED[what]
    assert_invalid(recorded(load(falsified(records[name], tmp_path, falsify))), words)
