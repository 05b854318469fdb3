"""A disk that is full wherever something is written: what was there is whole, what is new is whole or absent."""

from __future__ import annotations

import errno
import json
import os
import re
import tempfile
from collections.abc import Callable
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
from pslab.lab.studies.observed import FOLDER, Observed
from pslab.lab.studies.observed import TABLES as OBSERVED

RUN, VALUES = Run(pushes=2, keep_weights=True), np.arange(5.0)
COLUMNS = {"accuracy": ("pushes", "iteration", "seconds", "accuracy", "loss"), "phases": PHASE_COLUMNS,
           "pushes": PUSH_COLUMNS, "arrivals": ARRIVAL_COLUMNS}  # fmt: skip
TABLES = {name: pd.DataFrame({column: ["compute"] * 2 if column in TEXTS else [0.5, 1.0] for column in COLUMNS[name]})
          for name in TABLE_NAMES}  # fmt: skip


class Disk:
    """A disk that has no more room at its operation number `full`, and, if it `stays` full, ever after.

    What writes has then written half of it.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, full: int | None, stays: bool = False) -> None:
        self.count, self._full, self._stays = 0, full, stays
        for owner, name in ((pd.DataFrame, "to_csv"), (np, "save"), (Path, "write_text"), (Path, "write_bytes"),
                            (os, "fsync"), (os, "rename"), (os, "replace"), (os, "mkdir")):  # fmt: skip
            monkeypatch.setattr(owner, name, self._limited(getattr(owner, name)))

    def _limited(self, act: Callable[..., Any]) -> Callable[..., Any]:
        def perform(*arguments: Any, **named: Any) -> Any:
            self.count += 1
            number = self.count - 1
            if self._full is None or not (number >= self._full if self._stays else number == self._full):
                return act(*arguments, **named)
            for path in (each for each in arguments if isinstance(each, Path) and act.__name__ in HALVED):
                with open(path, "wb") as file:
                    file.write(b'{"half": ')
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        return perform


HALVED = ("to_csv", "save", "write_text", "write_bytes")


def operations(monkeypatch: pytest.MonkeyPatch, act: Callable[[], Any]) -> int:
    with monkeypatch.context() as patch:
        full = Disk(patch, None)
        act()
    return full.count


@pytest.mark.parametrize("stays", [False, True], ids=["once", "for good"])
@pytest.mark.parametrize("how", ["save", "set_aside"])
def test_at_every_step_of_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, stays: bool):
    facts, number, steps = {"outcome": "budget", "seconds": 1.0, "pushes": 2}, 0, 1
    while number < steps:
        results, elsewhere = tmp_path / str(number) / "results", tmp_path / str(number) / "elsewhere"
        elsewhere.mkdir(parents=True)
        old = Draft(RUN.but(seed=1), results).save(TABLES, VALUES, facts)
        draft = Draft(RUN, results)
        with monkeypatch.context() as patch:
            patch.setattr(tempfile, "tempdir", str(elsewhere))
            full, text = Disk(patch, number, stays), ""
            try:  # a folder that is there already, or a flush once the record has its place, may fail
                assert load(getattr(draft, how)(TABLES, VALUES, facts).path).pushes.equals(old.pushes)
            except Unwritable as error:
                text = str(error)
        if text:
            assert re.search(r"No space left on device.*(bytes|.B) are free in", text)
            assert str(results) in text
            kept = [load(path) for path in elsewhere.glob("*/interrupted/*")]
            assert len(kept) == (not stays)
            for result in kept:
                assert result.weights.tolist() == VALUES.tolist()
                assert len(result.pushes) == 2
                assert str(result.path) in text
                own = result.path.parents[1]
                assert own.name not in ("pslab", RUN.digest)  # nobody else knows before where it will lie
                assert own.stat().st_mode & 0o077 == 0
        assert load(old.path).pushes.equals(old.pushes)
        there = find(RUN, results)
        assert there is None or len(there.pushes) == 2
        assert not list((results / "runs").glob(".*"))
        number, steps = number + 1, steps + (full.count > number)
    assert number > 10


@pytest.mark.parametrize("stays", [False, True], ids=["once", "for good"])
def test_at_every_step_of_what_studies_keep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stays: bool):
    def write(results: Path) -> Observed:
        return Observed.save(RUN.digest, {name: pd.DataFrame({"a": [1, 2]}) for name in OBSERVED}, {}, results)

    count = operations(monkeypatch, lambda: write(tmp_path / "counted"))
    assert count > 5
    for number in range(count - 1):  # the last one flushes the folder, when all is in its place
        results = tmp_path / str(number)
        with monkeypatch.context() as patch:
            Disk(patch, number, stays)
            with pytest.raises(Unwritable, match=rf"{RUN.digest} cannot be written to .*No space left.* are free in"):
                write(results)
        assert Observed.find(RUN.digest, results) is None
        assert not list(results.glob(f"{FOLDER}/.*"))
    assert write(results).layers.equals(Observed.find(RUN.digest, results).layers)


def test_at_every_step_of_a_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "figures" / "a.json"
    disk.write_file(path, b"old")
    count = operations(monkeypatch, lambda: disk.write_file(tmp_path / "new" / "a", b"new"))
    assert count > 2
    for number in range(1, count):  # the folder is there already
        with monkeypatch.context() as patch:
            Disk(patch, number)
            with pytest.raises(Unwritable, match=r"a\.json \(7 bytes\) cannot be written.*No space left"):
                disk.write_file(path, b"another")
        assert path.read_bytes() == b"old"
        assert [each.name for each in path.parent.iterdir()] == ["a.json"]


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
    assert all(json.loads(line) for line in path.read_text().splitlines())
