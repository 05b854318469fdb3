"""Runs whose process kills itself, as if by `kill -9`, at the n-th call of a named function.

python killed.py RESULTS MODULE:ATTRIBUTE N [FIELDS ...]    JSON of each run; one that is long without
python killed.py RESULTS - MILLISECONDS [FIELDS ...]        once the first run has begun
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from typing import Any

if __name__ == "__main__":
    results, where, count, *runs = sys.argv[1:]
    from sabotage import dying, replaced
    from tiny import tiny

    from pslab.lab.runs.run import sweep

    def timed(begin: Any) -> Any:
        def begun(*given: Any, **named: Any) -> None:
            begin(*given, **named)
            threading.Timer(int(count) / 1000, os.kill, (os.getpid(), signal.SIGKILL)).start()

        return begun

    if where == "-":
        replaced("pslab.lab.records.drafts:Draft.__init__", timed)
    else:
        dying(where, int(count))
    fields = map(json.loads, runs) if runs else [{"pushes": 200, "cluster": {"compute_s": 0.005}}]
    sweep([tiny(**each) for each in fields], results=results, progress=False)
