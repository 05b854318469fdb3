"""What `pslab.` offers: what a person uses, all of it there, and nothing else."""

from __future__ import annotations

import pytest

import pslab


def test_tab_offers_what_a_person_uses_and_nothing_else():
    assert dir(pslab) == sorted(pslab.__all__)


@pytest.mark.parametrize("name", pslab.__all__)
def test_what_is_offered_is_there_and_says_what_it_is(name: str):
    assert getattr(pslab, name).__doc__


def test_other_names_are_refused():
    with pytest.raises(AttributeError, match="no attribute 'sweeep'"):
        _ = pslab.sweeep
