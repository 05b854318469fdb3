"""A run with `Run.on_death` "restart": processes that end are replaced, and it can continue from a checkpoint."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from pslab.engines.experiment.checkpoint.checkpointing import Checkpointing, State
from pslab.engines.experiment.checkpoint.file import unpack
from pslab.engines.local.local_run import TABLES, LocalRun
from pslab.engines.local.recovery.checkpoints import Checkpoint, CheckpointParts
from pslab.engines.local.recovery.replacing import Recovery
from pslab.engines.processes.channel import Report
from pslab.engines.processes.pool import ENDS, SERVER
from pslab.engines.processes.watch import PREPARING
from pslab.engines.server.ledger import reached
from pslab.engines.server.rows import Rows, rows_in
from pslab.errors import CheckpointError
from pslab.tensors.update.states import fitting


class RestartableRun(LocalRun):
    """A run in wall-clock time that survives the death of any of its processes."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        succeed = partial(self.give_role, successor=True)
        self.recovery = Recovery(self.pool, self.liveness, succeed, partial(self.on_progress, {}), self.servers)
        self.parts = CheckpointParts(self.servers)

    @property
    def worn(self) -> bool:
        return super().worn or bool(self.recovery.rewinds)

    def owed(self) -> dict[int, str]:
        return super().owed() | dict.fromkeys(self.recovery.preparing, PREPARING)

    def start_all(self) -> None:
        store = self.experiment.checkpoints
        if store is not None and self.before is not None:  # an attempt that was too fast left useless checkpoints
            store.clear()
        self.keeper = Checkpointing(store, self.run.checkpoint_every, self._say)
        if (resume := self.keeper.newest(self._read)) is None:
            return super().start_all()
        self.start_servers(resume().parts)
        for worker in sorted(self.workers):
            self.give_role(worker, True)

    def order_run(self, *, paused: bool = False) -> None:
        newest = self.parts.newest
        super().order_run(paused=newest is not None and newest.paused)

    def tolerated(self, number: int) -> bool:
        replaced = number in self.servers and self.recovery.able and self.running
        return replaced or super().tolerated(number)

    def take(self, number: int, report: Report) -> None:
        super().take(number, report)
        if report.kind in ENDS:
            self.recovery.ended(number)
        elif report.kind == "prepared" and number in self.recovery.preparing:
            self.pool.order(number, "run", self.dilation)
            self.recovery.prepared(number)
        elif report.kind == "joined":
            self.recovery.joined(report.body)
            self.precedence.renew()  # a new process begins in SCHED_OTHER
        elif report.kind == "part":
            self._take_part(number, report)

    def lose(self, death: dict[str, Any]) -> None:
        self.recovery.lost(death)

    def recovery_facts(self, lost: set[int]) -> dict[str, Any]:
        return {**super().recovery_facts(lost | self.recovery.replaced), **self.recovery.facts(), **self.keeper.facts()}

    def mend(self) -> None:
        """Restart all processes from the newest checkpoint if a server has ended."""
        if (fallen := self.recovery.fallen) is None or "outcome" in self.facts:
            return
        while reports := self.pool.reports(dict.fromkeys(self.servers, ""), 0.0, lambda number: True):
            self._take_all(reports)  # they may have parts of a checkpoint
        self.facts.clear()
        rows = rows_in(self.pool.ledger[0], TABLES[0])
        pushes = reached(rows, len(self.experiment.parts), self.experiment.traits)["pushes"]
        if (newest := self.parts.newest) is None:
            self.running = bool(self.recovery.rewinds)
            raise fallen
        self.parts.forget_torn()
        facts = newest.facts  # a store may have done steps that it had not reported
        self.recovery.rewind(fallen, max(pushes, facts["pushes"]), newest)
        # no process may write meanwhile: all were killed by `rewind`
        self.phases.rewind(facts["seconds"])
        self.worked.clear()
        self.stored.clear()
        # the run takes the later snapshots again, with the same numbers
        self._forget_snapshots(_taken(facts))
        # new processes have no state: each server restores its part, and the deciding one replays the arrivals
        self.start_servers(newest.parts)
        self.await_prepared(self.servers)  # first, because workers copy the checkpoint's weights
        for worker in sorted(self.workers):
            self.give_role(worker, True)
        self.await_prepared(self.workers)
        self.order_run()
        self.on_progress({"pushes": facts["pushes"], "seconds": facts["seconds"]})

    def _forget_snapshots(self, count: int) -> None:
        for by_index in (self.snapshots, self.evaluated):
            for index in [index for index in by_index if index >= count]:
                del by_index[index]
        # an evaluation under way goes on, and its result is ignored: `Coordinator.take` compares the numbers
        self.busy = {number: index if index < count else -1 for number, index in self.busy.items()}
        self.opened.clear()
        self.copied = Counter({index: parts for index, parts in self.copied.items() if index < count})

    # --- checkpoints ------------------------------------------------------------------------------------------------

    def _take_part(self, number: int, report: Report) -> None:
        """Store a server's part of a checkpoint. If it is complete, write it to the disk if that is due, and let the
        deciding server begin another one."""
        if (whole := self.parts.take(number, report.body, report.content)) is not None:
            heard_of_all = self.snapshots.keys() >= set(range(_taken(whole.facts)))  # else reports are late
            if heard_of_all and self.keeper.due(pushes := whole.facts["pushes"]):
                self.keeper.write(pushes, lambda: self._state(whole))
            self.pool.order_plain(SERVER, "checkpointed")

    def _state(self, whole: Checkpoint) -> State:
        """Return the facts and tensors from which another parent can continue: parts of servers, tables, snapshots."""
        facts = {"server": whole.facts, "dilation": float(self.dilation), "yields": self.precedence.yields,
                 "snapshots": [[index, *row] for index, row in self.snapshots.items()],
                 "evaluated": [[index, *row] for index, row in self.evaluated.items()], "deaths": self.liveness.deaths,
                 "lives": self.recovery.lives, "rewinds": self.recovery.rewinds}  # fmt: skip
        tables = {f"table {number}": torch.from_numpy(rows_in(arena, columns))
                  for number, (arena, columns) in enumerate(zip(self.pool.ledger, TABLES, strict=True))}  # fmt: skip
        # of an evaluated snapshot the values are enough
        weights = {f"snapshot {index}": self.layout.snapshot_in(self.pool.snapshots, index)
                   for index in self.snapshots if index not in self.evaluated}  # fmt: skip
        parts = {f"server {server}": torch.frombuffer(part, dtype=torch.uint8)
                 for server, part in enumerate(whole.parts)}  # fmt: skip
        return facts, {**tables, **weights, **parts}

    def _read(self, facts: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> Callable[[], Checkpoint]:
        """Check a state that `_state` returned; return a function that restores it, and returns its checkpoint.

        Raises:
            CheckpointError, KeyError, TypeError, ValueError, RuntimeError: the state does not match this run.
        """
        parts = [bytearray(tensors[f"server {server}"].numpy()) for server in range(self.run.servers)]
        first, *_ = [unpack(part)[0] for part in parts]
        # tensors and facts lie in two places of the file: a mixture of two checkpoints must not pass
        if first != facts["server"]:
            raise CheckpointError("its parts and its facts must be of the same checkpoint")
        tables = [tensors[f"table {number}"].numpy() for number in range(len(TABLES))]
        if [(table.ndim, table.shape[-1]) for table in tables] != [(2, columns) for columns in TABLES]:
            raise CheckpointError(f"its tables must have {TABLES[0]} and {TABLES[1]} columns")
        taken = _taken(facts["server"])
        snapshots, evaluated = ({int(index): tuple(row) for index, *row in facts[name] if index < taken}
                                for name in ("snapshots", "evaluated"))  # fmt: skip
        weights = {index: fitting(tensors[f"snapshot {index}"], torch.empty(self.layout.snapshot))
                   for index in snapshots.keys() - evaluated}  # fmt: skip
        named = dict, list, list, list, float, bool
        known = [facts[name] for name in ("server", "lives", "rewinds", "deaths", "dilation", "yields")]
        if (types := tuple(map(type, known))) != named:
            raise CheckpointError(f"its facts must have the types {named}, not {types}")
        if not snapshots.keys() <= set(range(taken)):
            raise CheckpointError(f"its snapshots must have numbers from 0 to {taken - 1}, not {sorted(snapshots)}")

        def resume() -> Checkpoint:
            server, lives, rewinds, deaths, self.dilation, self.precedence.yields = known
            self.parts.newest = checkpoint = Checkpoint(server, parts, paused=True)
            for arena, table in zip(self.pool.ledger, tables, strict=True):
                Rows.of(table, arena)
            self.snapshots, self.evaluated = snapshots, evaluated
            self.pool.snapshots.reserve(taken * self.layout.snapshot_bytes)
            for index, values in weights.items():
                self.layout.snapshot_in(self.pool.snapshots, index).copy_(values)
            self.recovery.lives, self.recovery.rewinds, self.liveness.deaths[:] = lives, rewinds, deaths
            self.recovery.begin_again(server, "the run was ended, and goes on from a checkpoint")
            return checkpoint

        return resume

    def _say(self, words: str) -> None:
        self.on_progress({"pushes": 0, "seconds": 0.0, "checkpoint": words})


def _taken(facts: Mapping[str, Any]) -> int:
    """Return the number of snapshots before a checkpoint, from the facts of the deciding server."""
    return int(facts["numbers"]["snapshots"][0])
