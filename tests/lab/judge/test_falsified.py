"""True records, falsified: what the sums, the judge and a rerun notice, whether or not the forger made new sums."""

from __future__ import annotations

from pathlib import Path

import numpy as np
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
    other_weights,
    phase,
    relabelled,
    table,
    truncated,
    who_notices,
    without,
    without_file,
)
from histories import swapped

from pslab.config.run import Run
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
    "on its way": {"sync": "eager:3", "on_death": "restart", "cluster": {
        "compute_s": 0.004, "latency_s": 0.02, "faults": [{"what": "kill", "worker": 1, "iteration": 4}]}},
    "unkept": {"sync": "bsp", "prune": "range:fit", "pull": "range", "keep_weights": False, "cluster": {
        "compute_s": 0.002, "bandwidth_bit_s": 2e6}},
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
Row = tuple[str, Falsify, str]  # the record, how it is falsified, and words for it
#: What the sums notice, of a forger who makes none anew.
UNFORGED: dict[str, Row] = {
    "a loss is changed": ("bsp", cell("pushes", 5, "loss", lambda loss: loss - 0.01), "pushes.csv is not what its"),
    "pushes are cut off": ("asp", truncated("pushes.csv"), "pushes.csv is not what its manifest says"),
    "the manifest is cut off": ("asp", truncated("manifest.json"), "manifest.json cannot be read"),
    "a file is missing": ("asp", lambda folder: (folder / "phases.csv").unlink(), "phases.csv missing"),
    "weights are others": ("bsp", other_weights, "weights.npy is not what its manifest says"),
}
#: Of a forger who makes all sums anew: what the sums notice all the same, what the judge does, and what a rerun does.
STILL: dict[str, Row] = {
    "weights are others": ("bsp", other_weights, "are not those whose SHA-256 its manifest has"),
    "another seed, the same digest": ("bsp", fact("run", lambda run: {**run, "seed": 9}), "parameters were changed"),
}  # fmt: skip
JUDGED: dict[str, Row] = {
    "arrivals are removed, and their sum": ("ssp", without_file("arrivals.csv"), "there is no table of arrivals"),
    "phases are cut off": ("asp", truncated("phases.csv"), "the table of phases contains"),
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
    "lives are removed": ("restarted", without("lives"), "worker 1 holds version"),
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
    "another fleet": ("local", relabelled(fleet="loopback"), "no bound on the distance of the clocks of fleet="),
    "clocks of a fleet": ("local", facts(clock_bound_s=1e-4), "all processes were on one machine"),
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
    "a computation waits": ("asp", table("phases", lambda p: p.assign(
        waits_for=p.waits_for.where(p.phase != "compute", 1))), "is said to wait for worker 1"),
    "pruned gradients were dense": ("pruned", relabelled(prune="none"), "bytes"),
    "dense gradients were pruned": ("local", relabelled(prune="static:5%"), "its encode begins at nan s"),
}  # fmt: skip
RECOMPUTED: dict[str, Row] = {
    "a loss is a little lower": ("bsp", cell("pushes", 5, "loss", lambda loss: loss - 0.01), "pushes.csv"),
    "a real loss is a little lower": ("local", cell("pushes", 5, "loss", lambda loss: loss - 0.01), "pushes.csv"),
    "an accuracy is a little higher": ("bsp", cell("accuracy", 5, "accuracy", lambda a: a + 0.01), "accuracy.csv"),
    "every accuracy is higher, after a restart": ("restarted", table("accuracy", lambda a: a.assign(
        accuracy=np.minimum(1.0, a.accuracy * 1.1))), "accuracy.csv"),
    "a loss of an evaluation": ("local", cell("accuracy", -1, "loss", lambda loss: loss * 0.9), "accuracy.csv"),
    "another learning rate": ("bsp", relabelled(learning_rate=0.3), "the weights"),
    "another batch size": ("local", relabelled(batch_size=32), "pushes.csv"),
    "weights of twice the bytes": ("local", relabelled(dtype="float64"), "the weights"),
    "a largest weight": ("local", fact("largest_weight", lambda found: found * 2), "largest_weight"),
    "another model": ("local", relabelled(model="tiny:Noisy"), ""),
    "other data": ("local", relabelled(data="mnist"), ""),
    "another optimizer": ("local", relabelled(optimizer="sgd:momentum=0.9"), "the weights"),
    "another schedule": ("local", relabelled(schedule="warmup:0.5"), ""),
    "another rate": ("local", relabelled(rate="dynsgd"), "the weights"),
    "another seed": ("local", relabelled(seed=9, cluster={"compute_s": 0.002}), ""),
    "a seldomer pruning rule": ("pruned", relabelled(prune="static:4%"), "pushes.csv"),
    "another pruning rule": ("pruned", relabelled(prune="dgc:5%"), "pushes.csv"),
    "another weight of a push": ("pruned", relabelled(push_weight=0.5), "the weights"),
    "another loss": ("local", relabelled(loss="mse"), ""),
    "another length of a pass": ("local", facts(pass_iterations=15), "pass_iterations"),
}  # fmt: skip
FORGED = {"sums": STILL, "judge": JUDGED, "rerun": RECOMPUTED}
#: What a machine measured of real processes, which nothing contradicts: docs/checking.md names all of it.
UNNOTICED: dict[str, tuple[str, Falsify]] = {
    "that a push was on its way when its process ended": ("slow links", ended_before_a_push_arrived(3)),
    "shares of the emulation that are as good": ("local", shares(late_message_mean_s=0.5, rehearsed_late_s=0.1)),
    "the time that preparation took": ("local", fact("preparation_s", lambda found: found / 2)),
    "the time on the clock": ("local", fact("wall_s", lambda found: found * 2)),
    "costs that were measured": ("local", fact("costs", lambda found: {**found, "apply_s": 2 * found["apply_s"]})),
    "the environment": ("local", fact("environment", lambda found: {**found, "cores": 64})),
    "the largest weight": ("unkept", facts(largest_weight=3.0)),
    "a loss where the order does not say all": ("unkept", cell("pushes", 5, "loss", lambda loss: loss * 0.99)),
    "a computation that ends sooner, and its choice begins so": ("local", table("phases", lambda p: p.assign(
        end_s=p.end_s + 1e-7 * (p.phase == "select")))),
}  # fmt: skip


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    runs = [Run.of({**SMALL, **fields}) for fields in RUNS.values()]
    done = sweep(runs, results=tmp_path_factory.mktemp("true"), progress=False)
    return {name: result.path for name, result in zip(RUNS, done, strict=True)}


