"""Costs of compression on one thread: selection and codes in passes over the gradient; pruning in training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import count, cycle

import numpy as np
import torch

from pslab.config.run import Run
from pslab.config.spec import build
from pslab.config.table import ROWS
from pslab.engines.experiment.job import Job
from pslab.engines.experiment.layout import Layout
from pslab.engines.experiment.shared_dataset import SharedDataset
from pslab.engines.experiment.shared_memory import Arena
from pslab.engines.worker.gradient import Computing, module_of
from pslab.lab.runs.resolve import resolve
from pslab.tensors.compression import frame
from pslab.tensors.compression.pieces import Compression
from pslab.tensors.compression.rule import At
from pslab.tensors.compression.sparse import Chosen, Deviation, Static
from pslab.tensors.device import one_thread
from pslab.tensors.finite import is_finite
from tools.bench.measure import Row, interleaved

THRESHOLDS = ("static:10%", "static:1%", "static:0.1%", "std:1", "std:2", "std:3", "dynamic:5", "dgc:1%,warm_up=0",
              "dgc:0.1%,warm_up=0")  # fmt: skip
SIZES = (1_000_000, 25_000_000)  # within the cache and beyond it
BARS = {0.015: (4.0, 1.5), 0.12: (30.0, 8.0)}  # density, at most -> passes, within the cache and beyond it
BATCH_SIZE = 128
TRAINED_BARS = {"static": 0.03, "std": 0.03, "dynamic": 0.1, "dgc": 0.1}  # shares of an iteration
CACHE_ENTRIES = 1 << 22


def rows(quick: bool) -> Iterator[Row]:
    """Every threshold of the thesis at both sizes, for Laplace and Gaussian gradients; codes; then training."""
    seconds = 1.0 if quick else 6.0
    with one_thread():
        for n in SIZES:
            for kind in DRAWS:
                yield from selections(n, kind, seconds)
        yield from codes(SIZES[0], seconds)
        yield from as_trained(seconds)


def selections(n: int, kind: str, seconds: float) -> Iterator[Row]:
    """The selection of each rule from n float32, compared with plain torch where it has the same."""
    count = 2 if n <= CACHE_ENTRIES else 1  # two in turn, so that branches are not predicted by repetition
    vectors = [DRAWS[kind](n, torch.Generator().manual_seed(seed)) for seed in range(count)]
    turns = cycle(vectors)
    rules: dict[str, Chosen] = {text: build("prune", text) for text in THRESHOLDS}
    chosen: dict[str, Callable[[torch.Tensor], object]] = {"max": lambda v: np.max(v.numpy()), "sum": torch.sum}
    for text, rule in rules.items():
        at = At(shape=(n // 1000, 1000), memory={"numbers": torch.zeros(1)})
        chosen[text] = partial(rule.select, at=at)
        if (same := in_torch(rule, n)) is not None:
            chosen[f"{text} in torch"] = same
    spent = interleaved({name: lambda each=each: each(next(turns))  # type: ignore[misc]
                         for name, each in chosen.items()}, seconds)  # fmt: skip
    pass_s = min(spent["max"], spent["sum"])
    for text in rules:
        density, torch_s = len(rules[text].select(vectors[0], at)) / n, spent.get(f"{text} in torch")
        note = f"sends {density:.2%}" + (f"; torch's operators: {torch_s / pass_s:.3g}" if torch_s else "")
        bar = next((bars[n > CACHE_ENTRIES] for most, bars in BARS.items() if density <= most), None)
        yield Row(f"{text} of {n / 1e6:g} M, {kind}", spent[text], pass_s, "a read pass", bar, note=note)


def codes(n: int, seconds: float) -> Iterator[Row]:
    """The code of n Gaussian float32 by each quantization rule, and the reading of it, in passes as for selection."""
    v = DRAWS["gaussian"](n, torch.Generator().manual_seed(0))
    calls: dict[str, Callable[[], object]] = {"max": lambda: np.max(v.numpy()), "float64": v.double}
    sizes = dict[str, int]()
    for text in [row.example or name for name, row in ROWS["quantize"].items() if name != "none"]:
        rule = build("quantize", text)
        at = At(shape=(n,), memory={"average": torch.zeros(n)})
        parts = rule.compress(v, at)
        sizes[text] = frame.length([parts])
        written = [part.view(torch.uint8) for part in parts]
        calls[f"{text}: encode"] = partial(rule.compress, v, at)
        calls[f"{text}: decode"] = partial(rule.decompress, written, at)
    spent = interleaved(calls, seconds)
    pass_s = spent.pop("max")
    for name, taken_s in spent.items():
        size = sizes.get(name.partition(": ")[0])
        note = f"{8 * size / n:.3g} bits a value" if size else "a copy as float64"
        yield Row(f"{name} of {n / 1e6:g} M", taken_s, pass_s, "a read pass", note=note)


def pushed(rules: Compression, gradient: torch.Tensor) -> Callable[[], tuple[int, int]]:
    """Pushes of a gradient by one worker, again and again: the bytes and the entries of each."""
    kept = {name: memory.zeros("cpu") for name, memory in rules.memories.items()}
    room, steps = memoryview(bytearray(rules.largest(0))), count()

    def push() -> tuple[int, int]:
        step = next(steps)
        pieces, entries = rules.push(0, gradient, kept, worker=0, step=step, turn=step)
        return frame.write(room, pieces), entries

    return push


def as_trained(seconds: float) -> Iterator[Row]:
    """What a rule adds to an iteration of a worker."""
    dense, usual = _iteration("none")
    for text in THRESHOLDS:
        pruned, _ = _iteration(text)
        spent = interleaved({"dense": dense, "pruned": pruned}, seconds)
        yield Row(f"{text}: pruning in training", spent["pruned"] - spent["dense"], spent["dense"],
                  f"a dense iteration of {spent['dense'] * 1e3:.3g} ms", TRAINED_BARS[text.partition(":")[0]],
                  note=f"batch {BATCH_SIZE}; {usual} weights")  # fmt: skip


def _iteration(prune: str) -> tuple[Callable[[], object], int]:
    """A worker's gradients of the thesis's MLP, one for each call, and their pushes by this rule; its weights."""
    run = Run(engine="virtual", cluster="lab", workers=1, batch_size=BATCH_SIZE, prune=prune, data="mnist:4096,256")
    experiment, data = resolve(run), Arena()
    layout = Layout.of(experiment)
    job = Job.of(experiment, layout, SharedDataset.store(data, experiment.dataset))
    buffer, steps = torch.zeros(layout.size), count()
    computing = Computing(job, 0, job.shelf.dataset(data), experiment.weights.clone(), [buffer],
                          module_of(job, experiment.device))  # fmt: skip
    computing.warm_up()
    push = None if job.compression is None else pushed(job.compression, buffer)

    def call() -> object:
        computing.gradient(next(steps), 0)
        return is_finite(buffer) if push is None else push()

    return call, layout.size


def _laplace(n: int, generator: torch.Generator) -> torch.Tensor:
    magnitudes = torch.empty(n).exponential_(generator=generator)
    return magnitudes.mul_(torch.randint(0, 2, (n,), generator=generator).mul_(2).sub_(1))


DRAWS: dict[str, Callable[[int, torch.Generator], torch.Tensor]] = {
    "gaussian": lambda n, generator: torch.randn(n, generator=generator), "laplace": _laplace
}  # fmt: skip


def in_torch(rule: Chosen, n: int) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """The same selection by operators of torch, which may choose differently among ties; None if torch has none."""
    if isinstance(rule, Static):
        k = rule.sends(n, At())
        return lambda v: torch.topk(v.abs(), k).indices
    if isinstance(rule, Deviation):
        sigmas = rule.sigmas
        return lambda v: (v.abs() > sigmas * v.std(correction=0)).nonzero()
    return None
