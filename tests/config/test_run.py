"""Run: what it refuses, and what its digest says."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
import threading
from typing import Any

import pytest

from pslab.config import gpus
from pslab.config.products import CHOICE, MKL
from pslab.config.run import FIELDS, Run
from pslab.errors import ConfigError


class Policy:
    def __init__(self, bound: Any) -> None:
        self.bound = bound


def test_the_digest_names_every_field_and_nothing_else():
    base = Run()
    assert base.digest == Run().digest
    changes = {"workers": 3, "sync": "asp", "learning_rate": 0.2, "pushes": 9, "cluster": "lab", "seed": 1}
    digests = {base.but(**{name: value}).digest for name, value in changes.items()}
    assert len(digests | {base.digest}) == len(changes) + 1


def test_how_often_a_run_is_checkpointed_is_no_part_of_what_names_it():
    assert Run(checkpoint_every=10).digest == Run().digest
    assert "checkpoint_every" not in Run(checkpoint_every=10).plain()


def test_options_of_a_ray_cluster_change_no_digest_and_are_refused_by_name():
    assert Run(engine="ray", ray={"address": "head:6379", "gpus": 0.5}).digest == Run(engine="ray").digest
    with pytest.raises(ConfigError, match=r"ray\.gpu=1.*did you mean 'gpus'"):
        Run(engine="ray", ray={"gpu": 1})


def test_the_digest_is_the_same_in_another_process():
    script = "from pslab.config.run import Run; print(Run(sync='ssp:3', cluster={'serve_s': 1, 'find_s': 2}).digest)"
    env = {"PYTHONHASHSEED": "1", CHOICE: MKL}  # as the tests here
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == Run(sync="ssp:3", cluster={"find_s": 2, "serve_s": 1}).digest


def test_the_digest_of_an_object_is_its_content():
    assert Run(sync=Policy(1)).digest == Run(sync=Policy(1)).digest
    assert Run(sync=Policy(1)).digest != Run(sync=Policy(2)).digest
    assert Run(sync=Policy(1)).plain()["sync"].startswith("Policy#")
    assert Run(sync=Policy(1)).unknown == ""


def test_an_object_whose_content_is_unknown_is_like_no_other():
    one, other = Policy(threading.Lock()), Policy(threading.Lock())
    assert Run(sync=one).unknown.startswith("sync: a lock in it cannot be sent to another process")
    assert Run(sync=one).digest == Run(sync=one).but(seed=0).digest != Run(sync=other).digest


def test_plain_is_json_and_makes_the_same_run():
    run = Run(sync="ssp:3", cluster={"compute_s": 0.1, "slow": {"0": 2.0}}, target_accuracy=0.9)
    assert Run.of(json.loads(json.dumps(run.plain()))).digest == run.digest


def test_an_integer_may_stand_for_a_number():
    assert Run(learning_rate=1).digest == Run(learning_rate=1.0).digest


def test_the_evaluation_period_is_a_twentieth_of_the_budget():
    assert Run(pushes=937).evaluation_period == 46
    assert Run(pushes=3).evaluation_period == 1
    assert Run(pushes=None, seconds=1.0).evaluation_period is None


def test_a_run_shows_what_is_not_at_its_default_and_can_be_typed_again():
    run = Run(sync="ssp:3", learning_rate=0.5, cluster={"preset": "lab"}, keep_weights=True)
    assert repr(run) == "Run(sync='ssp:3', learning_rate=0.5, cluster={'preset': 'lab'}, keep_weights=True)"
    assert eval(repr(run)) == run
    assert (repr(Run()), Run().changed) == ("Run()", {})
    assert repr(Run(sync=Policy(3))) == "Run(sync=Policy)"


@pytest.mark.parametrize("engine", ["virtual", "timing"])
def test_virtual_time_without_a_cluster_takes_lab_and_says_so(engine):
    with pytest.warns(UserWarning, match=f"engine='{engine}' needs a modelled cluster.* cluster='lab'") as said:
        run = Run(engine=engine)
    assert said[0].filename == __file__
    assert run == Run(engine=engine, cluster="lab")
    assert run.digest == Run(engine=engine, cluster="lab").digest
    assert Run.of(run.plain()) == run
    assert Run(engine="local").cluster == "free"
    with pytest.raises(ConfigError, match="virtual time needs a modelled cluster, such as 'lab'"):
        run.but(cluster="free")  # as an axis of a grid, whose names it would make wrong


def test_runs_on_gpus_of_different_kinds_are_different_ones(tmp_path, monkeypatch):
    place = tmp_path / "gpus" / "0000:01:00.0" / "information"
    place.parent.mkdir(parents=True)
    place.write_text("Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 16\n")
    (tmp_path / "version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5\n")
    assert (gpus.kinds(tmp_path), gpus.version(tmp_path)) == ("NVIDIA H100 80GB HBM3", "550.54.15")
    assert (gpus.kinds(tmp_path / "none"), gpus.version(tmp_path / "none")) == ("", "")
    for device, count in (("cpu", 1), ("cuda", 3)):
        digests = set()
        for kind in ("", "NVIDIA H100 80GB HBM3", "NVIDIA H200"):
            monkeypatch.setattr(gpus, "kinds", lambda kind=kind: kind)
            digests.add(Run(device=device).digest)
            assert Run(device=device).digest == Run(device=device).digest_on(kind)
        assert len(digests) == count


def test_an_unknown_field_is_refused_with_the_nearest():
    for make in (Run, Run().but, lambda **fields: Run.of(fields)):
        with pytest.raises(ConfigError, match=r"worker=3: Run has no such field; did you mean 'workers'\? allowed: "):
            make(worker=3)


def test_every_field_is_documented():
    assert Run.__doc__ is not None
    said = " ".join(Run.__doc__.split())
    for name, field in FIELDS.items():
        assert field.doc, name
        assert f"{name}: {field.words}" in said
    assert list(inspect.signature(Run).parameters) == [*FIELDS]
