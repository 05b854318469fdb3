"""One thread of torch for these tests: their tensors are small, and threads that wait for each other cost more."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pslab.tensors.device import one_thread


@pytest.fixture(scope="package", autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield
