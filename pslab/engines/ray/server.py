"""The actors of the servers: the one that decides has the server's driver, the others apply what they are ordered."""

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
from pslab.engines.server.shard import TensorShard
from pslab.engines.server.store import Finished, Work, carry_out
from pslab.engines.server.worker_status import doings
from pslab.engines.worker.tensors import NOTHING, ZERO
from pslab.protocol.messages import Pull, Push, Weights
from pslab.protocol.server import Discard, Reply, Step
from pslab.protocol.server import Server as Machine
from pslab.protocol.store import Order, Snapshot, StoreMachine
from pslab.tensors.workload.torchvision_ops import with_operators

NEWS_S = 0.2  # between two reports to the caller
News = dict[str, Any]
Brought = tuple[Push | Pull, Content]  # a message, and the numbers that it names
STOP: tuple[Frame, list[Content]] = [Stop(0)], [[]]


class Member:
    """An actor of any kind: its memory, laid out anew for each run."""

    def prepare(
        self, folders: Sequence[str], job: bytes, data: np.ndarray, weights: np.ndarray, *arguments: Any
    ) -> None:
        """Take a job and its first weights, and begin this actor's part with these arguments."""
        sys.path += [folder for folder in folders if folder not in sys.path]
        torch.set_num_threads(1)  # more threads give other bits
        self.data, self.arena = ObjectArena(data), Arena()
        given: Job = with_operators(partial(cloudpickle.loads, job))
        self.job, layout = given.on(self.data), given.layout
        self.arena.reserve(layout.end)
        self.arena.put(layout.server, torch.from_numpy(weights.copy()))
        self.begin(*arguments)

    def begin(self, *arguments: Any) -> None:
        """Begin a part in the run."""
        raise NotImplementedError


class OtherServer(Member):
    """A server that holds ranges and does not decide."""

    def begin(self, server: int) -> None:
        """Take this server's part in the run that was prepared."""
        self._contents, self._clock = Contents(self.job, self.arena), WallClock()
        self._server, self._shard = server, TensorShard(self.job, self.arena)
        self._clock.start()

    def carry_out(self, order: Order, work: Work, brought: Sequence[Brought]) -> tuple[int, float, Content]:
        """Do what was ordered; return the size of a reply, the seconds that this took, and the numbers of the reply or
        of the snapshot."""
        for message, content in brought:
            self._contents.write(message, content)
        if isinstance(order, Snapshot):
            return 0, 0.0, [self._shard.weights[source].numpy().copy() for _, source in self._slices()]
        took = carry_out(order, work, self._server, self.job, self._shard, self._clock, lambda index, server: None)
        size_bytes, begin_s, done_s = took
        return size_bytes, done_s - begin_s, self._contents.read(answer(order, size_bytes))

    def _slices(self) -> Any:
        return held_slices(self.job, self._server)

    def held(self) -> list[np.ndarray]:
        """Return the weights that are held here."""
        return [self._shard.weights[piece].numpy() for piece in self.job.held[self._server]]


def answer(order: Order, size_bytes: int) -> Weights | None:
    """Return the message that names the numbers of a reply; None for any other order."""
    if not isinstance(order, Reply):
        return None
    worker, index, iteration, *_ = order.pull
    return Weights(worker, index, iteration, order.version, order.pull.payload._replace(size_bytes=size_bytes))


