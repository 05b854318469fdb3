"""What is listed is what there is: every table's names, and what their docstrings say."""

from __future__ import annotations

import argparse
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest

from pslab.__main__ import main
from pslab.config.cluster import PRESETS, resolve_cluster
from pslab.config.run import FIELDS, Run
from pslab.config.run import NAMED as NAMED_FIELDS
from pslab.config.spec import build
from pslab.config.table import KINDS, ROWS, Row
from pslab.lab.commands import run as command
from pslab.lab.commands.list import Listing, entries, markdown, overview, page
from pslab.tensors.update.optimizers import ELEMENTWISE, resolve_optimizer

ROOT = Path(__file__).parents[3]
FOUND = entries()
NAMED = {(entry.kind, entry.name): entry for entry in FOUND}


def test_every_name_of_every_table_is_listed():
    tables = {kind: set(rows) for kind, rows in ROWS.items()}
    tables |= {"cluster": set(PRESETS), "optimizer": set(ELEMENTWISE)}
    listed = {kind: {entry.name for entry in FOUND if entry.kind == kind} for kind in tables}
    assert listed == tables


@pytest.mark.parametrize("entry", FOUND, ids=lambda entry: f"{entry.kind}-{entry.name}")
def test_everything_says_what_it_is_and_where_and_its_example_can_be_used(entry: Listing):
    assert len(entry.what) > 5
    assert entry.file.startswith("torch.optim.") or (ROOT / entry.file).is_file()
    assert max(map(len, page(entry).splitlines())) <= 122  # no wider than the source
    option, example = shlex.split(entry.command)[2:]
    assert option == f"--{entry.kind}"
    run = Run(**{entry.kind: example})
    if entry.kind in ROWS:
        build(entry.kind, example)
    if entry.kind == "optimizer":
        resolve_optimizer(run.optimizer)


def test_forms_and_parameters():
    steps, lab = NAMED["schedule", "steps"], NAMED["cluster", "lab"]
    assert steps.form == "steps[:FACTOR_EACH,AT]"
    assert {p["name"]: p["default"] for p in steps.parameters} == {"factor_each": "0.1", "at": "0.5/0.75"}
    assert {p["name"]: (p["default"], p["what"]) for p in lab.parameters}["latency_s"] == ("0.0005", "one way")
    assert NAMED["prune", "static"].form == "static:FRACTION[,RESIDUAL,WARM_UP,MODE]"
    assert {p["name"]: p["default"] for p in NAMED["optimizer", "sgd"].parameters}["nesterov"] == "False"


@dataclass(frozen=True)
class Patient:
    """Waits a while.

    And then goes on.
    """

    while_s: Annotated[float, "seconds"]


def test_a_new_policy_is_listed_at_once(monkeypatch: pytest.MonkeyPatch):
    row = Row("sync", "patient", f"{__name__}:Patient", source="Nobody (2030)", example="patient:0.5")
    monkeypatch.setitem(ROWS["sync"], "patient", row)
    found = {entry.name: entry for entry in entries() if entry.kind == "sync"}
    assert found["patient"].form == "patient:WHILE_S"
    assert "  And then goes on.\n\n  while_s: a number\n      seconds" in page(found["patient"])
    assert "Waits a while. Nobody (2030)" in overview(found.values())


def test_the_list_has_every_kind_a_name_is_shown_in_full_one_of_two_kinds_twice(capsys: pytest.CaptureFixture):
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    assert [line for line in lines if line and not line.startswith(" ")] == [*ROWS, "optimizer", "cluster"]
    for name, all_words in (
        ("ssp:3", ("ssp:STALENESS  (sync)", "staleness: a whole number of at least 0", "Ho et al. (NIPS 2013)",
                   "file     pslab/policies/sync/ssp.py", "pslab run --sync ssp:3")),
        ("constant", ("constant  (rate)", "constant  (schedule)")), ("schedule", ("schedule\n  constant",)),
    ):  # fmt: skip
        assert main(["list", name]) == 0
        out = capsys.readouterr().out
        assert all(words in out for words in all_words)


def test_the_documentation_lists_every_name_as_the_table_has_it():
    written = (ROOT / "docs" / "policies.md").read_text()
    assert written == markdown(FOUND) + "\n", "run make docs"
    assert all(f"| `{row.name}" in written for rows in ROWS.values() for row in rows.values())


def asked(*words: str) -> Run:
    parser = argparse.ArgumentParser()
    command.add(parser.add_subparsers())
    return command.asked(parser.parse_args(["run", *words]))


@pytest.mark.parametrize("name", FIELDS)
def test_each_field_has_an_example_that_can_be_typed_and_is_not_its_default(name: str):
    (typed,) = shlex.split(command.example(name))
    run = asked("--target-accuracy", "0.9", f"--{name.replace('_', '-')}", typed)  # which may be about the target
    value = getattr(run, name)
    assert value != getattr(Run(), name)
    if name in NAMED_FIELDS and name in KINDS:
        assert build(name, value) is not None
    resolve_cluster(run.cluster)
    resolve_optimizer(run.optimizer)


def test_keys_of_a_file_have_dashes_or_underscores(tmp_path: Path):
    file = tmp_path / "run.yaml"
    for dash in "-_":
        file.write_text(f"learning{dash}rate: 0.5\nkeep{dash}weights: on\ncluster: {{compute{dash}s: 0.01}}\n")
        wanted = Run(learning_rate=0.5, keep_weights=True, cluster={"compute_s": 0.01}, workers=2)
        assert asked("--file", str(file), "--workers", "2") == wanted
