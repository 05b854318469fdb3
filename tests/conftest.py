"""One pool of processes for the whole suite, as in a notebook."""

from __future__ import annotations

import pytest

LARGEST = 5  # of nearly all tests: a pool that is large enough at once is not spawned again for the next of them


@pytest.fixture(scope="session", autouse=True)
def _one_pool():
    from pslab.engines.processes import pool

    acquire = pool.acquire
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool, "acquire", lambda workers, *more: acquire(max(workers, LARGEST), *more))
        yield
    pool.release()


@pytest.fixture
def small_pool(monkeypatch):
    """For tests that cost their pool: the next one is no larger than they ask for."""
    from pslab.engines.processes import pool

    def acquire(workers, heed=lambda: None):
        if pool._kept is None or not pool._kept.serves(workers):
            pool.release(kill=True)
            pool._kept = pool.Pool(workers, heed)
        return pool._kept

    monkeypatch.setattr(pool, "acquire", acquire)