class StoreActor:
    """Another server as the one that decides sees it: what is ordered there, until it is done. `done` is called, in any
    thread, when something may be done; `deliver` gets the numbers that came with it."""

    def __init__(
        self, actor: Any, clock: WallClock, brought: dict[Any, Content], done: Callable[[StoreActor], None],
        deliver: Callable[[Order, Content], None],
    ) -> None:  # fmt: skip
        self._actor, self._clock, self._brought, self._done, self._deliver = actor, clock, brought, done, deliver
        self._machine, self._calls = StoreMachine(), deque[Any]()

    def hand(self, order: Order, work: Work) -> None:
        self._machine.order(order, work)
        if isinstance(order, Discard):
            self._brought.pop(named(order.push), None)
        messages = order.pushes if isinstance(order, Step) else (order.pull,) if isinstance(order, Reply) else ()
        brought = [(message, self._brought.pop(named(message), [])) for message in messages]
        sent = work._replace(computing=list(work.computing), dealt=(), led_by=None)
        self._calls.append(call := self._actor.carry_out.remote(order, sent, brought))
        call.future().add_done_callback(lambda future: self._done(self))

    def finish(self) -> Iterator[Finished]:
        while self._calls:
            yield self.take()

    def owes(self, worker: int) -> bool:
        """Whether it is still to lay weights ready for a worker."""
        return any(isinstance(order, Reply) and order.pull.worker == worker for order, *_ in self._machine.orders)

    @property
    def busy(self) -> bool:
        """Whether anything is ordered and not done."""
        return bool(self._calls)

    def take(self) -> Finished:
        """Wait for what was ordered first: it is done now, and was begun as long before as it took."""
        import ray

        size_bytes, spent_s, content = ray.get(self._calls.popleft())
        done, now = self._machine.done(), self._clock.now()
        self._deliver(done.order, content)
        return Finished.of(done, size_bytes, now - spent_s, now)


def named(message: Push | Pull) -> tuple[Any, ...]:
    """Return the name of a message of a run."""
    return type(message), *message[:3]


