"""To 98 % of MNIST: two workers without an emulated network, and one process with the same total batch."""

from __future__ import annotations

import time
from statistics import median

import torch
from torch.nn import functional

from pslab.config.run import Run
from pslab.engines.local.engine import execute
from pslab.lab.runs.resolve import resolve
from pslab.tensors.device import one_thread
from pslab.tensors.workload.data import Batches, Dataset, batch, data_root, resolve_data
from pslab.tensors.workload.models import build_model
from tools.bench.measure import Row

SECTION = "3 MNIST to 98 %"
TARGET, BATCH_SIZE, STEPS, RATE, MOMENTUM, EVALUATE = 0.98, 128, 938, 0.1, 0.9, 47
WORKERS, BAR = 2, 0.7


def rows(quick: bool) -> list[Row]:
    """SGD 0.1, momentum 0.9, linear to zero, two epochs; the median over seeds. Evaluations do not count."""
    seeds = range(1 if quick else 3)
    one, many = [to_target(alone(seed)) for seed in seeds], [to_target(together(seed)) for seed in seeds]
    note = f"reached by {len(_reached(many))} of {len(many)} seeds; one process: {len(_reached(one))} of {len(one)}"
    if not _reached(one) or not _reached(many):
        nan = float("nan")
        return [Row(SECTION, f"{WORKERS} workers to {TARGET:.0%}", nan, "s", "one process", nan, BAR, note)]
    seconds = median(_reached(many))
    return [Row(SECTION, f"{WORKERS} workers to {TARGET:.0%}", seconds, "s", "one process",
                seconds / median(_reached(one)), BAR, note)]  # fmt: skip


def to_target(curve: list[tuple[float, float]]) -> float | None:
    """Seconds after which a curve of (seconds, accuracy) first reaches the target."""
    return next((seconds for seconds, accuracy in curve if accuracy >= TARGET), None)


def together(seed: int) -> list[tuple[float, float]]:
    """pslab: BSP, where each worker takes a part of the batch."""
    run = Run(workers=WORKERS, batch_size=BATCH_SIZE // WORKERS, pushes=STEPS * WORKERS, learning_rate=RATE, seed=seed,
              schedule="linear", optimizer=f"sgd:momentum={MOMENTUM}", eval_every=EVALUATE * WORKERS)  # fmt: skip
    table = execute(resolve(run), lambda news: None).accuracy
    return [(float(seconds), float(accuracy)) for _, seconds, accuracy, _ in table]


def alone(seed: int) -> list[tuple[float, float]]:
    """Plain torch on one thread, with the same model, data and order of the examples."""
    data, module = resolve_data("mnist", data_root()), build_model("mlp", seed)
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE, momentum=MOMENTUM)
    batches, curve, spent_s = Batches(len(data.train_y), 1, 0, BATCH_SIZE, seed), [], 0.0
    with one_thread():
        for step in range(STEPS):
            start_s = time.perf_counter()
            rows = torch.from_numpy(batches.at(step))
            optimizer.param_groups[0]["lr"] = RATE * (1 - step / STEPS)
            optimizer.zero_grad()
            functional.cross_entropy(module(_inputs(data.train_x[rows], data)), data.train_y[rows]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            spent_s += time.perf_counter() - start_s
            if (step + 1) % EVALUATE == 0 or step + 1 == STEPS:
                curve.append((spent_s, _accuracy(module, data)))
    return curve


@torch.no_grad()
def _accuracy(module: torch.nn.Module, data: Dataset) -> float:
    return float((module(_inputs(data.test_x[:], data)).argmax(1) == data.test_y[:]).float().mean())


def _inputs(x: torch.Tensor, data: Dataset) -> torch.Tensor:
    return batch(x, torch.float32, data.mean, data.std)


def _reached(times: list[float | None]) -> list[float]:
    return [seconds for seconds in times if seconds is not None]
