"""True records, falsified: what the sums, the judge and a rerun of `pslab verify` notice."""

from __future__ import annotations

from pathlib import Path

import falsified as forge
import pytest
from falsified import cell, fact, facts, relabelled, truncated, who_notices

from pslab.config.run import Run
from pslab.lab.runs.run import sweep

SMALL = {"model": "tiny:net", "data": "tiny:digits", "batch_size": 16, "pushes": 40, "keep_weights": True,
         "dilation": 1, "cluster": {"preset": "lab", "slow": {0: 2.0}}}  # fmt: skip
RUNS = {
    "bsp": {"engine": "virtual", "sync": "bsp"},
    "ssp": {"engine": "virtual", "sync": "ssp:1", "prune": "static:5%", "pull": "changed"},
    "asp": {"engine": "virtual", "sync": "asp"},
    "backup": {"engine": "virtual", "sync": "backup:1"},
    "local": {"sync": "ssp:1", "cluster": {"compute_s": 0.002, "slow": {0: 3.0}}},
    "pruned": {"sync": "asp", "prune": "static:5%", "pull": "changed", "cluster": {"compute_s": 0.002}},
    "restarted": {"sync": "bsp", "on_death": "restart", "cluster": {
        "compute_s": 0.004, "faults": [{"what": "kill", "worker": 1, "iteration": 4}]}},
}  # fmt: skip
Row = tuple[str, forge.Falsify, str]  # the record, how it is falsified, and words for it
#: What the sums notice, of a forger who makes none anew.
UNFORGED: dict[str, Row] = {
    "a loss is changed": ("bsp", cell("pushes", 5, "loss", lambda loss: loss - 0.01), "was changed since its manifest"),
    "pushes are cut off": ("asp", truncated("pushes.csv"), "pushes.csv was changed since its manifest was written"),
    "the manifest is cut off": ("asp", truncated("manifest.json"), "manifest.json cannot be read"),
    "a file is missing": ("asp", lambda folder: (folder / "phases.csv").unlink(), "phases.csv missing"),
    "weights are others": ("bsp", forge.other_weights, "weights.npy was changed since its manifest was written"),
}
#: What is noticed though the forger makes the sums of the files anew.
FORGED: dict[str, dict[str, Row]] = {"sums": {
    "another seed, the same digest": ("bsp", fact("run", lambda run: {**run, "seed": 9}), "parameters were changed"),
}, "judge": {
    "arrivals are removed": ("ssp", forge.without_file("arrivals.csv"), "the record has no table of arrivals"),
    "a drop is hidden": ("backup", forge.hidden_drop, "worker"),
    "lives are removed": ("restarted", fact("lives", lambda lives: []), "the worker holds version"),
    "a divergence is invented": ("local", facts(refused=0, diverged={"worker": 1, "iteration": 3}), "refuses"),
}, "rerun": {
    "a loss is a little lower": ("bsp", cell("pushes", 5, "loss", lambda loss: loss - 0.01), "pushes.csv"),
    "a byte more was sent": ("bsp", cell("pushes", -1, "bytes_up", lambda sent: sent + 1), "pushes.csv"),
    "a real loss is a little lower": ("local", cell("pushes", 5, "loss", lambda loss: loss - 0.01), "pushes.csv"),
    "an accuracy is a little higher": ("bsp", cell("accuracy", 5, "accuracy", lambda a: a + 0.01), "accuracy.csv"),
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
}}  # fmt: skip


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    runs = [Run.of({**SMALL, **fields}) for fields in RUNS.values()]
    done = sweep(runs, results=tmp_path_factory.mktemp("true"), progress=False)
    return {name: result.path for name, result in zip(RUNS, done, strict=True)}


@pytest.mark.parametrize("name", RUNS)
def test_a_true_record_is_not_objected_to(records, name):
    assert who_notices(records[name]) == ("", "")


@pytest.mark.parametrize(("who", "what"), [(who, what) for who, rows in FORGED.items() for what in rows])
def test_a_change_is_noticed_though_its_sums_are_made_anew(records, tmp_path, who, what):
    name, falsify, words = FORGED[who][what]
    found, said = who_notices(forge.falsified(records[name], tmp_path, falsify), again=who == "rerun")
    assert (found, words in said) == (who, True), said


def test_what_is_changed_has_another_sum(records, tmp_path):
    for what, (name, falsify, words) in UNFORGED.items():
        who, said = who_notices(forge.falsified(records[name], tmp_path / what, falsify, sums=False), again=False)
        assert (who, words in said) == ("sums", True), said
