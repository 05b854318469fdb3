"""Observations: statistics against numbers worked out by hand, the training against a run's, whole records."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import Diverges, tiny

import pslab
from pslab.errors import ConfigError, RecordError
from pslab.lab.studies import observation_plots as pictures
from pslab.lab.studies import observation_tables as tables
from pslab.lab.studies import observe as looking
from pslab.lab.studies.observation import FILES, Observation, Observed, find_observed, place_of, recorded
from pslab.lab.studies.observe import concentration, histogram, observe, selection, statistics
from pslab.tensors.pruning.rules import Deviation, Static

VECTOR = np.array([0.1, -0.2, 0.3, -0.4, 2.0, -3.0, 0.05, 0.0])


def wanted(**fields: object) -> Observation:
    run = tiny(workers=1, schedule="linear", pushes=12, learning_rate=0.5)
    return Observation(run=run, **{"moments": [0, 11], "every": 5, "rules": ["static:10%", "std:2"], "repeats": 1,
                                   **fields})  # fmt: skip


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Observed:
    return observe(wanted(), results=tmp_path_factory.mktemp("results"))


# -- numbers ---------------------------------------------------------------------------------------


def test_statistics_of_a_vector_worked_out_by_hand():
    found = statistics(VECTOR)
    mean = -1.15 / 8
    variance = 13.3025 / 8 - mean**2
    fourth = sum((x - mean) ** 4 for x in VECTOR.tolist()) / 8
    assert (found["entries"], found["zeros"]) == (8, 1)
    assert found["std"] == pytest.approx(math.sqrt(variance)) == pytest.approx(1.2815, abs=1e-4)
    assert found["kurtosis"] == pytest.approx(fourth / variance**2)
    assert (found["tail1"], found["tail2"], found["tail3"]) == (2 / 8, 1 / 8, 0.0)
    assert found["top_share"] == pytest.approx(9 / 13.3025)  # one of eight is the top 1 %, rounded up


def test_two_values_have_a_kurtosis_of_one_and_a_constant_has_none():
    assert statistics(np.array([1.0, -1.0] * 50))["kurtosis"] == pytest.approx(1.0)
    assert math.isnan(statistics(np.zeros(5))["kurtosis"])
    assert math.isnan(statistics(np.zeros(5))["top_share"])


def test_a_gaussian_has_the_numbers_that_the_table_says():
    drawn = np.random.default_rng(0).standard_normal(400_000)
    found, said = statistics(drawn), tables.GAUSSIAN
    assert found["kurtosis"] == pytest.approx(float(said["kurtosis"]), abs=0.05)
    for k in (1, 2, 3):
        assert 100 * found[f"tail{k}"] == pytest.approx(float(said[f"beyond {k}σ"].split()[0]), rel=0.05)
    assert 100 * found["top_share"] == pytest.approx(float(said["squared norm in the top 1 %"].split()[0]), abs=0.1)


def test_bins_are_tenths_of_a_decade_and_leave_out_zeros():
    rows = histogram(np.array([0.0, 1.0, -1.2, 1.3, 0.05, -120.0]))
    assert rows == [{"log10": -1.4, "count": 1}, {"log10": 0.0, "count": 2}, {"log10": 0.1, "count": 1},
                    {"log10": 2.0, "count": 1}]  # fmt: skip


def test_the_largest_entries_carry_what_they_do():
    rows = {row["sent_share"]: row["norm_share"] for row in concentration(np.array([1.0, -2.0, 0.0, 2.0]))}
    assert rows == pytest.approx({0.25: 4 / 9, 0.5: 8 / 9, 0.75: 1, 1.0: 1})
    assert concentration(np.zeros(4)) == []


def test_what_a_rule_would_send():
    v = torch.from_numpy(VECTOR)
    assert selection(VECTOR, looking.chosen(Deviation(1), v)) == {
        "entries": 8, "sent": 2, "threshold": 2.0, "norm_share": pytest.approx(13 / 13.3025)}  # fmt: skip
    assert selection(VECTOR, looking.chosen(Static(0.25), v))["sent"] == 2
    nothing = selection(VECTOR, looking.chosen(Deviation(3), v))
    assert (nothing["sent"], nothing["norm_share"]) == (0, 0)
    assert math.isnan(nothing["threshold"])


def test_a_rule_may_give_a_mask():
    class Positive:
        def select(self, v: torch.Tensor) -> torch.Tensor:
            return v > 0

    assert looking.chosen(Positive(), torch.tensor([1.0, -1.0, 2.0])).tolist() == [0, 2]


# -- training --------------------------------------------------------------------------------------


def test_it_trains_as_a_run_with_one_worker_does_bit_for_bit(tmp_path: Path):
    run = tiny(workers=1, schedule="linear", pushes=12, learning_rate=0.5)
    training = looking.Training(looking.resolve(run))
    with looking._one_thread(run.seed):
        looking._look(wanted(rules=["std:1"]), training, {"std:1": Deviation(1)})
    assert np.array_equal(training.weights.numpy(), pslab.run(run, results=tmp_path).weights)


def test_threads_and_chance_are_afterwards_as_before(tmp_path: Path):
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    observe(wanted(), results=tmp_path)
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), state)


def test_a_training_that_diverges_says_so_and_leaves_nothing(tmp_path: Path):
    run = tiny(workers=1, model=Diverges)
    with pytest.raises(ConfigError, match="diverged"):
        observe(Observation(run=run, rules=["std:1"]), results=tmp_path)
    assert not list(tmp_path.iterdir())


def test_moments_and_periods_come_from_the_budget():
    plain = Observation(run=tiny(workers=1, pushes=937))
    assert plain.moments == (0, 9, 94, 468, 889)
    assert plain.every == 23
    assert set(plain.moments) <= set(plain.iterations)
    assert plain.iterations[:3] == [0, 9, 23]
    assert Observation(run=tiny(workers=1, pushes=1)).iterations == [0]


def test_several_workers_are_not_observed():
    with pytest.raises(ConfigError, match="one machine"):
        Observation(run=tiny(workers=2))


# -- records ---------------------------------------------------------------------------------------


def test_tables_have_a_row_for_every_look(seen: Observed):
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


def test_costs_have_every_operation_in_every_round(seen: Observed):
    on_cpu = seen.costs[seen.costs.device == "cpu"]
    assert set(on_cpu.operation) == {"gradient", "deviation", "static:10%", "std:2"}
    assert (on_cpu.groupby("operation").size() == looking.ROUNDS).all()
    assert (on_cpu.seconds > 0).all()


def test_a_second_time_it_is_read_from_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    first = observe(wanted(), results=tmp_path)
    monkeypatch.setattr(looking, "Training", None)
    again = observe(wanted(), results=tmp_path)
    assert (first.cached, again.cached) == (False, True)
    assert again.layers.equals(first.layers)
    assert [path.name for path in (tmp_path / "observations").iterdir()] == [wanted().digest]
    assert sorted(path.name for path in again.path.iterdir()) == sorted(FILES)


@pytest.mark.parametrize("change", [{"moments": [0]}, {"every": 6}, {"rules": ["std:1"]}, {"repeats": 2}])
def test_whatever_is_asked_for_names_the_record(change: dict[str, object]):
    assert wanted(**change).digest != wanted().digest


def test_a_record_that_is_not_whole_is_refused(seen: Observed, tmp_path: Path):
    place = place_of(wanted(), tmp_path)
    assert not recorded(wanted(), tmp_path)
    place.mkdir(parents=True)
    with pytest.raises(RecordError, match="not a whole record"):
        find_observed(wanted(), tmp_path)
    for name in FILES:
        (place / name).write_text((seen.path / name).read_text())
    (place / "rules.csv").write_text("\n".join((seen.path / "rules.csv").read_text().splitlines()[:-1]))
    with pytest.raises(RecordError, match="rows"):
        _ = find_observed(wanted(), tmp_path).rules
    (place / "manifest.json").write_text("{")
    with pytest.raises(RecordError, match="cannot be read"):
        find_observed(wanted(), tmp_path)


def test_a_full_disk_leaves_no_draft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(*_: object, **__: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr("pandas.DataFrame.to_csv", full)
    with pytest.raises(RecordError, match="No space left"):
        observe(wanted(), results=tmp_path)
    assert not list((tmp_path / "observations").iterdir())


# -- pictures and tables ---------------------------------------------------------------------------


def test_a_panel_for_each_layer_and_a_colour_for_each_moment(seen: Observed):
    figure = pictures.distribution(seen)
    named = [trace for trace in figure.data if str(trace.name).startswith("iteration")]
    assert [trace.name for trace in named] == ["iteration 0", "iteration 11"] * 2
    assert len({trace.line.color for trace in named}) == 2
    assert len({trace.xaxis for trace in named}) == 2
    # the histogram as drawn holds all entries but the zeros, each in standard deviations of its layer
    own = seen.layers[(seen.layers.iteration == 0) & (seen.layers.layer == seen.layers.layer.iloc[0])].iloc[0]
    assert np.sum(named[0].y) / 10 == pytest.approx(1 - own.zeros / own.entries)
    bins = seen.histogram[(seen.histogram.iteration == 0) & (seen.histogram.layer == own.layer)]
    assert named[0].x == pytest.approx(10 ** (bins["log10"].to_numpy() + 0.05) / own["std"])


def test_the_rules_lie_on_the_curves(seen: Observed):
    figure = pictures.concentration(seen)
    marks = [trace for trace in figure.data if trace.mode == "markers" and trace.name == "static 10\u00a0%"]
    assert len(marks) == 2
    curve = next(trace for trace in figure.data if trace.name == "iteration 0")
    assert np.interp(marks[0].x[0], curve.x, curve.y) == pytest.approx(marks[0].y[0], abs=2)


def test_densities_are_per_cent_of_the_layer(seen: Observed):
    figure = pictures.densities(seen)
    drawn = next(trace for trace in figure.data if trace.name == "static 10\u00a0%")
    first = seen.rules[(seen.rules.rule == "static:10%") & (seen.rules.layer == seen.rules.layer.iloc[0])]
    assert list(drawn.y) == pytest.approx(list(100 * first.sent / first.entries))
    assert list(drawn.x) == [0, 5, 10, 11]


def known(seen: Observed, devices: dict[str, dict[str, list[float]]]) -> Observed:
    """The observation with invented times: device -> operation -> a median for each round."""
    import pandas as pd

    rows = [{"device": device, "operation": name, "round": n, "repeat": 0, "seconds": s}
            for device, own in devices.items() for name, times in own.items() for n, s in enumerate(times)]  # fmt: skip
    found = Observed(seen.observation, seen.path, {**seen.manifest, "devices": dict.fromkeys(devices, "a name")})
    found.__dict__["costs"] = pd.DataFrame(rows)
    return found


CPU = {"gradient": [0.010, 0.020, 0.010], "deviation": [0.002, 0.002, 0.003], "std:2": [0.005, 0.005, 0.005]}
GPU = {"gradient": [0.001] * 3, "deviation": [0.0001] * 3, "std:2": [0.0004] * 3}


def test_costs_are_shares_of_the_gradient_with_the_rounds_spread(seen: Observed):
    table = tables.costs(known(seen, {"cpu": CPU})).set_index("operation")
    assert table.share["deviation"] == pytest.approx(0.2)
    assert (table.share_low["deviation"], table.share_high["deviation"]) == (pytest.approx(0.1), pytest.approx(0.3))
    assert (table.share_low["std:2"], table.share_high["std:2"]) == (pytest.approx(0.25), pytest.approx(0.5))


def test_the_sources_claim_stands_beside_what_was_measured(seen: Observed):
    without, beside = known(seen, {"cpu": CPU}), known(seen, {"cpu": CPU, "cuda": GPU})
    assert "no GPU here" in tables.claimed(without)
    assert "here 20.0 times as fast" in tables.claimed(beside)
    text = tables.findings(beside)
    assert "On the CPU, selection takes 50 % (std 2\u00a0σ) to 50 %" in text
    assert "On the GPU, selection takes 40 % (std 2\u00a0σ)" in text
    bars = [trace for trace in pictures.selection_cost(beside).data if trace.type == "bar"]
    assert [list(bar.y) for bar in bars] == [pytest.approx([20, 50]), pytest.approx([10, 40])]


def test_tables_for_people(seen: Observed):
    table = tables.layer_table(seen)
    assert table.index[0] == "Gaussian"
    assert len(table) == 3
    sent = seen.rules[seen.rules.rule == "static:10%"].groupby("iteration")[["sent", "entries"]].sum().iloc[0]
    whole = tables.rule_table(seen)["sent of the whole model"]["static 10\u00a0%"]
    assert float(whole.split()[0]) == pytest.approx(100 * sent.sent / sent.entries, abs=0.05)


def test_of_many_layers_the_largest_are_drawn(seen: Observed):
    import pandas as pd

    many = Observed(seen.observation, seen.path, seen.manifest)
    many.__dict__["layers"] = pd.DataFrame({"layer": [f"l{n}" for n in range(20)], "entries": range(20)})
    _, places = pictures._panels(many)
    assert list(places) == [f"l{n}" for n in range(12, 20)]
    assert places["l13"] == {"row": 1, "col": 2}


def test_the_manifest_says_on_what(seen: Observed):
    manifest = json.loads((seen.path / "manifest.json").read_text())
    assert manifest["devices"]["cpu"]
    assert manifest["observation"]["rules"] == ["static:10%", "std:2"]
    assert manifest["environment"]["torch"] == torch.__version__
