"""The runs behind 50_order, and what they take: time and waiting of an iteration under each request order.

Two models stand beside the runs, both without tensors: what an iteration takes at least (`chain.lower_bound_s`), and
the chain itself, which says of equal workers what a run says, in a hundredth of the time.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from pslab.config.cluster import resolve_cluster
from pslab.config.run import Run
from pslab.config.spec import build
from pslab.config.table import ROWS
from pslab.errors import ConfigError
from pslab.lab.studies.asked import listed
from pslab.lab.studies.chain import Chain, lower_bound_s, trace
from pslab.lab.studies.optimum import optimum
from pslab.policies.orders import Front
from pslab.tensors.codec.frames import START

if TYPE_CHECKING:
    from pslab.lab.records.record import Result

#: Computation: but for the MLP, 32 images at half of 5.3 Tflop/s. Links: bit/s, per direction.
MODELS: Mapping[str, Mapping[str, Any]] = MappingProxyType({
    "mlp": {"compute_s": 0.02, "bandwidths": [5e8, 1e9]},
    "torchvision:vgg16": {"compute_s": 1.1, "bandwidths": [5e9, 1.5e10]},
    "torchvision:resnet50": {"compute_s": 0.3, "bandwidths": [4e9]},
})  # fmt: skip
UNEVEN: Mapping[str, Any] = MappingProxyType(
    {"compute_s": 0.02, "stall_probability": 0.05, "stall_factor": 5.0, "bandwidth_bit_s": 1e9})  # fmt: skip
DUPLEXES = ("full", "half")
ITERATIONS = 3  # of equal workers: each is like the first
SEARCHED = 6  # messages each way of which the optimum is searched
WARM = 0.1  # share of a worker's iterations that is left out at the beginning


def order_groups(
    *,
    orders: Sequence[Any] = tuple(ROWS["order"]),
    models: Mapping[str, Mapping[str, Any]] = MODELS,
    workers: int = 2,
    crowd: int = 4,
    uneven: Mapping[str, Any] = UNEVEN,
    uneven_model: Any = "mlp",
    syncs: Sequence[Any] = ("bsp", "ssp:3"),
    pushes: int = 80,
    pieces: Sequence[int] = (40_000, 100_000, 250_000, 1_000_000, 4_000_000),
    credits: Sequence[int | None] = (None, 40_000, 100_000, 250_000, 1_000_000, 4_000_000, 16_000_000),
    overhead_s: float = 2e-5,
    latency_s: float = 1e-4,
    seed: int = 0,
) -> dict[str, list[Run]]:
    """What is asked for: each order on equal workers (even), and on workers that stall (uneven); full and half duplex.

    `models` maps names to compute_s and bandwidths. `pieces` and `credits`, in parameters, and what a message costs are
    for the chain alone.

    Raises:
        ConfigError: lists that are none, models without times, or what Run refuses.
    """
    chosen = listed("orders", orders)
    for name, values in (("pieces", pieces), ("credits", credits)):
        if any(value is not None and (not isinstance(value, int) or value < 1) for value in listed(name, values)):
            raise ConfigError(name, list(values), "must be numbers of parameters, at least 1")
    if not 0 <= overhead_s < math.inf or not 0 <= latency_s < math.inf:
        raise ConfigError("overhead_s", overhead_s, "overhead_s and latency_s must be seconds, at least 0")
    if not isinstance(models, Mapping) or not models or any({*of} != {"compute_s", "bandwidths"}
                                                            for of in models.values()):  # fmt: skip
        raise ConfigError("models", models, "must map each model to {'compute_s': ..., 'bandwidths': [...]}")
    links = [(name, of["compute_s"], bandwidth) for name, of in models.items()
             for bandwidth in listed("bandwidths", of["bandwidths"])]  # fmt: skip
    even = [Run(engine="timing", model=name, ranges="layers", order=order, workers=workers, pushes=workers * ITERATIONS,
                cluster={"compute_s": compute_s, "bandwidth_bit_s": bandwidth, "duplex": duplex}, seed=seed)
            for name, compute_s, bandwidth in links for duplex in DUPLEXES for order in chosen]  # fmt: skip
    stalling = [Run(engine="timing", model=uneven_model, ranges="layers", order=order, workers=crowd, pushes=pushes,
                    sync=sync, cluster={**uneven, "duplex": duplex}, seed=seed)
                for sync in listed("syncs", syncs) for duplex in DUPLEXES for order in chosen]  # fmt: skip
    return {"even": even, "uneven": stalling}


@functools.wraps(order_groups)  # its parameters are the notebook's
def order_runs(**parameters: Any) -> list[Run]:
    """All that `order_groups` asks for, each once."""
    wanted = [run for group in order_groups(**parameters).values() for run in group]
    return list({run.digest: run for run in wanted}.values())


# -- what a run took ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measured:
    """What an iteration of a worker takes, in seconds, on average over workers."""

    iteration_s: float
    waiting_s: float  #: of it: computing waits
    staleness: float  #: of a push, on average
    longest_s: float  #: from the moment that a push could go to its arrival, of all pushes the longest


def measured(result: Result) -> Measured:
    """An iteration in the middle of a run: from one end of a backward pass to the next."""
    phases, pushes = result.phases, result.pushes
    computing = phases[phases.phase == "compute"]
    computing = computing.assign(spent_s=computing.end_s - computing.begin_s)
    done = pushes.groupby("worker").iteration.max()
    whole, waiting = [], []
    for worker, mine in computing.groupby("worker"):
        each = mine.groupby("iteration").agg(end_s=("end_s", "max"), spent_s=("spent_s", "sum"))
        each = each[each.index <= done.get(worker, -1)]
        each = each.iloc[int(WARM * len(each)) :]
        if len(each) > 1:
            whole.append((each.end_s.iloc[-1] - each.end_s.iloc[0]) / (len(each) - 1))
            waiting.append(whole[-1] - each.spent_s.iloc[1:].mean())
    pushing = phases[phases.phase == "push"]
    return Measured(_mean(whole), _mean(waiting), float(pushes.staleness.mean()),
                    float((pushing.end_s - pushing.begin_s).max()))  # fmt: skip


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else float("nan")


# -- the chain of a run ---------------------------------------------------------------------------------------


def chain_of(run: Run, **changes: Any) -> Chain:
    """The chain that a run's equal workers are, a frame's header included; `changes` are of Chain's fields.

    Raises:
        ConfigError: a run whose requests are not by layer, or whose links have no bandwidth.
    """
    cluster, ranges = resolve_cluster(run.cluster), run.ranges
    cut: Any = build("ranges", ranges) if isinstance(ranges, str) else ranges
    if not cut.layered or cluster.bandwidth_bit_s is None or cluster.compute_s is None:
        raise ConfigError("ranges", str(ranges), "a chain needs ranges='layers', a compute_s and a bandwidth_bit_s")
    sizes, shares = _layers(run.but(order="fifo", sync="bsp", ranges="layers", cluster={
        "compute_s": cluster.compute_s, "layer_shares": cluster.layer_shares}))  # fmt: skip
    byte_s = cluster.bandwidth_bit_s / 8
    most = getattr(cut, "most", None)
    return Chain(**{
        "forward_s": tuple(cluster.compute_s * forward for forward, _ in shares),
        "backward_s": tuple(cluster.compute_s * backward for _, backward in shares), "sizes": sizes, "byte_s": byte_s,
        "duplex": cluster.duplex, "piece_bytes": most and most * ITEM[run.dtype],
        "overhead_s": cluster.overhead_s + START / byte_s, "latency_s": cluster.latency_s, "workers": run.workers,
        **changes})  # fmt: skip


ITEM = {"float32": 4, "float64": 8}
_KNOWN: dict[str, tuple[tuple[int, ...], tuple[tuple[float, float], ...]]] = {}


def _layers(run: Run) -> tuple[tuple[int, ...], tuple[tuple[float, float], ...]]:
    """Per layer its bytes, and its share of an iteration's computation, forward and backward."""
    key = run.but(workers=1, pushes=1).digest
    if key not in _KNOWN:
        from pslab.lab.runs.resolve import resolve

        experiment = resolve(run)
        sizes = tuple(part.size * ITEM[run.dtype] for part in experiment.parts)
        _KNOWN[key] = sizes, experiment.layer_shares
    return _KNOWN[key]


