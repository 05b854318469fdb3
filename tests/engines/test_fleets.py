"""The same run over each fleet: the same bits, and a valid history."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tiny import tiny

from pslab.config.run import Run
from pslab.engines.execute import execute
from pslab.engines.job.outcome import Outcome
from pslab.engines.processes import pool
from pslab.errors import ConfigError
from pslab.lab.judge.tables import tables_of
from pslab.lab.runs.resolve import resolve

Conduct = Callable[[Run], Outcome]
LINKS = {"compute_s": 2e-3, "latency_s": 1e-3, "bandwidth_bit_s": 1e8}
KEYED = {"data": "planted:rows=200,keys=240,per_row=6,communities=4", "model": "linear", "pull": "keys",
         "batch_size": 8}  # fmt: skip
ALONE: dict[str, Any] = {"sync": "asp", "workers": 1}
FEW = [
    {}, {**ALONE, "prune": "static:5%", "pull": "changed"}, {**ALONE, "sync": "eager"},
    {**ALONE, "ranges": "layers", "order": "needed", "cluster": LINKS}, {**ALONE, **KEYED},
]  # fmt: skip
MORE: list[dict[str, Any]] = [
    ALONE, {"prune": "static:1%"}, {"cluster": LINKS, "prune": "static:5%", "pull": "changed"},
    {"ranges": "layers:200"},
    {**ALONE, "sync": "eager", "prune": "static:5%", "pull": "changed"}, {**ALONE, "sync": "eager", "cluster": LINKS},
    {**ALONE, "prune": "dgc"}, {**ALONE, "prune": "range:7", "pull": "range"},
    {**ALONE, "sync": "eager", "prune": "range:7", "pull": "range"}, {**ALONE, "prune": "std:2", "pull": "whole"},
    {"sync": "local:2"}, {"sync": "average:1", "pushes": 64}, {**ALONE, "sync": "downpour:1,2"},
    {"sync": "admm:2"}, {**KEYED, "workers": 2}, {**ALONE, "optimizer": "adam", "pull": "changed"},
    {**ALONE, "rate": "adagrad:server"}, {**ALONE, "rate": "dynsgd"}, {"evaluate": "beside"},
]  # fmt: skip
VALID: list[dict[str, Any]] = [
    {"sync": "asp"}, {"sync": "ssp:0"}, {"sync": "ssp:1", "ranges": "layers", "cluster": LINKS}, {"sync": "backup:1"},
    {"sync": "dssp:1,4"}, {"sync": "elastic:4"}, {"sync": "eager:2", "prune": "static:5%", "pull": "changed"},
    {"sync": "asp", "cluster": {**LINKS, "duplicate_share": 0.1}}, {"sync": "asp", "pushes": None, "seconds": 0.3},
]  # fmt: skip


def conduct(run: Run) -> Outcome:
    return execute(resolve(run), lambda news: None)


def judged(run: Run, outcome: Outcome) -> dict[str, Any]:
    facts = tables_of(run, outcome)[2]
    return {name: facts[name] for name in ("verdict", "violations") if name in facts}


@pytest.fixture(scope="module")
def beside() -> Iterator[Conduct]:
    """Runs of several fleets, whose pools are kept beside each other."""
    kept = {"local": pool._kept}

    def conduct_beside(run: Run) -> Outcome:
        pool._kept = kept.get(run.fleet)
        try:
            return conduct(run)
        finally:
            kept[run.fleet] = pool._kept

    yield conduct_beside
    for fleet in kept.keys() - {"local"}:
        pool._kept = kept[fleet]
        pool.release()
    pool._kept = kept["local"]


@pytest.mark.parametrize("fields", [*FEW, *(pytest.param(more, marks=pytest.mark.slow) for more in MORE)], ids=str)
def test_without_shared_memory_a_run_has_the_same_bits(fields: dict[str, Any], beside: Conduct):
    expected, run = beside(tiny(**{"workers": 2, **fields})), tiny(**{"workers": 2, **fields, "fleet": "loopback"})
    outcome = beside(run)
    assert outcome.weights.tobytes() == expected.weights.tobytes()
    assert outcome.accuracy[:, [0, 2, 3]].tobytes() == expected.accuracy[:, [0, 2, 3]].tobytes()
    assert len(outcome.pushes) == len(expected.pushes)
    assert judged(run, outcome) == {"verdict": "valid"}


@pytest.mark.parametrize("fields", [*VALID[:1], *(pytest.param(more, marks=pytest.mark.slow) for more in VALID[1:])],
                         ids=str)  # fmt: skip
def test_without_shared_memory_every_history_is_valid(fields: dict[str, Any], beside: Conduct):
    run = tiny(**{"workers": 3, **fields, "fleet": "loopback"})
    assert judged(run, beside(run)) == {"verdict": "valid"}


def test_a_run_of_the_local_fleet_is_named_as_before_there_were_others():
    assert "fleet" not in tiny().plain()
    assert tiny(fleet="local").digest == tiny().digest != tiny(fleet="loopback").digest


@pytest.mark.parametrize(
    ("fields", "words"),
    [({"engine": "virtual", "cluster": LINKS}, "in virtual time no process waits for another"),
     ({"fleet": "loopbak"}, "loopback")],
)  # fmt: skip
def test_what_cannot_be_is_refused_before_a_process_starts(fields: dict[str, Any], words: str):
    with pytest.raises(ConfigError, match=words):
        resolve(tiny(**{"fleet": "loopback", **fields}))
