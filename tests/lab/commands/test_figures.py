"""The batch: what is asked for is checked first, what is up to date is left alone, what fails stops nothing else."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest

from pslab.__main__ import main
from pslab.config.cluster import PRESETS
from pslab.config.run import Run
from pslab.errors import ConfigError, WorkerFailed
from pslab.lab.commands import figures
from pslab.lab.plots import export
from pslab.lab.records.record import Draft
from pslab.lab.studies import notebook as pages
from pslab.lab.studies import searching
from pslab.lab.studies.elasticity import elastic_runs
from pslab.lab.studies.families import family_runs
from pslab.lab.studies.observation import TABLES, Observation, save_observed
from pslab.lab.studies.ordering import order_runs
from pslab.lab.studies.ranging import range_runs
from pslab.lab.studies.searching import Searches
from pslab.lab.studies.studies import LAB, NETWORK, alone, averages, every_policy, pruning_runs, sync_runs

# -- studies ---------------------------------------------------------------------------------------


def test_a_pruning_study_has_dense_each_threshold_and_the_single_machine():
    runs = pruning_runs(family="std", thresholds=[1, 2.5], sync="ssp:3", seeds=[4])
    assert [(run.prune, run.workers, run.sync) for run in runs] == [
        ("none", 4, "ssp:3"), ("std:1", 4, "ssp:3"), ("std:2.5", 4, "ssp:3"), ("none", 1, "bsp")]  # fmt: skip
    assert {run.seed for run in runs} == {4}


def test_families_and_policies_share_their_runs():
    nine = [pruning_runs(family=family, sync=sync) for sync in figures.SYNCS for family in figures.FAMILIES]
    distinct = {run.digest for runs in [*nine, sync_runs()] for run in runs}
    assert len(distinct) == 3 * (1 + 3 + 3 + 1) + 1  # the policies' notebook adds none


def test_one_changed_parameter_is_one_new_run():
    before = {run.digest for run in pruning_runs()}
    after = {run.digest for run in pruning_runs(thresholds=["10%", "1%", "0.2%"])}
    assert len(after - before) == 1


def test_the_single_machine_keeps_the_computation_and_loses_the_network():
    run = alone(Run(sync="asp", prune="std:1", cluster={**LAB, "slow": {0: 2.0, 3: 4.0}}, push_weight=1.0))
    assert (run.workers, run.sync, run.prune, run.push_weight) == (1, "bsp", "none", None)
    assert run.cluster == {**{k: v for k, v in LAB.items() if k not in NETWORK}, "slow": {0: 2.0}}
    assert alone(Run(cluster="free")).cluster == "free"
    own = {k: v for k, v in LAB.items() if k not in NETWORK} | {"apply_s": PRESETS["lab"]["apply_s"]}  # its optimizer
    assert alone(Run(cluster="lab")).cluster == own


def test_push_weights_only_where_a_push_is_applied_alone():
    runs = sync_runs(push_weights=[None, 1.0])
    assert [(run.sync, run.push_weight) for run in runs] == [
        ("bsp", None), ("ssp:3", None), ("ssp:3", 1.0), ("asp", None), ("asp", 1.0), ("bsp", None)]  # fmt: skip


def test_each_policy_at_its_own_learning_rate():
    runs = sync_runs(policies=["bsp", "asp"], learning_rate={"bsp": 0.5, "asp": 0.2})
    assert [run.learning_rate for run in runs] == [0.5, 0.2, 0.5]
    with pytest.raises(ConfigError, match="no entry for 'asp'"):
        sync_runs(policies=["bsp", "asp"], learning_rate={"bsp": 0.5})


# -- parameters ------------------------------------------------------------------------------------

BAD = [
    ("00_tour", {"policies": "bsp"}, "must be a list"),
    ("00_tour", {"live": "yes"}, "True, False, or None"),
    ("10_pruning", {"famly": "static"}, "did you mean 'family'"),
    ("10_pruning", {"policies": ["bsp"]}, "no such parameter"),
    ("10_pruning", {"family": "statik"}, "did you mean 'static'"),
    ("10_pruning", {"thresholds": "1%"}, "must be a list"),
    ("10_pruning", {"thresholds": []}, "must be a list"),
    ("10_pruning", {"seeds": 0}, "must be a list"),
    ("10_pruning", {"seeds": [0.5]}, "seed"),
    ("10_pruning", {"workers": "four"}, "workers"),
    ("10_pruning", {"workers": 0}, "workers"),
    ("10_pruning", {"pushes": True}, "pushes"),
    ("10_pruning", {"pull": "some"}, "pull"),
    ("10_pruning", {"cluster": 3}, "cluster"),
    ("10_pruning", {"images": "yes"}, "must be True or False"),
    ("20_sync_policies", {"family": "static"}, "no such parameter"),
    ("20_sync_policies", {"policies": "bsp"}, "must be a list"),
    ("20_sync_policies", {"push_weights": [0]}, "push_weight"),
    ("20_sync_policies", {"learning_rate": -1}, "learning_rate"),
    ("20_sync_policies", {"learning_rate": []}, "must be a list"),
    ("20_sync_policies", {"learning_rate": [0.1, "fast"]}, "learning_rate"),
    ("25_ssp_tuning", {"clusters": "lab"}, "must map names"),
    ("25_ssp_tuning", {"seeds": []}, "must be a list"),
    ("01_observation", {"workers": 2}, "no such parameter"),
    ("01_observation", {"moments": [937]}, "from 0 to 936"),
    ("01_observation", {"moments": 5}, "must be a list"),
    ("01_observation", {"moments": [True]}, "must be whole"),
    ("01_observation", {"every": 0}, "every"),
    ("01_observation", {"rules": "static:1%"}, "must be a list"),
    ("01_observation", {"rules": []}, "must be a list"),
    ("01_observation", {"rules": [1]}, "must be a list"),
    ("01_observation", {"repeats": 0}, "repeats"),
    ("01_observation", {"pushes": None}, "stop rule"),
    ("30_nothing", {}, "20_sync_policies"),
]


@pytest.mark.parametrize(("notebook", "values", "words"), BAD)
def test_wrong_parameters_are_refused(notebook: str, values: dict[str, Any], words: str):
    with pytest.raises(ConfigError, match=words):
        pages.check_parameters(notebook, values)


def test_a_notebooks_globals_are_checked_for_what_its_cells_of_parameters_assign():
    cells = ["", "# Parameters\nfamily = 'std'\nworkers = 2", "other = 3", "# Parameters\nfamly = 'x'", "check"]
    found = {"In": cells, "family": "std", "workers": 2, "other": 3, "Out": {}, "images": True}
    assert pages.parameters("10_pruning", {**found, "In": [*cells[:3], "check"]}) == {"family": "std", "workers": 2}
    with pytest.raises(ConfigError, match="did you mean 'family'"):
        pages.parameters("10_pruning", {**found, "famly": "x"})
    mended = [*cells, "# Parameters\nfamily = 'std'", "check"]  # what was refused before the last check is forgiven
    assert pages.parameters("10_pruning", {**found, "famly": "x", "In": mended})["family"] == "std"


def test_names_of_figures():
    assert pages.stem("10_pruning", {"family": "std", "sync": "ssp:3"}) == "10_pruning-std-ssp3"
    assert pages.stem("20_sync_policies", {}) == "20_sync_policies-none"
    assert pages.stem("20_sync_policies", {"prune": "static:0.1%"}) == "20_sync_policies-static0.1"
    assert pages.stem("20_sync_policies", {"learning_rate": [0.1], "workers": 2}) == "20_sync_policies-none-w2-rates"
    assert pages.stem("25_ssp_tuning", {}) == "25_ssp_tuning-none"


def test_save_refuses_figures_that_nobody_expects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PSLAB_RESULTS", str(tmp_path))
    with pytest.raises(ConfigError, match="accuracy, bytes, time"):
        pages.save("10_pruning", {}, {"accuracy": go.Figure()})
    assert not list(tmp_path.iterdir())


# -- the batch -------------------------------------------------------------------------------------


class Bench:
    """The batch with papermill and the browser replaced by what they leave behind."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.results, self.executed, self.exported = root / "results", [], []
        self.notebooks = root / "notebooks"
        self.fails: dict[str, Exception] = {}
        self.environment: dict[str, str | None] = {}
        shutil.copytree(Path(figures.__file__).parents[3] / "notebooks", self.notebooks,
                        ignore=shutil.ignore_patterns(".ipynb_checkpoints"))  # fmt: skip
        monkeypatch.setattr(figures, "_papermill", self.papermill)
        monkeypatch.setattr("pslab.lab.runs.run.sweep", self.sweep)
        self.swept: list[str] = []
        self.refuses: set[str] = set()
        monkeypatch.setattr(export, "write_images", self.images)
        self.cut = False

    def __call__(self, *arguments: str) -> int:
        self.executed, self.exported, self.swept = [], [], []
        return main(["figures", "--results", str(self.results), "--notebooks", str(self.notebooks), *arguments])

    def sweep(self, runs: list[Run], results: Path, progress: bool) -> None:
        for run in runs:
            if run.digest in self.refuses:
                raise WorkerFailed("worker 1", 3, "the model broke here")
            self.swept.append(run.digest)
            record(run, results)

    def papermill(self, job: figures.Job, draft: Path) -> None:
        self.executed.append(job.name)
        self.environment = {name: os.environ.get(name) for name in ("PSLAB_RESULTS", "PLOTLY_RENDERER")}
        for run in job.missing():
            record(run, self.results)
        notebook: Any = nbformat.read(job.source, 4)
        for cell in notebook.cells:
            if cell.cell_type == "code":
                cell.execution_count = None if self.cut else 1
        nbformat.write(notebook, draft)
        if job.name in self.fails:
            raise self.fails[job.name]
        for picture in job.pictures:
            export.write(go.Figure(), picture.name, picture.parent)

    def images(self, pairs: Any) -> list[Path]:
        written = []
        for source, picture in pairs:
            assert source.is_file()
            self.exported.append(picture.name)
            written += [export.replace(picture.with_name(f"{picture.name}.{kind}"), b"") for kind in export.FORMATS]
        return written


