"""pslab chaos: what it prints and measures, the command that repeats a violation, and that its runs are the seed's."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import chaos_digest
import pytest
from found import COMMON, FOUND

import pslab
from pslab.__main__ import main
from pslab.config.run import Run
from pslab.config.table import ROWS
from pslab.engines.experiment.shared_memory import Arena
from tools.chaos import campaign as campaigns
from tools.chaos import sums
from tools.chaos.draw import drawn
from tools.chaos.soak import MIB, Samples, descriptors, resident_bytes

OWN = os.getpid()


def printed(capsys: pytest.CaptureFixture[str], words: str, status: int = 0) -> str:
    """What the command prints, which ends with this status."""
    ended = main(["chaos", *words.split()])
    out = capsys.readouterr().out
    assert ended == status, out
    return out


# --- campaigns --------------------------------------------------------------------------------------------------------


def test_a_campaign_holds(capsys: pytest.CaptureFixture[str]):
    out = printed(capsys, "--seed 1 --runs 40")
    assert "40 runs on the virtual engine, seed 1" in out
    assert "0 violations" in out


@pytest.mark.slow
@pytest.mark.parametrize("words", ["--seed 2 --runs 10000", "--seed 3 --runs 200 --engine local"])
def test_a_long_campaign_holds(words: str, capsys: pytest.CaptureFixture[str]):
    printed(capsys, words)


@pytest.mark.parametrize("name", FOUND)
def test_what_a_campaign_has_found_stays_mended(name: str):
    assert campaigns.performed(Run.of({**COMMON, **FOUND[name]}))[1] == []


def test_a_violation_comes_with_the_command_that_repeats_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(sums.SumShard, "apply", lambda self, step, rate, computing: None)  # loses every step
    again = "--seed 4 --first 7 --runs 1 --engine virtual"
    first = printed(capsys, "--seed 4 --first 7 --runs 1", status=1)
    assert "a sequential replay of the applied pushes leaves" in first
    assert f"python -m pslab chaos {again}\n" in first
    assert printed(capsys, again, status=1).splitlines()[:3] == first.splitlines()[:3]


def test_what_raises_is_a_violation(monkeypatch: pytest.MonkeyPatch):
    def raises(*given: object) -> None:
        raise KeyError("lost")

    monkeypatch.setattr(campaigns, "exchange", raises)
    ((outcome, found, _),) = campaigns.campaign(0, range(1), "virtual")
    assert outcome is None
    assert found[0].startswith("KeyError: 'lost'")


def test_impossible_numbers_are_refused(capsys: pytest.CaptureFixture[str]):
    for words in ("--runs 0", "--seed -1", "--minutes 0"):
        assert main(["chaos", *words.split()]) == 2
        assert "must be a number" in capsys.readouterr().err


# --- what is drawn ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["timing", "local"])
def test_a_run_is_its_seeds_and_numbers_alone(engine: str):
    runs = [drawn(5, number, engine) for number in range(20)]
    assert [run.digest for run in runs] == [drawn(5, number, engine).digest for number in range(20)]
    assert len({run.digest for run in runs}) == 20
    assert len({drawn(seed, 0, engine).digest for seed in range(10)}) == 10
    assert all(run.plain() for run in runs)


@pytest.mark.slow
def test_another_process_hash_seed_and_directory_leave_the_same_digests(tmp_path: Path):
    package = Path(pslab.__file__).parents[1]
    paths = os.pathsep.join(map(str, (package, Path(__file__).parents[1])))
    data = os.environ.get("PSLAB_DATA", str(package / "data"))
    environment = {**os.environ, "PYTHONPATH": paths, "PYTHONHASHSEED": "7", "PSLAB_DATA": data}
    done = subprocess.run([sys.executable, chaos_digest.__file__, "8", "200"], env=environment, cwd=tmp_path,
                          capture_output=True, text=True, check=True, timeout=600)  # fmt: skip
    found = chaos_digest.digests(8, 200)
    assert done.stdout.split() == found
    assert len(set(found)) == 200


def test_every_policy_and_every_fault_is_drawn():
    runs = [drawn(6, number, "timing") for number in range(300)]
    assert {str(run.sync).partition(":")[0] for run in runs} == set(ROWS["sync"])
    assert {run.servers for run in runs} == {1, 2, 3}
    faults: list[dict[str, Any]] = [fault for run in runs for fault in run.cluster["faults"]]
    assert {fault["what"] for fault in faults} == {"kill", "stop", "duplicate", "delay", "drop", "corrupt"}


# --- a soak -----------------------------------------------------------------------------------------------------------


def sample(minute: int, **mebibytes: float) -> tuple[float, dict[int, int], int, int]:
    """Of this process, and of p1, p2, ..."""
    memory = {OWN if name == "own" else int(name[1:]): int(size * MIB) for name, size in mebibytes.items()}
    return 60.0 * minute, memory, 50, 7


def test_the_slope_is_that_of_a_line_in_ten_minutes():
    samples = Samples([sample(at, own=100 + 0.1 * at, p1=20 + 0.2 * at) for at in range(20)])
    assert samples.slope() == pytest.approx(3.0, abs=1e-3)
    assert samples.slope(1) == pytest.approx(2.0, abs=1e-3)
    assert "in the 2 that were never replaced +3.00 MiB in 10 minutes (in the parent +1.00)" in samples.words()
    assert "50 to 50 in all processes, 50 at the end, 7 to 7 in the parent" in samples.words()


def test_descriptors_and_memory_of_a_process_are_counted():
    before = descriptors(OWN)
    read, write = os.pipe()
    assert descriptors(OWN) == before + 2
    os.close(read)
    os.close(write)
    assert resident_bytes(OWN) > MIB
    assert (descriptors(2**30), resident_bytes(2**30)) == (0, 0)


def test_maps_of_shared_memory_are_no_more_descriptors():
    before, arena, views = descriptors(OWN), Arena(), []
    for size_bytes in (4096, 8192, 16384):
        arena.reserve(size_bytes)
        views.append(arena.bytes(0, size_bytes))
    assert descriptors(OWN) == before + 1
    arena.close()
    assert descriptors(OWN) == before + 1  # while something lies there
    views.clear()
    assert descriptors(OWN) == before


@pytest.mark.slow
def test_an_hour_of_runs_with_faults_leaves_memory_and_descriptors_as_they_were(capsys: pytest.CaptureFixture[str]):
    """An hour, unless $PSLAB_SOAK_MINUTES says otherwise."""
    out = printed(capsys, f"--seed 13 --minutes {os.environ.get('PSLAB_SOAK_MINUTES', '60')}")
    slope, own = re.search(r"([+-][\d.]+) MiB in 10 minutes", out), re.search(r"(\d+) to (\d+) in the parent", out)
    assert slope, out
    assert float(slope[1]) <= 1.0, out
    assert own, out
    assert own[1] == own[2], out
