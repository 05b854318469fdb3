"""Rates from end to end: the vectors by hand in virtual time, every rate on every engine, the same bits on any host."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from replay import replay
from tiny import tiny
from wanted import given, weights

from pslab.config.table import ROWS
from pslab.engines.execute import execute
from pslab.engines.server.ledger import PUSH_COLUMNS
from pslab.engines.virtual import engine as virtual
from pslab.errors import ConfigError
from pslab.lab.judge.verdict import judge
from pslab.lab.runs.resolve import resolve
from pslab.lab.runs.run import run
from pslab.policies.rates import AdaGrad, Applied, Split

EVERY = ["constant", "dynsgd", "dynsgd:inverse", "dynsgd:stalest", "adagrad", "adagrad:server", "split", "split:equal",
         "split:speed", "split:identity", "modulated", "modulated:inverse", "modulated:reciprocal"]  # fmt: skip
UNEVEN = {"preset": "lab", "slow": {0: 3.0}}


def quiet(news: dict) -> None:
    """Nobody listens."""


def test_every_rate_is_among_those_that_are_tried():
    assert {rate.partition(":")[0] for rate in EVERY} == set(ROWS["rate"])


# --- by hand ------------------------------------------------------------------------------------------------------

SAME = [[[1]], [[3]]], [[1.0], [1.5]]  # two pushes for the same version
SEQUENCE = [[[1], [1], [1], [0]], [[3], [2], [0], [0]]], [[1.0, 1.0, 1.0, 50.0], [3.5, 0.25]]  # and a late one


def moved(wanted, pushes: int) -> list[float]:
    """The one weight, with its sign turned, after each push: gradients are what is taken away."""
    return [-float(weights(wanted, count + 1)[0]) for count in range(pushes)]


@pytest.mark.parametrize(
    ("rate", "same", "sequence"),
    [
        ("dynsgd", [1, 2], [1, 2, 3, 4, 6]),
        ("constant", [0.5, 2], [0.5, 1, 1.5, 3, 4]),
        ("dynsgd:inverse", [1, 2.5], [1, 2, 3, 3.75, 5.75]),
        # the second worker's weights are one step older with every push of the first, then it pulls
        ("dynsgd:stalest", [1, 2.5], [1, 1.5, 1 + 1 / 2 + 1 / 3, 1 + 1 / 2 + 1 / 3 + 3 / 4, 31 / 12 + 2 / 2]),
    ],
)
def test_the_vectors_of_dynsgd(rate, same, sequence):
    assert moved(given(rate, *SAME), 2) == pytest.approx(same, rel=1e-14)
    assert moved(given(rate, *SEQUENCE), 5) == pytest.approx(sequence, rel=1e-14)


def test_ssp_sgd_of_weight_one():
    assert moved(given("constant", *SEQUENCE, push_weight=1.0), 5) == [1, 2, 3, 6, 8]


def test_a_worker_that_left_is_not_the_stalest():
    gradients = [[[1]] * 6, [[0]] * 6]
    cluster = {"compute_s": 1.0, "slow": {1: 100.0}, "leave": {1: 2.5}}
    left = given("dynsgd:stalest", gradients, [], cluster=cluster)
    assert moved(left, 4) == [1, 1.5, 2.5, 3.5]


@pytest.mark.parametrize("accumulator", ["worker", "server"])
def test_the_vectors_of_adagrad(accumulator):
    alone = given(f"adagrad:{accumulator}", [[[3], [4], [0]]], [[1.0]], learning_rate=0.1)
    assert moved(alone, 3) == pytest.approx([0.1, 0.18, 0.18], rel=1e-9)
    ones = given(f"adagrad:{accumulator}", [[[1]] * 9], [[1.0]])
    steps = np.diff([0.0, *moved(ones, 9)])
    assert steps[[0, 1, 2, 3, 8]] == pytest.approx([1, 2**-0.5, 3**-0.5, 0.5, 1 / 3], rel=1e-9)


def test_at_the_worker_a_slow_one_has_the_larger_rate():
    gradients, seconds = [[[1]] * 9, [[1]] * 9], [[1.0], [4.5]]
    last = {name: np.diff(moved(given(f"adagrad:{name}", gradients, seconds), 5))[-1] for name in ("worker", "server")}
    assert last["worker"] == pytest.approx(1)  # its first, after four of the other's
    assert last["server"] == pytest.approx(5**-0.5)


class Shares(Split):
    """Given shares, by worker: each one's staleness is known."""

    shares = ()

    def share(self, staleness: int, pushes: int) -> float:
        return self.shares[staleness]


