"""Records: whole or not there at all; what a person, another tool and a user of torch read of one."""

from __future__ import annotations

import json
import math
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import handmade
import numpy as np
import pandas as pd
import pytest
import torch
from tiny import digits, tiny
from torch import Tensor, nn

from pslab.__main__ import main
from pslab.config import gpus
from pslab.config.run import Run
from pslab.engines.server.ledger import PUSH_COLUMNS
from pslab.errors import ConfigError, RecordError
from pslab.lab.commands.verify import sums
from pslab.lab.records import export as exports
from pslab.lab.records.card import sparkline
from pslab.lab.records.disk import write_manifest
from pslab.lab.records.drafts import Draft, clean
from pslab.lab.records.export import TOOLS, export
from pslab.lab.records.record import FILES, WEIGHTS, Result, find
from pslab.lab.records.results import load
from pslab.lab.runs.run import run
from pslab.tensors.workload.data import batch

TABLES = {
    "accuracy": pd.DataFrame({"pushes": [0, 4], "iteration": [0.0, 1.0], "seconds": [0.0, 0.1 + 0.2],
                              "accuracy": [0.1, 0.9], "loss": [2.3, 1e-17]}),
    "phases": pd.DataFrame({"worker": [0], "iteration": [0], "phase": ["compute"], "begin_s": [0.0], "end_s": [0.1],
                            "waits_for": [-1], "range": [-1]}),
    "pushes": pd.DataFrame({name: [0] for name in PUSH_COLUMNS}),
}  # fmt: skip
VALUES, CURVE = np.arange(4, dtype=np.float32), [0.1, 0.5, 0.9712]
RUN, ALL = Run(keep_weights=True), (*FILES, WEIGHTS)
FACTS = {"outcome": "budget", "seconds": 0.3, "pushes": 4}


def written(results, run=None):
    return Draft(run or RUN, results).save(TABLES, VALUES, FACTS)


# -- files -----------------------------------------------------------------------------------------


def test_what_is_written_is_read(tmp_path):
    made = written(tmp_path)
    found = find(RUN, tmp_path)
    assert (made.cached, found.cached) == (False, True)
    assert sorted(p.name for p in found.path.iterdir()) == sorted(ALL)
    for name in TABLES:
        pd.testing.assert_frame_equal(getattr(found, name), TABLES[name], check_exact=True)
    assert (found.weights == VALUES).all()
    assert found.manifest["outcome"] == "budget"
    assert load(found.path).run == RUN
    assert find(RUN.but(seed=1), tmp_path) is None


def test_weights_are_kept_where_the_run_asks_for_them(tmp_path):
    made = written(tmp_path, Run())
    assert not (made.path / WEIGHTS).exists()
    assert len(made.manifest["weights_sha256"]) == 64
    for take in (lambda: load(made.path).weights, handmade.curve(tmp_path, Run(seed=1), CURVE).model):
        with pytest.raises(RecordError, match="execute the run with keep_weights=True"):
            take()


def test_what_was_interrupted_is_kept_with_its_weights_and_not_taken_for_a_result(tmp_path):
    kept, other = (Draft(Run(), tmp_path).set_aside(TABLES, VALUES, FACTS) for _ in range(2))
    assert other.path != kept.path
    assert {path.name.split("-")[0] for path in (tmp_path / "interrupted").iterdir()} == {Run().digest}
    assert load(kept.path).accuracy.accuracy.iloc[-1] == 0.9
    assert (kept.weights == VALUES).all()  # nobody gets them again
    assert find(Run(), tmp_path) is None
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_record_of_a_gpu_names_it_and_is_verified_elsewhere(tmp_path, monkeypatch):
    with monkeypatch.context() as there:
        there.setattr(gpus, "kinds", lambda: "NVIDIA H100 80GB HBM3")
        there.setattr(gpus, "version", lambda: "550.54.15")
        made = written(tmp_path, Run(device="cuda"))
    said = made.manifest["environment"]
    assert (said["gpu"], said["driver"], bool(said["deterministic"])) == ("NVIDIA H100 80GB HBM3", "550.54.15", True)
    assert sums(load(made.path)).state == "ok"


def rewritten(made, **changed):
    write_manifest(made.path, {**made.manifest, **changed}, ALL)


def pickled(made):
    np.save(made.path / "weights.npy", np.array([object()]), allow_pickle=True)


def of_another(made):
    shutil.rmtree(made.path)
    written(made.path.parents[1], RUN.but(seed=1)).path.rename(made.path)


