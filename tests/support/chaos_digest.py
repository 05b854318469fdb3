"""Digests of the virtual runs of a chaos campaign: python chaos_digest.py SEED RUNS"""

from __future__ import annotations

import hashlib
import sys

import numpy as np


def digests(seed: int, runs: int) -> list[str]:
    """Of each run: the SHA-256 of its tables and facts, but for those that the clock on the wall has said."""
    from tools.chaos.campaign import campaign

    from pslab.lab.commands.verify import MEASURED

    found = []
    for outcome, words, run in campaign(seed, range(runs), "virtual"):
        assert outcome is not None, words
        digest = hashlib.sha256(run.digest.encode())
        for table in (outcome.phases, outcome.pushes, outcome.arrivals):
            digest.update(np.ascontiguousarray(table).tobytes())
        facts = {name: value for name, value in outcome.facts.items() if name not in MEASURED}
        digest.update(repr(sorted(facts.items())).encode())
        found.append(digest.hexdigest())
    return found


if __name__ == "__main__":
    print(*digests(*map(int, sys.argv[1:])))
