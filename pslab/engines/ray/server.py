"""The actors of the servers: the deciding server has the server's driver, the others carry out its orders."""

from __future__ import annotations

import math
import queue
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import cloudpickle
import numpy as np
import torch

from pslab.engines.experiment.job import Job
from pslab.engines.experiment.shared_memory import Arena
from pslab.engines.experiment.wire import WHOLE, Frame, Go, Stop
from pslab.engines.ray.contents import Content, Contents, ObjectArena
from pslab.engines.server.clock import MESSAGE, WallClock
from pslab.engines.server.driver import ServerDriver, Transport
from pslab.engines.server.ledger import Ledger, held_slices
from pslab.engines.server.push_accounts import PushAccounts
from pslab.engines.server.shard_modes import shard_of
from pslab.engines.server.store import Details, Finished, carry_out
from pslab.engines.server.worker_status import doings
from pslab.engines.worker.tensors import NOTHING, ZERO
from pslab.protocol.messages import Pull, Push, Weights
from pslab.protocol.server import Discard, Reply, Step
from pslab.protocol.server import Server as Machine
from pslab.protocol.store import Order, Snapshot, StoreMachine
from pslab.tensors.workload.torchvision_ops import with_operators

NEWS_S = 0.2  # between two reports to the caller
News = dict[str, Any]
Brought = tuple[Push | Pull, Content]  # a message and its arrays
STOP: tuple[Frame, list[Content]] = [Stop(0)], [[]]


class Member:
    """The base class of all actors; it sets up an actor's memory for each run."""

    def prepare(
        self, folders: Sequence[str], job: bytes, data: np.ndarray, weights: np.ndarray, *arguments: Any
    ) -> None:
        """Load a run's Job and its initial weights into this actor's memory, then call `begin` with `arguments`."""
        sys.path += [folder for folder in folders if folder not in sys.path]
        torch.set_num_threads(1)  # the bits of sums depend on the number of threads
        self.data, self.arena = ObjectArena(data), Arena()
        given: Job = with_operators(partial(cloudpickle.loads, job))
        self.job, layout = given.on(self.data), given.layout
        self.arena.reserve(layout.end)
        self.arena.put(layout.server, torch.from_numpy(weights.copy()))
        self.begin(*arguments)

    def begin(self, *arguments: Any) -> None:
        """Initialize this actor's part in the prepared run."""
        raise NotImplementedError


class OtherServer(Member):
    """A server that carries out the orders of the deciding server on its own ranges."""

    def begin(self, server: int) -> None:
        """Initialize the server with this number for the prepared run."""
        self._contents, self._clock = Contents(self.job, self.arena), WallClock()
        self._server, self._shard = server, shard_of(self.job, self.arena)
        self._clock.start()

    def carry_out(self, order: Order, details: Details, brought: Sequence[Brought]) -> tuple[int, float, Content]:
        """Carry out an order; return the bytes of a reply (0 for other orders), the seconds that the order took, and
        the arrays of the reply or snapshot."""
        for message, content in brought:
            self._contents.write(message, content)
        if isinstance(order, Snapshot):
            pairs = held_slices(self.job, self._server)
            return 0, 0.0, [self._shard.weights[source].numpy().copy() for _, source in pairs]
        took = carry_out(order, details, self._server, self.job, self._shard, self._clock, lambda index, server: None)
        size_bytes, begin_s, done_s = took
        return size_bytes, done_s - begin_s, self._contents.read(answer(order, size_bytes))

    def held(self) -> list[np.ndarray]:
        """Return this server's weights, one array for each slice of the model that it has."""
        return [self._shard.weights[piece].numpy() for piece in self.job.held[self._server]]


def answer(order: Order, size_bytes: int) -> Weights | None:
    """Return the Weights message of a reply with this size in bytes; None for any other order."""
    if not isinstance(order, Reply):
        return None
    worker, index, iteration, *_ = order.pull
    return Weights(worker, index, iteration, order.version, order.pull.payload._replace(size_bytes=size_bytes))


