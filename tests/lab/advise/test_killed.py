"""A race whose processes are killed goes on where it was: the same answer, and no finished run is computed again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from random import Random

import pytest
from processes import living, wait_for_end
from raced import ASKED, BASE

from pslab.lab.advise.advice import Advice
from pslab.lab.advise.recorded import ANSWER, FOLDER
from pslab.lab.advise.search import advise
from pslab.lab.records import journal

SUPPORT = Path(__file__).parents[2] / "support"
LIMIT_S = 600.0
#: Between a run's begin and its record: a draft, all its tables, its last file, its place, what follows it.
MOMENTS = ("pslab.lab.records.drafts:Draft.__init__", "pslab.engines.virtual.parallel_runs:outcome_of",
           "pslab.lab.records.disk:write_manifest", "pslab.lab.records.disk:publish",
           "pslab.lab.runs.interrupts:Unwanted.told")  # fmt: skip


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Advice, Path]:
    place = tmp_path_factory.mktemp("undisturbed")
    return advise(BASE, results=place, **ASKED), place


def finished(results: Path) -> dict[str, tuple[int, int]]:
    """What tells a run's record from another one of the same name, by its digest."""
    return {path.parent.name: (path.stat().st_ino, path.stat().st_mtime_ns)
            for path in (results / "runs").glob("[!.]*/manifest.json")}  # fmt: skip


def killed(results: Path, where: str, count: int) -> None:
    """All processes of a race end there, and none is left."""
    token = uuid.uuid4().hex
    named = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SUPPORT), str(SUPPORT.parents[1])]), "PSLAB_TOKEN": token}
    done = subprocess.run([sys.executable, str(SUPPORT / "raced.py"), str(results), where, str(count)], env=named,
                          capture_output=True, timeout=LIMIT_S, check=False, start_new_session=True)  # fmt: skip
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    for process in living(token):
        wait_for_end(process)
    assert not living(token)


def asked_again(results: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Advice, int]:
    """The answer, and how many runs were computed for it."""
    monkeypatch.setenv(journal.JOURNAL, str(results / "journal"))
    found = advise(BASE, results=results, **ASKED)
    return found, sum(entry.get("missing", 0) for entry in journal.entries(results / "journal"))


@pytest.mark.slow
@pytest.mark.parametrize("where", MOMENTS)
def test_a_race_that_was_killed_has_the_same_answer_and_computes_no_finished_run_again(
    where: str, undisturbed: tuple[Advice, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    expected, elsewhere = undisturbed
    all_of_it = len(finished(elsewhere))
    count = Random(where).randint(all_of_it // 2, all_of_it - 4)
    killed(tmp_path, where, count)
    before = finished(tmp_path)
    assert 0 < len(before) < all_of_it
    found, computed = asked_again(tmp_path, monkeypatch)
    after = finished(tmp_path)
    assert {name: after[name] for name in before} == before
    assert after.keys() == finished(elsewhere).keys()
    assert computed == len(after) - len(before)
    assert found.table.equals(expected.table)
    answers = [(place / FOLDER / expected.digest / ANSWER).read_bytes() for place in (tmp_path, elsewhere)]
    assert answers[0] == answers[1]


@pytest.mark.slow
def test_a_race_that_was_killed_before_its_answer_was_recorded_computes_nothing(
    undisturbed: tuple[Advice, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    expected, elsewhere = undisturbed
    killed(tmp_path, "pslab.lab.records.disk:publish", len(finished(elsewhere)) + 1)
    before = finished(tmp_path)
    assert before.keys() == finished(elsewhere).keys()
    found, computed = asked_again(tmp_path, monkeypatch)
    assert (computed, finished(tmp_path)) == (0, before)
    assert found.table.equals(expected.table)
