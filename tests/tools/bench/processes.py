"""Sections on real processes: rounds with and without training, on one machine and by Ray, layers, MNIST, start-up."""

from __future__ import annotations

import itertools
import multiprocessing as mp
import time
from collections.abc import Iterator
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import nn

from pslab.config.cluster import Cluster
from pslab.config.run import Run
from pslab.config.spec import build
from pslab.config.table import ROWS
from pslab.engines.experiment.experiment import Experiment
from pslab.engines.local.engine import execute
from pslab.engines.local.pace import KEPT_SHARE
from pslab.engines.processes import pool as pools
from pslab.engines.ray import actors
from pslab.engines.ray.actors import load_ray
from pslab.errors import StartFailed
from pslab.lab.runs.calibrate import calibrate
from pslab.lab.runs.resolve import POLICIES, resolve
from pslab.tensors.device import one_thread
from pslab.tensors.update.optimizers import resolve_optimizer
from pslab.tensors.update.part import Part
from pslab.tensors.workload.data import Dataset
from pslab.tensors.workload.keyspace import Keyspace
from pslab.tensors.workload.models import build_model
from tools.bench.measure import Row, alternated, copy_s, facts_of, ignore
from tools.bench.peers import Peers, Training, peers
from tools.bench.ray_example import Example

# --- rounds without training: every worker pushes a gradient and pulls the new weights, by the full protocol ----------

ROW = 64  # weights per neuron of a model without computation
SMALL, MLP, LARGE = 256, 932_352, 25_000_000  # parameters: 1 KB; the thesis's MLP; 25 million
ROUNDS = {SMALL: 2000, MLP: 300, LARGE: 12}
COPIES_BAR = {MLP: 1.5, LARGE: 1.2}
IN_PLACE_BAR, LATENCY_BAR_S = 1.5, 10e-6
GLOO_BARS = {(2, MLP): 1 / 3.5, (2, LARGE): 1 / 1.8}  # by workers and size
RAY = {"cpus": 0.1}  # few cores do for all actors
RAY_ROUNDS = {"37 KB": ("mlp:11", 200), "3.7 MB": ("mlp", 50), "100 MB": ("mlp:3342", 6)}  # models, and rounds


