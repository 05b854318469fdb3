"""The two states of the server from a record: which answers belong together, and which ranges."""

from __future__ import annotations

import dataclasses

import handmade
import pytest

from pslab.lab.records.record import TABLES, Result
from pslab.lab.records.server_states import pulling, ranges_of


def of_policy(result: Result, sync: str) -> Result:
    """The same history, of another policy."""
    tables = {name: getattr(result, name) for name in TABLES}
    return handmade.changed(dataclasses.replace(result, run=result.run.but(sync=sync)), **tables)


def rows(result) -> list[tuple[float, ...]]:
    return [tuple(round(value, 6) for value in row) for row in pulling(result).itertuples(index=False)]


def test_answers_that_take_no_time_are_one_interval_with_those_at_the_same_instant():
    result = handmade.bsp()
    at_once = result.phases.assign(end_s=result.phases.end_s.where(result.phases.phase != "serve", 4.1),
                                   begin_s=result.phases.begin_s.where(result.phases.phase != "serve", 4.1))
    # the pull that arrived at 4.1 was answered with the others
    assert rows(handmade.changed(result, phases=at_once)) == [(0, 4.1, 4.1, 4)]


def test_each_range_has_a_state_of_its_own():
    result = handmade.two_ranges(handmade.bsp())
    assert ranges_of(result) == [0, 1]
    assert rows(result) == [(0, 4.2, 4.4, 2), (0, 9.9, 10.1, 2), (1, 4.45, 4.65, 2), (1, 10.15, 10.35, 2)]


def test_ranges_on_which_a_policy_decides_together_are_in_the_same_state():
    result = handmade.two_ranges(handmade.bsp())
    together = of_policy(result, "elastic:15")
    found = rows(together)
    assert [row[1:] for row in found if row[0] == 0] == [row[1:] for row in found if row[0] == 1]
    assert (0, 4.2, 4.4, 2) not in found  # range 1 was asked, and answers, after range 0


@pytest.mark.parametrize("policy", ["mine#0123456789abcdef", "unheard-of"])
def test_of_a_policy_that_only_its_user_has_each_range_is_taken_by_itself(policy: str):
    result = handmade.two_ranges(handmade.bsp())
    own = of_policy(result, policy)
    assert rows(own) == rows(result)