def record(run: Run | Observation | Searches, results: Path) -> None:
    if isinstance(run, Searches):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(searching, "measured", lambda wanted: pd.DataFrame(columns=["seconds"]))
            searching.search(run, results=results)
        return
    if isinstance(run, Observation):
        save_observed(run, {name: pd.DataFrame(columns=["layer"]) for name in TABLES}, {}, results)
        return
    tables = {
        "accuracy": pd.DataFrame(columns=["pushes", "iteration", "seconds", "accuracy", "loss"]),
        "phases": pd.DataFrame(columns=["worker", "iteration", "phase", "begin_s", "end_s", "waits_for"]),
        "pushes": pd.DataFrame(columns=["push", "worker"]),
    }
    Draft(run, results).save(tables, np.zeros(1, np.float32), {"outcome": "budget", "seconds": 1.0, "pushes": 1})


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(tmp_path, monkeypatch)


@pytest.fixture
def first(bench: Bench) -> Callable[..., int]:
    """A batch of one notebook, executed once."""
    arguments = ["--only", "10_pruning-std-bsp"]
    assert bench(*arguments) == 0
    assert bench.executed == ["10_pruning-std-bsp"]
    return lambda *more: bench(*arguments, *more)


def test_every_family_under_every_policy_and_the_policies(bench: Bench):
    assert bench() == 0
    syncs, families = ("bsp", "ssp3", "asp"), ("static", "std", "dynamic")
    pruning = [f"10_pruning-{family}-{sync}" for sync in syncs for family in families]
    compared = [f"20_sync_policies-none{more}" for more in ("", "-virtual-rates")]
    others = ["00_tour", "01_observation-mlp", "05_virtual_and_real-static1", "25_ssp_tuning-none", "70_rates",
              "30_elastic", "40_eager", "11_families", "50_order", "60_ranges"]  # fmt: skip
    assert sorted(bench.executed) == sorted([*pruning, *compared, *others])
    means = sum(map(averages, every_policy()))
    singles = len(every_policy()) - means
    grid = 3 * 4 * (means + 2 * singles + 1)  # seeds, rates, curves; a mean has no push weight
    # 05_virtual_and_real shares the tour's runs
    runs = 25 + 3 + grid + 3 * 48 + 2 * 4 * 7 * 3 + 30 - 1
    runs += sum(len(study()) for study in (family_runs, elastic_runs, order_runs, range_runs))
    assert len(list((bench.results / "runs").iterdir())) == runs == len(set(bench.swept))
    assert len(list((bench.results / "observations").iterdir())) == 1
    assert len(bench.exported) == 2 + 2 + 9 * 3 + 5 + 2 * 7 + 1 + 4 + 3 + 7 + 2 + 4 + 5
    there = {path.name for path in (bench.results / "notebooks").iterdir()}
    assert there == {f"{name}.{kind}" for name in bench.executed for kind in ("ipynb", "json")}


