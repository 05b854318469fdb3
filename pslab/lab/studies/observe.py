"""observe(run) -> Observed: trains on one machine, describes the gradients by layer, and times pruning rules.

A record in results/observations/<digest>/ has the tables of TABLES, and manifest.json with the request and the devices.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
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
from pslab.lab.records.disk import check_sums, find_whole, read_manifest, read_table, write_record
from pslab.lab.records.record import default_results, environment
from pslab.lab.runs.machine import processor
from pslab.lab.runs.resolve import resolve
from pslab.tensors.device import DEVICES, one_thread
from pslab.tensors.finite import is_finite
from pslab.tensors.random_streams import restored_globals
from pslab.tensors.update.store import WeightStore
from pslab.tensors.workload.keyspace import Layer

FORMAT = 3  # to be raised when the same request would give another record
BINS = 10  # bins of the histogram per decade
RULES = ("static:10%", "static:1%", "static:0.1%", "std:1", "std:2", "std:3", "dynamic:5")
MOMENTS = (0.0, 0.01, 0.1, 0.5, 0.95)  # shares of the budget after which histograms are made
PERIODS = 40  # number of further descriptions, after equally many iterations
ROUNDS = 5  # rounds of timings; the spread of a cost is the range of their medians
WARM_UP = 3
SHARES = np.logspace(-5, 0, 81)
TOP = 0.01
Values = NDArray[np.float64]
#: The columns of each table; the first columns identify a row.
TABLES = {
    "layers": "iteration, layer, entries, zeros, std, kurtosis, tail1 to tail3 (shares beyond), top_share of the norm",
    "histogram": "iteration (a moment), layer, log10 (lower edge of a bin), count; zeros are in no bin",
    "concentration": "iteration (a moment), layer, sent_share of the entries, largest first; norm_share (squared norm)",
    "rules": "iteration, layer, rule, entries, sent, threshold (least |g| sent), norm_share",
    "costs": "device, operation (gradient, deviation or a rule), round, repeat, seconds",
}
NAMES = {"layer": "str", "rule": "str", "operation": "str"}  # texts, even if a layer is called 1
FOLDER = "observations"


@dataclass(frozen=True)
class Observed:
    """A completed observation; its attributes are the tables that TABLES describes."""

    path: Path
    manifest: Mapping[str, Any]
    cached: bool = field(default=True, compare=False)  #: whether the record existed before the request

    def __getattr__(self, name: str) -> pd.DataFrame:
        if name not in TABLES:
            raise AttributeError(name)
        table = self.__dict__[name] = read_table(self.path, name, self.manifest, NAMES)
        return table

    @classmethod
    def find(cls, digest: str, results: Path) -> Observed | None:
        """Return the recorded observation with this digest, or None; a damaged record is moved away (`find_whole`).

        Raises:
            RecordError: the record cannot be opened now.
        """
        path, names = results / FOLDER / digest, [f"{name}.csv" for name in TABLES]

        def read() -> dict[str, Any]:
            check_sums(path, manifest := read_manifest(path, names), names)
            return manifest

        manifest = find_whole(read) if path.is_dir() else None
        return None if manifest is None else cls(path, manifest)

    @classmethod
    def save(cls, digest: str, tables: Mapping[str, pd.DataFrame], facts: Mapping[str, Any], results: Path) -> Observed:
        """Write the record of an observation, and return the observation.

        Raises:
            Unwritable: the disk is full, or the folder cannot be written to.
        """
        path, files = results / FOLDER / digest, {f"{n}.csv": partial(tables[n].to_csv, index=False) for n in TABLES}
        manifest = write_record(path, {"digest": digest, **facts, "environment": environment()}, files)
        return cls(path, manifest, cached=False)

    @cached_property
    def shares(self) -> pd.DataFrame:
        """Return by device and operation the median seconds, their share of a gradient's median seconds, and share_low
        and share_high, the lowest and the highest share in a round."""

        def medians(*keys: str) -> pd.DataFrame:
            seconds = self.costs.groupby([*keys, "operation"], sort=False).seconds.median()
            return seconds.to_frame().assign(share=seconds / seconds.xs("gradient", level="operation"))

        rounds, costs = medians("device", "round").share.groupby(["device", "operation"]), medians("device")
        low, high = np.minimum(costs.share, rounds.min()), np.maximum(costs.share, rounds.max())
        return costs.assign(share_low=low, share_high=high)


def observe(
    run: Run,
    *,
    moments: Sequence[int] | None = None,
    every: int | None = None,
    rules: Sequence[str] = RULES,
    repeats: int = 9,
    results: Path | str | None = None,
) -> Observed:
    """Train on one thread, describe the gradients by layer and rule, and time each rule; or return a recorded result.

    Args:
        run: a run with one worker and a budget of pushes.
        moments: iterations whose gradients get histograms; None: the shares MOMENTS of the budget.
        every: number of iterations from one description to the next; None: the budget / PERIODS.
        rules: names of pruning rules.
        repeats: number of timings of each rule in each of ROUNDS rounds.

    Raises:
        ConfigError: the run or a rule is impossible, a moment lies outside the budget, or the training diverged.
    """
    wanted = request(run, moments, every, rules, repeats)
    digest = digest_of({"observation": FORMAT, **wanted, "run": run.digest})
    folder = default_results() if results is None else Path(results)
    if not run.unknown and (earlier := Observed.find(digest, folder)) is not None:
        return earlier
    experiment, built = resolve(run), {rule: build("prune", rule, "rules") for rule in wanted["rules"]}
    with one_thread(), restored_globals():
        training = Training(experiment)
        tables = _look(wanted, training, built)
        costs, names = _costs(repeats, training, built)
    facts = {"observation": {"run": run.plain(), **wanted}, "rounds": ROUNDS, "devices": names,
             "seconds": training.seconds}  # fmt: skip
    return Observed.save(digest, {**tables, "costs": costs}, facts, folder)


def request(
    run: Run, moments: Sequence[int] | None, every: int | None, rules: Sequence[str], repeats: int
) -> dict[str, Any]:
    """Return the checked arguments of `observe`, with defaults and the `iterations` whose gradients are described.

    Raises:
        ConfigError: there are several workers, no budget in pushes, no rules, or moments outside the budget.
    """
    if run.workers != 1:
        raise ConfigError("workers", run.workers, "observe trains with one worker: set workers=1")
    if run.pushes is None:
        raise ConfigError("pushes", None, "observe needs a budget in pushes: set pushes, such as 937")
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


def _whole_numbers(name: str, values: Any, low: int, high: int) -> list[int]:
    if isinstance(values, (str, bytes)) or not isinstance(values, Sequence) or not values:
        raise ConfigError(name, values, f"must be a list of whole numbers from {low} to {high}, or None")
    if any(isinstance(v, bool) or not isinstance(v, int) or not low <= v <= high for v in values):
        raise ConfigError(name, list(values), f"must have only whole numbers from {low} to {high}")
    return list(values)


# -- training --------------------------------------------------------------------------------------


class Training:
    """Trains on one machine, with the same batches, gradients and steps as a run with one worker, bit for bit."""

    def __init__(self, experiment: Experiment) -> None:
        self.experiment, self.seconds = experiment, 0.0
        self.on("cpu", experiment.weights)
        self.store = WeightStore(self.weights, experiment.parts, experiment.optimizer)
        #: the iteration whose gradient is timed, and the weights at its start
        self.kept: tuple[int, torch.Tensor] = (0, self.weights.clone())

    def on(self, device: str, weights: torch.Tensor) -> None:
        """Use this device for all further computation, with a copy of these weights."""
        experiment = dataclasses.replace(self.experiment, device=DEVICES[device])
        self.weights = weights.detach().clone().to(device)
        self.gradient = torch.zeros_like(self.weights)
        module = copy.deepcopy(experiment.shell).to(device).train()
        self._job = job_without_tensors(experiment)
        self._computing = Computing(self._job, 0, experiment.dataset, self.weights, [self.gradient], module)

    def compute(self, iteration: int) -> None:
        """Compute the gradient of an iteration's batch into `gradient`."""
        self._computing.gradient(iteration, 0)

    def step(self, iteration: int) -> None:
        """Apply the gradient that was computed last."""
        if not is_finite(self.gradient):
            problem = f"the training diverged in iteration {iteration} (NaN or inf): choose a lower learning rate"
            raise ConfigError("learning_rate", self.experiment.run.learning_rate, problem)
        self.store.step(0, [self.gradient], self._job.learning_rate(iteration))

    def layers(self) -> list[tuple[Layer, torch.Tensor]]:
        """Return each layer with its slice of the gradient."""
        return [(layer, self.gradient[layer.flat]) for layer in self.experiment.keyspace.layers]


