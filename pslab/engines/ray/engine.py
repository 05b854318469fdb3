"""The caller's part in a run on a Ray cluster."""

from __future__ import annotations

import contextlib
import math
import re
import time
from collections.abc import Callable
from typing import Any

import cloudpickle
import numpy as np

from pslab.engines.experiment.evaluations import Evaluations
from pslab.engines.experiment.experiment import Experiment, Interrupted, OnProgress, Outcome
from pslab.engines.experiment.job import Job
from pslab.engines.experiment.layout import Layout
from pslab.engines.experiment.shared_dataset import SharedDataset, store_arrays
from pslab.engines.experiment.shared_memory import Arena
from pslab.engines.processes.spawn import own_folders
from pslab.engines.ray.actors import Actors, acquire, release
from pslab.engines.server.ledger import ARRIVAL_COLUMNS, PUSH_COLUMNS, reached
from pslab.engines.server.rows import Changes
from pslab.engines.worker.phases import PHASE_COLUMNS
from pslab.errors import ConfigError, RunError, StartFailed, WorkerDied, WorkerFailed
from pslab.tensors.entries import by_key

POLL_S = 0.1  # between two calls of `on_progress`, which may end the run by raising
INTERRUPT_LIMIT_S = 1.2  # the server must end an interrupted run within this time
REPLACE_LIMIT_S = 30.0  # a worker's new process must be prepared within this time; else the run continues without it
LIVES = 3  # replacements of one worker; if this worker ends once more, the run continues without it
SERVER = -1  # the process number of every server; workers have the numbers from 0


def execute(experiment: Experiment, on_progress: OnProgress) -> Outcome:
    """Run an experiment on the actors of this process.

    Raises:
        WorkerFailed, WorkerDied, StartFailed: a process failed; all actors are ended, and the next run starts new ones.
        Interrupted: the run was interrupted; the error contains the completed part.
    """
    try:
        return _RayRun(acquire(experiment.run, lambda: on_progress({})), experiment, on_progress).conduct()
    except BaseException:
        release()
        raise


