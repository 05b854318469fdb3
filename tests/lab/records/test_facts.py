"""Manifests and tables with anything in them: a verdict or a sentence, never an error of Python's own."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny import tiny

from pslab.engines.server.ledger import ARRIVAL_COLUMNS, PUSH_COLUMNS
from pslab.engines.worker.phases import PHASE_COLUMNS
from pslab.errors import PslabError, RecordError
from pslab.lab.commands.verify import judgement
from pslab.lab.records.disk import write_manifest
from pslab.lab.records.facts import COLUMNS, wrong_facts
from pslab.lab.records.record import TABLES, Result
from pslab.lab.records.results import Results, load
from pslab.lab.records.summary import summary
from pslab.lab.runs.run import sweep

RUNS = {
    "restarted": {"cluster": {"preset": "lab", "faults": [{"what": "kill", "worker": 1, "iteration": 2}]},
                  "on_death": "restart", "lease_s": 0.1, "sync": "ssp:1", "pull": "changed", "prune": "static:5%"},
    "methods": {"sync": "admm:3", "cluster": "lab"},
    "faults": {"sync": "asp", "cluster": {"preset": "lab", "faults": [{"what": "delay", "probability": 0.1}]}},
}  # fmt: skip
MANY = int(os.environ.get("PSLAB_CHANGES", "40"))  # changes of the records: of their manifests, facts, tables
#: Facts that no run here has.
OTHERS: dict[str, Any] = {
    "rewinds": [{"seconds": 0.1, "how": "server died", "pushes": 5, "to_pushes": 3, "to_seconds": 0.05}],
    "resumed": [{"pushes": 3, "made": "then"}], "phases_lost": [1], "fallen_starts": ["worker 1 died"],
    "emulation": {"dilation": 2.0, "compute_overrun_share": 0.01, "late_message_share": 0.0, "workers_starved": True},
    "network_bytes": 10_000, "clock_bound_s": 1e-4,
    "deaths": [{"worker": 1, "iteration": 1, "seconds": 0.1, "how": "was killed"}],
    "diverged": {"worker": 1, "iteration": 3}, "repeated_after": {"dilation": 1.0},
    "dilation": 2.0, "violations": ["a rule"], "unjudged": ["a rule"], "sweeps": [[0, 0.5, 3]],
}  # fmt: skip
ODD = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 50), st.floats(), st.text(max_size=3),
    st.sampled_from([10**400, -(10**30), 2**53, 1e308, float("nan"), float("inf"), [], {}, [[]], [{}], [None], {"": 1},
                     [1, 2], {"worker": 99}, [{"worker": 99, "seconds": 0.1, "iteration": 1, "how": "gone"}]]),
)  # fmt: skip


def changes(test: Callable[..., None]) -> Callable[..., None]:
    """The test is of many changes, each of one of the records."""
    often = settings(max_examples=MANY, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    return often(given(name=st.sampled_from([*RUNS]), data=st.data())(test))


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Result]:
    wanted = [tiny(engine="virtual", pushes=12, **fields) for fields in RUNS.values()]
    return dict(zip(RUNS, sweep(wanted, results=tmp_path_factory.mktemp("results"), progress=False), strict=True))


def changed(draw: Callable[..., Any], value: Any, depth: int = 0) -> Any:
    """A JSON value in which something is another one, or missing."""
    if isinstance(value, (dict, list)) and value and (not depth or draw(st.integers(0, 3))):
        at = draw(st.sampled_from(sorted(value))) if isinstance(value, dict) else draw(st.integers(0, len(value) - 1))
        copy = value.copy()
        if draw(st.integers(0, 9)):
            copy[at] = changed(draw, copy[at], depth + 1)
        else:
            del copy[at]
        return copy
    return draw(ODD)


def read(path: Path) -> str:
    """All that reads a record reads this one; the sentence of the first error that is pslab's own."""
    try:
        result = load(path)
        judgement(result)
        repr(result)
        result._repr_html_()
        assert result.final is not None
        summary(Results([result]))
        summary(Results([result]), goal=0.5)
        for each in ("run", "evaluation", "push", "phase", "arrival"):
            Results([result]).frame(each)
    except PslabError as error:
        return str(error)
    return ""


def renewed(record: Path, place: Path) -> Path:
    """A copy to be changed."""
    shutil.rmtree(place, ignore_errors=True)
    return shutil.copytree(record, place)


def seal(copy: Path, manifest: dict[str, Any]) -> None:
    write_manifest(copy, manifest, [f"{name}.csv" for name in TABLES])


@pytest.mark.parametrize("name", RUNS)
def test_facts_of_a_run_are_of_their_types(records, name):
    assert wrong_facts(records[name].manifest) == []
    assert wrong_facts(OTHERS) == []
    assert read(records[name].path) == ""


@changes
def test_any_change_of_a_manifest_leads_to_a_verdict_or_a_sentence(records, tmp_path, name, data):
    manifest = {**json.loads((records[name].path / "manifest.json").read_text())}
    manifest |= {fact: OTHERS[fact] for fact in data.draw(st.sets(st.sampled_from(sorted(OTHERS)), max_size=2))}
    copy = renewed(records[name].path, tmp_path / "copy")
    seal(copy, changed(data.draw, manifest))
    read(copy)


@changes
def test_any_change_of_a_table_leads_to_a_verdict_or_a_sentence(records, tmp_path, name, data):
    copy = renewed(records[name].path, tmp_path / "copy")
    table = data.draw(st.sampled_from(TABLES))
    found = pd.read_csv(copy / f"{table}.csv").astype(object)
    how = data.draw(st.integers(0, 9))
    if how == 0:
        found = found.drop(columns=data.draw(st.sampled_from(list(found))))
    elif how == 1:
        found = found.head(data.draw(st.integers(0, 2)))
    else:
        row = slice(None) if how == 2 else data.draw(st.integers(0, len(found) - 1))
        odd = data.draw(st.one_of(st.integers(-3, 50), st.floats(), st.sampled_from(["", "x", 2**40, 10**400, np.inf])))
        found.loc[found.index[row], data.draw(st.sampled_from(list(found)))] = str(odd)
    found.to_csv(copy / f"{table}.csv", index=False)
    seal(copy, json.loads((copy / "manifest.json").read_text()))
    read(copy)


@pytest.mark.parametrize(("facts", "words"), [
    ({"seconds": None}, "its seconds is None: it must be a finite number from 0"),
    ({"pushes": "many"}, "its pushes is 'many': it must be a whole number from 0"),
    ({"lives": [{"worker": 1}]}, "its lives is"), ({"dilation": True}, "its dilation is True: it must be"),
])  # fmt: skip
def test_an_odd_fact_is_named(records, tmp_path, facts, words):
    copy = renewed(records["methods"].path, tmp_path / "copy")
    seal(copy, {**json.loads((copy / "manifest.json").read_text()), **facts})
    with pytest.raises(RecordError, match=words):
        load(copy)


def test_columns_are_those_of_the_engines():
    assert COLUMNS["pushes"] == PUSH_COLUMNS
    assert COLUMNS["arrivals"] == ARRIVAL_COLUMNS
    assert COLUMNS["phases"] == PHASE_COLUMNS
