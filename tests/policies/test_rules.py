"""Rates, schedules, partitions: their numbers by hand; and what no policy, method or eager worker can be."""

from __future__ import annotations

import functools
import math

import pytest
from refusals import check_refused
from tiny import tiny

from pslab.config.spec import build
from pslab.config.table import ROWS
from pslab.lab.runs.resolve import resolve
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


VALUES: list[tuple[str, str, str]] = [
    ("sync", "dssp:3,12,cap=maybe", "cap='maybe' cannot be read"),
    ("rate", "modulated:offset,2", "takes"), ("rate", "constant:0.5", "no parameters"),
    ("rate", "split:clamp=inf", "clamp"),
    ("schedule", "steps:at=0.5/1", "shares of the budget"), ("schedule", "steps:at=", "shares|at="),
    ("schedule", "cosine:warn=20", "did you mean 'warm'"), ("schedule", "cosine:warm=20,steps=20", "fewer than the 20"),
    ("schedule", "warmup:1,then=cosine:warm=2", "without a warm-up, such as linear"),
    ("schedule", "warmup", "needs epochs"), ("schedule", "warmup:1,then=lineer", "did you mean 'linear'"),
    ("schedule", "warmup:1,then=warmup:1", "without a warm-up"), ("schedule", "warmup:1,then=steps:0", "above 0"),
    ("prune", "static:1", "1 is the whole: for 1 in a hundred write 1%, for everything 100%"),
    ("prune", "static:5", "write 5%"), ("prune", "dgc:fraction=1", "1%"), ("prune", "dgc:sample=10", "10%"),
]  # fmt: skip


class ByStaleness:
    """A rate that depends on what the worker cannot know."""

    def scale(self, step):
        return 1.0 / (1 + step.staleness)


CHANGES = ("diloco:4", "adiloco:4", "easgd:2", "streaming:4,2", "decoupled:6,2")  # whose pushes are changes of weights
FORESEEN: list[tuple[dict[str, object], str, str]] = [
    ({"optimizer": "sgd:momentum=0.9"}, "sync", "the server's step"), ({"optimizer": "adam"}, "sync", "server's step"),
    ({"rate": ByStaleness()}, "sync", "compute the rate"),
]  # fmt: skip
RUNS: list[tuple[dict[str, object], str, str]] = [
    *(({"sync": "eager", **fields}, field, words) for fields, field, words in FORESEEN),
    *(({"sync": sync, "prune": "dgc:5%"}, "prune", "may not be added: use none, static, std or dynamic")
      for sync in CHANGES),
    *(({"sync": sync, "rate": "dynsgd"}, "rate", "and outer_learning_rate scales them")
      for sync in CHANGES),
    *(({"sync": sync, "ranges": "layers"}, "sync",
       r"so with ranges='layers' no .*: use ranges='whole'( .*)?, or sync: bsp, ssp, asp, dssp, elastic, backup$")
      for sync in ("admm:2", *CHANGES)),
    ({"sync": "bsp", "inner": "adamw"}, "inner", "applies only if workers take steps between exchanges"),
    ({"sync": "local:4", "outer_learning_rate": 0.7}, "outer_learning_rate", "applies only if workers take steps"),
    ({"sync": "diloco:4,periods=4;4"}, "sync", "has periods for 2 workers, and the run has 4"),
    ({"sync": "diloco:4,periods=3;3;3;2"}, "sync", "the largest of them the period, 4"),
    ({"sync": "diloco:4,periods=4;3;x;2"}, "sync", "must be whole numbers of at least 1"),
    ({"sync": "diloco:4", "inner": "adamv"}, "inner", "unknown name 'adamv'; did you mean 'adam"),
    ({"sync": "diloco:4", "inner": "lbfgs"}, "inner", "lbfgs is not elementwise"),
    ({"sync": "diloco:4", "inner": "sgd:clip=much"}, "inner", "must be a number above 0"),
    ({"sync": "diloco:4", "inner": "adamw:lr=1"}, "inner", "set learning_rate instead"),
    ({"workers": 1, "sync": "easgd:2,beta=1"}, "sync", "worker and the center would swap weights"),
    ({"sync": "easgd:2", "optimizer": "sgd:momentum=0.9"}, "optimizer", "by the pushes alone: use optimizer='sgd'"),
    ({"sync": "streaming:10,4"}, "sync", "fragments=4: must divide the period of 10 steps, as 5 does"),
    ({"sync": "streaming:10,2,overlap=5"}, "sync", "overlap=5: must be less than the 5 steps between two pushes"),
    ({"sync": "streaming:10,2,merge=carry,alpha=0.5"}, "sync", "alpha=0.5: is a parameter of merge=mix"),
    ({"sync": "streaming:9,3,layout=balanced"}, "fragments", "layout=balanced the model has layers for 2 only"),
    ({"sync": "streaming:9,3"}, "fragments", "layout=strided the model has blocks for 2 only: use"),
    ({"sync": "streaming:4,2", "servers": 3}, "servers", "servers=3"),
    ({"sync": "streaming:4,2", "pull": "keys"}, "pull", "pull='keys'"),
    ({"sync": "decoupled:6,12"}, "sync", "fragments=12: must divide the period of 6 steps"),
    ({"sync": "decoupled:6,2", "quantize": "sign"}, "quantize", "change every weight by the whole outer_learning_rate"),
    ({"sync": "decoupled:6,2", "prune": "ef21:1%"}, "prune", "which sync='decoupled:6,2' does not ensure"),
    ({"sync": "admm:2", "prune": "static:1%"}, "prune", "and needs all of them: use prune='none'"),
    ({"sync": "admm:2", "optimizer": "adam"}, "optimizer", "use optimizer='sgd'"),
    ({"sync": "admm:2", "rate": "dynsgd"}, "rate", "and no rate scales them: use rate='constant'"),
    ({"sync": "downpour:2,1", "prune": "range:9", "pull": "range"}, "prune", "needs a push after every fetch"),
    ({"sync": "downpour:2,1", "on_death": "restart", "engine": "local"}, "on_death", "would lack the weights"),
    ({"sync": "average", "pushes": None, "seconds": 1.0}, "pushes", "needs the run's length"),
]  # fmt: skip


def test_parameters_that_no_policy_has_and_fields_that_a_method_or_an_eager_worker_cannot_be_run_with():
    check_refused((kind, functools.partial(build, kind, text), words) for kind, text, words in VALUES)
    check_refused((field, lambda fields=fields: resolve(tiny(**{"engine": "virtual", "cluster": "lab", **fields})),
                   words) for fields, field, words in RUNS)  # fmt: skip
    for fields, _, _ in FORESEEN:
        resolve(tiny(sync="eager:rmw=off", **fields))
