"""One pool of processes for the whole suite, as in a notebook."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session", autouse=True)
def _pool_ends_with_the_suite():
    yield
    from pslab.engines.processes import pool

    pool.release()
