"""Checks pslab on this machine's GPU, within eight minutes, and prints one page in Markdown.

    python tests/tools/gpu.py > gpu.md

The page has the tests that need CUDA, runs on the GPU beside the same runs on the CPU, the section `training` of the
benchmark with two workers on the one GPU, and notebook 01_observation, which times selection there. Exit status: 1
where a check fails, or where there is no GPU.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch

from pslab.config.run import Run
from pslab.engines.execute import execute
from pslab.engines.processes import pool
from pslab.errors import PslabError
from pslab.lab.runs.resolve import resolve
from pslab.tensors.device import no_cuda

ROOT = Path(__file__).parents[2]
NEAR = 1e-6  # of the largest weight: sums on a GPU have other roundings
RUNS: list[dict[str, str]] = [
    {}, {"ranges": "layers"}, {"prune": "static:1%", "pull": "changed"}, {"prune": "static:1%", "ranges": "layers"},
    {"prune": "std:2"}, {"prune": "dynamic"}, {"prune": "dgc:1%,warm_up=0"}, {"prune": "randomk:1%"},
    {"prune": "ef21:1%"}, {"prune": "lowrank:2"}, {"prune": "powersgd:2"},
    {"prune": "sketch:cols=2000"}, {"quantize": "int8"}, {"quantize": "qsgd:4"}, {"quantize": "efsign"},
    {"quantize": "dynamic8"}, {"prune": "static:1%", "quantize": "fp16"},
]  # fmt: skip


class Check(NamedTuple):
    """One part of the page."""

    words: str
    limit_s: float
    act: Callable[[float], tuple[bool, str]]  #: act(limit_s) returns whether all is well, and Markdown


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


def equality(limit_s: float) -> tuple[bool, str]:
    """Run each of RUNS on the GPU and on the CPU, and compare the weights."""
    until_s, lines, good = time.monotonic() + limit_s, ["| run | difference |", "|---|---|"], True
    for fields in RUNS:
        base = Run.of({"model": "mlp:64", "data": "mnist:train=512,test=64", "workers": 2, "sync": "bsp",
                       "batch_size": 16, "pushes": 16, "eval_every": 16, "dtype": "float64", "keep_weights": True,
                       **fields})  # fmt: skip
        if time.monotonic() > until_s:
            return False, "\n".join([*lines, f"| the others | not done in {limit_s:.0f} s |"])
        try:
            there, here = (execute(resolve(base.but(device=device)), lambda news: None).weights
                           for device in ("cuda", "cpu"))  # fmt: skip
            apart = float(np.abs(there - here).max() / np.abs(here).max())
            found = f"{apart:.1e}"
        except (PslabError, RuntimeError) as error:
            apart, found = float("inf"), str(error).splitlines()[0]
        good &= apart <= NEAR
        lines.append(f"| {', '.join(f'{name}={value}' for name, value in fields.items()) or 'dense'} | {found} |")
    pool.release()
    return good, "\n".join(lines)


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


CHECKS = (
    Check("tests that need CUDA", 200, tests), Check("the GPU beside the CPU, by the largest weight", 110, equality),
    Check("bench training, two workers on one GPU", 110, bench), Check("01_observation", 50, notebook),
)  # fmt: skip


def main() -> int:
    """Make all checks; the exit status."""
    if not torch.cuda.is_available():
        print(no_cuda())
        return 1
    free, total = torch.cuda.mem_get_info(0)
    print(f"# pslab on {torch.cuda.get_device_name(0)}\n\ntorch {torch.__version__}, CUDA {torch.version.cuda}, "
          f"{free / 2**30:.0f} of {total / 2**30:.0f} GiB free")  # fmt: skip
    bad = 0
    for check in CHECKS:
        begin_s = time.monotonic()
        good, text = check.act(check.limit_s)
        bad += not good
        spent_s = time.monotonic() - begin_s
        print(f"\n## {check.words}: {'good' if good else 'BAD'} ({spent_s:.0f} s)\n\n{text}", flush=True)
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
