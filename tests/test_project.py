"""Rules about the tree: what a folder holds and pslab offers, what an engine may not know, one list of dependencies."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

import pytest
import yaml
from test_prose import rooms

import pslab
from pslab.config.table import ROWS
from pslab.version import DISTRIBUTION, install

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "pslab"
FOLDERS = sorted({file.parent for file in PACKAGE.rglob("*.py")})
COMMON = {"none", "constant", "linear", "steps", "static", "std", "dynamic",  # words that are not only policies
          "local", "eager", "split", "stalest", "front", "needed", "range", "average"}  # fmt: skip


def test_conda_installs_what_pip_installs():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    assert environment["dependencies"] == ["python >=3.11,<3.14", "pip", {"pip": ["-e .[dev]"]}]


def test_the_distribution_has_a_name_of_its_own_and_every_line_that_installs_it_says_it():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (project["name"], list(project["scripts"])) == (DISTRIBUTION, ["pslab"])
    files = [*ROOT.glob("*.md"), *ROOT.glob("results/*.md"), *PACKAGE.rglob("*.py"), *ROOT.glob("docs/**/*.md"),
             *ROOT.glob("notebooks/*.ipynb")]  # fmt: skip
    assert [file.name for file in files if re.search(r"pip install \S*pslab\b(?!-workbench)", file.read_text())] == []
    assert install("ray") == f"pip install -e '{ROOT}[ray]'"


def test_every_file_that_is_not_python_is_installed():
    installed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["pslab"]
    files = (path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    assert {path.relative_to(PACKAGE).as_posix() for path in files if path.suffix != ".py"} == set(installed)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_folder_holds_three_entries_or_more_and_one_sentence_about_them(folder: Path):
    entries = [path for path in folder.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()]
    assert len([path for path in entries if path.name != "__init__.py"]) >= 3  # two pages are one, or lie a folder up
    words = ast.get_docstring(ast.parse((folder / "__init__.py").read_text()))
    assert words is not None
    sentence, *_ = words.splitlines()  # more may follow where a folder is the door to a subject
    assert re.fullmatch(r"[^.\n]+(\.\w+[^.\n]*)*\.", sentence), sentence


def test_no_policy_is_named_in_an_engine():
    kinds = ("sync", "rate", "order", "schedule", "prune")
    names = {name for kind in kinds for name in ROWS[kind]} - COMMON
    names |= {row.path.partition(":")[2] for kind in kinds[:-1] for row in ROWS[kind].values()}
    pattern = re.compile(rf"\b({'|'.join(sorted(names))})\b")
    for file in sorted((PACKAGE / "engines").rglob("*.py")):
        found = pattern.findall(file.read_text())
        assert not found, f"{file.relative_to(ROOT)} names {found}"


def test_tab_offers_what_a_person_uses_with_words_about_it_and_other_names_are_refused():
    assert dir(pslab) == sorted(pslab.__all__)
    assert all(getattr(pslab, name).__doc__ for name in pslab.__all__)
    with pytest.raises(AttributeError, match="no attribute 'sweeep'"):
        _ = pslab.sweeep


#: Classes that share a name, and why they keep it.
SHARED = {
    "Dense": "a pruning rule that users name, and the layout of a payload",
    "Front": "a request order that users name, and the browser's part of a view",
    "Linear": "a schedule that users name, and torch's word for the model that has this one",
    "Steps": "a schedule that users name, and a method's steps of plain SGD",
    "Host": "a machine: one that virtual time has, and one that was measured",
    "Memory": "the memory of a process, and what a pruning rule keeps",
    "Parcel": "bytes on the way, on real streams and on emulated links",
    "Reach": "where a process can be reached, as a protocol and as it is on this machine",
    "Store": "where a server's weights are: the protocol and the tensors that obey it",
}


def test_a_name_of_a_class_has_one_meaning():
    texts = [file.read_text() for file in PACKAGE.rglob("*.py")]
    counts = Counter(name for text in texts for name in {*re.findall(r"(?m)^class (\w+)", text)})
    assert {name for name, count in counts.items() if count > 1} <= {*SHARED}


#: Lines of each room. Whoever adds a capability raises its room's budget in the same commit, and says why.
BUDGETS = {
    "pslab": 600, "config": 2300, "engines": 150, "engines/check": 1750, "engines/emulation": 950,
    "engines/experiment": 1800, "engines/local": 2450, "engines/processes": 1250, "engines/ray": 1050,
    "engines/server": 1800, "engines/virtual": 1600, "engines/worker": 1850, "lab": 300, "lab/advise": 1800,
    "lab/commands": 1300, "lab/live": 900, "lab/plots": 4000, "lab/records": 2850, "lab/runs": 1950, "lab/studies":
    1200, "policies": 650, "policies/methods": 700, "policies/planning": 500, "policies/sync": 600, "protocol":
    1350, "tensors": 700, "tensors/compression": 2550, "tensors/datasets": 650, "tensors/partitioning": 750,
    "tensors/update": 1850, "tensors/workload": 2600,
}  # fmt: skip
LOADED = """
import os, sys, torch
for imports in sys.argv[1:]:
    if not os.fork():
        exec(imports)
        files = [module.__file__ for name, module in sys.modules.items() if name.partition(".")[0] == "pslab"]
        print(sum(open(file).read().count(chr(10)) for file in files), flush=True)
        os._exit(0)
    os.wait()