def exchange(size: int, ranges: int = 1, **fields: object) -> Experiment:
    """Workers that push gradients of at least `size` zeros, in whole neurons, pull the weights, and compute nothing."""
    run = Run.of({"batch_size": 1, "learning_rate": 1e-6, **fields})
    with torch.device("meta"):
        shell = nn.Linear(ROW, -(-size // ROW), bias=False)
    keyspace = Keyspace.of(shell)
    bounds = [keyspace.size * i // ranges for i in range(ranges + 1)]
    parts = tuple(Part((slice(low, high),)) for low, high in itertools.pairwise(bounds))
    x, y = torch.zeros(run.workers, ROW), torch.zeros(run.workers, dtype=torch.int64)
    policies = {field: build(field, str(getattr(run, field))) for field in POLICIES}
    return Experiment(
        run=run, cluster=Cluster(), optimizer=resolve_optimizer(run.optimizer), shell=shell, keyspace=keyspace,
        dataset=Dataset("nothing", x, y, x, y, mean=0.0, std=1.0, classes=1),
        weights=torch.zeros(1).expand(keyspace.size), parts=parts, trains=False, **policies,
    )  # fmt: skip


def round_s(size: int, workers: int, sync: str, rounds: int, **fields: Any) -> float:
    """Seconds per round of an engine on real processes, including its protocol and its records."""
    experiment = exchange(size, workers=workers, sync=sync, pushes=rounds * workers, **fields)
    engine = ROWS["engine"][experiment.run.engine].load()
    return float(engine.execute(experiment, ignore).facts["seconds"]) / rounds


def rounds(quick: bool) -> Iterator[Row]:
    """BSP without links reads weights in place; SSP with s = 0 does the same rounds with copies."""
    repeats, count = 3 if quick else 7, ROUNDS[SMALL]
    with peers(1) as others:
        spent = alternated({"pslab": partial(round_s, SMALL, 1, "bsp", count),
                            "pickled": partial(others.seconds, "pickled", SMALL, count)}, repeats)  # fmt: skip
    yield Row("1 KB, W=1", spent["pslab"], spent["pickled"], "pickled pipes", LATENCY_BAR_S / spent["pickled"], "us",
              "the bar is 10 us")  # fmt: skip
    for workers in (2, 4):
        with peers(workers) as others:
            for size in (MLP, LARGE):
                yield from _rounds_of(others, size, repeats)


def _rounds_of(others: Peers, size: int, repeats: int) -> Iterator[Row]:
    workers, count = others.workers, ROUNDS[size]
    few = max(2, count // 10)
    spent = alternated(
        {"in place": partial(round_s, size, workers, "bsp", count),
         "with copies": partial(round_s, size, workers, "ssp:0", count),
         "reference with copies": partial(others.seconds, "copies", size, count),
         "reference in place": partial(others.seconds, "in_place", size, count),
         "gloo all-reduce": partial(others.seconds, "gloo", size, few),
         "pickled pipes": partial(others.seconds, "pickled", size, few)}, repeats,
    )  # fmt: skip
    spent["one copy of the model"] = copy_s(size, 0.5)
    for what, against, bar in (
        ("with copies", "reference with copies", COPIES_BAR[size]),
        ("in place", "reference with copies", COPIES_BAR[size]),
        ("in place", "reference in place", IN_PLACE_BAR),
        ("in place", "gloo all-reduce", GLOO_BARS.get((workers, size))),
        ("in place", "pickled pipes", None),
        ("in place", "one copy of the model", None),
    ):
        yield Row(f"{size / 1e6:.2g} M, W={workers}: {what}", spent[what], spent[against], against, bar)


def hosts(quick: bool) -> Iterator[Row]:
    """Rounds on a Ray cluster, beside Ray's own example of a parameter server on the same cluster."""
    repeats = 3 if quick else 7
    try:
        load_ray()
    except StartFailed as error:
        print(f"  left out; {error}")
        return
    for workers in (2, 4):
        for name, (model, count) in RAY_ROUNDS.items():
            size = sum(each.numel() for each in build_model(model, 0).parameters())
            round_s(size, workers, "asp", 1, engine="ray", ray=RAY)  # it starts the cluster
            example = Example(workers, model)
            example.synchronous(1)  # its actors have begun
            for sync, other in (("asp", example.asynchronous), ("bsp", example.synchronous)):
                ours, theirs = alternated({"pslab": partial(round_s, size, workers, sync, count, engine="ray", ray=RAY),
                                           "Ray": partial(other, count)}, repeats).values()  # fmt: skip
                yield Row(f"{name}, W={workers}, {sync}: engine='ray'", ours, theirs,
                          f"Ray's example, {other.__name__}", 1.0)  # fmt: skip
            example.close()
    actors.release()
    load_ray().shutdown()


# --- training: the thesis's MLP on MNIST, with every core computing ---------------------------------------------------

BARE, DDP = "the same steps without exchange", "DDP over gloo"
TRAININGS: dict[str, tuple[dict[str, object], dict[str, float | None]]] = {  # fields, and bars by the reference
    "bsp": ({"sync": "bsp"}, {DDP: 0.5, BARE: 1.15}),
    "asp": ({"sync": "asp"}, {DDP: 0.5, BARE: 1.15}),
    "bsp, static:1%": ({"sync": "bsp", "prune": "static:1%", "pull": "changed"}, {DDP: None, BARE: 1.3}),
}


def training(quick: bool, batch_size: int = 64, count: int = 60, device: str = "cpu") -> Iterator[Row]:
    """Dense and pruned runs, beside DDP over gloo and the same steps without any exchange; then how late messages are
    in an emulated cluster: with workers that the system schedules as all others, and with those that let the server
    first. On a GPU two workers alone, without that cluster."""
    for workers in (2, 4) if device == "cpu" else (2,):
        with peers(workers, device) as others:
            spent = alternated(
                {**{name: partial(training_s, count, workers=workers, batch_size=batch_size, device=device, **fields)
                    for name, (fields, _) in TRAININGS.items()},
                 DDP: partial(others.seconds, "ddp", batch_size, count),
                 BARE: partial(others.seconds, "alone", batch_size, count)}, 3 if quick else 7,
            )  # fmt: skip
        for name, (_, bars) in TRAININGS.items():
            for against, bar in bars.items():
                yield Row(f"W={workers}, batch {batch_size}: {name}", spent[name], spent[against], against, bar)
    if device != "cpu":
        return
    usual, after = alternated({yields: partial(late_share, yields) for yields in (False, True)},
                              1 if quick else 5).values()  # fmt: skip
    name = "lab, W=4, asp, static:1%: messages late, workers"
    yield Row(f"{name} as others", usual, KEPT_SHARE, "what may be lost", 1.0, "%")
    yield Row(f"{name} after the server", after, usual, "workers as others", unit="%")


def training_s(count: int, workers: int = 2, **fields: object) -> float:
    """Seconds per round of the local engine."""
    run = Run.of({"workers": workers, "pushes": count * workers, "learning_rate": 0.01, "eval_every": count * workers,
                  **fields})  # fmt: skip
    return float(facts_of(run)["seconds"]) / count


def late_share(yields: bool, pushes: int = 400) -> float:
    """The share of the workers' time by which messages are late on the cluster lab, in its own seconds."""
    run = Run(sync="asp", prune="static:1%", pull="changed", cluster="lab", pushes=pushes, eval_every=pushes,
              batch_size=64, dilation=1)  # fmt: skip
    return float(execute(resolve(run), ignore, yields=yields).facts["emulation"]["late_message_share"])


# --- requests layer by layer ------------------------------------------------------------------------------------------

FREE_BAR, AGREEMENT = 1.05, 0.15
SLOWER = 2.5  # emulated compute times, in calibrated ones: what two workers and a server keep up with on two cores


def layers(quick: bool) -> Iterator[Row]:
    """Time per iteration of two workers: what layers cost where they hide nothing, beside the whole model at once; and
    with slow links, beside the same run in virtual time."""
    free = Run(workers=2, batch_size=128, pushes=240, eval_every=240, learning_rate=0.01)
    for sync in ("bsp", "asp"):
        ours, whole = alternated({ranges: partial(_iteration_s, free.but(sync=sync, ranges=ranges))
                                  for ranges in ("layers", "whole")}, 3 if quick else 9).values()  # fmt: skip
        yield Row(f"{sync}, W=2, batch 128, no links: layers", ours, whole, "the whole model at once", FREE_BAR)
    short = Run(workers=2, batch_size=64, sync="asp", pushes=120, eval_every=120, ranges="layers", learning_rate=0.01)
    costs = calibrate(short)
    costs |= {"compute_s": SLOWER * costs["compute_s"], "compute_sigma": 0.0, "latency_s": 5e-4}
    for words, bandwidth in (("2 Gbit/s", 2e9), ("1 Gbit/s", 1e9)):
        for sync, ranges in (("bsp", "whole"), ("bsp", "layers"), ("asp", "layers"), ("asp", "layers:100000")):
            run = short.but(sync=sync, ranges=ranges, cluster={**costs, "bandwidth_bit_s": bandwidth})
            ours, timing = alternated({engine: partial(_iteration_s, run.but(engine=engine))
                                       for engine in ("local", "timing")}, 1 if quick else 3).values()  # fmt: skip
            yield Row(f"{sync}, W=2, {words}: {ranges}", ours, timing, "virtual time", 1 + AGREEMENT)


def _iteration_s(run: Run) -> float:
    return float(facts_of(run)["seconds"]) * run.workers / (run.pushes or 1)


# --- to 98 % of MNIST -------------------------------------------------------------------------------------------------

TARGET, BATCH_SIZE, STEPS, RATE, MOMENTUM, EVALUATE = 0.98, 128, 938, 0.1, 0.9, 47
MNIST_BAR = 0.7


def mnist(quick: bool) -> Iterator[Row]:
    """Two workers, and one process with the same total batch: SGD 0.1, momentum 0.9, linear to zero, two epochs; the
    median over seeds. Evaluations do not count."""
    seeds, nan = range(1 if quick else 3), float("nan")
    one, two = (list(map(to_target, map(curve, seeds))) for curve in (alone, together))
    reached_one, reached_two = ([each for each in times if each is not None] for times in (one, two))
    both = reached_one and reached_two
    yield Row(f"2 workers to {TARGET:.0%}", median(reached_two) if both else nan, median(reached_one) if both else nan,
              "one process", MNIST_BAR, "s", f"reached by {len(reached_two)} of {len(two)} seeds; one process: "
              f"{len(reached_one)} of {len(one)}")  # fmt: skip


def to_target(curve: list[tuple[float, float]]) -> float | None:
    """Seconds after which a curve of (seconds, accuracy) first reaches the target."""
    return next((seconds for seconds, accuracy in curve if accuracy >= TARGET), None)


def together(seed: int) -> list[tuple[float, float]]:
    """The curve of pslab: BSP, where each of two workers takes half of the batch."""
    run = Run(workers=2, batch_size=BATCH_SIZE // 2, pushes=STEPS * 2, learning_rate=RATE, seed=seed,
              schedule="linear", optimizer=f"sgd:momentum={MOMENTUM}", eval_every=EVALUATE * 2)  # fmt: skip
    table = execute(resolve(run), ignore).accuracy
    return [(float(seconds), float(accuracy)) for _, seconds, accuracy, _ in table]


def alone(seed: int) -> list[tuple[float, float]]:
    """The curve of plain torch on one thread, with the same model, data and order of the examples."""
    training, curve, spent_s = Training(1, 0, BATCH_SIZE, RATE, MOMENTUM, seed), [], 0.0
    with one_thread():
        for step in range(STEPS):
            start_s = time.perf_counter()
            training.optimizer.param_groups[0]["lr"] = RATE * (1 - step / STEPS)
            training.step(step)
            spent_s += time.perf_counter() - start_s
            if (step + 1) % EVALUATE == 0 or step + 1 == STEPS:
                curve.append((spent_s, training.accuracy()))
    return curve


# --- start-up: spawning workers that have imported torch, and the next run in the same pool ---------------------------

NEXT_RUN_S = 0.05


def startup(quick: bool) -> Iterator[Row]:
    """Pools of 2, 4 and 8 workers; then the time from a Run to the start of its workers: names resolved, model checked,
    all processes prepared and warm."""
    for workers in (2, 4) if quick else (2, 4, 8):
        ours, bare = alternated({"pool": partial(_pool_s, workers), "bare": partial(_bare_s, workers + 1)},
                                1 if quick else 3).values()  # fmt: skip
        yield Row(f"a pool of {workers} workers and a server", ours, bare,
                  f"{workers + 1} spawned processes that import torch", unit="s")  # fmt: skip
    ours = alternated({"next": preparation_s}, 6 if quick else 16)["next"]
    yield Row("the next run in the same pool, 4 workers", ours, NEXT_RUN_S, "50 ms", 1.0)


def preparation_s() -> float:
    """From a Run to the start of its workers."""
    start_s = time.perf_counter()
    experiment = resolve(Run(pushes=4, eval_every=4))
    resolved_s = time.perf_counter() - start_s
    return resolved_s + float(execute(experiment, ignore).facts["preparation_s"])


def _pool_s(workers: int) -> float:
    pools.release()
    start_s = time.perf_counter()
    pools.acquire(workers)
    return time.perf_counter() - start_s


def _bare_s(count: int) -> float:
    start_s = time.perf_counter()
    processes = [mp.get_context("spawn").Process(target=torch.ones, args=(1,)) for _ in range(count)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return time.perf_counter() - start_s
