"""Rates from end to end: the vectors by hand in virtual time, every rate on every engine, the same bits on any host."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tiny import finished, tiny
from tools.chaos.replay import replay
from wanted import given, weights

from pslab.lab.runs.resolve import resolve
from pslab.lab.runs.run import run
from pslab.policies.rates import AdaGrad, Applied, Split

EVERY = ["constant", "dynsgd", "dynsgd:inverse", "dynsgd:stalest", "adagrad", "adagrad:server", "split", "split:equal",
         "split:speed", "split:identity", "modulated", "modulated:inverse", "modulated:reciprocal"]  # fmt: skip
UNEVEN = {"preset": "lab", "slow": {0: 3.0}}


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
def test_dynsgd_moves_as_computed_by_hand(rate, same, sequence):
    assert moved(given(rate, *SAME), 2) == pytest.approx(same, rel=1e-14)
    assert moved(given(rate, *SEQUENCE), 5) == pytest.approx(sequence, rel=1e-14)


def test_a_push_weight_of_one_leaves_pushes_undivided():
    assert moved(given("constant", *SEQUENCE, push_weight=1.0), 5) == [1, 2, 3, 6, 8]


def test_push_weight_is_a_learning_rate():
    light, heavy = (finished(tiny(sync="asp", engine="virtual", cluster=UNEVEN, **fields)).weights
                    for fields in ({"learning_rate": 0.4}, {"learning_rate": 0.1, "push_weight": 1.0}))  # fmt: skip
    np.testing.assert_array_equal(light, heavy)


def test_a_worker_that_left_is_not_the_stalest():
    gradients = [[[1]] * 6, [[0]] * 6]
    cluster = {"compute_s": 1.0, "slow": {1: 100.0}, "leave": {1: 2.5}}
    left = given("dynsgd:stalest", gradients, [], cluster=cluster)
    assert moved(left, 4) == [1, 1.5, 2.5, 3.5]


@pytest.mark.parametrize("accumulator", ["worker", "server"])
def test_adagrad_moves_as_computed_by_hand(accumulator):
    alone = given(f"adagrad:{accumulator}", [[[3], [4], [0]]], [[1.0]], learning_rate=0.1)
    assert moved(alone, 3) == pytest.approx([0.1, 0.18, 0.18], rel=1e-9)
    ones = given(f"adagrad:{accumulator}", [[[1]] * 9], [[1.0]])
    steps = np.diff([0.0, *moved(ones, 9)])
    assert steps[[0, 1, 2, 3, 8]] == pytest.approx([1, 2**-0.5, 3**-0.5, 0.5, 1 / 3], rel=1e-9)


def test_with_sums_at_workers_a_slow_one_has_the_larger_rate():
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
def test_splitting_moves_as_computed_by_hand(rate, first, second, pushed):
    wanted = given(rate, [[first], [second]], [[1.0], [1.5]], sizes=(2,))
    alone, both = -weights(wanted, 1), -weights(wanted, 2)
    assert alone == pytest.approx(first, rel=1e-12)  # alone there is nothing to share out
    assert both - alone == pytest.approx(pushed, abs=5e-5)


def test_splitting_is_by_layer():
    wanted = given("split:equal", [[(3, 0, 1)], [(0, 4, 1)]], [[1.0], [1.5]], sizes=(2, 1))
    assert weights(wanted, 1) - weights(wanted, 2) == pytest.approx([0, 12.5**0.5, 1])


# --- every rate ---------------------------------------------------------------------------------------------------


@pytest.mark.one_of(3)
@pytest.mark.parametrize("rate", EVERY)
def test_every_rate_learns_with_real_processes_and_is_judged_as_valid(tmp_path, rate):
    cluster = {"compute_s": 0.002, "slow": {0: 3.0}}
    wanted = tiny(sync="ssp:2", rate=rate, cluster=cluster, pushes=80, learning_rate=0.1)
    result = run(wanted, results=tmp_path, progress=False)
    assert result.manifest["verdict"] == "valid", result.manifest.get("violations")
    assert result.accuracy.loss.iloc[-1] < 0.95 * result.accuracy.loss.iloc[0]
    if rate != "dynsgd:stalest":
        assert torch.equal(replay(resolve(wanted), result.pushes), torch.from_numpy(result.weights))


@pytest.mark.parametrize("rate", ["dynsgd", "dynsgd:inverse", "dynsgd:stalest", "split:identity", "modulated"])
def test_under_bsp_a_rate_of_stale_pushes_is_averaging(rate):
    found = {name: finished(tiny(engine="virtual", rate=name, cluster="lab")).weights
             for name in ("constant", rate)}  # fmt: skip
    assert np.array_equal(found["constant"], found[rate])


def test_sums_at_the_server_are_torchs_adagrad():
    fields = {"engine": "virtual", "sync": "asp", "cluster": UNEVEN, "dtype": "float64", "learning_rate": 0.05}
    here = finished(tiny(rate="adagrad:server", **fields)).weights
    there = finished(tiny(optimizer="adagrad", push_weight=1.0, **fields)).weights
    assert np.allclose(here, there, rtol=1e-10, atol=1e-13)


def test_sums_at_the_worker_are_torchs_adagrad_for_one_worker():
    fields = {"engine": "virtual", "sync": "asp", "cluster": "steady", "dtype": "float64", "workers": 1}
    here = finished(tiny(rate=AdaGrad(), **fields)).weights
    there = finished(tiny(optimizer="adagrad", **fields)).weights
    assert np.allclose(here, there, rtol=1e-10, atol=1e-13)


class Doubled:
    """A rate of the user's: a factor and no more."""

    def scale(self, step: Applied) -> float:
        return 2.0 / step.workers


def test_a_rate_of_the_users_is_a_factor_and_no_more():
    fields = {"engine": "virtual", "sync": "asp", "cluster": UNEVEN}
    here = finished(tiny(rate=Doubled(), learning_rate=0.1, **fields)).weights
    there = finished(tiny(learning_rate=0.2, **fields)).weights
    assert np.allclose(here, there, rtol=1e-6)
