"""Runs on real processes: where a step is a round, they leave the bits of virtual time; else a record that is valid and
weights that its pushes alone leave.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np
import pytest
import torch
from ownpolicies import AlwaysHold
from sabotage import Acts, died
from tiny import Attention, Diverges, Raises, Swells, conduct, convolution, finished, huber, net, tiny, worst
from tools.audit.rules import judged
from tools.chaos.campaign import performed
from tools.chaos.draw import drawn as chaos
from torch import nn
from torch.utils.data import IterableDataset
from whole import in_process

from pslab.config.metric import medians
from pslab.config.products import CHOICE, MKL, ONEDNN
from pslab.config.table import ROWS
from pslab.engines.experiment.experiment import Outcome
from pslab.engines.processes import pool
from pslab.errors import WorkerFailed
from pslab.lab.judge import tables_of
from pslab.lab.runs.resolve import resolve
from pslab.policies.sync.asp import ASP
from pslab.tensors.workload.data import Dataset, resolve_data

LINKS = {"compute_s": 1e-3, "bandwidth_bit_s": 1e8, "server_bandwidth_bit_s": 2e8, "latency_s": 1e-4}


def drawn(seed: int) -> dict[str, Any]:
    """The fields of a run whose step is a round."""
    draw = random.Random(seed)
    sync = draw.choice(["bsp", "bsp", "local:3", "admm:2,rho=0.5"])
    sparse, workers = sync == "bsp" and draw.random() < 0.5, draw.randint(2, 4)
    ranges = draw.choice(["whole", "layers", "layers:200", "layers:400"]) if sync == "bsp" else "whole"
    servers = 1 if sync.startswith("admm") else draw.randint(1, 2 if ranges == "layers" else 3)
    return {
        "sync": sync, "workers": workers, "seed": seed, "pushes": draw.randint(1, 30),
        "ranges": ranges, "servers": servers,
        "prune": "static:5%" if sparse else "none", "pull": draw.choice(["whole", "changed"]) if sparse else "whole",
        "optimizer": draw.choice(["sgd", "sgd:momentum=0.5"]) if sync == "bsp" else "sgd", "learning_rate": 0.05,
        "eval_every": 10**6,
        "quantize": "none" if sync.startswith("admm") else draw.choice(["none", "none", "int8", "qsgd:4", "efsign"]),
        "downlink": "none",
    } | ({} if sync.startswith("admm") or draw.random() < 0.5 else {
        "pull": "whole", "downlink": draw.choice(["int8", "static:20%+fp16", "qsgd:4,residual=on"]),
    })  # fmt: skip


@lru_cache(maxsize=1)
def numbers() -> Dataset:
    """Regression: two outputs of three inputs, with float64 targets."""
    x = torch.linspace(-1, 1, 600).view(200, 3).sin()
    y = torch.stack([x.sum(1), x[:, 0] - x[:, 2]], 1).double()
    return resolve_data(lambda: (x[:128], y[:128], x[128:], y[128:]))


class Flow(IterableDataset):
    """A stream of examples."""

    def __len__(self) -> int:
        return 64

    def __iter__(self):
        return ((torch.full((3,), at / 64), torch.tensor([at / 32])) for at in range(64))


class Noise(nn.Module):
    """Adds noise from a generator of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.draw = torch.Generator()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 0.1 * torch.rand(x.shape, generator=self.draw)


REGRESSION = {"model": partial(nn.Linear, 3, 2), "data": numbers, "batch_size": 8, "loss": huber, "metric": worst}
GPT = {"model": "gpt:8,layers=1", "data": "text:128,32", "metric": "loss", "batch_size": 4, "learning_rate": 0.2}
KEYED = {"data": "planted:rows=200,keys=240,per_row=6,communities=4", "model": "linear", "pull": "keys",
         "batch_size": 8, "learning_rate": 2.0, "dtype": "float64"}  # fmt: skip
