"""pslab verify: what the sums, the judge and a rerun say of true records, of damaged ones and of falsified ones."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import handmade
import numpy as np
import pandas as pd
import pytest
import torch
from tiny import Diverges, tiny
from torch import nn

from pslab.__main__ import main
from pslab.config.run import Run
from pslab.engines.server.ledger import ARRIVAL_COLUMNS
from pslab.engines.virtual import recorded_order
from pslab.errors import RecordError
from pslab.lab.commands.finding import PROBLEM
from pslab.lab.commands.verify import judgement, rerun, sums
from pslab.lab.records.disk import write_manifest
from pslab.lab.records.results import load
from pslab.lab.runs.resolve import resolve
from pslab.lab.runs.run import run
from pslab.policies.sync.asp import ASP

SMALL = {"model": "tiny:net", "data": "tiny:digits", "batch_size": 16, "pushes": 40, "dilation": 1, "sync": "asp",
         "keep_weights": True}  # fmt: skip
VIRTUAL = {"engine": "virtual", "cluster": {"preset": "lab", "slow": {0: 2.0}}}
PRUNED, LINKS, FAST = {"prune": "static:5%", "pull": "changed"}, {"bandwidth_bit_s": 1e8}, {"compute_s": 0.002}
OVERFLOWS = {"model": "tiny:Swells", "optimizer": "adam", "learning_rate": 1e6}  # numbers that are not finite
#: Runs of true records, some of which are falsified below; and more kinds of real ones.
RUNS = {
    "bsp": {**VIRTUAL, "sync": "bsp"},
    "ssp": {**VIRTUAL, "sync": "ssp:1", **PRUNED},
    "backup": {**VIRTUAL, "sync": "backup:1"},
    "not finite": {**VIRTUAL, **OVERFLOWS},
    "local": {"sync": "ssp:1", "cluster": {**FAST, "slow": {0: 3.0}}},
    "pruned": {"cluster": FAST, **PRUNED},
    "restarted": {"sync": "bsp", "on_death": "restart", "cluster": {
        "compute_s": 0.004, "faults": [{"what": "kill", "worker": 1, "iteration": 4}]}},
}  # fmt: skip
MORE = {
    "layers": {"sync": "bsp", "servers": 2, "ranges": "layers", "cluster": {**FAST, **LINKS}},
    "eager": {"sync": "eager", "prune": "dgc:5%", "pull": "changed"},
    "keys": {"sync": "ssp:1", "prune": "range:5", "pull": "range"},
    "dropped": {"sync": "backup:1"},
    "admm": {"sync": "admm:2"},
    "seconds": {"pushes": None, "seconds": 2.0},
    "real, not finite": OVERFLOWS,
    "without one": {"on_death": "continue", "cluster": {
        **FAST, "faults": [{"what": "kill", "worker": 1, "iteration": 2}]}},
    "twice": {"cluster": {**FAST, "faults": [{"what": "duplicate", "probability": 0.3}]}},
}  # fmt: skip
Records = Callable[[str], Path]


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Records:
    """The folder of the record with a name, which is made once."""
    results = tmp_path_factory.mktemp("results")
    return cache(lambda name: made(results, RUNS.get(name) or {"cluster": FAST, **MORE[name]}))


def made(results: Path, fields: dict) -> Path:
    return run(Run.of({**SMALL, **fields}), results=results, progress=False).path


def verified(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, list[str], str]:
    """The exit status, the first two words of each line that is a finding's first, and all words."""
    status = main(["verify", *map(str, arguments)])
    out = capsys.readouterr().out
    lines = [line.split()[:2] for line in out.splitlines() if line.startswith(("ok ", "note ", "PROBLEM "))]
    return status, [" ".join(line) for line in lines], " ".join(out.split())


# -- true records ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*RUNS, "layers", *(pytest.param(name, marks=pytest.mark.slow) for name in MORE
                                                     if name != "layers")])  # fmt: skip
def test_a_true_record_is_computed_again_to_the_same_bits(capsys, record: Records, name: str):
    path = record(name)
    status, lines, out = verified(capsys, path.name[:6], "--results", path.parents[1])
    again, words = ("note", "was replaced, and the state") if name == "restarted" else ("ok", "the same bits: ")
    assert (status, lines, words in out) == (0, ["ok sums", "ok judge", f"{again} rerun"], True)


class Mine(ASP):
    """A policy of the user's own."""


def own_net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))


@pytest.mark.parametrize(("fields", "lines", "words"), [
    ({"sync": Mine()}, "ok note note", "none: sync='Mine#"),
    ({"model": own_net, "data": "mnist:train=256,test=64"}, "ok ok note", "none: model='own_net#"),
], ids=["a policy", "a model"])  # fmt: skip
def test_an_object_of_the_users_is_not_in_a_record_which_is_said(capsys, tmp_path, fields, lines, words):
    status, found, out = verified(capsys, made(tmp_path, {**VIRTUAL, **fields}))
    assert (status, [line.split()[0] for line in found], words in out) == (0, lines.split(), True)


@pytest.mark.parametrize("first", [0, 1])
def test_of_workers_whose_gradients_are_not_finite_the_one_ended_the_run_that_the_record_names(first):
    experiment = resolve(tiny(engine="virtual", cluster=recorded_order.CLUSTER, model=partial(Diverges, 0), workers=2))
    nothing = np.empty((0, len(ARRIVAL_COLUMNS)))
    outcome = recorded_order.execute(experiment, nothing, "diverged", 1.0, first)
    assert outcome.facts["diverged"] == {"worker": first, "iteration": 0}


