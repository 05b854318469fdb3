"""A notebook's kernel, interrupted and killed in the middle of a run at random moments of a fixed list."""

from __future__ import annotations

import hashlib
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kernels import Kernel
from processes import living, wait_for_end

from pslab.config.run import Run
from pslab.lab.records.drafts import clean
from pslab.lab.records.record import FILES, WEIGHTS
from pslab.lab.records.results import load

LIMIT_S = 2.0  # until the prompt is back
LENIENT_S = 10.0  # the same where many tests may load the machine
GONE_LIMIT_S = 10.0  # for a child that is still importing torch when the kernel dies; one that runs ends at once
MOMENTS, KILLS = 20, 100

FIELDS = {"model": "tiny:net", "data": "tiny:digits", "workers": 2, "batch_size": 16, "cluster": {"compute_s": 0.005}}
LONG = 2400  # pushes; with what comes before and after, longer than the latest moment also where a machine is fast


def moment(name: str, number: int, latest_s: float) -> float:
    """Seconds after the cell's begin."""
    return random.Random(f"{name} {number}").uniform(0.0, latest_s)


def wanted(pushes: int, seed: int) -> Run:
    return Run.of({**FIELDS, "pushes": pushes, "seed": seed, "keep_weights": True})


def cell(pushes: int, seed: int) -> str:
    return f"run(Run.of({wanted(pushes, seed).plain()}))"


def hidden(results: Path) -> list[str]:
    """The drafts that are there."""
    return [path.name for path in (results / "runs").glob(".*")]


def check_whole(path: Path) -> int:
    """A record is all there; its pushes."""
    kept = load(path)
    assert sorted(file.name for file in path.iterdir()) == sorted((*FILES, "arrivals.csv", WEIGHTS))
    assert hashlib.sha256(kept.weights.tobytes()).hexdigest() == kept.manifest["weights_sha256"]
    assert len(kept.pushes) == kept.manifest["pushes"] > 0
    assert len(kept.phases)
    return len(kept.pushes)


# -- interrupted -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("results")


@pytest.fixture(scope="module")
def kernel(results: Path) -> Iterator[Kernel]:
    kernel = Kernel(results)
    kernel.do(cell(8, MOMENTS))  # torch is imported, the pool stands
    yield kernel
    kernel.close()


def interrupt_and_look(kernel: Kernel, results: Path, number: int, limit_s: float, latest_s: float = 3.0) -> None:
    after_s = moment("interrupt", number, latest_s)
    request = kernel.begin(cell(LONG, number))
    if kernel.ends_within(request, after_s):
        pytest.fail(f"the run was over before the moment, {after_s:.2f} s after its begin")
    begun_s = time.monotonic()
    kernel.manager.interrupt_kernel()
    reply = kernel.end(request)
    took_s = time.monotonic() - begun_s
    assert reply["status"] == "error", reply
    assert reply["ename"] == "RunsInterrupted", reply
    (line,) = reply["traceback"]
    assert line.endswith(f": {reply['evalue']}")
    kept = [path for path in results.glob("interrupted/*") if load(path).run.seed == number]
    said = reply["evalue"].partition(" in /")[0]
    print(f"interrupt {number}: after {after_s:.2f} s, back in {took_s:.2f} s; {said}")
    assert took_s < limit_s
    assert ("kept in" in reply["evalue"]) == bool(kept)
    assert [check_whole(path) for path in kept] == [int(w) for w in reply["evalue"].split() if w.isdigit()]
    assert hidden(results) == []
    assert kernel.do(cell(8, number))["status"] == "ok"


EARLY = 3  # of the moments in a kernel that is warm, one of the first
COLD = [0, 5, 10, 15]  # in a fresh kernel: torch is being imported, or the pool spawned


@pytest.mark.parametrize("number", [pytest.param(number, marks=[] if number == EARLY else pytest.mark.slow)
                                    for number in range(MOMENTS)])  # fmt: skip
def test_an_interrupt_gives_the_prompt_back_and_keeps_what_was_finished(request, tmp_path, number):
    if number not in COLD:
        interrupt_and_look(request.getfixturevalue("kernel"), request.getfixturevalue("results"), number,
                           LENIENT_S if number == EARLY else LIMIT_S)  # fmt: skip
        return
    kernel = Kernel(tmp_path)
    try:
        interrupt_and_look(kernel, tmp_path, number, LIMIT_S, latest_s=6.0)
    finally:
        kernel.close()


# -- killed ----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("number", range(KILLS))
def test_a_killed_kernel_leaves_nothing_but_whole_records(tmp_path, number):
    before, kernel = set(os.listdir("/dev/shm")), Kernel(tmp_path)
    after_s = moment("kill", number, 8.0)
    request = kernel.begin(cell(LONG, number))
    if kernel.ends_within(request, after_s):
        pytest.fail(f"the run was over before the moment, {after_s:.2f} s after its begin")
    children = len(living(kernel.token)) - 1
    begun_s = time.monotonic()
    kernel.kill()
    for process in living(kernel.token):
        wait_for_end(process, GONE_LIMIT_S)
    took_s = time.monotonic() - begun_s
    left = f"{len(hidden(tmp_path))} drafts"
    print(f"kill {number}: after {after_s:.2f} s, {children} children, gone in {took_s:.2f} s; {left}")
    assert living(kernel.token) == []
    assert set(os.listdir("/dev/shm")) <= before
    for record in (tmp_path / "runs").glob("[!.]*"):
        check_whole(record)
    clean(tmp_path)
    assert hidden(tmp_path) == []
    assert not (tmp_path / "runs" / wanted(LONG, number).digest).exists()
    if number % 5:
        return
    fresh = Kernel(tmp_path)
    try:
        assert fresh.do(cell(8, number))["status"] == "ok"
    finally:
        fresh.close()
    assert len([check_whole(path) for path in (tmp_path / "runs").iterdir()]) == 1
