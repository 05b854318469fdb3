"""The actors of this process on a Ray cluster, which are started for one run and reused by later runs of its kind."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from typing import Any

from pslab.config.available import cores
from pslab.config.ray_options import RayOptions
from pslab.config.run import Run
from pslab.engines.ray.server import DecidingServer, OtherServer
from pslab.engines.ray.worker import RayWorker
from pslab.errors import StartFailed
from pslab.version import install

START_LIMIT_S = 120.0  # the cluster must have started all actors within this time
HEED_S = 0.1
CALLS = 4  # calls of one worker that may be under way at once: an eager worker sends while it waits


def load_ray() -> Any:
    """Import Ray and return its module; raise StartFailed if Ray is not installed."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise StartFailed(f"engine='ray' needs Ray: {install('ray')} ({error})") from error
    return ray


class Actors:
    """The actors of the deciding server, the other servers, the workers, and the evaluator if the run needs one.

    Ray spreads them over the hosts, one by one. A placement group would reserve the resources of a worker on a failed
    host until Ray declares the host dead, which takes 15 s or more.
    """

    def __init__(self, run: Run, heed: Callable[[], None]) -> None:
        self._ray, self._options, self.kind = load_ray(), RayOptions.of(run.ray), kind_of(run)
        count, more = run.workers, beside(run)
        self._session = _joined(self._options, run.servers, count + more)
        self.gone = False  #: whether an actor has ended
        self.decider = self._actor(DecidingServer, 0.0, max_concurrency=CALLS * (count + 1))
        self.others = [self._actor(OtherServer, 0.0) for _ in range(run.servers - 1)]
        self.workers = [self._actor(RayWorker, self._options.gpus) for _ in range(count)]
        self.evaluator: Any = self._actor(RayWorker, self._options.gpus) if more else None
        waiting = [actor.__ray_ready__.remote() for actor in (*self.servers, *self.workers)]
        until_s = time.monotonic() + START_LIMIT_S
        try:
            while waiting:
                heed()
                _, waiting = self._ray.wait(waiting, num_returns=len(waiting), timeout=HEED_S)
                if waiting and time.monotonic() > until_s:
                    free = self._ray.available_resources()
                    words = f"the Ray cluster did not start {len(waiting)} processes within {START_LIMIT_S:g} s"
                    free_words = f"{free.get('CPU', 0):g} CPUs and {free.get('GPU', 0):g} GPUs are free"
                    raise StartFailed(f"{words}; {free_words}; end other jobs or reserve less: ray={{'cpus': 0.1}}")
        except BaseException:
            self.close()
            raise

    @property
    def servers(self) -> list[Any]:
        """All servers, the deciding one first."""
        return [self.decider, *self.others]

    def serves(self, run: Run) -> bool:
        """Whether these actors can execute this run: they suit it, its cluster is connected, and none has ended."""
        ray = self._ray
        return self.kind == kind_of(run) and ray.is_initialized() and self._session == _session(ray) and not self.gone

    def replace(self, worker: int) -> None:
        """Start a new actor for a worker, on any host with free resources."""
        self.workers[worker] = self._actor(RayWorker, self._options.gpus)

    def close(self) -> None:
        """End all actors."""
        if self._ray.is_initialized() and self._session == _session(self._ray):
            for actor in (*self.servers, *self.workers, *([self.evaluator] if self.evaluator is not None else [])):
                self._ray.kill(actor)

    def _actor(self, kind: type, gpus: float, **more: int) -> Any:
        cpus = self._options.cpus
        options = {"num_cpus": cpus, "num_gpus": gpus, "scheduling_strategy": "SPREAD", **more}
        return self._ray.remote(kind).options(**options).remote()


def beside(run: Run) -> bool:
    """Whether an actor evaluates while a run is under way."""
    return run.evaluate == "beside" or run.target_accuracy is not None


def kind_of(run: Run) -> tuple[Any, ...]:
    """Return the settings of a run that determine its actors; runs with equal settings can share actors."""
    return run.workers, run.servers, beside(run), RayOptions.of(run.ray)


def _session(ray: Any) -> str:
    return str(ray.get_runtime_context().gcs_address)


_started = False  # whether this process has started the Ray that it is connected to
_kept: Actors | None = None


def _joined(options: RayOptions, servers: int, workers: int) -> str:
    """Connect to a Ray cluster, or start Ray on this machine if the address is "auto" and none runs; return the
    cluster's address. Raise StartFailed if no cluster answers, or it has too few CPUs or GPUs."""
    global _started
    ray, cpus, gpus = load_ray(), options.cpus * (servers + workers), options.gpus * workers
    if _started and ray.is_initialized() and ray.cluster_resources().get("CPU", 0) < cpus:
        ray.shutdown()  # start this process's own cluster again, with more CPUs
    if not ray.is_initialized():
        _started = False
        try:
            ray.init(address=options.address, log_to_driver=False)
        except ConnectionError as error:
            if options.address != "auto" or "Could not find any running Ray" not in str(error):
                words = f"no Ray cluster answers at {options.address} ({error}): start it by `ray start --head`"
                raise StartFailed(words) from error
            ray.init(num_cpus=max(cores(), math.ceil(cpus)), include_dashboard=False, log_to_driver=False)
            _started = True
    there = ray.cluster_resources()
    for name, field, needed in (("CPU", "cpus", cpus), ("GPU", "gpus", gpus)):
        if needed > (available := there.get(name, 0)):
            words = f"{servers + workers} processes need {needed:g} {name}s, and the Ray cluster has {available:g}"
            raise StartFailed(f"{words}: add hosts, or reserve fewer, as ray={{'{field}': 0.1}}")
    return _session(ray)


def acquire(run: Run, heed: Callable[[], None]) -> Actors:
    """Return the actors of this process for a run; start new actors if the present ones cannot execute it."""
    global _kept
    if _kept is not None and not _kept.serves(run):
        release()
    if _kept is None:
        _kept = Actors(run, heed)
    return _kept


def release() -> None:
    """End the actors of this process, if there are any."""
    global _kept
    if _kept is not None:
        actors, _kept = _kept, None
        actors.close()
