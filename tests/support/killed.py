"""Runs whose process kills itself, as if by `kill -9`, at the n-th call of a named function.

python killed.py RESULTS MODULE:ATTRIBUTE N [FIELDS ...]    JSON of each run; one that is long without
python killed.py RESULTS - MILLISECONDS [FIELDS ...]        once the first run has begun
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import threading
from functools import reduce
from typing import Any


def kill_at(where: str, count: int, *, group: bool = False) -> None:
    """Replace a function by one that kills this process, or its whole group, at the count-th call."""
    module, _, path = where.partition(":")
    *owners, name = path.split(".")
    owner = reduce(getattr, owners, importlib.import_module(module))
    original, calls = getattr(owner, name), 0

    def counted(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == count:
            (os.killpg if group else os.kill)(os.getpgrp() if group else os.getpid(), signal.SIGKILL)
        return original(*arguments, **named)

    setattr(owner, name, classmethod(lambda cls, *a: counted(*a)) if isinstance(original, classmethod) else counted)


if __name__ == "__main__":
    results, where, count, *runs = sys.argv[1:]
    from tiny import tiny

    from pslab.lab.runs.run import sweep

    if where == "-":
        from pslab.lab.records.drafts import Draft

        begin = Draft.__init__

        def begun(self: Any, *given: Any, **named: Any) -> None:
            begin(self, *given, **named)
            threading.Timer(int(count) / 1000, os.kill, (os.getpid(), signal.SIGKILL)).start()

        Draft.__init__ = begun  # type: ignore[method-assign]
    else:
        kill_at(where, int(count))
    fields = map(json.loads, runs) if runs else [{"pushes": 200, "cluster": {"compute_s": 0.005}}]
    sweep([tiny(**each) for each in fields], results=results, progress=False)
