"""Files that somebody else may have written are read whole, or refused before memory is taken or time is lost."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pslab.config.untrusted import read_bytes, read_json


def test_a_regular_file_is_read(tmp_path: Path):
    (tmp_path / "file").write_bytes(b'{"a": 1}')
    (tmp_path / "link").symlink_to("file")
    assert read_bytes(tmp_path / "link", 2) == b'{"a": 1}'
    assert read_json(tmp_path / "link") == {"a": 1}


@pytest.mark.parametrize(("make", "words"), [
    (lambda path: path.symlink_to("/dev/zero"), "no regular file"), (os.mkfifo, "no regular file"),
    (lambda path: (path.touch(), os.truncate(path, 2**43)), "do not fit in the memory")],
    ids=["device", "pipe", "sparse"])  # fmt: skip
def test_what_has_no_end_or_does_not_fit_is_refused(tmp_path: Path, make, words: str):
    make(tmp_path / "file")
    with pytest.raises(OSError, match=words):
        read_bytes(tmp_path / "file", 2)


@pytest.mark.parametrize("text", ["{", "[" * 200_000, '{"a": 1' + "0" * 5000 + "}", "\udcff"])
def test_what_is_no_json_is_one_kind_of_error(tmp_path: Path, text: str):
    (tmp_path / "file").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ValueError):  # noqa: PT011
        read_json(tmp_path / "file")
