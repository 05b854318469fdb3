"""The local engine, with real processes: its arithmetic, its stop rules, and what happens when something breaks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from conducted import Acts, conduct, died, judged
from ownpolicies import AlwaysHold
from tiny import Diverges, Raises, colours, digits, finished, net, tiny
from torch.nn import functional

from pslab.config.metric import medians
from pslab.engines.experiment.experiment import Outcome
from pslab.engines.processes import pool
from pslab.engines.worker.phases import PHASES
from pslab.errors import WorkerFailed
from pslab.lab.runs.resolve import resolve
from pslab.lab.runs.run import run
from pslab.policies.sync.asp import ASP
from pslab.tensors.workload.data import Batches, batch

OPTIMIZERS = {
    "sgd:momentum=0.9": lambda p: torch.optim.SGD(p, lr=0.2, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
}
RATES = {"sgd:momentum=0.9": 0.2, "adam": 0.01}


def alone(optimizer: str, dtype: torch.dtype, steps: int, batch_size: int) -> torch.Tensor:
    """Plain torch: no pslab but the data and the initial weights."""
    experiment = resolve(tiny(dtype=str(dtype).split(".")[1]))
    module = net().to(dtype)
    torch.nn.utils.vector_to_parameters(experiment.weights.clone(), module.parameters())
    made, data = OPTIMIZERS[optimizer](module.parameters()), digits()
    batches = Batches(len(data.train_y), 1, 0, batch_size, 0)
    for step in range(steps):
        rows = torch.from_numpy(batches.at(step))
        made.zero_grad()
        x = batch(data.train_x[rows], dtype, data.mean, data.std)
        functional.cross_entropy(module(x), data.train_y[rows]).backward()
        made.step()
    return torch.nn.utils.parameters_to_vector(module.parameters()).detach()


@pytest.mark.one_of(3)
@pytest.mark.parametrize(("dtype", "steps", "bound"), [(torch.float64, 25, 1e-12), (torch.float32, 10, 1e-5)])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("pull", ["whole", "changed"])
def test_bsp_is_one_process_with_all_the_batches(optimizer, dtype, steps, bound, pull):
    fields = {"optimizer": optimizer, "dtype": str(dtype).split(".")[1], "learning_rate": RATES[optimizer]}
    many = conduct(workers=4, pushes=4 * steps, eval_every=4 * steps, pull=pull, **fields)
    one = alone(optimizer, dtype, steps, 64)
    difference = (torch.from_numpy(many.weights) - one).abs().max() / one.abs().max()
    assert difference <= bound


class Mine(ASP):
    """A policy of the user's."""


Mine.__module__ = "__main__"  # as a notebook's, so that it travels by value

#: Fields; why such a run of 2 workers ends, after how many pushes; and what else is to be seen in its outcome.
RUNS: dict[str, tuple[dict[str, Any], str, int | None, Callable[[Outcome], bool]]] = {
    "a straggler": ({"sync": "ssp:1", "cluster": {"compute_s": 0.002, "slow": {0: 5.0}}}, "budget", 40, lambda _: True),
    "a budget of no whole round": ({"sync": "asp", "pushes": 37}, "budget", 37,
                                   lambda outcome: outcome.accuracy[-1, 0] == 37),
    "weights of a worker's own": ({"sync": "easgd:2,alone=on", "learning_rate": 0.02}, "budget", 40, lambda _: True),
    "changes that come as they may": ({"sync": "adiloco:2", "learning_rate": 0.01, "schedule": "linear"}, "budget", 40,
                                      lambda _: True),
    "a policy of the user's": ({"sync": Mine()}, "budget", 40, lambda _: True),
    "a rule that always holds": ({"sync": AlwaysHold(1), "pushes": None, "seconds": 0.3}, "seconds", 2, lambda _: True),
    "a target": ({"sync": "asp", "pushes": 20_000, "eval_every": 40, "target_accuracy": 0.5, "learning_rate": 1.0},
                 "target", None, lambda outcome: outcome.facts["disturbed"] and outcome.accuracy[:, 2].max() >= 0.5),
    "a target that is to be held": (
        {"sync": "asp", "pushes": 20_000, "eval_every": 40, "target_accuracy": 0.5, "target_held": True,
         "learning_rate": 1.0}, "target", None, lambda outcome: max(medians(outcome.accuracy[:, 2].tolist())) >= 0.5),
    "a model that diverges": ({"model": Diverges}, "diverged", None, lambda outcome: np.isfinite(outcome.weights).all()
                              and set(outcome.facts["diverged"]) == {"worker", "iteration"}),
    "a frame that is under way for longer than a lease": (
        {"pushes": 2, "lease_s": 0.2,
         "cluster": {"bandwidth_bit_s": 8 * 1930 * 4 / 0.5, "latency_s": 0.3}}, "budget", 2,
        lambda outcome: not outcome.facts["deaths"] and outcome.facts["seconds"] >= 0.8),
}  # fmt: skip