class StoreActor:
    """The deciding server's queue of orders to another server. `done` is called, in any thread, when an order may be
    done; `deliver` gets a completed order and the arrays that came back."""

    def __init__(
        self, actor: Any, clock: WallClock, brought: dict[Any, Content], done: Callable[[StoreActor], None],
        deliver: Callable[[Order, Content], None],
    ) -> None:  # fmt: skip
        self._actor, self._clock, self._brought, self._done, self._deliver = actor, clock, brought, done, deliver
        self._machine, self._calls = StoreMachine(), deque[Any]()

    def hand(self, order: Order, details: Details) -> None:
        self._machine.order(order, details)
        if isinstance(order, Discard):
            self._brought.pop(named(order.push), None)
        messages = order.pushes if isinstance(order, Step) else (order.pull,) if isinstance(order, Reply) else ()
        brought = [(message, self._brought.pop(named(message), [])) for message in messages]
        sent = details._replace(computing=list(details.computing), times=(), led_by=None)
        self._calls.append(call := self._actor.carry_out.remote(order, sent, brought))
        call.future().add_done_callback(lambda future: self._done(self))

    def finish(self) -> Iterator[Finished]:
        while self._calls:
            yield self.take()

    def owes(self, worker: int) -> bool:
        """Whether a reply to this worker is ordered and not done."""
        return any(isinstance(order, Reply) and order.pull.worker == worker for order, *_ in self._machine.orders)

    @property
    def busy(self) -> bool:
        """Whether some order is not done yet."""
        return bool(self._calls)

    def take(self) -> Finished:
        """Wait for the oldest order and return its outcome: it counts as done now, and as begun its duration before."""
        import ray

        size_bytes, spent_s, content = ray.get(self._calls.popleft())
        done, now = self._machine.done(), self._clock.now()
        self._deliver(done.order, content)
        return Finished.of(done, size_bytes, now - spent_s, now)


def named(message: Push | Pull) -> tuple[Any, ...]:
    """Return the key of a message in a run: its type, worker, range and iteration."""
    return type(message), *message[:3]


