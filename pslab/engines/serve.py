"""The server process: it lets messages arrive when the cluster's links would, hands them to the protocol and performs
what comes back on the store."""

from __future__ import annotations

import contextlib
import math
import selectors
import time
from collections.abc import Iterable
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch

from pslab.engines.arena import Arena
from pslab.engines.control import ACK, DIVERGED, GO, PULL, PULL_BYTES, PUSH, STOP, WEIGHTS, WHOLE, Note, pack, unpack
from pslab.engines.job import Job
from pslab.engines.post import Post
from pslab.engines.talk import report
from pslab.errors import FrameError, WorkerFailed
from pslab.policies.rates import Applied
from pslab.protocol.messages import Pull, Push
from pslab.protocol.server import Effect, Refuse, Reply, Server, Step
from pslab.tensors.store import Gradient, Part, Store
from pslab.tensors.wire import decode, encode_into, frame_bytes

PROGRESS_PERIOD_S = 0.2
SNAPSHOT_CHUNK = 8  # snapshots by which their memory grows
PUSH_COLUMNS = ("push", "worker", "iteration", "range", "version_pulled", "version_applied", "staleness", "seconds",
                "loss", "density", "bytes_up", "bytes_up_raw", "bytes_down", "bytes_down_raw")  # fmt: skip
BYTES_DOWN = PUSH_COLUMNS.index("bytes_down")


