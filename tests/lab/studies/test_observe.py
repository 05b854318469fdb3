"""Observations: statistics against numbers worked out by hand, the training against a run's, whole records."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny import Diverges, digits, global_states, tiny

from pslab.errors import ConfigError
from pslab.lab.records.disk import Damaged
from pslab.lab.runs.run import run
from pslab.lab.studies import observe as looking
from pslab.lab.studies.observe import (
    FOLDER,
    TABLES,
    Observed,
    concentration,
    histogram,
    observe,
    request,
    selection,
    statistics,
)
from pslab.tensors.compression.sparse import Deviation, Static
from pslab.tensors.device import one_thread
from pslab.tensors.workload.data import Batches, batch

VECTOR = np.array([0.1, -0.2, 0.3, -0.4, 2.0, -3.0, 0.05, 0.0])


RUN = tiny(workers=1, schedule="linear", pushes=12, learning_rate=0.5)
ASKED: dict[str, Any] = {"moments": [0, 11], "every": 5, "rules": ["static:10%", "std:2"], "repeats": 1}


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Observed:
    return observe(RUN, **ASKED, results=tmp_path_factory.mktemp("results"))


# -- numbers ---------------------------------------------------------------------------------------


MEAN = -1.15 / 8
VARIANCE = 13.3025 / 8 - MEAN**2
FOURTH = sum((x - MEAN) ** 4 for x in VECTOR.tolist()) / 8
NAN = pytest.approx(math.nan, nan_ok=True)


@pytest.mark.parametrize(("values", "wanted"), [
    (VECTOR, {"entries": 8, "zeros": 1, "std": pytest.approx(math.sqrt(VARIANCE)),
              "kurtosis": pytest.approx(FOURTH / VARIANCE**2), "tail1": 2 / 8, "tail2": 1 / 8, "tail3": 0.0,
              "top_share": pytest.approx(9 / 13.3025)}),  # one of eight is the top 1 %, rounded up
    ([1.0, -1.0] * 50, {"kurtosis": pytest.approx(1.0)}), (np.zeros(5), {"kurtosis": NAN, "top_share": NAN}),
    (np.random.default_rng(0).standard_normal(400_000),
     {"kurtosis": pytest.approx(3, abs=0.05), "tail1": pytest.approx(0.317, rel=0.05),
      "tail2": pytest.approx(0.0455, rel=0.05), "tail3": pytest.approx(0.0027, rel=0.05),
      "top_share": pytest.approx(0.084, abs=0.001)}),
], ids=["worked out by hand", "two values", "constant", "gaussian"])  # fmt: skip
def test_statistics_of_a_vector(values, wanted: dict[str, object]):
    found = statistics(np.asarray(values))
    assert {name: found[name] for name in wanted} == wanted


def test_histograms_and_concentrations_are_those_worked_out_by_hand():
    rows = histogram(np.array([0.0, 1.0, -1.2, 1.3, 0.05, -120.0]))  # tenths of a decade, without zeros
    assert [(row["log10"], row["count"]) for row in rows] == [(-1.4, 1), (0.0, 2), (0.1, 1), (2.0, 1)]
    found = {row["sent_share"]: row["norm_share"] for row in concentration(np.array([1.0, -2.0, 0.0, 2.0]))}
    assert found == pytest.approx({0.25: 4 / 9, 0.5: 8 / 9, 0.75: 1, 1.0: 1})
    assert concentration(np.zeros(4)) == []


@pytest.mark.parametrize(("rule", "wanted"), [
    (Deviation(1), {"sent": 2, "threshold": 2.0, "norm_share": pytest.approx(13 / 13.3025)}),
    (Static(0.25), {"sent": 2, "threshold": 2.0, "norm_share": pytest.approx(13 / 13.3025)}),
    (Deviation(3), {"sent": 0, "threshold": NAN, "norm_share": 0}),
])  # fmt: skip
def test_selection_counts_what_a_rule_would_send(rule: Any, wanted: dict[str, Any]):
    assert selection(VECTOR, looking.chosen(rule, torch.from_numpy(VECTOR))) == {"entries": 8, **wanted}


# -- training --------------------------------------------------------------------------------------


def test_gradients_that_are_observed_are_those_of_a_run(tmp_path: Path):
    """By plain torch, at the weights of a run that ends just before."""
    wanted = RUN.but(schedule="constant", engine="virtual", cluster={"compute_s": 0.01})
    seen = observe(wanted, **ASKED, results=tmp_path).layers
    data, model = digits(), run(wanted.but(pushes=11), results=tmp_path, progress=False).model()
    rows = torch.from_numpy(Batches(len(data.train_y), 1, 0, wanted.batch_size, wanted.seed).at(11))
    x = batch(data.train_x[rows], torch.float32, data.mean, data.std)
    torch.nn.functional.cross_entropy(model(x), data.train_y[rows]).backward()
    for layer in ("1", "3"):
        gradient = torch.cat([each.grad.flatten() for each in model[int(layer)].parameters()]).numpy()
        (row,) = seen[(seen.iteration == 11) & (seen.layer == layer)].to_dict("records")
        assert {name: row[name] for name in ("std", "kurtosis", "top_share")} == pytest.approx(
            {name: statistics(gradient)[name] for name in ("std", "kurtosis", "top_share")}, rel=1e-4)  # fmt: skip


def test_diverged_training_leaves_no_record_and_threads_and_random_state_as_they_were(tmp_path: Path):
    states = global_states()
    with one_thread():
        torch.set_num_threads(2)
        with pytest.raises(ConfigError, match="diverged"):
            observe(tiny(workers=1, model=Diverges), rules=["std:1"], results=tmp_path)
        assert torch.get_num_threads() == 2
    assert not list(tmp_path.iterdir())
    assert global_states() == states


def test_default_moments_and_period_are_shares_of_the_budget():
    usual = {"moments": None, "every": None, "rules": ["std:1"], "repeats": 1}
    asked = request(RUN.but(pushes=937), **usual)
    assert asked["moments"] == [0, 9, 94, 468, 889]
    assert asked["iterations"] == sorted({*asked["moments"], *range(0, 937, 23)})
    assert request(RUN.but(pushes=1), **usual)["iterations"] == [0]


# -- records ---------------------------------------------------------------------------------------


def test_tables_have_a_row_for_each_observed_iteration_and_layer_and_each_cost(seen: Observed):
    looks, layers = [0, 5, 10, 11], ["1", "3"]
    assert [(row.iteration, row.layer) for row in seen.layers.itertuples()] == [(i, n) for i in looks for n in layers]
    assert len(seen.rules) == len(looks) * len(layers) * 2
    assert sorted(seen.histogram.iteration.unique()) == sorted(seen.concentration.iteration.unique()) == [0, 11]
    counts = seen.histogram.groupby(["iteration", "layer"])["count"].sum().reset_index()
    found = counts.merge(seen.layers, on=["iteration", "layer"])
    assert (found["count"] + found.zeros == found.entries).all()
    static = seen.rules[seen.rules.rule == "static:10%"]
    assert (static.sent == np.ceil(static.entries / 10)).all()
    assert ((seen.rules.norm_share > 0) & (seen.rules.norm_share <= 1)).all()
    on_cpu = seen.costs[seen.costs.device == "cpu"]
    assert on_cpu.groupby("operation").size().to_dict() == dict.fromkeys(
        ["gradient", "deviation", "static:10%", "std:2"], looking.ROUNDS)  # fmt: skip
    assert (on_cpu.seconds > 0).all()


def test_observation_is_measured_once_then_read_and_each_argument_makes_another(seen: Observed, tmp_path: Path):
    results = Path(shutil.copytree(seen.path.parents[1], tmp_path / "results"))
    again = observe(RUN, **ASKED, results=results)
    assert (seen.cached, again.cached) == (False, True)
    assert again.layers.equals(seen.layers)
    assert [path.name for path in (results / FOLDER).iterdir()] == [seen.path.name]
    assert {path.name for path in again.path.iterdir()} == {"manifest.json", *(f"{name}.csv" for name in TABLES)}
    changes: list[dict[str, Any]] = [{"moments": [0]}, {"every": 6}, {"rules": ["std:1"]}, {"repeats": 2}]
    others = [observe(RUN, **ASKED | change, results=results) for change in changes]
    assert len({again.path, *(other.path for other in others)}) == 5
    assert not any(other.cached for other in others)
    (again.path / "rules.csv").write_text("layer\n")
    with pytest.warns(Damaged, match="was changed since"):
        assert Observed.find(again.path.name, results) is None
    assert len(list((results / "damaged").iterdir())) == 1
