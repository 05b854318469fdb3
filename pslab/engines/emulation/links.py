"""Links as fluids: messages of one worker and direction go one behind the other; messages of several workers share a
server's link in equal parts (max-min fairness). Pure: every instant is handed in, so every engine can use it.

Which of a worker's waiting messages goes next is first come, first served, or a chooser's choice. A choice is made at
the end of an instant, when all that becomes ready in it is known.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from heapq import heappop, heappush
from operator import itemgetter
from typing import Any, NamedTuple, Protocol

from pslab.config.cluster import Cluster

UP, DOWN = "up", "down"
INSTANTS = 4096  # that a lane keeps for ports on which nothing begins or ends meanwhile


class Chooser(Protocol):
    """Who chooses among the messages that wait for a worker's link."""

    def pick(self, worker: int, waiting: list[Any]) -> int:
        """The place of the next one among these, the oldest first."""

    def admits(self, under_way_bytes: float, size_bytes: float) -> bool:
        """Whether one more may go while so much of its worker's is under way."""

    @property
    def acknowledged(self) -> bool:
        """Whether what was sent is under way until its sender has heard that it arrived, and not only until it has
        left."""


class Parcel(NamedTuple):
    """A message on its way: its size, its server, and for how long it flies once it has left."""

    size_bytes: float
    message: Any
    server: int
    flies_s: float


class Port:
    """One direction of a server's link. `served` is what each flow on it has got since the beginning, in bytes."""

    def __init__(self, number: int, byte_s: float) -> None:
        self.number, self.byte_s, self.served, self.updated_s = number, byte_s, 0.0, 0.0
        self.passed = 0  # of the instants that its lane has passed, those until which it has been served
        self.rate, self.end_s = math.inf, math.inf  # of each flow, in bytes a second; when the first one ends
        self.flows: list[tuple[float, int, int, Parcel]] = []  # served when it ends, sequence, worker, what flows

    def share(self, worker_byte_s: float) -> None:
        """The flows have changed: what each of them gets, and when the first one ends."""
        if not self.flows:
            self.end_s = math.inf
            return
        self.rate = min(worker_byte_s, self.byte_s / len(self.flows))
        self.end_s = self.updated_s + max(0.0, self.flows[0][0] - self.served) / self.rate

    def advance(self, now: float) -> None:
        """Serve until an instant before which no flow ends."""
        if now > self.updated_s:
            if self.flows and self.rate < math.inf:
                self.served += self.rate * (now - self.updated_s)
            self.updated_s = now

    def follow(self, instants: Sequence[float]) -> None:
        """Serve until each of these instants, of which some have not been passed, as often as the lane came to one."""
        if self.passed == len(instants):
            return
        if self.flows and self.rate < math.inf:
            served, updated_s, rate = self.served, self.updated_s, self.rate
            for at in instants[self.passed :]:
                if at > updated_s:
                    served += rate * (at - updated_s)
                    updated_s = at
            self.served, self.updated_s = served, updated_s
        else:
            self.updated_s = max(self.updated_s, instants[-1])
        self.passed = len(instants)