def test_with_nothing_new_nothing_is_executed(bench: Bench, first: Callable[..., int], capsys: pytest.CaptureFixture):
    capsys.readouterr()
    assert first() == 0
    assert (bench.executed, bench.exported) == ([], [])
    assert "0 notebooks executed, 1 up to date, 0 failed" in capsys.readouterr().out


@pytest.mark.parametrize("lost", ["figures", "notebooks"])
def test_what_was_deleted_comes_back_without_a_run(bench: Bench, first: Callable[..., int], lost: str):
    runs = sorted((path.name, path.stat().st_mtime_ns) for path in (bench.results / "runs").iterdir())
    before = {path.name: path.read_bytes() for path in (bench.results / "figures").iterdir()}
    shutil.rmtree(bench.results / lost)
    assert first() == 0
    assert bench.executed == ["10_pruning-std-bsp"]
    assert {path.name: path.read_bytes() for path in (bench.results / "figures").iterdir()} == before
    assert sorted((path.name, path.stat().st_mtime_ns) for path in (bench.results / "runs").iterdir()) == runs


def test_images_that_were_deleted_come_back_without_a_notebook(bench: Bench, first: Callable[..., int]):
    (bench.results / "figures" / "10_pruning-std-bsp-time.svg").unlink()
    assert first() == 0
    assert (bench.executed, bench.exported) == ([], ["10_pruning-std-bsp-time"])


