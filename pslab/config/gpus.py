"""The kinds of this machine's GPUs, on which the last bits of results depend, and the version of their driver. Both are
read without torch and without waking a GPU."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

DRIVER = Path("/proc/driver/nvidia")


@lru_cache(maxsize=4)
def kinds(driver: Path = DRIVER) -> str:
    """Return the kinds of this machine's GPUs, ``"NVIDIA A100, NVIDIA H100 80GB HBM3"``; "" without a driver."""
    names = {line.partition(":")[2].strip() for path in driver.glob("gpus/*/information")
             for line in path.read_text().splitlines() if line.startswith("Model:")}  # fmt: skip
    return ", ".join(sorted(names))


@lru_cache(maxsize=4)
def version(driver: Path = DRIVER) -> str:
    """Return the version of NVIDIA's driver, ``"550.54.15"``; "" without a driver."""
    file = driver / "version"
    match = re.search(r"\b\d+\.\d+(\.\d+)?\b", file.read_text()) if file.is_file() else None
    return match[0] if match else ""
