"""The two states of the server from a record: which answers belong together, and which ranges."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import handmade
import pytest

from pslab.lab.records.server_states import pulling, ranges_of


def rows(result) -> list[tuple[float, ...]]:
    return [tuple(round(value, 6) for value in row) for row in pulling(result).itertuples(index=False)]


def test_a_barrier_is_answered_in_one_interval(tmp_path: Path):
    assert rows(handmade.bsp(tmp_path)) == [(0, 4.2, 4.4, 2), (0, 9.9, 10.1, 2)]


def test_answers_between_which_a_message_was_taken_are_intervals_of_their_own(tmp_path: Path):
    assert rows(handmade.asp(tmp_path)) == [(0, 2.1, 2.2, 1), (0, 4.6, 4.7, 1), (0, 5.1, 5.2, 1)]


def test_answers_that_take_no_time_are_one_interval_with_those_at_the_same_instant(tmp_path: Path):
    result = handmade.bsp(tmp_path)
    at_once = result.phases.assign(end_s=result.phases.end_s.where(result.phases.phase != "serve", 4.1),
                                   begin_s=result.phases.begin_s.where(result.phases.phase != "serve", 4.1))
    object.__setattr__(result, "__dict__", {**result.__dict__, "phases": at_once})
    assert rows(result) == [(0, 4.1, 4.1, 4)]  # the pull that arrived at 4.1 was answered with the others


def test_each_range_has_a_state_of_its_own(tmp_path: Path):
    result = handmade.two_ranges(handmade.bsp(tmp_path))
    assert ranges_of(result) == [0, 1]
    assert rows(result) == [(0, 4.2, 4.4, 2), (0, 9.9, 10.1, 2), (1, 4.45, 4.65, 2), (1, 10.15, 10.35, 2)]


def test_ranges_on_which_a_policy_decides_together_are_in_the_same_state(tmp_path: Path):
    result = handmade.two_ranges(handmade.bsp(tmp_path))
    together = dataclasses.replace(result, run=result.run.but(sync="elastic:15"))
    object.__setattr__(together, "__dict__", {**result.__dict__, "run": together.run})
    found = rows(together)
    assert [row[1:] for row in found if row[0] == 0] == [row[1:] for row in found if row[0] == 1]
    assert (0, 4.2, 4.4, 2) not in found  # range 1 was asked, and answers, after range 0


@pytest.mark.parametrize("policy", ["mine#0123456789abcdef", "unheard-of"])
def test_of_a_policy_that_only_its_user_has_each_range_is_taken_by_itself(tmp_path: Path, policy: str):
    result = handmade.two_ranges(handmade.bsp(tmp_path))
    own = dataclasses.replace(result, run=result.run.but(sync=policy))
    object.__setattr__(own, "__dict__", {**result.__dict__, "run": own.run})
    assert rows(own) == rows(result)
