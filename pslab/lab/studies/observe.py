"""observe(Observation) -> Observed: train on one machine, describe the gradients by layer, and time their selection."""

from __future__ import annotations

import copy
import dataclasses
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from pslab.config.spec import build
from pslab.engines.experiment.experiment import Experiment
from pslab.engines.virtual.timing import job_without_tensors
from pslab.engines.worker.gradient import Computing
from pslab.errors import ConfigError
from pslab.lab.records.record import default_results
from pslab.lab.runs.machine import processor
from pslab.lab.runs.resolve import resolve
from pslab.lab.studies.observation import BINS, Observation, Observed
from pslab.tensors.device import DEVICES, one_thread
from pslab.tensors.finite import is_finite
from pslab.tensors.random_streams import restored_globals
from pslab.tensors.update.store import WeightStore
from pslab.tensors.workload.keyspace import Layer

ROUNDS = 5  # a round's median is one value; between their lowest and highest lies the spread
WARM_UP = 3
SHARES = np.logspace(-5, 0, 81)
TOP = 0.01
Values = NDArray[np.float64]


def observe(wanted: Observation, *, results: Path | str | None = None) -> Observed:
    """The record of an observation: from disk if there is one, else from a training on one thread.

    Raises:
        ConfigError: an impossible run or rule, or the training diverged.
    """
    place = default_results() if results is None else Path(results)
    if not wanted.run.unknown and (found := Observed.find(wanted, place)) is not None:
        return found
    experiment, rules = check(wanted)
    with one_thread(), restored_globals():
        training = Training(experiment)
        tables = _look(wanted, training, rules)
        costs, devices = _costs(wanted, training, rules)
    facts = {"observation": wanted.plain(), "rounds": ROUNDS, "devices": devices, "seconds": training.seconds}
    return Observed.save(wanted, {**tables, "costs": costs}, facts, place)


def check(wanted: Observation) -> tuple[Experiment, dict[str, Any]]:
    """The experiment, and each rule's object; nothing is started.

    Raises:
        ConfigError: an impossible run, or a rule's name or parameters are wrong.
    """
    return resolve(wanted.run), {rule: build("prune", rule, "rules") for rule in wanted.rules}


# -- training --------------------------------------------------------------------------------------


class Training:
    """One machine's training: the gradients, batches and steps of a run with one worker, bit for bit."""

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
        """The gradient of an iteration's batch, on the device where the weights are."""
        self._computing.gradient(iteration, 0)

    def step(self, iteration: int) -> None:
        """One step by that gradient."""
        if not is_finite(self.gradient):
            problem = f"the gradient of iteration {iteration} is not finite: the training diverged; choose a lower one"
            raise ConfigError("learning_rate", self.experiment.run.learning_rate, problem)
        self.store.step(0, [self.gradient], self._job.learning_rate(iteration))

    def layers(self) -> list[tuple[Layer, torch.Tensor]]:
        """Each layer with its slice of the gradient."""
        return [(layer, self.gradient[layer.flat]) for layer in self.experiment.keyspace.layers]


# -- looking ---------------------------------------------------------------------------------------


def _look(wanted: Observation, training: Training, rules: dict[str, Any]) -> dict[str, pd.DataFrame]:
    """Train through the budget, and describe the gradient at the wanted iterations."""
    start_s = time.monotonic()
    rows: dict[str, list[dict[str, Any]]] = {"layers": [], "histogram": [], "concentration": [], "rules": []}
    looks, moments = set(wanted.iterations), set(wanted.moments or ())
    middle = sorted(moments)[len(moments) // 2]
    for iteration in range(wanted.run.pushes or 0):
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
    return {name: pd.DataFrame(found) for name, found in rows.items()}


def chosen(rule: Any, v: torch.Tensor) -> NDArray[np.int64]:
    """The indices that a rule selects of a layer's vector, as a rule gives them or from its mask."""
    found = torch.as_tensor(rule.select(v)).cpu()
    return (found.nonzero().flatten() if found.dtype == torch.bool else found).numpy()


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
    return [{"log10": int(place) / BINS, "count": int(count)} for place, count in zip(bins, counts, strict=True)]


def concentration(g: Values) -> list[dict[str, Any]]:
    """The share of the squared norm that the largest entries carry, by their share of all entries."""
    kept = np.cumsum(np.sort(g * g)[::-1])
    if not kept[-1] > 0:
        return []
    counts = np.unique(np.ceil(SHARES * len(g)).astype(np.int64).clip(1))
    return [{"sent_share": int(k) / len(g), "norm_share": float(kept[k - 1] / kept[-1])} for k in counts]


def selection(g: Values, indices: NDArray[np.int64]) -> dict[str, Any]:
    """What a rule would send of one layer: how many entries, from which |g| on, and their share of the squared norm."""
    sent, total = np.abs(g[indices]), float(np.sum(g * g))
    return {
        "entries": len(g), "sent": len(sent), "threshold": float(sent.min()) if len(sent) else math.nan,
        "norm_share": float(np.sum(sent * sent)) / total if total > 0 else math.nan,
    }  # fmt: skip


# -- costs -----------------------------------------------------------------------------------------


def _costs(wanted: Observation, training: Training, rules: dict[str, Any]) -> tuple[pd.DataFrame, dict[str, str]]:
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
        for turn in range(ROUNDS * wanted.repeats):
            at = {"device": device, "round": turn // wanted.repeats, "repeat": turn % wanted.repeats}
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
    found = {"cpu": processor()}
    if torch.cuda.is_available():
        found["cuda"] = torch.cuda.get_device_name(0)
    return found
