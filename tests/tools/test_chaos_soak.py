"""What a soak measures: how memory grows by a linear fit, and descriptors."""

from __future__ import annotations

import math
import os
import re
from types import SimpleNamespace

import pytest

from pslab.__main__ import main
from pslab.engines.experiment.shared_memory import Arena
from tools.chaos import soak as soaks
from tools.chaos.draw import drawn
from tools.chaos.soak import MIB, Samples, descriptors, resident_bytes, soak, still

OWN = os.getpid()


def sample(at: int, **mebibytes: float) -> tuple[float, dict[int, int], int, int]:
    """One in a minute: of this process, and of p1, p2, ..."""
    memory = {OWN if name == "own" else int(name[1:]): int(size * MIB) for name, size in mebibytes.items()}
    return 60.0 * at, memory, 50, 7


def test_the_slope_is_that_of_a_line_in_ten_minutes():
    samples = Samples([sample(at, own=100 + 0.1 * at, p1=20 + 0.2 * at) for at in range(20)])
    assert samples.slope() == pytest.approx(3.0, abs=1e-3)
    assert samples.slope(1) == pytest.approx(2.0, abs=1e-3)
    assert "in the 2 that were never replaced +3.00 MiB in 10 minutes (in the parent +1.00)" in samples.words()
    assert "50 to 50 in all processes, 50 at the end, 7 to 7 in the parent" in samples.words()


def test_a_process_that_was_replaced_says_nothing_of_a_leak():
    samples = Samples([sample(at, own=100, **{"p1" if at < 15 else "p2": 50 + 2 * at}) for at in range(20)])
    assert samples.throughout() == [OWN]
    assert samples.slope() == pytest.approx(0.0, abs=1e-6)


def test_the_first_part_is_left_out():
    rows = [sample(at, own=90 if at < 2 else 100, **{"p1" if at < 2 else "p2": 10}) for at in range(10)]
    assert Samples(rows).throughout() == sorted([2, OWN])
    assert Samples(rows).slope() == pytest.approx(0.0, abs=1e-6)
    assert math.isnan(Samples(rows[:2]).slope())


def test_descriptors_and_memory_of_a_process_are_counted():
    own = os.getpid()
    before = descriptors(own)
    read, write = os.pipe()
    assert descriptors(own) == before + 2
    os.close(read)
    os.close(write)
    assert resident_bytes(own) > MIB
    assert (descriptors(2**30), resident_bytes(2**30)) == (0, 0)


def test_maps_of_shared_memory_are_no_more_descriptors():
    before, arena, views = descriptors(os.getpid()), Arena(), []
    for size_bytes in (4096, 8192, 16384):
        arena.reserve(size_bytes)
        views.append(arena.bytes(0, size_bytes))
    assert descriptors(os.getpid()) == before + 1
    arena.close()
    assert descriptors(os.getpid()) == before + 1  # while something lies there
    views.clear()
    assert descriptors(os.getpid()) == before


def test_runs_go_on_until_the_time_is_over_with_samples_between_them(monkeypatch: pytest.MonkeyPatch):
    clock = iter(range(0, 10_000, 10))
    monkeypatch.setattr(soaks, "time", SimpleNamespace(monotonic=lambda: float(next(clock))))  # its own, nobody else's
    done, quiet = list[int](), list[int]()
    samples = soak(2.0, done.append, lambda: quiet.append(len(done)))
    assert done == list(range(11))
    assert quiet == [0, 5, 10]
    assert len(samples.rows) == 3


def test_no_run_that_is_drawn_has_more_processes_than_the_one_that_is_sampled_after():
    most = max(run.workers + run.servers for run in (drawn(7, number, "local") for number in range(300)))
    assert most <= still().workers + still().servers


@pytest.mark.slow
def test_an_hour_of_runs_with_faults_leaves_memory_and_descriptors_as_they_were(capsys: pytest.CaptureFixture[str]):
    """An hour, unless $PSLAB_SOAK_MINUTES says otherwise."""
    minutes = os.environ.get("PSLAB_SOAK_MINUTES", "60")
    status = main(["chaos", "--seed", "13", "--minutes", minutes])
    said = capsys.readouterr().out
    assert status == 0, said
    slope, own = re.search(r"([+-][\d.]+) MiB in 10 minutes", said), re.search(r"(\d+) to (\d+) in the parent", said)
    assert slope, said
    assert float(slope[1]) <= 1.0, said
    assert own, said
    assert own[1] == own[2], said
