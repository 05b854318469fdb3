"""observe(run) -> Observed: train on one machine, describe the gradients by layer, and time their selection."""

from __future__ import annotations

import copy
import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from pslab.config.run import Run, digest_of
from pslab.config.spec import build
from pslab.engines.experiment.experiment import Experiment
from pslab.engines.virtual.timing import job_without_tensors
from pslab.engines.worker.gradient import Computing
from pslab.errors import ConfigError
from pslab.lab.records.record import default_results
from pslab.lab.runs.machine import processor
from pslab.lab.runs.resolve import resolve
from pslab.lab.studies.observed import Observed
from pslab.tensors.device import DEVICES, one_thread
from pslab.tensors.finite import is_finite
from pslab.tensors.random_streams import restored_globals
from pslab.tensors.update.store import WeightStore
from pslab.tensors.workload.keyspace import Layer

FORMAT = 3  # raise it whenever the same request would give another record
BINS = 10  # of the histogram, per decade
RULES = ("static:10%", "static:1%", "static:0.1%", "std:1", "std:2", "std:3", "dynamic:5")
MOMENTS = (0.0, 0.01, 0.1, 0.5, 0.95)  # shares of the budget
PERIODS = 40  # described in between, at equal distances
ROUNDS = 5  # a round's median is one value; between their lowest and highest lies the spread
WARM_UP = 3
SHARES = np.logspace(-5, 0, 81)
TOP = 0.01
Values = NDArray[np.float64]


def observe(
    run: Run,
    *,
    moments: Sequence[int] | None = None,
    every: int | None = None,
    rules: Sequence[str] = RULES,
    repeats: int = 9,
    results: Path | str | None = None,
) -> Observed:
    """Train on one thread, describe the gradients by layer and rule, and time the selection; or read the record of it.

    Args:
        run: of one worker, with a budget of pushes.
        moments: iterations of the histograms; None: the shares MOMENTS of the budget.
        every: iterations between two descriptions; None: a PERIODS-th of the budget.
        rules: names of pruning rules.
        repeats: timings of each rule in each of ROUNDS rounds.

    Raises:
        ConfigError: an impossible run or rule, moments outside of the budget, or the training diverged.
    """
    wanted = request(run, moments, every, rules, repeats)
    digest, folder = _digest(run, wanted), default_results() if results is None else Path(results)
    if not run.unknown and (earlier := Observed.find(digest, folder)) is not None:
        return earlier
    experiment, built = resolve(run), {rule: build("prune", rule, "rules") for rule in wanted["rules"]}
    with one_thread(), restored_globals():
        training = Training(experiment)
        tables = _look(wanted, training, built)
        costs, names = _costs(repeats, training, built)
    facts = {"observation": {"run": run.plain(), **wanted}, "rounds": ROUNDS, "devices": names}
    facts["seconds"] = training.seconds
    return Observed.save(digest, {**tables, "costs": costs}, facts, folder)


