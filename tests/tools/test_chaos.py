"""pslab chaos: its campaigns hold, find seeded bugs, and name the command that repeats a violation."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bugs import DRAWN, Bug
from drawn_cases import case
from found import COMMON, FOUND
from whole import in_process

import pslab
from pslab.__main__ import main
from pslab.config.run import Run
from pslab.engines.experiment.shared_memory import Arena
from pslab.lab.commands.verify import MEASURED
from tools.chaos.campaign import performed
from tools.chaos.draw import drawn
from tools.chaos.soak import MIB, Sample, descriptors, resident_bytes, slope

OWN = os.getpid()
SEED, RUNS = 0, 1000  # of the campaign that shows nearly all seeded bugs


def printed(capsys: pytest.CaptureFixture[str], words: str, status: int = 0) -> str:
    """What the command prints, which ends with this status."""
    ended = main(["chaos", *words.split()])
    out = capsys.readouterr().out
    assert ended == status, out
    return out


def run_of(name: int | str) -> Run:
    """A run of the campaign by its number, or of the corpus by its name."""
    return Run.of({**COMMON, **FOUND[name]}) if isinstance(name, str) else drawn(SEED, name, "timing")


# --- campaigns --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", ["--seed 1 --runs 40", *(pytest.param(words, marks=pytest.mark.slow) for words in (
    *(f"--seed 2 --first {first} --runs 1000" for first in range(0, 10_000, 1000)),
    "--seed 3 --runs 200 --engine local"))])  # fmt: skip
def test_a_campaign_holds(words: str, capsys: pytest.CaptureFixture[str]):
    assert " 0 violations" in printed(capsys, words)


def test_what_a_campaign_has_found_stays_mended():
    assert {name: found for name in FOUND if (found := performed(run_of(name))[1])} == {}


@pytest.mark.one_of(2)
@pytest.mark.parametrize("bug", DRAWN, ids=lambda bug: bug.name)
def test_a_seeded_bug_is_found(bug: Bug, monkeypatch: pytest.MonkeyPatch):
    """In the run that its list names; or, if that is drawn otherwise by now, in any run, which takes long."""
    bug.seed(monkeypatch)
    numbers: list[Any] = [bug.run, *FOUND, *range(RUNS)]
    assert any(bug.says in "; ".join(performed(run_of(name))[1]) for name in numbers)


def test_a_violation_comes_with_the_command_that_repeats_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    (bug,) = (each for each in DRAWN if each.name == "weights are read twice")
    bug.seed(monkeypatch)
    first = printed(capsys, f"--seed {SEED} --first {bug.run} --runs 1", status=1)
    again = f"--seed {SEED} --first {bug.run} --runs 1 --engine virtual"
    assert bug.says in first
    assert f"python -m pslab chaos {again}\n" in first
    assert printed(capsys, again, status=1).splitlines()[:3] == first.splitlines()[:3]


def test_impossible_numbers_are_refused(capsys: pytest.CaptureFixture[str]):
    for words in ("--runs 0", "--seed -1", "--minutes 0"):
        assert main(["chaos", *words.split()]) == 2
        assert "must be a number" in capsys.readouterr().err


# --- what is drawn ----------------------------------------------------------------------------------------------------


def test_a_run_is_its_seeds_and_numbers_alone():
    for engine in ("timing", "local"):
        found, again = ([drawn(5, number, engine).digest for number in range(20)] for _ in range(2))
        assert found == again
        assert len({*found, *(drawn(seed, 0, engine).digest for seed in range(10))}) == 29


def digests() -> list[str]:
    """The SHA-256 of each run's tables and facts, but for facts that the clock on the wall has said."""
    found, with_gradients = [], map(case, range(6))
    outcomes = [performed(drawn(8, number, "timing"))[0] for number in range(200)]
    for outcome in (*outcomes, *map(in_process, with_gradients)):
        digest = hashlib.sha256()
        for table in (outcome.phases, outcome.pushes, outcome.arrivals, outcome.weights):
            digest.update(np.ascontiguousarray(table).tobytes())
        facts = {name: value for name, value in outcome.facts.items() if name not in MEASURED}
        digest.update(repr(sorted(facts.items())).encode())
        found.append(digest.hexdigest())
    return found


@pytest.mark.slow
def test_another_process_hash_seed_and_directory_leave_the_same_digests(tmp_path: Path):
    package, own = Path(pslab.__file__).parents[1], Path(__file__).parent
    paths = os.pathsep.join(map(str, (package, own.parent, own.parent / "support", own)))
    data = os.environ.get("PSLAB_DATA", str(package / "data"))
    environment = {**os.environ, "PYTHONPATH": paths, "PYTHONHASHSEED": "7", "PSLAB_DATA": data}
    done = subprocess.run([sys.executable, "-c", "import test_chaos; print(*test_chaos.digests())"], env=environment,
                          cwd=tmp_path, capture_output=True, text=True, check=True, timeout=600)  # fmt: skip
    found = digests()
    assert done.stdout.split() == found
    assert len(set(found)) == len(found)


# --- a soak -----------------------------------------------------------------------------------------------------------


def test_the_slope_is_that_of_a_line_in_ten_minutes():
    """A process that is replaced is left out."""
    samples = [Sample(60.0 * at, {OWN: int((100 + 0.1 * at) * MIB), 1: int((20 + 0.2 * at) * MIB), 2 + at // 12: MIB},
                      50, 7) for at in range(20)]  # fmt: skip
    assert [slope(samples), slope(samples, 1)] == pytest.approx([3.0, 2.0], abs=1e-3)


def test_descriptors_and_memory_of_a_process_are_counted_and_maps_of_shared_memory_once():
    before, pipe = descriptors(OWN), os.pipe()
    assert descriptors(OWN) == before + 2
    for end in pipe:
        os.close(end)
    arena, views = Arena(), []
    for size_bytes in (4096, 8192, 16384):
        arena.reserve(size_bytes)
        views.append(arena.bytes(0, size_bytes))
    assert descriptors(OWN) == before + 1
    arena.close()
    assert descriptors(OWN) == before + 1  # while something lies there
    views.clear()
    assert descriptors(OWN) == before
    assert resident_bytes(OWN) > MIB
    assert (descriptors(2**30), resident_bytes(2**30)) == (0, 0)


@pytest.mark.slow
def test_an_hour_of_runs_with_faults_leaves_memory_and_descriptors_as_they_were(capsys: pytest.CaptureFixture[str]):
    """An hour, unless $PSLAB_SOAK_MINUTES says otherwise."""
    out = printed(capsys, f"--seed 13 --minutes {os.environ.get('PSLAB_SOAK_MINUTES', '60')}")
    grown, own = re.search(r"([+-][\d.]+) MiB in 10 minutes", out), re.search(r"(\d+) to (\d+) in the parent", out)
    assert grown, out
    assert float(grown[1]) <= 1.0, out
    assert own, out
    assert own[1] == own[2], out
