"""The small verbs: list, run, check, init, lab and advise: what they print and write, and what they start."""

from __future__ import annotations

import argparse
import filecmp
import importlib.metadata
import json
import os
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nbformat
import pandas as pd
import pytest

from pslab.__main__ import main
from pslab.config.cluster import PRESETS, resolve_cluster
from pslab.config.run import FIELDS, Run
from pslab.config.run import NAMED as NAMED_FIELDS
from pslab.config.spec import build
from pslab.config.table import KINDS, ROWS
from pslab.engines.check.plan import plan as explorations
from pslab.engines.check.plan import resolve_sync
from pslab.errors import ConfigError
from pslab.lab.advise import search
from pslab.lab.commands import init
from pslab.lab.commands import run as command
from pslab.lab.commands.list import Listing, entries, markdown, page
from pslab.lab.records.record import default_results
from pslab.lab.studies.batch import folder, plan
from pslab.tensors.update.optimizers import ELEMENTWISE, resolve_optimizer
from pslab.tensors.workload.data import data_root

ROOT = Path(__file__).parents[3]
FOUND = entries()
NAMED = {(entry.kind, entry.name): entry for entry in FOUND}


def test_every_name_of_every_table_is_listed():
    tables = {kind: set(rows) for kind, rows in ROWS.items()}
    tables |= {"cluster": set(PRESETS), "optimizer": set(ELEMENTWISE)}
    listed = {kind: {entry.name for entry in FOUND if entry.kind == kind} for kind in tables}
    assert listed == tables


@pytest.mark.parametrize("entry", FOUND, ids=lambda entry: f"{entry.kind}-{entry.name}")
def test_everything_says_what_it_is_and_where_and_its_example_can_be_used(entry: Listing):
    assert len(entry.what) > 5
    assert entry.file.startswith("torch.optim.") or (ROOT / entry.file).is_file()
    assert max(map(len, page(entry).splitlines())) <= 122  # no wider than the source
    option, example = shlex.split(entry.command)[2:]
    assert option == f"--{entry.kind}"
    run = Run(**{entry.kind: example})
    if entry.kind in ROWS:
        build(entry.kind, example)
    if entry.kind == "optimizer":
        resolve_optimizer(run.optimizer)


def test_the_list_has_every_kind_a_name_is_shown_in_full_one_of_two_kinds_twice(capsys: pytest.CaptureFixture):
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    assert [line for line in lines if line and not line.startswith(" ")] == [*ROWS, "optimizer", "cluster"]
    for name, all_words in (
        ("ssp:3", ("ssp:STALENESS  (sync)", "staleness: a whole number of at least 0", "Ho et al. (NIPS 2013)",
                   "file     pslab/policies/sync/ssp.py", "pslab run --sync ssp:3")),
        ("dssp:3", ("\n  Theorem 2 and the text of the paper imply", "\n  low: a whole number of at least 0, 3 by",
                    "\n      iterations ahead of the slowest worker that are always allowed\n")),
        ("constant", ("constant  (rate)", "constant  (schedule)")), ("schedule", ("schedule\n  constant",)),
    ):  # fmt: skip
        assert main(["list", name]) == 0
        out = capsys.readouterr().out
        assert all(words in out for words in all_words)
    assert main(["list", "spp:3"]) == 2
    said = "pslab list: unknown name 'spp:3'; did you mean 'ssp'? 'pslab list' shows all"
    assert capsys.readouterr().err.strip() == said


def test_the_documentation_lists_every_name_as_the_table_has_it():
    written = (ROOT / "docs" / "policies.md").read_text()
    assert written == markdown(FOUND) + "\n", "run make docs"
    assert all(f"| `{row.name}" in written for rows in ROWS.values() for row in rows.values())


def asked(*words: str) -> Run:
    parser = argparse.ArgumentParser()
    command.add(parser.add_subparsers())
    return command.asked(parser.parse_args(["run", *words]))


@pytest.mark.parametrize("name", FIELDS)
def test_each_field_has_an_example_that_can_be_typed_and_is_not_its_default(name: str):
    (typed,) = shlex.split(command.example(name))
    run = asked("--target-accuracy", "0.9", f"--{name.replace('_', '-')}", typed)  # which may be about the target
    value = getattr(run, name)
    assert value != getattr(Run(), name)
    if name in NAMED_FIELDS and name in KINDS:
        assert build(name, value) is not None
    resolve_cluster(run.cluster)
    resolve_optimizer(run.optimizer)


