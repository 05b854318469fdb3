"""A run in virtual time is its seed's: another process, hash seed and directory leave the same tables and facts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import chaos_digest
import pytest

import pslab


@pytest.mark.parametrize("runs", [12, pytest.param(200, marks=pytest.mark.slow)])
def test_another_process_hash_seed_and_directory_leave_the_same_digests(tmp_path: Path, runs: int):
    package = Path(pslab.__file__).parents[1]
    data = os.environ.get("PSLAB_DATA", str(package / "data"))
    paths = os.pathsep.join(map(str, (package, Path(__file__).parents[1])))
    environment = {**os.environ, "PYTHONPATH": paths, "PYTHONHASHSEED": "7", "PSLAB_DATA": data}
    printed = subprocess.run([sys.executable, chaos_digest.__file__, "8", str(runs)], env=environment, cwd=tmp_path,
                             capture_output=True, text=True, check=True, timeout=600)  # fmt: skip
    found = chaos_digest.digests(8, runs)
    assert printed.stdout.split() == found
    assert len(set(found)) == runs
