"""Request orders in runs: the worked examples end to end, the chain beside them, and what the study shows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from chains import LAYERS
from tiny import digits
from torch import nn

from pslab.config.run import Run
from pslab.config.spec import build
from pslab.config.table import ROWS
from pslab.errors import ConfigError
from pslab.lab.records.record import Result
from pslab.lab.runs.run import sweep
from pslab.lab.studies import ordering, ordering_plots, ordering_tables
from pslab.policies.orders import Front

UNIT = 250_000  # parameters that take a second on the link; beside them a frame's header is nothing
MODELS = {"mlp:8": {"compute_s": 0.02, "bandwidths": [5e6, 2e7]}}


class Layer(nn.Module):
    """So many parameters, of which ten do something."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight[:10]


def stack(name: str) -> nn.Module:
    layers = [Layer(size * UNIT) for size in LAYERS[name]["sizes"]]
    return nn.Sequential(nn.Flatten(), nn.AdaptiveAvgPool1d(10), *layers)


def first() -> nn.Module:
    return stack("E1")


def second() -> nn.Module:
    return stack("E2")


def third() -> nn.Module:
    return stack("E3")


FACTORIES = {"E1": first, "E2": second, "E3": third}


def example(name: str, duplex: str, ranges: str, order: str) -> Run:
    layers = LAYERS[name]
    shares = tuple(zip(layers["forward_s"], layers["backward_s"], strict=True))
    cluster = {"compute_s": float(sum(map(sum, shares))), "layer_shares": shares, "duplex": duplex,
               "bandwidth_bit_s": 8.0 * 4 * UNIT}  # fmt: skip
    return Run(model=FACTORIES[name], data=digits, engine="timing", workers=2, pushes=6, ranges=ranges, order=order,
               cluster=cluster)  # fmt: skip


WHOLE, CUT = "layers", f"layers:{UNIT}"
EXPECTED = {
    ("E1", "half", WHOLE): (14, 13, 12), ("E1", "full", WHOLE): (12, 12, 11), ("E1", "full", CUT): (10, 8, 8),
    ("E2", "half", WHOLE): (24, 22, 20), ("E2", "full", WHOLE): (22, 22, 21), ("E2", "full", CUT): (17, 14, 14),
    ("E3", "half", WHOLE): (13, 13, 12), ("E3", "full", WHOLE): (12, 12, 12), ("E3", "full", CUT): (9, 8, 8),
}  # fmt: skip


def swept(runs: Sequence[Run], folder: Path) -> list[Result]:
    return sweep(runs, results=folder, progress=False)


def test_the_examples_end_to_end(tmp_path: Path):
    runs = [example(*case, order) for case in EXPECTED for order in ("fifo", "filo", "front")]
    results = swept(runs, tmp_path)
    assert {result.manifest["verdict"] for result in results} == {"valid"}
    found = [ordering.measured(result).iteration_s for result in results]
    assert found == pytest.approx([seconds for times in EXPECTED.values() for seconds in times], rel=1e-4)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[Result]:
    runs = ordering.order_runs(models=MODELS, uneven_model="mlp:8", pushes=80,
                               uneven={**ordering.UNEVEN, "bandwidth_bit_s": 1e7})  # fmt: skip
    return swept(runs, tmp_path_factory.mktemp("results"))


def test_the_chain_says_what_equal_workers_do(results: list[Result]):
    assert len(ordering_tables.even(results)) == 2 * 2 * len(ROWS["order"])
    assert {result.manifest["verdict"] for result in results} == {"valid"}
    assert ordering_tables.agreement(results) < 1e-9


def test_waiting_is_what_is_left_of_an_iteration(results: list[Result]):
    for result in ordering_tables.even(results):
        found, chain = ordering.measured(result), ordering.chain_of(result.run)
        assert found.waiting_s == pytest.approx(found.iteration_s - chain.compute_s)
        assert found.staleness == 0
        assert found.longest_s <= found.iteration_s
    stale = [ordering.measured(r).staleness for r in ordering_tables.uneven(results) if r.run.sync == "ssp:3"]
    assert all(value > 0 for value in stale)


