"""A disk that is full wherever something is written: what was there is whole, what is new is whole or absent."""

from __future__ import annotations

import errno
import os
import re
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from pslab.config.run import Run
from pslab.engines.server.ledger import ARRIVAL_COLUMNS, PUSH_COLUMNS
from pslab.engines.worker.phases import PHASE_COLUMNS
from pslab.errors import Unwritable
from pslab.lab.records import disk, journal
from pslab.lab.records.drafts import Draft, DraftReader
from pslab.lab.records.record import TABLES as TABLE_NAMES
from pslab.lab.records.record import TEXTS, find
from pslab.lab.records.results import load
from pslab.lab.studies.observe import TABLES as OBSERVED
from pslab.lab.studies.observe import Observed

RUN, VALUES = Run(pushes=2, keep_weights=True), np.arange(5.0)
COLUMNS = {"accuracy": ("pushes", "iteration", "seconds", "accuracy", "loss"), "phases": PHASE_COLUMNS,
           "pushes": PUSH_COLUMNS, "arrivals": ARRIVAL_COLUMNS}  # fmt: skip
TABLES = {name: pd.DataFrame({column: ["compute"] * 2 if column in TEXTS else [0.5, 1.0] for column in COLUMNS[name]})
          for name in TABLE_NAMES}  # fmt: skip
FACTS = {"outcome": "budget", "seconds": 1.0, "pushes": 2}
HALVED = ("to_csv", "save", "write_text", "write_bytes")


class Disk:
    """A disk that has no more room at its operation number `full`, and, if it `stays` full, ever after.

    What writes has then written half of it.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, full: int, stays: bool) -> None:
        self.count, self._full, self._stays = 0, full, stays
        for owner, name in ((pd.DataFrame, "to_csv"), (np, "save"), (Path, "write_text"), (Path, "write_bytes"),
                            (os, "fsync"), (os, "rename"), (os, "replace"), (os, "mkdir")):  # fmt: skip
            monkeypatch.setattr(owner, name, self._limited(getattr(owner, name)))

    def _limited(self, act: Callable[..., Any]) -> Callable[..., Any]:
        def perform(*arguments: Any, **named: Any) -> Any:
            self.count += 1
            number = self.count - 1
            if not (number >= self._full if self._stays else number == self._full):
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
    "a record": (drafted("save"), lambda results: (made := find(RUN, results)) is None or len(made.pushes) == 2),
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
        write, text = begin(results), ""
        with monkeypatch.context() as patch:
            patch.setattr(tempfile, "tempdir", str(elsewhere))
            full = Disk(patch, number, stays)
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
                assert len(result.pushes) == 2
                assert str(result.path) in text
                folder = result.path.parents[1]
                assert folder.name not in ("pslab", RUN.digest)  # nobody else knows before where it will lie
                assert folder.stat().st_mode & 0o077 == 0
        assert load(old.path).pushes.equals(old.pushes)
        assert whole(results)
        assert not [*results.glob("*/.*"), *results.glob("damaged")]
        number, steps = number + 1, steps + (full.count > number)
    assert refused > (1 if what == "a file" else 5)


class Small:
    """A file that takes only so many bytes more."""

    def __init__(self, file: Any, room: int) -> None:
        self._file, self._room = file, room

    def write(self, content: bytes) -> int:
        if not self._room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written: int = self._file.write(content[: self._room])
        self._room -= written
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> Small:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def test_a_journal_and_what_a_run_says_have_no_half_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path, opened = tmp_path / "journal", Path.open
    monkeypatch.setenv(journal.JOURNAL, str(path))
    journal.note(figure="a")
    draft = Draft(RUN, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", lambda self, *how, **named: Small(opened(self, *how, **named), 4))
        with pytest.raises(Unwritable, match=rf"journal {path} cannot be written: .*No space left.* bytes are free"):
            journal.note(figure="b")
        draft.note({"pushes": 1})
    journal.note(figure="c")
    draft.note({"pushes": 2})
    assert [entry["figure"] for entry in journal.entries(path)] == ["a", "c"]
    assert [news.get("pushes") for news in DraftReader(draft.path).news()] == [None, 2]
