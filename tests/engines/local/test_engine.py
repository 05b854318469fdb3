"""The local engine, with real processes: its arithmetic, its stop rules, and what happens when something breaks."""

from __future__ import annotations

import pytest
import torch
from conducted import conduct
from ownpolicies import AlwaysHold
from tiny import Diverges, Raises, colours, digits, net, tiny
from torch.nn import functional

from pslab.engines.worker.phases import PHASES
from pslab.errors import WorkerFailed
from pslab.lab.runs.resolve import resolve
from pslab.lab.runs.run import run
from pslab.policies.sync.asp import ASP
from pslab.policies.sync.ssp import SSP
from pslab.protocol.messages import Asked, Start
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


def test_staleness_is_bounded_by_the_policy(tmp_path):
    result = run(tiny(sync="ssp:1", cluster={"compute_s": 0.002, "slow": {0: 5.0}}), results=tmp_path, progress=False)
    done = dict.fromkeys(range(4), 0)
    for push in result.pushes.itertuples():
        assert push.iteration == done[push.worker]
        assert push.iteration - min(done.values()) <= 1
        done[push.worker] += 1


class AlwaysStart(SSP):
    @property
    def window(self):
        return None  # or the window itself would refuse what the rule lets through

    def step(self, state, event, clocks):
        if isinstance(event, Asked):
            return state, (Start(event.worker, event.iteration),)
        return super().step(state, event, clocks)


def test_a_rule_that_always_holds_stalls_the_run(tmp_path):
    result = run(tiny(sync=AlwaysHold(1), pushes=None, seconds=0.3), results=tmp_path, progress=False)
    assert result.manifest["pushes"] == 4  # one iteration each, and nobody was started again
    assert result.manifest["outcome"] == "seconds"


def test_a_rule_that_always_starts_exceeds_the_bound(tmp_path):
    slow = {"compute_s": 0.001, "slow": {0: 40.0}}
    result = run(tiny(sync=AlwaysStart(1), cluster=slow), results=tmp_path, progress=False)
    clocks = [0, 0, 0, 0]
    lead = 0
    for push in result.pushes.itertuples():
        lead = max(lead, push.iteration - min(clocks))
        clocks[push.worker] += 1
    assert lead > 1


def test_a_policy_of_the_users_runs_like_a_named_one(tmp_path):
    class Mine(ASP):  # local to this function: it can only travel by value
        pass

    result = run(tiny(sync=Mine()), results=tmp_path, progress=False)
    assert result.manifest["pushes"] == 40


def test_the_budget_counts_accepted_pushes(tmp_path):
    result = run(tiny(sync="asp", pushes=37), results=tmp_path, progress=False)
    assert result.manifest["pushes"] == 37
    assert list(result.pushes.push) == list(range(1, 38))
    assert result.accuracy.pushes.iloc[-1] == 37


def test_a_target_accuracy_stops_the_run_and_marks_it_disturbed(tmp_path):
    wanted = tiny(sync="asp", pushes=20_000, eval_every=40, target_accuracy=0.5, learning_rate=1.0)
    result = run(wanted, results=tmp_path, progress=False)
    assert result.manifest["outcome"] == "target"
    assert result.manifest["disturbed"]
    assert result.accuracy.accuracy.max() >= 0.5
    assert result.manifest["pushes"] < 20_000


def test_a_worker_that_raises_ends_the_run_and_the_next_one_works(tmp_path):
    with pytest.raises(WorkerFailed, match=r"the model broke here") as error:
        run(tiny(model=Raises), results=tmp_path, progress=False)
    assert error.value.who.startswith("worker")
    assert 3 <= error.value.iteration <= 6  # less the batches of the check and the warm-up
    assert run(tiny(), results=tmp_path, progress=False).manifest["pushes"] == 40


def test_divergence_is_a_result(tmp_path):
    result = run(tiny(model=Diverges), results=tmp_path, progress=False)
    assert result.manifest["outcome"] == "diverged"
    assert set(result.manifest["diverged"]) == {"worker", "iteration"}
    assert torch.isfinite(torch.from_numpy(result.weights)).all()


def test_phases_of_an_iteration_follow_each_other(tmp_path):
    wanted = tiny(sync="asp", prune="static:5%", pull="changed", cluster={"compute_s": 0.002, "bandwidth_bit_s": 1e8})
    phases = run(wanted, results=tmp_path, progress=False).phases
    # workers are not equally fast: of each only the last iteration is not answered
    whole = [rows for _, rows in phases.groupby(["worker", "iteration"]) if "decode" in set(rows.phase)]
    assert len(whole) >= 32
    for rows in whole:
        ordered = rows.sort_values(["begin_s", "end_s"])
        assert list(ordered.phase) == list(PHASES)
        assert (ordered.end_s >= ordered.begin_s).all()
        assert (ordered.begin_s.to_numpy()[1:] >= ordered.end_s.to_numpy()[:-1] - 1e-9).all()


def test_bytes_are_the_length_of_the_frames(tmp_path):
    pushes = run(tiny(sync="asp", prune="static:5%", pull="changed"), results=tmp_path, progress=False).pushes
    assert (pushes.bytes_up_raw == 4 * 1930).all()
    assert (pushes.bytes_up < 0.12 * pushes.bytes_up_raw).all()
    answered = pushes[pushes.bytes_down > 0]
    assert len(answered) >= 36
    assert (answered.bytes_down < answered.bytes_down_raw).any()


def test_the_pool_is_kept_between_runs(tmp_path):
    from pslab.engines.processes import pool

    run(tiny(seed=1), results=tmp_path, progress=False)
    before = {p.pid for p in pool.acquire(4).processes.values()}
    larger = tiny(seed=2, model=lambda: torch.nn.Sequential(net(), torch.nn.Linear(10, 10)))
    run(larger, results=tmp_path, progress=False)
    assert {p.pid for p in pool.acquire(4).processes.values()} == before


@pytest.mark.slow
def test_a_torchvision_model_trains(tmp_path):
    wanted = tiny(model="torchvision:resnet18", data=colours, workers=2, batch_size=2, pushes=2, learning_rate=0.001)
    assert run(wanted, results=tmp_path, progress=False).manifest["pushes"] == 2


def test_a_slow_link_is_not_a_dead_worker(tmp_path):
    wanted = tiny(workers=2, pushes=2, lease_s=0.2, cluster={"bandwidth_bit_s": 8 * 1930 * 4 / 0.5, "latency_s": 0.3})
    result = run(wanted, results=tmp_path, progress=False)
    assert result.manifest["deaths"] == []
    assert result.manifest["seconds"] >= 0.8  # the frame takes half a second, and the latency