def request(
    run: Run, moments: Sequence[int] | None, every: int | None, rules: Sequence[str], repeats: int
) -> dict[str, Any]:
    """The checked arguments of `observe`, with their defaults and all `iterations` to be described.

    Raises:
        ConfigError: several workers or no budget in pushes, moments outside of the budget, no rules.
    """
    if run.workers != 1 or run.pushes is None:
        raise ConfigError("pushes", run.pushes, "observing takes one worker and a budget: set workers=1 and pushes")
    last = run.pushes - 1
    shares = [round(share * last) for share in MOMENTS]
    chosen = sorted(set(_whole_numbers("moments", shares if moments is None else moments, 0, last)))
    (every,) = _whole_numbers("every", [max(1, run.pushes // PERIODS) if every is None else every], 1, 10**9)
    listed = isinstance(rules, Sequence) and not isinstance(rules, str)
    if not listed or not rules or not all(isinstance(rule, str) for rule in rules):
        raise ConfigError("rules", rules, "must be a list of pruners, such as ['static:1%', 'std:2']")
    _whole_numbers("repeats", [repeats], 1, 10_000)
    iterations = sorted({*chosen, *range(0, run.pushes, every)})
    return {"moments": chosen, "rules": list(dict.fromkeys(rules)), "repeats": repeats, "iterations": iterations}


def _digest(run: Run, wanted: dict[str, Any]) -> str:
    return digest_of({"observation": FORMAT, **wanted, "run": run.digest})


def _whole_numbers(name: str, values: Any, low: int, high: int) -> list[int]:
    if isinstance(values, (str, bytes)) or not isinstance(values, Sequence) or not values:
        raise ConfigError(name, values, f"must be a list of iterations from {low} to {high}, or None")
    if any(isinstance(v, bool) or not isinstance(v, int) or not low <= v <= high for v in values):
        raise ConfigError(name, list(values), f"must be whole, from {low} to {high}")
    return list(values)


# -- training --------------------------------------------------------------------------------------


class Training:
    """The training of one machine: the gradients, batches and steps of a run with one worker, bit for bit."""

    def __init__(self, experiment: Experiment) -> None:
        self.experiment, self.seconds = experiment, 0.0
        self.on("cpu", experiment.weights)
        self.store = WeightStore(self.weights, experiment.parts, experiment.optimizer)
        self.kept: tuple[int, torch.Tensor] = (0, self.weights.clone())  #: an iteration, and the weights at its start

    def on(self, device: str, weights: torch.Tensor) -> None:
        """Compute on this device from now on, with a copy of these weights."""
        experiment = dataclasses.replace(self.experiment, device=DEVICES[device])
        self.weights = weights.detach().clone().to(device)
        self.gradient = torch.zeros_like(self.weights)
        module = copy.deepcopy(experiment.shell).to(device).train()
        self._job = job_without_tensors(experiment)
        self._computing = Computing(self._job, 0, experiment.dataset, self.weights, [self.gradient], module)

    def compute(self, iteration: int) -> None:
        """Compute the gradient of an iteration's batch, on the device of the weights."""
        self._computing.gradient(iteration, 0)

    def step(self, iteration: int) -> None:
        """Take a step by that gradient."""
        if not is_finite(self.gradient):
            problem = f"the gradient of iteration {iteration} is not finite: the training diverged; choose a lower one"
            raise ConfigError("learning_rate", self.experiment.run.learning_rate, problem)
        self.store.step(0, [self.gradient], self._job.learning_rate(iteration))

    def layers(self) -> list[tuple[Layer, torch.Tensor]]:
        """Each layer with its slice of the gradient."""
        return [(layer, self.gradient[layer.flat]) for layer in self.experiment.keyspace.layers]


# -- looking ---------------------------------------------------------------------------------------


def _look(wanted: dict[str, Any], training: Training, rules: dict[str, Any]) -> dict[str, pd.DataFrame]:
    """Train through the budget, and describe the gradient at the wanted iterations."""
    start_s = time.monotonic()
    rows: dict[str, list[dict[str, Any]]] = {"layers": [], "histogram": [], "concentration": [], "rules": []}
    looks, moments = set(wanted["iterations"]), wanted["moments"]
    middle = moments[len(moments) // 2]
    for iteration in range(training.experiment.run.pushes or 0):
        training.compute(iteration)
        if iteration == middle:  # what the selection is timed on
            training.kept = (iteration, training.weights.clone())
        for layer, v in training.layers() if iteration in looks else ():
            at = {"iteration": iteration, "layer": layer.name}
            g = v.numpy().astype(np.float64)
            rows["layers"].append(at | statistics(g))
            rows["rules"] += [at | {"rule": name, **selection(g, chosen(rule, v))} for name, rule in rules.items()]
            if iteration in moments:
                rows["histogram"] += [at | row for row in histogram(g)]
                rows["concentration"] += [at | row for row in concentration(g)]
        training.step(iteration)
    training.seconds = time.monotonic() - start_s
    return {name: pd.DataFrame(table) for name, table in rows.items()}


def chosen(rule: Any, v: torch.Tensor) -> NDArray[np.int64]:
    """The indices that a rule selects of a layer's vector, as a rule gives them or from its mask."""
    indices = torch.as_tensor(rule.select(v)).cpu()
    return (indices.nonzero().flatten() if indices.dtype == torch.bool else indices).numpy()


def statistics(g: Values) -> dict[str, Any]:
    """Statistics of one layer's gradient. Kurtosis is m4 / m2², 3 for a Gaussian; tails are shares of |g| > k std."""
    squares, std = g * g, float(g.std())
    centred = g - g.mean()
    fourth = float(np.mean(centred**4))
    tails = {f"tail{k}": float(np.mean(np.abs(g) > k * std)) for k in (1, 2, 3)}
    largest = np.sort(squares)[::-1][: math.ceil(TOP * len(g))]
    total = float(squares.sum())
    return {
        "entries": len(g), "zeros": int(np.count_nonzero(g == 0)), "std": std,
        "kurtosis": fourth / std**4 if std > 0 else math.nan, **tails,
        "top_share": float(largest.sum()) / total if total > 0 else math.nan,
    }  # fmt: skip


def histogram(g: Values) -> list[dict[str, Any]]:
    """How many entries have log10 |g| in each bin of width 1 / BINS, for bins that have any; zeros are in none."""
    places = np.floor(BINS * np.log10(np.abs(g[g != 0]))).astype(np.int64)
    bins, counts = np.unique(places, return_counts=True)
    return [{"log10": int(edge) / BINS, "count": int(count)} for edge, count in zip(bins, counts, strict=True)]


def concentration(g: Values) -> list[dict[str, Any]]:
    """The share of the squared norm that the largest entries carry, by their share of all entries."""
    energy = np.cumsum(np.sort(g * g)[::-1])
    if not energy[-1] > 0:
        return []
    counts = np.unique(np.ceil(SHARES * len(g)).astype(np.int64).clip(1))
    return [{"sent_share": int(k) / len(g), "norm_share": float(energy[k - 1] / energy[-1])} for k in counts]


def selection(g: Values, indices: NDArray[np.int64]) -> dict[str, Any]:
    """The selection of a rule in a layer: the number of entries, the least |g|, and their share of the squared norm."""
    sent, total = np.abs(g[indices]), float(np.sum(g * g))
    return {
        "entries": len(g), "sent": len(sent), "threshold": float(sent.min()) if len(sent) else math.nan,
        "norm_share": float(np.sum(sent * sent)) / total if total > 0 else math.nan,
    }  # fmt: skip


# -- costs -----------------------------------------------------------------------------------------


def _costs(repeats: int, training: Training, rules: dict[str, Any]) -> tuple[pd.DataFrame, dict[str, str]]:
    """Seconds of a gradient and of what may follow it, in turns, on one CPU thread and on the GPU if there is one."""
    iteration, weights = training.kept
    names = devices()
    rows: list[dict[str, Any]] = []
    for device in names:
        training.on(device, weights)
        operations = _operations(training, rules)
        for _ in range(WARM_UP):
            for operation in operations.values():
                training.compute(iteration)
                operation()
        for turn in range(ROUNDS * repeats):
            at = {"device": device, "round": turn // repeats, "repeat": turn % repeats}
            gradients = []
            for name, operation in operations.items():  # each after a gradient, as in a run: caches are as they are
                gradients.append(_seconds(lambda: training.compute(iteration), device))
                rows.append(at | {"operation": name, "seconds": _seconds(operation, device)})
            rows.append(at | {"operation": "gradient", "seconds": float(np.median(gradients))})
    columns = ["device", "operation", "round", "repeat", "seconds"]
    return pd.DataFrame(rows)[columns], names


def _operations(training: Training, rules: dict[str, Any]) -> dict[str, Callable[[], object]]:
    """The standard deviation alone, by torch.std, and each rule's selection, over all layers."""
    parts = [v for _, v in training.layers()]

    def selects(rule: Any) -> Callable[[], object]:
        return lambda: [rule.select(v) for v in parts]

    return {"deviation": lambda: [v.std() for v in parts], **{name: selects(rule) for name, rule in rules.items()}}


def _seconds(operation: Callable[[], object], device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    start_s = time.perf_counter()
    operation()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start_s


def devices() -> dict[str, str]:
    """The devices that selection is timed on, with their names."""
    names = {"cpu": processor()}
    if torch.cuda.is_available():
        names["cuda"] = torch.cuda.get_device_name(0)
    return names
