"""An advice is a record: found again, verified from the records of its runs, exported, and refused where damaged."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from raced import ASKED, BASE

from pslab import plots
from pslab.__main__ import main
from pslab.errors import RecordError
from pslab.lab.advise import recorded, search
from pslab.lab.advise.advice import Advice
from pslab.lab.advise.recorded import ANSWER, FOLDER, Question, advices, named, read
from pslab.lab.advise.search import advise
from pslab.lab.advise.space import runs_of
from pslab.lab.commands import export as exporting
from pslab.lab.plots import caption_of
from pslab.lab.records.disk import MANIFEST, Damaged, write_manifest


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("results")


@pytest.fixture(scope="module")
def advice(place: Path) -> Advice:
    return advise(BASE, results=place, **ASKED)


@pytest.fixture
def copy(advice: Advice, place: Path, tmp_path: Path) -> Path:
    """A copy of all records; the folder of the advice is the copy's."""
    shutil.copytree(place, tmp_path / "results")
    return tmp_path / "results" / FOLDER / advice.digest


def digests(advice: Advice) -> list[str]:
    return [result.digest for result in advice.results]


def verified(capsys: pytest.CaptureFixture[str], folder: Path) -> tuple[int, list[list[str]], str]:
    """The exit status, the first two words of each finding, and all words."""
    status = main(["verify", folder.name[:8], "--results", str(folder.parents[1])])
    out = capsys.readouterr().out
    lines = [line.split()[:2] for line in out.splitlines() if line.startswith(("ok ", "note ", "PROBLEM "))]
    return status, lines, " ".join(out.split())


def forged(folder: Path, **changed: Any) -> None:
    """Another answer, with the sum that it has."""
    said = json.loads((folder / ANSWER).read_text())
    (folder / ANSWER).write_text(json.dumps({**said, **changed}))
    write_manifest(folder, json.loads((folder / MANIFEST).read_text()), [ANSWER])


# -- found again -----------------------------------------------------------------------------------