#: Runs whose step is a round: aggregates of pushes, steps behind a push, layers, losses, models and data of a user's.
ROUNDS: list[dict[str, Any]] = [
    {"prune": "powersgd:2", "ranges": "layers", "servers": 2}, {"ranges": "layers", "model": Attention}, REGRESSION,
    {**KEYED, "servers": 3, "partition": "two-step", "placement": "parsa"},
    {"sync": "streaming:6,2,overlap=2,alpha=0.5"}, {**GPT, "prune": "range:300", "pull": "range"},
    {"prune": "sketch:cols=30", "servers": 2, "ranges": "layers:400", "pull": "changed"},
    {"rate": "adagrad", "ranges": "layers", "cluster": LINKS, "model": lambda: nn.Sequential(Noise(), net())},
    {"optimizer": "adam", "cluster": "lab"},
    # and all others
    {"prune": "lowrank:2"}, {"prune": "ef21:5%"}, {"quantize": "signum"}, {"prune": "powersgd:2", "sync": "diloco:2"},
    {"prune": "powersgd:1,after=2", "sync": "local:2", "quantize": "fp16"}, {"prune": "range:7", "pull": "range"},
    {"prune": "demo:topk=4,chunk=16", "servers": 3, "ranges": "layers:400"},
    {"downlink": "static:20%+int8", "servers": 2, "ranges": "layers:400"},
    {"downlink": "efsign", "sync": "local:2", "prune": "static:5%"},
    {"sync": "streaming:4,1,overlap=1,merge=carry", "prune": "static:10%", "pull": "changed", "servers": 2},
    {"sync": "streaming:4,2,overlap=1", "quantize": "e3m0:residual=on", "servers": 2},
    {"sync": "decoupled:6,2,overlap=2,quorum=2", "workers": 2},  # a round, though the policy does not say so
    {"ranges": "layers", "model": convolution, "cluster": LINKS}, {"servers": 4, "cluster": LINKS, "workers": 2},
    {"ranges": "layers", "prune": "static:10%", "pull": "changed", "cluster": LINKS},
    {**REGRESSION, "loss": nn.SmoothL1Loss(), "ranges": "layers"}, KEYED,
    {**KEYED, "servers": 2, "partition": "two-step"},
    {"model": lambda: nn.Linear(3, 1), "data": lambda: (Flow(), Flow()), "loss": "mse", "metric": "loss"},
    *({**GPT, "prune": row.example or row.name} for row in ROWS["prune"].values() if row.name != "range"),
]  # fmt: skip
FEW = 9


def problem(seed: int, fields: dict[str, Any]) -> str:
    """How a run on these processes differs from virtual time, or is not valid."""
    given = {"learning_rate": 0.02, "pushes": 24, "workers": 3, "eval_every": 10**6, **fields}
    wanted = tiny(**given)  # as fast as they are: no bit depends on when something comes
    expected = in_process(tiny(**{**given, "engine": "virtual", "cluster": {**LINKS, "slow": {0: 1.0 + seed % 3}}}))
    found = finished(wanted)
    facts = tables_of(wanted, found)[2]
    same = found.weights.tobytes() == expected.weights.tobytes() and counts(found) == counts(expected)
    return "" if same and facts["verdict"] != "invalid" else f"{seed}: {facts.get('violations')} {fields}"


def counts(outcome: Outcome) -> list[Any]:
    return [outcome.accuracy[:, [0, 2, 3]].tolist(), *(outcome.facts[name] for name in ("outcome", "pushes",
                                                                                        "accepted"))]  # fmt: skip


@pytest.mark.parametrize("rows", [
    [drawn(seed) for seed in (2, 3, 5)], ROUNDS[:FEW], *(pytest.param(rows, marks=pytest.mark.slow) for rows in (
        ROUNDS[FEW:], *([drawn(seed) for seed in range(first, first + 38)] for first in range(0, 190, 38)))),
], ids=["some", "few kinds", "all kinds", *(f"from {first}" for first in range(0, 190, 38))])  # fmt: skip
def test_rounds_leave_the_same_bits_on_every_engine(rows: list[dict[str, Any]]):
    assert list(filter(None, (problem(number, fields) for number, fields in enumerate(rows)))) == []


@pytest.mark.parametrize("numbers", [(*range(4), 13), pytest.param(range(4, 60), marks=pytest.mark.slow)], ids=str)
def test_runs_with_faults_are_valid_and_their_weights_are_a_replay_of_their_pushes(numbers: Sequence[int]):
    assert {number: found for number in numbers if (found := performed(chaos(9, number, "local"))[1])} == {}


@pytest.mark.parametrize("fields", [{"prune": "static:5%"}, {"ranges": "layers", "model": partial(net, 512),
                                                             "batch_size": 64}], ids=["whole", "layers"])  # fmt: skip
def test_with_onednn_all_processes_leave_the_same_bits(fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch):
    """Children follow their parent, whatever is in their own environment."""
    wanted = tiny(**{"workers": 2, "sync": "bsp", "pushes": 8, "model": partial(net, 96), **fields})
    left = list[bytes]()
    for library in (MKL, ONEDNN):
        monkeypatch.setenv(CHOICE, library)
        expected, found = in_process(wanted.but(engine="virtual", cluster=LINKS)), finished(wanted.but(ranges="whole"))
        left.append(found.weights.tobytes())
        assert expected.weights.tobytes() == left[-1]
    assert left[0] != left[1]


class Mine(ASP):
    """A policy of the user's."""


