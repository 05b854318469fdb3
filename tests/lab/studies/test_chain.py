"""What an iteration of a chain of layers takes: worked examples in the timing engine, its lower bound and optimum."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import digits
from torch import nn

from pslab.config.run import Run
from pslab.engines.execute import execute
from pslab.engines.server.ledger import PUSH_COLUMNS
from pslab.engines.worker.phases import PHASE_COLUMNS, PHASES
from pslab.errors import ConfigError
from pslab.lab.runs.resolve import resolve
from pslab.lab.studies.chain import chain_of, lower_bound_s, optimum_s
from pslab.policies.orders import Front

ORDERS = ("fifo", "filo", "stalest", "advancing", "needed", "front", "tic", "tac")
UNIT = 250_000  # parameters that take a second on the link; beside them a frame's header is nothing
#: Seconds of each layer's forward and backward pass, the input's first, and of its push.
LAYERS = {
    "E1": ((1, 1, 1), (1, 1, 1), (1, 1, 3)),
    "E2": ((2, 2, 2), (2, 2, 2), (1, 1, 6)),
    "E3": ((1, 1), (1, 1), (1, 4)),
}
WHOLE, CUT = "layers", f"layers:{UNIT}"


class Layer(nn.Module):
    """So many parameters, of which ten are used."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight[:10]


def stack(sizes: tuple[int, ...]) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.AdaptiveAvgPool1d(10), *map(Layer, sizes))


def chained(forward_s: Any, backward_s: Any, sizes: tuple[int, ...], **fields: Any) -> Run:
    """Two equal workers on a chain of layers, for three iterations."""
    shares = tuple(zip(forward_s, backward_s, strict=True))
    cluster = {"compute_s": float(sum(map(sum, shares))), "layer_shares": shares, **fields.pop("cluster")}
    return Run(model=stack(sizes), data=digits, engine="timing", **{"workers": 2, "pushes": 6, **fields},
               cluster=cluster)  # fmt: skip


def example(name: str, duplex: str, ranges: str = WHOLE, order: Any = "fifo", **cluster: Any) -> Run:
    forward_s, backward_s, messages_s = LAYERS[name]
    link = {"duplex": duplex, "bandwidth_bit_s": 8.0 * 4 * UNIT, **cluster}
    return chained(forward_s, backward_s, tuple(UNIT * s for s in messages_s), ranges=ranges, order=order,
                   cluster=link)  # fmt: skip


def tables(run: Run) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Worker 0's pushes, and its phases by name."""
    outcome = execute(resolve(run), lambda news: None)
    pushes = pd.DataFrame(outcome.pushes, columns=PUSH_COLUMNS)
    phases = pd.DataFrame(outcome.phases, columns=PHASE_COLUMNS)
    phases["phase"] = phases.phase.astype(int).map(dict(enumerate(PHASES)))
    return pushes[pushes.worker == 0], phases[phases.worker == 0]


def iteration_s(run: Run) -> float:
    """From the last push of iteration 0 to the last push of iteration 1."""
    ends = tables(run)[0].groupby("iteration").seconds.max()
    return float(ends[1] - ends[0])


# -- worked examples, in the engine ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "duplex", "ranges", "fifo", "filo", "front"),
    [("E1", "half", WHOLE, 14, 13, 12), ("E1", "full", WHOLE, 12, 12, 11), ("E1", "full", CUT, 10, 8, 8),
     ("E2", "half", WHOLE, 24, 22, 20), ("E2", "full", WHOLE, 22, 22, 21), ("E2", "full", CUT, 17, 14, 14),
     ("E3", "half", WHOLE, 13, 13, 12), ("E3", "full", WHOLE, 12, 12, 12), ("E3", "full", CUT, 9, 8, 8)],
)  # fmt: skip
def test_each_order_takes_the_hand_computed_time(name: str, duplex: str, ranges: str, fifo: int, filo: int, front: int):
    found = [iteration_s(example(name, duplex, ranges, order)) for order in ("fifo", "filo", "front")]
    assert found == pytest.approx([fifo, filo, front], rel=1e-4)


@pytest.mark.parametrize(
    ("order", "pushes", "waited", "pulls"),
    [("fifo", {2: 7, 1: 8, 0: 9}, [0, 2, 2], [12, 13, 14]), ("filo", {2: 7, 0: 11, 1: 13}, [0, 4, 7], [10, 12, 14]),
     ("front", {2: 7, 0: 8, 1: 10}, [0, 1, 4], [9, 11, 14])],
)  # fmt: skip
def test_messages_use_the_link_in_the_order_that_was_asked_for(
    order: str, pushes: dict[int, int], waited: list[int], pulls: list[int]
):
    """E1 over half duplex. Last in, first out starves the older of the two pushes that wait."""
    sent, phases = tables(example("E1", "half", order=order))
    first = sent[sent.iteration == 0]
    assert dict(zip(first.range.astype(int), first.seconds, strict=True)) == pytest.approx(pushes, rel=1e-4)
    own = phases[phases.iteration == 0]
    ends = own[own.phase == "push"].sort_values("end_s")
    sizes_s = [3, 1, 1]  # the last layer's push is ready first, and goes at once
    assert list(ends.end_s - ends.begin_s - sizes_s) == pytest.approx(waited, abs=1e-3)
    assert sorted(own[own.phase == "pull"].end_s) == pytest.approx(pulls, rel=1e-4)


