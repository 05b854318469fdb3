"""A small race whose processes are all killed, as if by `kill -9`, at the n-th call of a named function.

python raced.py RESULTS MODULE:ATTRIBUTE N
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from killed import kill_at

from pslab.config.run import Run

BASE = Run(model="tiny:net", data="tiny:digits", batch_size=16, pushes=120, learning_rate=0.2,
           cluster={"compute_s": 0.01, "compute_sigma": 0.1, "bandwidth_bit_s": 1e6, "slow": {0: 1.5}})  # fmt: skip
ASKED: dict[str, Any] = {"target": 0.5, "space": {"prune": ["none", "static:5%"]}, "seeds": range(3), "progress": False}

if __name__ == "__main__":
    from pslab.lab.advise.search import advise

    results, where, count = sys.argv[1:]
    if os.getpgrp() != os.getpid():
        raise SystemExit("this process is to lead a group of its own: others would be killed with it")
    kill_at(where, int(count), group=True)
    advise(BASE, results=Path(results), **{**ASKED, "minutes": 60})
