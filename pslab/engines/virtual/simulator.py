"""The clockwork of virtual time: the protocol's machines, driven by a heap of events.

Events are ordered by (instant, phase, worker, sequence). Gradients are real, taken on the weights that the worker would
have had; how long anything takes is the cluster's word alone. The server deals with one frame after another.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from typing import Any, NamedTuple, Protocol, cast

from pslab.engines.emulation.compute_times import ComputeTimes
from pslab.engines.emulation.layer_progress import Pass
from pslab.engines.emulation.link_queue import Waiting
from pslab.engines.emulation.links import DOWN, UP, Network
from pslab.engines.job.job import Job
from pslab.engines.job.notes import ACK, GONE, PULL, PUSH, WEIGHTS, WHOLE, Note, apart
from pslab.engines.server.weights import Bookkeeper, ranged_bytes
from pslab.engines.server.worker_status import doing
from pslab.engines.worker.own_pushes import own_writes
from pslab.engines.worker.phases import PHASES, pushed, way
from pslab.engines.worker.range_schedule import Turn, Turns, turns_of
from pslab.engines.worker.tensors import Write
from pslab.protocol.messages import NO_WORKER, Ack, Pull, Push, Searched, Weights, gradients
from pslab.protocol.requests import Request
from pslab.protocol.server import Discard, Effect, Refuse, Reply, Server, Step
from pslab.protocol.worker import Compute, LayeredWorker, Send, worker_of
from pslab.protocol.worker import Effect as WorkerEffect

AT_SERVER, SERVER_FREE, SENT, AT_WORKER, INSTALLED, COMPUTED, LEAVES, JOINS = range(8)  # their order at one instant
NUMBER = {name: float(index) for index, name in enumerate(PHASES)}


class Event(NamedTuple):
    """Something that happens; the fields' order is the order of events."""

    now: float
    phase: int
    worker: int
    sequence: int
    content: Any


class Gradients(Protocol):
    """Where gradients come from."""

    def begin(
        self, worker: int, iteration: int, pulled: list[Note], settled_s: float, writes: list[Write],
        turn: Turn | None = None,
    ) -> None: ...  # fmt: skip

    def result(self, worker: int, meanwhile: Any) -> dict[str, Any]: ...


