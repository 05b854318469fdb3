"""What is slow to import is imported only where it is needed."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import sys, pslab.tensors.pruning.pruner, pslab.tensors.workload.data, pslab.tensors.workload.models
sys.exit(" ".join({"numba", "torchvision"} & {name.partition(".")[0] for name in sys.modules}) or 0)
"""


def test_numba_and_torchvision_are_imported_late() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