class _RayRun(Evaluations):
    """A run on Ray. `calls` has every call under way: the number of the called process, and the function that handles
    the result."""

    def __init__(self, actors: Actors, experiment: Experiment, on_progress: OnProgress) -> None:
        super().__init__()
        self.actors, self.experiment, self.run, self.on_progress = actors, experiment, experiment.run, on_progress
        self.calls: dict[Any, tuple[int, Callable[[int, Any], None]]] = {}
        self.stream: Any = None  # the generator of the deciding server's news
        self.alive = set(range(self.run.workers))
        self.replaced = dict.fromkeys(self.alive, 0)  # worker: number of replacements
        self.joining: dict[int, float] = {}  # worker being replaced: the instant until which its new process must join
        self.error: RunError | None = None  # the error that ends the run
        self.tables = [np.empty((0, len(columns))) for columns in (PUSH_COLUMNS, ARRIVAL_COLUMNS)]
        self.phases, self.sweeps = list[Any](), list[Any]()
        self.weights: dict[int, Any] = {}  # snapshot: reference to its weights
        self.beside = actors.evaluator is not None  # whether a process evaluates beside the run
        self.facts: dict[str, Any] = {}
        self.preparation_s = math.nan  # NaN until the run has started

    def conduct(self) -> Outcome:
        begin_s = time.monotonic()
        try:
            self._prepare()
            self.preparation_s = time.monotonic() - begin_s
            self.stream = self.actors.decider.run.remote()
            for worker in sorted(self.alive):
                self._call(worker, self._worked, self.actors.workers[worker].run, self.actors.decider)
            self._follow()
            self.trained = True
            while self._evaluate(sorted(self.alive) + [self.run.workers] * self.beside):
                if not (self.alive or self.beside):
                    raise StartFailed("all processes that could evaluate the snapshots have ended: run again")
                self._turn()
        except KeyboardInterrupt:
            raise Interrupted(self._wind_up()) from None
        except RunError as error:
            error.outcome = self._wind_up()
            raise
        return self._outcome()

    def _prepare(self) -> None:
        import ray

        experiment, data, actors = self.experiment, Arena(), self.actors
        shelf = SharedDataset.store(data, experiment.dataset)
        located = store_arrays(data, experiment, shelf.end)
        self.job = job = Job.of(experiment, Layout.of(experiment), shelf, located=located)
        content = np.frombuffer(data.bytes(0, data.size_bytes), np.uint8)
        self.given = own_folders(), cloudpickle.dumps(job), ray.put(content), ray.put(experiment.weights.numpy())
        for server, actor in enumerate(actors.servers):
            self._call(SERVER, self._begun, actor.prepare, *self.given, server or actors.others)
        for worker in sorted(self.alive):
            self._begin(worker)
        if self.beside:
            self._call(self.run.workers, self._begun, actors.evaluator.prepare, *self.given, 0, 0, False)
        while self.calls:
            self._turn()

    def _begin(self, worker: int) -> None:
        actor = self.actors.workers[worker]
        self._call(worker, self._begun, actor.prepare, *self.given, worker, self.replaced[worker], True)

    def _begun(self, number: int, result: Any) -> None:
        if self.joining.pop(number, None) is not None and self.stream is not None:
            self.actors.decider.order.remote("succeed", number)
            self._call(number, self._worked, self.actors.workers[number].run, self.actors.decider)

    # --- following ------------------------------------------------------------------------------------------------

    def _call(self, number: int, take: Callable[[int, Any], None], method: Any, *arguments: Any) -> None:
        self.calls[method.remote(*arguments)] = number, take

    def _follow(self) -> None:
        """Handle results until the server and all workers have ended their parts of the run."""
        while self.stream is not None or any(take == self._worked for _, take in self.calls.values()):
            self._turn()
            for worker in [worker for worker, until_s in self.joining.items() if time.monotonic() > until_s]:
                self._lose(worker, f"was not replaced within {REPLACE_LIMIT_S:g} s")
            if self.beside and self.run.workers not in self.busy:
                self._evaluate([self.run.workers])
        if self.error is not None:
            raise self.error

    def _turn(self, timeout_s: float = POLL_S) -> None:
        """Handle the results of calls that are ready, or wait for one for at most `timeout_s`."""
        import ray

        ready, _ = ray.wait([*self.calls, *([] if self.stream is None else [self.stream])], timeout=timeout_s)
        self.on_progress({})
        for call in ready:
            number, take = self.calls.pop(call, (SERVER, self._hear))
            try:
                take(number, next(call) if call is self.stream else ray.get(call))
            except StopIteration:
                self.stream = None
            except ray.exceptions.RayError as error:
                self._fail(number, error)

    def _hear(self, number: int, item: Any) -> None:
        """Handle one item of the deciding server's news."""
        import ray

        news = ray.get(item)
        if "failed" in news:
            raise WorkerFailed("server", news["iteration"], news["failed"])
        if "facts" in news:
            self.facts = news["facts"]
        elif "snapshot" in news:
            body = news["snapshot"]
            self.snapshots[body["index"]], self.weights[body["index"]] = (body["pushes"], body["seconds"]), item
        else:
            self.phases += news.pop("phases")
            self.tables = list(map(changed, self.tables, news.pop("tables")))
            self.on_progress(news)

    def _worked(self, worker: int, body: dict[str, Any]) -> None:
        self.phases += body["phases"]
        self.sweeps += body["sweeps"]
        if body["failed"]:
            self._lose(worker, "raised", WorkerFailed(f"worker {worker}", body["iteration"], body["failed"]))

    def _fail(self, number: int, error: Exception) -> None:
        """Handle the failure of a call: the process has ended, or raised while it prepared or evaluated."""
        import ray

        dead, self.actors.gone = isinstance(error, ray.exceptions.RayActorError), True
        if isinstance(cause := getattr(error, "cause", None), ConfigError):
            raise cause
        who = name(number, self.run.workers)
        failure = WorkerDied(who, None, f"is gone: {how_of(error)}") if dead else WorkerFailed(who, 0, str(error))
        if number == SERVER:
            self.stream = None
            raise failure from None
        self.busy.pop(number, None)
        if number == self.run.workers:
            self.beside = False
            if self.run.on_death == "stop" or self.run.target_accuracy is not None:
                raise failure from None
        elif self.stream is None:
            self.alive.discard(number)
            if math.isnan(self.preparation_s):
                raise failure from None
        else:
            self._lose(number, failure.how if isinstance(failure, WorkerDied) else "raised", failure)

    def _lose(self, worker: int, how: str, error: RunError | None = None) -> None:
        """Replace a worker whose process has ended, continue without this worker, or end the run."""
        import ray

        ray.kill(self.actors.workers[worker])
        late, decider = self.joining.pop(worker, math.inf) < time.monotonic(), self.actors.decider
        able = self.run.on_death == "restart" and self.replaced[worker] < LIVES and not late
        decider.order.remote("lose", worker, how, able)
        if able:
            self.replaced[worker] += 1
            self.actors.replace(worker)
            self.joining[worker] = time.monotonic() + REPLACE_LIMIT_S
            self._begin(worker)
            return
        self.alive.discard(worker)
        self.actors.gone = True
        self.calls = {call: row for call, row in self.calls.items() if row[0] != worker}
        if self.run.on_death == "stop":
            self.error = error or WorkerDied(f"worker {worker}", None, how)

    # --- evaluation -----------------------------------------------------------------------------------------------

    def _evaluate(self, numbers: list[int]) -> bool:
        """Let idle processes evaluate snapshots; return whether any snapshot is not evaluated yet."""
        left = self.unevaluated
        for number, index in zip((n for n in numbers if n not in self.busy), left):  # noqa: B905
            self.busy[number] = index
            actor = self.actors.evaluator if number == self.run.workers else self.actors.workers[number]
            self._call(number, self._take_evaluation, actor.evaluate, self.weights[index], self.run.device)
        return bool(left or self.busy)

    def _take_evaluation(self, number: int, values: tuple[float, ...]) -> None:
        self.on_progress(self.count_evaluated(self.busy.pop(number), values))
        if self.reached_target:
            self.actors.decider.order.remote("stop", "target")

    # --- the end --------------------------------------------------------------------------------------------------

    def _wind_up(self) -> Outcome | None:
        self.on_progress = lambda news: None
        if math.isnan(self.preparation_s):
            return None
        until_s = time.monotonic() + INTERRUPT_LIMIT_S
        if self.stream is not None:
            self.actors.decider.order.remote("stop", "interrupted")
        while self.stream is not None and time.monotonic() < until_s:
            with contextlib.suppress(RunError):
                self._turn()
        return self._outcome()

    def _final_weights(self) -> np.ndarray:
        """Return the servers' weights; if a server is gone, the weights of the last snapshot, or the initial weights if
        there is no snapshot of all weights."""
        import ray

        weights, snapshot = self.experiment.weights.numpy().copy(), max(self.weights, default=None)
        try:
            whole = zip(self.job.held, ray.get([server.held.remote() for server in self.actors.servers],
                                               timeout=60.0 if self.facts else INTERRUPT_LIMIT_S),
                        strict=True)  # fmt: skip
            for pieces, arrays in whole:
                for piece, array in zip(pieces, arrays, strict=True):
                    weights[piece] = array
        except ray.exceptions.RayError:
            if snapshot is not None and self.job.evaluated is None:
                weights = ray.get(self.weights[snapshot])["weights"].view(weights.dtype).copy()
        return self.experiment.to_record(by_key(weights, self.experiment.places))

    def _outcome(self) -> Outcome:
        pushes, arrivals = self.tables
        facts = dict(self.facts) or {
            "outcome": "interrupted",
            **reached(pushes, len(self.experiment.parts), self.experiment.traits),
        }
        replaced = {worker for worker, count in self.replaced.items() if count}
        lost = sorted(replaced | (set(range(self.run.workers)) - self.alive))
        facts |= {"preparation_s": self.preparation_s, "dilation": 1.0, "emulation_ok": True,
                  "disturbed": self.actors.evaluator is not None, **({"phases_lost": lost} if lost else {}),
                  **({"sweeps": sorted(self.sweeps)} if self.sweeps else {})}  # fmt: skip
        phases = np.array(self.phases, dtype=np.float64).reshape(-1, len(PHASE_COLUMNS))
        phases = phases[np.argsort(phases[:, 0], kind="stable")]
        weights = self._final_weights()
        return Outcome(self.accuracy(), phases, pushes, arrivals, weights, facts, metrics=self.experiment.metrics)


def name(number: int, workers: int) -> str:
    """Return the name of a process in messages."""
    return "server" if number == SERVER else "evaluator" if number == workers else f"worker {number}"


def how_of(error: Exception) -> str:
    """Return Ray's reason for the end of an actor, without the actor's properties and Ray's advice."""
    words = re.sub(r"class_name: .*?(?=The actor|$)", "", " ".join(str(error).split()))
    return words.partition(" Some common causes")[0]


def changed(table: np.ndarray, changes: Changes) -> np.ndarray:
    """Return a table after changes: from the first changed row on, it has the new rows."""
    first, rows = changes
    return np.concatenate([table[:first], rows])
