"""A fluid model of links: concurrent messages share the bandwidth of a link.

The messages of one worker, server and direction form a connection, and are sent in sequence. All connections send at
the same time. The rate of a message is the smaller of two shares: the worker's bandwidth divided by the number of
servers with which it exchanges at the moment, and the server's bandwidth divided by the number of such workers. If
workers share the link of a host, its bandwidth is divided by the number of all their connections. If all links are
equally busy, these are the rates of max-min fairness. Otherwise a part of a link may stay unused that max-min fairness
would assign. In return, the start or end of a message changes rates only at its own two ends.

The messages that wait for a connection are sent in order of arrival, or as a chooser picks them. A choice is made at
the end of an instant, when all messages that become ready in it are known. The model reads no clock: every method is
given the instant, so every engine can use it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from heapq import heappop, heappush
from operator import itemgetter
from typing import Any, NamedTuple, Protocol

from pslab.config.cluster import Cluster

UP, DOWN = "up", "down"
Line = tuple[int, int]  # a connection: its worker and its server


class Chooser(Protocol):
    """Picks the next of the messages that wait for a worker's connection to a server."""

    def pick(self, worker: int, waiting: list[Any]) -> int:
        """Return the position in `waiting`, which has the oldest message first, of the message to send next."""

    def admits(self, under_way_bytes: float, size_bytes: float) -> bool:
        """Whether a message of `size_bytes` may be sent while `under_way_bytes` are under way on its connection."""

    @property
    def acknowledged(self) -> bool:
        """Whether a message is under way until its sender gets the acknowledgement, and not only until it is sent."""


class Parcel(NamedTuple):
    """A message to send over a link."""

    size_bytes: float
    message: Any
    server: int
    flies_s: float  #: the seconds from its last byte's departure to its arrival
    one_way_s: float  #: the latency of the worker's link


class Flow:
    """A message that is being sent, at the rate of one of its two ports."""

    def __init__(self, line: Line, parcel: Parcel, sequence: int) -> None:
        self.line, self.parcel, self.sequence = line, parcel, sequence
        self.port: Port | None = None
        self.target = 0.0  # the port's `served` at which this flow ends
        self.moves = 0  # port changes and the end; an entry in Port.flows with a smaller number is obsolete


class Port:
    """A direction of a server's link; or of a host's, with several servers, or if hosts' links differ or are shared.

    `served` counts the bytes that a flow at the port's rate would have sent since the start.
    """

    def __init__(self, number: int, byte_s: float) -> None:
        self.number, self.byte_s, self.served, self.updated_s = number, byte_s, 0.0, 0.0
        self.rate, self.end_s = math.inf, math.inf  # of each flow, in bytes a second; when its first flow ends
        self.crossing: dict[Line, Flow] = {}  # all flows on this link, also those at the other end's rate
        self.most: float = 1  # with more flows than this on a host's link, its share is smaller than this server's
        self.flows: list[tuple[float, int, int, Flow]] = []  # heap: target, sequence, moves; some are obsolete

    def take(self, flow: Flow, left_bytes: float, now: float) -> None:
        """Send the remaining `left_bytes` of a flow at this port's rate from `now` on."""
        self.advance(now)
        flow.port, flow.target, flow.moves = self, self.served + left_bytes, flow.moves + 1
        heappush(self.flows, (flow.target, flow.sequence, flow.moves, flow))

    def share(self, worker_byte_s: float) -> None:
        """Compute the rate of the flows, and the end of the first one, after the flows have changed."""
        flows = self.flows
        while flows and flows[0][3].moves != flows[0][2]:
            heappop(flows)
        if not flows:
            self.end_s = math.inf
            return
        self.rate = min(worker_byte_s, self.byte_s / len(self.crossing))
        self.end_s = self.updated_s + max(0.0, flows[0][0] - self.served) / self.rate

    def advance(self, now: float) -> None:
        """Count the bytes served until `now`; no flow may end before."""
        if now > self.updated_s:
            if self.flows and self.rate < math.inf:
                self.served += self.rate * (now - self.updated_s)
            self.updated_s = now


