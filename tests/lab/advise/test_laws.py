"""A race is given a function that answers times, drawn from known laws: no run is executed, and the best is known."""

from __future__ import annotations

import pytest
from laws import LAWS, played

WRONG = 0.1  # of the decided answers, at most: an answer is decided when it is right with a probability of 0.92


def test_decided_answers_are_right_in_races_of_every_law():
    found = {name: played(law, range(8)) for name, law in LAWS.items()}
    decided, wrong = sum(share for share, _ in found.values()), sum(share * own for share, own in found.values())
    assert wrong <= WRONG * decided
    assert found["noise 5 %"][0] >= 0.75, "of policies that far apart so little noise leaves few undecided"
    assert found["noise 50 %"][0] == 0, "so few seeds do not tell the best from the lucky"


@pytest.mark.slow
@pytest.mark.parametrize("name", LAWS)
def test_at_most_one_in_ten_of_the_decided_answers_is_wrong(name: str):
    """The table in docs/advise.md: python tests/support/laws.py prints it."""
    decided, wrong = played(LAWS[name], range(200))
    assert wrong * decided * 200 <= max(WRONG * decided * 200, 1)
