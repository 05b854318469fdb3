"""Random moments at which a process of a run is killed or stopped: what becomes of the run, and what is left behind.

python campaign.py MOMENTS [SEED] [KIND ...]
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from processes import living, wait_for_end
from tiny import tiny

from pslab.engines.execute import execute
from pslab.engines.experiment.experiment import Outcome
from pslab.engines.local.lines.ends import number_of
from pslab.engines.processes import pool
from pslab.errors import RunError
from pslab.lab.runs.resolve import resolve

EVERY = 20  # pushes between checkpoints
WORKERS = 2
RUN = tiny(sync="bsp", prune="static:5%", workers=WORKERS, pushes=200, on_death="restart", lease_s=3.0,
           checkpoint_every=EVERY, eval_every=100, cluster={"compute_s": 0.005})  # fmt: skip
KINDS = ("kill worker", "kill server", "kill another server", "stop worker", "stop server", "stop another server",
         "stop parent", "kill parent")  # fmt: skip
OTHERS = WORKERS  # servers beside the one that decides, where one of them ends
LIMIT_S = 120.0  # for one run, however busy the machine
PAUSE_S = 0.5  # for which a parent is stopped
PREPARES = 0.1  # of the moments' span lies in the preparation
PARENT_S = 8.0  # from the start of its interpreter
GONE_S = 10.0  # after which nothing of a killed parent may be left


def conduct(kind: str, delay_s: float, who: int) -> tuple[Outcome | RunError, float]:
    """One run whose process gets its signal so long after its start, or, if that is negative, while it is prepared; and
    how long it took."""
    signs, another = signal.SIGKILL if kind.startswith("kill") else signal.SIGSTOP, kind.endswith("another server")
    wanted = RUN.but(servers=1 + OTHERS) if another else RUN  # under a barrier to the same bits

    def act() -> None:
        number = number_of(WORKERS, 1 + who) if another else pool.SERVER if kind.endswith("server") else who
        kept = pool._kept
        with contextlib.suppress(AttributeError, KeyError, ProcessLookupError, ValueError):
            if kind == "stop parent":
                pause = f"sleep {PAUSE_S}; kill -CONT {os.getpid()}"
                subprocess.Popen(["sh", "-c", pause])  # it wakes what stops itself now
                os.kill(os.getpid(), signal.SIGSTOP)
            else:
                os.kill(kept.processes[number].pid, signs)

    timer, begun_s = threading.Timer(abs(delay_s), act), time.monotonic()
    if delay_s < 0:
        timer.start()

    def look(news: dict[str, Any]) -> None:
        if "workers" in news and timer.ident is None:
            timer.start()

    try:
        return execute(resolve(wanted), look), time.monotonic() - begun_s
    except RunError as error:
        return error, time.monotonic() - begun_s
    finally:
        timer.cancel()
        if timer.ident is not None:
            timer.join()


def parent_killed(delay_s: float) -> str:
    """What is left of a run whose parent is killed; "" if nothing is."""
    token, before = uuid.uuid4().hex, set(os.listdir("/dev/shm"))
    with tempfile.TemporaryDirectory() as place:
        code = (f"import sys; sys.path[:0] = {sys.path!r}\nfrom campaign import RUN\n"
                f"from pslab.lab.runs.run import run\nrun(RUN, results={place!r}, progress=False)")  # fmt: skip
        child = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "PSLAB_TOKEN": token})
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(delay_s)  # the random moment; or it came to its end before
        child.kill()
        child.wait()
        for process in living(token):
            wait_for_end(process, GONE_S)
        left = living(token)
        named = set(os.listdir("/dev/shm")) - before
        folders = [each.name for each in (Path(place) / "runs").glob("*")] if Path(place, "runs").exists() else []
        drafts = [name for name in folders if not name.startswith(".")]
        return ", ".join(map(str, [*left, *named])) if left or named or len(drafts) > 1 else ""


def campaign(moments: int, seed: int, kinds: tuple[str, ...] = KINDS) -> Iterator[dict[str, Any]]:
    """The figures of each kind."""
    execute(resolve(RUN), lambda news: None)
    undisturbed = execute(resolve(RUN), lambda news: None)
    lasts_s = float(undisturbed.facts["seconds"])
    pool.release(kill=True)
    gc.collect()
    names, descriptors = set(os.listdir("/dev/shm")), len(os.listdir("/proc/self/fd"))
    for kind in kinds:
        outcome: Outcome | RunError | None = None
        draws, found, worst_s, lost, gaps = random.Random(f"{seed}/{kind}"), Counter[str](), 0.0, 0, [0.0]
        for _ in range(moments):
            delay_s, who = draws.uniform(-PREPARES * lasts_s, lasts_s), draws.randrange(WORKERS)
            if kind == "kill parent":
                left = parent_killed(draws.uniform(0.0, PARENT_S))
                found["nothing left" if not left else f"left: {left}"] += 1
                continue
            outcome, took_s = conduct(kind, delay_s, who)
            worst_s = max(worst_s, took_s)
            if isinstance(outcome, RunError):
                found[f"{type(outcome).__name__}: {str(outcome).splitlines()[0][:100]}"] += 1
                continue
            same = np.array_equal(outcome.weights, undisturbed.weights)
            met = "rewinds" if "rewinds" in outcome.facts else "lives" if "lives" in outcome.facts else "not met"
            found[f"{'equal' if same else 'OTHER BITS'}, {met}"] += 1
            gaps.append(float(np.diff(outcome.pushes[:, 7], prepend=0.0).max()))
            for rewind in outcome.facts.get("rewinds", ()):
                lost = max(lost, rewind["pushes"] - rewind["to_pushes"])
        pool.release(kill=True)
        del outcome
        gc.collect()
        yield {"kind": kind, **found, "longest run s": round(worst_s, 1), "longest gap s": round(max(gaps), 2),
               "median gap s": round(float(np.median(gaps)), 2), "most pushes repeated": lost,
               "descriptors more": len(os.listdir("/proc/self/fd")) - descriptors,
               "names left": sorted(set(os.listdir("/dev/shm")) - names)}  # fmt: skip


if __name__ == "__main__":
    moments, seed, *kinds = sys.argv[1:]
    for figures in campaign(int(moments), int(seed), tuple(kinds) or KINDS):
        print(figures, flush=True)
