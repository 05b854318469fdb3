"""What the recorded pushes alone say about the final weights: a sequential replay, without processes or protocol.

A run without tensors has a stand-in for weights and gradients. The weights of a range are one number below a prime; a
gradient is a function of its worker, its iteration and the weights that it was computed on. They lie in buffers that
are used in turn, as tensors in shared memory do: what is written too early, or read too late, is another number.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch.nn import functional

from pslab.engines.experiment.experiment import Experiment, Outcome
from pslab.engines.experiment.job import Job
from pslab.engines.experiment.layout import in_turn
from pslab.engines.server.ledger import PUSH_COLUMNS
from pslab.engines.virtual.timing import NoGradients, Sizes
from pslab.engines.worker.tensors import Basis, Pulled
from pslab.policies.rates import Applied
from pslab.protocol.messages import Push
from pslab.protocol.server import Reply, Step, first_step
from pslab.tensors.compression import compression
from pslab.tensors.device import one_thread
from pslab.tensors.update import rate_state
from pslab.tensors.update.store import WeightStore
from pslab.tensors.workload.data import Batches, batch

PRIME, DECAY = 2**61 - 1, 1_000_003
COLUMNS = [PUSH_COLUMNS.index(name) for name in ("range", "worker", "iteration", "version_pulled", "version_applied")]


def pushes_of(outcome: Outcome) -> pd.DataFrame:
    """The rows of the pushes, as `replay` reads them."""
    return pd.DataFrame(outcome.pushes, columns=PUSH_COLUMNS).astype(dict.fromkeys(PUSH_COLUMNS[:7], int))


@one_thread()
def replay(experiment: Experiment, pushes: pd.DataFrame) -> torch.Tensor:
    """The final weights that follow from the list of (push, version pulled), in the order of application.

    Of the weights that workers compute on without ever pushing, the list does not tell: a rate that asks for the
    stalest of them cannot be replayed.
    """
    run, data, keyspace = experiment.run, experiment.dataset, experiment.keyspace
    dtype = experiment.weights.dtype
    store = WeightStore(experiment.weights.clone(), experiment.parts, experiment.optimizer)
    held, gradient = torch.empty_like(experiment.weights), torch.empty_like(experiment.weights)
    keyspace.bind(experiment.shell, held, gradient)
    batches = [Batches(len(data.train_y), run.workers, w, run.batch_size, run.seed) for w in range(run.workers)]
    layers = [layer.flat for layer in keyspace.layers]
    rules = compression(experiment.prune, experiment.quantize, experiment.parts, keyspace, run.seed)
    kept = {} if rules is None else rules.memories
    memories = [{name: memory.zeros("cpu") for name, memory in kept.items()} for _ in batches]
    versions = {0: store.weights.clone()}
    states = rate_state.at_server(experiment.rate, experiment.parts, layers, dtype)
    squares = [rate_state.at_worker(experiment.rate, lambda: torch.zeros_like(held)) for _ in range(run.workers)]

    def compute(worker: int, iteration: int, version: int) -> Any:
        held.copy_(versions[version])
        gradient.zero_()
        rows = torch.from_numpy(batches[worker].at(iteration))
        x = batch(data.train_x[rows], dtype, data.mean, data.std)
        functional.cross_entropy(experiment.shell(x), data.train_y[rows]).backward()  # type: ignore[no-untyped-call]
        if (sums := squares[worker]) is not None:
            sums.divide(gradient, out=gradient)
        if rules is None:
            return gradient.clone()
        whose = {"worker": worker, "step": iteration, "turn": iteration, "epoch": iteration / batches[worker].rounds}
        sent, _ = rules.push(0, rules.rule.before(gradient, run.workers), memories[worker], **whose)
        return rules.read(0, sent, torch.empty(0), **whose)

    first = first_step(experiment.sync, run.workers)
    aggregate = first is not None and first.aggregate
    applied, versions_used = 0, range(len(pushes) + 1)  # any version may still be computed on
    for version in sorted({int(made) for made in pushes.version_applied}):
        group = pushes[pushes.version_applied == version]
        names = group[["worker", "iteration", "version_pulled"]].to_numpy(int).tolist()
        gradients: Sequence[Any] = [compute(*name) for name in names]
        stale = int(group.staleness.max())
        about = Applied(run.workers, len(group), aggregate, experiment.push_weight, stale, stalest=stale, seen=stale)
        progress = 0.0 if run.pushes is None else min(1.0, applied / run.pushes)
        factor = experiment.schedule.factor(progress, applied * run.batch_size / len(data.train_y))
        rate = run.learning_rate * factor * experiment.rate.scale(about)
        if states:
            messages = tuple(Push(worker, 0, iteration, pulled) for worker, iteration, pulled in names)
            gradients = states[0].adjust(Step(0, messages, aggregate, version), gradients, versions_used)
        store.step(0, gradients, rate)
        versions[version] = store.weights.clone()
        applied += len(group)
    return store.weights


# --- without tensors --------------------------------------------------------------------------------------------------


def gradient(worker: int, iteration: int, index: int, weights: int) -> int:
    """Of a range, computed on these weights."""
    return (weights * 6_364_136_223 + (worker + 1) * 1_442_695_040 + iteration * 7_046_029_254 + index) % PRIME


def stepped(weights: int, gradients: Iterable[int]) -> int:
    """The weights after a step: no two orders of steps leave the same."""
    return (weights * DECAY + sum(gradients)) % PRIME


class SumShard(Sizes):
    """The server's numbers."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        workers, ranges = job.run.workers, len(job.parts)
        self.weights = [0] * ranges
        self.laid = [[[0] * (1 + job.traits.eager) for _ in range(ranges)] for _ in range(workers)]
        buffers = job.traits.buffers
        self.gradients = [[[0] * buffers for _ in range(ranges)] for _ in range(workers)]

    def apply(self, step: Step, rate: float, computing: Collection[int]) -> None:
        found = [in_turn(self.gradients[push.worker][step.range], push.iteration) for push in step.pushes]
        self.weights[step.range] = stepped(self.weights[step.range], found)

    def lay(self, reply: Reply) -> int:
        if reply.empty:
            return 0
        buffers = self.laid[reply.pull.worker][reply.pull.range]
        buffers[reply.pull.iteration % len(buffers)] = self.weights[reply.pull.range]
        return super().lay(reply)


