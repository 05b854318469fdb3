"""Costs of pruning on one thread: selection in passes over the gradient, and shares of an iteration in training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import count, cycle

import numpy as np
import torch

from pslab.config.run import Run
from pslab.config.spec import build
from pslab.engines.experiment.job import Job
from pslab.engines.experiment.layout import Layout
from pslab.engines.experiment.shared_dataset import SharedDataset
from pslab.engines.experiment.shared_memory import Arena
from pslab.engines.worker.gradient import Computing, module_of
from pslab.lab.runs.resolve import resolve
from pslab.tensors.compression import frame
from pslab.tensors.compression.rule import At
from pslab.tensors.compression.sparse import Chosen
from pslab.tensors.device import one_thread
from pslab.tensors.finite import is_finite
from tools.bench.measure import Row, interleaved

#: The thesis's thresholds, and the largest share of an iteration that they may add.
THRESHOLDS = {
    "static:10%": 0.03, "static:1%": 0.03, "static:0.1%": 0.03, "std:1": 0.03, "std:2": 0.03, "std:3": 0.03,
    "dynamic:5": 0.1, "dgc:1%,warm_up=0": 0.1, "dgc:0.1%,warm_up=0": 0.1,
}  # fmt: skip
CACHED, BEYOND = 1_000_000, 25_000_000  # entries within the cache and beyond it
BARS = {0.015: (4.0, 1.5), 0.12: (30.0, 8.0)}  # density, at most -> passes, within the cache and beyond it
BATCH_SIZE = 128


def gaussian(n: int, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(n, generator=generator)


def laplace(n: int, generator: torch.Generator) -> torch.Tensor:
    magnitudes = torch.empty(n).exponential_(generator=generator)
    return magnitudes.mul_(torch.randint(0, 2, (n,), generator=generator).mul_(2).sub_(1))


def rows(quick: bool) -> Iterator[Row]:
    """Every threshold of the thesis at both sizes, for Laplace and Gaussian gradients; then in training."""
    seconds = 1.0 if quick else 6.0
    with one_thread():
        for n in (CACHED, BEYOND):
            for drawn in (gaussian, laplace):
                yield from selections(n, drawn, seconds)
        dense = iteration("none")
        for text, bar in THRESHOLDS.items():
            spent = interleaved({"dense": dense, "pruned": iteration(text)}, seconds)
            yield Row(f"{text}: pruning in training", spent["pruned"] - spent["dense"], spent["dense"],
                      f"a dense iteration of {spent['dense'] * 1e3:.3g} ms", bar,
                      note=f"batch {BATCH_SIZE}")  # fmt: skip


def selections(n: int, drawn: Callable[[int, torch.Generator], torch.Tensor], seconds: float) -> Iterator[Row]:
    """The selection of each rule from n float32, compared with torch's own selection of as many."""
    beyond = n > CACHED
    vectors = [drawn(n, torch.Generator().manual_seed(seed)) for seed in range(1 if beyond else 2)]
    turns = cycle(vectors)  # two in turn, so that branches are not predicted by repetition
    rules: dict[str, Chosen] = {text: build("prune", text) for text in THRESHOLDS}
    at = At(shape=(n // 1000, 1000), memory={"numbers": torch.zeros(1)})
    chosen: dict[str, Callable[[torch.Tensor], object]] = {
        "max": lambda v: np.max(v.numpy()), "sum": torch.sum, "topk": lambda v: torch.topk(v.abs(), n // 100),
        **{text: partial(rule.select, at=at) for text, rule in rules.items()}}  # fmt: skip
    spent = interleaved({name: lambda each=each: each(next(turns))  # type: ignore[misc]
                         for name, each in chosen.items()}, seconds)  # fmt: skip
    pass_s = min(spent["max"], spent["sum"])
    for text, rule in rules.items():
        density = len(rule.select(vectors[0], at)) / n
        bar = next((bars[beyond] for most, bars in BARS.items() if density <= most), None)
        yield Row(f"{text} of {n / 1e6:g} M, {drawn.__name__}", spent[text], pass_s, "a read pass", bar,
                  note=f"sends {density:.2%}; torch.topk of 1 %: {spent['topk'] / pass_s:.3g}")  # fmt: skip


def iteration(prune: str) -> Callable[[], object]:
    """Return a worker's gradient of the thesis's MLP, one for each call, and its push by this rule."""
    run = Run(engine="virtual", cluster="lab", workers=1, batch_size=BATCH_SIZE, prune=prune, data="mnist:4096,256")
    experiment, data = resolve(run), Arena()
    layout = Layout.of(experiment)
    job = Job.of(experiment, layout, SharedDataset.store(data, experiment.dataset))
    buffer, steps, rules = torch.zeros(layout.size), count(), job.compression
    computing = Computing(job, 0, job.shelf.dataset(data), experiment.weights.clone(), [buffer],
                          module_of(job, experiment.device))  # fmt: skip
    computing.warm_up()
    kept = {name: memory.zeros("cpu") for name, memory in rules.memories.items()} if rules else {}
    room = memoryview(bytearray(rules.largest(0) if rules else 0))

    def call() -> object:
        step = next(steps)
        computing.gradient(step, 0)
        if rules is None:
            return is_finite(buffer)
        pieces, _ = rules.push(0, buffer, kept, worker=0, step=step, turn=step)
        return frame.write(room, pieces)

    return call
