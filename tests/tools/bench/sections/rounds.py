"""A dense round: every worker pushes a gradient and pulls the new weights, by the full protocol, without computing."""

from __future__ import annotations

from typing import Any

from pslab.engines.local.engine import execute
from pslab.engines.processes import pool
from pslab.engines.processes.fleets.ray import load_ray
from pslab.errors import StartFailed
from tools.bench.flat import exchange
from tools.bench.measure import Row, alternated, copy_s
from tools.bench.peers import Peers, peers
from tools.bench.ray_example import Example

SMALL, MLP, LARGE = 256, 932_352, 25_000_000  # parameters: 1 KB; the thesis's MLP; 25 million
ROUNDS = {SMALL: 2000, MLP: 300, LARGE: 12}
COPIES_BAR = {MLP: 1.5, LARGE: 1.2}
IN_PLACE_BAR = 1.5
PEER_BARS = {("gloo", MLP): 1 / 3.5, ("gloo", LARGE): 1 / 1.8}
SECTION = "1 dense round"
FLEETS = "10 a dense round without shared memory"
FLEET_ROUNDS = {9_250: 2000, MLP: 200, LARGE: 10}  # 37 KB, 3.7 MB, 100 MB
FLEET_BARS = {9_250: 2.0, MLP: 1.5, LARGE: 1.1}
RAY = {"place": "ray", "address": "local", "worker_cpus": 0.1, "server_cpus": 0.1}  # few cores do for all actors
RAY_ROUNDS, RAY_BAR = 50, 1 / 2.5


def rows(quick: bool) -> list[Row]:
    """BSP without links reads weights in place; SSP with s = 0 does the same rounds with copies."""
    found, repeats = [_latency(quick)], 3 if quick else 7
    for workers in (2, 4):
        with peers(workers) as others:
            for size in (MLP, LARGE):
                found += _rounds(others, size, repeats)
    return found


def over_fleets(quick: bool) -> list[Row]:
    """Processes that share no memory, beside sockets that carry the same bytes and nothing else."""
    found = []
    for workers in (2, 4):
        with peers(workers) as others:
            for size, rounds in FLEET_ROUNDS.items():
                seconds = alternated(
                    {
                        "loopback": lambda: pslab_round(size, workers, "ssp:0", rounds, "loopback"),  # noqa: B023
                        "raw TCP": lambda: others.seconds("tcp", size, rounds),  # noqa: B023
                    },
                    3 if quick else 7,
                )
                row = Row(FLEETS, f"{4e-6 * size:.2g} MB, W={workers}: loopback", 1e3 * seconds["loopback"], "ms",
                          "raw TCP", seconds["loopback"] / seconds["raw TCP"], FLEET_BARS[size])  # fmt: skip
                found.append(row)
    try:
        load_ray()
    except StartFailed as error:
        print(f"  left out: what Ray's own parameter server takes beside; {error}")
        return found
    return [*found, *beside_ray(RAY_ROUNDS, 3 if quick else 7)]


def beside_ray(rounds: int, repeats: int) -> list[Row]:
    """The processes of a Ray cluster, beside Ray's own example of a parameter server on the same cluster."""
    found = []
    for workers in (2, 4):
        pslab_round(MLP, workers, "asp", 1, RAY)  # it starts the cluster
        example = Example(workers, "mlp")
        theirs = {"asp": example.asynchronous, "ssp:0": example.synchronous}
        for sync, other in theirs.items():
            seconds = alternated({"pslab": lambda: pslab_round(MLP, workers, sync, rounds, RAY),  # noqa: B023
                                  "Ray": lambda: other(rounds)}, repeats)  # noqa: B023  # fmt: skip
            ours, others = (workers / seconds[name] for name in ("pslab", "Ray"))
            found.append(Row(FLEETS, f"{4e-6 * MLP:.2g} MB, W={workers}, {sync}: Ray actors", 1e3 * seconds["pslab"],
                             "ms", f"Ray's example, {other.__name__}", others / ours, RAY_BAR,
                             f"{ours:.0f} and {others:.0f} iterations/s, {ours / others:.2f} times"))  # fmt: skip
        example.close()
    pool.release()
    load_ray().shutdown()
    return found


def pslab_round(size: int, workers: int, sync: str, rounds: int, fleet: Any = "local") -> float:
    """Seconds per round of the local engine, including its protocol and its records."""
    experiment = exchange(size, workers=workers, sync=sync, pushes=rounds * workers, fleet=fleet)
    return float(execute(experiment, lambda news: None).facts["seconds"]) / rounds


def _rounds(others: Peers, size: int, repeats: int) -> list[Row]:
    workers, rounds = others.workers, ROUNDS[size]
    few = max(2, rounds // 10)
    seconds = alternated(
        {
            "in place": lambda: pslab_round(size, workers, "bsp", rounds),
            "with copies": lambda: pslab_round(size, workers, "ssp:0", rounds),
            "reference with copies": lambda: others.seconds("copies", size, rounds),
            "reference in place": lambda: others.seconds("in_place", size, rounds),
            "gloo": lambda: others.seconds("gloo", size, few),
            "pickled pipes": lambda: others.seconds("pickled", size, few),
        },
        repeats,
    )
    name = f"{size / 1e6:.2g} M, W={workers}"

    def row(what: str, against: str, other_s: float, bar: float | None = None) -> Row:
        return Row(SECTION, f"{name}: {what}", 1e3 * seconds[what], "ms", against, seconds[what] / other_s, bar)

    return [
        row("with copies", "reference with copies", seconds["reference with copies"], COPIES_BAR[size]),
        row("in place", "reference with copies", seconds["reference with copies"], COPIES_BAR[size]),
        row("in place", "reference in place", seconds["reference in place"], IN_PLACE_BAR),
        row("in place", "gloo all-reduce", seconds["gloo"], PEER_BARS["gloo", size] if workers == 2 else None),
        row("in place", "pickled pipes", seconds["pickled pipes"]),
        row("in place", "one copy of the model", copy_s(size, 0.5)),
    ]


def _latency(quick: bool) -> Row:
    with peers(1) as others:
        seconds = alternated(
            {
                "pslab": lambda: pslab_round(SMALL, 1, "bsp", ROUNDS[SMALL]),
                "pickled": lambda: others.seconds("pickled", SMALL, ROUNDS[SMALL]),
            },
            3 if quick else 7,
        )
    bar = 10e-6 / seconds["pickled"]
    return Row(SECTION, "1 KB, W=1", 1e6 * seconds["pslab"], "us", "pickled pipes",
               seconds["pslab"] / seconds["pickled"], bar, "the bar is 10 us")  # fmt: skip
