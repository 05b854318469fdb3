"""Records: whole or not there at all."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import threading

import numpy as np
import pandas as pd
import pytest

from pslab.config import gpus
from pslab.config.run import Run
from pslab.engines.server.ledger import PUSH_COLUMNS
from pslab.errors import RecordError
from pslab.lab.commands.verify import sums
from pslab.lab.records.disk import write_manifest
from pslab.lab.records.drafts import Draft, DraftReader, clean, drafts
from pslab.lab.records.record import FILES, WEIGHTS, find
from pslab.lab.records.results import load

TABLES = {
    "accuracy": pd.DataFrame({"pushes": [0, 4], "iteration": [0.0, 1.0], "seconds": [0.0, 0.1 + 0.2],
                              "accuracy": [0.1, 0.9], "loss": [2.3, 1e-17]}),
    "phases": pd.DataFrame({"worker": [0], "iteration": [0], "phase": ["compute"], "begin_s": [0.0], "end_s": [0.1],
                            "waits_for": [-1], "range": [-1]}),
    "pushes": pd.DataFrame({name: [0] for name in PUSH_COLUMNS}),
}  # fmt: skip
VALUES = np.arange(4, dtype=np.float32)
RUN, ALL = Run(keep_weights=True), (*FILES, WEIGHTS)
FACTS = {"outcome": "budget", "seconds": 0.3, "pushes": 4}


def written(results, run=None):
    return Draft(run or RUN, results).save(TABLES, VALUES, FACTS)


def test_what_is_written_is_read(tmp_path):
    made = written(tmp_path)
    assert not made.cached
    found = find(RUN, tmp_path)
    assert found.cached
    assert sorted(p.name for p in found.path.iterdir()) == sorted(ALL)
    for name in TABLES:
        pd.testing.assert_frame_equal(getattr(found, name), TABLES[name], check_exact=True)
    assert (found.weights == VALUES).all()
    assert found.manifest["outcome"] == "budget"
    assert load(found.path).run == RUN
    assert find(RUN.but(seed=1), tmp_path) is None


def test_weights_are_kept_where_the_run_asks_for_them(tmp_path):
    made = written(tmp_path, Run())
    assert not (made.path / WEIGHTS).exists()
    assert len(made.manifest["weights_sha256"]) == 64
    with pytest.raises(RecordError, match="run it with keep_weights=True"):
        _ = load(made.path).weights
    assert (Draft(Run(), tmp_path).set_aside(TABLES, VALUES, FACTS).weights == VALUES).all()  # nobody gets them again


def test_a_record_of_a_gpu_names_it_and_is_verified_elsewhere(tmp_path, monkeypatch):
    with monkeypatch.context() as there:
        there.setattr(gpus, "kinds", lambda: "NVIDIA H100 80GB HBM3")
        there.setattr(gpus, "version", lambda: "550.54.15")
        made = written(tmp_path, Run(device="cuda"))
    said = made.manifest["environment"]
    assert (said["gpu"], said["driver"]) == ("NVIDIA H100 80GB HBM3", "550.54.15")
    assert said["deterministic"]
    assert find(Run(device="cuda"), tmp_path) is None  # on this machine it is another one
    assert sums(load(made.path)).state == "ok"
    assert "gpu" not in written(tmp_path, Run()).manifest["environment"]


@pytest.mark.parametrize("name", TABLES)
def test_a_table_cannot_change_under_its_reader(tmp_path, name):
    made = written(tmp_path)
    shutil.rmtree(made.path)
    changed = {**TABLES, name: pd.concat([TABLES[name]] * 2)}
    Draft(RUN, tmp_path).save(changed, VALUES, FACTS)
    for other in TABLES:
        if other != name:
            assert getattr(made, other).equals(getattr(find(RUN, tmp_path), other))
    with pytest.raises(RecordError, match="was changed since"):
        getattr(made, name)


@pytest.mark.parametrize(("name", "text", "words"), [
    *((name, None, name.replace(".", r"\.")) for name in ALL), *(("manifest.json", *each) for each in (
        ("{", "cannot be read"), ("[" * 200_000, "cannot be read"), ("[]", "is no manifest"),
        ('{"sha256": 3}', "is no manifest"), ("{}", "it has no outcome"),
        ('{"run": {"seed": 1' + "0" * 5000 + "}}", "cannot be read")))],
    ids=[*ALL, "half", "brackets", "list", "sums", "empty", "huge"])  # fmt: skip
def test_what_lacks_a_file_or_has_a_damaged_manifest_is_no_record(tmp_path, name, text, words):
    path = written(tmp_path).path / name
    path.unlink() if text is None else path.write_text(text)
    with pytest.raises(RecordError, match=words):
        find(RUN, tmp_path)


@pytest.mark.parametrize("change", [{"digest": "../../../X"}, {"run": 3}, {"run": {"workers": 10**400}}], ids=str)
def test_a_manifest_that_names_no_run_cannot_be_loaded(tmp_path, change):
    made = written(tmp_path)
    write_manifest(made.path, {**made.manifest, **change}, ALL)
    with pytest.raises(RecordError):
        load(made.path)


def test_the_record_of_another_run_is_not_taken_for_this_one(tmp_path):
    other = written(tmp_path, RUN.but(seed=1))
    other.path.rename(other.path.with_name(RUN.digest))
    with pytest.raises(RecordError, match="holds another run than its name says"):
        find(RUN, tmp_path)


def test_weights_are_never_unpickled(tmp_path):
    made = written(tmp_path)
    np.save(made.path / "weights.npy", np.array([object()]), allow_pickle=True)
    with pytest.raises(RecordError, match="was changed since"):
        _ = find(RUN, tmp_path).weights
    write_manifest(made.path, made.manifest, ALL)  # by somebody who forges its sum as well
    with pytest.raises(RecordError, match="allow_pickle"):
        _ = find(RUN, tmp_path).weights


def test_results_that_were_removed_during_a_run_are_made_again(tmp_path):
    draft = Draft(RUN, tmp_path / "results")
    shutil.rmtree(tmp_path / "results")
    made = draft.save(TABLES, VALUES, FACTS)
    assert (made.path.parent, load(made.path).run) == (tmp_path / "results" / "runs", RUN)
    assert Draft(RUN, tmp_path / "results").set_aside(TABLES, VALUES, FACTS).path.is_dir()


def test_of_two_that_finish_one_run_the_first_stays(tmp_path):
    first = written(tmp_path)
    second = Draft(RUN, tmp_path).save(TABLES, VALUES, {**FACTS, "outcome": "target"})
    assert second.manifest == first.manifest
    assert find(RUN, tmp_path).manifest["outcome"] == "budget"
    assert len(list((tmp_path / "runs").iterdir())) == 1


def test_a_run_whose_content_is_unknown_gets_a_folder_of_its_own_each_time(tmp_path):
    run = Run(sync=Policy(threading.Lock()))
    first, second = (written(tmp_path, run) for _ in range(2))
    assert first.path != second.path
    assert find(run, tmp_path) is None
    assert "a lock in it cannot be sent" in load(second.path).manifest["not_found_again"]


def test_what_a_run_says_is_read_as_it_comes(tmp_path):
    draft = Draft(RUN, tmp_path)
    (place,) = drafts(tmp_path)
    live = DraftReader(place)
    (first,) = live.news()
    assert first == {"digest": RUN.digest, "run": RUN.plain()}
    assert live.news() == []
    draft.note({"pushes": 1})
    with (place / "live.jsonl").open("a") as file:
        file.write('{"pushes": ')  # half a line is not read before it is whole
    assert live.news() == [{"pushes": 1}]
    with (place / "live.jsonl").open("a") as file:
        file.write("2}\n")
    assert live.news() == [{"pushes": 2}]
    draft.save(TABLES, VALUES, FACTS)
    assert (live.news(), drafts(tmp_path)) == ([], [])


def test_what_was_interrupted_is_kept_and_not_taken_for_a_result(tmp_path):
    kept = Draft(RUN, tmp_path).set_aside(TABLES, VALUES, FACTS)
    assert Draft(RUN, tmp_path).set_aside(TABLES, VALUES, FACTS).path != kept.path
    assert {path.name.split("-")[0] for path in (tmp_path / "interrupted").iterdir()} == {RUN.digest}
    assert load(kept.path).accuracy.accuracy.iloc[-1] == 0.9
    assert find(RUN, tmp_path) is None
    assert list((tmp_path / "runs").iterdir()) == []


def test_drafts_of_dead_writers_are_cleared_and_others_kept(tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    here, gone = platform.node(), ended.pid
    names = [f".d.{each}.x" for each in (f"{here}.{gone}", f"{here}.{os.getpid()}", f"other.{gone}", f"{here}.nobody")]
    for name in names:
        for folder in ("runs", "advice"):
            (tmp_path / folder / name).mkdir(parents=True)
    os.utime(tmp_path / "advice" / names[2], (0, 0))  # of a container that is gone: nobody asks its number
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / f".curve.html.{here}.{gone}.x").touch()
    clean(tmp_path)
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {*names[1:]}
    assert {path.name for path in (tmp_path / "advice").iterdir()} == {names[1], names[3]}
    assert list((tmp_path / "figures").iterdir()) == []


def test_an_objects_record_cannot_make_the_run_again_but_says_so(tmp_path):
    made = written(tmp_path, Run(sync=Policy()))
    manifest = json.loads((made.path / "manifest.json").read_text())
    assert manifest["source"]["sync"] == f"from {__name__} import Policy\nPolicy(what=None)\n"
    assert "class Policy" in manifest["source"][__name__.replace(".", "/") + ".py"]
    assert load(made.path).run.sync == manifest["run"]["sync"]
    assert load(made.path).run.digest == made.digest


class Policy:
    """Something with source text."""

    def __init__(self, what: object = None) -> None:
        self.what = what
