"""A worker process: it performs what the worker's state machine asks for, and measures each phase of it."""

from __future__ import annotations

import time
from collections.abc import Iterable
from multiprocessing.connection import Connection

import numpy as np

from pslab.engines.emulation.compute_times import ComputeTimes
from pslab.engines.job.job import Job
from pslab.engines.job.notes import ACK, DIVERGED, PULL, PUSH, STOP, WEIGHTS, Note
from pslab.engines.job.shared_memory import Arena
from pslab.engines.local.framed_pipe import Line, ready
from pslab.engines.processes.channel import report
from pslab.engines.worker.own_pushes import own_writes
from pslab.engines.worker.phases import PHASE_COLUMNS, PHASES, pushed, way
from pslab.engines.worker.range_schedule import turns_of
from pslab.engines.worker.tensors import Producer
from pslab.protocol.messages import NO_WORKER, Ack, Push, Weights, gradients
from pslab.protocol.requests import Request
from pslab.protocol.worker import Compute, Effect, Send, worker_of
from pslab.tensors.pruning.pruner import NonFinite


class Stopped(Exception):
    """The server has ended the run."""


class Working:
    """One run at one worker."""

    def __init__(
        self, job: Job, worker: int, pipe: Connection, parent: Connection, arena: Arena, data: Arena
    ) -> None:
        self.job, self.worker, self.line, self.parent = job, worker, Line(pipe), parent
        self.machine = worker_of(worker, len(job.parts), job.sync, layered=job.layered)
        self.turns = turns_of(job, worker)
        self.times = ComputeTimes(job.cluster, job.run.seed, worker)
        self.producer = Producer(job, worker, arena, data)
        self.producer.warm_up()
        self.rows: list[tuple[float, ...]] = []
        self.layers_s: list[list[float]] = []
        self.overrun_s = self.real_s = self.modelled_s = 0.0
        self.sent_s: dict[tuple[int, int], float] = {}  # (range, iteration): when its push was sent
        self.pulled: list[Note] = []  # weights that an eager worker takes when it begins the next iteration
        report(parent, "prepared")

    @property
    def iteration(self) -> int:
        """The iteration that is being computed or waited for."""
        return self.machine.iteration

    def run(self) -> None:
        """Work until the server says stop, then report the phases."""
        ((go,),) = self.line.wait()
        self.began_s = go.sent_s  # one clock for all processes of the machine
        try:
            effects = self.machine.start()
            while True:
                while effects:
                    effects = self._perform(effects)
                effects = [effect for note in self._receive() for effect in self._heard(note)]
        except Stopped:
            self.line.send([Note(STOP, self.worker)])
        except NonFinite:
            self.line.send([Note(DIVERGED, self.worker, iteration=self.machine.iteration)])
            self._await_stop()
        body = {"overrun_s": self.overrun_s, "real_s": self.real_s, "modelled_s": self.modelled_s,
                "alive_s": time.monotonic() - self.began_s, "layers_s": self.layers_s,
                "sweeps": self.turns.sweeps if self.turns else []}  # fmt: skip
        report(self.parent, "worked", body, np.array(self.rows).reshape(-1, len(PHASE_COLUMNS)))

    # --- computing ------------------------------------------------------------------------------------------------

    def _perform(self, effects: list[Effect]) -> list[Effect]:
        """Send what is to be sent, then compute; what follows from that."""
        now = time.monotonic()
        notes = [self._note(effect.request) for effect in effects if isinstance(effect, Send)]
        for note in notes:
            if note.kind == PUSH:
                self.sent_s[note.range, note.iteration] = now
            if self.turns is not None:
                self.turns.sent(note, now)
        if notes:
            self.line.send(note._replace(sent_s=now) for note in notes)
        return [after for effect in effects if isinstance(effect, Compute) for after in self._compute(effect.iteration)]

    def _compute(self, iteration: int) -> list[Effect]:
        if self.pulled:
            self._take(iteration)
        begin_s = time.monotonic()
        modelled_s = sum(self.times.draw() for _ in range(gradients(self.job.sync, iteration)))
        turn = self.turns.turn(iteration, self.machine) if self.turns is not None else None
        loss = self.producer.gradient(iteration, own_writes(self.job, self.machine), turn)
        real_s = time.monotonic() - begin_s
        self._hold_until(begin_s + modelled_s)
        computed_s = time.monotonic()
        self._log(iteration, "compute", begin_s, computed_s)
        self.real_s, self.modelled_s = self.real_s + real_s, self.modelled_s + modelled_s
        if modelled_s:
            self.overrun_s += max(0.0, real_s - modelled_s)
        payloads = self.producer.payloads(iteration, loss)
        if self.turns is not None:
            self.turns.computed(time.monotonic() - begin_s)
        return self.ready(range(len(self.job.parts)), *payloads, computed_s)

    def ready(
        self, ranges: Iterable[int], payloads: Iterable[Note], selected_s: float, computed_s: float
    ) -> list[Effect]:
        """The gradients of these ranges can be pushed; what follows from that."""
        iteration = self.iteration
        self._log(iteration, "select", computed_s, selected_s)
        if self.job.sparse:
            self._log(iteration, "encode", selected_s, time.monotonic())
        return [effect for index, payload in zip(ranges, payloads, strict=True)
                for effect in self.machine.computed(index, payload)]  # fmt: skip

    def _take(self, iteration: int) -> None:
        """The weights that have come while another iteration was computed."""
        begin_s = time.monotonic()
        for note in self.pulled:
            self.producer.install(note)
        self.pulled = []
        self._log(iteration - 1, "decode", begin_s, time.monotonic())

    def _note(self, request: Request) -> Note:
        if isinstance(request, Push):
            payload: Note = request.payload
            return payload._replace(worker=self.worker, range=request.range, iteration=request.iteration,
                                    version=request.version, own=request.seen)  # fmt: skip
        note = Note(PULL, self.worker, request.range, request.iteration, request.version)
        return note if self.turns is None else self.turns.wants(note)

    def _hold_until(self, end_s: float) -> None:
        """The modelled computation ends at `end_s`; a stop ends it sooner."""
        while (left_s := end_s - time.monotonic()) > 0:
            if ready((self.line.descriptor,), left_s, spin_s=0.0):
                for note in self._receive():
                    self._heard(note)  # nothing follows before the computation ends

    # --- hearing --------------------------------------------------------------------------------------------------

    def _receive(self) -> list[Note]:
        try:
            notes = [note for frame in self.line.wait() for note in frame]
        except EOFError:
            raise Stopped from None
        if any(note.kind == STOP for note in notes):
            raise Stopped
        return notes

    def _await_stop(self) -> None:
        try:
            while True:
                self._receive()
        except Stopped:
            self.line.send([Note(STOP, self.worker)])

    def _heard(self, note: Note) -> list[Effect]:
        if note.kind == ACK:
            if self.turns is not None:
                self.turns.acknowledged(note)
            for row in pushed(note, self.sent_s) if self.job.eager else ():
                self._log(*row)
            return self.machine.ack(Ack(self.worker, note.range, note.iteration))
        if note.kind != WEIGHTS:
            return []
        arrived_s = time.monotonic()
        if self.turns is not None:
            self.turns.arrived(note, arrived_s)
        for row in way(note, self.sent_s, arrived_s, eager=self.job.eager):
            self._log(*row)
        if self.job.eager:
            self.pulled.append(note)
        else:
            self.producer.install(note)
            self._log(note.iteration - 1, "decode", arrived_s, time.monotonic())
        return self.machine.weights(Weights(self.worker, note.range, note.iteration, note.version, own=note.own))

    def _log(self, iteration: int, phase: str, begin_s: float, end_s: float, waits_for: int = NO_WORKER) -> None:
        zero = self.began_s
        row = (self.worker, iteration, PHASES.index(phase), begin_s - zero, end_s - zero, waits_for)
        self.rows.append(row)

