"""Tables of 50_order: where the thesis's order does not help, workers that stall, what was published."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from pslab.lab.plots.theme import order_name, parts, sync_name
from pslab.lab.studies.ordering import DUPLEXES, Best, best_of, chain_of, iteration_s, measured

if TYPE_CHECKING:
    from pslab.config.run import Run
    from pslab.lab.records.record import Result

OPTIMAL, PLAIN = "needed", "fifo"  # the thesis's order, completed; what all are compared with
SAME = 1e-3  # share by which times may differ and still be one
P3, BYTESCHEDULER = 40_000, 1_000_000  # parameters in a piece, by default


def even(results: Sequence[Result]) -> list[Result]:
    """The runs of equal workers."""
    return [result for result in results if not result.run.cluster.get("stall_probability")]  # type: ignore[union-attr]


def uneven(results: Sequence[Result]) -> list[Result]:
    """The runs of workers that stall."""
    return [result for result in results if result.run.cluster.get("stall_probability")]  # type: ignore[union-attr]


def model_name(model: object) -> str:
    """``"torchvision:vgg16"`` -> ``"vgg16"``."""
    return str(model).removeprefix("torchvision:")


def distances(results: Sequence[Result]) -> pd.DataFrame:
    """Equal workers: by model, duplex and bandwidth, ms of the bound, and by how many per cent each order exceeds it.

    The optimum stands where it could be searched. Beside each other: what the runs took, to a per mille what the chain
    says.
    """
    rows: dict[tuple[str, str, str], dict[str, Any]] = {}
    for result in even(results):
        run, best = result.run, _best(result.run)
        key = model_name(run.model), duplex_of(run), gigabits(bandwidth_of(run))
        row = rows.setdefault(key, {"bound (ms)": round(1e3 * best.bound_s, 1), "optimum": _over(best.optimum_s, best)})
        row[order_name(run.order)] = _over(measured(result).iteration_s, best)
    table = pd.DataFrame.from_dict(rows, orient="index")
    table.index = pd.MultiIndex.from_tuples(rows, names=["model", "duplex", "Gbit/s"])
    return table


def agreement(results: Sequence[Result]) -> float:
    """The largest share by which a run of equal workers differs from its chain."""
    found = [measured(r).iteration_s / iteration_s(chain_of(r.run), r.run.order) - 1 for r in even(results)]
    return max(map(abs, found), default=0.0)


def helpless(results: Sequence[Result]) -> pd.DataFrame:
    """Where the thesis's order, completed, is not faster than first in, first out, or slower than another; and why."""
    groups: dict[tuple[str, str, str, str, str], dict[str, tuple[float, Run]]] = {}
    for result in results:
        run = result.run
        kind = "equal" if result in even(results) else "stalling"
        key = model_name(run.model), kind, sync_name(run.sync), duplex_of(run), gigabits(bandwidth_of(run))
        groups.setdefault(key, {})[parts(run.order)[0]] = measured(result).iteration_s, run
    rows = {}
    for key, found in groups.items():
        if OPTIMAL not in found or PLAIN not in found:
            continue
        (own, run), plain = found[OPTIMAL], found[PLAIN][0]
        name, fastest = min(((name, t) for name, (t, _) in found.items()), key=lambda entry: entry[1])
        if own < plain * (1 - SAME) and own <= fastest * (1 + SAME):
            continue
        rows[key] = {
            "FIFO (ms)": round(1e3 * plain, 1), "needed (ms)": round(1e3 * own, 1),
            "fastest": f"{order_name(name)}, {1e3 * fastest:.1f}" if fastest < own * (1 - SAME) else "needed",
            "why": _why(own, plain, fastest, run, key[1] == "equal")}  # fmt: skip
    table = pd.DataFrame.from_dict(rows, orient="index", columns=["FIFO (ms)", "needed (ms)", "fastest", "why"])
    if rows:
        table.index = pd.MultiIndex.from_tuples(rows, names=["model", "workers", "policy", "duplex", "Gbit/s"])
    return table