class Lane:
    """One direction of all links: a worker's messages go one behind the other, whatever their servers."""

    def __init__(
        self, worker_byte_s: float, server_byte_s: float, latency_s: float, overhead_s: float = 0.0,
        changes: Mapping[float, float] | None = None, servers: int = 1,
    ) -> None:  # fmt: skip
        self.worker_byte_s, self.latency_s = worker_byte_s, latency_s
        self.overhead_bytes = overhead_s * worker_byte_s if overhead_s else 0.0
        self.ports = [Port(number, server_byte_s) for number in range(servers)]
        self.first = self.ports[0]  # the one whose first flow ends first
        self.ends: list[tuple[float, int]] = []  # when a port's first flow ends, and its number; some no longer so
        self.instants: list[float] = []  # that it has passed, since all ports had been served until one
        self.updated_s, self.sequence = 0.0, 0
        self.waiting: dict[int, deque[Parcel]] = {}  # per worker: what is behind its flow
        self.flying: list[tuple[float, int, Any]] = []  # sent whole, arriving at an instant
        self.changes = deque(sorted((changes or {}).items()))  # instants, and the workers' bytes a second from then on

    def send(self, worker: int, parcel: Parcel, now: float) -> None:
        """A message of this worker is ready to go at `now`, or as soon as the lane has got that far."""
        self._serve_until(now)
        self._enter(worker, parcel)

    def fly(self, parcel: Parcel, now: float) -> None:
        """A message of no size: it waits for no other, and takes the latency alone."""
        self._serve_until(now)
        self.sequence += 1
        heappush(self.flying, (now + parcel.flies_s, self.sequence, parcel.message))

    def next_s(self) -> float:
        """The instant of the next arrival, as far as is known; infinity if nothing is on its way."""
        end_s = self.first.end_s + self.latency_s  # or later: a note flies longer, but what is behind it may not
        if self.changes and self.first.flows:
            end_s = min(end_s, self.changes[0][0])  # what is on its way may come sooner than it seems now
        return min(end_s, self.flying[0][0]) if self.flying else end_s

    def arrived(self, now: float) -> list[tuple[float, Any]]:
        """What has arrived by `now`, in order: (instant, message)."""
        self._serve_until(now)
        done = []
        while self.flying and self.flying[0][0] <= now:
            at, _, message = heappop(self.flying)
            done.append((at, message))
        return done

    def choice_s(self) -> float:
        """The instant of a choice that is to be made; infinity if there is none."""
        return math.inf

    def choose(self, now: float) -> None:
        """All that becomes ready at this instant is known: make the choices of it."""

    def _enter(self, worker: int, parcel: Parcel) -> None:
        behind = self.waiting.get(worker)
        if behind is not None:
            behind.append(parcel)
            return
        self.waiting[worker] = deque()
        self._begin(worker, parcel)

    def _ended(self, worker: int, parcel: Parcel) -> None:
        """A worker's message is sent whole; its next one follows."""
        behind, port = self.waiting[worker], self.ports[parcel.server]
        if not behind:
            del self.waiting[worker]
            self._share(port)
            return
        self._begin(worker, follows := behind.popleft())
        if follows.server != parcel.server:
            self._share(port)

    def _begin(self, worker: int, parcel: Parcel) -> None:
        self.sequence += 1
        port = self.ports[parcel.server]
        port.follow(self.instants)
        port.advance(self.updated_s)
        target = port.served + parcel.size_bytes + self.overhead_bytes
        heappush(port.flows, (target, self.sequence, worker, parcel))
        self._share(port)

    def _share(self, port: Port) -> None:
        port.share(self.worker_byte_s)
        if len(self.ports) == 1:
            return
        ends = self.ends
        if port.end_s < math.inf:
            heappush(ends, (port.end_s, port.number))
        while ends and self.ports[ends[0][1]].end_s != ends[0][0]:
            heappop(ends)
        self.first = self.ports[ends[0][1] if ends else 0]

    def _serve_until(self, now: float) -> None:
        while self.changes and self.changes[0][0] <= now:
            at, byte_s = self.changes.popleft()
            self._serve(at)
            self.worker_byte_s = byte_s
            self._gather()
            for port in self.ports:
                self._share(port)
        self._serve(now)

    def _serve(self, now: float) -> None:
        while self.first.end_s <= now:
            self._end_one()
        self._advance(now)

    def _end_one(self) -> None:
        port = self.first
        port.follow(self.instants)
        target, sequence, worker, parcel = heappop(port.flows)
        self.updated_s = max(port.end_s, self.updated_s)
        port.served, port.updated_s = max(target, port.served), self.updated_s
        heappush(self.flying, (self.updated_s + parcel.flies_s, sequence, parcel.message))
        self._ended(worker, parcel)

    def _advance(self, now: float) -> None:
        if now > self.updated_s:
            self.instants.append(now)
            self.updated_s = now
            if len(self.instants) > INSTANTS:
                self._gather()

    def _gather(self) -> None:
        """Serve every port until the last instant that has been passed."""
        for port in self.ports:
            port.follow(self.instants)
            port.passed = 0
        self.instants.clear()


class ChosenLane(Lane):
    """One direction on which a worker's next message is chosen, whenever more of its may be under way."""

    def __init__(self, chooser: Chooser, *speeds: Any) -> None:
        super().__init__(*speeds)
        self._chooser = chooser
        self._pools: dict[int, list[Parcel]] = {}  # per worker: what is ready and not chosen
        self._under_way: dict[int, float] = {}  # per worker: bytes
        self._open: dict[int, None] = {}  # workers that may have one more, in the order in which that came to be
        self._heard: list[tuple[float, int, float]] = []  # when a worker hears that so many bytes have arrived

    def choice_s(self) -> float:
        heard_s = self._heard[0][0] if self._heard else math.inf
        return min(self.updated_s, heard_s) if self._open else heard_s

    def choose(self, now: float) -> None:
        self._serve_until(now)
        while self._heard and self._heard[0][0] <= now:
            _, worker, size_bytes = heappop(self._heard)
            self._under_way[worker] -= size_bytes
            self._open[worker] = None
        opened, self._open = self._open, {}
        for worker in opened:
            self._choose_for(worker)

    def _choose_for(self, worker: int) -> None:
        pool, under_way = self._pools.get(worker, []), self._under_way.get(worker, 0.0)
        while fitting := [parcel for parcel in pool if self._chooser.admits(under_way, parcel.size_bytes)]:
            chosen = fitting[self._chooser.pick(worker, [parcel.message for parcel in fitting])]
            pool.remove(chosen)
            under_way += chosen.size_bytes
            super()._enter(worker, chosen)
        self._under_way[worker] = under_way

    def _enter(self, worker: int, parcel: Parcel) -> None:
        self._pools.setdefault(worker, []).append(parcel)
        self._open[worker] = None

    def _ended(self, worker: int, parcel: Parcel) -> None:
        super()._ended(worker, parcel)
        if self._chooser.acknowledged:
            heappush(self._heard, (self.updated_s + 2 * self.latency_s, worker, parcel.size_bytes))
        else:
            self._under_way[worker] -= parcel.size_bytes
            self._open[worker] = None

    def _serve(self, now: float) -> None:
        """What was not chosen at the end of an instant is chosen before time goes on."""
        while (next_s := min(self.choice_s(), self.first.end_s)) < now:
            if self.choice_s() <= next_s and self.first.end_s > next_s:
                self._advance(next_s)
                self.choose(next_s)
            else:
                self._end_one()
        super()._serve(now)


