"""Figures of merit: their names, their units, and what they are measured by."""

from __future__ import annotations

import handmade
import pytest

from pslab.config.run import Run
from pslab.errors import ConfigError
from pslab.lab.records.merit import MERITS, merit_of
from pslab.lab.records.summary import held_at, measured


@pytest.mark.parametrize(("name", "alone", "beside"), [
    ("seconds", "4 s", "4.0 s"), ("bytes", "4 B", "4 B"), ("gradients", "4 gradients", "4 gradients"),
])  # fmt: skip
def test_a_value_is_written_with_its_unit(name: str, alone: str, beside: str):
    text = merit_of(name).text
    assert [each.replace("\u00a0", " ") for each in (text(4.0), text(4.0, 30.1))] == [alone, beside]


@pytest.mark.parametrize("merit", MERITS.values(), ids=[*MERITS])
def test_its_columns_sum_to_its_measure_and_are_measures_of_the_whole_run(merit):
    result = handmade.curve(None, Run(pushes=8, workers=2), [0.1, 0.5, 0.8, 1.0, 1.0])
    assert sum(held_at(result, 0.9, *merit.columns)) == pytest.approx(measured(result, merit.measure, 0.9))
    whole = {"seconds": 4.0, "bytes": 8 * 130.0, "gradients": 8.0}[merit.name]
    assert sum(measured(result, column) for column in merit.columns) == pytest.approx(whole)


def test_an_unknown_one_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'bytes'"):
        merit_of("byte")
