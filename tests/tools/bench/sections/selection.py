"""Pruning on one thread: selection in passes over the gradient, and all of pruning as a share of an iteration."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle

import numpy as np
import torch
from torch.nn import functional

from pslab.config.spec import build
from pslab.tensors.device import one_thread
from pslab.tensors.pruning.pruner import Pruner
from pslab.tensors.pruning.rules import Deviation, Rule, Static
from pslab.tensors.workload.keyspace import Keyspace
from pslab.tensors.workload.models import build_model
from tools.bench.measure import Row, interleaved

SECTION = "2 pruning"
THRESHOLDS = ("static:10%", "static:1%", "static:0.1%", "std:1", "std:2", "std:3", "dynamic:5", "dgc:1%,warm_up=0",
              "dgc:0.1%,warm_up=0")  # fmt: skip
SIZES = (1_000_000, 25_000_000)  # within the cache and beyond it
BARS = {0.015: (4.0, 1.5), 0.12: (30.0, 8.0)}  # density, at most -> passes, within the cache and beyond it
SHARE_BAR, BATCH_SIZE = 0.06, 128  # of an iteration, pruning with all that belongs to it
CACHE_ENTRIES = 1 << 22


def rows(quick: bool) -> list[Row]:
    """Every threshold of the thesis at both sizes, for Laplace and Gaussian gradients; then the shares."""
    seconds = 1.0 if quick else 6.0
    with one_thread():
        passes = [row for n in SIZES for kind in DRAWS for row in selections(n, kind, seconds)]
        return passes + shares(seconds / 4)


def selections(n: int, kind: str, seconds: float) -> list[Row]:
    """The selection of each rule from n float32, compared with plain torch where it has the same."""
    count = 2 if n <= CACHE_ENTRIES else 1  # two in turn, so that branches are not predicted by repetition
    vectors = [DRAWS[kind](n, torch.Generator().manual_seed(seed)) for seed in range(count)]
    turns = cycle(vectors)
    rules: dict[str, Rule] = {text: build("prune", text) for text in THRESHOLDS}
    calls: dict[str, Callable[[], object]] = {
        "max": lambda: np.max(next(turns).numpy()),
        "sum": lambda: torch.sum(next(turns)),
    }
    for text, rule in rules.items():
        calls[text] = lambda rule=rule: rule.select(next(turns))  # type: ignore[misc]
        if peer := _peer(rule, n):
            calls[f"{text} in torch"] = lambda peer=peer: peer(next(turns))  # type: ignore[misc]
    spent_s = interleaved(calls, seconds)
    pass_s = min(spent_s["max"], spent_s["sum"])
    found = []
    for text, rule in rules.items():
        density = len(rule.select(vectors[0])) / n
        peer_s = spent_s.get(f"{text} in torch")
        note = f"sends {density:.2%}" + (f"; torch's operators: {peer_s / pass_s:.3g}" if peer_s else "")
        found.append(Row(SECTION, f"{text} of {n / 1e6:g} M, {kind}", spent_s[text] * 1e3, "ms", "a read pass",
                         spent_s[text] / pass_s, bar(density, n), note))  # fmt: skip
    return found


def shares(seconds: float) -> list[Row]:
    """Selection and all of pruning, compared with an iteration of the thesis's MLP; they alternate as in a run."""
    module = build_model("mlp", 0)
    space = Keyspace.of(module)
    gradient = torch.zeros(space.size)
    space.bind(module, space.flatten(module), gradient)
    generator = torch.Generator().manual_seed(0)
    x, y = torch.rand(BATCH_SIZE, 784, generator=generator), torch.arange(BATCH_SIZE) % 10
    layers = [slice(layer.flat.start, layer.flat.stop) for layer in space.layers]

    def iteration() -> None:
        gradient.zero_()
        functional.cross_entropy(module(x.roll(1, 0)), y).backward()  # type: ignore[no-untyped-call]

    found = []
    for text in THRESHOLDS:
        rule = build("prune", text)
        pruner = Pruner.of(rule, space, gradient.dtype)

        def select(rule: Rule = rule) -> None:
            for layer in layers:
                rule.select(gradient[layer])

        spent_s = interleaved({"iteration": iteration, "pruning": lambda p=pruner: p.prune(gradient, 0),  # type: ignore[misc]
                               "selection": select}, seconds)  # fmt: skip
        density, iteration_s = len(pruner.prune(gradient, 0)[0]) / space.size, spent_s["iteration"]
        for what, words in (("selection", "selection alone"), ("pruning", "pruning with its residual")):
            bar_ = SHARE_BAR if density <= min(BARS) and what == "pruning" else None
            found.append(Row(SECTION, f"{text}: {words}", spent_s[what] * 1e3, "ms",
                             f"an iteration of {iteration_s * 1e3:.3g} ms", spent_s[what] / iteration_s, bar_,
                             f"batch {BATCH_SIZE}"))  # fmt: skip
    return found


def bar(density: float, n: int) -> float | None:
    """The largest number of passes for a selection of this density; None if none is set."""
    return next((bars[n > CACHE_ENTRIES] for most, bars in BARS.items() if density <= most), None)


def _gaussian(n: int, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(n, generator=generator)


def _laplace(n: int, generator: torch.Generator) -> torch.Tensor:
    magnitudes = torch.empty(n).exponential_(generator=generator)
    return magnitudes.mul_(torch.randint(0, 2, (n,), generator=generator).mul_(2).sub_(1))


DRAWS: dict[str, Callable[[int, torch.Generator], torch.Tensor]] = {"gaussian": _gaussian, "laplace": _laplace}


def _peer(rule: Rule, n: int) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """The same selection by operators of torch, which may choose differently among ties."""
    if isinstance(rule, Static):
        k = rule.count(n)
        return lambda v: torch.topk(v.abs(), k).indices
    if isinstance(rule, Deviation):
        sigmas = rule.sigmas
        return lambda v: (v.abs() > sigmas * v.std(correction=0)).nonzero()
    return None
