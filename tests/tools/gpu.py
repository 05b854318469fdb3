"""Checks pslab on this machine's GPU, within eight minutes, and prints one page in Markdown.

    python tests/tools/gpu.py > gpu.md

The page has the tests that need CUDA, which compare runs with the CPU's, the section `training` of the benchmark with
two workers on the one GPU, and notebook 01_observation, which times selection there. Exit status: 1 where a check
fails, or where there is no GPU.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pandas as pd
import torch

from pslab.tensors.device import no_cuda

ROOT = Path(__file__).parents[2]
#: By its title, how many seconds a check may take, and the command of Python.
CHECKS = {
    "tests that need CUDA": (300, ["pytest", "-q", "-m", "slow or not slow", "-k", "cuda",
                                   "tests/engines/test_device.py"]),
    "bench training, two workers on one GPU": (110, ["pslab", "bench", "training", "--quick", "--device", "cuda"]),
    "01_observation": (60, ["pslab", "figures", "--all", "--tiny", "--no-images", "--only=01_observation",
                            "--results"]),
}  # fmt: skip


def outcome(limit_s: float, words: list[str]) -> tuple[bool, str]:
    """Return whether a command of Python ends well within a limit, and what it prints."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    try:
        done = subprocess.run([sys.executable, "-m", *words], cwd=ROOT, env=environment, timeout=limit_s, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip
    except subprocess.TimeoutExpired:
        return False, f"not done in {limit_s:.0f} s"
    return done.returncode == 0 and "skipped" not in done.stdout, done.stdout.strip()


def costs(results: str) -> tuple[bool, str]:
    """Return whether the notebook has timed the GPU, and what selecting takes on each device."""
    (file,) = Path(results).rglob("costs.csv")
    table = pd.read_csv(file).groupby(["operation", "device"]).seconds.median().unstack() * 1e3
    return "cuda" in table, f"median ms\n{table.round(3).to_string()}"


def main() -> int:
    """Make all checks; the exit status."""
    if not torch.cuda.is_available():
        print(no_cuda())
        return 1
    free, total = torch.cuda.mem_get_info(0)
    print(f"# pslab on {torch.cuda.get_device_name(0)}\n\ntorch {torch.__version__}, CUDA {torch.version.cuda}, "
          f"{free / 2**30:.0f} of {total / 2**30:.0f} GiB free")  # fmt: skip
    bad = 0
    with tempfile.TemporaryDirectory() as results:
        for title, (limit_s, words) in CHECKS.items():
            begin_s, takes_results = time.monotonic(), words[-1] == "--results"
            good, text = outcome(limit_s, words + [results] * takes_results)
            if good and takes_results:
                good, text = costs(results)
            bad += not good
            shown = "\n".join(text.splitlines()[-40:])
            print(f"\n## {title}: {'good' if good else 'BAD'} ({time.monotonic() - begin_s:.0f} s)\n\n"
                  f"```\n{shown}\n```", flush=True)  # fmt: skip
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
