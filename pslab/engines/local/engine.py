"""The local engine: real processes on this machine, in wall-clock time."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch

from pslab.engines.experiment.checkpoint.checkpointing import Checkpointing, State
from pslab.engines.experiment.checkpoint.file import unpack
from pslab.engines.experiment.experiment import Experiment, Interrupted, OnProgress, Outcome
from pslab.engines.local.liveness import Liveness
from pslab.engines.local.pace import DILATIONS, EMULATED, Pace, emulation, kept, larger, rehearse
from pslab.engines.local.recovery.checkpoints import Checkpoint, CheckpointParts
from pslab.engines.local.recovery.replacing import PhaseTables, Recovery
from pslab.engines.processes import pool as pools
from pslab.engines.processes.channel import Report
from pslab.engines.processes.child import Role, number_of
from pslab.engines.processes.coordinator import EVALUATOR, INTERRUPT_LIMIT_S, POLL_S, Coordinator
from pslab.engines.processes.pool import ENDS, SERVER, Pool
from pslab.engines.processes.precedence import Precedence
from pslab.engines.processes.watch import ENDING, EVALUATING, PREPARING
from pslab.engines.server.ledger import ARRIVAL_COLUMNS, PUSH_COLUMNS, REPLAYED_COLUMNS, reached
from pslab.engines.server.rows import Rows, rows_in
from pslab.errors import CheckpointError, RunError
from pslab.tensors.update.states import fitting

AGAIN = "the machine did not keep the cluster's pace: once again, slower"
TABLES = len(PUSH_COLUMNS), len(REPLAYED_COLUMNS)  # columns of the tables that servers write
WORKER = Role("pslab.engines.local.worker:LocalWorker", "worker {}")
LAYERED_WORKER = Role("pslab.engines.local.layered_worker:LocalLayeredWorker", "worker {}")
LAST_WORDS_S = 0.25  # of the INTERRUPT_LIMIT_S, for workers whose server does not answer


def execute(experiment: Experiment, on_progress: OnProgress, *, yields: bool | None = None) -> Outcome:
    """Run an experiment on the pool of this process.

    An emulated cluster that this machine cannot keep up with runs slower than in its own seconds, in which everything
    is recorded: as far as `Run.dilation` says, or a rehearsal shows; if that was not enough, once again and slower.
    Limits, such as `Run.lease_s`, are in real seconds.

    Args:
        yields: whether workers compute only where no other process wants to; None: unless that starves them.

    Raises:
        WorkerFailed, WorkerDied, StartFailed: the pool is closed then, and the next run spawns another.
        Interrupted: with what was completed, within two seconds.
    """
    run = experiment.run
    beside = run.evaluate == "beside" or run.target_accuracy is not None
    pool = pools.acquire(run.workers + run.servers - 1 + beside, lambda: on_progress({}),
                         lambda number: run.on_death != "stop" and 0 <= number < run.workers)  # fmt: skip
    try:
        return _LocalRun(pool, experiment, on_progress, beside, yields).conduct()
    except BaseException as error:
        if not isinstance(error, Interrupted):
            pools.release(kill=True)
        raise


class _LocalRun(Coordinator):
    """A run in wall-clock time.

    Args:
        beside: whether a process evaluates while the run is under way.
        yields: see `execute`.
        before: the emulation of an attempt that was not kept.
    """

    def __init__(
        self, pool: Pool, experiment: Experiment, on_progress: OnProgress, beside: bool, yields: bool | None,
        before: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(pool, experiment, on_progress)
        self.precedence, self.before = Precedence(self._computing, yields), before
        self.dilation, self.pace = 1.0, Pace((), 0.0)
        self.workers = set(range(self.run.workers))
        self.stores = {number_of(self.run.workers, server) for server in range(1, self.run.servers)}
        self.all = self.workers | {SERVER} | self.stores  #: the processes that have a role
        self.liveness = Liveness(pool, self.run.workers, self.run.on_death, self.stores)
        self.lost = self.liveness.lost
        servers, succeed = (SERVER, *sorted(self.stores)), partial(self._give_role, successor=True)
        self.recovery = Recovery(pool, self.liveness, self.run.on_death, succeed, partial(on_progress, {}), servers)
        self.parts, self.resumed = CheckpointParts(servers), False  # whether the run goes on from the disk
        self.evaluator = number_of(self.run.workers, self.run.servers) if beside else None
        self.all |= {self.evaluator} if self.evaluator is not None else set()
        self.facts: dict[str, Any] = {}
        self.worked: dict[int, dict[str, Any]] = {}
        self.stored: set[int] = set()  # servers, beside the one that decides, whose weights are here
        self.copied, self.opened = Counter[int](), dict[int, dict[str, Any]]()  # of snapshots, parts of the others
        self.running = self.reached = False

    def conduct(self) -> Outcome:
        start_s = time.monotonic()
        try:
            self._prepare()
            if self.experiment.trains and self.experiment.cluster.emulated and not self.resumed:
                self._rehearse()
            self.preparation_s = time.monotonic() - start_s
            self._follow()
            if not self._to_be_repeated():
                self.evaluate_rest(self._evaluators())
        except KeyboardInterrupt:
            raise Interrupted(self._wind_up()) from None
        except RunError as error:
            error.outcome = self._wind_up(evaluating=self._under_way)
            raise
        if self._to_be_repeated():
            return self._repeated()
        outcome = self._outcome()
        if self.pool.ended or self.lost or self.recovery.rewinds:  # the next run needs all processes, and their lines
            pools.release(kill=True)
        return outcome

    def _evaluators(self) -> set[int]:
        """The processes that evaluate once the training is over: the workers, and beside a lone one the server's."""
        workers = self.workers - self.lost
        if len(workers) > 1 or self.run.device != "cpu":
            return workers
        self.pool.start(SERVER, EVALUATOR, self.job)
        self.await_prepared([SERVER])
        return workers | {SERVER}

    def _rehearse(self) -> None:
        """Find out whether workers may let others first, and how slowly the cluster must run."""
        self.pace, asked = rehearse(self, self.workers, self.precedence), self.run.dilation
        least = larger(self.before) if self.before else 1.0
        self.dilation = asked if isinstance(asked, float) else self.pace.dilation(self.experiment, least)

    def _computing(self) -> list[int]:
        """The processes that compute, by their numbers in the system."""
        return [self.pool.processes[number].pid
                for number in self.all - {SERVER} - self.stores - self.pool.ended.keys()]  # fmt: skip

    @property
    def _under_way(self) -> bool:
        """Whether the server or a worker has not yet reported its end."""
        ended = self.lost | self.pool.ended.keys()  # the server misses none that ended behind its last message
        return "outcome" not in self.facts or bool(self._ending - ended)

    @property
    def _ending(self) -> set[int]:
        """The processes that are still to report their end, beside the server that decides."""
        return (self.workers | self.stores) - set(self.worked) - self.stored

    def _owed(self) -> dict[int, str]:
        """The processes that owe a report; see pslab.engines.processes.watch."""
        owed = self.liveness.owed("outcome" in self.facts, set(self.worked))
        preparing = dict.fromkeys(self.recovery.preparing, PREPARING)
        storing = dict.fromkeys(self.stores - self.stored if "outcome" in self.facts else (), ENDING)
        return dict.fromkeys(self.all, "") | owed | storing | preparing | dict.fromkeys(self.busy, EVALUATING)

    def _follow(self) -> None:
        """Take what the processes report until all of them have ended."""
        with self.precedence.yielding(self.precedence.yields):
            self._run()
            self.running = True
            while self._under_way:
                self.hear(self._owed(), POLL_S)
                self.precedence.relieve()
                if (fallen := self.recovery.fallen) is not None and "outcome" not in self.facts:
                    self._rewind(fallen)
                if (beside := self.evaluator) is not None and beside not in self.pool.ended and not self.busy:
                    for index in self.unevaluated[:1]:
                        self.order_evaluation(beside, index, "cpu")
        if self.reached and self.facts["outcome"] == "interrupted":
            self.facts["outcome"] = "target"

    def _run(self) -> None:
        for number in sorted(self.workers | self.stores):
            self.pool.order(number, "run", self.dilation)
        paused = self.parts.newest is not None and self.parts.newest.paused
        self.pool.order(SERVER, "run", self.dilation, paused)

    def _rewind(self, fallen: RunError) -> None:
        """Let all processes go on from the newest checkpoint after a server has ended, or begin anew."""
        while reports := self.pool.reports(dict.fromkeys(self.recovery.servers, ""), 0.0, lambda number: True):
            self._take_all(reports)  # one may be a checkpoint's part
        self.facts.clear()
        rows = rows_in(self.pool.ledger[0], TABLES[0])
        pushes = reached(rows, len(self.experiment.parts), self.experiment.traits)["pushes"]
        if (found := self.parts.newest) is None:
            self.running = bool(self.recovery.rewinds)
            raise fallen
        self.parts.forget_torn()
        facts = found.facts  # others may have kept steps of which the decider had not yet heard that they are done
        self.recovery.rewind(fallen, max(pushes, facts["pushes"]), found)
        self.phases.rewind(facts["seconds"])
        self.worked.clear()
        self.stored.clear()
        self.forget_snapshots(_taken(facts))
        self._start_servers()
        self.await_prepared(self.recovery.servers)  # workers copy weights that are those of the checkpoint
        for worker in sorted(self.workers):
            self._give_role(worker, True)
        self.await_prepared(self.workers)
        self._run()
        self.on_progress({"pushes": facts["pushes"], "seconds": facts["seconds"]})

    def _emulation(self) -> dict[str, Any]:
        """How well the emulation was kept, and what was measured before."""
        found = emulation(self.experiment, self.worked.values(), self.facts)
        return {
            "dilation": self.dilation,
            **found,
            "workers_let_others_first": self.precedence.yields,
            **({"workers_starved": True} if self.precedence.starved else {}),
            "rehearsed_gradient_s": self.pace.gradient_s,
            "rehearsed_late_s": self.pace.late_s,
        }

    def _to_be_repeated(self) -> bool:
        """Whether this attempt was not kept, and a slower one may be."""
        able = self.run.dilation == "auto" and self.experiment.cluster.modelled(self.run.workers)
        tried = self.before is not None or self.dilation >= DILATIONS[-1]
        ended = bool(self.lost or self.pool.ended) or self.facts["outcome"] == "interrupted"
        return able and not tried and not ended and not kept(self._emulation())

    def _repeated(self) -> Outcome:
        """The outcome of another attempt, slower than this one."""
        before = self._emulation()
        self.on_progress({"pushes": 0, "seconds": 0.0, "repeated": AGAIN})
        beside = self.evaluator is not None
        return _LocalRun(self.pool, self.experiment, self.on_progress, beside, self.precedence.asked, before).conduct()

    def _prepare(self) -> None:
        self.job = job = self.lay_out()
        self.phases = PhaseTables(self.pool.phases[: self.run.workers])
        place = self.experiment.checkpoints if self.run.on_death == "restart" else None  # else servers keep nothing
        if place is not None and self.before is not None:  # checkpoints of an attempt that was too fast are of no use
            place.clear()
        self.keeper = Checkpointing(place, self.run.checkpoint_every, self._say)
        if (resume := self.keeper.newest(self._read)) is not None:
            resume()
        self._start_servers()
        for worker in sorted(self.workers):
            self._give_role(worker, self.resumed)
        if self.evaluator is not None:
            self.pool.start(self.evaluator, EVALUATOR, job)
        self.await_prepared(self.all)

    def _start_servers(self) -> None:
        """Give the servers their roles, and their parts of the newest checkpoint, if there is one."""
        count, newest = self.run.servers, self.parts.newest
        parts = [None] * count if newest is None else newest.parts
        self.pool.start(SERVER, Role("pslab.engines.local.server:LocalServer", "server"), self.job, parts[0])
        for server, number in enumerate(self.recovery.servers[1:], 1):
            role = Role("pslab.engines.local.store:LocalStore", f"server {server} of {count}")
            self.pool.start(number, role, self.job, server, parts[server])

    def _give_role(self, worker: int, successor: bool = False) -> None:
        role = LAYERED_WORKER if self.job.layered else WORKER
        if successor:
            self.phases.take(worker)
        self.pool.start(worker, role, self.job, successor)

    def tolerated(self, number: int) -> bool:
        """While the run is under way the server notices, and knows the iteration; when it has served it may end."""
        on_death = self.run.on_death
        if number in self.recovery.servers:
            return (self.recovery.able and self.running) or "outcome" in self.facts
        if number == self.evaluator:  # workers evaluate at the end what it has not
            return on_death != "stop" and self.run.target_accuracy is None
        return on_death != "stop" or (self.running and self._under_way)

    def take(self, number: int, report: Report) -> None:
        super().take(number, report)
        if report.kind == "progress":
            self.news.append(self.liveness.progress(report.body))
        elif report.kind == "silent" and number not in self.pool.ended:
            self.liveness.waits(number)
        elif report.kind == "failed" and self.run.on_death == "stop":
            raise self.pool.ended[number]
        elif report.kind == "lost":
            if (how := report.body.pop("how", "")) and report.body["worker"] not in self.pool.ended:
                self.pool.end(report.body["worker"], how, lambda number: True)
            self.recovery.lost(report.body)
        elif report.kind == "fallen" and (fallen := set(report.body["numbers"]) - self.pool.ended.keys()):
            self.pool.reports(dict.fromkeys(fallen, ""), INTERRUPT_LIMIT_S, self.tolerated)  # they may say why
            for store in sorted(fallen - self.pool.ended.keys()):
                self.pool.end(store, f"has not answered for {self.run.lease_s:g} s", self.tolerated)
        elif report.kind in ENDS:
            self.recovery.ended(number)
        elif report.kind == "prepared" and number in self.recovery.preparing:
            self.pool.order(number, "run", self.dilation)
            self.recovery.prepared(number)
        elif report.kind == "joined":
            self.recovery.joined(report.body)
            self.precedence.renew()
        elif report.kind == "part":
            self._take_part(number, report)
        elif report.kind == "evaluated":
            self._stop_at_target()
        elif report.kind == "served":
            self.facts.update(report.body)
        elif report.kind == "copied":
            self.copied[report.body["index"]] += 1
            self._keep_whole(report.body["index"])
        elif report.kind == "stored":
            self.stored.add(number)
        elif report.kind == "worked":
            self.worked[number] = report.body

    # --- checkpoints ------------------------------------------------------------------------------------------------

    def _take_part(self, number: int, found: Report) -> None:
        """Take a server's part of a checkpoint. A whole checkpoint goes to the disk, if that is due; the server that
        decides may then begin another."""
        if (whole := self.parts.take(number, found.body, found.content)) is not None:
            heard_of_all = self.snapshots.keys() >= set(range(_taken(whole.facts)))  # a busy machine is behind
            if heard_of_all and self.keeper.due(pushes := whole.facts["pushes"]):
                self.keeper.write(pushes, lambda: self._state(whole))
            self.pool.order_plain(SERVER, "checkpointed")

    def _state(self, whole: Checkpoint) -> State:
        """Return the facts and tensors from which another parent goes on: the servers' parts, tables, and snapshots."""
        facts = {"server": whole.facts, "dilation": float(self.dilation), "yields": self.precedence.yields,
                 "snapshots": [[index, *row] for index, row in self.snapshots.items()],
                 "evaluated": [[index, *row] for index, row in self.evaluated.items()], "deaths": self.liveness.deaths,
                 "lives": self.recovery.lives, "rewinds": self.recovery.rewinds}  # fmt: skip
        tables = {f"table {number}": torch.from_numpy(rows_in(arena, columns))
                  for number, (arena, columns) in enumerate(zip(self.pool.ledger, TABLES, strict=True))}  # fmt: skip
        weights = {f"snapshot {index}": self.layout.snapshot_in(self.pool.snapshots, index)
                   for index in self.snapshots if index not in self.evaluated}  # fmt: skip
        parts = {f"server {server}": torch.frombuffer(part, dtype=torch.uint8)
                 for server, part in enumerate(whole.parts)}  # fmt: skip
        return facts, {**tables, **weights, **parts}

    def _read(self, facts: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> Callable[[], None]:
        """Return a function by which the run goes on from such a state.

        Raises:
            CheckpointError, KeyError, TypeError, ValueError, RuntimeError: it is the state of something else; nothing
                was changed.
        """
        parts = [bytearray(tensors[f"server {server}"].numpy()) for server in range(self.run.servers)]
        first, *_ = [unpack(part)[0] for part in parts]
        if first != facts["server"]:
            raise CheckpointError("its parts are of another checkpoint")
        tables = [tensors[f"table {number}"].numpy() for number in range(len(TABLES))]
        if [(table.ndim, table.shape[-1]) for table in tables] != [(2, columns) for columns in TABLES]:
            raise CheckpointError("its tables have other columns")
        taken = _taken(facts["server"])
        snapshots, evaluated = ({int(index): tuple(row) for index, *row in facts[name] if index < taken}
                                for name in ("snapshots", "evaluated"))  # fmt: skip
        weights = {index: fitting(tensors[f"snapshot {index}"], torch.empty(self.layout.snapshot))
                   for index in snapshots.keys() - evaluated}  # fmt: skip
        named = dict, list, list, list, float, bool
        known = [facts[name] for name in ("server", "lives", "rewinds", "deaths", "dilation", "yields")]
        if list(map(type, known)) != list(named) or not snapshots.keys() <= set(range(taken)):
            raise CheckpointError("its facts are of other kinds")

        def resume() -> None:
            server, lives, rewinds, deaths, self.dilation, self.precedence.yields = known
            self.parts.newest, self.resumed = Checkpoint(server, parts, paused=True), True
            for arena, table in zip(self.pool.ledger, tables, strict=True):
                Rows.of(table, arena)
            self.snapshots, self.evaluated = snapshots, evaluated
            self.pool.snapshots.reserve(taken * self.layout.snapshot_bytes)
            for index, held in weights.items():
                self.layout.snapshot_in(self.pool.snapshots, index).copy_(held)
            self.recovery.lives, self.recovery.rewinds, self.liveness.deaths[:] = lives, rewinds, deaths
            self.recovery.begin_again(server, "the run was ended, and goes on from a checkpoint")

        return resume

    def _say(self, words: str) -> None:
        self.on_progress({"pushes": 0, "seconds": 0.0, "checkpoint": words})

    # --- snapshots ------------------------------------------------------------------------------------------------

    def keep_snapshot(self, body: dict[str, Any]) -> None:
        self.opened[body["index"]] = body
        self._keep_whole(body["index"])

    def _keep_whole(self, index: int) -> None:
        """A snapshot may be evaluated once all servers have brought their parts."""
        if index in self.opened and self.copied[index] >= self.opened[index]["others"]:
            super().keep_snapshot(self.opened.pop(index))

    def forget_snapshots(self, count: int) -> None:
        super().forget_snapshots(count)
        self.opened.clear()
        self.copied = Counter({index: parts for index, parts in self.copied.items() if index < count})

    def _stop_at_target(self) -> None:
        reached = self.run.reaches_target(accuracy for _, (accuracy, *_) in sorted(self.evaluated.items()))
        if reached and "outcome" not in self.facts:
            self.pool.order(SERVER, "stop")
            self.reached = True

    def _wind_up(self, *, evaluating: bool = True) -> Outcome | None:
        """End the run, in order where that is possible, and keep what it has completed; within limits."""
        until_s = time.monotonic() + INTERRUPT_LIMIT_S
        self.on_progress = lambda news: None
        if not self.running:
            pools.release(kill=True)
            return None
        if "outcome" not in self.facts and SERVER in self.pool.processes:
            self.pool.order(SERVER, "stop")
        self.hear_out(self.all, lambda: "outcome" in self.facts, until_s - LAST_WORDS_S)
        if "outcome" not in self.facts and SERVER in self.pool.processes:
            self.pool.processes[SERVER].kill()  # the workers' lines end
        self.hear_out(self.all, lambda: not self._ending - self.pool.ended.keys(), until_s)
        if evaluating and self.worked:
            with contextlib.suppress(RunError):
                self.evaluate(self.worked, until_s, last_first=True)
        outcome = self._outcome()
        if self._under_way or self.busy or self.pool.ended:
            pools.release(kill=True)
        return outcome

    def _outcome(self) -> Outcome:
        pushes, arrivals = map(rows_in, self.pool.ledger, TABLES)
        arrivals = arrivals[:, : len(ARRIVAL_COLUMNS)]
        if "outcome" in self.facts:
            facts = {name: value for name, value in self.facts.items() if name not in (*EMULATED, "faulted")}
            facts["refused"] += sum(w["refused"] for w in self.worked.values())
        else:  # the server has not reported its end: no more is known than it had written down
            facts = {"outcome": "interrupted", **reached(pushes, len(self.experiment.parts), self.experiment.traits)}
        faulted = [row for body in (self.facts, *self.worked.values()) for row in body.get("faulted", ())]
        if self.experiment.cluster.faults:
            from pslab.engines.emulation.faults import facts as fault_facts  # most runs plan none

            facts |= fault_facts(self.experiment.cluster, [tuple(row) for row in faulted])
        facts |= {
            "preparation_s": self.preparation_s,
            "layers_s": np.sum([w["layers_s"] for w in self.worked.values()], axis=0).tolist() if self.worked else [],
            "deaths": self.liveness.deaths,
            **({"ended_late": sorted(self.liveness.late)} if self.liveness.late else {}),
            "dilation": self.dilation,
            **({"repeated_after": dict(self.before)} if self.before else {}),
            "disturbed": self.evaluator is not None,
            **self.recovery.facts(self.workers - set(self.worked)), **self.keeper.facts(),
        }
        if "outcome" in self.facts and self.worked:
            measured = self._emulation()
            facts |= {"emulation": measured, "emulation_ok": kept(measured)}
        if sweeps := [row for worked in self.worked.values() for row in worked["sweeps"]]:
            facts["sweeps"] = sorted(sweeps)
        tables = self.accuracy(), self.phases.table(), pushes, arrivals, self.final_weights()
        return Outcome(*tables, facts, self.left(), self.experiment.metrics)


def _taken(facts: Mapping[str, Any]) -> int:
    """Return the number of snapshots before a checkpoint, by the facts of the server that decides."""
    return int(facts["numbers"]["snapshots"][0])