def shares(*given: float) -> Split:
    """The first worker's push is fresh and the second's is stale by one."""
    return type("Given", (Shares,), {"shares": given})()


@pytest.mark.parametrize(
    ("rate", "first", "second", "pushed"),
    [
        ("split:equal", (3, 0), (0, 4), (0, 3.5355)),
        (shares(0.5, 1.0), (3, 0), (0, 4), (0, 4.4721)),
        ("split", (0, 4), (3, 0), (2.2361, 0)),  # fresh: 1, stale by one: 1/2
        (shares(3.0, 4.0), (3, 0), (0, 4), (0, 4)),
        (shares(1.0, 1 / 3), (3, 4), (6, 8), (2.25, 3)),
        ("split:identity", (3, 4), (6, 8), (6, 8)),
    ],
)
def test_the_vectors_of_splitting(rate, first, second, pushed):
    wanted = given(rate, [[first], [second]], [[1.0], [1.5]], sizes=(2,))
    alone, both = -weights(wanted, 1), -weights(wanted, 2)
    assert alone == pytest.approx(first, rel=1e-12)  # alone there is nothing to share out
    assert both - alone == pytest.approx(pushed, abs=5e-5)


def test_splitting_is_by_layer():
    wanted = given("split:equal", [[(3, 0, 1)], [(0, 4, 1)]], [[1.0], [1.5]], sizes=(2, 1))
    assert weights(wanted, 1) - weights(wanted, 2) == pytest.approx([0, 12.5**0.5, 1])


# --- every rate ---------------------------------------------------------------------------------------------------


def table(outcome) -> pd.DataFrame:
    pushes = pd.DataFrame(outcome.pushes, columns=PUSH_COLUMNS)
    return pushes.astype(dict.fromkeys(PUSH_COLUMNS[:7], int))


PRUNED = {"prune": "static:5%", "pull": "changed"}


@pytest.mark.parametrize("fields", [{}, {**PRUNED, "optimizer": "sgd:momentum=0.5"}], ids=["dense", "pruned"])
@pytest.mark.parametrize("sync", ["bsp", "asp"])
@pytest.mark.parametrize("rate", [rate for rate in EVERY if rate != "dynsgd:stalest"])
def test_weights_are_the_replay_of_the_recorded_pushes(sync, rate, fields):
    experiment = resolve(tiny(engine="virtual", sync=sync, rate=rate, cluster=UNEVEN, learning_rate=0.05, **fields))
    outcome = execute(experiment, quiet)
    assert torch.equal(replay(experiment, table(outcome)), torch.from_numpy(outcome.weights))
    assert np.isfinite(outcome.weights).all()


@pytest.mark.parametrize("rate", EVERY)
def test_every_rate_learns_with_real_processes_and_is_judged_as_valid(tmp_path, rate):
    cluster = {"compute_s": 0.002, "slow": {0: 3.0}}
    wanted = tiny(sync="ssp:2", rate=rate, cluster=cluster, pushes=80, learning_rate=0.1)
    result = run(wanted, results=tmp_path, progress=False)
    assert result.manifest["verdict"] == "valid", result.manifest.get("violations")
    assert result.accuracy.loss.iloc[-1] < 0.95 * result.accuracy.loss.iloc[0]
    if rate != "dynsgd:stalest":
        assert torch.equal(replay(resolve(wanted), result.pushes), torch.from_numpy(result.weights))


@pytest.mark.parametrize("rate", EVERY)
def test_every_rate_runs_without_tensors(rate):
    wanted = tiny(engine="timing", sync="asp", rate=rate, cluster=UNEVEN)
    plain = execute(resolve(wanted.but(rate="constant")), quiet)
    outcome = execute(resolve(wanted), quiet)
    assert np.array_equal(outcome.pushes, plain.pushes, equal_nan=True)
    assert judge(wanted, {"pushes": table(outcome)}, outcome.facts).verdict != "invalid"