# -- descriptions ----------------------------------------------------------------------------------


def _look(wanted: dict[str, Any], training: Training, rules: dict[str, Any]) -> dict[str, pd.DataFrame]:
    """Train until the budget is used up, and describe the gradients of the wanted iterations in tables."""
    start_s = time.monotonic()
    rows: dict[str, list[dict[str, Any]]] = {"layers": [], "histogram": [], "concentration": [], "rules": []}
    looks, moments = set(wanted["iterations"]), wanted["moments"]
    middle = moments[len(moments) // 2]
    for iteration in range(training.experiment.run.pushes or 0):
        training.compute(iteration)
        if iteration == middle:  # selection is timed on this iteration's gradient
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
    """Return the indices that a rule selects in a layer's vector; the rule returns indices or a mask."""
    indices = torch.as_tensor(rule.select(v)).cpu()
    return (indices.nonzero().flatten() if indices.dtype == torch.bool else indices).numpy()


def statistics(g: Values) -> dict[str, Any]:
    """Return a row of `layers`: kurtosis is m4 / m2² (3 for a Gaussian), tails are the shares of |g| > k std."""
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
    """Return rows of `histogram`: counts of entries by log10 |g| in bins of width 1 / BINS, without empty bins."""
    places = np.floor(BINS * np.log10(np.abs(g[g != 0]))).astype(np.int64)
    bins, counts = np.unique(places, return_counts=True)
    return [{"log10": int(edge) / BINS, "count": int(count)} for edge, count in zip(bins, counts, strict=True)]


def concentration(g: Values) -> list[dict[str, Any]]:
    """Return rows of `concentration`: the largest entries' share of the squared norm, by their share of the entries;
    [] if all entries are zero."""
    energy = np.cumsum(np.sort(g * g)[::-1])
    if not energy[-1] > 0:
        return []
    counts = np.unique(np.ceil(SHARES * len(g)).astype(np.int64).clip(1))
    return [{"sent_share": int(k) / len(g), "norm_share": float(energy[k - 1] / energy[-1])} for k in counts]


def selection(g: Values, indices: NDArray[np.int64]) -> dict[str, Any]:
    """Return a row of `rules`: the number of selected entries, their least |g| and their share of the squared norm."""
    sent, total = np.abs(g[indices]), float(np.sum(g * g))
    return {
        "entries": len(g), "sent": len(sent), "threshold": float(sent.min()) if len(sent) else math.nan,
        "norm_share": float(np.sum(sent * sent)) / total if total > 0 else math.nan,
    }  # fmt: skip


# -- costs -----------------------------------------------------------------------------------------


def _costs(repeats: int, training: Training, rules: dict[str, Any]) -> tuple[pd.DataFrame, dict[str, str]]:
    """Time a gradient and each rule after it, in turns, on one CPU thread and on a GPU if there is one; return the
    table `costs` and the devices' names."""
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
            for name, operation in operations.items():  # each after a gradient, so that the caches are as in a run
                gradients.append(_seconds(lambda: training.compute(iteration), device))
                rows.append(at | {"operation": name, "seconds": _seconds(operation, device)})
            rows.append(at | {"operation": "gradient", "seconds": float(np.median(gradients))})
    columns = ["device", "operation", "round", "repeat", "seconds"]
    return pd.DataFrame(rows)[columns], names


def _operations(training: Training, rules: dict[str, Any]) -> dict[str, Callable[[], object]]:
    """Return the timed operations, each over all layers: torch.std, and the selection of each rule."""
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
    """Return the devices on which rules are timed, "cpu" and perhaps "cuda", with the names of their models."""
    names = {"cpu": processor()}
    if torch.cuda.is_available():
        names["cuda"] = torch.cuda.get_device_name(0)
    return names
