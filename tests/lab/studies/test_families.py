"""Pruning families beside dense gradients: which runs are asked for, and what one table says of them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from evaluated import Make, maker

from pslab.config.run import Run
from pslab.errors import ConfigError
from pslab.lab.records.record import Result
from pslab.lab.studies import family_plots, family_tables
from pslab.lab.studies.families import family_runs, pruned

TWO = {"prunes": ["static:1%", "dgc:1%,warm_up=0"], "pushes": 8, "eval_every": 2, "model": "mlp:8",
       "data": "mnist:600,200",
       "seeds": [0, 1], "others": ["std:3"], "small": {"model": "mlp:9", "pushes": 16},
       "in_time": ["dynamic:mode=ratchet", "static:1%"]}  # fmt: skip
WAYS = {"none": [0.1, 0.5, 0.8, 0.9, 0.95], "static:1%": [0.1, 0.7, 0.9, 0.93, 0.94]}
OTHERS = [0.1, 0.8, 0.85, 0.89, 0.96]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    return maker(tmp_path)


def results(make: Make) -> list[Result]:
    return [make(run, WAYS.get(str(run.prune), OTHERS)) for run in family_runs(**TWO)]


def test_every_family_on_the_first_network_and_once_for_real():
    runs = family_runs(**TWO)
    told = [(run.prune, run.engine, run.workers, run.model, run.seed) for run in runs]
    first, second = ([(prune, "virtual", 4, "mlp:8", seed) for prune in ("none", *TWO["prunes"])] for seed in (0, 1))
    once, real = [("std:3", "virtual", 4, "mlp:8", 0), ("none", "virtual", 1, "mlp:8", 0)], "local"
    small = [(prune, "virtual", 4, "mlp:9", 0) for prune in TWO["in_time"]]
    assert told == [*first, *once, *second, ("static:1%", real, 4, "mlp:8", 0), *small]
    assert {run.cluster for run in runs if run.workers > 1 and run.engine != real} == {"lab-slow-net"}
    assert [run.cluster for run in runs if run.engine == real] == ["lab"]


def test_momentum_takes_its_share_of_the_learning_rate():
    dense = Run(learning_rate=0.5)
    assert pruned(dense, "static:1%").learning_rate == 0.5
    assert pruned(dense, "dgc:1%").learning_rate == pytest.approx(0.05)
    assert pruned(dense, "dgc:1%,momentum=0.5").learning_rate == 0.25


@pytest.mark.parametrize(("wrong", "field"), [
    ({"clusters": {}}, "clusters"), ({"clusters": "lab"}, "clusters"), ({"small": {}}, "small"),
    ({"prunes": "static:1%"}, "prunes"), ({"seeds": []}, "seeds"), ({"small": {"modell": "mlp"}}, "modell"),
    ({"learning_rates": {}}, "learning_rates"),
])  # fmt: skip
def test_what_cannot_be_is_refused(wrong: dict, field: str):
    with pytest.raises(ConfigError) as refused:
        family_runs(**wrong)
    assert refused.value.field == field


def test_one_table_for_all_networks(make: Make):
    networks = family_tables.on_networks(results(make), small=TWO["small"])
    assert list(networks) == ["100 Mbit/s", "1 Gbit/s", "1 Gbit/s, real processes"]
    table = family_tables.table(networks, 0.9)
    rows = table.to_dict("index")
    slow, fast = "static 1\u00a0%, η\u00a0=\u00a00.7, 100 Mbit/s", "static 1\u00a0%, η\u00a0=\u00a00.7, 1 Gbit/s"
    dense = "dense, η\u00a0=\u00a00.7, 100 Mbit/s"
    assert (rows[dense]["seconds"], rows[slow]["seconds"]) == (3.0, 2.0)
    assert (rows[dense]["sooner"], rows[slow]["sooner"]) == (1.0, 1.5)
    assert (rows[slow]["bytes_up"], rows[slow]["bytes_down"], rows[slow]["bytes"]) == (40, 20, 60)
    assert rows[slow]["seeds"] == rows[fast]["seeds"] == 2
    assert rows[fast]["seconds"] < 1  # four pushes of ten bytes
    assert rows[fast]["sooner"] > 1
    real = next(label for label in rows if label.endswith("real processes"))
    assert math.isnan(rows[real]["sooner"])  # dense did not run there
    shown = family_tables.readable(table)
    assert shown.loc[slow, "sooner than dense"] == "1.5 times"
    assert shown.loc[real, "sooner than dense"] == "–"
    words = family_tables.findings(table)
    assert "static 1\u00a0%, η\u00a0=\u00a00.7, 100 Mbit/s: 90 % after 2.0 s, 1.5 times sooner than dense" in words
    assert "1.00 points below dense" in words
    assert len(words.splitlines()) == 2


def test_pictures(make: Make):
    found = results(make)
    until = family_plots.until(family_tables.on_networks(found, small=TWO["small"]), 0.9)
    assert "until 90" in until.layout.title.text
    chosen = family_tables.in_time(found, TWO["in_time"], TWO["small"])
    assert [result.run.prune for result in chosen] == TWO["in_time"]
    picture = family_plots.in_time(chosen, "Densities")
    density = picture.data[0]
    assert list(density.x) == [1, 2, 3, 4]
    assert list(density.y) == [100] * 4
