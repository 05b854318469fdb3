"""Sections on real processes: rounds with and without training, torch's hooks, and the start of processes."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from functools import partial

import torch
from torch import nn

from pslab.config.cluster import Cluster
from pslab.config.run import Run
from pslab.config.spec import build
from pslab.engines.experiment.experiment import Experiment
from pslab.engines.local.engine import execute
from pslab.engines.local.pace import KEPT_SHARE
from pslab.lab.runs.resolve import POLICIES, resolve
from pslab.tensors.update.optimizers import resolve_optimizer
from pslab.tensors.update.part import Part
from pslab.tensors.workload.data import Dataset
from pslab.tensors.workload.keyspace import Keyspace
from tools.bench.measure import Row, alternated, facts_of, ignore
from tools.bench.peers import BARE, COMPRESSORS, DDP, GLOO, SHARED, TORCHS, peers

# --- rounds without training: every worker pushes a gradient and pulls the new weights, by the full protocol ----------

ROW = 64  # weights per neuron of a model without computation
SMALL, MLP, LARGE = 256, 932_352, 25_000_000  # parameters: 1 KB; the thesis's MLP; 25 million
ROUNDS = {SMALL: 2000, MLP: 300, LARGE: 12}
IN_PLACE_BAR, LATENCY_BAR_S = 1.5, 10e-6
GLOO_BARS = {(2, MLP): 1 / 3.5, (2, LARGE): 1 / 1.8}  # by workers and size


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


def round_s(size: int, workers: int, sync: str, rounds: int) -> float:
    """Seconds per round of the local engine, including its protocol and its records."""
    experiment = exchange(size, workers=workers, sync=sync, pushes=rounds * workers)
    return float(execute(experiment, ignore).facts["seconds"]) / rounds


def rounds(quick: bool) -> Iterator[Row]:
    """BSP without links reads weights in place; SSP with s = 0 does the same rounds with copies."""
    repeats, count = 3 if quick else 7, ROUNDS[SMALL]
    ours = alternated({"pslab": partial(round_s, SMALL, 1, "bsp", count)}, repeats)["pslab"]
    yield Row("1 KB, W=1", ours, LATENCY_BAR_S, "10 us", 1.0, "us")
    for workers, size in itertools.product((2, 4), (MLP, LARGE)):
        count = ROUNDS[size]
        with peers(workers) as seconds:
            spent = alternated(
                {"in place": partial(round_s, size, workers, "bsp", count),
                 "with copies": partial(round_s, size, workers, "ssp:0", count),
                 SHARED: partial(seconds, SHARED, size, count),
                 GLOO: partial(seconds, GLOO, size, max(2, count // 10))}, repeats,
            )  # fmt: skip
        for what, against, bar in (("with copies", SHARED, None), ("in place", SHARED, IN_PLACE_BAR),
                                   ("in place", GLOO, GLOO_BARS.get((workers, size)))):  # fmt: skip
            yield Row(f"{size / 1e6:.2g} M, W={workers}: {what}", spent[what], spent[against], against, bar)


# --- training: the thesis's MLP on MNIST, with every core computing ---------------------------------------------------

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
        with peers(workers, device) as seconds:
            spent = alternated(
                {**{name: partial(training_s, count, workers=workers, batch_size=batch_size, device=device, **fields)
                    for name, (fields, _) in TRAININGS.items()},
                 **{name: partial(seconds, name, batch_size, count) for name in (DDP, BARE)}}, 3 if quick else 7,
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


def hooks(quick: bool) -> Iterator[Row]:
    """A step of two processes with each hook, beside torch's all-reduce."""
    with peers(2) as seconds:
        spent = alternated({name: partial(seconds, name, 64, 10 if quick else 50) for name in (*TORCHS, *COMPRESSORS)},
                           1 if quick else 5)  # fmt: skip
    for name in (*TORCHS[1:], *COMPRESSORS):
        yield Row(name, spent[name], spent[DDP], "torch's all-reduce")


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


# --- start-up: the next run in the same pool --------------------------------------------------------------------------

NEXT_RUN_S = 0.05


def startup(quick: bool) -> Iterator[Row]:
    """The time from a Run to the start of its workers: names resolved, model checked, all processes prepared."""
    ours = alternated({"next": preparation_s}, 6 if quick else 16)["next"]
    yield Row("the next run in the same pool, 4 workers", ours, NEXT_RUN_S, "50 ms", 1.0)


def preparation_s() -> float:
    """From a Run to the start of its workers."""
    start_s = time.perf_counter()
    experiment = resolve(Run(pushes=4, eval_every=4))
    resolved_s = time.perf_counter() - start_s
    return resolved_s + float(execute(experiment, ignore).facts["preparation_s"])