Mine.__module__ = "__main__"  # as a notebook's, so that it travels by value

#: Fields; why such a run of 2 workers ends, after how many pushes; and what else is to be seen in its outcome.
ENDS: dict[str, tuple[dict[str, Any], str, int | None, Callable[[Outcome], bool]]] = {
    "a straggler": ({"sync": "ssp:1", "cluster": {"compute_s": 0.002, "slow": {0: 5.0}}}, "budget", 40, lambda _: True),
    "a budget of no whole round": ({"sync": "asp", "pushes": 37}, "budget", 37,
                                   lambda outcome: outcome.accuracy[-1, 0] == 37),
    "a policy of the user's": ({"sync": Mine()}, "budget", 40, lambda _: True),
    "a rule that always holds": ({"sync": AlwaysHold(1), "pushes": None, "seconds": 0.3}, "seconds", 2, lambda _: True),
    "a target that is to be held": (
        {"sync": "asp", "pushes": 20_000, "eval_every": 40, "target_accuracy": 0.5, "target_held": True,
         "learning_rate": 1.0}, "target", None, lambda outcome: max(medians(outcome.accuracy[:, 2].tolist())) >= 0.5),
    "a metric that falls to its target": ({**REGRESSION, "loss": "mse", "metric": "loss", "pushes": 4000,
                                           "eval_every": 8, "target_accuracy": 0.05, "learning_rate": 0.3},
                                          "target", None, lambda outcome: min(outcome.accuracy[:, 2]) <= 0.05),
    "a model that diverges": ({"model": Diverges}, "diverged", None, lambda outcome: np.isfinite(outcome.weights).all()
                              and set(outcome.facts["diverged"]) == {"worker", "iteration"}),
    "layers that diverge": ({"model": Diverges, "ranges": "layers"}, "diverged", None, lambda _: True),
    "a residual that overflows": ({"model": Swells, "prune": "static:1%", "learning_rate": 1e-40}, "diverged", None,
                                  lambda outcome: np.isfinite(outcome.weights).all()),
    "a frame that is under way for longer than a lease": (
        {"pushes": 2, "lease_s": 0.2,
         "cluster": {"bandwidth_bit_s": 8 * 1930 * 4 / 0.5, "latency_s": 0.3}}, "budget", 2,
        lambda outcome: not outcome.facts["deaths"] and outcome.facts["seconds"] >= 0.8),
    "evaluations beside it": ({"evaluate": "beside", "pushes": 200, "eval_every": 20, "cluster": {"compute_s": 0.002}},
                              "budget", 200, lambda outcome: outcome.facts["disturbed"]),
}  # fmt: skip


@pytest.mark.parametrize("what", ENDS)
def test_a_run_is_valid_and_ends_as_it_should(what: str):
    fields, why, pushes, also = ENDS[what]
    run = tiny(**{"workers": 2, **fields})
    outcome = finished(run)
    assert judged(run, outcome) == ("valid", ())
    assert outcome.facts["outcome"] == why
    assert pushes in (None, outcome.facts["pushes"])
    assert also(outcome)


class Liar(ASP):
    barrier = True


@pytest.mark.parametrize(("fields", "words"), [
    ({"model": Raises}, "the model broke here"),
    ({"sync": Liar()}, "has a barrier, but applies 1 pushes while others compute"),
], ids=["model", "policy"])  # fmt: skip
def test_what_raises_ends_the_run_and_the_next_one_works_in_the_same_processes(fields: dict[str, Any], words: str):
    with pytest.raises(WorkerFailed, match=words):
        finished(tiny(**fields))
    before = {process.pid for process in pool.acquire(4).processes.values()}
    larger = tiny(model=lambda: nn.Sequential(net(), nn.Linear(10, 10)))
    assert finished(larger).facts["pushes"] == 40
    assert {process.pid for process in pool.acquire(4).processes.values()} == before


def test_weights_are_read_in_place_under_a_barrier_alone():
    assert resolve(tiny(sync="bsp")).in_place
    for fields in ({"sync": "ssp:0"}, {"sync": "asp"}, {"pull": "changed"}, {"cluster": {"latency_s": 0.001}}):
        assert not resolve(tiny(**{"sync": "bsp", **fields})).in_place


def test_the_servers_process_evaluates_beside_a_lone_worker_which_goes_on_without_it(small_pool):
    whole = conduct(workers=1, pushes=8, eval_every=1)
    without = conduct(workers=1, pushes=8, eval_every=1, model=partial(Acts, died, who="server", evaluating=True))
    assert np.array_equal(without.accuracy[:, [0, 2, 3]], whole.accuracy[:, [0, 2, 3]])
    assert len(whole.accuracy) == 9
