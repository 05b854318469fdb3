"""The library that multiplies matrices on this machine's CPU, chosen without torch: the last bits depend on it.

MKL is torch's own choice. On AMD processors with AVX-512 it does half of what they can, 100 GFLOP/s a core where
oneDNN, which torch brings as well, does 205 to 230; elsewhere MKL is the faster one (with AVX2 by 3 to 20 %, batch 64).
"""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

from pslab.errors import ConfigError

MKL, ONEDNN = "mkl", "onednn"
CHOICE = "PSLAB_PRODUCTS"  # an environment variable that forces one of them
PROCESSOR = Path("/proc/cpuinfo")


def here() -> str:
    """The library that runs use here, unless they need MKL.

    Raises:
        ConfigError: the environment names one that does not exist.
    """
    forced = os.environ.get(CHOICE, "")
    if forced not in ("", MKL, ONEDNN):
        raise ConfigError(CHOICE, forced, f"must be {MKL} or {ONEDNN}; without it the processor decides")
    return forced or fastest()


@lru_cache(maxsize=4)
def fastest(processor: Path = PROCESSOR) -> str:
    """Return the faster library for this kind of processor, by a table: all hosts of a kind choose the same."""
    try:
        words = processor.read_text().partition("\n\n")[0].split()
    except OSError:
        return MKL
    return ONEDNN if {"AuthenticAMD", "avx512f"} <= set(words) else MKL
