"""Run: its digest, its metric, what multiplies its matrices, and what it refuses."""

from __future__ import annotations

import inspect
import json
import math
import threading
from typing import Any

import pytest
from refusals import check_refused

from pslab.config import gpus
from pslab.config.metric import ACCURACY, Metric, loss_of, medians, metric_of, one_metric
from pslab.config.products import CHOICE, MKL, ONEDNN, fastest, here
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
    assert Run(checkpoint_every=10).digest == base.digest
    assert "checkpoint_every" not in Run(checkpoint_every=10).plain()
    assert Run(engine="ray", ray={"address": "head:6379", "gpus": 0.5}).digest == Run(engine="ray").digest
    assert Run(learning_rate=1).digest == Run(learning_rate=1.0).digest
    run = Run(sync="ssp:3", cluster={"compute_s": 0.1, "slow": {"0": 2.0}}, target_accuracy=0.9)
    assert Run.of(json.loads(json.dumps(run.plain()))).digest == run.digest


def test_the_digest_of_an_object_is_its_content_and_one_whose_content_is_unknown_is_like_no_other():
    assert Run(sync=Policy(1)).digest == Run(sync=Policy(1)).digest
    assert Run(sync=Policy(1)).digest != Run(sync=Policy(2)).digest
    assert Run(sync=Policy(1)).plain()["sync"].startswith("Policy#")
    assert Run(sync=Policy(1)).unknown == ""
    one, other = Policy(threading.Lock()), Policy(threading.Lock())
    assert Run(sync=one).unknown.startswith("sync: a lock in it cannot be sent to another process")
    assert Run(sync=one).digest == Run(sync=one).but(seed=0).digest != Run(sync=other).digest


def test_a_run_is_evaluated_twenty_times_and_shows_what_is_not_at_its_default_and_can_be_typed_again():
    periods = [Run(pushes=pushes, seconds=1.0).evaluation_period for pushes in (937, 3, None)]
    assert periods == [46, 1, None]
    run = Run(sync="ssp:3", learning_rate=0.5, cluster={"preset": "lab"}, keep_weights=True)
    assert repr(run) == "Run(sync='ssp:3', learning_rate=0.5, cluster={'preset': 'lab'}, keep_weights=True)"
    assert eval(repr(run)) == run
    assert (repr(Run()), Run().changed) == ("Run()", {})
    assert repr(Run(sync=Policy(3))) == "Run(sync=Policy)"


def test_virtual_time_without_a_cluster_takes_lab_and_says_so():
    for engine in ("virtual", "timing"):
        with pytest.warns(UserWarning, match=f"engine='{engine}' needs a modelled cluster.* cluster='lab'") as said:
            run = Run(engine=engine)
        assert said[0].filename == __file__
        assert run == Run(engine=engine, cluster="lab") == Run.of(run.plain())
    assert Run(engine="local").cluster == "free"
    with pytest.raises(ConfigError, match="virtual time needs a modelled cluster, such as 'lab'"):
        run.but(cluster="free")  # as an axis of a grid, whose names it would make wrong


def test_runs_on_gpus_of_different_kinds_are_different_ones(tmp_path, monkeypatch):
    file = tmp_path / "gpus" / "0000:01:00.0" / "information"
    file.parent.mkdir(parents=True)
    file.write_text("Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 16\n")
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


def test_every_field_is_documented():
    said = " ".join(inspect.getdoc(Run).split())
    for name, field in FIELDS.items():
        assert field.doc, name
        assert f"{name}: {field.words}" in said
    assert list(inspect.signature(Run).parameters) == [*FIELDS]


def mean_error(output, target):
    return (output - target).abs().flatten(1).mean(1)


def hits(output, target):
    return output.argmax(1) == target


mean_error.lower_is_better = True
LOSS, ERROR, HITS = Metric("loss", True, False), Metric("mean error", True, False), Metric("hits", False, False)


def test_a_metric_has_the_same_name_and_direction_in_a_run_and_in_its_record():
    for given, wanted in (("accuracy", ACCURACY), ("loss", LOSS), (mean_error, ERROR), (hits, HITS)):
        run = Run(metric=given)
        recorded = Run.of(json.loads(json.dumps(run.plain())))
        assert (metric_of(run), metric_of(recorded), recorded.digest) == (wanted, wanted, run.digest)


def test_a_goal_is_reached_in_the_direction_of_the_metric():
    for metric, better, worse in ((ACCURACY, 0.91, 0.89), (HITS, 3.0, 1.0), (ERROR, 0.1, 3.0)):
        goal = (better + worse) / 2
        assert [metric.reaches(each, goal) for each in (better, goal, worse)] == [True, True, False]
        assert not any(metric.reaches(value, goal) for value in (math.nan, math.inf, -math.inf))
        assert metric.best([worse, better, worse]) == better
        assert metric.best([]) == metric.worst


