"""Random moments at which a process of a run is killed or stopped; more of them: python tests/support/campaign.py."""

from __future__ import annotations

import pytest
from campaign import EVERY, KINDS, LIMIT_S, WORKERS, campaign


@pytest.mark.slow
@pytest.mark.usefixtures("small_pool")
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_hangs_nothing_is_left_and_no_bit_changes_whatever_ends_when(kind):
    (figures,) = campaign(5, 0, (kind,))
    assert figures["longest run s"] <= LIMIT_S
    assert figures["most pushes repeated"] <= EVERY + WORKERS
    assert figures["descriptors more"] <= 0
    assert figures["names left"] == []
    assert not [found for found in figures if found.startswith(("OTHER", "left"))]
