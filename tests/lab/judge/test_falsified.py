"""True records, falsified: what the sums, the judge and a rerun notice, whether or not the forger made new sums."""

from __future__ import annotations

import json
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
    without_arrivals,
)
from histories import forgotten, pulled, renumbered, repeated, swapped

from pslab.config.run import Run
from pslab.lab.records.record import evaluation_sum
from pslab.lab.runs.run import sweep

SMALL = {"model": "tiny:net", "data": "tiny:digits", "batch_size": 16, "pushes": 40, "keep_weights": True,
         "cluster": {"preset": "lab", "slow": {0: 2.0}}}  # fmt: skip
RUNS = {
    "bsp": {"engine": "virtual", "sync": "bsp"},
    "ssp": {"engine": "virtual", "sync": "ssp:1", "prune": "static:5%", "pull": "changed"},
    "asp": {"engine": "virtual", "sync": "asp"},
    "eager": {"engine": "virtual", "sync": "eager"},
    "backup": {"engine": "virtual", "sync": "backup:1"},
    "leave": {"engine": "virtual", "sync": "asp", "cluster": {**SMALL["cluster"], "leave": {2: 0.1}}},
    "beside": {"engine": "virtual", "sync": "asp", "servers": 2, "cluster": {**SMALL["cluster"], "colocated": True}},
    "local": {"sync": "ssp:1", "cluster": {"compute_s": 0.002, "slow": {0: 3.0}}},
    "pruned": {"sync": "asp", "prune": "static:5%", "pull": "changed", "cluster": {"compute_s": 0.002}},
    "restarted": {"sync": "bsp", "on_death": "restart", "cluster": {"compute_s": 0.004, "faults": [
        {"what": "kill", "worker": 1, "iteration": 4}]}},
    "unkept": {"sync": "bsp", "prune": "range:fit", "pull": "range", "keep_weights": False, "cluster": {
        "compute_s": 0.002, "bandwidth_bit_s": 2e6}},
}
#: What -> the record, whether the forger makes new sums, and how
NOTICED: dict[str, tuple[str, bool, Falsify]] = {
    "a loss is changed, sums stay": ("bsp", False, cell("pushes", 5, "loss", lambda loss: loss - 0.01)),
    "pushes are cut off, sums stay": ("asp", False, truncated("pushes.csv")),
    "phases are cut off": ("asp", True, truncated("phases.csv")),
    "arrivals are cut off": ("ssp", True, truncated("arrivals.csv", 0.9)),
    "the manifest is cut off": ("asp", False, truncated("manifest.json")),
    "a file is missing": ("asp", False, lambda folder: (folder / "phases.csv").unlink()),
    "arrivals are removed, and their sum": ("ssp", False, without_arrivals),
    "weights are others": ("bsp", True, other_weights),
    "another seed, the same digest": ("bsp", True, lambda folder: facts(
        run={**json.loads((folder / "manifest.json").read_text())["run"], "seed": 9})(folder)),
    "another seed": ("bsp", True, relabelled(seed=9)),
    "another bound": ("ssp", True, relabelled(sync="ssp:3")),
    "fewer spare workers": ("backup", True, relabelled(sync="backup:0")),
    "another policy": ("eager", True, relabelled(sync="asp")),
    "another codec": ("ssp", True, relabelled(codec="bitmap")),
    "a slower cluster": ("asp", True, relabelled(cluster={"preset": "lab", "slow": {0: 3.0}})),
    "another evaluation period": ("asp", True, relabelled(eval_every=4)),
    "two pushes are swapped": ("asp", True, table("pushes", lambda p: swapped(
        p, 12, 13, "worker", "iteration", "version_pulled", "staleness"))),
    "a push is repeated": ("asp", True, table("pushes", lambda p: repeated(p, 7))),
    "a push is forgotten": ("ssp", True, table("pushes", lambda p: forgotten(p, len(p) - 2))),
    "a push is left out": ("bsp", True, table("pushes", lambda p: renumbered(p.drop(index=9)))),
    "a push was computed on newer weights": ("asp", True, table("pushes", lambda p: pulled(p, 20, 1))),
    "a push is applied sooner": ("local", True, cell("pushes", 12, "seconds", lambda seconds: seconds - 0.05)),
    "two arrivals are swapped": ("ssp", True, table("arrivals", lambda a: swapped(
        a, 10, 14, "worker", "iteration", "version"))),
    "a drop is hidden": ("backup", True, hidden_drop),
    "drops are not counted": ("backup", True, facts(dropped=0)),
    "a worker never left": ("leave", True, table("arrivals", lambda a: a[a.kind != "leave"])),
    "a worker died": ("local", True, facts(deaths=[{"worker": 1, "seconds": 0.01, "iteration": 3, "how": "is gone"}])),
    "a loss is no number": ("bsp", True, cell("pushes", 5, "loss", lambda loss: np.nan)),
    "a density is lower": ("ssp", True, cell("pushes", 5, "density", lambda density: density / 2)),
    "a push has a byte more": ("bsp", True, cell("pushes", 5, "bytes_up", lambda size: size + 1)),
    "a sparse push has half the bytes": ("ssp", True, cell("pushes", 5, "bytes_up", lambda size: size // 2)),
    "a pull has a byte less": ("asp", True, cell("pushes", 5, "bytes_down", lambda size: size - 1)),
    "less crossed the network": ("beside", True, facts(network_bytes=200_000)),
    "what passed no link crossed the network": ("beside", True, lambda folder: facts(network_bytes=int(
        pd.read_csv(folder / "pushes.csv")[["bytes_up", "bytes_down"]].to_numpy().sum()))(folder)),
    "a pull begins sooner": ("asp", True, phase("pull", begin_s=-1e-4)),
    "a worker waits less": ("ssp", True, phase("wait", end_s=-1e-4)),
    "a computation is shorter": ("asp", True, phase("compute", begin_s=1e-4)),
    "a computation is shorter than modelled": ("local", True, table("phases", lambda p: p.assign(
        begin_s=p.begin_s.mask(p.phase == "compute", p.end_s - 0.001)))),
    "a worker's phases are gone": ("local", True, table("phases", lambda p: p[p.worker != 1])),
    "everything is twice as fast": ("asp", True, both(everywhere(faster), lambda folder: facts(
        seconds=json.loads((folder / "manifest.json").read_text())["seconds"] / 2)(folder))),
    "two workers have each other's name": ("asp", True, everywhere(exchanged)),
    "an evaluation is removed": ("bsp", True, table("accuracy", lambda a: a.drop(index=3))),
    "an evaluation is moved": ("asp", True, cell("accuracy", 3, "seconds", lambda seconds: seconds - 0.001)),
    "an accuracy is above 1": ("bsp", True, cell("accuracy", 5, "accuracy", lambda accuracy: 1.01)),
    "the run is shorter": ("asp", True, lambda folder: facts(
        seconds=json.loads((folder / "manifest.json").read_text())["seconds"] - 0.01)(folder)),
    "the run stopped by time": ("asp", True, facts(outcome="seconds")),
    "more pushes were accepted": ("asp", True, facts(accepted=41)),
}  # fmt: skip


def invented_life(folder: Path) -> None:
    """Worker 2's process has ended between its second and its third push, and another one has followed."""
    arrivals = pd.read_csv(folder / "arrivals.csv")
    own = arrivals[(arrivals.worker == 2) & (arrivals.kind == "push") & (arrivals.iteration == 2)]
    seconds = float(own.seconds.iloc[0]) - 1e-4
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
    weights = json.loads((folder / "manifest.json").read_text())["weights_sha256"]
    facts(evaluation_sha256=evaluation_sum(folder, weights))(folder)


REWIND = {"seconds": 0.05, "how": "server is gone", "pushes": 20, "to_pushes": 10, "to_seconds": 0.02}
#: What -> the record, how, and what the judge says of it. The forger has made new sums of files.
JUDGED: dict[str, tuple[str, Falsify, str]] = {
    "phases of a worker that lived are lost": ("local", facts(phases_lost=[0]), "none of its processes has ended"),
    "phases of all are lost": ("asp", facts(phases_lost=[0, 1, 2, 3]), "none of its processes has ended"),
    "phases of nobody are lost": ("asp", facts(phases_lost=[7]), "the manifest names worker 7"),
    "a life is invented": ("local", invented_life, "processes were replaced, and the run has on_death='stop'"),
    "a life is invented where lives are allowed": ("restarted", invented_life, "holding no weights"),
    "lives are removed": ("restarted", without("lives"), "worker 1 holds version"),
    "lives and lost phases are removed": ("restarted", without("lives", "phases_lost"), "worker 1"),
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
                                         "counts nothing as refused"),
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
    "another fleet": ("local", relabelled(fleet="loopback"), "how far the clocks of fleet='loopback' are apart"),
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
#: What -> the record, how, and what a rerun says of it. The forger has made all sums anew, also that of evaluations.
RECOMPUTED: dict[str, tuple[str, Falsify, str]] = {
    "a loss is a little lower": ("bsp", cell("pushes", 5, "loss", lambda loss: loss - 0.01), "pushes.csv"),
    "a real loss is a little lower": ("local", cell("pushes", 5, "loss", lambda loss: loss - 0.01), "pushes.csv"),
    "an accuracy is a little higher": ("bsp", cell("accuracy", 5, "accuracy", lambda a: a + 0.01), "accuracy.csv"),
    "a real accuracy is higher": ("local", cell("accuracy", 5, "accuracy", lambda a: a + 0.01), "accuracy.csv"),
    "every accuracy is higher": ("local", table("accuracy", lambda a: a.assign(
        accuracy=np.minimum(1.0, a.accuracy * 1.1))), "accuracy.csv"),
    "every accuracy is higher, after a restart": ("restarted", table("accuracy", lambda a: a.assign(
        accuracy=np.minimum(1.0, a.accuracy * 1.1))), "accuracy.csv"),
    "a loss of an evaluation": ("local", cell("accuracy", -1, "loss", lambda loss: loss * 0.9), "accuracy.csv"),
    "another learning rate": ("bsp", relabelled(learning_rate=0.3), "the weights"),
    "another real learning rate": ("local", relabelled(learning_rate=0.3), "the weights"),
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
#: What a machine measured of real processes, which nothing contradicts: docs/checking.md names all of it.
UNNOTICED: dict[str, tuple[str, Falsify]] = {
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


@pytest.mark.parametrize("what", NOTICED)
def test_a_falsified_record_is_noticed(records, tmp_path, what):
    name, forged, falsify = NOTICED[what]
    assert who_notices(falsified(records[name], tmp_path, falsify, forged=forged), again=False) != ("", "")


@pytest.mark.parametrize("what", JUDGED)
def test_what_a_manifest_says_is_held_to_its_run_and_its_tables(records, tmp_path, what):
    name, falsify, words = JUDGED[what]
    who, said = who_notices(falsified(records[name], tmp_path, falsify), again=False)
    assert who == "judge"
    assert words in said


@pytest.mark.parametrize("what", RECOMPUTED)
def test_what_follows_from_gradients_alone_is_found_by_a_rerun(records, tmp_path, what):
    name, falsify, words = RECOMPUTED[what]
    who, said = who_notices(falsified(records[name], tmp_path, falsify, knowing=True))
    assert who == "rerun"
    assert words in said


@pytest.mark.parametrize("name", ["unkept", "local"])
def test_evaluations_have_a_sum_with_the_weights_that_they_are_of(records, tmp_path, name):
    higher = cell("accuracy", -1, "accuracy", lambda accuracy: accuracy * 0.5)
    who, said = who_notices(falsified(records[name], tmp_path, higher), again=False)
    assert who == "sums"
    assert "are not those that were made of its weights" in said


@pytest.mark.parametrize("what", UNNOTICED)
def test_what_a_machine_measured_is_not_noticed(records, tmp_path, what):
    name, falsify = UNNOTICED[what]
    assert who_notices(falsified(records[name], tmp_path, falsify)) == ("", "")