class Network:
    """Both directions between the workers and the servers; with half duplex they are one lane.

    What is sent to a server other than 0, which decides, has arrived when that one's note of it has, a latency later.
    Nothing happens before `soonest_s`.
    """

    soonest_s = math.inf

    def __init__(self, cluster: Cluster, chooser: Chooser | None = None, servers: int = 1) -> None:
        def byte_s(bit_s: float | None) -> float:
            return math.inf if bit_s is None else bit_s / 8

        def lane() -> Lane:
            changes = {at: bit_s / 8 for at, bit_s in cluster.bandwidth_at.items()}
            speeds = (byte_s(cluster.bandwidth_bit_s), byte_s(cluster.server_bandwidth_bit_s), cluster.latency_s,
                      cluster.overhead_s, changes, servers)  # fmt: skip
            return Lane(*speeds) if chooser is None else ChosenLane(chooser, *speeds)

        up = lane()
        self._lanes = {UP: up, DOWN: up if cluster.duplex == "half" else lane()}
        self._each = tuple({id(lane): lane for lane in self._lanes.values()}.values())
        self._latency_s, self._noted_s = cluster.latency_s, 2 * cluster.latency_s
        self._chooses = chooser is not None
        self._next_s = self._choice_s = math.inf

    def send(self, direction: str, worker: int, size_bytes: float, message: Any, now: float, server: int = 0) -> None:
        """A message of `size_bytes` between a server and `worker` is ready to go at `now`."""
        self._lanes[direction].send(worker, self._parcel(direction, size_bytes, message, server), now)
        self._look()

    def fly(self, direction: str, message: Any, now: float, server: int = 0) -> None:
        """A message of no size, which waits for no other and takes the latency alone."""
        self._lanes[direction].fly(self._parcel(direction, 0.0, message, server), now)
        self._look()

    def pass_by(self, direction: str, message: Any, now: float, server: int = 0) -> None:
        """A message between a worker and the server on its machine passes no link. The note of it to server 0 does."""
        parcel = self._parcel(direction, 0.0, message, server)
        parcel = parcel._replace(flies_s=parcel.flies_s - self._latency_s)
        self._lanes[direction].fly(parcel, now)
        self._look()

    def _parcel(self, direction: str, size_bytes: float, message: Any, server: int) -> Parcel:
        flies_s = self._noted_s if server and direction == UP else self._latency_s
        return Parcel(size_bytes, (direction, message), server, flies_s)

    def next_s(self) -> float:
        """The instant of the next arrival; infinity if nothing is on its way."""
        return self._next_s

    def choice_s(self) -> float:
        """The instant of a choice that is to be made at its end; infinity if there is none."""
        return self._choice_s

    def choose(self, now: float) -> None:
        """Make the choices of this instant."""
        for lane in self._each:
            if lane.choice_s() <= now:
                lane.choose(now)
        self._look()

    def arrived(self, now: float) -> list[tuple[float, str, Any]]:
        """Everything that has arrived by `now`: (instant, direction, message), in order of the instants."""
        if now < self._next_s and now <= self._choice_s:
            return []
        done = [(at, direction, message) for lane in self._each for at, (direction, message) in lane.arrived(now)]
        self._look()
        return sorted(done, key=_instant) if len(done) > 1 else done

    def _look(self) -> None:
        self._next_s = min([lane.next_s() for lane in self._each])
        self._choice_s = min([lane.choice_s() for lane in self._each]) if self._chooses else math.inf
        self.soonest_s = min(self._next_s, self._choice_s)


_instant = itemgetter(0)
