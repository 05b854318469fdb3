"""A run on real processes that goes on from the disk: what its servers have kept in memory, and the tables of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from pslab.engines.experiment.checkpoint.checkpointing import Checkpointing
from pslab.engines.experiment.checkpoint.file import pack, unpack
from pslab.engines.experiment.experiment import Experiment, OnProgress
from pslab.engines.experiment.job import Job
from pslab.engines.local.liveness import Liveness
from pslab.engines.local.recovery.generations import Generations, newest
from pslab.engines.local.recovery.replacing import Recovery
from pslab.engines.processes.pool import Pool
from pslab.engines.processes.precedence import Precedence
from pslab.engines.server.ledger import ARRIVAL_COLUMNS, PUSH_COLUMNS
from pslab.engines.server.rows import Rows, rows_in

COLUMNS = len(PUSH_COLUMNS), len(ARRIVAL_COLUMNS)
KINDS: dict[str, type] = {
    "servers": list, "tables": list, "snapshots": dict, "evaluated": dict, "weights": dict, "dilation": float,
    "yields": bool, "lives": list, "rewinds": list, "deaths": list,
}  # fmt: skip
FIRST = 1  # the number of a checkpoint that is laid ready


class Owner(Protocol):
    """What a run has that belongs to its checkpoints."""

    pool: Pool
    experiment: Experiment
    on_progress: OnProgress
    snapshots: dict[int, tuple[int, float]]
    evaluated: dict[int, tuple[float, float]]
    liveness: Liveness
    recovery: Recovery
    dilation: float
    precedence: Precedence
    before: Mapping[str, Any] | None

    def forget_snapshots(self, count: int) -> None: ...


class Disk:
    """In the parent. Nothing goes to the disk unless the run replaces its processes: only then its servers keep any."""

    def __init__(self, owner: Owner, job: Job) -> None:
        self._owner, self._job = owner, job
        for arenas in owner.pool.checkpoints.values():
            Generations(arenas).clear()  # of those of another run
        self._servers = [Generations(owner.pool.checkpoints[number]) for number in owner.recovery.servers]
        place = owner.experiment.checkpoints if job.run.on_death == "restart" else None
        if place is not None and owner.before is not None:  # what was too fast is of no use
            place.clear()
        self.keeper = Checkpointing(place, job, owner.pool.arena, self._say, beside=False)
        self.resumed = False  #: whether the run goes on from the disk

    def keep(self, pushes: int, problem: str) -> None:
        """The servers have kept a checkpoint after so many pushes, or one says why not: if one is due here, too, it
        goes to the disk."""
        self._owner.recovery.problem = problem or self._owner.recovery.problem
        if not problem and self.keeper.due(pushes) and (found := newest(self._servers, self._known)) is not None:
            self.keeper.keep(found.facts["pushes"], lambda: self._state(found.parts))

    def _known(self, facts: Mapping[str, Any]) -> bool:
        """Whether this process has heard of all snapshots before a checkpoint: on a busy machine a server is ahead."""
        return self._owner.snapshots.keys() >= set(range(facts["snapshots"]))

    def resume(self) -> int:
        """Lay the newest checkpoint ready for servers that go on from it: its number there; 0 if there is none."""
        state = self.keeper.newest(**KINDS)
        if state is None:
            return 0
        owner, layout = self._owner, self._job.layout
        decider, *others = [memoryview(part) for part in state["servers"]]
        facts, graph = unpack(decider)
        parts = pack({**facts, "zero_s": None}, graph), *([part] for part in others)
        for generations, pieces in zip(self._servers, parts, strict=True):
            generations.write(FIRST, pieces)
        for columns, arena, table in zip(COLUMNS, owner.pool.ledger, state["tables"], strict=True):
            rows = Rows(columns, arena)
            for row in table.tolist():
                rows.append(row)
        owner.snapshots, owner.evaluated = state["snapshots"], state["evaluated"]
        owner.forget_snapshots(facts["snapshots"])
        owner.pool.snapshots.reserve((max(owner.snapshots, default=-1) + 1) * layout.snapshot_bytes)
        for index, weights in state["weights"].items():
            if index in owner.snapshots:
                layout.snapshot_in(owner.pool.snapshots, index).numpy()[:] = weights
        owner.dilation, owner.precedence.yields = state["dilation"], state["yields"]
        owner.recovery.lives, owner.recovery.rewinds = state["lives"], state["rewinds"]
        owner.liveness.deaths[:] = state["deaths"]
        owner.recovery.begin_again(facts, "the run was ended, and goes on from a checkpoint")
        self.resumed = True
        return FIRST

    def _state(self, parts: list[bytes]) -> dict[str, Any]:
        owner, layout = self._owner, self._job.layout
        weights = {index: layout.snapshot_in(owner.pool.snapshots, index).numpy()
                   for index in owner.snapshots if index not in owner.evaluated}  # fmt: skip
        tables = [rows_in(arena, columns) for arena, columns in zip(owner.pool.ledger, COLUMNS, strict=True)]
        servers = [np.frombuffer(part, np.uint8) for part in parts]
        return {"servers": servers, "tables": tables, "snapshots": owner.snapshots, "evaluated": owner.evaluated,
                "weights": weights, "dilation": float(owner.dilation), "yields": owner.precedence.yields,
                "lives": owner.recovery.lives, "rewinds": owner.recovery.rewinds,
                "deaths": owner.liveness.deaths}  # fmt: skip

    def _say(self, words: str) -> None:
        self._owner.on_progress({"pushes": 0, "seconds": 0.0, "checkpoint": words})
