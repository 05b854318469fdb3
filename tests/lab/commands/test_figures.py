"""The batch: what is asked for is checked first, what is up to date is left alone, what fails stops nothing else."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import handmade
import IPython
import nbformat
import papermill
import plotly.graph_objects as go
import pytest

from pslab.__main__ import main
from pslab.config.run import Run
from pslab.errors import ConfigError
from pslab.lab.plots import export
from pslab.lab.records import journal
from pslab.lab.records.disk import write_file
from pslab.lab.records.record import find
from pslab.lab.runs.grid import grid
from pslab.lab.runs.run import AGAIN
from pslab.lab.studies import batch, execution
from pslab.lab.studies import parameters as study
from pslab.lab.studies.batch import plan
from pslab.lab.studies.claims import claim
from pslab.lab.studies.figures import save
from pslab.lab.studies.parameters import declared

CELL = "# Parameters\nsyncs = ['bsp', 'asp']\npushes = 8\nlive = None"
Usage = namedtuple("Usage", "total used free")
INHERITED = ("PSLAB_RESULTS", "PLOTLY_RENDERER", "PSLAB_VARIANT", AGAIN)
PLAN = """
- notebook: one
  tiny: {pushes: 4}
- notebook: two
  set: {live: false}
- notebook: one
  variant: fast
  set: {pushes: 16}
"""


class Bench:
    """Two notebooks, and kernels replaced by what they leave behind: a record for each policy, two figures, a claim."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.results, self.notebooks = root / "results", root / "notebooks"
        self.places = ["--results", str(self.results), "--notebooks", str(self.notebooks)]
        self.executed: list[str] = []
        self.exported: list[str] = []
        self.fails: dict[str, Exception] = {}
        self.environment: dict[str, str | None] = {}
        self.cut, self.most = False, 1.0
        self.notebooks.mkdir()
        (self.notebooks / "batch.yaml").write_text(PLAN)
        for name in ("one", "two"):
            self.write(name)
        monkeypatch.setattr(papermill, "execute_notebook", self.kernel)
        monkeypatch.setattr(export, "write_images", self.images)
        self.monkeypatch = monkeypatch

    def write(self, name: str, code: str = "sweep(runs)") -> None:
        tagged = nbformat.v4.new_code_cell(CELL, metadata={"tags": ["parameters"]})
        cells = [nbformat.v4.new_markdown_cell("A study"), tagged, nbformat.v4.new_code_cell(code)]
        nbformat.write(nbformat.v4.new_notebook(cells=cells), self.notebooks / f"{name}.ipynb")

    def __call__(self, *arguments: str) -> int:
        self.executed, self.exported = [], []
        return main(["figures", "--all", *self.places, *arguments])

    def kernel(self, source: str, draft: str, *, parameters: Any, config: Any, **_: Any) -> None:
        """What papermill does; its kernel has a socket of its own, as anyone on the machine could talk over TCP."""
        assert config.KernelManager.transport == "ipc"
        assert Path(config.KernelManager.ip).name == "socket"
        self.environment = {name: os.environ.get(name) for name in INHERITED}
        notebook, variant = Path(source).stem, self.environment["PSLAB_VARIANT"]
        self.executed.append(name := f"{notebook}-{variant}" if variant else notebook)
        names = declared(notebook, CELL)
        with self.monkeypatch.context() as patch:
            patch.setattr(IPython, "get_ipython", lambda: SimpleNamespace(user_ns={"In": ["", CELL], **names}))
            study.parameters(notebook)
        values = {**names, **parameters}
        for run in grid(Run(pushes=values["pushes"]), sync=values["syncs"]).run:
            if find(run, self.results) is None:
                handmade.curve(self.results, run, [0.1, 0.9])
        content: Any = nbformat.read(source, 4)
        for cell in content.cells:
            if cell.cell_type == "code":
                cell.execution_count = None if self.cut else 1
        nbformat.write(content, draft)
        if name in self.fails:
            raise self.fails[name]
        for figure in ("accuracy", "time"):
            save(figure, go.Figure())
        claim("It takes {value:g}", self.most, at_most=1)

    def images(self, pairs: Any) -> list[Path]:
        stems = [figure for source, figure in pairs if source.is_file()]
        self.exported += [stem.name for stem in stems]
        return [write_file(stem.with_name(f"{stem.name}.{kind}"), b"") for stem in stems for kind in export.FORMATS]

    @property
    def stamp(self) -> Path:
        return self.results / "notebooks" / "two.json"

    @property
    def manifest(self) -> Path:
        return next((self.results / "runs").iterdir()) / "manifest.json"


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(tmp_path, monkeypatch)


