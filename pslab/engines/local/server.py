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

from pslab.engines.emulation.link_queue import Waiting
from pslab.engines.job.job import Job
from pslab.engines.job.notes import ACK, BLOCKED, DIVERGED, GO, PULL, PUSH, STOP, WEIGHTS, Note, apart
from pslab.engines.job.shared_memory import Arena
from pslab.engines.local.emulated_links import Post
from pslab.engines.local.framed_pipe import Line, ready
from pslab.engines.processes.channel import report
from pslab.engines.server.weights import Keeper
from pslab.engines.server.worker_status import doing
from pslab.protocol.messages import Pull, Push
from pslab.protocol.server import Discard, Effect, Refuse, Reply, Server, Step

PROGRESS_PERIOD_S = 0.2


class Serving:
    """One run at the server."""

    def __init__(self, job: Job, pipes: list[Connection], parent: Connection, arena: Arena, snapshots: Arena) -> None:
        self.job, self.run_, self.parent = job, job.run, parent
        self.lines = [Line(pipe) for pipe in pipes]
        self.whose: dict[int, int | None] = {line.descriptor: worker for worker, line in enumerate(self.lines)}
        self.whose[parent.fileno()] = None  # what is listened to
        self.machine = Server(range(job.run.workers), len(job.parts), job.sync)
        self.waiting = Waiting(job, self.machine) if job.layered and not job.cluster.free else None
        self.post = Post(job.cluster, job.run.workers, self.waiting)
        self.keeper = Keeper(job, arena, snapshots, lambda body: report(parent, "snapshot", body))
        self.outbox: dict[int, list[Note]] = {w: [] for w in range(job.run.workers)}  # goes with the next weights
        self.taken: dict[tuple[int, int], tuple[float, float]] = {}  # (worker, range): when its last push was handled
        self.asked_s: dict[tuple[int, int], float] = {}  # when its last request was handled
        self.refused = 0
        self.spent = {"apply_s": [0.0, 0], "serve_s": [0.0, 0], "message_s": [0.0, 0]}  # seconds; pushes, pulls, frames
        self.deaths: list[dict[str, Any]] = []
        self.outcome = ""
        self.begun_s = 0.0

    @property
    def iteration(self) -> int:
        """The slowest worker's iteration."""
        return min((part.window.base for part in self.machine.ranges), default=0)

    def run(self) -> None:
        """Serve until a stop rule holds, then report everything to the parent."""
        self.begun_s = time.monotonic()
        self.heard_s = dict.fromkeys(range(self.run_.workers), self.begun_s)
        self.keeper.ledger.snapshot_if_due(0, 0.0)
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
                workers = [doing(self.machine, w, travelling=self.post.travelling(w)) for w in self.outbox]
                news = {"pushes": self.machine.gradients, "seconds": now - self.begun_s, "workers": workers}
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
                continue
            for frame in self._frames(notes):
                if self.waiting is not None and frame[-1].kind == BLOCKED:
                    self.waiting.blocked[worker] = frame[-1].range
                elif self.waiting is not None and frame[-1].kind == PULL:
                    self.post.ask(worker, frame)
                else:
                    self.post.send_up(worker, sum(self.keeper.wire_bytes(note) for note in frame), frame)

    def _frames(self, notes: list[Note]) -> list[list[Note]]:
        """What goes on a link by itself."""
        if self.job.cluster.free:
            return [notes]
        return [[note] for note in notes] if self.job.layered else apart(notes) if self.job.eager else [notes]

    def _deliver(self, *, busy: bool = False) -> None:
        """Weights that are due go out to the workers."""
        for worker, notes in self.post.collect(busy=busy):
            if self.waiting is not None and self.waiting.blocked[worker] == notes[-1].range:
                self.waiting.blocked[worker] = None
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
            self._spend("message_s", self.heard_s[worker])
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
                push = Push(note.worker, note.range, note.iteration, note.version, note, note.own)
                self.taken[note.worker, note.range] = begun_s, begun_s
                self._perform(self.machine.handle(push, now - self.begun_s))
                self.taken[note.worker, note.range] = begun_s, time.monotonic()
                if self.run_.pushes is not None and self.machine.gradients >= self.run_.pushes:
                    self.outcome = "budget"
            elif note.kind == PULL:
                self.asked_s[note.worker, note.range] = time.monotonic()
                pull = Pull(note.worker, note.range, note.iteration, note.version, note)
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
            elif isinstance(effect, Discard):
                self.keeper.discard(effect)
                self._acknowledge(effect.push)
            elif isinstance(effect, Reply):
                self._reply(effect)
                pending += self.machine.answered(effect.pull.range)
            elif isinstance(effect, Refuse):
                self.refused += 1
            self._deliver(busy=True)  # that took milliseconds, for which other workers' weights do not wait

    def _step(self, step: Step) -> None:
        now = time.monotonic()
        self.keeper.step(step, len(self.machine.workers), now - self.begun_s)
        self._spend("apply_s", now, len(step.pushes))
        for push in step.pushes:
            self._acknowledge(push)

    def _acknowledge(self, push: Push) -> None:
        begun_s, _ = self.taken.get((push.worker, push.range), (0.0, 0.0))
        note = Note(ACK, push.worker, push.range, push.iteration, begun_s=begun_s, done_s=time.monotonic())
        self.outbox[push.worker].append(note)

    def _spend(self, what: str, since_s: float, count: int = 1) -> None:
        self.spent[what][0] += time.monotonic() - since_s
        self.spent[what][1] += count

    def _reply(self, reply: Reply) -> None:
        pull, released_s = reply.pull, time.monotonic()
        size = self.keeper.reply(reply)
        self._spend("serve_s", released_s)
        key = pull.worker, pull.range
        begun_s, done_s = self.taken.get(key, (released_s, released_s))
        note = Note(WEIGHTS, *key, pull.iteration, reply.version, size, reply.released_by, time.monotonic(),
                    begun_s, done_s, released_s, self.asked_s.get(key, released_s), reply.own)  # fmt: skip
        notes, self.outbox[pull.worker] = [*self.outbox[pull.worker], note], []
        if self.waiting is not None:
            self.waiting.answered(reply)
        size_bytes = self.keeper.wire_bytes(note)
        self.keeper.ledger.answered(pull.worker, pull.range, pull.iteration, size_bytes)
        for worker, arrived in self.post.send_down(pull.worker, size_bytes, notes):
            self._tell(worker, arrived)

    def _tell(self, worker: int, notes: list[Note]) -> None:
        with contextlib.suppress(OSError):  # a dead worker is noticed where its pipe is read
            self.lines[worker].send(notes)
        self.heard_s[worker] = time.monotonic()

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
            self.keeper.leave(worker)
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

    def _costs(self) -> dict[str, float]:
        """Mean seconds: to apply a push, to lay a reply ready, and for the rest of a frame's handling."""
        (apply_s, pushes), (serve_s, pulls), (whole_s, frames) = self.spent.values()
        rest_s = max(0.0, whole_s - apply_s - serve_s)
        return {"apply_s": apply_s / max(pushes, 1), "serve_s": serve_s / max(pulls, 1),
                "message_s": rest_s / max(frames, 1)}  # fmt: skip

    def _report(self, ended_s: float) -> None:
        late_s = np.array(self.post.late_s or [0.0])
        body = {
            "outcome": self.outcome,
            "seconds": ended_s,
            "pushes": self.keeper.applied,
            "accepted": self.machine.gradients,
            "refused": self.refused,
            "dropped": self.keeper.dropped,
            "dropped_bytes": self.keeper.dropped_bytes,
            "deaths": self.deaths,
            "diverged": getattr(self, "diverged", None),
            "late_s_mean": float(late_s.mean()),
            "late_s_99th": float(np.quantile(late_s, 0.99)),
            "messages": len(self.post.late_s),
            "costs": self._costs(),
        }
        report(self.parent, "served", body, self.keeper.ledger.close(self.keeper.applied, ended_s))