@pytest.mark.parametrize("what", RUNS)
def test_a_run_is_valid_and_ends_as_it_should(what: str):
    fields, why, pushes, also = RUNS[what]
    run = tiny(**{"workers": 2, **fields})
    outcome = finished(run)
    assert judged(run, outcome) == {"verdict": "valid"}
    assert outcome.facts["outcome"] == why
    assert pushes in (None, outcome.facts["pushes"])
    assert also(outcome)


def test_a_worker_that_raises_ends_the_run_and_the_next_one_works():
    with pytest.raises(WorkerFailed, match=r"the model broke here") as error:
        finished(tiny(model=Raises))
    assert error.value.who.startswith("worker")
    assert 3 <= error.value.iteration <= 6  # less the batches of the check and the warm-up
    assert finished(tiny()).facts["pushes"] == 40


@pytest.fixture(scope="module")
def pruned(tmp_path_factory):
    wanted = tiny(sync="asp", prune="static:5%", pull="changed", cluster={"compute_s": 0.002, "bandwidth_bit_s": 1e8})
    return run(wanted, results=tmp_path_factory.mktemp("pruned"), progress=False)


def test_phases_of_an_iteration_follow_each_other(pruned):
    phases = pruned.phases
    # workers are not equally fast: of each only the last iteration is not answered
    whole = [rows for _, rows in phases.groupby(["worker", "iteration"]) if "decode" in set(rows.phase)]
    assert len(whole) >= 32
    for rows in whole:
        ordered = rows.sort_values(["begin_s", "end_s"])
        assert list(ordered.phase) == list(PHASES)
        assert (ordered.end_s >= ordered.begin_s).all()
        assert (ordered.begin_s.to_numpy()[1:] >= ordered.end_s.to_numpy()[:-1] - 1e-9).all()


def test_bytes_are_the_length_of_the_frames(pruned):
    pushes = pruned.pushes
    assert (pushes.bytes_up_raw == 4 * 1930).all()
    assert (pushes.bytes_up < 0.12 * pushes.bytes_up_raw).all()
    answered = pushes[pushes.bytes_down > 0]
    assert len(answered) >= 36
    assert (answered.bytes_down < answered.bytes_down_raw).any()


def test_the_pool_is_kept_for_a_run_with_a_larger_model():
    before = {p.pid for p in pool.acquire(4).processes.values()}
    finished(tiny(model=lambda: torch.nn.Sequential(net(), torch.nn.Linear(10, 10))))
    assert {p.pid for p in pool.acquire(4).processes.values()} == before


@pytest.mark.slow
def test_a_torchvision_model_trains(tmp_path):
    wanted = tiny(model="torchvision:resnet18", data=colours, workers=2, batch_size=2, pushes=2, learning_rate=0.001)
    assert run(wanted, results=tmp_path, progress=False).manifest["pushes"] == 2


def test_the_servers_process_evaluates_beside_a_lone_worker_which_goes_on_without_it(small_pool):
    whole = conduct(workers=1, pushes=8, eval_every=1)
    died_there = partial(Acts, died, who="server", evaluating=True)
    without = conduct(workers=1, pushes=8, eval_every=1, model=died_there)
    assert np.array_equal(without.accuracy[:, [0, 2, 3]], whole.accuracy[:, [0, 2, 3]])
    assert len(whole.accuracy) == 9
    assert pool._kept is None  # the server's process is gone, and the next run begins another pool
