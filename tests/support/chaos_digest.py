"""Digests of the virtual runs of a chaos campaign, and of runs with real gradients: python chaos_digest.py SEED RUNS"""

from __future__ import annotations

import hashlib
import sys

import numpy as np

GRADIENTS = 6  # runs


def digests(seed: int, runs: int) -> list[str]:
    """Of each run: the SHA-256 of its tables and facts, but for those that the clock on the wall has said."""
    from drawn_cases import case
    from tools.chaos.campaign import campaign
    from whole import in_process

    from pslab.lab.commands.verify import MEASURED

    found = []
    with_gradients = ((in_process(run), [], run) for run in map(case, range(GRADIENTS)))
    for outcome, words, run in (*campaign(seed, range(runs), "virtual"), *with_gradients):
        assert outcome is not None, words
        digest = hashlib.sha256(str(run.seed).encode())
        for table in (outcome.phases, outcome.pushes, outcome.arrivals, outcome.weights):
            digest.update(np.ascontiguousarray(table).tobytes())
        facts = {name: value for name, value in outcome.facts.items() if name not in MEASURED}
        digest.update(repr(sorted(facts.items())).encode())
        found.append(digest.hexdigest())
    return found


if __name__ == "__main__":
    print(*digests(*map(int, sys.argv[1:])))