def test_keys_of_a_file_have_dashes_or_underscores(tmp_path: Path):
    file = tmp_path / "run.yaml"
    for dash in "-_":
        file.write_text(f"learning{dash}rate: 0.5\nkeep{dash}weights: on\ncluster: {{compute{dash}s: 0.01}}\n")
        wanted = Run(learning_rate=0.5, keep_weights=True, cluster={"compute_s": 0.01}, workers=2)
        assert asked("--file", str(file), "--workers", "2") == wanted


NEVER_WAITS = "ownpolicies:NeverWaits"  # as it is named on the command line
SMALL = ["--workers", "1,2", "--iterations", "2", "--faults", "none", "--processes", "1"]


def test_the_table_has_a_row_for_each_exploration(capsys):
    assert main(["check", "ssp:1", "asp", *SMALL]) == 0
    head, *rows, total = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert head == ["policy", "W", "ranges", "iterations", "faults", "states", "seconds", "verdict"]
    assert {(*row[:6], row[-1]) for row in rows} == {
        ("ssp:1", "2", "1", "2", "none", "301", "clean"), ("ssp:1", "1", "1", "2", "none", "17", "clean"),
        ("asp", "2", "1", "2", "none", "321", "clean"), ("asp", "1", "1", "2", "none", "17", "clean")}  # fmt: skip
    assert total[:3] == ["656", "states", "in"]
    small = ["--workers", "2", "--ranges", "2", "--iterations", "1", "--faults", "rejoin", "--processes", "1"]
    assert main(["check", "bsp", *small, "--layered"]) == 0
    assert "44,010" in capsys.readouterr().out, "without --layered 38,826 states"


def test_a_broken_rule_is_shown_with_its_shortest_path_and_json_holds_every_exploration(tmp_path, capsys):
    file = tmp_path / "found.json"
    words = ["check", NEVER_WAITS, "asp", "--workers", "1,2,3", "--iterations", "2", "--faults", "none"]
    assert main([*words, "--json", str(file)]) == 1
    out = capsys.readouterr().out
    assert "ownpolicies:NeverWaits: 2 of 3 explorations break a rule; the shortest path to it, with W = 2, none:" in out
    assert "  9. worker 0's pull for iteration 2 arrives; the server starts worker 0 with iteration 2" in out
    assert "  => worker 0 is started with iteration 2, the slowest is at 0: bound 1 exceeded" in out
    assert out.count("=>") == 1
    content = json.loads(file.read_text())
    assert [(each["policy"], each["workers"], each["verdict"]) for each in content["explored"]] == [
        *((NEVER_WAITS, workers, "clean" if workers == 1 else "violated") for workers in (1, 2, 3)),
        *(("asp", workers, "clean") for workers in (1, 2, 3))]  # fmt: skip
    assert (content["clean"], content["states"]) == (False, sum(each["states"] for each in content["explored"]))
    violation = content["explored"][1]["violation"]
    assert violation["what"].endswith("bound 1 exceeded")
    assert len(violation["path"]) == 9
    assert main(["check", "asp", *SMALL, "--json", str(tmp_path / "no" / "where.json")]) == 1
    assert "cannot be written: No such file" in capsys.readouterr().err


def test_a_given_bound_replaces_the_policys(capsys):
    words = ["check", "dssp:1,1,grant=literal", "--workers", "2", "--faults", "none", "--processes", "1"]
    assert main(words) == 0
    capsys.readouterr()
    assert main([*words, "--bound", "2"]) == 1
    out = capsys.readouterr().out.splitlines()
    assert out[-1] == "  => worker 0 is started with iteration 5, the slowest is at 2: bound 2 exceeded"
    assert out[-2].startswith("  35. ")
    (far,) = explorations("dssp", resolve_sync("dssp:2,4,literal"), workers=2, faults=(), bound=6)
    assert (far.bound, far.iterations) == (6, 9)