class Lane:
    """A direction of all links."""

    def __init__(
        self, worker_byte_s: float, server_byte_s: float, latency_s: float, overhead_s: float = 0.0,
        changes: Mapping[float, float] | None = None, servers: int = 1, own_byte_s: Mapping[int, float] | None = None,
        per_host: int = 1,
    ) -> None:  # fmt: skip
        self.worker_byte_s, self.latency_s, self.own_byte_s = worker_byte_s, latency_s, own_byte_s or {}
        # with one server and an equal link for each worker, the server's ports have all flows, at the same rate
        self.one_port = servers == 1 and per_host == 1 and not self.own_byte_s
        self.overhead_s, self.overhead_bytes = overhead_s, overhead_s * worker_byte_s if overhead_s else 0.0
        self.ports = {number: Port(number, server_byte_s) for number in range(servers)}  # hosts' have later numbers
        self.servers, self.per_host = servers, per_host
        self.changed: dict[int, None] = {}  # ports whose flows have changed at this instant
        self.first = self.ports[0]  # the port whose flow ends next, if no port has changed
        self.ends: list[tuple[float, int]] = []  # heap: the end of a port's first flow, its number; some are obsolete
        self.updated_s, self.sequence = 0.0, 0
        self.waiting: dict[Line, deque[Parcel]] = {}  # parcels behind the flow of a connection
        self.flying: list[tuple[float, int, Any]] = []  # heap: instant of arrival, sequence, message
        self.changes = deque(sorted((changes or {}).items()))  # (instant, the workers' bytes a second from then on)

    def send(self, worker: int, parcel: Parcel, now: float) -> None:
        """Send a message of this worker at `now`, or once its connection is free."""
        self._serve_until(now)
        self._enter(worker, parcel)

    def fly(self, parcel: Parcel, now: float) -> None:
        """Send a message without size: it waits for no other message, and takes only the latency."""
        self._serve_until(now)
        self.sequence += 1
        heappush(self.flying, (now + parcel.flies_s, self.sequence, parcel.message))

    def next_s(self) -> float:
        """Return a lower bound of the instant of the next arrival; infinity if nothing is under way."""
        end_s = self._end_s() + self.latency_s  # or later, if this parcel flies longer
        if self.changes and self.first.flows:
            end_s = min(end_s, self.changes[0][0])  # a larger bandwidth would make the arrival earlier
        return min(end_s, self.flying[0][0]) if self.flying else end_s

    def arrived(self, now: float) -> list[tuple[float, Any]]:
        """Remove and return the messages that have arrived by `now`, as (instant, message) in order."""
        self._serve_until(now)
        done = []
        while self.flying and self.flying[0][0] <= now:
            at, _, message = heappop(self.flying)
            done.append((at, message))
        return done

    def choice_s(self) -> float:
        """Return the instant of the next choice; infinity if there is none."""
        return math.inf

    def choose(self, now: float) -> None:
        """Make the choices that are due by `now`, when all messages of this instant are known."""

    def _enter(self, worker: int, parcel: Parcel) -> None:
        line = worker, parcel.server
        behind = self.waiting.get(line)
        if behind is not None:
            behind.append(parcel)
            return
        self.waiting[line] = deque()
        self._begin(line, parcel, self.ports[parcel.server])

    def _ended(self, flow: Flow, port: Port) -> None:
        """Start the next message of a connection, at the port of the message that has ended."""
        behind = self.waiting[flow.line]
        if behind:
            self._begin(flow.line, behind.popleft(), port)
            return
        del self.waiting[flow.line]
        for number in self._ports(flow.line):
            del self.ports[number].crossing[flow.line]
            self.changed[number] = None

    def _begin(self, line: Line, parcel: Parcel, port: Port) -> None:
        self.sequence += 1
        flow = Flow(line, parcel, self.sequence)
        for number in self._ports(line):
            if number not in self.ports:
                self.ports[number] = Port(number, self.own_byte_s.get(line[0], self.worker_byte_s))
            self.ports[number].crossing[line] = flow
            self.changed[number] = None
        own_byte_s = self.own_byte_s.get(line[0])
        overhead_bytes = self.overhead_bytes if own_byte_s is None else self.overhead_s * own_byte_s
        port.take(flow, parcel.size_bytes + overhead_bytes, self.updated_s)

    def _ports(self, line: Line) -> list[int]:
        """Return the numbers of a connection's ports: the server's, and the host's if it counts."""
        worker, server = line
        return [server] if self.one_port else [server, self.servers + worker // self.per_host]

    def _end_s(self) -> float:
        if self.changed:
            self._share()
        return self.first.end_s

    def _share(self) -> None:
        changed = [self.ports[number] for number in self.changed]
        for port in changed:
            port.advance(self.updated_s)
        if not self.one_port:
            self._move(changed)
        limit_byte_s = math.inf if self.own_byte_s else self.worker_byte_s  # _move has looked at each worker's link
        for number in self.changed:
            port = self.ports[number]
            port.share(limit_byte_s)
            if port.end_s < math.inf:
                heappush(self.ends, (port.end_s, number))
        self.changed = {}
        while self.ends and self.ports[self.ends[0][1]].end_s != self.ends[0][0]:
            heappop(self.ends)
        self.first = self.ports[self.ends[0][1] if self.ends else 0]

    def _move(self, changed: list[Port]) -> None:
        """Move each flow on these ports to that one of its two ports whose share is smaller."""
        flows = list[Flow]()
        for port in changed:
            if port.number < self.servers and not self.own_byte_s:
                shares = self.worker_byte_s * len(port.crossing) / port.byte_s if port.byte_s < math.inf else 0.0
                most = math.inf if self.worker_byte_s == math.inf else max(1, math.floor(shares))
                if most == port.most:
                    continue
                port.most = most
            flows += port.crossing.values()
        for flow in flows:
            here, (there, beyond) = flow.port, (self.ports[number] for number in self._ports(flow.line))
            if self.own_byte_s:  # links differ: compare the two shares, not numbers of flows
                narrow = beyond.byte_s / len(beyond.crossing) < there.byte_s / len(there.crossing)
            else:
                narrow = len(beyond.crossing) > there.most
            if narrow:
                there = beyond
            if here is not None and here is not there:
                here.advance(self.updated_s)
                there.take(flow, max(0.0, flow.target - here.served), self.updated_s)
                self.changed |= {here.number: None, there.number: None}

    def _serve_until(self, now: float) -> None:
        while self.changes and self.changes[0][0] <= now:
            at, byte_s = self.changes.popleft()
            self._serve(at)
            self.worker_byte_s = byte_s
            for port in self.ports.values():
                if port.number >= self.servers and (port.number - self.servers) * self.per_host not in self.own_byte_s:
                    port.byte_s = byte_s
            self.changed = dict.fromkeys(self.ports)
        self._serve(now)

    def _serve(self, now: float) -> None:
        while self._end_s() <= now:
            self._end_one()
        self._advance(now)

    def _end_one(self) -> None:
        port = self.first
        target, sequence, _, flow = heappop(port.flows)
        flow.moves += 1
        self.updated_s = max(port.end_s, self.updated_s)
        port.served, port.updated_s = max(target, port.served), self.updated_s
        self.changed[port.number] = None
        heappush(self.flying, (self.updated_s + flow.parcel.flies_s, sequence, flow.parcel.message))
        self._ended(flow, port)

    def _advance(self, now: float) -> None:
        if now > self.updated_s:
            self.updated_s = now
            if self.one_port:
                self.first.advance(now)


class ChosenLane(Lane):
    """A direction of all links with a chooser, which admits messages to each connection and picks the next."""

    def __init__(self, chooser: Chooser, *speeds: Any) -> None:
        super().__init__(*speeds)
        self._chooser = chooser
        self._pools: dict[Line, list[Parcel]] = {}  # ready parcels that are not chosen yet
        self._under_way: dict[Line, float] = {}  # bytes
        self._open: dict[Line, None] = {}  # connections that may admit another parcel, in order of their events
        self._heard: list[tuple[float, Line, float]] = []  # heap: instant of an acknowledgement, connection, bytes

    def choice_s(self) -> float:
        heard_s = self._heard[0][0] if self._heard else math.inf
        return min(self.updated_s, heard_s) if self._open else heard_s

    def choose(self, now: float) -> None:
        self._serve_until(now)
        while self._heard and self._heard[0][0] <= now:
            _, line, size_bytes = heappop(self._heard)
            self._under_way[line] -= size_bytes
            self._open[line] = None
        opened, self._open = self._open, {}
        for line in opened:
            self._choose_for(line)

    def _choose_for(self, line: Line) -> None:
        (worker, _), pool, under_way = line, self._pools.get(line, []), self._under_way.get(line, 0.0)
        while fitting := [parcel for parcel in pool if self._chooser.admits(under_way, parcel.size_bytes)]:
            chosen = fitting[self._chooser.pick(worker, [parcel.message for parcel in fitting])]
            pool.remove(chosen)
            under_way += chosen.size_bytes
            super()._enter(worker, chosen)
        self._under_way[line] = under_way

    def _enter(self, worker: int, parcel: Parcel) -> None:
        line = worker, parcel.server
        self._pools.setdefault(line, []).append(parcel)
        self._open[line] = None

    def _ended(self, flow: Flow, port: Port) -> None:
        super()._ended(flow, port)
        if self._chooser.acknowledged:
            heappush(self._heard, (self.updated_s + 2 * flow.parcel.one_way_s, flow.line, flow.parcel.size_bytes))
        else:
            self._under_way[flow.line] -= flow.parcel.size_bytes
            self._open[flow.line] = None

    def _serve(self, now: float) -> None:
        # make all choices of an instant before time advances
        while (next_s := min(self.choice_s(), self._end_s())) < now:
            if self.choice_s() <= next_s and self._end_s() > next_s:
                self._advance(next_s)
                self.choose(next_s)
            else:
                self._end_one()
        super()._serve(now)


class Network:
    """The links between workers and servers, in both directions.

    Both directions share one lane if the cluster has half duplex, or is a ring of workers. In a ring, a push or answer
    takes the latency of `hops` steps. A message to another server than the deciding server 0 counts as arrived one
    latency later, when its note reaches server 0. Before `soonest_s` nothing arrives and no choice is due.
    """

    soonest_s = math.inf

    def __init__(
        self, cluster: Cluster, chooser: Chooser | None = None, servers: int = 1, hops: int | None = None
    ) -> None:
        ring = hops is not None
        halves = 2 if ring and cluster.duplex == "half" else 1
        latency_s = cluster.latency_s * (1 if hops is None else hops)
        soonest_s = min((latency_s, *cluster.latency_of.values()))

        def byte_s(bit_s: float | None) -> float:
            return math.inf if bit_s is None else bit_s / 8 / halves

        def link_byte_s(bit_s: float | None) -> float:
            return byte_s(bit_s if hops is None else cluster.ring_bit_s(hops + 1, bit_s))

        def lane() -> Lane:
            changes = {at: link_byte_s(bit_s) for at, bit_s in cluster.bandwidth_at.items()}
            own_byte_s = {worker: byte_s(bit_s) for worker, bit_s in cluster.bandwidth_of.items()}
            speeds = (link_byte_s(cluster.bandwidth_bit_s), byte_s(cluster.server_bandwidth_bit_s), soonest_s,
                      cluster.overhead_s, changes, servers, own_byte_s, 1 if ring else cluster.per_host)  # fmt: skip
            return Lane(*speeds) if chooser is None else ChosenLane(chooser, *speeds)

        up = lane()
        self._lanes = {UP: up, DOWN: up if ring or cluster.duplex == "half" else lane()}
        self._each = tuple({id(lane): lane for lane in self._lanes.values()}.values())
        self._latency_s, self._latency_of = latency_s, cluster.latency_of
        self._inside_byte_s = byte_s(cluster.intra_host_bandwidth_bit_s)
        self._inside_until_s: dict[tuple[str, int, int], float] = {}  # by direction, worker and server of one host
        self._chooses = chooser is not None
        self._next_s = self._choice_s = math.inf

    def send(self, direction: str, worker: int, size_bytes: float, message: Any, now: float, server: int = 0) -> None:
        """Send a message of `size_bytes` between a server and `worker` at `now`."""
        self._lanes[direction].send(worker, self._parcel(direction, worker, size_bytes, message, server), now)
        self._look()

    def fly(self, direction: str, worker: int, message: Any, now: float, server: int = 0) -> None:
        """Send a message without size: it waits for no other message, and takes only the latency."""
        self._lanes[direction].fly(self._parcel(direction, worker, 0.0, message, server), now)
        self._look()

    def pass_by(
        self, direction: str, worker: int, size_bytes: float, message: Any, now: float, server: int = 0
    ) -> None:
        """Deliver a message between a worker and a server of one host: only the note to server 0 crosses a link."""
        parcel, inside = self._parcel(direction, worker, 0.0, message, server), (direction, worker, server)
        until_s = max(now, self._inside_until_s.get(inside, 0.0)) + size_bytes / self._inside_byte_s
        self._inside_until_s[inside] = until_s
        self._lanes[direction].fly(parcel._replace(flies_s=parcel.flies_s - parcel.one_way_s + (until_s - now)), now)
        self._look()

    def _parcel(self, direction: str, worker: int, size_bytes: float, message: Any, server: int) -> Parcel:
        one_way_s = self._latency_of.get(worker, self._latency_s)
        note_s = self._latency_s if server and direction == UP else 0.0  # between servers
        return Parcel(size_bytes, (direction, message), server, one_way_s + note_s, one_way_s)

    def next_s(self) -> float:
        """Return a lower bound of the instant of the next arrival; infinity if nothing is under way."""
        return self._next_s

    def choice_s(self) -> float:
        """Return the instant of the next choice; infinity if there is none."""
        return self._choice_s

    def choose(self, now: float) -> None:
        """Make the choices that are due by `now`."""
        for lane in self._each:
            if lane.choice_s() <= now:
                lane.choose(now)
        self._look()

    def arrived(self, now: float) -> list[tuple[float, str, Any]]:
        """Remove and return the messages that have arrived by `now`, as (instant, direction, message) in order."""
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
