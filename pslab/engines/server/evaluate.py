"""Evaluate a snapshot of the weights on the test set: metrics and loss."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from pslab.config.products import MKL
from pslab.engines.experiment.job import Job
from pslab.engines.experiment.shared_memory import Arena
from pslab.engines.processes.channel import report
from pslab.engines.processes.child import ProcessContext
from pslab.tensors.device import DEVICES, Device
from pslab.tensors.products import use_onednn
from pslab.tensors.random_streams import Generators, seed_globals
from pslab.tensors.sparse import on_keys
from pslab.tensors.workload.data import batch, batch_slices, label_error, read_batches
from pslab.tensors.workload.module_copies import copied
from pslab.tensors.workload.objective import joined, loss_sum, metric_sums, placed, targets
from pslab.tensors.workload.running_statistics import calibration_batches, recompute

BATCH = 1000
KEPT_BYTES = 2**26  # test inputs of at most so many bytes are converted for the model once, and stay in memory


class Evaluator:
    """Evaluates a job's model on snapshots of the weights.

    Each snapshot gets new copies of model, loss and metric, so that nothing that they store in one evaluation, such as
    weights that were merged in `eval()`, reaches the next evaluation.
    """

    def __init__(self, job: Job, data: Arena, on: Device) -> None:
        on.prepare()
        self._job, self._device = job, on.place
        self._dtype = job.layout.dtype
        self._dataset = job.shelf.dataset(data)
        self._weights = torch.empty(job.layout.snapshot, dtype=self._dtype, device=on.place)
        size_bytes, count = self._dataset.test_x.numel() * self._dtype.itemsize, len(self._dataset.test_y)
        # a batch that a source reads has to fit in KEPT_BYTES, too; stored examples are only sliced
        at_once = BATCH if self._dataset.stored else min(BATCH, KEPT_BYTES * count // size_bytes)
        self._slices = batch_slices(count, at_once)
        self._kept = list(self._read()) if size_bytes <= KEPT_BYTES else None

    def _copies(self) -> tuple[Any, Any, Any]:
        job, device = self._job, self._device
        module = copied(job.shell).to(device)
        loss, metric = (placed(function, device, training=False) for function in (job.loss, job.metric))
        if job.products != MKL:
            use_onednn(module)
        (job.keyspace.bind if job.evaluated is None else job.keyspace.bind_keys)(module, self._weights)
        seed_globals(job.run.seed, "evaluate")  # the same draws at each snapshot, in any process
        Generators(module, loss, metric).seed(job.run.seed, "evaluate")
        # running statistics are never exchanged: compute them for these weights, as for the trained model
        recompute(module, job.running, self._calibration)
        return module, loss, metric

    @torch.no_grad()
    def snapshot(self, index: int, snapshots: Arena) -> tuple[float, ...]:
        """Return (metric, mean loss, *other metrics) of a snapshot of the weights on the whole test set."""
        weights = self._job.layout.snapshot_in(snapshots, index)
        self._weights.copy_(self._job.in_order(weights))  # a copy, which the model may change
        module, objective, metric = self._copies()
        loss, count, (whole_loss, whole_metric) = 0.0, 0, self._job.whole
        sums = [0.0] * (1 + len(self._job.metrics))
        outputs, wanted = list[Any](), list[torch.Tensor]()  # of the test set, if loss or metric needs all at once
        batches = self._read() if self._kept is None else self._kept
        for (inputs, target), examples in zip(batches, self._slices, strict=True):
            output = module(inputs)
            count += len(target)  # a collate_fn may leave examples out
            # a user's function of the whole test set is no mean over batches: keep all outputs
            if whole_loss or whole_metric:
                outputs, wanted = [*outputs, output], [*wanted, target]
            with self._labels(output, target, examples):
                if metric is not None and not whole_metric:
                    sums = [*map(sum, zip(sums, metric_sums(metric, output, target), strict=True))]
                loss += 0.0 if whole_loss else loss_sum(objective, output, target)
        if outputs:
            output, target = joined(outputs, [len(value) for value in wanted]), torch.cat(wanted)
            with self._labels(output, target, slice(count)):
                sums = metric_sums(metric, output, target) if metric is not None and whole_metric else sums
                loss += loss_sum(objective, output, target) if whole_loss else 0.0
        good, *others = (value / count for value in (sums if metric is not None else [loss]))
        return (good, loss / count, *others)

    @contextmanager
    def _labels(self, output: Any, target: torch.Tensor, examples: slice) -> Iterator[None]:
        """If an error is due to the label of one of these test examples, raise an error that names the example."""
        try:
            yield
        except (IndexError, ValueError) as error:
            numbers = range(len(self._dataset.test_y))[examples]
            raise label_error(self._dataset, "test", output, target, numbers, self._job.loss) or error from error

    def _read(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield the batches of the test set, converted for the model and the loss."""
        for x, y in read_batches(self._dataset.test_x, self._dataset.test_y, self._slices):
            yield self._batch(x), targets(y.to(self._device), self._dtype)

    def _batch(self, x: torch.Tensor) -> torch.Tensor:
        x = x if self._job.evaluated is None else on_keys(x, self._job.evaluated)
        return batch(x.to(self._device), self._dtype, self._dataset.mean, self._dataset.std)

    def _calibration(self) -> Iterator[torch.Tensor]:
        return map(self._batch, calibration_batches(self._dataset, self._job.run.seed))


class Evaluating:
    """The role of a process that evaluates snapshots on order; roles that also train derive from it."""

    def __init__(self, context: ProcessContext, job: Job) -> None:
        self.context, self.job = context, job.on(context.data)
        self._evaluator: Evaluator | None = None

    @property
    def iteration(self) -> int:
        """The present iteration, for error messages; 0 for a process that only evaluates."""
        return 0

    def evaluate(self, index: int, device: str) -> None:
        """Evaluate a snapshot and report the result."""
        if self._evaluator is None:
            # the processes that evaluate are spread over the devices, as workers are
            self._evaluator = Evaluator(self.job, self.context.data, DEVICES[device].of(max(0, self.context.number)))
        accuracy, loss, *others = self._evaluator.snapshot(index, self.context.snapshots)
        body = {"index": index, "accuracy": accuracy, "loss": loss, "others": others}
        # the parent then frees the snapshot's memory
        report(self.context.parent, "evaluated", body)