def test_asked_again_it_is_read_and_nothing_is_searched(advice: Advice, place: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(search, "_Asking", None)
    again = advise(BASE, results=place, **{**ASKED, "minutes": 0.1})
    assert again.digest == advice.digest != ""
    assert again.table.equals(advice.table)
    assert (again.words, again.run, again.notes) == (advice.words, advice.run, advice.notes)
    assert again.why.equals(advice.why)
    assert again.choices.equals(advice.choices)
    assert digests(again) == digests(advice)
    assert [each.run for each in again.best] == [each.run for each in advice.best]
    assert again.remarks == advice.remarks


def test_it_is_read_without_torch(advice: Advice, place: Path):
    code = (f"import sys; sys.path[:0] = {sys.path!r}; from pathlib import Path\n"
            "import pslab.lab.advise.search; from pslab.lab.advise.recorded import read\n"
            "place, results = map(Path, sys.argv[1:]); print(read(place, results).words)\n"
            "assert 'torch' not in sys.modules")  # fmt: skip
    told = subprocess.run([sys.executable, "-c", code, str(place / FOLDER / advice.digest), str(place)], check=True,
                          capture_output=True, text=True, timeout=120)  # fmt: skip
    assert told.stdout.strip() == advice.words


@pytest.mark.parametrize("changed", [
    {"target": 0.55}, {"seeds": [0, 1]}, {"tie": 0.1}, {"sure": 0.8}, {"pushes": 100}, {"learning_rates": [0.1]},
    {"space": {"prune": ["none", "static:6%"]}}, {"space": None},
], ids=repr)  # fmt: skip
def test_another_question_has_another_answer(changed: dict[str, Any]):
    def asked(space: Any, progress: bool, **given: Any) -> str:
        found = Question.of(BASE, runs_of(BASE, space), {**given, "seeds": [*given["seeds"]]})
        assert found is not None
        return found.digest

    assert asked(**ASKED) == asked(**ASKED) != asked(**{**ASKED, **changed})


def test_where_a_policy_is_an_object_of_the_users_nothing_is_found_again():
    class Mine:
        pass

    assert Question.of(BASE, runs_of(BASE, {"sync": [Mine()]}), {"target": 0.5}) is None


def test_an_answer_for_which_the_minutes_were_used_up_is_no_record(advice: Advice, copy: Path):
    shutil.rmtree(copy)
    found = advise(BASE, results=copy.parents[1], **{**ASKED, "minutes": 1e-6})
    assert (found.answer.ending, found.digest, copy.exists()) == ("time", "", False)
    assert advise(BASE, results=copy.parents[1], **ASKED).digest == copy.name


def test_without_one_of_its_runs_it_is_searched_again(advice: Advice, copy: Path, monkeypatch: pytest.MonkeyPatch):
    results = copy.parents[1]
    shutil.rmtree(results / "runs" / advice.winner[0].digest)
    with pytest.raises(RecordError, match=f"rests on the run {advice.winner[0].digest}, which is not in"):
        read(copy, results)
    assert advise(BASE, results=results, **ASKED).table.equals(advice.table)
    assert (results / "runs" / advice.winner[0].digest).is_dir()


def test_what_is_damaged_or_of_another_kind_is_refused(advice: Advice, copy: Path):
    def refused(words: str) -> None:
        with pytest.raises(RecordError, match=words):
            read(copy, copy.parents[1])

    content = (copy / ANSWER).read_text()
    (copy / ANSWER).write_text(content.replace("words", "sentence"))
    refused("was changed since")
    (copy / ANSWER).write_text(content)
    forged(copy, answer={"standing": 1})
    refused("is no answer of this version")
    run = {**json.loads(content)["runs"][0], "fields": {"sink": 1}}
    (copy / ANSWER).write_text(content)
    forged(copy, runs=[run])
    refused(f"the run {run['digest']} of .* cannot be made again")
    (copy / ANSWER).unlink()
    refused("is not a complete record")


@pytest.mark.parametrize("where", ["advice", "run"])
def test_a_damaged_record_is_set_aside_and_asked_again(advice: Advice, copy: Path, where: str):
    results = copy.parents[1]
    damaged = copy / MANIFEST if where == "advice" else results / "runs" / advice.winner[0].digest / "accuracy.csv"
    damaged.write_bytes(damaged.read_bytes()[:-9])
    with pytest.warns(Damaged, match=rf"{damaged.parent.name}.* was moved to .*/damaged/"):
        again = advise(BASE, results=results, **ASKED)
    assert again.table.equals(advice.table)
    assert [path.name[:16] for path in (results / "damaged").iterdir()] == [damaged.parent.name]
    assert read(copy, results).words == advice.words


def test_a_question_that_its_digest_does_not_name_is_refused(advice: Advice, copy: Path):
    manifest = json.loads((copy / MANIFEST).read_text())
    (copy / MANIFEST).write_text(json.dumps({**manifest, "asked": {**manifest["asked"], "given": {"target": 0.4}}}))
    with pytest.raises(RecordError, match="it was changed, or is of another version"):
        read(copy, copy.parents[1])
    (copy / MANIFEST).write_text(json.dumps({**manifest, "asked": [1]}))
    with pytest.raises(RecordError, match="does not say what was asked"):
        read(copy, copy.parents[1])


# -- verified, exported, listed --------------------------------------------------------------------


def test_a_true_one_is_verified_by_the_records_of_its_runs_alone(advice: Advice, copy: Path, capsys):
    before = sorted(path.name for path in (copy.parents[1] / "runs").iterdir())
    status, lines, words = verified(capsys, copy)
    assert (status, lines) == (0, [["ok", "sums"], ["ok", "runs"], ["ok", "answer"]])
    assert all(digest in words for digest in digests(advice))
    assert sorted(path.name for path in (copy.parents[1] / "runs").iterdir()) == before


def test_another_sentence_or_standing_is_found_however_it_was_written(advice: Advice, copy: Path, capsys):
    said = json.loads((copy / ANSWER).read_text())
    said["answer"]["standings"][0]["ratio"] += 1e-12
    forged(copy, words=said["words"].replace("5%", "1%") + ".", answer=said["answer"])
    status, lines, words = verified(capsys, copy)
    assert (status, lines) == (1, [["ok", "sums"], ["ok", "runs"], ["PROBLEM", "answer"]])
    assert "another from these records, in answer, words" in words


def test_a_run_that_is_gone_is_named_and_a_table_that_was_changed_is_noticed(advice: Advice, copy: Path, capsys):
    first, second = (copy.parents[1] / "runs" / digest for digest in digests(advice)[:2])
    sound = (second / "accuracy.csv").read_text()
    (second / "accuracy.csv").write_text(sound.replace("0", "1", 1))
    status, lines, words = verified(capsys, copy)
    assert (status, lines[-1]) == (1, ["PROBLEM", "record"])
    assert "accuracy.csv is not what its manifest says" in words
    (second / "accuracy.csv").write_text(sound)
    shutil.rmtree(first)
    status, lines, words = verified(capsys, copy)
    assert (status, lines) == (1, [["ok", "sums"], ["PROBLEM", "runs"]])
    assert f"1 of the {len(advice.results) + len(advice.alone)} that it rests on are not here: {first.name}" in words


def test_export_takes_all_its_runs_with_their_policies(advice: Advice, copy: Path, monkeypatch, capsys):
    taken: list[Any] = []
    monkeypatch.setattr("pslab.lab.records.export.export", lambda results, to, out: taken.append(results) or str(out))
    results = str(copy.parents[1])
    assert main(["export", copy.name, advice.winner[0].digest, "--to", "notebook", "--results", results]) == 0
    assert exporting.VIEWS["notebook"].split("{")[0] in capsys.readouterr().out
    assert [each.digest for each in taken[0]][: len(advice.results)] == digests(advice)
    assert set(taken[0].frame().policy.dropna()) == set(advice.table.index)


def test_all_are_listed_but_what_cannot_be_read(advice: Advice, copy: Path):
    results = copy.parents[1]
    assert [each.digest for each in advices(results=results)] == [advice.digest]
    assert named(copy.name[:5], results) == named(copy, results) == copy
    assert named("", results) is named("zz", results) is named(results, results) is None
    shutil.copytree(copy, copy.with_name("0" * 16))
    with pytest.warns(UserWarning, match="1 of 2 answers are left out"):
        assert [each.words for each in advices(results=results)] == [advice.words]


def test_its_figure_names_it(advice: Advice):
    assert f"answer {advice.digest}, of {len(advice.results)} runs" in caption_of(plots.why(advice))
    assert f"recorded as {advice.digest}" in advice.remarks[-1]


def test_it_says_nothing_that_a_clock_measured(advice: Advice, place: Path):
    content = (place / FOLDER / advice.digest / ANSWER).read_text()
    assert "seconds" not in json.loads(content)["cost"]
    assert recorded.said_in(place / FOLDER / advice.digest) == json.loads(content)
