"""Names, captions and the words of another metric than the accuracy say what the table and the runs say."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import drawn
import handmade
import pytest
from torch import nn

from pslab import plots
from pslab.config import run as config
from pslab.config.run import Run
from pslab.config.spec import build
from pslab.config.table import KINDS, ROWS, Row
from pslab.lab.live import figure as live
from pslab.lab.live.state import Point, Track
from pslab.lab.plots.charts.tables import show
from pslab.lab.plots.labels import FIELDS, averages, caption, cluster_name, column_name, marks, name, notes_of, parts
from pslab.lab.records.frames import notes
from pslab.lab.records.summary import summary
from pslab.lab.records.tuning import best, goal
from pslab.lab.records.units import digits, size
from pslab.lab.runs.grid import grid
from pslab.protocol.server import first_step


def plain(text: str) -> str:
    return text.replace("\u00a0", " ").replace("\u202f", " ")


def said(field: str, value: object) -> str:
    return plain(name(field, value))


@pytest.mark.parametrize(("field", "value", "words"), [
    ("sync", "bsp", "BSP"), ("sync", "ssp:3", "SSP, s = 3"), ("sync", "ssp:staleness=4", "SSP, s = 4"),
    ("sync", "dssp:3,12", "DSSP, s = 3, up to 12 more"), ("sync", "dssp", "DSSP"),
    ("sync", "dssp:3,12,literal", "DSSP, s = 3, up to 12 more, literal"),
    ("sync", "elastic:iterations=15,predict=ewma", "ElasticBSP, R = 15, predict ewma"),
    ("sync", "eager:rmw=off", "eager pull, no rmw"), ("sync", "local:8", "local SGD, 8 steps"),
    ("sync", "backup:1", "backup workers, 1 spare"), ("prune", "none", "dense"), ("prune", "static:10%", "static 10 %"),
    ("prune", "static:0.001", "static 0.1 %"), ("prune", "static:fraction=1%", "static 1 %"),
    ("prune", "static:1%,residual=off", "static 1 %, no residual"), ("prune", "std:2", "std 2 σ"),
    ("prune", "dynamic:5,mode=decay", "dynamic, 5 passes, decay"),
    ("prune", "dynamic:mode=ratchet", "dynamic, ratchet"),
    ("prune", "dgc:1%,warm_up=0", "DGC 1 %, no warm-up"), ("prune", "dgc:warm_up=4", "DGC, warm-up 4"),
    ("prune", "range:300", "ranges, 300 keys"), ("prune", "range:fit", "ranges, fit"),
    ("rate", "dynsgd:inverse", "DynSGD, inverse"), ("order", "front:credit=16000000", "front first, credit 16 000 000"),
    ("data", "mnist:4000,1000", "MNIST, 4 000 to train, 1 000 to test"), ("model", "mlp:64", "MLP, width 64"),
    ("schedule", "steps:0.1", "schedule in steps, ×0.1"), ("optimizer", "sgd:momentum=0.9", "SGD, momentum 0.9"),
    ("learning_rate", 0.5, "η = 0.5"), ("workers", 1, "1 worker"), ("family", "std", "std"), ("family", 4, "4"),
])  # fmt: skip
def test_value_in_words(field: str, value: object, words: str):
    assert said(field, value) == words


@dataclass(frozen=True)
class Mine:
    bound: int = 2
    eager: bool = False


def test_policy_object_goes_by_its_class_and_every_field_of_run_can_be_said():
    assert name("sync", Mine()) == "Mine"
    assert said("sync", Mine(bound=5, eager=True)) == "Mine, bound 5, eager on"
    assert parts(Run(sync=Mine()).plain()["sync"])[0] == "Mine"  # as a record says it
    assert parts("Mine(every=10)")[0] == "Mine(every=10)"  # as a table says it
    assert {*FIELDS, *KINDS} == {*config.FIELDS}


@pytest.mark.parametrize(("field", "value", "fields", "words"), [
    ("cluster", "slow", {"cluster": "lab-slow-net"}, "slow"),  # the grid gave this name
    ("sync", "ssp:3", {"sync": "ssp:3"}, "SSP, s = 3"), ("model", nn.Linear, {"model": nn.Linear}, "Linear"),
    ("push_weight", None, {"sync": "bsp"}, ""),  # only a push that is applied alone has a weight
    ("push_weight", None, {"sync": "asp"}, "push weight 1/W"),
    ("push_weight", 1.0, {"sync": "asp", "push_weight": 1.0}, "push weight 1"),
    ("push_weight", None, {"sync": "asp", "optimizer": "dn:period=2"}, ""),
    ("push_weight", None, {"sync": "adiloco:2"}, ""),  # its paper's optimizer is that one
    ("push_weight", None, {"sync": "adiloco:2", "optimizer": "adam"}, "push weight 1/W"),
    ("optimizer", "sgd", {}, "SGD"), ("optimizer", "sgd", {"sync": "diloco:2"}, "SGD, momentum 0.9 (Nesterov)"),
    ("optimizer", "sgd:momentum=0", {"sync": "diloco:2", "optimizer": "sgd:momentum=0"}, "SGD, no momentum"),
], ids=str)  # fmt: skip
def test_a_column_is_said_as_its_run_has_it(field: str, value: object, fields: dict, words: str):
    assert plain(column_name(field, value, Run(pushes=8, engine="virtual", cluster="lab").but(**fields))) == words


@pytest.mark.parametrize("row", ROWS["sync"].values(), ids=list(ROWS["sync"]))
def test_the_table_says_which_policies_average_as_the_server_does(row: Row):
    step = first_step(build("sync", row.example or row.name), 1)
    assert row.averages == averages(Run(sync=row.example or row.name)) == (step is not None and step.aggregate)


def test_numbers_have_three_digits_and_sizes_the_unit_of_the_largest_unless_nothing_would_be_left_of_them():
    assert [digits(value) for value in (1234.5, 0.5, math.inf, -math.inf, math.nan)] == [
        "1\u202f234", "0.500", "∞", "-∞", "–"]  # fmt: skip
    assert [digits(*given) for given in ((2, 2.5), (0.984, 1.17), (4, 30), (0.5, 0), (1.5, 150))] == [
        "2.00", "0.98", "4.0", "0.50", "2"]  # fmt: skip
    sizes = [plain(size(count, 7e9)) for count in (7e9, 8.1e8, 8e8, 9.96e8, 5e5)]
    assert sizes == ["7.0 GB", "0.81 GB", "0.80 GB", "1.0 GB", "500.0 kB"]


def test_cluster_is_described_with_its_presets_fields():
    assert plain(cluster_name({"preset": "lab", "slow": {2: 3.0}})) == (
        "1 Gbit/s per worker, full duplex, 500 µs latency, 10 Gbit/s at the server, computation 20 ms "
        "(log-normal, σ 0.1), 5 % of iterations ×5 slower, worker 2 ×3 slower")  # fmt: skip
    assert cluster_name("lab", "virtual").endswith("selecting, coding and serving cost time")
    assert cluster_name("free") == "not emulated"
    faults = [{"what": "kill", "per_hour": 2}, {"what": "drop", "worker": 1, "probability": 0.01},
              {"what": "stop", "worker": 0, "at_s": 4.0, "for_s": 0.5}, {"what": "delay", "iteration": 3}]  # fmt: skip
    assert plain(cluster_name({"faults": faults, "restart_s": 60})) == (
        "each worker is killed 2 times an hour, worker 1 has a message lost with probability 0.01, worker 0 stops "
        "for 500 ms at 4 s, each worker has a message delayed by 200 ms in iteration 3, a dead worker is replaced "
        "after 60 s"
    )


def test_caption_without_tensors_omits_what_plays_no_part():
    text = "\n".join(caption([handmade.curve(None, Run(engine="timing", cluster="lab", pushes=8), [0.1, 0.9])]))
    assert "without gradients" in text
    assert not [word for word in ("batch", "η", "push weight", "MNIST") if word in text]


@pytest.mark.parametrize(("fields", "words"), [
    ({"prune": "static:1%", "pull": "whole"}, "pull whole"), ({"pull": "changed"}, "pull changed"),
    ({"engine": "virtual", "cluster": "lab"}, "in virtual time"), ({"engine": "ray"}, "on Ray"),
    ({"partition": "parsa"}, "partition parsa"), ({"placement": "parsa"}, "placement parsa"),
    ({"eval_every": 2}, "evaluated every 2 pushes"),
])  # fmt: skip
def test_a_caption_has_the_fields_that_change_a_result(fields: dict, words: str):
    usual, other = (caption([handmade.curve(None, Run(pushes=8, **more), [0.1, 0.9])])[0] for more in ({}, fields))
    assert words in other
    assert words not in usual


@pytest.mark.parametrize(("facts", "mark", "words"), [
    ({"emulation_ok": False}, "*", "too slow"), ({"disturbed": True}, "†", "disturbs"),
    ({"verdict": "invalid"}, "‡", "judged invalid"), ({"outcome": "diverged"}, "\u00a0✖1/1", "diverged"),
    ({"largest_weight": 7e28}, "§", "weights of a million and more"), ({"largest_weight": 3.5}, "", ""),
    ({"dilation": 2.5}, "", "emulated 2.5 times slower than shown"), ({"dilation": 1.0}, "", ""), ({}, "", ""),
])  # fmt: skip
def test_what_is_wrong_with_a_result_is_marked_and_explained(facts: dict, mark: str, words: str):
    found = [handmade.curve(None, Run(pushes=8), [0.1, 0.9], **facts)]
    assert marks(found) == mark
    assert words in " ".join(notes_of(found))
    assert bool(notes_of(found)) == bool(words)


def mean_error(output: Any, target: Any) -> Any:
    return (output - target).abs()


mean_error.lower_is_better = True  # type: ignore[attr-defined]
BASE = Run(pushes=8, workers=2, engine="virtual", cluster="lab", loss="mse", metric=mean_error)
FALLING, STEEP, FLAT = [8.0, 4.0, 2.0, 1.0, 0.5], [8.0, 0.9, 0.8, 0.7, 0.6], [8.0, 7.0, 6.0, 6.0, 7.5]


def of(base: Run) -> Any:
    ways = {0.1: FALLING, 0.2: STEEP, 0.4: FLAT}
    return handmade.finished(grid(base, learning_rate=list(ways)), lambda run: ways[run.learning_rate])


@pytest.fixture
def results() -> Any:
    return of(BASE)


def test_the_best_evaluation_is_the_lowest_and_a_goal_is_reached_from_above(results: Any):
    table = summary(results, by="learning_rate", goal=1.0, measures=["best_accuracy", "seconds_to_goal"])
    assert table.best_accuracy.tolist() == [0.5, 0.6, 6.0]
    assert table.seconds_to_goal.tolist()[:2] == [3.0, 1.0]
    assert [best(results, goal=limit).learning_rate.item() for limit in (1.0, 0.01)] == [0.2, 0.1]
    assert "to mean error 1" in " ".join(notes(best(results, goal=1.0)))
    assert (goal(results), goal(results, over="seed", share=1.0)) == (0.5, 6.0)


def test_tables_and_figures_name_the_metric(results: Any):
    written = show(summary(results, by="learning_rate", goal=1.0)).to_html()
    assert all(words in written for words in ("final test mean error", "time to mean error 1"))
    curves = plots.curves(results, x="seconds", by="learning_rate", goal=1.0)
    assert "test mean error" in drawn.texts(curves)
    assert "goal: mean error 1" in [name.replace("\u00a0", " ") for name in drawn.legend(curves)]
    assert list(drawn.lines(curves)["η\u00a0=\u00a00.1"].y) == FALLING
    assert "mean error 0.5, loss" in drawn.lines(curves)["η\u00a0=\u00a00.1"].hovertext[-1]
    for figure in (plots.bars(results, y="accuracy", by="learning_rate"),
                   plots.points(results, x="learning_rate", y="best_accuracy")):  # fmt: skip
        assert "mean error" in " ".join(drawn.texts(figure))
        assert "accuracy" not in " ".join(drawn.texts(figure))
    assert "squared error" in caption(results)[0]
    assert "accuracy" not in caption(results)[0]
    stopped = handmade.curve(None, BASE.but(target_accuracy=0.75), FALLING)
    assert "stops at 8 pushes or mean error 0.75" in caption([stopped])[0]


def test_the_loss_of_a_language_model_is_drawn_and_written_in_nats_per_byte():
    base = Run(pushes=8, workers=2, engine="virtual", cluster="lab", model="gpt", data="text", metric="loss")
    results = of(base)
    for y in ("accuracy", "loss"):
        figure = plots.curves(results, y=y, by="learning_rate", goal=1.0)
        assert "test loss (nats per byte)" in drawn.texts(figure)
        assert ("goal: loss 1" in drawn.legend(figure)) == (y == "accuracy")
    assert "best test loss (nats per byte)" in drawn.texts(plots.points(results, x="learning_rate", y="best_accuracy"))
    tracks = [Track(base, base.digest, points=[Point(0, 0.0, 5.5, 5.5), Point(8, 1.0, 2.2, 2.2)])]
    view = live.curves(tracks, live.Session().names(tracks))
    assert view.layout.yaxis.title.text == "test loss (nats per byte)"