def _why(own: float, plain: float, fastest: float, run: Run, equal: bool) -> str:
    if equal and plain <= _best(run).bound_s * (1 + SAME):
        return "FIFO is at the lower bound"
    if fastest >= own * (1 - SAME):
        return "no order is faster"
    if equal:
        return "equal workers: no push raises a low bound alone, so pushes go as they come"
    if own > plain * (1 + SAME):
        return "slower than as they come"
    return "about as fast as they come; the layers that are computed first gain more"


def waits(results: Sequence[Result]) -> pd.DataFrame:
    """Workers that stall: ms of an iteration, of them waiting; staleness; the longest push, from ready to arrived."""
    rows = {}
    for result in uneven(results):
        found = measured(result)
        key = sync_name(result.run.sync), duplex_of(result.run), order_name(result.run.order)
        rows[key] = {
            "iteration (ms)": round(1e3 * found.iteration_s, 1), "waiting (ms)": round(1e3 * found.waiting_s, 1),
            "staleness": round(found.staleness, 2), "longest push (ms)": round(1e3 * found.longest_s)}  # fmt: skip
    table = pd.DataFrame.from_dict(rows, orient="index")
    table.index = pd.MultiIndex.from_tuples(rows, names=["policy", "duplex", "order"])
    return table


def published(models: Mapping[str, Mapping[str, Any]], results: Sequence[Result], steps: int = 9) -> pd.DataFrame:
    """Published speed-ups beside the largest one of this model over bandwidths: layers as they come, and in pieces from
    the front.

    A chain has neither a framework's costs nor contention at the server, so these say where a gain can come from, not
    that it was reproduced.
    """
    rows = {}
    for name, label, told, piece in (
        ("torchvision:resnet50", "P3, ResNet-50", "+25 %", P3), ("torchvision:vgg16", "P3, VGG-19", "+66 %", None),
        ("torchvision:vgg16", "ByteScheduler, of all models", "up to +196 %", BYTESCHEDULER),
    ):  # fmt: skip
        run = next((r.run for r in even(results) if r.run.model == name and duplex_of(r.run) == "full"), None)
        if run is None or name not in models:
            continue
        best = max((_gain(run, bandwidth, piece or BYTESCHEDULER), bandwidth)
                   for bandwidth in grid(models[name]["bandwidths"], steps))  # fmt: skip
        rows[label] = {"published": told, "here": f"{model_name(name)}, {100 * (best[0] - 1):+.0f} %",
                       "at Gbit/s": gigabits(best[1]), "pieces of": f"{piece or BYTESCHEDULER:,}"}  # fmt: skip
    return pd.DataFrame.from_dict(rows, orient="index")


def _gain(run: Run, bandwidth: float, piece: int) -> float:
    byte_s = bandwidth / 8
    whole = chain_of(run, byte_s=byte_s, overhead_s=0.0)
    return iteration_s(whole, "fifo") / iteration_s(chain_of(run, byte_s=byte_s, overhead_s=0.0, piece_bytes=4 * piece),
                                                    "front")  # fmt: skip


def grid(bandwidths: Sequence[float], steps: int) -> list[float]:
    """Bandwidths around some, in equal ratios: from a quarter of the least to four times the largest."""
    low, high = min(bandwidths) / 4, max(bandwidths) * 4
    return [low * (high / low) ** (step / (steps - 1)) for step in range(steps)]


def duplex_of(run: Run) -> str:
    """Full or half."""
    return str(dict(run.cluster).get("duplex", DUPLEXES[0]))  # type: ignore[arg-type]


def bandwidth_of(run: Run) -> float:
    """Bit/s of a worker's link."""
    return float(dict(run.cluster).get("bandwidth_bit_s", math.inf))  # type: ignore[arg-type]


def gigabits(bandwidth: float) -> str:
    """``4e9`` -> ``"4"``."""
    return f"{bandwidth / 1e9:.3g}"


def _best(run: Run) -> Best:
    key = run.but(order="fifo").digest
    if key not in _BEST:
        _BEST[key] = best_of(chain_of(run))
    return _BEST[key]


_BEST: dict[str, Best] = {}


def _over(seconds: float | None, best: Best) -> str:
    return "" if seconds is None else f"{abs(100 * (seconds / best.bound_s - 1)):.1f} %"