def test_an_image_older_than_its_figure_is_exported_again(bench: Bench, first: Callable[..., int]):
    os.utime(bench.results / "figures" / "10_pruning-std-bsp-bytes.png", (1, 1))
    assert first() == 0
    assert bench.exported == ["10_pruning-std-bsp-bytes"]
    assert first() == 0
    assert bench.exported == []  # though the image came out equal


def test_no_images(bench: Bench):
    assert bench("--only", "20_sync_policies", "--no-images") == 0
    assert bench.exported == []


@pytest.mark.parametrize("change", ["notebook", "record", "drawing", "stamp"])
def test_what_a_figure_was_made_of_is_watched(
    bench: Bench, first: Callable[..., int], monkeypatch: pytest.MonkeyPatch, change: str
):
    if change == "notebook":
        path = bench.notebooks / "10_pruning.ipynb"
        path.write_text(path.read_text().replace("## Accuracy", "## The accuracy"))
    elif change == "record":
        manifest = next((bench.results / "runs").iterdir()) / "manifest.json"
        manifest.write_text(manifest.read_text() + " ")
    elif change == "drawing":
        monkeypatch.setattr(figures, "DRAWING", (*figures.DRAWING, "record"))
    else:
        (bench.results / "notebooks" / "10_pruning-std-bsp.json").write_text('{"notebook": ')
    assert first() == 0
    assert bench.executed == ["10_pruning-std-bsp"]
    assert first() == 0
    assert bench.executed == []


def test_a_changed_parameter_executes_and_runs_what_is_missing(bench: Bench, first: Callable[..., int]):
    before = {path.name for path in (bench.results / "runs").iterdir()}
    assert first("--set", "thresholds=[1, 2, 2.5]", "--no-images") == 0
    assert bench.executed == ["10_pruning-std-bsp"]
    assert len({path.name for path in (bench.results / "runs").iterdir()} - before) == 1


