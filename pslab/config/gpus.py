"""The kinds of this machine's GPUs, and the version of their driver, read without torch and without waking a GPU."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

DRIVER = Path("/proc/driver/nvidia")


@lru_cache(maxsize=4)
def kinds(driver: Path = DRIVER) -> str:
    """``"NVIDIA H100 80GB HBM3"``; several kinds with commas, "" without a driver. Each kind computes other bits."""
    names = {line.partition(":")[2].strip() for path in driver.glob("gpus/*/information")
             for line in path.read_text().splitlines() if line.startswith("Model:")}  # fmt: skip
    return ", ".join(sorted(names))


@lru_cache(maxsize=4)
def version(driver: Path = DRIVER) -> str:
    """``"550.54.15"``; "" without a driver."""
    file = driver / "version"
    match = re.search(r"\b\d+\.\d+(\.\d+)?\b", file.read_text()) if file.is_file() else None
    return match[0] if match else ""