def test_a_working_copy_is_whole_and_its_notebooks_are_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    place = tmp_path / "mine" / "lab"
    assert main(["init", str(place)]) == 0
    said = capsys.readouterr().out
    assert f"are in {place}" in said
    commands = [line.strip() for line in said.splitlines() if line.startswith("  pslab ")]
    kept = (place / "README.md").read_text().splitlines()
    assert [line.strip() for line in kept if line.startswith("    pslab ")] == commands != []
    for kind in ("notebooks/*.ipynb", "notebooks/batch.yaml", "data/MNIST/raw/*.gz"):
        names = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob(kind))
        assert names == sorted(path.relative_to(place).as_posix() for path in place.glob(kind)) != []
        assert filecmp.cmpfiles(ROOT, place, names, shallow=False) == (names, [], [])
    monkeypatch.chdir(place / "notebooks")
    monkeypatch.delenv("PSLAB_RESULTS", raising=False)
    monkeypatch.delenv("PSLAB_DATA", raising=False)
    assert (folder(Path.cwd()), default_results(), data_root()) == (
        place / "notebooks", place / "results", place / "data")  # fmt: skip
    assert main(["figures", "--dry-run", "--only", "02_first_study"]) == 0
    assert "to be executed: 02_first_study" in capsys.readouterr().out
    assert main(["init", str(tmp_path / "lab"), "--study", "90_mine"]) == 0
    assert (tmp_path / "lab" / "notebooks" / "90_mine.ipynb").is_file()


def test_what_is_there_is_not_written_over(tmp_path: Path):
    (tmp_path / "file").write_text("mine")
    for taken in (tmp_path, tmp_path / "file"):
        with pytest.raises(ConfigError, match="exists and is not empty"):
            init.lay_out(taken)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_of_a_wheel_the_files_are_taken_that_it_has_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    site = tmp_path / "lib" / "python3" / "site-packages"
    names = ("pslab/errors.py", "../../../share/pslab/notebooks/00_tour.ipynb")
    installed = SimpleNamespace(files=list(map(importlib.metadata.PackagePath, names)))
    for file in installed.files:
        file.dist = importlib.metadata.PathDistribution(site / "pslab_workbench.dist-info")
    monkeypatch.setattr(init, "distributions", lambda name: [installed])
    monkeypatch.setattr(init, "__file__", str(site / "pslab" / "lab" / "commands" / "init.py"))
    ((name, file),) = init.files()
    assert name == "notebooks/00_tour.ipynb"
    assert file.resolve() == (tmp_path / "share" / "pslab" / name).resolve()
    monkeypatch.setattr(init, "distributions", lambda name: [])
    with pytest.raises(ConfigError, match="has no notebooks"):
        init.lay_out(tmp_path / "new")


def test_the_wheel_has_what_a_working_copy_needs():
    given = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["data-files"]
    names = {f"{folder}/{pattern.rpartition('/')[2]}".removeprefix(init.SHARED): (folder, pattern)
             for folder, patterns in given.items() for pattern in patterns}  # fmt: skip
    assert sorted(names) == sorted(init.KEPT)
    assert all(pattern.startswith(folder.removeprefix(init.SHARED)) for folder, pattern in names.values())


@pytest.fixture
def notebooks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project's folder of notebooks, with the study that new ones begin as; the project is the working directory."""
    found = tmp_path / "notebooks"
    found.mkdir()
    for name in (f"{init.MODEL}.ipynb", "batch.yaml"):
        (found / name).write_text((ROOT / "notebooks" / name).read_text())
    monkeypatch.chdir(tmp_path)
    return found


def test_a_new_study_is_planned_and_has_its_own_name_or_is_refused(notebooks: Path, capsys: pytest.CaptureFixture[str]):
    batch = notebooks / "batch.yaml"
    before = batch.read_text()
    assert main(["init", "--study", init.MODEL]) == 2
    assert "exists already" in capsys.readouterr().err
    assert batch.read_text() == before
    assert main(["init", "--study", "90_who_waits"]) == 0
    assert "pslab figures --only 90_who_waits" in capsys.readouterr().out
    notebook = nbformat.read(notebooks / "90_who_waits.ipynb", 4)
    nbformat.validate(notebook)
    text = "".join(cell.source for cell in notebook.cells)
    assert text.startswith("# Who waits: what do you ask?")
    assert 'parameters("90_who_waits");' in text
    assert init.MODEL not in text
    entries = batch.read_text()
    assert entries.startswith(before)
    batch.write_text(entries.removeprefix(before))  # the others are not here
    (entry,) = plan(notebooks, notebooks.parent / "results", only=["90_who_waits"], tiny=True)
    assert entry.notebook == "90_who_waits"
    (notebooks / f"{init.MODEL}.ipynb").unlink()
    assert main(["init", "--study", "90_mine"]) == 2
    assert "but a new study is made from it" in capsys.readouterr().err
    assert [path.stem for path in notebooks.glob("*.ipynb")] == ["90_who_waits"]