def test_no_run_of_equal_workers_is_better_than_the_optimum(results: list[Result]):
    for result in ordering_tables.even(results):
        best = ordering.best_of(ordering.chain_of(result.run))
        assert best.optimum_s is not None
        assert best.bound_s - 1e-9 <= best.optimum_s <= ordering.measured(result).iteration_s + 1e-9


def test_where_the_thesiss_order_does_not_help(results: list[Result]):
    table = ordering_tables.helpless(results)
    distances = ordering_tables.distances(results)
    assert list(distances.index.names) == ["model", "duplex", "Gbit/s"]
    for key, row in table.iterrows():
        assert row["needed (ms)"] >= row["FIFO (ms)"] or row["fastest"] != "needed", key
    equal = {key[3:] for key in table.index if key[1] == "equal"}
    for (_, duplex, bandwidth), row in distances.iterrows():
        worse = float(row["needed"][:-2]) >= float(row["FIFO"][:-2])
        assert not worse or (duplex, bandwidth) in equal


def test_every_order_is_drawn(results: list[Result]):
    drawn = ordering_plots.time(results, MODELS)
    lines = [trace for trace in drawn.data if trace.mode == "lines"]
    named = ", ".join({line.name for line in lines})
    assert sorted(named.split(", ")) == sorted(ordering_plots.order_name(order) for order in ROWS["order"])
    assert all(min(line.y) >= 0 for line in lines)
    bars = ordering_plots.waiting(results).data
    assert {bar.name for bar in bars} == {"BSP", "SSP, s\u00a0=\u00a03"}
    assert all(len(bar.x) == len(ROWS["order"]) for bar in bars)


def test_the_oldest_push_starves_when_the_last_one_in_goes_first(tmp_path: Path):
    """Of E1's pushes the first to be ready goes at once; of the two that wait the older one waits for the younger."""
    chain = ordering.chain_of(example("E1", "half", WHOLE, "filo"))
    times = {name: ordering_plots.waits(chain, ordering_plots.trace(chain, build("order", name)), "push")
             for name in ("fifo", "filo")}  # fmt: skip
    waited = {name: [round(begin - ready) for ready, begin, _ in found.values()] for name, found in times.items()}
    assert waited == {"fifo": [0, 2, 2], "filo": [0, 4, 7]}  # in the order in which they go
    results = swept([example("E1", "half", WHOLE, order) for order in ("fifo", "filo")], tmp_path)
    drawn = ordering_plots.starvation(results)
    assert len([note for note in drawn.layout.annotations if "waits" in note.text]) == 3


def test_pieces_and_credit(results: list[Result]):
    drawn = ordering_plots.pieces(results, "mlp:8", (100, 1000), (None, 100, 1000), 1e-4, 1e-4)
    values = drawn.data[0].z
    assert [[math.isnan(value) for value in row] for row in values] == [[False] * 2, [False, True], [False] * 2]
    chain = ordering.chain_of(ordering_tables.even(results)[0].run)
    (row,) = ordering.cut_and_credit(chain, (100,), (None,))
    assert row == [ordering.iteration_s(ordering.chain_of(ordering_tables.even(results)[0].run, piece_bytes=400),
                                        Front())]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "message"),
    [({"orders": []}, "at least one entry"), ({"pieces": [0]}, "at least 1"), ({"credits": ["1"]}, "at least 1"),
     ({"models": {"mlp": {}}}, "must map each model"), ({"latency_s": -1.0}, "at least 0"),
     ({"orders": [1]}, "must be a name")],
)  # fmt: skip
def test_parameters_that_cannot_be_are_refused(change: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        ordering.order_runs(**change)


def test_a_chain_needs_layers():
    with pytest.raises(ConfigError, match="needs ranges='layers'"):
        ordering.chain_of(Run(cluster="lab"))