#: what somebody did to a record, and the words of who finds it or reads its weights
DAMAGES = [
    *((lambda made, name=name: (made.path / name).unlink(), re.escape(name)) for name in ALL),
    *((lambda made, text=text: (made.path / "manifest.json").write_text(text), words) for text, words in (
        ("{", "cannot be read"), ("[" * 200_000, "cannot be read"), ("[]", "is not a JSON object"),
        ('{"sha256": 3}', "is not a JSON object"), ("{}", "it has no outcome"),
        ('{"run": {"seed": 1' + "0" * 5000 + "}}", "cannot be read"))),
    *((lambda made, change=change: rewritten(made, **change), None) for change in (
        {"digest": "../../../X"}, {"run": 3}, {"run": {"workers": 10**400}})),
    (of_another, "is the record of another run than its name says"), (pickled, "was changed since"),
    (lambda made: (pickled(made), rewritten(made)), "allow_pickle"),  # by somebody who forges its sum as well
]  # fmt: skip


@pytest.mark.parametrize(("damage", "words"), DAMAGES, ids=range(len(DAMAGES)))
def test_weights_are_never_unpickled_and_what_is_damaged_is_no_record(tmp_path, damage, words):
    made = written(tmp_path)
    damage(made)
    with pytest.raises(RecordError, match=words):
        _ = (find(RUN, tmp_path) if words else load(made.path)).weights


def test_results_that_were_removed_are_made_again_and_of_two_that_finish_one_run_the_first_stays(tmp_path):
    draft, other = Draft(RUN, tmp_path / "results"), Draft(RUN, tmp_path / "results")
    shutil.rmtree(tmp_path / "results")
    first = draft.save(TABLES, VALUES, FACTS)
    assert (first.path.parent, load(first.path).run) == (tmp_path / "results" / "runs", RUN)
    assert other.save(TABLES, VALUES, {**FACTS, "outcome": "target"}).manifest == first.manifest
    assert find(RUN, tmp_path / "results").manifest["outcome"] == "budget"
    assert len(list(first.path.parent.iterdir())) == 1


class Policy:
    """Something with source text."""


def test_an_objects_record_says_what_it_was(tmp_path):
    made = written(tmp_path, Run(sync=Policy()))
    manifest = json.loads((made.path / "manifest.json").read_text())
    assert manifest["source"]["sync"] == f"from {__name__} import Policy\nPolicy()\n"
    assert "class Policy" in manifest["source"][__name__.replace(".", "/") + ".py"]
    assert (load(made.path).run.sync, load(made.path).run.digest) == (manifest["run"]["sync"], made.digest)


def test_drafts_of_dead_writers_are_cleared_and_others_kept(tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    here, gone = platform.node(), ended.pid
    dead, old, *kept = (tmp_path / "runs" / f".d.{each}.x" for each in (
        f"{here}.{gone}", f"other.{gone}", f"{here}.{os.getpid()}", f"another.{gone}", f"{here}.nobody"))  # fmt: skip
    for folder in (dead, old, *kept):
        folder.mkdir(parents=True)
    os.utime(old, (0, 0))  # of a container that is gone: nobody asks its number
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / f".curve.html.{here}.{gone}.x").touch()
    clean(tmp_path)
    assert {*tmp_path.glob("*/.*")} == {*kept}


# -- read by a person --------------------------------------------------------------------------------


def card(result: Result) -> str:
    """Its words; it is well-formed."""
    return " ".join(" ".join(ElementTree.fromstring(result._repr_html_()).itertext()).split())


@pytest.mark.parametrize(("facts", "words", "end"), [
    ({"emulation_ok": False}, "too slow for the emulated cluster", "2 s*"), ({"verdict": "invalid"}, "invalid", "2 s‡"),
    ({"outcome": "interrupted"}, "only the completed part", ""), ({"outcome": "diverged"}, "diverged after 8", ""),
    ({"dilation": 2.0, "wall_s": 31.42}, "2.00 s of cluster time; took 31.4 s here", "2 s"),
])  # fmt: skip
def test_a_card_says_what_ran_how_it_ended_where_it_lies_and_what_must_not_be_hidden(facts: dict, words: str, end: str):
    plain, usual = handmade.curve(None, RUN.but(sync="ssp:3", pushes=8), CURVE), handmade.curve(None, Run(), CURVE)
    assert card(plain).startswith("97.12% after 8 pushes, 2.00 s 10.00% to 97.12%")
    assert card(plain).endswith(f"sync ssp:3 · pushes 8 · keep_weights True {plain.path}")
    assert "every field at its default" in card(usual)
    result = handmade.curve(None, Run(pushes=8), CURVE, **facts)
    assert words not in card(plain)
    assert words in card(result)
    assert not end or repr(result) == f"<Result {result.digest}: 97.12%, 8 pushes, {end}>"


def test_a_sparkline_rises_from_left_to_right_and_leaves_out_what_is_not_finite():
    svg = sparkline([0, 4, 8, 12], [0.0, math.nan, 0.5, 1.0], str)
    (line,) = re.findall("points='([^']*)'", svg)
    assert line == f"4.0,44.0 {4 + 232 * 8 / 12:.1f},24.0 236.0,4.0"  # in 240 x 48 with a margin of 4
    assert "0.0 to 1.0" in svg
    assert sparkline([0], [math.nan], str) == ""
    assert "circle" in sparkline([0], [0.5], str)


# -- read by other tools -----------------------------------------------------------------------------


@pytest.fixture
def made(tmp_path: Path) -> list[Result]:
    """Two runs, whose fields differ."""
    runs = Run(sync="ssp:3", pushes=8, lease_s=5, dilation=2, target_accuracy=0.9), Run(pushes=8)
    return [handmade.curve(tmp_path, run, CURVE, verdict="valid") for run in runs]


def test_without_its_package_an_export_says_what_to_install_and_an_unknown_one_the_nearest(made, monkeypatch, tmp_path):
    with pytest.raises(ConfigError, match="did you mean 'tensorboard'"):
        export(made, "tensorbord")
    monkeypatch.setattr(exports, "find_spec", lambda name: None)
    for tool in TOOLS:
        with pytest.raises(ConfigError, match=rf"needs the package {TOOLS[tool][0]}: pip install -e '.*\[export\]'"):
            export(made, tool, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_verb_exports_the_records_that_are_named(made, capsys, tmp_path):
    words = ["export", made[0].digest[:6], str(made[1].path), "--to", "notebook", "--results", str(tmp_path)]
    for out, named in ((tmp_path / "exports" / "notebook", []), (tmp_path / "mine", ["--out", str(tmp_path / "mine")])):
        assert main([*words, *named]) == 0
        assert {path.stem for path in out.iterdir()} == {result.digest for result in made}
        assert str(out) in capsys.readouterr().out


@pytest.mark.slow
def test_tensorboard_and_mlflow_have_what_each_evaluation_said_once(made, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.setenv("DO_NOT_TRACK", "true")
    monkeypatch.setenv(exports.OLD_STORE, "true")
    for _ in range(2):  # the second takes the place of the first
        for tool in ("tensorboard", "mlflow"):
            export(made, tool, tmp_path / tool)
    for result in made:
        reader = EventAccumulator(str(tmp_path / "tensorboard" / result.digest))
        reader.Reload()
        events = reader.Scalars("accuracy")
        assert [event.step for event in events] == [0, 4, 8]
        assert [event.value for event in events] == pytest.approx(CURVE)  # it keeps 32 bits
        assert events[2].wall_time - events[0].wall_time == pytest.approx(2.0, abs=1e-3)
        assert {"loss", "bytes", "final"} <= {*reader.Tags()["scalars"]}
        assert "_hparams_/session_start_info" in reader.summary_metadata
    client = mlflow.MlflowClient((tmp_path / "mlflow").as_uri())
    runs = client.search_runs([client.get_experiment_by_name("pslab").experiment_id])
    assert sorted(each.data.tags[exports.DIGEST] for each in runs) == sorted(result.digest for result in made)
    (found,) = (each for each in runs if each.data.params["sync"] == "ssp:3")
    assert (found.info.status, found.info.end_time - found.info.start_time) == ("FINISHED", 2000)
    history = client.get_metric_history(found.info.run_id, "accuracy")
    assert [(value.step, value.value) for value in history] == [*zip([0, 4, 8], CURVE, strict=True)]
    assert [each.path for each in client.list_artifacts(found.info.run_id)] == ["manifest.json"]
    assert found.data.tags["outcome"].startswith("97.12% after 8 pushes")


# -- its model ---------------------------------------------------------------------------------------


class Normed(nn.Module):
    """With running statistics, a frozen layer and one that nothing reaches."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen, self.norm = nn.Linear(49, 16).requires_grad_(False), nn.BatchNorm1d(16)
        self.spare, self.head = nn.Linear(3, 2), nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.head(self.norm(self.frozen(x.flatten(1) * 3)))
        return output


@pytest.mark.filterwarnings("ignore:no loss reaches")
def test_the_model_of_a_result_is_the_one_that_was_evaluated(tmp_path: Path):
    result = run(tiny(model=Normed, engine="virtual", cluster="lab"), results=tmp_path)
    data, model, loaded = digits(), result.model(), Normed()
    assert loaded.load_state_dict(result.state_dict()).missing_keys == []
    x = batch(data.test_x, torch.float32, data.mean, data.std)
    for each in (model, loaded.eval()):
        assert float((each(x).argmax(1) == data.test_y).double().mean()) == result.final > 0.2
    trained = nn.utils.parameters_to_vector([each for each in model.parameters() if each.requires_grad])
    assert torch.equal(trained, torch.from_numpy(result.weights.copy()))
    next(model.parameters()).data.zero_()  # to train it further changes no other
    assert result.model().frozen.weight.any()
    with pytest.raises(ConfigError, match=r"has 12 trainable weights, but the record has .*: define the model"):
        Result(result.run.but(model=lambda: nn.Linear(2, 4)), result.path, result.manifest).model()
