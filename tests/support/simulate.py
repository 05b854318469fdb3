"""What a policy decides while workers compute for constant times over free links: a run without tensors."""

from __future__ import annotations

from typing import Any

from tiny import finished, tiny

from pslab.protocol.messages import Aggregate, Apply, Drop, Pushed, Searched, Start

TWICE = [{"what": "duplicate", "probability": 1.0}]  # each frame


class Noted:
    """A policy that notes each event, its decisions about it, and the low bound."""

    def __init__(self, sync: Any) -> None:
        self.like, self.notes = sync, list[tuple[Any, Any, int]]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.like, name)

    def step(self, state: Any, event: Any, clocks: Any) -> Any:
        state, decisions = self.like.step(state, event, clocks)
        if event.now:  # else it is a trial, before the run
            self.notes.append((event, decisions, clocks.base))
        return state, decisions


class Trace:
    """What a policy was asked and has decided, and what follows from it for the workers."""

    def __init__(self, notes: list[tuple[Any, Any, int]], workers: int, until_s: float, refused: int) -> None:
        decided = [(event.now, decision, base) for event, decisions, base in notes for decision in decisions]
        started = {(each.worker, each.iteration): (now, base) for now, each, base in decided if type(each) is Start}
        pushed = [*dict.fromkeys((event.worker, event.now) for event, *_ in notes if isinstance(event, Pushed))]
        self.refused = refused  # messages
        self.pushes = {worker: [now for who, now in pushed if who == worker] for worker in range(workers)}
        self.waited = {worker: sum(started.get((worker, count), (until_s, 0))[0] - now
                                   for count, now in enumerate(instants, 1))
                       for worker, instants in self.pushes.items()}  # fmt: skip
        self.steps = [each for _, each, _ in decided if isinstance(each, Apply | Aggregate)]
        self.rounds = [[*each.pushes] for each in self.steps if isinstance(each, Aggregate)]
        self.dropped = [(each.worker, each.iteration) for _, each, _ in decided if isinstance(each, Drop)]
        self.searched = [(now, each.points) for now, each, _ in decided if isinstance(each, Searched)]
        #: iterations between a worker that is started and the slowest
        self.lead_max = max((iteration - base for (_, iteration), (_, base) in started.items()), default=0)
        #: pushes between the fastest and the slowest worker
        self.gap_max, counts = 0, dict.fromkeys(range(workers), 0)
        for worker, _ in pushed:
            counts[worker] += 1
            self.gap_max = max(self.gap_max, max(counts.values()) - min(counts.values()))


def simulate(sync: Any, compute_s: list[float], until_s: float, *, ranges: int = 1, twice: bool = False) -> Trace:
    """Run workers with these compute times; with `twice`, every message comes twice."""
    noted, trace = Noted(sync), {worker: [float(each)] for worker, each in enumerate(compute_s)}
    run = tiny(engine="timing", sync=noted, workers=len(compute_s), servers=ranges, pushes=None, seconds=until_s + 1e-9,
               cluster={"trace": trace, "faults": TWICE if twice else []})  # fmt: skip
    return Trace(noted.notes, len(compute_s), until_s, finished(run).facts["refused"])