def test_an_accuracy_is_written_in_per_cent_and_is_a_share_and_another_metric_by_its_name_and_any_number():
    assert (ACCURACY.text(0.9712), ACCURACY.goal(0.975)) == ("97.12%", "97.5%")
    assert (ERROR.text(0.12345), ERROR.goal(0.1)) == ("mean error 0.1235", "mean error 0.1")
    for target in (0.0, 1.5, -1.0):
        check_refused([("target_accuracy", lambda target=target: Run(target_accuracy=target), "above 0 and at most 1")])
        assert Run(target_accuracy=target, metric=hits).target_accuracy == target
    check_refused([("target_accuracy", lambda: Run(target_accuracy=85), "85 % is 0.85")])


def test_a_target_is_held_by_the_median_of_three_evaluations_and_reached_by_one():
    lucky, steady = [0.1, 0.2, 0.9, 0.3, 0.4, math.nan], [0.1, 0.5, 0.9, 0.85]
    assert medians(lucky[:-1]) == [0.1, 0.2, 0.3, 0.4]  # of the last one it is not known
    wanted = Run(target_accuracy=0.8, target_held=True)
    assert not wanted.reaches_target(lucky)
    assert not wanted.reaches_target(steady[:-1])
    assert wanted.reaches_target(steady)
    assert wanted.but(target_held=False).reaches_target(lucky)
    assert Run(target_accuracy=0.2, target_held=True, metric=hits).reaches_target([0.9, 0.1, 0.2, 0.15])
    assert not Run().reaches_target(steady)
    assert one_metric([Run(metric="loss"), Run(metric="loss", seed=1)]) == LOSS


def test_the_cross_entropy_of_bytes_is_in_nats_per_byte_and_is_compared_with_no_other_loss():
    text, recorded = (Run(data="text:100", metric="loss"), Run.of(Run(data="text:100", metric="loss").plain()))
    assert {metric_of(run).unit for run in (text, recorded)} == {"nats per byte"}
    assert (metric_of(text).name, metric_of(text).in_unit) == ("loss", " (nats per byte)")
    assert metric_of(text) == loss_of(Run(data=" Text"))
    others = Run(), Run(data="text", loss="mse"), Run(data="mine.text:text"), Run(data="text", loss=mean_error)
    assert {loss_of(run).unit for run in others} == {""}


def test_onednn_multiplies_where_mkl_does_half_of_what_the_processor_can(tmp_path, monkeypatch):
    for vendor, flags, library in (("AuthenticAMD", "sse2 avx512f", ONEDNN), ("AuthenticAMD", "sse2 avx2", MKL),
                                   ("GenuineIntel", "sse2 avx512f", MKL)):  # fmt: skip
        file = tmp_path / f"{vendor} {flags}"
        file.write_text(f"processor\t: 0\nvendor_id\t: {vendor}\nflags\t\t: fpu {flags}\n\nprocessor\t: 1\n")
        assert fastest(file) == library
    assert fastest(tmp_path / "none") == MKL
    monkeypatch.delenv(CHOICE)
    assert here() == fastest()
    monkeypatch.setenv(CHOICE, "blis")
    check_refused([("PSLAB_PRODUCTS", here, r"PSLAB_PRODUCTS.*blis.*must be mkl or onednn")])


@pytest.mark.parametrize(("fields", "other"), [
    ({}, True), ({"engine": "virtual"}, True), ({"device": "cuda"}, False), ({"dtype": "float64"}, False),
    ({"engine": "timing"}, False), ({"ranges": "layers"}, True),
    ({"pull": "keys", "model": "logreg", "data": "planted"}, False)])  # fmt: skip
def test_runs_with_other_products_are_other_runs(fields, other, monkeypatch):
    """Those whose bits do not hang on them keep their names."""
    digests = dict[str, str]()
    for library in (MKL, ONEDNN):
        monkeypatch.setenv(CHOICE, library)
        digests[library] = Run(**fields).digest
    assert (digests[MKL] != digests[ONEDNN]) is other
    assert Run(**fields).digest_on("", ONEDNN) == digests[ONEDNN]


def test_what_is_no_run_or_cannot_be_compared_is_refused():
    text, loss = Run(data="text:100", metric="loss"), Run(metric="loss")
    check_refused([
        ("ray.gpu", lambda: Run(engine="ray", ray={"gpu": 1}), r"ray\.gpu=1.*did you mean 'gpus'"),
        ("target_held", lambda: Run(target_held=True), "needs a target: set target_accuracy, such as 0.97"),
        *((field, lambda runs=runs: one_metric(runs), words) for field, runs, words in (
            ("metric", [Run(), loss], "accuracy and loss"),
            ("metric", [text, loss], r"'loss \(nats per byte\) and loss': these .*where\(data=...\)"))),
        *(("worker", make, r"worker=3: Run has no such field; did you mean 'workers'\? allowed: ") for make in (
            lambda: Run(worker=3), lambda: Run().but(worker=3), lambda: Run.of({"worker": 3}))),
    ])  # fmt: skip