def test_a_failing_notebook_is_said_and_the_rest_goes_on(bench: Bench, capsys: pytest.CaptureFixture):
    class CellError(Exception):
        exec_count, ename, evalue = 4, "WorkerDied", "\x1b[31mworker 2 is gone\x1b[0m"

    bench.fails = {"10_pruning-static-bsp": CellError("a long traceback"), "10_pruning-std-bsp": OSError("disk full")}
    assert bench("--only", "10_pruning", "--set", "engine=local") == 1
    assert len(bench.executed) == 9
    out, err = capsys.readouterr()
    assert "10_pruning-static-bsp failed: cell 4: WorkerDied: worker 2 is gone" in err
    assert "10_pruning-std-bsp failed: OSError: disk full" in err
    assert "7 notebooks executed, 0 up to date, 2 failed" in out
    folder = bench.results / "notebooks"
    assert sorted(p.name for p in folder.glob("*static-bsp*")) == ["10_pruning-static-bsp.failed.ipynb"]
    assert not list(folder.glob(".*"))
    bench.fails = {}
    assert bench("--only", "10_pruning", "--set", "engine=local") == 0
    assert sorted(bench.executed) == ["10_pruning-static-bsp", "10_pruning-std-bsp"]
    assert not list(folder.glob("*failed*"))


def test_half_a_notebook_never_takes_the_place_of_a_whole_one(bench: Bench, first: Callable[..., int]):
    path = bench.results / "notebooks" / "10_pruning-std-bsp.ipynb"
    whole, bench.cut = path.read_bytes(), True
    shutil.rmtree(bench.results / "figures")
    assert first() == 1
    assert path.read_bytes() == whole


def test_runs_come_first_and_notebooks_that_have_more_to_run_come_before_those_that_only_draw(bench: Bench):
    only = [f"--only={name}" for name in ("10_pruning-static-bsp", "05_virtual_and_real", "01_observation", "00_tour")]
    assert bench(*only, "--jobs", "1") == 0
    assert bench.executed == ["00_tour", "05_virtual_and_real-static1", "01_observation-mlp", "10_pruning-static-bsp"]
    assert len(bench.swept) == 5 + 3


def test_what_is_there_is_not_swept(bench: Bench):
    runs = pruning_runs(family="std")
    for run in runs[1:]:
        record(run, bench.results)
    assert bench("--only", "10_pruning-std-bsp") == 0
    assert bench.swept == [runs[0].digest]


def test_a_run_that_fails_is_left_to_its_notebook(bench: Bench):
    """Where it is said which cell failed; the other notebooks' runs are there."""
    bench.refuses = {pruning_runs(family="std")[1].digest}
    bench.fails = {"10_pruning-std-bsp": WorkerFailed("worker 1", 3, "the model broke here")}
    assert bench("--only", "10_pruning", "--set", "engine=local") == 1
    assert bench.executed[0] == "10_pruning-std-bsp"
    assert len(bench.executed) == 9
    bench.refuses, bench.fails = set(), {}
    assert bench("--only", "10_pruning", "--set", "engine=local") == 0
    assert bench.executed == ["10_pruning-std-bsp"]


