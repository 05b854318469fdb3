"""The name and the direction of a run's metric, of a Run and of its record; what leaves a run's digest as it was."""

from __future__ import annotations

import json
import math

import pytest

from pslab.config.metric import ACCURACY, Metric, loss_of, medians, metric_of, one_metric
from pslab.config.run import Run
from pslab.errors import ConfigError


def mean_error(output, target):
    return (output - target).abs().flatten(1).mean(1)


def hits(output, target):
    return output.argmax(1) == target


mean_error.lower_is_better = True
LOSS, ERROR, HITS = Metric("loss", True, False), Metric("mean error", True, False), Metric("hits", False, False)


@pytest.mark.parametrize(
    ("given", "wanted"), [("accuracy", ACCURACY), ("loss", LOSS), (mean_error, ERROR), (hits, HITS)],
    ids=["accuracy", "loss", "lower", "higher"],
)  # fmt: skip
def test_a_metric_has_the_same_name_and_direction_in_a_run_and_in_its_record(given, wanted):
    run = Run(metric=given)
    assert metric_of(run) == wanted
    recorded = Run.of(json.loads(json.dumps(run.plain())))
    assert metric_of(recorded) == wanted
    assert recorded.digest == run.digest


def test_what_a_metric_computes_is_part_of_the_digest():
    def of(power):
        return lambda output, target: ((output - target).abs() ** power).mean()

    assert Run(metric=of(1)).digest == Run(metric=of(1)).digest != Run(metric=of(2)).digest


@pytest.mark.parametrize(
    ("metric", "better", "worse"), [(ACCURACY, 0.91, 0.89), (HITS, 3.0, 1.0), (ERROR, 0.1, 3.0)],
    ids=["accuracy", "higher", "lower"],
)  # fmt: skip
def test_a_goal_is_reached_in_the_direction_of_the_metric(metric, better, worse):
    goal = (better + worse) / 2
    assert metric.reaches(better, goal)
    assert metric.reaches(goal, goal)
    assert not metric.reaches(worse, goal)
    assert not any(metric.reaches(value, goal) for value in (math.nan, math.inf, -math.inf))
    assert metric.best([worse, better, worse]) == better
    assert metric.best([]) == metric.worst


def test_an_accuracy_is_written_in_per_cent_and_another_metric_by_its_name():
    assert (ACCURACY.text(0.9712), ACCURACY.goal(0.975)) == ("97.12%", "97.5%")
    assert (ERROR.text(0.12345), ERROR.goal(0.1)) == ("mean error 0.1235", "mean error 0.1")


@pytest.mark.parametrize("target", [0.0, 1.5, -1.0])
def test_a_target_accuracy_is_a_share_and_another_target_any_number(target):
    with pytest.raises(ConfigError, match="above 0 and at most 1"):
        Run(target_accuracy=target)
    assert Run(target_accuracy=target, metric=hits).target_accuracy == target


def test_a_target_is_held_by_the_median_of_three_evaluations_and_reached_by_one():
    lucky, steady = [0.1, 0.2, 0.9, 0.3, 0.4, math.nan], [0.1, 0.5, 0.9, 0.85]
    assert medians(lucky[:-1]) == [0.1, 0.2, 0.3, 0.4]  # of the last one it is not known
    wanted = Run(target_accuracy=0.8, target_held=True)
    assert not wanted.reaches_target(lucky)
    assert not wanted.reaches_target(steady[:-1])
    assert wanted.reaches_target(steady)
    assert not wanted.reaches_target([])
    assert wanted.but(target_held=False).reaches_target(lucky)
    assert Run(target_accuracy=0.2, target_held=True, metric=hits).reaches_target([0.9, 0.1, 0.2, 0.15])
    assert not Run().reaches_target(steady)


def test_without_a_target_none_can_be_held():
    with pytest.raises(ConfigError, match="there is no target to be held: give a target_accuracy"):
        Run(target_held=True)


def test_runs_of_two_metrics_cannot_be_compared():
    assert one_metric([Run(metric="loss"), Run(metric="loss", seed=1)]) == LOSS
    with pytest.raises(ConfigError, match="accuracy and loss"):
        one_metric([Run(), Run(metric="loss")])


def test_the_cross_entropy_of_bytes_is_in_nats_per_byte_and_is_compared_with_no_other_loss():
    text, recorded = (Run(data="text:100", metric="loss"), Run.of(Run(data="text:100", metric="loss").plain()))
    assert {metric_of(run).unit for run in (text, recorded)} == {"nats per byte"}
    assert (metric_of(text).name, metric_of(text).in_unit) == ("loss", " (nats per byte)")
    assert metric_of(text) == loss_of(Run(data=" Text"))
    others = Run(), Run(data="text", loss="mse"), Run(data="mine.text:text"), Run(data="text", loss=mean_error)
    assert {loss_of(run).unit for run in others} == {""}
    with pytest.raises(ConfigError, match=r"'loss \(nats per byte\) and loss': these .*where\(data=...\)"):
        one_metric([text, Run(metric="loss")])