@pytest.mark.parametrize("name", RUNS)
def test_a_true_record_is_not_objected_to(records, name):
    assert who_notices(records[name]) == ("", "")


@pytest.mark.parametrize(("who", "what"), [(who, what) for who, rows in FORGED.items() for what in rows])
def test_a_forger_of_all_sums_is_noticed(records, tmp_path, who, what):
    name, falsify, words = FORGED[who][what]
    found, said = who_notices(falsified(records[name], tmp_path, falsify), again=who == "rerun")
    assert (found, words in said) == (who, True), said


@pytest.mark.parametrize("what", UNFORGED)
def test_what_is_changed_has_another_sum(records, tmp_path, what):
    name, falsify, words = UNFORGED[what]
    who, said = who_notices(falsified(records[name], tmp_path, falsify, sums=()), again=False)
    assert (who, words in said) == ("sums", True), said


@pytest.mark.parametrize("name", ["unkept", "local"])
def test_evaluations_have_a_sum_with_the_weights_that_they_are_of(records, tmp_path, name):
    higher = cell("accuracy", -1, "accuracy", lambda accuracy: accuracy * 0.5)
    who, said = who_notices(falsified(records[name], tmp_path, higher, sums=["files"]), again=False)
    assert (who, "are not those that were made of its weights" in said) == ("sums", True), said


@pytest.mark.parametrize("what", UNNOTICED)
def test_what_a_machine_measured_is_not_noticed(records, tmp_path, what):
    name, falsify = UNNOTICED[what]
    assert who_notices(falsified(records[name], tmp_path, falsify)) == ("", "")
