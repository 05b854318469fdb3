"""A run in virtual time leaves the same bits wherever its gradients are computed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from ownpolicies import Largest
from tiny import Diverges, Noisy, finished, tiny
from virtual_cases import DOWNLINK, LAB, PORTABLE, batch_norm, in_words
from virtual_digest import digests

from pslab.config.run import Run
from pslab.engines.virtual import engine as virtual
from pslab.lab.runs.resolve import resolve

TESTS = Path(__file__).parents[2] / "support"


def left_on(monkeypatch: pytest.MonkeyPatch, run: Run, hosts: int) -> list[bytes]:
    monkeypatch.setattr(virtual, "cores", lambda: hosts)
    outcome = finished(run)
    return [table.tobytes() for table in (outcome.weights, outcome.phases, outcome.pushes, outcome.accuracy)]


@pytest.mark.one_of(9)
@pytest.mark.parametrize("fields", DOWNLINK + PORTABLE, ids=in_words)
def test_any_number_of_hosts_leaves_the_same_bits(monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any]):
    run = tiny(**{"engine": "virtual", "cluster": LAB, "pushes": 24, **fields})
    one = left_on(monkeypatch, run, 1)
    assert left_on(monkeypatch, run, 3) == one
    assert left_on(monkeypatch, run, 2) == one  # nor is anything left over from the runs before


@pytest.mark.one_of(3)
@pytest.mark.parametrize(
    ("fields", "portable"),
    [({"prune": "std:2"}, True), ({"model": batch_norm}, False), ({"model": Diverges}, False),
     ({"model": Noisy}, False), ({"prune": Largest()}, False), ({}, True)],
)  # fmt: skip
def test_a_worker_that_may_remember_something_stays_with_one_host(monkeypatch, fields, portable):
    run = tiny(engine="virtual", sync="asp", cluster="lab", pushes=24, **fields)
    assert resolve(run).portable is portable
    # without the accuracy: what a user's own model remembers, its evaluation may remember, too
    assert left_on(monkeypatch, run, 2)[:3] == left_on(monkeypatch, run, 1)[:3]


def of_another_process(place: Path, *arguments: str, **more: str) -> list[str]:
    """The digests of a run in a new process, with `more` in its environment."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parents[1])]), **more}
    printed = subprocess.run([sys.executable, str(TESTS / "virtual_digest.py"), *arguments], env=environment, cwd=place,
                             capture_output=True, text=True, check=True, timeout=120)  # fmt: skip
    return printed.stdout.split()


@pytest.mark.parametrize(
    ("sync", "prune"), [pytest.param("bsp", "none", marks=pytest.mark.slow), ("asp", "static:5%")]
)
def test_another_process_leaves_the_same_bits(tmp_path, sync, prune):
    assert of_another_process(tmp_path, sync, prune, "3", PYTHONHASHSEED="7") == digests(sync, prune, 3)
    assert digests(sync, prune, 4, 0) != digests(sync, prune, 3, 0)


@pytest.mark.slow
@pytest.mark.skipif(torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"), reason="one capability alone")
def test_the_same_bits_are_those_of_one_cpu_capability(tmp_path):
    """Instructions that add in another order change the last bits of gradients, and, without pruning, no instant."""
    runs = [of_another_process(tmp_path, "asp", "none", "3", ATEN_CPU_CAPABILITY=capability)
            for capability in ("avx2", "avx2", "default")]  # fmt: skip
    assert runs[0] == runs[1]
    accuracy, phases, _, weights = zip(runs[0], runs[2], strict=True)
    assert phases[0] == phases[1]
    assert weights[0] != weights[1]
    assert accuracy[0] != accuracy[1]


@pytest.mark.slow
@pytest.mark.parametrize("prune", ["none", "static:5%"])
@pytest.mark.parametrize("sync", ["bsp", "ssp:1", "asp"])
def test_fifty_seeds_leave_the_same_bits_on_one_host_and_on_three(sync, prune):
    for seed in range(50):
        assert digests(sync, prune, seed, 1) == digests(sync, prune, seed, 3), seed