class NoGradients:
    """Timing only: pushes of the size that they would have, and nothing in them."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._body = {"payloads": [[WHOLE, part.size] for part in job.parts], "loss": math.nan}
        self._turns: dict[int, Turn] = {}

    def begin(
        self, worker: int, iteration: int, pulled: list[Note], settled_s: float, writes: list[Write],
        turn: Turn | None = None,
    ) -> None:  # fmt: skip
        """Nothing is computed."""
        if turn is not None:
            self._turns[worker] = turn

    def result(self, worker: int, meanwhile: Any) -> dict[str, Any]:
        """The same for everybody, but for those whose turn it is to push a range."""
        if worker not in self._turns:
            return self._body
        job, keys = self._job, self._turns[worker].keys
        entries = sum(s.stop - s.start for s in job.keyspace.slices(keys))
        return {"payloads": [[ranged_bytes(job, keys, job.run.codec), entries]], "loss": math.nan}


class Clockwork:
    """One run in virtual time. `turn` performs one event."""

    def __init__(self, job: Job, keeper: Bookkeeper, gradients: Gradients) -> None:
        run = job.run
        self.job, self.run, self.keeper, self.gradients = job, run, keeper, gradients
        there = filter(job.cluster.there, range(run.workers))
        self.server = Server(there, len(job.parts), job.sync)
        self.workers = [worker_of(worker, len(job.parts), job.sync, layered=job.layered)
                        for worker in range(run.workers)]  # fmt: skip
        self.passes: dict[int, Pass] = {}  # layered workers: where each of them is in its iteration
        found = [turns_of(job, worker) for worker in range(run.workers)]
        self.turns: list[Turns] = [turns for turns in found if turns is not None]  # none, or one of each worker
        self.shares = [part.size / job.layout.size for part in job.parts]  # of what the whole model costs
        self.times = [ComputeTimes(job.cluster, run.seed, worker) for worker in range(run.workers)]
        self.waiting = Waiting(job, self.server) if job.layered and not job.cluster.free else None
        self.network = None if job.cluster.free else Network(job.cluster, self.waiting)
        self.heap: list[Event] = []
        self.inbox: deque[tuple[int, list[Note]]] = deque()
        self.free_s = 0.0  # when the server has dealt with what it took
        self.now, self.sequence, self.events = 0.0, 0, 0
        self.outcome, self.refused = "", 0
        self.diverged: dict[str, int] | None = None
        self.outbox: dict[int, list[Note]] = {worker: [] for worker in range(run.workers)}
        self.taken: dict[tuple[int, int], tuple[float, float]] = {}
        self.asked_s: dict[tuple[int, int], float] = {}
        self.sent_s: list[dict[tuple[int, int], float]] = [{} for _ in range(run.workers)]
        self.pulled: dict[int, list[Note]] = {worker: [] for worker in range(run.workers)}  # replies of an iteration
        self.settled: dict[int, int] = {}  # how many there are
        self.begun: set[int] = set()  # workers whose gradient is ordered, and not yet taken
        self.began_s: dict[int, float] = {}
        self.bodies: dict[int, dict[str, Any]] = {}  # layered workers: the gradients whose backward pass is under way
        self.rows: list[tuple[float, ...]] = []
        # the first event of a worker's life: what is older is dropped, and everything while it is not there
        self.life = {w: 0.0 if job.cluster.there(w) else math.inf for w in range(run.workers)}
        self.meanwhile: Any = lambda: None
        self.handlers: dict[int, Callable[[int, Any, float], None]] = {
            AT_SERVER: self._at_server, SERVER_FREE: self._server_free, SENT: self._sent,
            AT_WORKER: self._at_worker, INSTALLED: self._installed, COMPUTED: self._computed,
            LEAVES: self._leaves, JOINS: self._joins,
        }  # fmt: skip

    def start(self) -> None:
        """Every worker begins iteration 0."""
        self.keeper.ledger.snapshot_if_due(0, 0.0)
        for phase, instants in ((LEAVES, self.job.cluster.leave), (JOINS, self.job.cluster.join)):
            for worker, at in sorted(instants.items()):
                if worker < self.run.workers:
                    self._push(at, phase, worker, None)
        for worker in self.server.workers:
            self._perform_worker(worker, self.workers[worker].start(), 0.0)

    def turn(self) -> None:
        """The next event happens, or there is none and the run ends."""
        heap = self.heap
        if self.network is not None and self._links(self.network, heap[0].now if heap else math.inf):
            return
        if not heap:
            self.outcome = "stalled" if self.server.workers else "died"
            return
        if self.run.seconds is not None and heap[0].now > self.run.seconds:
            self.now, self.outcome = self.run.seconds, "seconds"
            return
        event = heappop(heap)
        if event.phase < LEAVES and event.worker >= 0 and event.sequence < self.life[event.worker]:
            return
        self.now = event.now
        self.events += 1
        self.handlers[event.phase](event.worker, event.content, event.now)

    def _links(self, network: Network, next_s: float) -> bool:
        """Whether something happens on the links before the next event, or at the same instant; it does."""
        if (due_s := network.next_s()) < math.inf and due_s <= min(next_s, network.choice_s()):
            for at, direction, (worker, notes, sent) in network.arrived(due_s):
                if sent >= self.life[worker]:
                    self._push(at, AT_SERVER if direction == UP else AT_WORKER, worker, notes)
            return True
        if network.choice_s() < next_s:  # all events of that instant have happened
            network.choose(network.choice_s())
            return True
        return False

    def doings(self) -> list[dict[str, Any]]:
        """What each worker does now."""
        return [doing(self.server, worker.worker, travelling=not worker.computing) for worker in self.workers]

    # --- the server ---------------------------------------------------------------------------------------------

    def _at_server(self, worker: int, notes: list[Note], now: float) -> None:
        self.inbox.append((worker, notes))
        if self.free_s <= now and len(self.inbox) == 1:
            self._server_free(worker, None, now)

    def _server_free(self, worker: int, content: None, now: float) -> None:
        while self.inbox and not self.outcome:
            _, notes = self.inbox.popleft()
            at = now + self.job.cluster.message_s
            for note in notes:
                if not self.outcome:
                    at = self._handle(note, at)
            if at > now:
                self.free_s = at
                self._push(at, SERVER_FREE, -1, None)
                return

    def _handle(self, note: Note, at: float) -> float:
        """One message; returns when the server has dealt with it."""
        if note.kind == GONE:
            if note.worker in self.server.workers:
                self.keeper.leave(note.worker)
                at = self._perform(self.server.leave(note.worker, at), at)
            return at
        if note.kind == PULL:
            self.asked_s[note.worker, note.range] = at
            pull = Pull(note.worker, note.range, note.iteration, note.version, note)
            return self._perform(self.server.handle(pull, at), at)
        push = Push(note.worker, note.range, note.iteration, note.version, note, note.own)
        effects = self.server.handle(push, at)
        applied = sum(len(effect.pushes) for effect in effects if isinstance(effect, Step))
        self.taken[note.worker, note.range] = at, at + applied * self.job.cluster.apply_s * self.shares[note.range]
        at = self._perform(effects, at)
        if self.run.pushes is not None and self.server.gradients >= self.run.pushes:
            self.now, self.outcome = at, "budget"
        return at

    def _perform(self, effects: list[Effect], at: float) -> float:
        pending, cluster = deque(effects), self.job.cluster
        while pending:
            effect = pending.popleft()
            if isinstance(effect, Step):
                at += cluster.apply_s * len(effect.pushes) * self.shares[effect.range]
                self.keeper.step(effect, len(self.server.workers), at)
                for push in effect.pushes:
                    self._acknowledge(push)
            elif isinstance(effect, Discard):
                self.keeper.discard(effect)
                self._acknowledge(effect.push)
            elif isinstance(effect, Reply):
                at = self._reply(effect, at)
                pending += self.server.answered(effect.pull.range)
            elif isinstance(effect, Searched):
                at += cluster.search_s * effect.points
            elif isinstance(effect, Refuse):
                self.refused += 1
        return at

    def _acknowledge(self, push: Push) -> None:
        begun_s, done_s = self.taken.get((push.worker, push.range), (0.0, 0.0))
        note = Note(ACK, push.worker, push.range, push.iteration, begun_s=begun_s, done_s=done_s)
        self.outbox[push.worker].append(note)

    def _reply(self, reply: Reply, released_s: float) -> float:
        pull, size_bytes = reply.pull, self.keeper.reply(reply)
        spent_s = self.job.cluster.serve_s
        if size_bytes != WHOLE and self.run.pull == "changed":
            spent_s += self.job.cluster.find_s
        at = released_s + spent_s * self.shares[pull.range]
        key = pull.worker, pull.range
        begun_s, done_s = self.taken.get(key, (released_s, released_s))
        note = Note(WEIGHTS, *key, pull.iteration, reply.version, size_bytes, reply.released_by, at,
                    begun_s, done_s, released_s, self.asked_s.get(key, released_s), reply.own)  # fmt: skip
        notes, self.outbox[pull.worker] = [*self.outbox[pull.worker], note], []
        self.keeper.ledger.answered(pull.worker, pull.range, pull.iteration, self.keeper.wire_bytes(note))
        if self.waiting is not None:
            self.waiting.answered(reply)
        self._ahead(pull.worker, note, at)
        if at > self.now:
            self._push(at, SENT, pull.worker, notes)
        else:
            self._sent(pull.worker, notes, at)
        return at

    def _ahead(self, worker: int, reply: Note, now: float) -> None:
        """With the last range's reply the weights of a worker's next iteration are settled: its gradient can be made
        while they travel. An eager worker is still computing the one before."""
        replies = self.pulled[worker]
        if self.job.eager or reply.size_bytes != WHOLE:
            replies.append(reply)
        self.settled[worker] = self.settled.get(worker, 0) + 1
        # what a fitted range will be is known when its computation begins, and not before
        late = self.job.eager or (self.turns and self.job.prune.fitted)
        if self.settled[worker] == len(self.job.parts) and not late:
            self._begin(worker, reply.iteration, now)

    def _begin(self, worker: int, iteration: int, now: float) -> None:
        self.begun.add(worker)
        pulled, self.pulled[worker], self.settled[worker] = self.pulled[worker], [], 0
        machine = self.workers[worker]
        turn = self.turns[worker].turn(iteration, machine) if self.turns else None
        self.gradients.begin(worker, iteration, pulled, now, own_writes(self.job, machine), turn)

    def _sent(self, worker: int, notes: list[Note], now: float) -> None:
        self._send(DOWN, worker, notes, now)

    # --- the workers --------------------------------------------------------------------------------------------

    def _at_worker(self, worker: int, notes: list[Note], now: float) -> None:
        machine = self.workers[worker]
        for note in notes:
            if note.kind == ACK:
                if self.turns:
                    self.turns[worker].acknowledged(note)
                for row in pushed(note, self.sent_s[worker]) if self.job.eager else ():
                    self._log(worker, *row)
                self._perform_worker(worker, machine.ack(Ack(worker, note.range, note.iteration)), now)
                continue
            if self.turns:
                self.turns[worker].arrived(note, now)
            if note.size_bytes != WHOLE and (spent_s := self.job.cluster.decode_s * self.shares[note.range]):
                self._push(now + spent_s, INSTALLED, worker, (note, now))
                continue
            self._installed(worker, (note, now), now)

    def _installed(self, worker: int, content: tuple[Note, float], now: float) -> None:
        note, arrived_s = content
        for row in way(note, self.sent_s[worker], arrived_s, eager=self.job.eager):
            self._log(worker, *row)
        self._log(worker, note.iteration - 1, "decode", arrived_s, now)
        weights = Weights(worker, note.range, note.iteration, note.version, own=note.own)
        self._perform_worker(worker, self.workers[worker].weights(weights), now)
        if worker in self.passes and self.passes[worker].waiting:
            self._forward(worker, now)

    def _perform_worker(self, worker: int, effects: list[WorkerEffect], now: float) -> None:
        notes = [self._note(effect.request, now) for effect in effects if isinstance(effect, Send)]
        for note in notes:
            if note.kind == PUSH:
                self.sent_s[worker][note.range, note.iteration] = now
            if self.turns:
                self.turns[worker].sent(note, now)
        if notes:
            self._send(UP, worker, notes, now)
        for effect in effects:
            if isinstance(effect, Compute):
                self._compute(worker, effect.iteration, now)

    def _compute(self, worker: int, iteration: int, now: float) -> None:
        machine = self.workers[worker]
        late = isinstance(machine, LayeredWorker) and not all(map(machine.holds, range(len(self.job.parts))))
        if worker not in self.begun and not late:  # if it is late, with its last weights
            self._begin(worker, iteration, now)
        cluster, self.began_s[worker] = self.job.cluster, now
        spent_s = sum(self.times[worker].draw() for _ in range(gradients(self.job.sync, iteration)))
        if self.job.layered:
            self.passes[worker] = Pass(self.job, iteration, spent_s, began_s=now)
            self._forward(worker, now)
            return
        ends = now + spent_s
        selected = ends + (cluster.select_s if self.job.sparse else 0.0)
        encoded = selected + (cluster.encode_s if self.job.sparse else 0.0)
        self._push(encoded, COMPUTED, worker, (iteration, ends, selected))

    def _forward(self, worker: int, now: float) -> None:
        """The next layer's pass begins, or waits for its weights."""
        at = self.passes[worker]
        machine, ranges = cast(LayeredWorker, self.workers[worker]), self.job.ranges_of[at.layer]
        missing = next((index for index in ranges if not machine.holds(index)), None) if at.forward else None
        if missing is not None:
            if not at.waiting and now > at.began_s:
                self._log(worker, at.iteration, "compute", at.began_s, now)
            at.waiting = True
        elif at.waiting:
            at.waiting, at.began_s = False, now
        if self.waiting is not None:
            self.waiting.blocked[worker] = missing
        if missing is None:
            ends, costs = now + at.takes_s, self.job.cluster
            busy = 0.0 if at.forward or not self.job.sparse else at.share
            selected = ends + busy * costs.select_s
            self._push(selected + busy * costs.encode_s, COMPUTED, worker, (at.iteration, ends, selected))

    def _passed(self, worker: int, content: tuple[int, float, float], now: float) -> None:
        """A layer's pass has ended; a backward one makes its ranges ready."""
        iteration, ends, selected = content
        at = self.passes[worker]
        layer, backward = at.layer, not at.forward
        at.done += 1
        if backward and at.done == at.layers + 1:
            self.bodies[worker] = self._result(worker)
        if backward and not self._finite(worker, iteration, self.bodies[worker]):
            return
        if now > ends or at.ended:
            self._log(worker, iteration, "compute", at.began_s, ends)
            self._log_coded(worker, iteration, ends, selected, now)
            at.began_s = now
        if backward:
            self._ready(worker, iteration, self.bodies[worker], self.job.ranges_of[layer], now)
        if not at.ended:
            self._forward(worker, now)

    def _computed(self, worker: int, content: tuple[int, float, float], now: float) -> None:
        if self.job.layered:
            self._passed(worker, content, now)
            return
        iteration, ends, selected = content
        body = self._result(worker)
        if not self._finite(worker, iteration, body):
            return
        if self.turns:
            self.turns[worker].computed(now - self.began_s[worker])
        self._log(worker, iteration, "compute", self.began_s[worker], ends)
        self._log_coded(worker, iteration, ends, selected, now)
        self._ready(worker, iteration, body, range(len(self.job.parts)), now)

    def _finite(self, worker: int, iteration: int, body: dict[str, Any]) -> bool:
        if body["payloads"] is not None:
            return True
        self.refused, self.outcome = self.refused + 1, "diverged"
        self.diverged = {"worker": worker, "iteration": iteration}
        return False

    def _log_coded(self, worker: int, iteration: int, ends: float, selected: float, now: float) -> None:
        self._log(worker, iteration, "select", ends, selected)
        if self.job.sparse:
            self._log(worker, iteration, "encode", selected, now)

    def _ready(self, worker: int, iteration: int, body: dict[str, Any], ranges: Iterable[int], now: float) -> None:
        """The gradients of these ranges can be pushed."""
        effects: list[WorkerEffect] = []
        for index in ranges:
            size_bytes, entries = body["payloads"][index]
            payload = Note(PUSH, worker, index, iteration, 0, size_bytes, entries, now, value=body["loss"])
            effects += self.workers[worker].computed(index, payload)
        self._perform_worker(worker, effects, now)

    def _leaves(self, worker: int, content: None, now: float) -> None:
        """A worker is gone, and with it all that is under way to it and from it; the server hears of it at once."""
        self.life[worker] = math.inf
        if worker in self.begun:
            self._result(worker)  # nobody wants it
        self.outbox[worker], self.pulled[worker], self.settled[worker] = [], [], 0
        self.sent_s[worker].clear()
        self.passes.pop(worker, None)
        for index in range(len(self.job.parts)):
            self.taken.pop((worker, index), None)
        self.inbox = deque((sender, notes) for sender, notes in self.inbox if sender != worker)
        self._at_server(worker, [Note(GONE, worker)], now)

    def _joins(self, worker: int, content: None, now: float) -> None:
        """A worker is there, new or back, and asks for the weights."""
        if worker in self.server.workers:  # the server has not yet come to hear that it was gone
            self._push(self.free_s, JOINS, worker, None)
            return
        self.sequence += 1
        self.life[worker] = self.sequence
        iteration = self.server.join(worker)
        if self.turns:
            self.turns[worker].join(iteration)
        self._perform_worker(worker, self.workers[worker].join(iteration), now)

    def _result(self, worker: int) -> dict[str, Any]:
        self.begun.discard(worker)
        return self.gradients.result(worker, self.meanwhile)

    def _note(self, request: Request, now: float) -> Note:
        if isinstance(request, Push):
            payload: Note = request.payload
            return payload._replace(range=request.range, iteration=request.iteration, version=request.version,
                                    sent_s=now, own=request.seen)  # fmt: skip
        note = Note(PULL, request.worker, request.range, request.iteration, request.version, sent_s=now)
        return self.turns[request.worker].wants(note) if self.turns else note

    # --- between them -------------------------------------------------------------------------------------------

    def _send(self, direction: str, worker: int, notes: list[Note], now: float) -> None:
        if self.network is not None:
            for frame in self._frames(direction, notes):
                message = worker, frame, self.sequence
                if self.job.layered and frame[-1].kind == PULL:
                    self.network.fly(direction, message, now)
                else:
                    self.network.send(direction, worker, sum(map(self.keeper.wire_bytes, frame)), message, now)
        else:
            self._push(now, AT_SERVER if direction == UP else AT_WORKER, worker, notes)

    def _frames(self, direction: str, notes: list[Note]) -> list[list[Note]]:
        if direction == DOWN:
            return [notes]
        if self.job.layered:
            return [[note] for note in notes]
        return apart(notes) if self.job.eager else [notes]

    def _push(self, at: float, phase: int, worker: int, content: Any) -> None:
        self.sequence += 1
        heappush(self.heap, Event(at, phase, worker, self.sequence, content))

    def _log(
        self, worker: int, iteration: int, phase: str, begin_s: float, end_s: float, waits_for: int = NO_WORKER
    ) -> None:
        self.rows.append((worker, iteration, NUMBER[phase], begin_s, end_s, waits_for))
