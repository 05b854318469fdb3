"""kill -9 of a run's parent leaves no process, no name in /dev/shm and no record that looks finished."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from processes import living, wait_for_end
from tiny import tiny

from pslab.lab.records.record import find
from pslab.lab.runs.run import run

TESTS = Path(__file__).parents[2] / "support"
POOL = "pslab.engines.processes.pool:Pool"
#: A function, and the calls of it before which the parent is killed.
MOMENTS = {
    "multiprocessing.process:BaseProcess.start": (1, 3, 5), f"{POOL}.reports": (1, 2, 6, 14, 20),
    f"{POOL}.shelve": (1,), f"{POOL}.order": (1, 4, 9, 12),
    "pslab.engines.experiment.shared_memory:Arena.reserve": (1, 2), "pslab.lab.records.drafts:environment": (1,),
    "pandas:DataFrame.to_csv": (1, 3), "numpy:save": (1,), "pslab.lab.records.disk:publish": (1,),
}  # fmt: skip
FEW = ("pslab.lab.records.disk:publish",)
pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Linux's pidfd_open and /proc")
BUSY = """from functools import partial
from pathlib import Path
from sabotage import Sabotaged, in_c_code
from tiny import tiny
from pslab.lab.runs.run import run
place = Path({place!r})
model = partial(Sabotaged, place / "marker", partial(in_c_code, place / "begun"))
run(tiny(model=model, pushes=200), results=place, progress=False)
"""


@pytest.mark.parametrize(("where", "count"), [
    pytest.param(where, count, marks=[pytest.mark.slow] * (where not in FEW))
    for where, counts in MOMENTS.items() for count in counts])  # fmt: skip
def test_a_killed_parent_leaves_nothing(tmp_path: Path, where: str, count: int):
    token, before = uuid.uuid4().hex, set(os.listdir("/dev/shm"))
    command = [sys.executable, str(TESTS / "killed.py"), str(tmp_path), where, str(count)]
    (temporary := tmp_path / "t").mkdir()  # the path of a socket has at most 107 characters
    environment = {**os.environ, "PSLAB_TOKEN": token, "PYTHONPATH": str(TESTS), "TMPDIR": str(temporary)}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == -9, f"{where} was not called {count} times:\n{ended.stderr}"
    for process in living(token):
        wait_for_end(process)
    assert living(token) == []
    assert list(temporary.iterdir()) == []
    assert set(os.listdir("/dev/shm")) <= before
    wanted = tiny(pushes=200, cluster={"compute_s": 0.005})
    assert find(wanted, tmp_path) is None  # nothing unfinished is taken for finished
    assert run(wanted.but(pushes=8), results=tmp_path, progress=False).manifest["pushes"] == 8
    assert not list((tmp_path / "runs").glob(".*"))  # a draft of the dead, if there was one, was cleared away


def test_a_worker_in_c_code_that_never_returns_ends_with_its_killed_parent(tmp_path):
    token, begun = uuid.uuid4().hex, tmp_path / "begun"
    os.mkfifo(begun)
    environment = {**os.environ, "PSLAB_TOKEN": token, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])}
    parent = subprocess.Popen([sys.executable, "-c", BUSY.format(place=str(tmp_path))], env=environment)
    pipe = os.open(begun, os.O_RDONLY | os.O_NONBLOCK)
    assert select.select([pipe], [], [], 60)[0]
    os.close(pipe)
    parent.kill()
    parent.wait()
    for process in sorted(living(token), reverse=True):  # the oldest one ends behind all others
        wait_for_end(process)
    left = living(token)
    for process in left:
        os.kill(process, signal.SIGKILL)
    assert left == []
