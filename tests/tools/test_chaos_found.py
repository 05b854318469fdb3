"""Runs that campaigns have found a violation in stay mended."""

from __future__ import annotations

import pytest
from found import COMMON, FOUND

from pslab.config.run import Run
from tools.chaos.campaign import performed


@pytest.mark.parametrize("name", FOUND)
def test_what_was_found_is_mended(name: str):
    assert performed(Run.of({**COMMON, **FOUND[name]}))[1] == []
