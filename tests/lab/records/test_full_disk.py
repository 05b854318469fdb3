"""A disk that is full wherever something is written: what was there is whole, what is new is whole or absent."""

from __future__ import annotations

import errno
import os
import re
import resource
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import handmade
import numpy as np
import pandas as pd
import pytest

from pslab.config.run import Run
from pslab.errors import Unwritable
from pslab.lab.records import disk, journal
from pslab.lab.records.drafts import LIVE, Draft, DraftReader
from pslab.lab.records.record import TABLES as TABLE_NAMES
from pslab.lab.records.record import find
from pslab.lab.records.results import load
from pslab.lab.studies.observe import TABLES as OBSERVED
from pslab.lab.studies.observe import Observed

RUN, VALUES, MADE = Run(pushes=4, keep_weights=True), np.arange(5.0), handmade.bsp()
TABLES = {name: getattr(MADE, name) for name in TABLE_NAMES}
FACTS = {"outcome": "budget", "seconds": 1.0, "pushes": 4}
WRITES = ((pd.DataFrame, "to_csv"), (np, "save"), (Path, "write_text"), (Path, "write_bytes"))
HALVED = [name for _, name in WRITES]
OPERATIONS = (*WRITES, (os, "fsync"), (os, "rename"), (os, "replace"), (os, "mkdir"))


def limited(act: Callable[..., Any], calls: list[object], full: int, stays: bool) -> Callable[..., Any]:
    """The operation on a disk that has no more room at call number `full`, and, if it `stays` full, ever after.

    What writes has then written half of it.
    """

    def perform(*arguments: Any, **named: Any) -> Any:
        calls.append(act)
        if not (len(calls) > full if stays else len(calls) == full + 1):
            return act(*arguments, **named)
        for path in (each for each in arguments if isinstance(each, Path) and act.__name__ in HALVED):
            with open(path, "wb") as file:
                file.write(b'{"half": ')
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    return perform


def observed(results: Path) -> Observed:
    return Observed.save(RUN.digest, {name: pd.DataFrame({"a": [1, 2]}) for name in OBSERVED}, {}, results)


def drafted(how: str) -> Callable[[Path], Callable[[], Any]]:
    return lambda results: partial(getattr(Draft(RUN, results), how), TABLES, VALUES, FACTS)


#: what is written -> what begins it in a folder and gives what writes it, and whether it is whole or absent there
WRITTEN: dict[str, tuple[Callable[[Path], Callable[[], Any]], Callable[[Path], bool]]] = {
    "a record": (drafted("save"), lambda results: (made := find(RUN, results)) is None or len(made.pushes) == 4),
    "an interrupted run": (drafted("set_aside"), lambda results: find(RUN, results) is None),
    "an observation": (lambda results: lambda: observed(results), lambda results: (
        made := Observed.find(RUN.digest, results)) is None or len(made.layers) == 2),
    "a file": (lambda results: lambda: disk.write_file(results / "runs" / "a.json", b"new"), lambda results: (
        path := results / "runs" / "a.json").read_bytes() in (b"new", b"old") and [*path.parent.glob("*a.json*")] == [
            path]),
}  # fmt: skip


@pytest.mark.parametrize("stays", [False, True], ids=["once", "for good"])
@pytest.mark.parametrize("what", WRITTEN)
def test_at_every_step_of_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, stays: bool):
    begin, whole = WRITTEN[what]
    number, steps, refused = 0, 1, 0
    while number < steps:
        results, elsewhere = tmp_path / str(number) / "results", tmp_path / str(number) / "elsewhere"
        elsewhere.mkdir(parents=True)
        old = Draft(RUN.but(seed=1), results).save(TABLES, VALUES, FACTS)
        disk.write_file(results / "runs" / "a.json", b"old")
        write, text, calls = begin(results), "", list[object]()
        with monkeypatch.context() as patch:
            patch.setattr(tempfile, "tempdir", str(elsewhere))
            for owner, name in OPERATIONS:
                patch.setattr(owner, name, limited(getattr(owner, name), calls, number, stays))
            try:  # a folder that is there already, or a flush once all is written, may fail
                write()
            except Unwritable as error:
                text = str(error)
        if text:
            refused += 1
            assert re.search(rf"No space left on device{'' if what == 'a file' else '.*(bytes|.B) are free in'}", text)
            assert str(results) in text
            saved = [load(path) for path in elsewhere.glob("*/interrupted/*")]
            assert len(saved) == (not stays and what in ("a record", "an interrupted run"))
            for result in saved:
                assert result.weights.tolist() == VALUES.tolist()
                assert len(result.pushes) == 4
                assert str(result.path) in text
                folder = result.path.parents[1]
                assert folder.name not in ("pslab", RUN.digest)  # nobody else knows before where it will lie
                assert folder.stat().st_mode & 0o077 == 0
        assert load(old.path).pushes.equals(old.pushes)
        assert whole(results)
        assert not [*results.glob("*/.*"), *results.glob("damaged")]
        number, steps = number + 1, steps + (len(calls) > number)
    assert refused > (1 if what == "a file" else 5)


@contextmanager
def room_for(count: int, path: Path) -> Iterator[None]:
    """Let this process write only so many bytes more to a file."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + count, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_journal_and_what_a_run_says_have_no_half_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path, draft = tmp_path / "journal", Draft(RUN, tmp_path)
    monkeypatch.setenv(journal.JOURNAL, str(path))
    journal.note(figure="a")
    problem = rf"journal {path} cannot be written: .*File too large.* bytes are free"
    with room_for(4, path), pytest.raises(Unwritable, match=problem):
        journal.note(figure="b")
    with room_for(4, draft.path / LIVE):
        draft.note({"pushes": 1})
    journal.note(figure="c")
    draft.note({"pushes": 2})
    assert [entry["figure"] for entry in journal.entries(path)] == ["a", "c"]
    assert [news.get("pushes") for news in DraftReader(draft.path).news()] == [None, 2]
