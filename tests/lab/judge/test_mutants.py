"""The judge finds bugs in real runs: a copy of the package gets a bug, and its run is judged by the code without it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from bugs import CHECKED
from histories import assert_invalid, assert_valid, recorded

import pslab
from pslab.lab.judge.verdict import Verdict
from pslab.lab.records.results import load

PACKAGE, TESTS = Path(pslab.__file__).parent, Path(__file__).parents[2] / "support"
SCRIPT = """
import json, sys
import pslab
from pslab import Run, run
assert pslab.__file__.startswith(sys.argv[1]), pslab.__file__
print(run(Run.of(json.loads(sys.argv[2])), results=sys.argv[3], progress=False).path)
"""
#: Two workers, one of them slow even if the machine is busy; with links, so that no worker reads weights in place.
CLUSTER = {"compute_s": 0.02, "latency_s": 0.0005, "slow": {"0": 4.0}}
RUN = {"model": "tiny:net", "data": "tiny:digits", "workers": 2, "batch_size": 16, "pushes": 24, "cluster": CLUSTER}
SERVER, SSP, BSP = "protocol/server.py", "policies/sync/ssp.py", "policies/sync/bsp.py"
Edits = tuple[tuple[str, str, str], ...]  # (file, what must be there once, what stands there instead)


def seeded(name: str) -> Edits:
    """A bug of the checker's list."""
    (bug,) = [bug for bug in CHECKED if bug.name == name]
    return ((f"{bug.where.replace('.', '/')}.py", bug.old, bug.new),)


#: bug -> its edits, the policy, the budget that the run reaches with it, words of the verdict
BUGS: dict[str, tuple[Edits, str, int, str]] = {
    "waiting workers continue one iteration early": (
        ((SSP, "iteration <= clocks.base + self.staleness:", "iteration <= clocks.base + self.staleness + 1:"),
         (SSP, "bound = clocks.base + staleness", "bound = clocks.base + staleness + 1"),
         (SSP, "return self.staleness + 1", "return self.staleness + 2")),
        "ssp:1", 24, "2 ahead, and a window of 2 allows 1"),
    "a barrier that ends with every push": (
        ((BSP, "if not event.moved:", "if not pushes:"),), "bsp", 24, "the policy claims a barrier"),
    "a push is applied twice": (
        ((SERVER, "tuple([held.pop(name) for name in names])", "2 * tuple([held[name] for name in names])"),),
        "asp", 24, "is applied twice: as push 1 and as push 2"),
    "every third push is dropped": (
        ((SSP, "return state, (Apply(worker, iteration), *starts)",
          "return state, (*(() if iteration % 3 == 1 else (Apply(worker, iteration),)), *starts)"),),
        "ssp:1", 24, "was never applied: its next push"),
    "pushes are counted twice": (((SERVER, "self.gradients += count", "self.gradients += 2 * count"),), "asp", 24,
                                 "the run stopped at its budget of 24 pushes after 12"),
    "waiting workers are held too long": (
        ((SSP, "bound = clocks.base + staleness", "bound = clocks.base + max(staleness - 1, 0)"),
         (SSP, "iteration <= clocks.base + self.staleness:", "iteration < clocks.base + self.staleness:")),
        "ssp:2", 24, "the policy starts it on version"),
    **{name: (seeded(name), policy, pushes, words) for name, policy, pushes, words in [
        ("the low bound rises before the last worker has pushed", "ssp:1", 24, "and a window of 2 allows 1"),
        ("staleness has no bound", "ssp:1", 5, "2 ahead, and a window of 2 allows 1"),
        ("the next round starts before the last one has ended", "bsp", 3, "1 ahead, and a window of 1 allows 0"),
        ("a reply reports the version before", "ssp:1", 24, "lacks the worker's own push"),
        ("a step makes no version", "asp", 24, "is part of version 0; 1 was expected"),
        ("a push is never applied", "asp", 4, "which the table of pushes lacks"),
    ]},
}  # fmt: skip


def judged(folder: Path, edits: Edits, sync: str, pushes: int, engine: str = "local") -> Verdict:
    """The verdict on a run by a copy of the package with these edits."""
    copied = shutil.copytree(PACKAGE, folder / "copy" / "pslab")
    for file, old, new in edits:
        text = (copied / file).read_text()
        assert text.count(old) == 1, f"{old!r} is {text.count(old)} times in {file}"
        (copied / file).write_text(text.replace(old, new))
    fields = {**RUN, "sync": sync, "pushes": pushes, "engine": engine}
    command = [sys.executable, "-P", "-c", SCRIPT, str(copied), json.dumps(fields), str(folder / "results")]
    data = os.environ.get("PSLAB_DATA", str(PACKAGE.parent / "data"))
    environment = {**os.environ, "PYTHONPATH": f"{copied.parent}{os.pathsep}{TESTS}", "PSLAB_DATA": data}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return recorded(load(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_can_still_be_put_in(bug):
    for file, old, _ in BUGS[bug][0]:
        assert (PACKAGE / file).read_text().count(old) == 1, old


@pytest.mark.parametrize(("bug", "engine"), [
    ("waiting workers continue one iteration early", "virtual"),
    *(pytest.param(bug, "local", marks=pytest.mark.slow) for bug in BUGS)])  # fmt: skip
def test_a_bug_is_found(tmp_path, bug, engine):
    edits, sync, pushes, words = BUGS[bug]
    assert_invalid(judged(tmp_path, edits, sync, pushes, engine), words)


@pytest.mark.slow
@pytest.mark.parametrize("sync", ["bsp", "ssp:1", "asp"])
def test_the_copy_without_a_bug_is_valid(tmp_path, sync):
    assert_valid(judged(tmp_path, (), sync, 24))
