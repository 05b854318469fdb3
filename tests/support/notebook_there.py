"""The process of a user on a host of a cluster: it executes one run, and says line by line what comes of it.

python notebook_there.py FIELDS    FIELDS are those of a tiny run, in JSON; `cluster` is a mapping like cluster.yaml

Each line is JSON: where the processes are, how many pushes there are, when an end was noticed and when a new process
went on, by the clock that all hosts of this machine share, and at last what a manifest says, or the error.
"""

from __future__ import annotations

import json
import sys
import time
from hashlib import sha256
from typing import Any

from conducted import judged
from ray_nodes import number_of
from tiny import tiny

from pslab.config.fleet import fields_of
from pslab.engines.execute import execute
from pslab.engines.local.recovery.replacing import Recovery
from pslab.engines.processes import pool
from pslab.errors import PslabError
from pslab.lab.runs.resolve import resolve

FACTS = ("outcome", "pushes", "deaths", "lives", "rewinds")


def say(**words: Any) -> None:
    print(json.dumps({"at_s": time.monotonic(), **words}), flush=True)


def saying(name: str) -> None:
    """Say when this method of Recovery is called, and which hosts Ray takes for alive then."""
    original = getattr(Recovery, name)

    def said(self: Recovery, *given: Any) -> Any:
        import ray

        say(does=name, alive=[node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]])
        return original(self, *given)

    setattr(Recovery, name, said)


class Look:
    """The receiver of a run's news."""

    def __init__(self) -> None:
        self._pushes = -1

    def __call__(self, news: dict[str, Any]) -> None:
        pushes = news.get("pushes", 0)
        if self._pushes < 0:
            say(waits=True)
        if pushes and self._pushes <= 0:
            say(on=places())
        if pushes != self._pushes and (pushes or self._pushes < 0):
            say(pushes=pushes)
            self._pushes = pushes


def places() -> dict[int, tuple[str, int]]:
    """The address of the host of each process, and its number there."""
    import ray

    hosts = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}
    assert pool._kept is not None
    return {n: (hosts[process.host], number_of(process)) for n, process in pool._kept.processes.items()}


def main(fields: dict[str, Any]) -> None:
    for name in ("lost", "rewind", "joined"):
        saying(name)
    run = tiny(**{**fields_of(fields.pop("cluster")), "cluster": {"compute_s": 0.02}, **fields})
    say(begins=True)
    try:
        outcome = execute(resolve(run), Look())
    except PslabError as error:
        say(error=type(error).__name__, words=str(error))
    else:
        facts = {name: outcome.facts[name] for name in FACTS if name in outcome.facts}
        say(done={**facts, **judged(run, outcome), "weights": sha256(outcome.weights.tobytes()).hexdigest()})


if __name__ == "__main__":
    import notebook_there  # children find its functions under its name

    notebook_there.main(json.loads(sys.argv[1]))