class DecidingServer(Member, Transport):
    """The deciding server, which also has ranges of its own; it is its driver's transport."""

    def begin(self, others: Sequence[Any]) -> None:
        """Initialize this server for the prepared run, with the actors of the other servers."""
        job, run = self.job, self.job.run
        self._contents, self._clock, self._inbox = Contents(job, self.arena), WallClock(), queue.SimpleQueue[Any]()
        self._boxes: dict[tuple[int, int], queue.SimpleQueue[Any]] = {}  # (worker, generation): frames for it
        self._lives, self._turns = [0] * run.workers, [0] * run.workers  # per worker: generation; next call's number
        self._early: dict[tuple[int, int], Any] = {}  # (worker, call's number): calls that overtook earlier calls
        self._phases, self._snapshots, self._made = list[Any](), Arena(), list[News]()
        self.deaths, self.lives = list[News](), list[News]()
        self._brought: dict[Any, Content] = {}  # key of a message: arrays for another server
        self._came: Content = []  # the arrays of another server's reply
        self._whole: dict[int, tuple[int, Content]] = {}  # range: version and arrays of the last whole weights sent
        self._shard = shard_of(job, self.arena)
        ledger = Ledger(job, self._shard.weights, self._snapshots, self._keep_snapshot)
        self._machine = Machine(range(run.workers), len(job.parts), job.sync)
        self._stores = [StoreActor(actor, self._clock, self._brought, self._done, partial(self._take, server))
                        for server, actor in enumerate(others, 1)]  # fmt: skip
        self._driver = ServerDriver(job, self._machine, PushAccounts(job, ledger), self._shard, self._clock, self,
                                    others=self._stores)  # fmt: skip

    # --- called by other actors and by the caller's process, each call in a thread of its own -----------------------

    def exchange(self, worker: int, generation: int, number: int, *sent: Any) -> list[tuple[Frame, list[Content]]]:
        """Receive messages of a worker; wait until there are messages for this worker, and return them."""
        self._inbox.put((self._arrive, worker, generation, number, sent))
        box, answers = self._box(worker, generation), list[Any]()
        while not answers or not box.empty():
            answers.append(box.get())
            if answers[-1] is STOP:
                box.put(STOP)  # for the worker's other calls
                break
        return answers

    def order(self, verb: str, *arguments: Any) -> None:
        """Let the run's own thread call `stop`, `lose` or `succeed`."""
        self._inbox.put((getattr(self, verb), *arguments))

    def held(self) -> list[np.ndarray]:
        """Return this server's weights, one array for each slice of the model that it has."""
        return [self._shard.weights[piece].numpy() for piece in self.job.held[0]]

    # --- the run's own thread ---------------------------------------------------------------------------------------

    def run(self) -> Iterator[News]:
        """Serve until the run ends; yield news for the caller's process."""
        try:
            yield from self._serve()
        except Exception:  # a user's policy may raise anything
            yield {"failed": traceback.format_exc(), "iteration": self._machine.base}
        for worker, generation in enumerate(self._lives):
            self._box(worker, generation).put(STOP)

    def _serve(self) -> Iterator[News]:
        clock, driver, limit_s = self._clock, self._driver, self.job.run.seconds or math.inf
        clock.start()
        driver.start()
        for worker in range(self.job.run.workers):
            self._post(worker, [Go(clock.now())])
        told_s = 0.0
        while not driver.outcome:
            try:
                act, *arguments = self._inbox.get(timeout=max(0.0, min(NEWS_S, limit_s - clock.now())))
                act(*arguments)
            except queue.Empty:
                pass
            if clock.now() >= limit_s:
                self.stop("seconds")
            if self._made or clock.now() - told_s >= NEWS_S:
                told_s = clock.now()
                yield from self._news()
        ended_s = clock.now()
        driver.keep_last(ended_s)
        driver.accounts.ledger.close(driver.accounts.applied, ended_s)
        yield from self._news()
        lives = {"lives": self.lives} if self.lives else {}
        yield {"facts": {**driver.facts(), "costs": clock.costs(), "deaths": self.deaths, **lives}}

    def stop(self, outcome: str) -> None:
        """End the run, unless it has ended."""
        if not self._driver.outcome:
            self._driver.end(outcome, self._clock.now())

    def lose(self, worker: int, how: str, replaced: bool) -> None:
        """Handle the end of a worker's process. If it is not `replaced`, end the run or continue without the worker."""
        self._box(worker, self._lives[worker]).put(STOP)  # ends the calls of this process that wait here
        self._lives[worker] += 1
        self._turns[worker] = 0
        body = {"worker": worker, "iteration": self._machine.clock(worker), "seconds": self._clock.now(), "how": how}
        if replaced:
            self.lives.append({**body, "joined": None, "kept": None})
        else:
            self.deaths.append(body)
            if self.job.run.on_death == "stop" or len(self._machine.workers) == 1:
                self.stop("died")
            else:
                self._driver.leave(worker)

    def succeed(self, worker: int) -> None:
        """Start a worker's new process, as soon as the other servers owe its predecessor no reply."""
        if any(store.owes(worker) for store in self._stores):
            self._inbox.put((self.succeed, worker))
            return
        iteration, frame = self._driver.succeed(worker)
        row = next(row for row in reversed(self.lives) if row["worker"] == worker)
        row.update(joined=iteration, kept=ZERO if self.job.layout.memories else NOTHING)
        self._post(worker, [Go(self._clock.now(), iteration)])
        self._driver.receive(frame)

    def _arrive(self, worker: int, generation: int, number: int, sent: Any) -> None:
        if generation != self._lives[worker]:
            return
        self._early[worker, number] = sent
        while (next_sent := self._early.pop((worker, self._turns[worker]), None)) is not None:
            self._turns[worker] += 1
            frame, contents, phases = next_sent
            self._phases.extend(phases)
            for message, content in zip(frame, contents, strict=True):
                if isinstance(message, Push | Pull) and self.job.server_of[message.range]:
                    self._brought[named(message)] = content
                else:
                    self._contents.write(message, content)
            begin_s = self._clock.now()
            self._driver.receive(frame)
            self._clock.spend(MESSAGE, begin_s)

    def _done(self, store: StoreActor) -> None:
        self._inbox.put((self._finished, store))

    def _finished(self, store: StoreActor) -> None:
        if store.busy:
            self._driver.finished(store.take())

    def _take(self, server: int, order: Order, content: Content) -> None:
        """Take the arrays that another server returned with a completed order."""
        if isinstance(order, Snapshot):
            snapshot = self.job.layout.snapshot_in(self._snapshots, order.number)
            for (where, _), array in zip(held_slices(self.job, server), content, strict=True):
                snapshot[where] = torch.from_numpy(array)
        self._came = content

    # --- the driver's transport -------------------------------------------------------------------------------------

    def send(self, worker: int, frame: Frame, now: float) -> None:
        """Send weights or acknowledgements to a worker."""
        self._post(worker, frame)

    def _post(self, worker: int, frame: Frame) -> None:
        self._box(worker, self._lives[worker]).put((frame, [self._content(message) for message in frame]))

    def _content(self, message: Any) -> Content:
        """Return a message's arrays; whole weights of one version are put into the object store once."""
        if not isinstance(message, Weights):
            return self._contents.read(message)
        index, version = message.range, message.version
        if self.job.server_of[index]:
            return self._came
        if message.payload.size_bytes != WHOLE or not self.job.layout.in_place:
            return self._contents.read(message)
        if self._whole.get(index, (None,))[0] != version:
            self._whole[index] = version, self._contents.read(message)
        return self._whole[index][1]

    def _box(self, worker: int, generation: int) -> queue.SimpleQueue[Any]:
        return self._boxes.setdefault((worker, generation), queue.SimpleQueue())

    # --- news for the caller's process --------------------------------------------------------------------------------

    def _keep_snapshot(self, body: News) -> None:
        weights = self.job.layout.snapshot_in(self._snapshots, body["index"]).numpy().copy()
        self._made.append({"snapshot": body, "weights": weights.view(np.uint8)})

    def _news(self) -> Iterator[News]:
        made, self._made = self._made, []
        yield from (item for item in made)  # Ray needs a generator here, which a list's iterator is not
        phases, self._phases = self._phases, []
        workers = doings(self._machine, [False] * self.job.run.workers)
        yield {"pushes": self._machine.gradients, "seconds": self._clock.now(), "workers": workers, "phases": phases,
               "tables": self._driver.accounts.ledger.take_changes()}  # fmt: skip
