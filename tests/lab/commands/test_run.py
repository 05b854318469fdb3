"""pslab run --help: an example for each field, as it is typed."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

import pytest

from pslab.config.cluster import resolve_cluster
from pslab.config.run import FIELDS, NAMED, Run
from pslab.config.spec import build
from pslab.config.table import KINDS
from pslab.lab.commands import run as command
from pslab.tensors.update.optimizers import resolve_optimizer


@pytest.mark.parametrize("name", FIELDS)
def test_each_field_has_an_example_that_can_be_typed_and_is_not_its_default(name: str):
    (typed,) = shlex.split(command.example(name))
    value = command._value(name, typed)
    with_target = {"target_accuracy": 0.9, name: value}  # which may be about it
    assert getattr(Run.of(with_target), name) != getattr(Run(), name)
    if name in NAMED and name in KINDS:
        assert build(name, value) is not None
    resolve_cluster(value if name == "cluster" else "free")
    resolve_optimizer(value if name == "optimizer" else "sgd")


def test_help_shows_the_example_of_each_field(capsys: pytest.CaptureFixture):
    verbs = argparse.ArgumentParser().add_subparsers()
    command.add(verbs)
    verbs.choices["run"].print_help()
    said = capsys.readouterr().out
    for name in FIELDS:
        assert f"--{name.replace('_', '-')} {command.example(name)}\n" in said  # on one line


def test_help_has_each_field_in_one_group():
    assert sorted(name for names in command.GROUPS.values() for name in names) == sorted(FIELDS)


@pytest.mark.parametrize("dash", ["-", "_"])
def test_keys_of_a_file_have_dashes_or_underscores(dash: str, tmp_path: Path):
    file = tmp_path / "run.yaml"
    file.write_text(f"learning{dash}rate: 0.5\nkeep{dash}weights: on\ncluster: {{compute{dash}s: 0.01}}\n")
    fields = {name: command._value(name, value) for name, value in command._read(file).items()}
    assert Run.of(fields) == Run(learning_rate=0.5, keep_weights=True, cluster={"compute_s": 0.01})