@pytest.mark.parametrize("prune", ["none", "static:5%"])
@pytest.mark.parametrize("rate", ["adagrad", "split", "dynsgd"])
def test_any_number_of_hosts_leaves_the_same_bits(monkeypatch, rate, prune):
    pull = "whole" if prune == "none" else "changed"
    wanted = tiny(engine="virtual", sync="asp", rate=rate, prune=prune, pull=pull, cluster=UNEVEN)
    assert resolve(wanted).portable
    found = []
    for hosts in (1, 2, 3):
        monkeypatch.setattr(virtual, "cores", lambda hosts=hosts: hosts)
        found.append(execute(resolve(wanted), quiet))
    for other in found[1:]:
        assert other.weights.tobytes() == found[0].weights.tobytes()
        assert other.pushes.tobytes() == found[0].pushes.tobytes()


def test_nothing_of_a_run_is_left_to_the_next_one():
    wanted = tiny(engine="virtual", sync="asp", rate="adagrad", cluster=UNEVEN)
    first = execute(resolve(wanted), quiet).weights
    assert np.array_equal(execute(resolve(wanted), quiet).weights, first)


@pytest.mark.parametrize("rate", ["dynsgd", "dynsgd:inverse", "dynsgd:stalest", "split:identity", "modulated"])
def test_under_bsp_a_rate_of_stale_pushes_is_averaging(rate):
    found = {name: execute(resolve(tiny(engine="virtual", rate=name, cluster="lab")), quiet).weights
             for name in ("constant", rate)}  # fmt: skip
    assert np.array_equal(found["constant"], found[rate])


def test_sums_at_the_server_are_torchs_adagrad():
    fields = {"engine": "virtual", "sync": "asp", "cluster": UNEVEN, "dtype": "float64", "learning_rate": 0.05}
    here = execute(resolve(tiny(rate="adagrad:server", **fields)), quiet).weights
    there = execute(resolve(tiny(optimizer="adagrad", push_weight=1.0, **fields)), quiet).weights
    assert np.allclose(here, there, rtol=1e-10, atol=1e-13)


def test_sums_at_the_worker_are_torchs_adagrad_for_one_worker():
    fields = {"engine": "virtual", "sync": "asp", "cluster": "steady", "dtype": "float64", "workers": 1}
    here = execute(resolve(tiny(rate=AdaGrad(), **fields)), quiet).weights
    there = execute(resolve(tiny(optimizer="adagrad", **fields)), quiet).weights
    assert np.allclose(here, there, rtol=1e-10, atol=1e-13)


class Doubled:
    """A rate of the user's: a factor and no more."""

    def scale(self, step: Applied) -> float:
        return 2.0 / step.workers


def test_a_rate_of_the_users_is_a_factor_and_no_more():
    fields = {"engine": "virtual", "sync": "asp", "cluster": UNEVEN}
    here = execute(resolve(tiny(rate=Doubled(), learning_rate=0.1, **fields)), quiet).weights
    there = execute(resolve(tiny(learning_rate=0.2, **fields)), quiet).weights
    assert np.allclose(here, there, rtol=1e-6)


class Unknown(Doubled):
    needs = "square"


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"rate": Unknown()}, "rate", "did you mean 'squares'"),
        ({"rate": "dynsgd", "push_weight": 1.0}, "push_weight", "use rate: constant, modulated"),
        ({"rate": Split(), "push_weight": 0.5}, "push_weight", "does not read it"),
    ],
)
def test_what_does_not_go_together(fields, field, words):
    with pytest.raises(ConfigError, match=words) as error:
        resolve(tiny(**fields))
    assert error.value.field == field


@pytest.mark.parametrize("rate", ["constant", "modulated", Doubled()])
def test_who_may_read_the_weight_of_a_push(rate):
    assert resolve(tiny(rate=rate, push_weight=1.0)).run.push_weight == 1.0