@pytest.fixture
def first(bench: Bench) -> Callable[..., int]:
    """A batch of one notebook, executed once."""
    assert bench("--only", "two") == 0
    assert bench.executed == ["two"]
    return lambda *more: bench("--only", "two", *more)


def test_entries_are_executed_in_their_order_variants_name_their_files_and_kernels_inherit_what_they_need(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PSLAB_RESULTS", "before")
    monkeypatch.delenv("PLOTLY_RENDERER", raising=False)
    assert bench() == 0
    assert bench.environment == {"PSLAB_RESULTS": str(bench.results), "PLOTLY_RENDERER": execution.RENDERER,
                                 "PSLAB_VARIANT": "fast", AGAIN: None}  # fmt: skip
    assert (os.environ.get("PSLAB_RESULTS"), os.environ.get("PLOTLY_RENDERER")) == ("before", None)
    assert not journal.active()
    assert bench.executed == ["one", "two", "one-fast"]
    stems = [f"{name}-{figure}" for name in bench.executed for figure in ("accuracy", "time")]
    assert bench.exported == stems
    assert {path.stem for path in (bench.results / "figures").glob("*.html")} == set(stems)
    there = {path.name for path in (bench.results / "notebooks").iterdir()}
    assert there == {f"{name}.{kind}" for name in bench.executed for kind in ("ipynb", "json")}


LISTED = """
- notebook: one
  takes: [100, 30]
- notebook: two
  main: true
  takes: [200, 40]
"""


def test_the_main_entries_are_executed_or_those_that_are_named(bench: Bench):
    for listed, words, executed in ((LISTED, "", "two"), (LISTED, "--only one", "one"),
                                    (PLAN, "--all --only one-fast --set pushes=32", "one-fast")):  # fmt: skip
        (bench.notebooks / "batch.yaml").write_text(listed)
        bench.executed.clear()
        assert main(["figures", *bench.places, *words.split(), "--no-images"]) == 0
        assert (bench.executed, bench.exported) == ([executed], [])


def test_what_it_will_take_is_said_before_it_starts_and_without_the_space_nothing_does(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    (bench.notebooks / "batch.yaml").write_text(LISTED)
    with monkeypatch.context() as full:
        full.setattr(shutil, "disk_usage", lambda folder: Usage(100, 40, 60e6))
        assert bench() == 2
    assert "has 60 MB free, but 70 MB are needed" in capsys.readouterr().err
    assert bench.executed == []
    assert bench() == 0
    first, *_ = capsys.readouterr().out.splitlines()
    assert first == "to be executed: one, two; about 5 min, 70 MB of results"
    assert bench() == 0
    out = capsys.readouterr().out.splitlines()
    assert out[:2] == ["one ✓ It takes 1", "two ✓ It takes 1"]
    assert out[2].startswith("0 notebooks executed, 2 up to date, 0 failed")
    (bench.notebooks / "batch.yaml").write_text(PLAN)
    assert bench("--dry-run", "--no-images") == 0
    assert (bench.executed, bench.exported) == ([], [])
    out = capsys.readouterr().out.splitlines()
    assert (out[0], out[2]) == ("one: up to date", "one-fast: time not known yet")
    assert out[3].startswith("to be executed: two, one-fast;")


def test_a_notebook_that_is_changed_while_it_is_executed_is_executed_again(bench: Bench):
    done: list[str] = []

    def changes(*arguments: Any, **named: Any) -> None:
        bench.kernel(*arguments, **named)
        if not done:
            bench.write("two", code="sweep(other)")

    bench.monkeypatch.setattr(papermill, "execute_notebook", changes)
    for _ in range(3):
        assert bench("--only", "two") == 0
        done += bench.executed
    assert done == ["two", "two"]


def touch(bench: Bench, path: Path) -> None:
    """Change one file, ten seconds after all the others."""
    path.touch()
    for other in {*bench.results.rglob("*"), *bench.notebooks.iterdir()} - {path}:
        os.utime(other, ns=(other.stat().st_mtime_ns - 10**10,) * 2)
    rewrite(bench.stamp, lambda stamp: stamp["made"].update(begun_ns=stamp["made"]["begun_ns"] - 10**10))


def rewrite(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a JSON file without a new date."""
    content, changed_ns = json.loads(path.read_text()), path.stat().st_mtime_ns
    change(content)
    path.write_text(json.dumps(content))
    os.utime(path, ns=(changed_ns, changed_ns))


def in_vain(bench: Bench) -> None:
    rewrite(bench.manifest, lambda manifest: manifest.update(emulation_ok=False))


#: What is changed, the options of the next call, the notebook that it executes, and the figures that it exports.
NEXT: dict[str, tuple[Callable[[Bench], object], str, str, str]] = {
    "nothing": (lambda bench: None, "", "", ""), "nothing, again": (lambda bench: None, "--again", "", ""),
    "notebook": (lambda bench: touch(bench, bench.notebooks / "two.ipynb"), "", "two", ""),
    "record": (lambda bench: touch(bench, bench.manifest), "", "two", ""),
    "lost": (lambda bench: shutil.rmtree(bench.manifest.parent), "", "two", ""),
    "stamp": (lambda bench: bench.stamp.write_text('{"made": '), "", "two", ""),
    "parameters": (lambda bench: (bench.notebooks / "batch.yaml").write_text("- notebook: two"), "", "two", ""),
    "figure": (lambda bench: (bench.results / "figures" / "two-time.json").unlink(), "", "two", "time"),
    "executed": (lambda bench: (bench.results / "notebooks" / "two.ipynb").unlink(), "", "two", ""),
    "emulation": (in_vain, "", "", ""), "emulation, again": (in_vain, "--again", "two", ""),
    "image": (lambda bench: (bench.results / "figures" / "two-time.svg").unlink(), "", "", "time"),
    "old image": (lambda bench: os.utime(bench.results / "figures" / "two-time.png", (1, 1)), "", "", "time"),
}  # fmt: skip


@pytest.mark.parametrize("change", NEXT)
def test_what_a_figure_was_made_of_is_watched(bench: Bench, first: Callable[..., int], change: str):
    """What was deleted comes back as it was; a record that is there is not written again."""
    before = {path: path.read_bytes() for path in (bench.results / "figures").iterdir()}
    changes, options, executed, exported = NEXT[change]
    changes(bench)
    runs = {path: path.stat().st_mtime_ns for path in (bench.results / "runs").iterdir()}
    assert first(*options.split()) == 0
    assert bench.executed == executed.split()
    assert {f"two-{name}" for name in exported.split()} <= {*bench.exported}
    assert executed or exported or not bench.exported
    assert bench.environment[AGAIN] == ("1" if executed and options else None)
    assert AGAIN not in os.environ
    assert {path: path.read_bytes() for path in (bench.results / "figures").iterdir()} == before
    assert runs.items() <= {path: path.stat().st_mtime_ns for path in (bench.results / "runs").iterdir()}.items()
    assert first() == 0
    assert (bench.executed, bench.exported) == ([], [])


def test_a_parameter_is_given_to_the_notebooks_that_have_it_and_tiny_ones_to_a_folder_of_their_own(
    bench: Bench, capsys: pytest.CaptureFixture
):
    path = bench.notebooks / "two.ipynb"
    path.write_text(path.read_text().replace("pushes = 8", "iterations = 8"))
    for how, each in (({"given": {"pushes": 4}}, (4, 4)), ({"tiny": True}, (4, 16))):
        entries = plan(bench.notebooks, bench.results, **how)
        assert [dict(entry.values) for entry in entries] == [{"pushes": each[0]}, {"live": False}, {"pushes": each[1]}]
    path = bench.notebooks / "one.ipynb"
    path.write_text(path.read_text().replace("pushes = 8", "iterations = 8"))
    with pytest.raises(ConfigError, match=r"pushes=4: one has no such parameter; .*: in `tiny` of batch\.yaml$"):
        plan(bench.notebooks, bench.results, tiny=True)
    assert main(["figures", "--notebooks", str(bench.notebooks), "--tiny"]) == 2
    assert "name another folder by --results" in capsys.readouterr().err


def test_a_failing_notebook_is_reported_and_the_rest_goes_on(bench: Bench, capsys: pytest.CaptureFixture):
    class CellError(Exception):
        exec_count, ename, evalue = 4, "WorkerDied", "\x1b[31mworker 2 died\x1b[0m"

    bench.fails = {"one": CellError("a long traceback"), "two": OSError("disk full")}
    assert bench() == 1
    assert bench.executed == ["one", "two", "one-fast"]
    out, err = capsys.readouterr()
    assert "one failed: cell 4: WorkerDied: worker 2 died" in err
    assert "two failed: OSError: disk full" in err
    assert err.count("two failed: OSError: disk full") == 2  # once more at the end
    assert "1 notebook executed, 0 up to date, 2 failed, " in out, "and no word of claims, which all hold"
    folder = bench.results / "notebooks"
    assert {path.name for path in folder.iterdir()} == {
        "one.failed.ipynb", "two.failed.ipynb", "one-fast.ipynb", "one-fast.json"}  # fmt: skip
    bench.fails = {}
    assert bench() == 0
    assert bench.executed == ["one", "two"]
    assert not list(folder.glob("*failed*"))


def test_half_a_notebook_never_takes_the_place_of_a_whole_one(bench: Bench, first: Callable[..., int]):
    path = bench.results / "notebooks" / "two.ipynb"
    whole, bench.cut = path.read_bytes(), True
    shutil.rmtree(bench.results / "figures")
    assert first() == 1
    assert path.read_bytes() == whole


def test_a_claim_that_does_not_hold_fails_the_batch_also_when_nothing_is_executed(
    bench: Bench, capsys: pytest.CaptureFixture
):
    bench.most = 2.0
    for executed in (["two"], []):
        assert bench("--only", "two") == 1
        assert bench.executed == executed
        out, err = capsys.readouterr()
        assert "two ✗ It takes 2: 2 is not at most 1" in err
        assert "1 claims do not hold" in out


def test_an_interrupted_batch_says_so(bench: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    def interrupted(source: str, draft: str, **_: Any) -> None:
        Path(draft).write_text("half")
        raise KeyboardInterrupt

    monkeypatch.setattr(papermill, "execute_notebook", interrupted)
    assert bench() == 130
    assert not list((bench.results / "notebooks").iterdir())
    assert "the next call continues" in capsys.readouterr().err


def test_wrong_arguments_and_plans_are_refused_before_anything_is_executed(bench: Bench, capsys: pytest.CaptureFixture):
    for arguments, words in (
        ("--only twoo", "did you mean 'two'"), ("--set wokers=3", "no chosen notebook has such a parameter"),
        ("--only two --set pushs=3", "pushs=3: two has no such parameter; did you mean 'pushes'? all"),
        ("--set pushes", "must be NAME=VALUE"), ("--set syncs=[1", "must be YAML"), ("--set syncs=bsp", "be a list"),
        ("--set pushes=many", "pushes='many'"), ("--set syncs=[bps]", "syncs='bps': unknown name 'bps'"),
    ):  # fmt: skip
        assert bench(*arguments.split()) == 2
        assert words in capsys.readouterr().err
    for text, words in (
        ("- notebook: three", "cannot be read"), ("one", "must be a list of entries"),
        ("- {variant: x}", "must be a list"), ("- {notebook: one, sets: {}}", "did you mean 'set'"),
        ("- notebook: one\n- notebook: one", "give one of the entries"),
        ("- {notebook: one, set: {pushs: 3}}", "did you mean 'pushes'"),
    ):  # fmt: skip
        (bench.notebooks / "batch.yaml").write_text(text)
        with pytest.raises(ConfigError, match=words):
            plan(bench.notebooks, bench.results)
    assert bench.executed == []
    assert not bench.results.exists()


def test_notebooks_are_searched_upward_and_an_installed_package_says_where_they_are(bench: Bench, tmp_path: Path):
    (tmp_path / "results" / "deep").mkdir(parents=True)
    assert batch.folder(tmp_path / "results" / "deep") == bench.notebooks
    shutil.rmtree(bench.notebooks)
    bench.monkeypatch.setattr(batch, "__file__", str(tmp_path / "site-packages" / "pslab" / "batch.py"))
    with pytest.raises(ConfigError, match="a folder made by `pslab init FOLDER`"):
        batch.folder(tmp_path)


def test_a_second_call_a_trace_a_view_and_the_doctor_need_no_torch_and_no_papermill(bench: Bench, first: Any):
    record = handmade.bsp(bench.results).path
    words = ["figures", *bench.places, "--only", "two", "--no-images"]
    script = f"""
import sys, pslab, pslab.lab.commands.doctor
from pslab.__main__ import main
from pslab.lab.live.view import Live

assert main({words}) == 0
result = pslab.load({str(record)!r})
result.trace()
(again,) = pslab.sweep([result.run], results={str(bench.results)!r})
assert again.cached and len(again.accuracy)
Live(live=True, results={str(bench.results)!r}).refresh()
assert not {{'torch', 'papermill'}} & {{*sys.modules}}
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "1 up to date" in done.stdout
