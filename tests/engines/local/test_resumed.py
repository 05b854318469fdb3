"""A run on real processes whose parent was killed goes on from the disk, with new processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny import tiny
from whole import ended_after

from pslab.lab.runs.run import run

LONG_S = 60.0
SUPPORT = Path(__file__).parents[2] / "support"
FIELDS: dict[str, Any] = {"sync": "bsp", "prune": "static:5%", "pull": "changed", "on_death": "restart", "workers": 2,
                          "pushes": 160, "checkpoint_every": 20}  # fmt: skip


def interrupted(monkeypatch: pytest.MonkeyPatch, results: Path, after: int, **fields: Any) -> None:
    """The run is ended once so many checkpoints are on the disk."""
    with ended_after(monkeypatch, after, KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        run(tiny(**fields), results=results, progress=False)


@pytest.mark.parametrize("servers", [1, 3])
def test_under_a_barrier_a_resumed_run_ends_with_the_bits_of_an_undisturbed_one(tmp_path, monkeypatch, servers):
    fields = {**FIELDS, "servers": servers}
    undisturbed = run(tiny(**fields), results=tmp_path / "undisturbed", progress=False)
    interrupted(monkeypatch, tmp_path, 2, **fields)
    found = run(tiny(**fields), results=tmp_path, progress=False)
    assert np.array_equal(found.weights, undisturbed.weights)
    (resumed,) = found.manifest["resumed"]
    assert resumed["pushes"] >= 40
    assert found.manifest["verdict"] == "valid", found.manifest["violations"]
    same = ["worker", "iteration", "version_pulled", "version_applied", "loss", "density", "bytes_up"]
    ours, theirs = (each.pushes.sort_values(["iteration", "worker", "range"])[same] for each in (found, undisturbed))
    assert np.array_equal(ours, theirs)
    assert found.pushes.seconds.is_monotonic_increasing
    assert found.accuracy[["pushes", "accuracy", "loss"]].equals(undisturbed.accuracy[["pushes", "accuracy", "loss"]])
    assert not (tmp_path / "checkpoints" / found.digest).exists()


class Alternating:
    """A rate of the user's that is not what it was."""

    weighted, steps = True, 0

    def scale(self, applied: Any) -> float:
        self.steps += 1
        return 0.25 + 0.1 * (self.steps % 2)


def test_a_rate_that_keeps_state_in_its_attributes_is_not_checkpointed(tmp_path):
    found = run(tiny(**{**FIELDS, "rate": Alternating()}), results=tmp_path, progress=False)
    assert "checkpoints" not in found.manifest
    assert "its rate, a Alternating, keeps state of its own in its attributes" in found.manifest["no_checkpoints"]


@pytest.mark.slow
@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("sync", ["asp", "ssp:3", "eager", "dssp:1,2"])
def test_a_resumed_run_is_valid_under_every_kind_of_policy(tmp_path, monkeypatch, sync, servers):
    fields = {**FIELDS, "sync": sync, "servers": servers, "cluster": {"compute_s": 0.01}, "pushes": 400}
    interrupted(monkeypatch, tmp_path, 2, **fields)
    found = run(tiny(**fields), results=tmp_path, progress=False)
    assert found.manifest["resumed"]
    assert found.manifest["pushes"] >= 400
    assert found.manifest["verdict"] == "valid", found.manifest["violations"]


@pytest.mark.slow
@pytest.mark.parametrize("servers", [1, 2])
def test_a_parent_that_is_killed_costs_no_more_than_what_came_after_its_last_checkpoint(tmp_path, servers):
    fields = {**FIELDS, "servers": servers}
    undisturbed = run(tiny(**fields), results=tmp_path / "undisturbed", progress=False)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SUPPORT), str(SUPPORT.parents[1])])}
    where = "pslab.engines.experiment.checkpoint.store:CheckpointStore.write", "4"
    command = [sys.executable, str(SUPPORT / "killed.py"), str(tmp_path), *where, json.dumps(fields)]
    done = subprocess.run(command, env=environment, capture_output=True, timeout=300, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    found = run(tiny(**fields), results=tmp_path, progress=False)
    assert np.array_equal(found.weights, undisturbed.weights)
    assert [each["pushes"] >= 60 for each in found.manifest["resumed"]] == [True]
