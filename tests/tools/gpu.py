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


def command(limit_s: float, *words: str) -> tuple[bool, str]:
    """Return whether a command of Python ends well within a limit, and what it prints."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    try:
        done = subprocess.run([sys.executable, "-m", *words], cwd=ROOT, env=environment, timeout=limit_s, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip
    except subprocess.TimeoutExpired as error:
        printed = error.stdout or b""
        return False, f"{printed.decode() if isinstance(printed, bytes) else printed}\nnot done in {limit_s:.0f} s"
    return done.returncode == 0, done.stdout.strip()


def fenced(text: str, lines: int) -> str:
    """Return the last lines of a text as Markdown that keeps them as they are."""
    return "\n".join(["```", *text.splitlines()[-lines:], "```"])


def tests(limit_s: float) -> tuple[bool, str]:
    """Run the tests that need a CUDA device."""
    chosen = "-m", "slow or not slow", "-k", "cuda", "tests/engines/test_device.py"
    good, printed = command(limit_s, "pytest", "-q", *chosen)
    return good and "skipped" not in printed, fenced(printed, 12)


def bench(limit_s: float) -> tuple[bool, str]:
    """Time rounds of training, with two workers on the GPU."""
    good, printed = command(limit_s, "pslab", "bench", "training", "--quick", "--device", "cuda")
    return good, fenced(printed, 20)


def notebook(limit_s: float) -> tuple[bool, str]:
    """Execute notebook 01_observation with few pushes; show what selecting takes on each device."""
    with tempfile.TemporaryDirectory() as place:
        good, printed = command(limit_s, "pslab", "figures", "--all", "--tiny", "--no-images", "--only=01_observation",
                                "--results", place)  # fmt: skip
        files = sorted(Path(place).rglob("costs.csv"))
        if not good or not files:
            return False, fenced(printed, 20)
        costs = pd.read_csv(files[-1]).groupby(["operation", "device"]).seconds.median().unstack() * 1e3
    return "cuda" in costs, fenced(f"median ms\n{costs.round(3).to_string()}", 40)


CHECKS = {
    "tests that need CUDA": (tests, 300), "bench training, two workers on one GPU": (bench, 110),
    "01_observation": (notebook, 60),
}  # fmt: skip


def main() -> int:
    """Make all checks; the exit status."""
    if not torch.cuda.is_available():
        print(no_cuda())
        return 1
    free, total = torch.cuda.mem_get_info(0)
    print(f"# pslab on {torch.cuda.get_device_name(0)}\n\ntorch {torch.__version__}, CUDA {torch.version.cuda}, "
          f"{free / 2**30:.0f} of {total / 2**30:.0f} GiB free")  # fmt: skip
    bad = 0
    for words, (check, limit_s) in CHECKS.items():
        begin_s = time.monotonic()
        good, text = check(limit_s)
        bad += not good
        spent_s = time.monotonic() - begin_s
        print(f"\n## {words}: {'good' if good else 'BAD'} ({spent_s:.0f} s)\n\n{text}", flush=True)
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