class SumGradients(NoGradients):
    """The workers' numbers."""

    def __init__(self, job: Job, shard: SumShard) -> None:
        super().__init__(job)
        self._shard, self._held = shard, [[0] * len(job.parts) for _ in range(job.run.workers)]

    def start(self, worker: int, iteration: int, pulled: list[Pulled], settled_s: float, basis: Basis) -> None:
        super().start(worker, iteration, pulled, settled_s, basis)
        held = self._held[worker]
        for weights in (each for each in pulled if each.size_bytes):
            held[weights.range] = in_turn(self._shard.laid[worker][weights.range], weights.iteration)
        for index, buffers in enumerate(self._shard.gradients[worker]):
            buffers[iteration % len(buffers)] = gradient(worker, iteration, index, held[index])


def replayed(pushes: np.ndarray, ranges: int) -> list[int]:
    """The final weights by the table of pushes alone."""
    versions = [[0] for _ in range(ranges)]
    rows: dict[tuple[int, int], list[int]] = {}
    for index, worker, iteration, pulled, applied in pushes[:, COLUMNS].astype(int).tolist():
        found = gradient(worker, iteration, index, versions[index][pulled])
        rows.setdefault((index, applied), []).append(found)
        if applied == len(versions[index]):
            versions[index].append(0)
        versions[index][applied] = stepped(versions[index][applied - 1], rows[index, applied])
    return [made[-1] for made in versions]
