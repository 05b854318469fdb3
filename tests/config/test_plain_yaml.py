"""YAML from a user's hand: plain values, refused where it would grow."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pslab.config.plain_yaml import Unreadable, load, read


def test_plain_values_are_read(tmp_path: Path):
    text = "sync: ssp:3\nseeds: [0, 1]\ncluster: {preset: lab, slow: {0: 2.0}}\n"
    (tmp_path / "run.yaml").write_text(text)
    assert load(text) == read(tmp_path / "run.yaml") == {
        "sync": "ssp:3", "seeds": [0, 1], "cluster": {"preset": "lab", "slow": {0: 2.0}}}  # fmt: skip


def test_aliases_are_refused_before_they_grow():
    bomb = "\n".join(["a0: &a0 [x, x]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 30))])
    with pytest.raises(Unreadable, match=r"line 2 has an alias \(\*\): write out what it stands for"):
        load(bomb)


@pytest.mark.parametrize("text", ["[", "a: b: c", "!!python/object/apply:os.system [true]", "[" * 100_000])
def test_what_is_no_plain_yaml_is_refused(text: str):
    with pytest.raises(Unreadable, match=r"\w"):
        load(text)


@pytest.mark.parametrize("text", [
    "2026-13-45", "!!int ''", "0x_", "!!int 0b", "!!int _", "!!float ''", "!!timestamp x", "2026-02-30 25:00:00",
    "!!bool x", "!!binary é", "1" * 5000, "- !!int {a: 1}", "{[a]: 1}", "!!set [a]", "!!omap x", "!!pairs {a: 1}",
    "!!int ':'",
])  # fmt: skip
def test_a_scalar_that_looks_like_another_type_is_refused_as_unreadable(text: str):
    with pytest.raises(Unreadable, match=r"\w"):
        load(f"address: {text}")


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet="-+.:_0123456789xXbBeEnN'\"[]{}!&*#,<=~ \n\t%int floatsmapz", max_size=24))
def test_any_text_is_a_value_or_unreadable(text: str):
    with contextlib.suppress(Unreadable):
        load(text)


def test_files_that_cannot_be_read_are_refused(tmp_path: Path):
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path, tmp_path / "none", tmp_path / "binary", Path("/dev/zero")):
        with pytest.raises(Unreadable, match=r"\w"):
            read(path)