class Serving:
    """One run at the server."""

    def __init__(self, job: Job, pipes: list[Connection], parent: Connection, arena: Arena, snapshots: Arena) -> None:
        self.job, self.run_, self.pipes, self.parent = job, job.run, pipes, parent
        self.arena, self.snapshots = arena, snapshots
        layout, run = job.layout, job.run
        self.machine = Server(range(run.workers), len(job.parts), job.sync)
        self.post = Post(job.cluster, run.workers)
        weights = arena.tensor(layout.initial, layout.size, layout.dtype).clone()
        self.store = Store(weights, job.parts, job.optimizer, track_changes=run.pull == "changed")
        if not job.optimizer.plain_sgd:
            self._warm_up()
        self.outbox: dict[int, list[Note]] = {w: [] for w in range(run.workers)}  # goes with the next weights
        self.taken: dict[tuple[int, int], tuple[float, float]] = {}  # (worker, range): when its last push was handled
        self.rows: list[list[float]] = []
        self.row_of: dict[tuple[int, int, int], list[float]] = {}
        self.versions = [0] * len(job.parts)
        self.applied = self.refused = 0
        self.snapshot_list: list[tuple[int, float]] = []
        self.next_snapshot = 0.0
        self.deaths: list[dict[str, Any]] = []
        self.outcome = ""
        self.begun_s = 0.0

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
        selector = selectors.SelectSelector()  # microseconds: epoll and poll would round up to milliseconds
        for worker, pipe in enumerate(self.pipes):
            selector.register(pipe, selectors.EVENT_READ, worker)
        selector.register(self.parent, selectors.EVENT_READ, None)
        with selector:
            self.begun_s = time.monotonic()
            self.heard_s = dict.fromkeys(range(self.run_.workers), self.begun_s)
            self._snapshot_if_due(0.0)
            for worker in range(self.run_.workers):
                self._tell(worker, [Note(GO, sent_s=self.begun_s)])
            self._loop(selector)
            ended_s = time.monotonic() - self.begun_s
            self._dismiss(selector)
        if self.applied > self.snapshot_list[-1][0]:
            self._snapshot(ended_s)
        self._report(ended_s)

    # --- the loop -------------------------------------------------------------------------------------------------

    def _loop(self, selector: selectors.BaseSelector) -> None:
        progress_s = self.begun_s
        while not self.outcome:
            for key, _ in selector.select(self._patience_s()):
                if key.data is None:
                    self.parent.recv_bytes()  # the only order that a serving server gets is to stop
                    self.outcome = self.outcome or "interrupted"
                elif not self._hear(key.data):
                    selector.unregister(key.fileobj)
            self._deliver()
            self._take_one()
            now = time.monotonic()
            if now - progress_s >= PROGRESS_PERIOD_S:
                progress_s = now
                report(self.parent, "progress", {"pushes": self.machine.accepted, "seconds": now - self.begun_s})
            self._stop_if_due(now)

    def _patience_s(self) -> float:
        """How long nothing can happen by itself."""
        due = self.begun_s + self.run_.seconds if self.run_.seconds is not None else math.inf
        due = min(due, self.post.next_s())
        return max(0.0, min(PROGRESS_PERIOD_S, due - time.monotonic()))

    def _hear(self, worker: int) -> bool:
        """Read one frame of a worker; False if the worker is gone."""
        try:
            notes = list(unpack(self.pipes[worker].recv_bytes()))
        except (EOFError, OSError):
            self._lose(worker, "is gone")
            return False
        self.heard_s[worker] = time.monotonic()
        if notes[0].kind == DIVERGED:  # not a message of the protocol: it takes no time on a link
            self._arrived(notes, self.heard_s[worker])
        else:
            self.post.send_up(worker, sum(self._wire_bytes(note) for note in notes), notes)
        return True

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

    def _stop_if_due(self, now: float) -> None:
        run = self.run_
        if self.outcome:
            return
        if run.seconds is not None and now - self.begun_s >= run.seconds:
            self.outcome = "seconds"
            return
        for worker in self.machine.workers:
            waits = self.post.travelling(worker) or all(worker in part.asked for part in self.machine.ranges)
            if not waits and now - self.heard_s[worker] > run.lease_s:
                self._lose(worker, f"has been silent for longer than its lease of {run.lease_s:g} s")

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
        before = self.versions[step.range]
        staleness = [before - push.version for push in step.pushes]
        applied = Applied(run.workers, len(step.pushes), step.aggregate, run.push_weight, max(staleness))
        progress = 0.0 if run.pushes is None else min(1.0, self.applied / run.pushes)
        rate = run.learning_rate * self.job.schedule.factor(progress) * self.job.rate.scale(applied)
        self.store.step(step.range, [self._gradient(push) for push in step.pushes], rate)
        self.versions[step.range] = step.version
        for push, stale in zip(step.pushes, staleness, strict=True):
            self._log(push, step.version, stale, now)
            self.outbox[push.worker].append(Note(ACK, push.worker, push.range, push.iteration))
        if step.range == len(self.job.parts) - 1:
            self.applied += len(step.pushes)
            self._snapshot_if_due(now)

    def _gradient(self, push: Push) -> Gradient:
        note, layout = push.payload, self.job.layout
        buffer = push.iteration % len(layout.up[0])
        if note.size_bytes == WHOLE:
            return self.arena.tensor(layout.gradients[push.worker][buffer], layout.size, layout.dtype)
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
        if entries is None:
            target = self.arena.tensor(layout.weights[pull.worker], layout.size, layout.dtype)
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
        row = self.row_of.pop((pull.worker, pull.range, pull.iteration - 1), None)
        if row is not None:
            row[BYTES_DOWN:] = [self._wire_bytes(note), part.size * layout.dtype.itemsize]
        for worker, there in self.post.send_down(pull.worker, self._wire_bytes(note), notes):
            self._tell(worker, there)

    def _wire_bytes(self, note: Note) -> int:
        if note.kind in (PUSH, WEIGHTS):
            if note.size_bytes == WHOLE:
                return frame_bytes(self.job.parts[note.range].size, self.job.layout.dtype.itemsize)
            return note.size_bytes
        return PULL_BYTES if note.kind == PULL else 0

    def _tell(self, worker: int, notes: list[Note]) -> None:
        with contextlib.suppress(OSError):  # a dead worker is noticed where its pipe is read
            self.pipes[worker].send_bytes(pack(notes))
        self.heard_s[worker] = time.monotonic()

    # --- records --------------------------------------------------------------------------------------------------

    def _log(self, push: Push, version: int, staleness: int, now: float) -> None:
        part, note = self.job.parts[push.range], push.payload
        row = [len(self.rows) + 1, push.worker, push.iteration, push.range, push.version, version, staleness, now,
               note.value, note.other / part.size, self._wire_bytes(note), part.size * self.job.layout.dtype.itemsize,
               0, 0]  # fmt: skip
        self.rows.append(row)
        self.row_of[push.worker, push.range, push.iteration] = row

    def _snapshot_if_due(self, now: float) -> None:
        period = self.run_.evaluation_period
        measure = self.applied if period is not None else now
        if measure < self.next_snapshot:
            return
        step = period if period is not None else (self.run_.seconds or 1.0) / 20
        self.next_snapshot = (measure // step + 1) * step
        self._snapshot(now)

    def _snapshot(self, now: float) -> None:
        layout, index = self.job.layout, len(self.snapshot_list)
        size_bytes = layout.size * layout.dtype.itemsize
        if index % SNAPSHOT_CHUNK == 0:
            self.snapshots.reserve((index + SNAPSHOT_CHUNK) * size_bytes)
        self.snapshots.tensor(index * size_bytes, layout.size, layout.dtype).copy_(self.store.weights)
        self.snapshot_list.append((self.applied, now))
        report(self.parent, "snapshot", {"index": index, "pushes": self.applied, "seconds": now})

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

    def _dismiss(self, selector: selectors.BaseSelector) -> None:
        """Tell the workers to stop, and read each one's pipe to its last word: the next run begins with empty pipes."""
        waiting = set(range(self.run_.workers)) - self._dead
        for worker in waiting:
            self._tell(worker, [Note(STOP)])
        while waiting and self.outcome != "died":
            for key, _ in selector.select():
                if key.data is None:
                    self.parent.recv_bytes()
                    continue
                try:
                    last = any(note.kind == STOP for note in unpack(self.pipes[key.data].recv_bytes()))
                except (EOFError, OSError):  # it died with the run already over: nothing of it is missing
                    last = True
                    selector.unregister(key.fileobj)
                    report(self.parent, "lost", {"worker": key.data, "over": True})
                if last:
                    waiting.discard(key.data)

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
        report(self.parent, "served", body, np.array(self.rows, dtype=np.float64).reshape(-1, len(PUSH_COLUMNS)))


