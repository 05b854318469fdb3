"""Links as fluids: messages of one worker and direction go one behind the other; messages of several workers share the
server's link in equal parts (max-min fairness). Pure: every instant is handed in, so every driver can use it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from heapq import heappop, heappush
from typing import Any

from pslab.engines.cluster import Cluster

UP, DOWN = "up", "down"


class Lane:
    """One direction of the server's link. `served` is what each flow has got since the beginning, in bytes."""

    def __init__(
        self, worker_byte_s: float, server_byte_s: float, latency_s: float, changes: Mapping[float, float] | None = None
    ) -> None:
        self.worker_byte_s, self.server_byte_s, self.latency_s = worker_byte_s, server_byte_s, latency_s
        self.served, self.updated_s, self.sequence = 0.0, 0.0, 0
        self.rate, self.end_s = math.inf, math.inf  # of each flow, in bytes a second; when the first one ends
        self.flows: list[tuple[float, int, int, Any]] = []  # (served when it ends, sequence, worker, message)
        self.waiting: dict[int, deque[tuple[float, Any]]] = {}  # per worker: what is behind its flow
        self.flying: list[tuple[float, int, Any]] = []  # sent whole, arriving at an instant
        self.changes = deque(sorted((changes or {}).items()))  # instants, and the workers' bytes a second from then on

    def send(self, worker: int, size_bytes: float, message: Any, now: float) -> None:
        """A message of this worker is ready to go at `now`, or as soon as the lane has got that far."""
        self._serve_until(now)
        behind = self.waiting.get(worker)
        if behind is not None:
            behind.append((size_bytes, message))
            return
        self.waiting[worker] = deque()
        self._begin(worker, size_bytes, message)

    def next_s(self) -> float:
        """The instant of the next arrival, as far as is known; infinity if nothing is on its way."""
        end_s = self.end_s + self.latency_s
        if self.changes and self.flows:
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

    def _begin(self, worker: int, size_bytes: float, message: Any) -> None:
        self.sequence += 1
        heappush(self.flows, (self.served + size_bytes, self.sequence, worker, message))
        self._share()

    def _share(self) -> None:
        """The flows have changed: what each of them gets, and when the first one ends."""
        if not self.flows:
            self.end_s = math.inf
            return
        self.rate = min(self.worker_byte_s, self.server_byte_s / len(self.flows))
        self.end_s = self.updated_s + max(0.0, self.flows[0][0] - self.served) / self.rate

    def _serve_until(self, now: float) -> None:
        while self.changes and self.changes[0][0] <= now:
            at, byte_s = self.changes.popleft()
            self._serve(at)
            self.worker_byte_s = byte_s
            self._share()
        self._serve(now)

    def _serve(self, now: float) -> None:
        while self.end_s <= now:
            target, sequence, worker, message = heappop(self.flows)
            self.served, self.updated_s = max(target, self.served), max(self.end_s, self.updated_s)
            heappush(self.flying, (self.updated_s + self.latency_s, sequence, message))
            behind = self.waiting[worker]
            if behind:
                self._begin(worker, *behind.popleft())
            else:
                del self.waiting[worker]
                self._share()
        if now > self.updated_s:
            if self.flows and self.rate < math.inf:
                self.served += self.rate * (now - self.updated_s)
            self.updated_s = now


class Network:
    """Both directions between the workers and the server; with half duplex they are one lane."""

    def __init__(self, cluster: Cluster) -> None:
        def byte_s(bit_s: float | None) -> float:
            return math.inf if bit_s is None else bit_s / 8

        def lane() -> Lane:
            changes = {at: bit_s / 8 for at, bit_s in cluster.bandwidth_at.items()}
            own, shared = byte_s(cluster.bandwidth_bit_s), byte_s(cluster.server_bandwidth_bit_s)
            return Lane(own, shared, cluster.latency_s, changes)

        up = lane()
        self._lanes = {UP: up, DOWN: up if cluster.duplex == "half" else lane()}
        self._each = tuple({id(lane): lane for lane in self._lanes.values()}.values())
        self._next_s = math.inf

    def send(self, direction: str, worker: int, size_bytes: float, message: Any, now: float) -> None:
        """A message of `size_bytes` between the server and `worker` is ready to go at `now`."""
        self._lanes[direction].send(worker, size_bytes, (direction, message), now)
        self._look()

    def next_s(self) -> float:
        """The instant of the next arrival; infinity if nothing is on its way."""
        return self._next_s

    def arrived(self, now: float) -> list[tuple[float, str, Any]]:
        """Everything that has arrived by `now`: (instant, direction, message), in order of the instants."""
        if now < self._next_s:
            return []
        done = [(at, direction, message) for lane in self._each for at, (direction, message) in lane.arrived(now)]
        self._look()
        return sorted(done, key=_instant) if len(done) > 1 else done

    def _look(self) -> None:
        self._next_s = min([lane.next_s() for lane in self._each])


def _instant(entry: tuple[float, str, Any]) -> float:
    return entry[0]
