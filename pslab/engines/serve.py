"""The server process: it lets messages arrive when the cluster's links would, hands them to the protocol and performs
what comes back on the store."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterable
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch

from pslab.engines.arena import Arena
from pslab.engines.control import ACK, DIVERGED, GO, PULL, PULL_BYTES, PUSH, STOP, WEIGHTS, WHOLE, Note
from pslab.engines.job import Job
from pslab.engines.ledger import Ledger
from pslab.engines.line import Line, ready
from pslab.engines.post import Post
from pslab.engines.talk import report
from pslab.errors import FrameError, ProtocolError, WorkerFailed
from pslab.policies.rates import Applied
from pslab.protocol.messages import Pull, Push
from pslab.protocol.server import Effect, Refuse, Reply, Server, Step
from pslab.tensors.store import Gradient, Part, Store
from pslab.tensors.wire import decode, encode_into, frame_bytes

PROGRESS_PERIOD_S = 0.2


class Serving:
    """One run at the server."""

    def __init__(self, job: Job, pipes: list[Connection], parent: Connection, arena: Arena, snapshots: Arena) -> None:
        self.job, self.run_, self.parent = job, job.run, parent
        self.lines = [Line(pipe) for pipe in pipes]
        self.whose: dict[int, int | None] = {line.descriptor: worker for worker, line in enumerate(self.lines)}
        self.whose[parent.fileno()] = None  # what is listened to
        self.arena = arena
        layout, run = job.layout, job.run
        self.machine = Server(range(run.workers), len(job.parts), job.sync)
        self.post = Post(job.cluster, run.workers)
        weights = self._flat(layout.server)
        self.store = Store(weights, job.parts, job.optimizer, track_changes=run.pull == "changed")
        self.ledger = Ledger(job, weights, snapshots, parent)
        if not job.optimizer.plain_sgd:
            self._warm_up()
        self.gradients = [[self._flat(at) for at in buffers] for buffers in layout.gradients]
        self.outbox: dict[int, list[Note]] = {w: [] for w in range(run.workers)}  # goes with the next weights
        self.taken: dict[tuple[int, int], tuple[float, float]] = {}  # (worker, range): when its last push was handled
        self.versions = [0] * len(job.parts)
        self.applied = self.refused = 0
        self.deaths: list[dict[str, Any]] = []
        self.outcome = ""
        self.begun_s = 0.0

    def _flat(self, offset: int) -> torch.Tensor:
        return self.arena.tensor(offset, self.job.layout.size, self.job.layout.dtype)

    def _warm_up(self) -> None:
        """The first step of a torch.optim class imports a compiler: not what a run measures."""
        job = self.job
        part = Part((slice(0, 1),))
        one = torch.ones(1, dtype=job.layout.dtype)
        Store(one, (part,), job.optimizer).step(0, [one.clone()], job.run.learning_rate)

    @property
    def iteration(self) -> int:
        """The slowest worker's iteration."""
        return min((part.window.base for part in self.machine.ranges), default=0)

    def run(self) -> None:
        """Serve until a stop rule holds, then report everything to the parent."""
        self.begun_s = time.monotonic()
        self.heard_s = dict.fromkeys(range(self.run_.workers), self.begun_s)
        self.ledger.snapshot_if_due(0, 0.0)
        for worker in range(self.run_.workers):
            self._tell(worker, [Note(GO, sent_s=self.begun_s)])
        self._loop()
        ended_s = time.monotonic() - self.begun_s
        self._dismiss()
        self._report(ended_s)

    # --- the loop -------------------------------------------------------------------------------------------------

    def _loop(self) -> None:
        progress_s = self.begun_s
        while not self.outcome:
            for source in ready(list(self.whose), self._patience_s()):
                worker = self.whose[source]
                if worker is None:
                    self.parent.recv_bytes()  # the only order that a serving server gets is to stop
                    self.outcome = self.outcome or "interrupted"
                else:
                    self._hear(worker)
            self._deliver()
            self._take_one()
            now = time.monotonic()
            if self.run_.seconds is not None and now - self.begun_s >= self.run_.seconds:
                self.outcome = self.outcome or "seconds"
            if now - progress_s >= PROGRESS_PERIOD_S:
                progress_s = now
                news = {"pushes": self.machine.accepted, "seconds": now - self.begun_s, "workers": self._doings()}
                report(self.parent, "progress", news)
                self._lose_the_silent(now)

    def _patience_s(self) -> float:
        """How long nothing can happen by itself."""
        due = self.begun_s + self.run_.seconds if self.run_.seconds is not None else math.inf
        due = min(due, self.post.next_s())
        return max(0.0, min(PROGRESS_PERIOD_S, due - time.monotonic()))

    def _hear(self, worker: int) -> None:
        """Read what a worker has sent, or that it is gone."""
        try:
            frames = self.lines[worker].frames()
        except (EOFError, OSError):
            del self.whose[self.lines[worker].descriptor]
            self._lose(worker, "is gone")
            return
        self.heard_s[worker] = time.monotonic()
        for notes in frames:
            if notes[0].kind == DIVERGED:  # not a message of the protocol: it takes no time on a link
                self._arrived(notes, self.heard_s[worker])
            else:
                self.post.send_up(worker, sum(self._wire_bytes(note) for note in notes), notes)

    def _deliver(self, *, busy: bool = False) -> None:
        """Weights that are due go out to the workers."""
        for worker, notes in self.post.collect(busy=busy):
            self._tell(worker, notes)

    def _take_one(self) -> None:
        """Deal with one frame that has arrived; weights may fall due meanwhile."""
        frame = self.post.take()
        if frame is None:
            return
        worker, notes = frame
        self.heard_s[worker] = time.monotonic()
        if worker not in self._dead:
            self._arrived(notes, self.heard_s[worker])
        self.post.dealt()

    def _lose_the_silent(self, now: float) -> None:
        """A worker that owes a word and has not said one within its lease is dead."""
        for worker in self.machine.workers:
            waits = self.post.travelling(worker) or all(worker in part.asked for part in self.machine.ranges)
            if not self.outcome and not waits and now - self.heard_s[worker] > self.run_.lease_s:
                self._lose(worker, f"has been silent for longer than its lease of {self.run_.lease_s:g} s")

    # --- messages -------------------------------------------------------------------------------------------------

    def _arrived(self, notes: Iterable[Note], now: float) -> None:
        """A worker's frame is here: hand its messages to the protocol."""
        for note in notes:
            if self.outcome:
                return
            if note.kind == PUSH:
                begun_s = time.monotonic()
                push = Push(note.worker, note.range, note.iteration, note.version, note)
                self._perform(self.machine.handle(push, now - self.begun_s))
                self.taken[note.worker, note.range] = begun_s, time.monotonic()
                if self.run_.pushes is not None and self.machine.accepted >= self.run_.pushes:
                    self.outcome = "budget"
            elif note.kind == PULL:
                pull = Pull(note.worker, note.range, note.iteration, note.version)
                self._perform(self.machine.handle(pull, now - self.begun_s))
            elif note.kind == DIVERGED:
                self.refused += 1
                self.outcome = "diverged"
                self.diverged = {"worker": note.worker, "iteration": note.iteration}

    def _perform(self, effects: list[Effect]) -> None:
        pending = list(effects)
        while pending:
            effect = pending.pop(0)
            if isinstance(effect, Step):
                self._step(effect)
            elif isinstance(effect, Reply):
                self._reply(effect)
                pending += self.machine.answered(effect.pull.range)
            elif isinstance(effect, Refuse):
                self.refused += 1
            self._deliver(busy=True)  # that took milliseconds, for which other workers' weights do not wait

    def _step(self, step: Step) -> None:
        run, now = self.run_, time.monotonic() - self.begun_s
        if self.job.layout.in_place and len(step.pushes) < len(self.machine.workers):
            raise ProtocolError(f"{run.sync} has a barrier, but applies {len(step.pushes)} pushes while others compute")
        before = self.versions[step.range]
        staleness = [before - push.version for push in step.pushes]
        applied = Applied(run.workers, len(step.pushes), step.aggregate, run.push_weight, max(staleness))
        progress = 0.0 if run.pushes is None else min(1.0, self.applied / run.pushes)
        rate = run.learning_rate * self.job.schedule.factor(progress) * self.job.rate.scale(applied)
        self.store.step(step.range, [self._gradient(push) for push in step.pushes], rate)
        self.versions[step.range] = step.version
        for push, stale in zip(step.pushes, staleness, strict=True):
            self.ledger.applied(push, step.version, stale, self._wire_bytes(push.payload), now)
            self.outbox[push.worker].append(Note(ACK, push.worker, push.range, push.iteration))
        if step.range == len(self.job.parts) - 1:
            self.applied += len(step.pushes)
            self.ledger.snapshot_if_due(self.applied, now)

    def _gradient(self, push: Push) -> Gradient:
        note, layout = push.payload, self.job.layout
        buffer = push.iteration % len(layout.up[0])
        if note.size_bytes == WHOLE:
            return self.gradients[push.worker][buffer]
        offset, _ = layout.frames[push.range]
        frame = self.arena.bytes(layout.up[push.worker][buffer] + offset, note.size_bytes)
        try:
            return decode(frame, n=self.job.parts[push.range].size)
        except FrameError as error:
            raise WorkerFailed(f"worker {push.worker}", push.iteration, f"its frame was refused: {error}") from error

    def _reply(self, reply: Reply) -> None:
        pull, released_s = reply.pull, time.monotonic()
        part, layout = self.job.parts[pull.range], self.job.layout
        entries = self.store.changed(pull.range, pull.version) if self.run_.pull == "changed" else None
        if layout.in_place:
            size = WHOLE
        elif entries is None:
            target = self._flat(layout.weights[pull.worker])
            for there, here in zip(part.views(target), part.views(self.store.weights), strict=True):
                there.copy_(here)
            size = WHOLE
        else:
            offset, room = layout.frames[pull.range]
            buffer = self.arena.bytes(layout.down[pull.worker] + offset, room)
            size = encode_into(buffer, entries, "auto")
        begun_s, done_s = self.taken.get((pull.worker, pull.range), (released_s, released_s))
        note = Note(WEIGHTS, pull.worker, pull.range, pull.iteration, reply.version, size, reply.released_by,
                    time.monotonic(), begun_s, done_s, released_s)  # fmt: skip
        notes, self.outbox[pull.worker] = [*self.outbox[pull.worker], note], []
        size_bytes = self._wire_bytes(note)
        self.ledger.answered(pull.worker, pull.range, pull.iteration, size_bytes)
        for worker, arrived in self.post.send_down(pull.worker, size_bytes, notes):
            self._tell(worker, arrived)

    def _wire_bytes(self, note: Note) -> int:
        if note.kind in (PUSH, WEIGHTS):
            if note.size_bytes == WHOLE:
                return frame_bytes(self.job.parts[note.range].size, self.job.layout.dtype.itemsize)
            return note.size_bytes
        return PULL_BYTES if note.kind == PULL else 0

    def _tell(self, worker: int, notes: list[Note]) -> None:
        with contextlib.suppress(OSError):  # a dead worker is noticed where its pipe is read
            self.lines[worker].send(notes)
        self.heard_s[worker] = time.monotonic()

    def _doings(self) -> list[dict[str, Any]]:
        """What each worker does now, as the server knows it."""
        return [self._doing(worker) for worker in range(self.run_.workers)]

    def _doing(self, worker: int) -> dict[str, Any]:
        if worker in self._dead:
            return {"doing": "dead", "for": [], "iteration": None}
        clock = min(part.clocks[worker] for part in self.machine.ranges)
        held = [index for index, part in enumerate(self.machine.ranges) if worker in part.asked]
        if held:
            whom = sorted({other for index in held for other in self.machine.waits_for(index)} - {worker})
            return {"doing": "waiting", "for": whom, "iteration": clock}
        return {"doing": "transferring" if self.post.travelling(worker) else "computing", "for": [], "iteration": clock}

    # --- the end --------------------------------------------------------------------------------------------------

    @property
    def _dead(self) -> set[int]:
        return {death["worker"] for death in self.deaths}

    def _lose(self, worker: int, how: str) -> None:
        iteration = min(part.clocks[worker] for part in self.machine.ranges)
        self.deaths.append({"worker": worker, "iteration": iteration, "how": how,
                            "seconds": time.monotonic() - self.begun_s})  # fmt: skip
        report(self.parent, "lost", self.deaths[-1])
        if self.run_.on_death == "stop" or len(self.machine.workers) == 1:
            self.outcome = "died"
        else:
            self._perform(self.machine.leave(worker, time.monotonic() - self.begun_s))

    def _dismiss(self) -> None:
        """Tell the workers to stop, and read each one's line to its last word: the next run begins with empty lines."""
        waiting = set(range(self.run_.workers)) - self._dead
        for worker in waiting:
            self._tell(worker, [Note(STOP)])
        while waiting and self.outcome != "died":
            for source in ready(list(self.whose)):
                sender = self.whose[source]
                if sender is None:
                    self.parent.recv_bytes()
                    continue
                try:
                    last = any(note.kind == STOP for notes in self.lines[sender].frames() for note in notes)
                except (EOFError, OSError):  # it died with the run already over: nothing of it is missing
                    last = True
                    del self.whose[source]
                    report(self.parent, "lost", {"worker": sender, "over": True})
                if last:
                    waiting.discard(sender)

    def _report(self, ended_s: float) -> None:
        late_s = np.array(self.post.late_s or [0.0])
        body = {
            "outcome": self.outcome,
            "seconds": ended_s,
            "pushes": self.applied,
            "accepted": self.machine.accepted,
            "refused": self.refused,
            "deaths": self.deaths,
            "diverged": getattr(self, "diverged", None),
            "late_s_mean": float(late_s.mean()),
            "late_s_99th": float(np.quantile(late_s, 0.99)),
            "messages": len(self.post.late_s),
        }
        report(self.parent, "served", body, self.ledger.close(self.applied, ended_s))


