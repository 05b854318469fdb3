"""Processes that reach each other by TCP alone: where they listen, and what becomes of a run when one is cut off."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import unreachable
from processes import listens

from pslab.config.fleet import Fleet
from pslab.engines.local.lines.ends import number_of
from pslab.engines.processes.pool import SERVER, Pool

REPOSITORY = Path(__file__).parents[4]
CUT: dict[str, Any] = {"workers": 3, "pushes": 150, "sync": "bsp", "cluster": {"compute_s": 0.02}, "lease_s": 2.0,
                       "checkpoint_every": 20}  # fmt: skip
#: By the streams to it, or by the parent: whoever is first.
NOTICED = ("is gone (nobody saw its end: its host may be gone, or the way there)",
           *(f"has been silent for longer than its lease of 2 s while {doing}" for doing in ("computing", "sending")),
           )  # fmt: skip


@pytest.fixture
def processes() -> Iterator[list[int]]:
    """The numbers of a fleet's processes, and of its parent."""
    found = Pool(1, lambda: None, Fleet("loopback"))
    yield [os.getpid(), *(process.pid for process in found.processes.values())]
    found.close(kill=True)


@pytest.mark.slow
def test_nobody_listens_anywhere_but_in_the_named_network(processes: list[int]):
    assert [address for process in processes[1:] for address in listens(process)] == ["127.0.0.1", "127.0.0.1"]
    assert "0.0.0.0" not in listens(processes[0])
    assert "127.0.0.1" in listens(processes[0])


def cut_off(number: int, **fields: Any) -> dict[str, Any]:
    """What came of a run in which the way to the host of one process was cut; see `unreachable`."""
    if problem := unreachable.possible():
        pytest.skip(f"no network namespaces can be had here: {problem}")
    paths = os.pathsep.join(map(str, (REPOSITORY, REPOSITORY / "tests" / "support")))
    command = ["unshare", "--user", "--map-root-user", "--net", sys.executable, unreachable.__file__, str(number)]
    said = subprocess.check_output([*command, json.dumps({**CUT, **fields})], env={**os.environ, "PYTHONPATH": paths})
    return dict(json.loads(said))


@pytest.mark.slow
def test_the_others_go_on_without_a_worker_whose_host_cannot_be_reached():
    found = cut_off(1, on_death="continue")
    (death,) = found["deaths"]
    assert death["worker"] == 1
    assert death["how"] in NOTICED
    assert (found["outcome"], found["verdict"]) == ("budget", "valid")
    assert found["listens"] == {"-1": ["10.77.0.1"], "0": ["10.77.0.1"], "1": ["10.77.0.2"], "2": ["10.77.0.1"]}


@pytest.mark.slow
def test_a_worker_whose_host_cannot_be_reached_is_replaced_on_another():
    found = cut_off(1, on_death="restart")
    (life,) = found["lives"]
    assert (life["worker"], life["joined"]) == (1, life["iteration"])
    assert (found["outcome"], found["pushes"], found["verdict"]) == ("budget", 150, "valid")


@pytest.mark.slow
@pytest.mark.parametrize(("number", "servers"), [(SERVER, 1), (SERVER, 2), (number_of(3, 1), 2)])
def test_when_the_host_of_a_server_cannot_be_reached_the_run_goes_on_from_a_checkpoint(number: int, servers: int):
    found = cut_off(number, on_death="restart", servers=servers)
    (rewind,) = found["rewinds"]
    assert rewind["to_pushes"] <= rewind["pushes"]
    assert (found["outcome"], found["pushes"], found["verdict"]) == ("budget", 150, "valid")


@pytest.mark.slow
def test_a_run_that_replaces_nobody_says_which_host_cannot_be_reached_and_keeps_what_it_has():
    found = cut_off(SERVER, on_death="stop")
    assert (found["error"], found["saved"]) == ("WorkerDied", True)
    assert found["words"].startswith("server has been silent for longer than its lease of 2 s while serving")