def test_a_record_of_a_gpu_that_is_not_here_is_not_run_again(capsys, record, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    copy = falsified(record("bsp"), tmp_path, relabelled(device="cuda"))
    status, _, out = verified(capsys, copy)
    assert (status, "torch sees no CUDA device here" in out) == (0, True)


# -- damaged and falsified ones ----------------------------------------------------------------------


def test_one_bad_record_does_not_hide_the_next_and_an_unknown_digest_names_the_nearest(capsys, record, tmp_path):
    true = record("bsp")
    assert main(["verify", true.name[:5] + "zz", "--results", str(true.parents[1])]) == 2
    assert true.name in capsys.readouterr().err
    noted, changed, torn = (Path(shutil.copytree(true, tmp_path / place / true.name)) for place in "abc")
    (noted / "notes.txt").write_text("mine")
    (changed / "pushes.csv").write_text("")
    (torn / "phases.csv").unlink()
    status, lines, out = verified(capsys, noted, changed, torn, handmade.asp(tmp_path).path)
    assert status == 1
    assert lines == ["PROBLEM sums"] * 2 + ["PROBLEM record", "ok sums", "ok judge", "PROBLEM rerun"]
    assert "contains notes.txt, which its manifest does not list: move it away" in out
    assert "pushes.csv was changed since its manifest was written" in out


Falsify = Callable[[Path], object]  # it changes the files of a folder


def cell(name: str, row: int, column: str, change: Callable[[float], float]) -> Falsify:
    """Return a falsification by which one number of a table is another one."""

    def falsify(folder: Path) -> None:
        table = pd.read_csv(folder / f"{name}.csv")
        values = table[column].tolist()
        values[row] = type(values[row])(change(values[row]))
        table.assign(**{column: values}).to_csv(folder / f"{name}.csv", index=False)

    return falsify


def facts(**changed: Any) -> Falsify:
    """Return a falsification by which the manifest has other facts; a function makes a new one of the old one."""

    def falsify(folder: Path) -> None:
        found = json.loads((folder / "manifest.json").read_text())
        for name, value in changed.items():
            found[name] = value(found.get(name)) if callable(value) else value
        (folder / "manifest.json").write_text(json.dumps(found))

    return falsify


def relabelled(**fields: object) -> Falsify:
    """Return a falsification by which the manifest names another run, with the digest of that."""

    def falsify(folder: Path) -> None:
        other = Run.of({**load(folder).run.plain(), **fields})
        facts(run=other.plain(), digest=other.digest)(folder)

    return falsify


def without_arrivals(folder: Path) -> None:
    (folder / "arrivals.csv").unlink()
    facts(sha256=lambda sums: {name: value for name, value in sums.items() if name != "arrivals.csv"})(folder)


def falsified(record: Path, place: Path, falsify: Falsify) -> Path:
    """Return a copy of a record that is falsified, with new sums of its files, in the folder of its digest."""
    copy = shutil.copytree(record, place / record.name)
    falsify(copy)
    found = json.loads((copy / "manifest.json").read_text())
    write_manifest(copy, found, list(found["sha256"]))
    return copy.rename(copy.with_name(found["digest"]))


def who_notices(folder: Path) -> tuple[str, str]:
    """Return who is the first to notice what is wrong with a record: sums, judge, rerun, or "". And the words."""
    who = "sums"
    try:
        result = load(folder)
        sums(result)
        for who, check in (("judge", judgement), ("rerun", rerun)):
            if (found := check(result)).state == PROBLEM:
                return who, found.text
    except RecordError as error:
        return who, str(error)
    return "", ""


Row = tuple[str, Falsify, str]  # the record, how it is falsified, and words for it
#: Who notices what, though the forger makes the sums of the files anew.
FORGED: dict[str, dict[str, Row]] = {"sums": {
    "another seed, the same digest": ("bsp", facts(run=lambda run: {**run, "seed": 9}), "parameters were changed"),
}, "judge": {
    "arrivals are removed": ("ssp", without_arrivals, "the record has no table of arrivals"),
    "lives are removed": ("restarted", facts(lives=[]), "the worker holds version"),
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
    "a largest weight": ("local", facts(largest_weight=lambda found: found * 2), "largest_weight"),
    "another model": ("local", relabelled(model="tiny:Noisy"), ""),
    "other data": ("local", relabelled(data="mnist"), ""),
    "another optimizer": ("local", relabelled(optimizer="sgd:momentum=0.9"), "the weights"),
    "another schedule": ("local", relabelled(schedule="warmup:0.5"), ""),
    "another rate": ("local", relabelled(rate="dynsgd"), "the weights"),
    "another seed": ("local", relabelled(seed=9, cluster=FAST), ""),
    "a seldomer pruning rule": ("pruned", relabelled(prune="static:4%"), "pushes.csv"),
    "another pruning rule": ("pruned", relabelled(prune="dgc:5%"), "pushes.csv"),
    "another weight of a push": ("pruned", relabelled(push_weight=0.5), "the weights"),
    "another loss": ("local", relabelled(loss="mse"), ""),
    "another length of a pass": ("local", facts(pass_iterations=15), "pass_iterations"),
}}  # fmt: skip


@pytest.mark.parametrize(("who", "what"), [(who, what) for who, rows in FORGED.items() for what in rows])
def test_a_change_is_noticed_though_its_sums_are_made_anew(record, tmp_path, who, what):
    name, falsify, words = FORGED[who][what]
    found, said = who_notices(falsified(record(name), tmp_path, falsify))
    assert (found, words in said) == (who, True), said
