"""One pool of processes for the whole suite, as in a notebook."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("untimed", deadline=None)  # a busy machine fails no example
settings.load_profile("untimed")

TESTS = Path(__file__).parent
FOLDERS = [str(TESTS.parent), str(TESTS), str(TESTS / "support")]  # where `preloaded` and its modules are
LARGEST = 5  # of nearly all tests: a pool that is large enough at once is not spawned again for the next of them


@pytest.hookimpl(tryfirst=True)  # before the slow ones are left out
def pytest_collection_modifyitems(items):
    """Of a test with `one_of(n)`, one case of n runs at once, and the others with the slow tests."""
    cases = Counter()
    for item in items:
        mark = item.get_closest_marker("one_of")
        if mark is not None and item.get_closest_marker("slow") is None:
            if cases[item.parent, item.originalname] % mark.args[0]:
                item.add_marker("slow")
            cases[item.parent, item.originalname] += 1


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    """One thread of torch: the tensors of tests are small, and threads that wait for each other take nine times as
    long."""
    from pslab.tensors.device import one_thread

    with one_thread():
        yield


@pytest.fixture(scope="session", autouse=True)
def _one_pool():
    from pslab.config import products
    from pslab.engines.processes import pool, spawn

    acquire = pool.acquire
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(products.CHOICE, products.MKL)  # pinned bits and digests are those of torch's own products
        patch.setattr(spawn, "PRELOADED", "preloaded")
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), *FOLDERS])))
        patch.setattr(pool, "acquire", lambda workers, *more: acquire(max(workers, LARGEST), *more))
        yield
    pool.release()


@pytest.fixture
def small_pool(monkeypatch):
    """For tests that cost their pool: the next one is no larger than they ask for."""
    from pslab.engines.processes import pool

    def acquire(workers, heed=lambda: None, *tolerated):
        if pool._kept is None or not pool._kept.serves(workers):
            pool.release(kill=True)
            pool._kept = pool.Pool(workers, heed, *tolerated)
        return pool._kept

    monkeypatch.setattr(pool, "acquire", acquire)
