"""The cache of compiled code: who compiles, who waits, and what is compiled anew."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np
import pytest
from numba import config

from pslab.tensors import compiling
from pslab.tensors.compiling import Loops
from pslab.tensors.selection import simd


def kept(indices, bits, out):
    """Write the indices with odd bits; their number."""
    found = 0
    for j in range(len(indices)):
        out[found] = indices[j]
        found += simd.ones(bits[j]) & 1
    return found


KEPT = kept  # not compiled


class Cache:
    """One loop, which is not compiled yet, and a folder for what is compiled."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.patch, self.folder, self._set = monkeypatch.setattr, folder, monkeypatch.setitem
        self.patch(config, "CACHE_DIR", str(folder))
        self.patch(compiling, "WAIT_S", 0.0)

    def loops(self) -> Loops:
        """As they are in a new process."""
        made = Loops(simd)
        self._set(globals(), "kept", made.loop(KEPT))
        return made

    def hit(self) -> bool:
        """Whether a new process finds the compiled loop here; it works in any case."""
        indices, bits, out = np.array([4, 5]), np.array([3, 1], np.uint64), np.zeros(3, np.int64)
        self.loops().warm("some", lambda: kept(indices, bits, out))
        assert kept(indices, bits, out) == 1
        assert out[0] == 5
        return bool(kept.stats.cache_hits)  # type: ignore[attr-defined]

    @contextmanager
    def locked(self) -> Iterator[IO[str]]:
        """Another process is compiling."""
        (folder,) = {path.parent for path in self.folder.rglob("lock")} or {self.loops().use_cache()}
        assert folder is not None
        with (folder / "lock").open("a") as other:
            fcntl.flock(other, fcntl.LOCK_EX)
            yield other


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cache:
    return Cache(monkeypatch, tmp_path)


def test_compiled_code_is_cached_until_its_sources_change(cache: Cache) -> None:
    assert not cache.hit()
    assert list(cache.folder.rglob("*.nbi"))
    assert cache.hit()
    assert str(cache.folder) == config.CACHE_DIR
    other = cache.folder / "simd.py"
    other.write_text(Path(simd.__file__).read_text() + "\n")
    cache.patch(simd, "__file__", str(other))
    assert not cache.hit()


@pytest.mark.parametrize("content", [b"", b"garbage", b"\x80\x04."])
def test_damaged_cached_code_is_not_used(cache: Cache, content: bytes) -> None:
    cache.hit()
    for pattern in ("*.nbc", "*.nbi"):
        for file in cache.folder.rglob(pattern):
            file.write_bytes(content)
        cache.hit()


def test_the_cache_falls_back_to_the_user_folder(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    (cache.folder / "file").write_text("")
    cache.patch(config, "CACHE_DIR", str(cache.folder / "file"))
    assert not cache.hit()
    cache.patch(config, "CACHE_DIR", "")
    monkeypatch.setitem(globals(), "__file__", str(cache.folder / "file" / "loops.py"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache.folder / "user"))
    cache.hit()
    assert list((cache.folder / "user" / "pslab").rglob("*.nbi"))


def test_a_full_disk_only_prevents_caching(cache: Cache) -> None:
    cache.patch(os, "replace", lambda *paths: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    assert not cache.hit()


def test_a_process_that_waits_for_another_to_compile_reports_it(cache: Cache) -> None:
    reported = list[int]()

    def waits() -> None:
        reported.append(len(reported))
        if len(reported) == 3:
            fcntl.flock(other, fcntl.LOCK_UN)

    cache.patch(compiling, "WAIT_S", 60.0)
    cache.patch(compiling, "LOOK_S", 0.0)
    cache.patch(compiling, "waits", waits)
    with cache.locked() as other:
        assert not cache.hit()
    assert reported == [0, 1, 2]


def test_compiled_code_is_loaded_while_another_process_compiles(cache: Cache) -> None:
    cache.hit()
    with cache.locked():
        assert cache.hit()


def test_the_wait_for_a_stopped_process_has_a_limit(cache: Cache) -> None:
    with cache.locked():
        assert not cache.hit()
    assert not list(cache.folder.rglob("*.nbi"))
