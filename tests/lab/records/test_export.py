"""Exports are what other tools read: held against those tools, where they are installed."""

from __future__ import annotations

from pathlib import Path

import handmade
import pytest

from pslab.__main__ import main
from pslab.config.run import Run
from pslab.errors import ConfigError
from pslab.lab.records import export as exports
from pslab.lab.records.export import TOOLS, export
from pslab.lab.records.record import Result

CURVE = [0.1, 0.5, 0.9712]


@pytest.fixture
def made(tmp_path: Path) -> list[Result]:
    """Two runs, whose fields differ."""
    runs = Run(sync="ssp:3", pushes=8, lease_s=5, dilation=2, target_accuracy=0.9), Run(pushes=8)
    return [handmade.curve(tmp_path, run, CURVE, verdict="valid") for run in runs]


def test_an_unknown_tool_is_refused_with_the_nearest(made: list[Result]):
    with pytest.raises(ConfigError, match="did you mean 'tensorboard'"):
        export(made, "tensorbord")


@pytest.mark.parametrize("tool", TOOLS)
def test_without_its_package_an_export_says_what_to_install(tool, made, monkeypatch, tmp_path):
    monkeypatch.setattr(exports, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=rf"needs the package {TOOLS[tool][0]}: pip install -e '.*\[export\]'"):
        export(made, tool, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("named", [False, True])
def test_the_verb_exports_the_records_that_are_named(named, made, monkeypatch, capsys, tmp_path):
    seen: list[tuple[list[str], str]] = []

    def note(results: list[Result], place: str) -> None:
        seen.append(([result.digest for result in results], place))

    monkeypatch.setattr(exports, "TOOLS", {"tensorboard": ("json", note)})
    out = str(tmp_path / "out") if named else str(tmp_path / "exports" / "tensorboard")
    words = ["export", made[0].digest[:6], str(made[1].path), "--to", "tensorboard", "--results", str(tmp_path)]
    assert main([*words, *(["--out", out] if named else [])]) == 0
    assert seen == [([made[0].digest, made[1].digest], out)]
    assert out in capsys.readouterr().out


@pytest.mark.slow
def test_tensorboard_reads_what_each_evaluation_said(made: list[Result], tmp_path: Path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for _ in range(2):  # the second takes the place of the first
        export(made, "tensorboard", tmp_path / "out")
    for result in made:
        reader = EventAccumulator(str(tmp_path / "out" / result.digest))
        reader.Reload()
        events = reader.Scalars("accuracy")
        assert [event.step for event in events] == [0, 4, 8]
        assert [event.value for event in events] == pytest.approx(CURVE)  # it keeps 32 bits
        assert events[2].wall_time - events[0].wall_time == pytest.approx(2.0, abs=1e-3)
        assert {"loss", "bytes", "final"} <= {*reader.Tags()["scalars"]}
        assert "_hparams_/session_start_info" in reader.summary_metadata


@pytest.mark.slow
def test_mlflow_finds_each_run_once_in_its_store(made: list[Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("DO_NOT_TRACK", "true")
    monkeypatch.setenv(exports.OLD_STORE, "true")
    for _ in range(2):
        export(made, "mlflow", tmp_path / "out")
    client = mlflow.MlflowClient((tmp_path / "out").as_uri())
    runs = client.search_runs([client.get_experiment_by_name("pslab").experiment_id])
    assert {run.data.tags[exports.DIGEST] for run in runs} == {result.digest for result in made}
    assert len(runs) == len(made)
    (run,) = (run for run in runs if run.data.params["sync"] == "ssp:3")
    assert run.info.status == "FINISHED"
    assert run.info.end_time - run.info.start_time == 2000
    history = client.get_metric_history(run.info.run_id, "accuracy")
    assert [(value.step, value.value) for value in history] == [*zip([0, 4, 8], CURVE, strict=True)]
    assert [each.path for each in client.list_artifacts(run.info.run_id)] == ["manifest.json"]
    assert run.data.tags["outcome"].startswith("97.12% after 8 pushes")

