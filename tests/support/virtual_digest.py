"""Digests of one virtual run, whole in this process: python virtual_digest.py SYNC PRUNE SEED"""

from __future__ import annotations

import hashlib
import sys

import numpy as np


def digests(sync: str, prune: str, seed: int, hosts: int | None = None) -> list[str]:
    """What a run leaves, as sha256 of its bytes: accuracy, phases, pushes, weights. With no hosts: in this process."""
    from tiny import tiny
    from whole import in_process

    from pslab.engines.execute import execute
    from pslab.engines.virtual import engine as virtual
    from pslab.lab.runs.resolve import resolve

    if hosts:
        virtual.cores = lambda: hosts
    pull = "whole" if prune == "none" else "changed"
    cluster = {"preset": "lab", "slow": {1: 2.0}, "apply_s": 0.001, "decode_s": 0.0005, "select_s": 0.002}
    run = tiny(engine="virtual", sync=sync, prune=prune, pull=pull, seed=seed, cluster=cluster, pushes=24)
    outcome = in_process(run) if hosts == 0 else execute(resolve(run), lambda news: None)
    tables = (outcome.accuracy, outcome.phases, outcome.pushes, outcome.weights)
    return [hashlib.sha256(np.ascontiguousarray(table).tobytes()).hexdigest() for table in tables]


if __name__ == "__main__":
    sync, prune, seed = sys.argv[1:]
    print(*digests(sync, prune, int(seed), 0))
