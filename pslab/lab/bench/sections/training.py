"""A round of training without an emulated network: the thesis's MLP on MNIST, with every core computing."""

from __future__ import annotations

from pslab.config.run import Run
from pslab.engines.local.engine import execute
from pslab.lab.bench.measure import Row, alternated
from pslab.lab.bench.peers import Peers, peers
from pslab.lab.runs.resolve import resolve

SECTION = "training round"
BATCH_SIZE, ROUNDS = 64, 60


def rows(quick: bool) -> list[Row]:
    """Dense and pruned runs, compared with DDP over gloo and with the same steps without any exchange."""
    found = []
    for workers in (2, 4):
        with peers(workers) as others:
            found += _rows(others, 3 if quick else 7)
    return found


def training_round(workers: int, rounds: int = ROUNDS, **fields: object) -> float:
    """Seconds per round of the local engine."""
    run = Run.of({"workers": workers, "batch_size": BATCH_SIZE, "pushes": rounds * workers, "learning_rate": 0.01,
                  "eval_every": rounds * workers, **fields})  # fmt: skip
    return float(execute(resolve(run), lambda news: None).facts["seconds"]) / rounds


def _rows(others: Peers, repeats: int) -> list[Row]:
    workers = others.workers
    seconds = alternated(
        {
            "bsp": lambda: training_round(workers, sync="bsp"),
            "asp": lambda: training_round(workers, sync="asp"),
            "bsp, static:1%": lambda: training_round(workers, sync="bsp", prune="static:1%", pull="changed"),
            "DDP over gloo": lambda: others.seconds("ddp", BATCH_SIZE, ROUNDS),
            "the same steps without exchange": lambda: others.seconds("alone", BATCH_SIZE, ROUNDS),
        },
        repeats,
    )
    ours, theirs = [name for name in seconds if "sp" in name.split(",")[0]], list(seconds)[-2:]
    return [
        Row(SECTION, f"W={workers}, batch {BATCH_SIZE}: {name}", 1e3 * seconds[name], "ms", against,
            seconds[name] / seconds[against])
        for name in ours for against in theirs
    ]  # fmt: skip