def test_kernels_inherit_the_place_of_results_and_a_renderer_and_nothing_stays(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PSLAB_RESULTS", "before")
    monkeypatch.delenv("PLOTLY_RENDERER", raising=False)
    assert bench("--only", "20_sync_policies-none") == 0
    assert bench.environment == {"PSLAB_RESULTS": str(bench.results), "PLOTLY_RENDERER": figures.RENDERER}
    assert (os.environ.get("PSLAB_RESULTS"), os.environ.get("PLOTLY_RENDERER")) == ("before", None)


def test_kernels_that_start_at_once_have_sockets_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    import papermill

    seen = []

    def execute(*_: object, config: Any, **__: object) -> None:
        place = Path(config.KernelManager.ip)
        assert config.KernelManager.transport == "ipc"  # over TCP anyone on the machine could talk to it
        assert place.parent.is_dir()
        assert len(str(place)) < 90  # a socket's path is short
        seen.append(place)

    monkeypatch.setattr(papermill, "execute_notebook", execute)
    for job in figures.plan(tmp_path, tmp_path)[:2]:
        figures._papermill(job, tmp_path / "draft.ipynb")
    assert len(set(seen)) == 2
    assert not any(place.parent.exists() for place in seen)


@pytest.mark.parametrize(("arguments", "words"), [
    (["--only", "10_prunning"], "did you mean '10_pruning'"),
    (["--set", "wokers=3"], "did you mean 'workers'"),
    (["--set", "workers"], "must be NAME=VALUE"),
    (["--set", "workers=[1"], "not YAML"),
    (["--set", "workers=many"], "workers='many'"),
    (["--set", "sync=asp"], "choose with --only"),
    (["--set", "thresholds=[1]"], "00_tour has no such parameter"),
    (["--only", "10_pruning", "--set", "policies=[bsp]"], "10_pruning has no such parameter"),
    (["--only", "10_pruning-std-bsp", "--set", "thresholds=[-1]"], "std:-1"),
    (["--only", "20_sync_policies", "--set", "policies=[bsq]"], "did you mean 'bsp'"),
    (["--only", "10_pruning", "--set", "cluster={bandwith_bit_s: 1e8}"], "did you mean 'bandwidth_bit_s'"),
    (["--only", "01_observation", "--set", "rules=['statik:1%']"], "did you mean 'static'"),
    (["--only", "01_observation", "--set", "moments=[937]"], "from 0 to 936"),
    (["--jobs", "0"], "at least 1"),
])  # fmt: skip
def test_wrong_arguments_are_refused_before_anything_is_executed(
    bench: Bench, capsys: pytest.CaptureFixture, arguments: list[str], words: str
):
    assert bench(*arguments) == 2
    assert words in capsys.readouterr().err
    assert bench.executed == []
    assert not bench.results.exists()


def test_a_notebook_whose_cell_of_parameters_differs_is_refused(bench: Bench, capsys: pytest.CaptureFixture):
    path = bench.notebooks / "10_pruning.ipynb"
    path.write_text(path.read_text().replace('"workers = 4\\n"', '"wokers = 4\\n"'))
    assert bench("--only", "10_pruning") == 2
    assert "['wokers', 'workers']" in capsys.readouterr().err


def test_yaml_numbers_are_numbers():
    assert figures._assignment("cluster={bandwidth_bit_s: 1e8, duplex: half}") == (
        "cluster", {"bandwidth_bit_s": 1e8, "duplex": "half"})  # fmt: skip
    assert figures._assignment("thresholds=['10%', 1%]") == ("thresholds", ["10%", "1%"])
    assert figures._assignment("learning_rate=5e-1") == ("learning_rate", 0.5)


@pytest.mark.slow
def test_what_all_runs_of_a_cluster_have_does_not_trouble_the_single_machine(bench: Bench):
    assert bench("--set", "workers=2", "--set", "learning_rate=0.25", "--no-images") == 0
    assert "01_observation-mlp" in bench.executed
    parameters = json.loads((bench.results / "notebooks" / "01_observation-mlp.json").read_text())["parameters"]
    assert parameters["learning_rate"] == 0.25
    assert "workers" not in parameters
    assert bench("--only", "01_observation", "--set", "workers=2") == 2


def test_an_observation_is_watched_as_runs_are(bench: Bench):
    arguments = ["--only", "01_observation", "--no-images"]
    assert bench(*arguments) == 0
    assert bench(*arguments) == 0
    assert bench.executed == []
    manifest = next((bench.results / "observations").iterdir()) / "manifest.json"
    manifest.write_text(manifest.read_text() + " ")
    assert bench(*arguments) == 0
    assert bench.executed == ["01_observation-mlp"]


def test_an_interrupted_batch_says_so(bench: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(figures, "_papermill", interrupted)
    assert bench("--only", "20_sync_policies") == 130
    assert "the next call goes on" in capsys.readouterr().err
    assert os.environ.get("PLOTLY_RENDERER") != figures.RENDERER


def test_the_stamp_names_everything(bench: Bench, first: Callable[..., int]):
    stamp = json.loads((bench.results / "notebooks" / "10_pruning-std-bsp.json").read_text())
    assert set(stamp["records"]) == {path.name for path in (bench.results / "runs").iterdir()}
    assert "missing" not in stamp["records"].values()
    assert stamp["parameters"]["family"] == "std"
    assert set(stamp["parameters"]) == set(pages.allowed("10_pruning"))
