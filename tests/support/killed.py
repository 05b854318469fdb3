"""A run whose process kills itself, as if by `kill -9`, at the n-th call of a named function; for test_killed.py.

python killed.py RESULTS MODULE:ATTRIBUTE N
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from functools import reduce
from typing import Any


def kill_at(where: str, count: int) -> None:
    """Replace a function by one that kills this process when it is called for the count-th time."""
    module, _, path = where.partition(":")
    *owners, name = path.split(".")
    owner = reduce(getattr, owners, importlib.import_module(module))
    original, calls = getattr(owner, name), 0

    def counted(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == count:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*arguments, **named)

    setattr(owner, name, classmethod(lambda cls, *a: counted(*a)) if isinstance(original, classmethod) else counted)


if __name__ == "__main__":
    results, where, count = sys.argv[1:]
    kill_at(where, int(count))
    from tiny import tiny

    from pslab.lab.runs.run import run

    run(tiny(pushes=200, cluster={"compute_s": 0.005}), results=results, progress=False)