def executed(path: Path, place: Path) -> Path:
    """A notebook as JupyterLab saves it when its cells have been run."""
    notebook: Any = nbformat.read(path, 4)
    notebook.metadata["language_info"] |= {
        "codemirror_mode": {"name": "ipython", "version": 3}, "file_extension": ".py", "mimetype": "text/x-python",
        "nbconvert_exporter": "python", "pygments_lexer": "ipython3", "version": "3.12"}  # fmt: skip
    notebook.metadata["widgets"] = {"application/vnd.jupyter.widget-state+json": {"state": {}}}
    for cell in notebook.cells:
        cell.metadata |= {"scrolled": True, "editable": True, "slideshow": {"slide_type": ""}}
        if cell.cell_type == "code":
            cell.execution_count, cell.outputs = 7, [nbformat.v4.new_output("stream", text="epoch 1 \u2026")]
    nbformat.write(notebook, place / path.name)
    return place / path.name


def test_git_gets_every_notebook_without_what_was_computed(tmp_path: Path):
    """A difference would be in the next commit of a notebook."""
    for name in ("Makefile", ".gitattributes"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / ".venv").symlink_to(sys.prefix)
    make = ["make", "--silent", "git-filter"]
    subprocess.run(make, cwd=tmp_path, check=True)
    assert not (tmp_path / ".git").exists(), "what is no clone stays none"
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    for _ in range(2):
        subprocess.run(make, cwd=tmp_path, check=True)

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=tmp_path, check=True, capture_output=True, text=True).stdout

    assert git("check-attr", "filter", "notebooks/00_tour.ipynb").endswith("filter: without-outputs\n")
    notebooks = sorted(ROOT.glob("notebooks/*.ipynb"))
    command = f"{git('config', 'filter.without-outputs.clean').strip()} --textconv"
    command += "".join(f" '{path}' '{executed(path, tmp_path)}'" for path in notebooks)
    found = subprocess.run(command, shell=True, cwd=tmp_path, check=True, capture_output=True, text=True)
    assert found.stdout == "".join(2 * path.read_text(encoding="utf-8") for path in notebooks)


def test_what_is_not_known_goes_to_jupyter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    seen: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda path, arguments: seen.append(arguments) or 0)
    others = ["--port", "8899", "--no-browser", "--ip=0.0.0.0", "--allow-root", "--debug"]
    main(["lab", *others[:3], "--notebooks", str(tmp_path), *others[3:]])
    ((_, *rest),) = seen
    assert rest == ["-m", "jupyterlab", f"--ServerApp.root_dir={tmp_path}", *others]
    monkeypatch.setattr(os, "geteuid", lambda: 0, raising=False)
    main(["lab", "--notebooks", str(tmp_path)])
    assert seen[-1][-1] == "--allow-root", "the user of a container is root"


def test_options_of_advise_become_the_question_and_its_answer_names_them(monkeypatch: pytest.MonkeyPatch, capsys: Any):
    asked: dict[str, Any] = {}
    found = SimpleNamespace(words="no answer yet. Give minutes=5", shown=pd.DataFrame({"policy": ["bsp"]}),
                            remarks=["first", "second"], run=Run())  # fmt: skip

    def advise(base: Any, **question: Any) -> SimpleNamespace:
        asked.update(question, cluster=base.cluster)
        return found

    monkeypatch.setattr(search, "advise", advise)
    assert main(["advise", "--target", "0.9", "--cluster", "lab", "--merit", "bytes", "--seeds", "3"]) == 0
    assert asked == {"target": 0.9, "minutes": 5.0, "seeds": range(3), "merit": "bytes", "results": None,
                     "cluster": "lab"}  # fmt: skip
    printed = capsys.readouterr().out
    assert printed.startswith("no answer yet. Give --minutes 5\n\npolicy\n")
    assert "\n(first)\n(second)\n\npaste this" in printed
