"""A round of training without an emulated network: the thesis's MLP on MNIST, with every core computing.

And how late messages are in an emulated one: with workers that the system schedules as all others, and with those that
let the server first.
"""

from __future__ import annotations

from pslab.config.run import Run
from pslab.engines.local.engine import execute
from pslab.engines.local.pace import KEPT_SHARE
from pslab.lab.runs.resolve import resolve
from tools.bench.measure import Row, alternated
from tools.bench.peers import Peers, peers

SECTION = "training round"
BATCH_SIZE, ROUNDS = 64, 60
BARE, DDP = "the same steps without exchange", "DDP over gloo"
BARS: dict[str, dict[str, float | None]] = {
    "bsp": {DDP: 0.5, BARE: 1.15}, "asp": {DDP: 0.5, BARE: 1.15}, "bsp, static:1%": {DDP: None, BARE: 1.3}
}  # fmt: skip


def rows(quick: bool) -> list[Row]:
    """Dense and pruned runs, compared with DDP over gloo and with the same steps without any exchange."""
    found = []
    for workers in (2, 4):
        with peers(workers) as others:
            found += _rows(others, 3 if quick else 7)
    return [*found, *_lateness(1 if quick else 5)]


def training_round(workers: int, rounds: int = ROUNDS, **fields: object) -> float:
    """Seconds per round of the local engine."""
    run = Run.of({"workers": workers, "batch_size": BATCH_SIZE, "pushes": rounds * workers, "learning_rate": 0.01,
                  "eval_every": rounds * workers, **fields})  # fmt: skip
    return float(execute(resolve(run), lambda news: None).facts["seconds"]) / rounds


def late_share(yields: bool, pushes: int = 400) -> float:
    """The share of the workers' time by which messages are late on the cluster lab, in its own seconds."""
    run = Run(sync="asp", prune="static:1%", pull="changed", cluster="lab", pushes=pushes, eval_every=pushes,
              batch_size=BATCH_SIZE, dilation=1)  # fmt: skip
    return float(execute(resolve(run), lambda news: None, yields=yields).facts["emulation"]["late_message_share"])


def _lateness(repeats: int) -> list[Row]:
    share = alternated({words: lambda yields=yields: late_share(yields) for words, yields in  # type: ignore[misc]
                        (("workers as others", False), ("after the server", True))}, repeats)  # fmt: skip
    usual, after = share.values()
    name = "lab, W=4, asp, static:1%: messages late, workers"
    return [
        Row("lateness", f"{name} as others", 100 * usual, "%", "what may be lost", usual / KEPT_SHARE, 1.0),
        Row("lateness", f"{name} after the server", 100 * after, "%", "workers as others", after / usual),
    ]


def _rows(others: Peers, repeats: int) -> list[Row]:
    workers = others.workers
    seconds = alternated(
        {
            "bsp": lambda: training_round(workers, sync="bsp"),
            "asp": lambda: training_round(workers, sync="asp"),
            "bsp, static:1%": lambda: training_round(workers, sync="bsp", prune="static:1%", pull="changed"),
            DDP: lambda: others.seconds("ddp", BATCH_SIZE, ROUNDS),
            BARE: lambda: others.seconds("alone", BATCH_SIZE, ROUNDS),
        },
        repeats,
    )
    return [
        Row(SECTION, f"W={workers}, batch {BATCH_SIZE}: {name}", 1e3 * seconds[name], "ms", against,
            seconds[name] / seconds[against], bar)
        for name, bars in BARS.items() for against, bar in bars.items()
    ]  # fmt: skip