def test_what_a_message_costs_makes_small_pieces_dear():
    """Without it, smaller pieces would never be slower."""
    pieces = {size: iteration_s(example("E2", "full", f"layers:{size * UNIT}", "front", overhead_s=0.5))
              for size in (1, 2, 3, 6)}  # fmt: skip
    assert min(pieces, key=pieces.__getitem__) == 2


def test_latency_is_paid_twice_and_keeps_no_link_busy():
    assert iteration_s(example("E3", "full", latency_s=10.0)) == pytest.approx(12 + 20, rel=1e-4)
    assert iteration_s(example("E1", "full", latency_s=10.0)) < 12 + 3 * 20


def test_a_small_credit_waits_and_a_large_one_is_first_in_first_out():
    """A message's credit is back once its arrival is reported: with 1 the link is idle meanwhile, with 3 never."""
    unit = 4 * UNIT + 24  # bytes
    found = [iteration_s(example("E2", "full", CUT, Front(credit=credit * unit), latency_s=1.0))
             for credit in (1, 2, 3, 4, 6, 100)]  # fmt: skip
    assert found == pytest.approx([29, 18, 16, 17, 19, 19], rel=1e-4)
    assert iteration_s(example("E2", "full", CUT, "front", latency_s=1.0)) == pytest.approx(16, rel=1e-4)


# -- bound and optimum -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "duplex", "ranges", "bound_s", "best_s"),
    [("E1", "half", WHOLE, 12, 12), ("E1", "full", WHOLE, 9, 11), ("E2", "half", WHOLE, 20, 20),
     ("E2", "full", CUT, 14, math.nan), ("E3", "half", WHOLE, 12, 12), ("E3", "full", WHOLE, 10, 12),
     ("E3", "full", CUT, 8, math.nan)],
)  # fmt: skip
def test_bound_and_optimum_of_the_examples(name: str, duplex: str, ranges: str, bound_s: float, best_s: float):
    """The optimum is searched where there are few messages."""
    chain = chain_of(example(name, duplex, ranges))
    assert lower_bound_s(chain) == pytest.approx(bound_s, rel=1e-4)
    assert optimum_s(chain) == pytest.approx(best_s, rel=1e-4, nan_ok=True)


def test_a_link_that_waits_on_purpose_can_be_better_than_all_that_never_do():
    """Of 3 busy schedules the best takes 24 s: the large push keeps the link from the input's layer."""
    run = chained((12, 1), (1, 1), (UNIT, 8 * UNIT), ranges="layers",
                  cluster={"duplex": "half", "bandwidth_bit_s": 8.0 * 4 * UNIT})  # fmt: skip
    assert optimum_s(chain_of(run)) == pytest.approx(21, rel=1e-4)
    assert min(iteration_s(run.but(order=order)) for order in ORDERS) == pytest.approx(24, rel=1e-4)


eighths = st.integers(0, 8).map(lambda n: n / 8)


@st.composite
def runs(draw: st.DrawFn) -> Run:
    """Any order on any chain of at most four layers."""
    layers = draw(st.lists(st.tuples(eighths, eighths, st.integers(1, 9)), min_size=1, max_size=4))
    forward_s, backward_s, sizes = zip(*layers, strict=True)
    link = {
        "duplex": draw(st.sampled_from(("full", "half"))),
        "latency_s": draw(st.sampled_from((0.0, 0.5))),
        "bandwidth_bit_s": draw(st.sampled_from((1e3, 4e3))),
        "overhead_s": draw(st.sampled_from((0.0, 0.25))),
    }
    return chained((forward_s[0] + 0.125, *forward_s[1:]), backward_s, tuple(10 * size for size in sizes),
                   order=draw(st.sampled_from(ORDERS)), ranges=draw(st.sampled_from(("layers", "layers:20"))),
                   cluster=link)  # fmt: skip


@given(runs())
@settings(max_examples=30, deadline=None)
def test_no_order_is_faster_than_the_optimum_nor_the_optimum_than_the_bound(run: Run):
    chain, took_s = chain_of(run), iteration_s(run)
    computing_s = sum((*chain.forward_s, *chain.backward_s))
    busy_s = sum(map(sum, chain.messages_s)) * (2 if chain.duplex == "half" else 1)
    best_s = optimum_s(chain)
    best_s = took_s if math.isnan(best_s) else best_s
    assert max(computing_s, busy_s) <= lower_bound_s(chain) + 1e-9
    assert lower_bound_s(chain) <= best_s + 1e-9
    assert best_s <= took_s + 1e-9


def test_the_front_of_the_thesiss_mlp_is_the_optimum():
    """With full duplex no order of whole layers reaches the bound, and this one is the best of them."""
    for bandwidth in (5e8, 1e9):
        run = Run(engine="timing", ranges="layers", order="front", workers=2, pushes=6,
                  cluster={"compute_s": 0.02, "bandwidth_bit_s": bandwidth})  # fmt: skip
        chain = chain_of(run)
        assert iteration_s(run) == pytest.approx(optimum_s(chain))
        assert optimum_s(chain) > 1.12 * lower_bound_s(chain)


@pytest.mark.parametrize("run", [Run(cluster="lab"), Run(cluster={"compute_s": 0.02}, ranges="layers")])
def test_a_chain_needs_layers_and_a_link(run: Run):
    with pytest.raises(ConfigError, match="needs ranges='layers'"):
        chain_of(run)
