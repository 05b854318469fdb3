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
MOMENTS = [
    ("multiprocessing.process:BaseProcess.start", 1),
    ("multiprocessing.process:BaseProcess.start", 3),
    ("multiprocessing.process:BaseProcess.start", 5),
    ("pslab.engines.processes.pool:Pool.reports", 1),
    ("pslab.engines.processes.pool:Pool.reports", 2),
    ("pslab.engines.processes.pool:Pool.reports", 6),
    ("pslab.engines.experiment.shared_memory:Arena.reserve", 1),
    ("pslab.engines.experiment.shared_memory:Arena.reserve", 2),
    ("pslab.engines.processes.pool:Pool.shelve", 1),
    ("pslab.engines.processes.pool:Pool.order", 1),
    ("pslab.engines.processes.pool:Pool.order", 4),
    ("pslab.engines.processes.pool:Pool.order", 9),
    ("pslab.engines.processes.pool:Pool.reports", 14),
    ("pslab.engines.processes.pool:Pool.reports", 20),
    ("pslab.engines.processes.pool:Pool.order", 12),
    ("pslab.lab.records.record:environment", 1),
    ("pandas:DataFrame.to_csv", 1),
    ("pandas:DataFrame.to_csv", 3),
    ("numpy:save", 1),
    ("pslab.lab.records.disk:publish", 1),
]
FEW = [MOMENTS[19]]
BUSY = """from functools import partial
from pathlib import Path
from sabotage import Sabotaged, in_c_code
from tiny import tiny
from pslab.lab.runs.run import run
place = Path({place!r})
model = partial(Sabotaged, place / "marker", partial(in_c_code, place / "begun"))
run(tiny(model=model, fleet={fleet!r}, pushes=200), results=place, progress=False)
"""


def kill_and_look(tmp_path: Path, where: str, count: int) -> None:
    token, before = uuid.uuid4().hex, set(os.listdir("/dev/shm"))
    command = [sys.executable, str(TESTS / "killed.py"), str(tmp_path), where, str(count)]
    environment = {**os.environ, "PSLAB_TOKEN": token, "PYTHONPATH": str(TESTS)}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == -9, f"{where} was not called {count} times:\n{ended.stderr}"
    for process in living(token):
        wait_for_end(process)
    assert living(token) == []
    assert set(os.listdir("/dev/shm")) <= before
    wanted = tiny(pushes=200, cluster={"compute_s": 0.005})
    assert find(wanted, tmp_path) is None  # nothing unfinished is taken for finished
    assert run(wanted.but(pushes=8), results=tmp_path, progress=False).manifest["pushes"] == 8
    assert not list((tmp_path / "runs").glob(".*"))  # a draft of the dead, if there was one, was cleared away


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Linux's pidfd_open and /proc")
@pytest.mark.parametrize(("where", "count"), FEW)
def test_a_killed_parent_leaves_nothing(tmp_path, where, count):
    kill_and_look(tmp_path, where, count)


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Linux's pidfd_open and /proc")
@pytest.mark.parametrize("fleet", ["local", pytest.param("loopback", marks=pytest.mark.slow)])
def test_a_worker_in_c_code_that_never_returns_ends_with_its_killed_parent(tmp_path, fleet):
    token, begun = uuid.uuid4().hex, tmp_path / "begun"
    os.mkfifo(begun)
    environment = {**os.environ, "PSLAB_TOKEN": token, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])}
    parent = subprocess.Popen([sys.executable, "-c", BUSY.format(place=str(tmp_path), fleet=fleet)], env=environment)
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


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Linux's pidfd_open and /proc")
@pytest.mark.parametrize(("where", "count"), [moment for moment in MOMENTS if moment not in FEW])
def test_a_killed_parent_leaves_nothing_at_any_moment(tmp_path, where, count):
    kill_and_look(tmp_path, where, count)