"""
CLOSURES = {  # what a process imports, beside torch: lines of the package
    "import pslab.engines.local.worker": 9_150, "import pslab.engines.local.server": 12_000,
    "import pslab.lab.runs.execution, pslab.engines.local.engine": 12_850,
}  # fmt: skip


def test_a_room_keeps_its_budget_of_lines():
    lines = {room: sum(len(path.read_text().splitlines()) for path in files) for room, files in rooms().items()}
    assert lines.keys() == BUDGETS.keys()
    assert {room: count for room, count in lines.items() if count > BUDGETS[room]} == {}


def test_a_process_loads_no_more_than_its_budget_of_lines():
    command = [sys.executable, "-c", LOADED, *CLOSURES]
    found = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout.split()
    assert len(found) == len(CLOSURES)
    assert {name: lines for name, lines in zip(CLOSURES, map(int, found), strict=True) if lines > CLOSURES[name]} == {}


PARTS = {  # capability: its files below pslab/, which a run that does not use it never loads
    "keys": ["engines/worker/keyed.py", "engines/server/keyed_shard.py"],
    "layers": ["engines/worker/layered.py", "engines/local/layered_worker.py", "engines/emulation/layer_progress.py"],
    "methods": ["policies/methods", "engines/worker/courses.py", *(f"tensors/update/{name}.py" for name in (
        "consensus", "elastic", "fragments", "inner", "own_weights"))],
    "planned barriers": ["policies/sync/elastic.py", "policies/planning/zipline.py", "policies/planning/baselines.py"],
    "planned ranges": ["engines/worker/range_schedule.py", "policies/planning/range_size.py"],
    "compressed answers": ["tensors/compression/downlink.py"],
    "low ranks": ["tensors/compression/matrices.py"],
    "Ray": ["engines/ray"],
    "the checker": ["engines/check"],
    "advice": ["lab/advise"],
    "the live view": ["lab/live"],
    "partitions": ["tensors/partitioning"],
}  # fmt: skip
STUDY = """
from pslab import Run, grid, plots, summary, sweep

if __name__ == "__main__":
    base = Run(model="mlp:8", data="mnist:256,64", workers=2, batch_size=16, pushes=8, eval_every=4)
    base = base.but(prune="static:10%", cluster="lab", engine="virtual")
    runs = grid(base, sync=["bsp", "ssp:3"], engine=["virtual", "local"])
    table = sweep(runs, results="results", progress=False)
    assert len(summary(table, by=["sync", "engine"])) == 4
    plots.curves(table, x="seconds")
"""


def test_a_study_of_the_core_runs_without_any_other_capability(tmp_path: Path):
    shutil.copytree(ROOT / "pslab", tmp_path / "pslab")  # with what is compiled, also of its loops
    (tmp_path / "data").symlink_to(ROOT / "data")
    for path in (tmp_path / "pslab" / name for names in PARTS.values() for name in names):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    (tmp_path / "study.py").write_text(STUDY)
    ended = subprocess.run([sys.executable, "study.py"], cwd=tmp_path, capture_output=True, text=True,
                           env={**os.environ, "PYTHONPATH": str(tmp_path)})  # fmt: skip
    assert ended.returncode == 0, ended.stderr
