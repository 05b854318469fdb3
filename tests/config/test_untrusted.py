"""Files and YAML that somebody else may have written are read whole, or refused before memory or time is lost."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pslab.config import available
from pslab.config.plain_yaml import Unreadable, load, read
from pslab.config.untrusted import read_bytes, read_json


def test_a_regular_file_is_read(tmp_path: Path):
    (tmp_path / "file").write_bytes(b'{"a": 1}')
    (tmp_path / "link").symlink_to("file")
    assert read_bytes(tmp_path / "link", 2) == b'{"a": 1}'
    assert read_json(tmp_path / "link") == {"a": 1}
    text = "sync: ssp:3\nseeds: [0, 1]\ncluster: {preset: lab, slow: {0: 2.0}}\n"
    (tmp_path / "run.yaml").write_text(text)
    assert load(text) == read(tmp_path / "run.yaml") == {
        "sync": "ssp:3", "seeds": [0, 1], "cluster": {"preset": "lab", "slow": {0: 2.0}}}  # fmt: skip


@pytest.mark.parametrize(("make", "words"), [
    (lambda path: path.symlink_to("/dev/zero"), "no regular file"), (os.mkfifo, "no regular file"),
    (lambda path: (path.touch(), os.truncate(path, 2**43)), "do not fit in the memory")],
    ids=["device", "pipe", "sparse"])  # fmt: skip
def test_what_has_no_end_or_does_not_fit_is_refused(tmp_path: Path, make, words: str):
    make(tmp_path / "file")
    with pytest.raises(OSError, match=words):
        read_bytes(tmp_path / "file", 2)


def test_what_is_no_json_is_one_kind_of_error(tmp_path: Path):
    for text in ("{", "[" * 200_000, '{"a": 1' + "0" * 5000 + "}", "\udcff"):
        (tmp_path / "file").write_bytes(text.encode(errors="surrogateescape"))
        with pytest.raises(ValueError):  # noqa: PT011
            read_json(tmp_path / "file")


SCALARS = ("2026-13-45", "!!int ''", "0x_", "!!float ''", "!!timestamp x", "2026-02-30 25:00:00", "!!bool x",
           "!!binary é", "1" * 5000, "- !!int {a: 1}", "{[a]: 1}", "!!omap x")  # fmt: skip


def test_what_is_no_plain_yaml_is_refused(tmp_path: Path):
    texts = ["[", "a: b: c", "!!python/object/apply:os.system [true]", "[" * 100_000]
    for text in (*texts, *(f"address: {scalar}" for scalar in SCALARS)):
        with pytest.raises(Unreadable, match=r"\w"):
            load(text)
    bomb = "\n".join(["a0: &a0 [x, x]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 30))])
    with pytest.raises(Unreadable, match=r"line 2 has an alias \(\*\): write out the value that it refers to"):
        load(bomb)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path, tmp_path / "none", tmp_path / "binary", Path("/dev/zero")):
        with pytest.raises(Unreadable, match=r"\w"):
            read(path)


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet="-+.:_0123456789xXbBeEnN'\"[]{}!&*#,<=~ \n\t%int floatsmapz", max_size=24))
def test_any_text_is_a_value_or_unreadable(text: str):
    with contextlib.suppress(Unreadable):
        load(text)


def test_a_containers_limit_counts(monkeypatch: pytest.MonkeyPatch):
    files = {"meminfo": ["MemTotal:", "9", "kB", "MemAvailable:", "8000", "kB"], "memory.max": ["5000000"],
             "memory.current": ["1000000"]}  # fmt: skip
    monkeypatch.setattr(available, "words_of", lambda path: files.get(path.name, []))
    assert available.free_memory_bytes() == 4_000_000
    files["memory.max"] = ["max"]
    assert available.free_memory_bytes() == 8_192_000
    del files["meminfo"]
    assert available.free_memory_bytes() is None
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    for quota, usable, cores in (([], 4, 4), (["max", "100000"], 4, 4), (["150000", "100000"], 1.5, 1),
                                 (["50000", "100000"], 0.5, 1)):  # fmt: skip
        files["cpu.max"] = quota
        assert (available.usable_cores(), available.cores()) == (usable, cores)
