"""A worker process: it performs what the worker's state machine asks for, and measures each phase of it."""

from __future__ import annotations

import math
import time
from multiprocessing.connection import Connection

import numpy as np
import torch

from pslab.engines.arena import Arena
from pslab.engines.cluster import ComputeTimes
from pslab.engines.compute import Computing
from pslab.engines.control import ACK, DIVERGED, PULL, PUSH, STOP, WEIGHTS, WHOLE, Note
from pslab.engines.job import Job
from pslab.engines.line import Line, ready
from pslab.engines.talk import report
from pslab.protocol.messages import NOBODY, Ack, Push, Weights
from pslab.protocol.worker import Compute, Effect, Worker
from pslab.tensors.prune import NonFinite, Pruner, is_finite
from pslab.tensors.wire import decode, encode_into

PHASES = ("compute", "select", "encode", "push", "apply", "wait", "serve", "pull", "decode")
PHASE_COLUMNS = ("worker", "iteration", "phase", "begin_s", "end_s", "waits_for")


class Stopped(Exception):
    """The server has ended the run."""


class Working:
    """One run at one worker."""

    def __init__(
        self, job: Job, worker: int, pipe: Connection, parent: Connection, arena: Arena, data: Arena
    ) -> None:
        self.job, self.worker, self.line, self.parent = job, worker, Line(pipe), parent
        run, layout = job.run, job.layout
        self.machine = Worker(worker, len(job.parts), job.order)
        self.times = ComputeTimes(job.cluster, run.seed, worker)
        self.device = device_of(run.device, worker)
        self.shared_weights = arena.tensor(layout.weights[worker], layout.size, layout.dtype)
        self.shared_gradients = [arena.tensor(at, layout.size, layout.dtype) for at in layout.gradients[worker]]
        self.up = [arena.bytes(at, layout.frames[-1][0] + layout.frames[-1][1]) for at in layout.up[worker]]
        self.down = arena.bytes(layout.down[worker], layout.frames[-1][0] + layout.frames[-1][1])
        if not layout.in_place:
            self.shared_weights.copy_(arena.tensor(layout.server, layout.size, layout.dtype))
        on_cpu = self.device.type == "cpu"
        self.weights = self.shared_weights if on_cpu else self.shared_weights.to(self.device)
        # on the CPU backward writes straight into shared memory: a push copies nothing
        self.gradients = self.shared_gradients if on_cpu else [torch.zeros_like(self.weights)] * 2
        dataset = job.shelf.dataset(data)
        self.computing = Computing(job, worker, dataset, self.weights, self.gradients) if job.trains else None
        layers = [layer.flat for layer in job.keyspace.layers]
        self.pruner = Pruner(job.prune, layers, layout.size, layout.dtype, self.device) if job.sparse else None
        self.rows: list[tuple[float, ...]] = []
        self.overrun_s = self.real_s = self.modelled_s = 0.0
        self.sent_s: dict[int, float] = {}
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
                self._perform(effects)
                effects = [effect for note in self._receive() for effect in self._heard(note)]
        except Stopped:
            self.line.send([Note(STOP, self.worker)])
        except NonFinite:
            self.line.send([Note(DIVERGED, self.worker, iteration=self.machine.iteration)])
            self._await_stop()
        body = {"overrun_s": self.overrun_s, "real_s": self.real_s, "modelled_s": self.modelled_s,
                "alive_s": time.monotonic() - self.began_s}  # fmt: skip
        report(self.parent, "worked", body, np.array(self.rows).reshape(-1, len(PHASE_COLUMNS)))

    # --- computing ------------------------------------------------------------------------------------------------

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Compute):
                self._compute(effect.iteration)

    def _compute(self, iteration: int) -> None:
        buffer = iteration % len(self.gradients)
        begin_s, modelled_s = time.monotonic(), self.times.draw()
        loss = self.computing.gradient(iteration, buffer) if self.computing is not None else math.nan
        real_s = time.monotonic() - begin_s
        self._hold_until(begin_s + modelled_s)
        self._log(iteration, "compute", begin_s, time.monotonic())
        self.real_s, self.modelled_s = self.real_s + real_s, self.modelled_s + modelled_s
        if modelled_s:
            self.overrun_s += max(0.0, real_s - modelled_s)
        payloads = self._payloads(iteration, buffer, loss)
        notes = [self._note(effect) for index, payload in enumerate(payloads)
                 for effect in self.machine.computed(index, payload)]  # fmt: skip
        now = time.monotonic()
        for index in range(len(payloads)):
            self.sent_s[index] = now
        self.line.send(note._replace(sent_s=now) for note in notes)

    def _payloads(self, iteration: int, buffer: int, loss: float) -> list[Note]:
        """Prune and encode: per range, a note with the size of its payload."""
        begin_s = time.monotonic()
        gradient = self.gradients[buffer]
        if self.pruner is None:
            if not is_finite(gradient):
                raise NonFinite(f"worker {self.worker}: the gradient of iteration {iteration} is not finite")
            if gradient is not self.shared_gradients[buffer]:
                self.shared_gradients[buffer].copy_(gradient)
            self._log(iteration, "select", begin_s, time.monotonic())
            return [Note(PUSH, size_bytes=WHOLE, other=part.size, value=loss) for part in self.job.parts]
        indices, values = self.pruner.prune(gradient)
        selected_s = time.monotonic()
        self._log(iteration, "select", begin_s, selected_s)
        notes = []
        for part, (offset, room) in zip(self.job.parts, self.job.layout.frames, strict=True):
            entries = part.inside(indices.cpu(), values.cpu())
            size = encode_into(self.up[buffer][offset : offset + room], entries, self.job.run.codec)
            notes.append(Note(PUSH, size_bytes=size, other=len(entries.values), value=loss))
        self._log(iteration, "encode", selected_s, time.monotonic())
        return notes

    def _note(self, effect: Effect) -> Note:
        assert not isinstance(effect, Compute)
        request = effect.request
        if isinstance(request, Push):
            payload: Note = request.payload
            return payload._replace(
                worker=self.worker, range=request.range, iteration=request.iteration, version=request.version
            )
        return Note(PULL, self.worker, request.range, request.iteration, request.version)

    def _hold_until(self, end_s: float) -> None:
        """The modelled computation ends at `end_s`; a stop ends it sooner."""
        while (left_s := end_s - time.monotonic()) > 0:
            if ready((self.line.descriptor,), left_s, spin_s=0.0):
                for note in self._receive():
                    self._heard(note)

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
            return self.machine.ack(Ack(self.worker, note.range, note.iteration))
        if note.kind != WEIGHTS:
            return []
        arrived_s = time.monotonic()
        iteration = note.iteration - 1  # these phases belong to the iteration whose push they follow
        self._log(iteration, "push", self.sent_s.get(note.range, note.begun_s), note.begun_s)
        self._log(iteration, "apply", note.begun_s, note.done_s)
        self._log(iteration, "wait", note.done_s, note.released_s, note.other)
        self._log(iteration, "serve", note.released_s, note.sent_s)
        self._log(iteration, "pull", note.sent_s, arrived_s)
        self._install(note)
        self._log(iteration, "decode", arrived_s, time.monotonic())
        return self.machine.weights(Weights(self.worker, note.range, note.iteration, note.version))

    def _install(self, note: Note) -> None:
        if note.size_bytes != WHOLE:
            part, (offset, _) = self.job.parts[note.range], self.job.layout.frames[note.range]
            part.put(self.shared_weights, decode(self.down[offset : offset + note.size_bytes], n=part.size))
        if self.weights is not self.shared_weights:
            self.weights.copy_(self.shared_weights)

    def _log(self, iteration: int, phase: str, begin_s: float, end_s: float, waits_for: int = NOBODY) -> None:
        zero = self.began_s
        row = (self.worker, iteration, PHASES.index(phase), begin_s - zero, end_s - zero, waits_for)
        self.rows.append(row)


def device_of(name: str, worker: int) -> torch.device:
    """Several workers on one GPU are normal: worker i computes on cuda:(i mod n)."""
    if name == "cuda":
        return torch.device("cuda", worker % torch.cuda.device_count())
    return torch.device(name)
