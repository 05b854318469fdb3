"""The parent of a run on real processes: it receives their reports, has snapshots evaluated, and ends the run."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pslab.engines.experiment.experiment import Experiment, Interrupted, OnProgress, Outcome
from pslab.engines.local.liveness import Liveness
from pslab.engines.local.pace import DILATIONS, EMULATED, emulation, first_dilation, kept, larger, remember
from pslab.engines.local.phase_tables import PhaseTables
from pslab.engines.processes import pool as pools
from pslab.engines.processes.channel import Report
from pslab.engines.processes.child import Role, number_of
from pslab.engines.processes.coordinator import EVALUATOR, INTERRUPT_LIMIT_S, POLL_S, Coordinator
from pslab.engines.processes.pool import SERVER, Pool
from pslab.engines.processes.precedence import Precedence
from pslab.engines.processes.watch import ENDING, EVALUATING
from pslab.engines.server.ledger import ARRIVAL_COLUMNS, PUSH_COLUMNS, REPLAYED_COLUMNS, reached
from pslab.engines.server.rows import rows_in
from pslab.errors import RunError

AGAIN = "the machine did not keep the cluster's pace: once again, slower"
TABLES = len(PUSH_COLUMNS), len(REPLAYED_COLUMNS)  # the numbers of columns of the tables that servers write
WORKER = Role("pslab.engines.local.worker:LocalWorker", "worker {}")
LAYERED_WORKER = Role("pslab.engines.local.layered_worker:LocalLayeredWorker", "worker {}")
LAST_WORDS_S = 0.25  # the part of INTERRUPT_LIMIT_S for workers if their server does not answer


class LocalRun(Coordinator):
    """A run in wall-clock time, whose processes are not replaced when they end.

    Args:
        beside: whether a further process evaluates snapshots during the training.
        yields: whether workers compute at the lowest priority, until other processes starve them.
        before: the emulation facts of an earlier attempt that this machine was too slow for.
    """

    def __init__(
        self, pool: Pool, experiment: Experiment, on_progress: OnProgress, beside: bool, yields: bool,
        before: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(pool, experiment, on_progress)
        self.precedence, self.before = Precedence(self._computing, yields), before
        self.dilation = first_dilation(experiment) if before is None else larger(before)
        self.workers = set(range(self.run.workers))
        self.servers = [SERVER, *(number_of(self.run.workers, server) for server in range(1, self.run.servers))]
        self.stores = {*self.servers[1:]}  # servers that do not decide
        self.all = self.workers | {*self.servers}  #: the processes that have a role
        self.liveness = Liveness(pool, self.run.workers, self.run.on_death, self.stores)
        self.lost = self.liveness.lost
        self.evaluator = number_of(self.run.workers, self.run.servers) if beside else None
        self.all |= {self.evaluator} if self.evaluator is not None else set()
        self.facts: dict[str, Any] = {}
        self.worked: dict[int, dict[str, Any]] = {}
        self.stored: set[int] = set()  # servers other than the deciding one that have ended in order
        self.copied, self.opened = Counter[int](), dict[int, dict[str, Any]]()  # incomplete snapshots: parts, reports
        self.running = self.reached = False

    def conduct(self) -> Outcome:
        start_s = time.monotonic()
        try:
            self._prepare()
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
            before = self._emulation()
            self.on_progress({"pushes": 0, "seconds": 0.0, "repeated": AGAIN})
            given = self.pool, self.experiment, self.on_progress, self.evaluator is not None, self.precedence.yields
            return type(self)(*given, before).conduct()
        outcome = self._outcome()
        # a given dilation is not remembered: it says nothing about the smallest one
        if outcome.facts.get("emulation_ok") and self.run.dilation == "auto":
            remember(self.experiment, self.dilation)
        # now, not at the next run: its memory and processes would stay until then
        if self.worn:
            pools.release(kill=True)
        return outcome

    @property
    def worn(self) -> bool:
        """Whether processes of the pool have ended, so that the next run needs a new pool."""
        return bool(self.pool.ended or self.lost)

    def _evaluators(self) -> set[int]:
        """Return the processes that evaluate after the training: the workers, and the server if there is one worker."""
        workers = self.workers - self.lost
        if len(workers) > 1 or self.run.device != "cpu":
            return workers
        self.pool.start(SERVER, EVALUATOR, self.job)
        self.await_prepared([SERVER])
        return workers | {SERVER}

    def _computing(self) -> list[int]:
        """Return the PIDs of the worker and evaluator processes."""
        return [self.pool.processes[number].pid
                for number in self.all - {*self.servers} - self.pool.ended.keys()]  # fmt: skip

    @property
    def _under_way(self) -> bool:
        ended = self.lost | self.pool.ended.keys()  # a process may have ended after its last message
        return "outcome" not in self.facts or bool(self._ending - ended)

    @property
    def _ending(self) -> set[int]:
        """The workers and stores that have not yet reported their end."""
        return (self.workers | self.stores) - set(self.worked) - self.stored

    def owed(self) -> dict[int, str]:
        """Return, for each process, the phase in which it must report; see pslab.engines.processes.watch."""
        owed = self.liveness.owed("outcome" in self.facts, set(self.worked))
        storing = dict.fromkeys(self.stores - self.stored if "outcome" in self.facts else (), ENDING)
        # the later ones replace the earlier: a worker that evaluates owes its evaluation
        return dict.fromkeys(self.all, "") | owed | storing | dict.fromkeys(self.busy, EVALUATING)

    def _follow(self) -> None:
        """Start the run, and process reports until all processes have reported their end."""
        with self.precedence.applied():
            self.order_run()
            self.running = True
            while self._under_way:
                self.hear(self.owed(), POLL_S)
                self.precedence.relieve()
                self.mend()
                if (beside := self.evaluator) is not None and beside not in self.pool.ended and not self.busy:
                    for index in self.unevaluated[:1]:
                        self.order_evaluation(beside, index, "cpu")
        # the server was stopped because an evaluation had reached the target
        if self.reached and self.facts["outcome"] == "interrupted":
            self.facts["outcome"] = "target"

    def order_run(self, *, paused: bool = False) -> None:
        """Order all processes to run; `paused`: see LocalServer.run."""
        for number in sorted(self.workers | self.stores):
            self.pool.order(number, "run", self.dilation)
        self.pool.order(SERVER, "run", self.dilation, paused)

    def mend(self) -> None:
        """Replace servers that have ended; a subclass may do that."""

    def _emulation(self) -> dict[str, Any]:
        """Return the dilation, and the shares of time by which this machine was too slow for the emulation."""
        shares = emulation(self.experiment, self.worked.values(), self.facts)
        return {
            "dilation": self.dilation,
            **shares,
            "workers_let_others_first": self.precedence.yields,
            **({"workers_starved": True} if self.precedence.starved else {}),
        }

    def _to_be_repeated(self) -> bool:
        # with a measured computation another dilation would change the cluster, not only its pace
        able = self.run.dilation == "auto" and self.experiment.cluster.modelled(self.run.workers)
        tried = self.before is not None or self.dilation >= DILATIONS[-1]
        # a run that lost a process, or was interrupted, is not repeated: its slowness may have this cause
        ended = bool(self.lost or self.pool.ended) or self.facts["outcome"] == "interrupted"
        return able and not tried and not ended and not kept(self._emulation())

    def _prepare(self) -> None:
        self.job = job = self.lay_out()
        # before the workers start: it empties their tables
        self.phases = PhaseTables(self.pool.phases[: self.run.workers])
        self.start_all()
        if self.evaluator is not None:
            self.pool.start(self.evaluator, EVALUATOR, job)
        self.await_prepared(self.all)

    def start_all(self) -> None:
        """Start servers and workers in their roles."""
        self.start_servers([None] * self.run.servers)
        for worker in sorted(self.workers):
            self.give_role(worker)

    def start_servers(self, parts: Sequence[bytearray | None]) -> None:
        """Start all servers, each with its part of a checkpoint; a part is None without one."""
        self.pool.start(SERVER, Role("pslab.engines.local.server:LocalServer", "server"), self.job, parts[0])
        for server, number in enumerate(self.servers[1:], 1):
            role = Role("pslab.engines.local.store:LocalStore", f"server {server} of {self.run.servers}")
            self.pool.start(number, role, self.job, server, parts[server])

    def give_role(self, worker: int, successor: bool = False) -> None:
        """Start a worker; a `successor` continues where the worker's former process ended."""
        if successor:
            self.phases.take(worker)
        self.pool.start(worker, LAYERED_WORKER if self.job.layered else WORKER, self.job, successor)

    def tolerated(self, number: int) -> bool:
        """Whether this process may end without an error now; of a lost worker, the server reports the iteration."""
        on_death = self.run.on_death
        if number in self.servers:
            return "outcome" in self.facts
        if number == self.evaluator:  # workers evaluate the rest at the end
            return on_death != "stop" and self.run.target_accuracy is None
        return on_death != "stop" or (self.running and self._under_way)

    def take(self, number: int, report: Report) -> None:
        super().take(number, report)
        if report.kind == "progress":
            self.news.append(self.liveness.progress(report.body))
        # not dead: it waits, and Liveness knows whether all others wait, too
        elif report.kind == "silent" and number not in self.pool.ended:
            self.liveness.waits(number)
        elif report.kind == "failed" and self.run.on_death == "stop":
            raise self.pool.ended[number]
        elif report.kind == "lost":
            # the server closed its stream because of bad bytes, but the process still runs
            if (how := report.body.pop("how", "")) and report.body["worker"] not in self.pool.ended:
                self.pool.end(report.body["worker"], how, lambda number: True)
            self.lose(report.body)
        elif report.kind == "fallen" and (fallen := set(report.body["numbers"]) - self.pool.ended.keys()):
            self.pool.reports(dict.fromkeys(fallen, ""), INTERRUPT_LIMIT_S, self.tolerated)  # they may report why
            for store in sorted(fallen - self.pool.ended.keys()):
                self.pool.end(store, f"has not answered for {self.run.lease_s:g} s", self.tolerated)
        elif report.kind == "evaluated":
            if self.reached_target and "outcome" not in self.facts:
                self.pool.order(SERVER, "stop")
                self.reached = True
        elif report.kind == "served":
            self.facts.update(report.body)
        elif report.kind == "copied":
            self.copied[report.body["index"]] += 1
            self._keep_whole(report.body["index"])
        elif report.kind == "stored":
            self.stored.add(number)
        elif report.kind == "worked":
            self.worked[number] = report.body

    def lose(self, death: dict[str, Any]) -> None:
        """Note that a worker's process is lost; raises as `Liveness.lose` does."""
        self.liveness.lose(death)

    # --- snapshots ------------------------------------------------------------------------------------------------

    def keep_snapshot(self, body: dict[str, Any]) -> None:
        self.opened[body["index"]] = body
        self._keep_whole(body["index"])

    def _keep_whole(self, index: int) -> None:
        """Register a snapshot for evaluation once all servers have copied their parts."""
        # the server's report and the stores' reports come in any order
        if index in self.opened and self.copied[index] >= self.opened[index]["others"]:
            super().keep_snapshot(self.opened.pop(index))

    def _wind_up(self, *, evaluating: bool = True) -> Outcome | None:
        """End the run within INTERRUPT_LIMIT_S, in order if possible; return its completed part, or None."""
        until_s = time.monotonic() + INTERRUPT_LIMIT_S
        self.on_progress = lambda news: None
        if not self.running:
            # the processes still prepare: there is no part of a run to save
            pools.release(kill=True)
            return None
        if "outcome" not in self.facts and SERVER in self.pool.processes:
            self.pool.order(SERVER, "stop")
        # the server first, because its end lets the workers end
        self.hear_out(self.all, lambda: "outcome" in self.facts, until_s - LAST_WORDS_S)
        if "outcome" not in self.facts and SERVER in self.pool.processes:
            self.pool.processes[SERVER].kill()  # the workers' streams end
        self.hear_out(self.all, lambda: not self._ending - self.pool.ended.keys(), until_s)
        if evaluating and self.worked:
            with contextlib.suppress(RunError):
                self.evaluate(self.worked, until_s, last_first=True)
        outcome = self._outcome()
        # the next run must find processes that wait for orders
        if self._under_way or self.busy or self.pool.ended:
            pools.release(kill=True)
        return outcome

    def _outcome(self) -> Outcome:
        # from shared memory: complete rows, even if the server was killed while it wrote
        pushes, arrivals = map(rows_in, self.pool.ledger, TABLES)
        arrivals = arrivals[:, : len(ARRIVAL_COLUMNS)]
        if "outcome" in self.facts:
            facts = {name: value for name, value in self.facts.items() if name not in (*EMULATED, "faulted")}
            facts["refused"] += sum(w["refused"] for w in self.worked.values())  # repeated frames from the server
        else:  # only the server's tables are known
            facts = {"outcome": "interrupted", **reached(pushes, len(self.experiment.parts), self.experiment.traits)}
        faulted = [row for body in (self.facts, *self.worked.values()) for row in body.get("faulted", ())]
        if self.experiment.cluster.faults:
            from pslab.engines.emulation.faults import facts as fault_facts  # loaded only if faults are planned

            facts |= fault_facts(self.experiment.cluster, [tuple(row) for row in faulted])
        facts |= {
            "preparation_s": self.preparation_s,
            "layers_s": np.sum([w["layers_s"] for w in self.worked.values()], axis=0).tolist() if self.worked else [],
            "deaths": self.liveness.deaths,
            **({"ended_late": sorted(self.liveness.late)} if self.liveness.late else {}),
            "dilation": self.dilation,
            **({"repeated_after": dict(self.before)} if self.before else {}),
            "disturbed": self.evaluator is not None,
            **self.recovery_facts(self.workers - set(self.worked)),
        }
        if "outcome" in self.facts and self.worked:
            measured = self._emulation()
            facts |= {"emulation": measured, "emulation_ok": kept(measured)}
        if sweeps := [row for worked in self.worked.values() for row in worked["sweeps"]]:
            facts["sweeps"] = sorted(sweeps)
        tables = self.accuracy(), self.phases.table(), pushes, arrivals, self.final_weights()
        return Outcome(*tables, facts, self.left(), self.experiment.metrics)

    def recovery_facts(self, lost: set[int]) -> dict[str, Any]:
        """Return the facts of recovery for the manifest; `lost` workers lack the phases of their last iteration."""
        return {"phases_lost": sorted(lost)} if lost else {}
