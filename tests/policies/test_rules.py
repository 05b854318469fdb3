"""Rates, schedules and partitions: their numbers by hand."""

from __future__ import annotations

import math

import pytest
from refusals import check_refused

from pslab.config.spec import build
from pslab.config.table import ROWS
from pslab.policies.partition import Cut, Layers, Whole, evenly, servers_of
from pslab.policies.rates import Applied, Constant, DynSGD, Modulated, Split
from pslab.policies.schedules import Cosine
from pslab.protocol.traits import Lengths, sized


def push(staleness: int = 0, *, workers: int = 4, weight: float | None = None, stalest: int | None = None,
         seen: int | None = None) -> Applied:  # fmt: skip
    """One push, applied alone."""
    stalest, seen = staleness if stalest is None else stalest, staleness if seen is None else seen
    return Applied(workers, 1, False, weight, staleness, stalest, seen)


def superstep(workers: int = 4, weight: float | None = None) -> Applied:
    return Applied(workers, workers, True, weight, 0, 0, 0)


def test_factors_of_rates():
    assert [Constant().scale(push(tau)) for tau in (0, 3, 9)] == [0.25] * 3  # one over the workers
    assert (Constant().scale(push(weight=1.0)), Constant().scale(superstep(weight=0.5))) == (1.0, 1.0)
    assert [DynSGD("inverse").scale(push(tau)) for tau in (0, 0, 0, 3, 0)] == [1, 1, 1, 0.25, 1]
    assert [DynSGD("stalest").scale(push(0, stalest=tau)) for tau in (0, 1, 3)] == [1, 0.5, 0.25]
    assert [DynSGD("versions").scale(push(tau, stalest=9)) for tau in (0, 3)] == [1, 1]
    assert [Split().share(tau, 7) for tau in (0, 1, 3)] == [1, 0.5, 0.25]
    assert [Split("speed").share(3, pushes) for pushes in (1, 2, 4)] == [1, 0.5, 0.25]
    assert Split("equal").share(3, 7) == 1
    for name in ROWS["rate"]:
        assert build("rate", name).scale(superstep()) == 1.0, name


def test_modulated_factors():
    for form, factors in (
        ("offset", [1, 1, 1, 1, 4 / 5, 4 / 6, 4 / 7, 1 / 2]),  # no damping up to 3, the staleness of 4 equal workers
        ("inverse", [1, 1 / 2, 1 / 3, 1 / 4, 1 / 5, 1 / 6, 1 / 7, 1 / 8]),
        ("reciprocal", [1, 1, 1 / 2, 1 / 3, 1 / 4, 1 / 5, 1 / 6, 1 / 7]),
    ):
        rate = Modulated(form)
        assert [rate.scale(push(0, seen=tau)) for tau in range(8)] == pytest.approx([f / 4 for f in factors])
        assert [rate.scale(push(tau, weight=1.0)) for tau in range(8)] == pytest.approx(factors)


def test_declared_needs():
    wanted = {
        "constant": "", "modulated": "", "dynsgd": "versions", "dynsgd:inverse": "", "dynsgd:stalest": "",
        "adagrad": "own squares", "adagrad:server": "squares", "split": "directions", "split:speed": "directions",
        "split:identity": "",
    }  # fmt: skip
    assert {name: getattr(build("rate", name), "needs", "") for name in wanted} == wanted


@pytest.mark.parametrize(("text", "factors"), [
    ("constant", [1, 1, 1, 1, 1]), ("linear", [1, 0.75, 0.5, 0.25, 0]),
    ("steps:0.1,at=0.5/0.75", pytest.approx([1, 1, 0.1, 0.01, 0.01])),
    ("warmup:4,then=linear", [0.25, 0.625 * 0.75, 0.5, 0.25, 0]),
    ("warmup:8,start=0,then=steps:0.1;at=0.5/0.75", pytest.approx([0, 0.25, 0.05, 0.0075, 0.01])),
    ("cosine:end=0.1", pytest.approx([1, 0.55 + 0.45 * math.sqrt(0.5), 0.55, 0.55 - 0.45 * math.sqrt(0.5), 0.1])),
    ("cosine", pytest.approx([1, 0.5 + math.sqrt(0.125), 0.5, 0.5 - math.sqrt(0.125), 0])),
    ("warmup:4,then=cosine:end=1", [0.25, 0.625, 1, 1, 1]),
])  # fmt: skip
def test_factors_over_the_budget(text, factors):
    schedule = build("schedule", text)
    assert [schedule.factor(progress, 8 * progress) for progress in (0, 0.25, 0.5, 0.75, 1)] == factors
    assert schedule.needs_budget is (text != "constant")
    assert not build("schedule", "warmup:2").needs_budget


def test_the_cosine_begins_where_the_warm_up_of_so_many_steps_ends():
    schedule = sized(build("schedule", "cosine:warm=20,end=0.1"), Lengths(passed=7, budget=100))
    assert schedule == Cosine(warm=20, end=0.1, steps=100)
    factors = [schedule.factor(step / 100, 0.0) for step in (0, 9, 19, 20, 60, 100)]
    assert factors == pytest.approx([0.05, 0.5, 1, 1, 0.55, 0.1])
    assert schedule.factor(19.75 / 100, 0.0) == 1  # where workers push one by one
    short = build("schedule", "cosine:warm=20")
    assert sized(short, Lengths(passed=7, budget=21)).factor(1.0, 0.0) == 0.0
    check_refused([("schedule", lambda: sized(short, Lengths(passed=7, budget=20)),
                    "fewer than the 20 steps of each worker in the budget: lower warm, or raise pushes")])  # fmt: skip


MODEL = [slice(0, 10), slice(10, 14), slice(14, 15)]


def test_ranges_are_the_whole_its_layers_or_even_cuts_for_several_servers():
    (whole,), layers = Whole().cut(MODEL), Layers().cut(MODEL)
    assert (whole, layers) == (Cut(0, 0, 15), (Cut(0, 0, 10), Cut(1, 10, 14), Cut(2, 14, 15)))
    assert (Whole().layered, Layers().layered) == (False, True)
    assert evenly([whole], 4) == (Cut(0, 0, 4), Cut(0, 4, 8), Cut(0, 8, 12), Cut(0, 12, 15))
    assert (evenly([whole], 1), evenly(layers, 2)) == ((whole,), layers)
    assert len(evenly([whole], 20)) == 15  # as many as there are elements
    assert build("ranges", "layers:40000") == Layers(40000)


def test_slices_cover_their_layer_and_are_no_larger_than_wanted():
    for most in (1, 3, 4, 10, 99):
        cuts = Layers(most).cut(MODEL)
        assert [element for cut in cuts for element in range(cut.start, cut.stop)] == list(range(15))
        assert all(MODEL[cut.layer].start <= cut.start < cut.stop <= MODEL[cut.layer].stop for cut in cuts)
        assert all(cut.stop - cut.start <= most for cut in cuts)
        assert len(cuts) == sum(-(-(layer.stop - layer.start) // most) for layer in MODEL)


def test_each_range_goes_to_the_server_that_has_least():
    assert servers_of([4, 4, 4, 3], 4) == (0, 1, 2, 3)
    assert servers_of([3, 5, 3, 4, 3], 2) == (1, 0, 0, 1, 1)  # 5 and 3; 4, 3 and 3
    assert servers_of([3, 5], 1) == (0, 0)