class DecidingServer(Member, Transport):
    """The server that decides: it holds ranges, too, and is the driver's transport."""

    def begin(self, others: Sequence[Any]) -> None:
        """Take this server's part in the run that was prepared, with the actors of the other servers."""
        job, run = self.job, self.job.run
        self._contents, self._clock, self._inbox = Contents(job, self.arena), WallClock(), queue.SimpleQueue[Any]()
        self._boxes: dict[tuple[int, int], queue.SimpleQueue[Any]] = {}  # of a worker's process: frames for it
        self._lives, self._turns = [0] * run.workers, [0] * run.workers  # processes before; the next call's number
        self._early: dict[tuple[int, int], Any] = {}  # calls that have overtaken others
        self._phases, self._snapshots, self._made = list[Any](), Arena(), list[News]()
        self.deaths, self.lives = list[News](), list[News]()
        self._brought: dict[Any, Content] = {}  # numbers for other servers, by the names of their messages
        self._came: Content = []  # numbers of another server's reply
        self._whole: dict[int, tuple[int, Content]] = {}  # of a range the last weights that were sent: version, arrays
        self._shard = TensorShard(job, self.arena)
        ledger = Ledger(job, self._shard.weights, self._snapshots, self._keep_snapshot)
        self._machine = Machine(range(run.workers), len(job.parts), job.sync)
        self._stores = [StoreActor(actor, self._clock, self._brought, self._done, partial(self._take, server))
                        for server, actor in enumerate(others, 1)]  # fmt: skip
        self._driver = ServerDriver(job, self._machine, PushAccounts(job, ledger), self._shard, self._clock, self,
                                    others=self._stores)  # fmt: skip

    # --- called by other actors and by the caller's process, in threads of their own -------------------------------

    def exchange(self, worker: int, life: int, number: int, *sent: Any) -> list[tuple[Frame, list[Content]]]:
        """Take a worker's messages; return messages for it as soon as there are any."""
        self._inbox.put((self._arrive, worker, life, number, sent))
        box, found = self._box(worker, life), list[Any]()
        while not found or not box.empty():
            found.append(box.get())
            if found[-1] is STOP:
                box.put(STOP)  # for its other calls
                break
        return found

    def order(self, verb: str, *arguments: Any) -> None:
        """Let the run's own thread call `stop`, `lose` or `succeed`."""
        self._inbox.put((getattr(self, verb), *arguments))

    def held(self) -> list[np.ndarray]:
        """Return the weights that are held here."""
        return [self._shard.weights[piece].numpy() for piece in self.job.held[0]]

    # --- the run's own thread ---------------------------------------------------------------------------------------

    def run(self) -> Iterator[News]:
        """Serve until the run ends; yield what the caller's process is to know."""
        try:
            yield from self._serve()
        except Exception:  # a user's policy may raise anything
            yield {"failed": traceback.format_exc(), "iteration": self._machine.base}
        for worker, life in enumerate(self._lives):
            self._box(worker, life).put(STOP)

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
        yield {"facts": self._facts()}

    def stop(self, outcome: str) -> None:
        """End the run, unless it has ended."""
        if not self._driver.outcome:
            self._driver.end(outcome, self._clock.now())

    def lose(self, worker: int, how: str, replaced: bool) -> None:
        """Lose a worker's process; another one replaces it, or the run goes on without it."""
        self._box(worker, self._lives[worker]).put(STOP)  # for the threads of its calls
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
        """Let a worker's new process go on, once all messages of its predecessor are dealt with."""
        if any(store.owes(worker) for store in self._stores):
            self._inbox.put((self.succeed, worker))
            return
        iteration, frame = self._driver.succeed(worker)
        life = next(life for life in reversed(self.lives) if life["worker"] == worker)
        life.update(joined=iteration, kept=ZERO if self.job.layout.memories else NOTHING)
        self._post(worker, [Go(self._clock.now(), iteration)])
        self._driver.receive(frame)

    def _arrive(self, worker: int, life: int, number: int, sent: Any) -> None:
        """Deal with calls of a worker in their order."""
        if life != self._lives[worker]:
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
        """Take the numbers that another server has sent with what it has done."""
        if isinstance(order, Snapshot):
            snapshot = self.job.layout.snapshot_in(self._snapshots, order.number)
            for (where, _), array in zip(held_slices(self.job, server), content, strict=True):
                snapshot[where] = torch.from_numpy(array)
        self._came = content

    # --- the driver's transport -------------------------------------------------------------------------------------

    def send(self, worker: int, frame: Frame, now: float) -> None:
        """Send weights, or acknowledgements."""
        self._post(worker, frame)

    def _post(self, worker: int, frame: Frame) -> None:
        self._box(worker, self._lives[worker]).put((frame, [self._content(message) for message in frame]))

    def _content(self, message: Any) -> Content:
        """Return a message's numbers; whole weights of one version are put into the object store once."""
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

    def _box(self, worker: int, life: int) -> queue.SimpleQueue[Any]:
        return self._boxes.setdefault((worker, life), queue.SimpleQueue())

    # --- what the caller's process is to know -------------------------------------------------------------------------

    def _keep_snapshot(self, body: News) -> None:
        weights = self.job.layout.snapshot_in(self._snapshots, body["index"]).numpy().copy()
        self._made.append({"snapshot": body, "weights": weights.view(np.uint8)})

    def _news(self) -> Iterator[News]:
        made, self._made = self._made, []
        yield from (each for each in made)  # Ray needs a generator here, which a list's iterator is not
        phases, self._phases = self._phases, []
        workers = doings(self._machine, [False] * self.job.run.workers)
        yield {"pushes": self._machine.gradients, "seconds": self._clock.now(), "workers": workers, "phases": phases,
               "tables": self._driver.accounts.ledger.take_changes()}  # fmt: skip

    def _facts(self) -> News:
        driver, accounts = self._driver, self._driver.accounts
        return {"outcome": driver.outcome, "seconds": driver.ended_s, "pushes": accounts.applied,
                "accepted": self._machine.gradients, "refused": driver.refused, "dropped": accounts.dropped,
                "dropped_bytes": accounts.dropped_bytes, "diverged": driver.diverged,
                **({"requested_bytes": driver.requested_bytes} if self.job.keyed else {}), **driver.facts(),
                "costs": self._clock.costs(), "deaths": self.deaths,
                **({"lives": self.lives} if self.lives else {})}  # fmt: skip