@dataclass(frozen=True)
class Best:
    """What no order can beat: the lower bound, and the optimum where it could be searched."""

    bound_s: float
    optimum_s: float | None


def best_of(chain: Chain) -> Best:
    """The bound, and the optimum: searched if that is short, or known because an order reaches the bound."""
    bound_s = lower_bound_s(chain)
    if len(chain.pieces) <= SEARCHED:
        return Best(bound_s, optimum(chain).iteration_s)
    return Best(bound_s, bound_s if trace(chain, Front()).iteration_s <= bound_s * (1 + 1e-9) else None)


def iteration_s(chain: Chain, order: Any) -> float:
    """What an iteration takes under an order, named or given."""
    return trace(chain, build("order", order) if isinstance(order, str) else order).iteration_s


def cut_and_credit(
    chain: Chain, pieces: Sequence[int], credits: Sequence[int | None], item: int = 4
) -> list[list[float]]:
    """Per credit, and per size of a piece, both in parameters: an iteration's time with the front first.

    NaN where a piece is larger than the credit, and would never go.
    """
    rows = []
    for credit in credits:
        order = Front(None if credit is None else credit * item)
        rows.append([math.nan if credit is not None and piece > credit else
                     trace(_cut(chain, piece * item), order).iteration_s for piece in pieces])  # fmt: skip
    return rows


def _cut(chain: Chain, piece_bytes: int) -> Chain:
    fields = {name: getattr(chain, name) for name in chain.__dataclass_fields__}
    return Chain(**{**fields, "piece_bytes": piece_bytes})
