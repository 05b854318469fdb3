"""What the recorded pushes alone say about the final weights: a sequential replay, without processes or protocol."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
import torch
from torch.nn import functional

from pslab.engines.experiment.experiment import Experiment, Outcome
from pslab.engines.server.ledger import PUSH_COLUMNS
from pslab.policies.rates import Applied
from pslab.protocol.messages import Push
from pslab.protocol.server import Step, first_step
from pslab.tensors.compression import compression
from pslab.tensors.device import one_thread
from pslab.tensors.update import rate_state
from pslab.tensors.update.store import WeightStore
from pslab.tensors.workload.data import Batches, batch


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
