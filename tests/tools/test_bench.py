"""pslab bench: how it measures, and its sections at sizes that take no time. No speed is judged here."""

from __future__ import annotations

import json
import math
import re
from importlib import import_module

import pytest
import torch

from pslab.__main__ import main
from pslab.config.table import ROWS
from pslab.policies.planning.zipline import zipline_sweep
from pslab.tensors.compression.sparse import Deviation, Dynamic, Static
from tools.bench import command, hooks, peers, processes, ray_example, scale, selection, zipline
from tools.bench.measure import Row, alternated, interleaved

# --- measuring and printing -------------------------------------------------------------------------------------------


def test_calls_that_are_compared_take_turns_and_medians_are_kept():
    order: list[str] = []
    seconds = interleaved({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, 0.0)
    assert "".join(order) == "abababab"  # the first two without being measured
    assert set(seconds) == {"a", "b"}
    values = {"a": iter([3.0, 1.0, 2.0]), "b": iter([5.0, 5.0, 9.0])}
    assert alternated({name: lambda it=it: next(it) for name, it in values.items()}, 3) == {"a": 2.0, "b": 5.0}


def test_rows_are_shown_in_aligned_columns_with_the_verdict_on_their_bars():
    rows = [Row("short", 1.5e-3, 0.75e-3, "a copy", 2.0), Row("a longer name", 12.25e-6, 24.5e-6, "gloo", unit="us"),
            Row("memory", 2.1 * 2**30, 2**30, "the model", 2.0, "GiB", "a note")]  # fmt: skip
    shown = [command.line(row) for row in rows]
    columns = [["short", "1.5 ms", "2 x a copy", "bar 2: reached"], ["a longer name", "12.25 us", "0.5 x gloo"],
               ["memory", "2.1 GiB", "2.1 x the model", "bar 2: missed", "a note"]]  # fmt: skip
    assert [re.split("  +", each.strip()) for each in shown] == columns
    assert len({each.index(column[2]) for each, column in zip(shown, columns, strict=True)}) == 1
    assert len({each.index(column[1]) + len(column[1]) for each, column in zip(shown, columns, strict=True)}) == 1


def test_sections_are_printed_and_written_and_unknown_ones_are_refused(capsys, monkeypatch, tmp_path):
    assert main(["bench", "round"]) == 2
    assert "did you mean 'rounds'" in capsys.readouterr().err
    monkeypatch.setattr(processes, "rounds", lambda quick: iter([Row("n", 1e-3, 0.5e-3, "x", 1.0, note=str(quick))]))
    assert main(["bench", "rounds", "--quick", "--json", str(tmp_path / "b.json")]) == 0
    assert "rounds: a dense round" in capsys.readouterr().out
    assert json.loads((tmp_path / "b.json").read_text())["rows"] == [
        {"section": "rounds", "name": "n", "value": 1.0, "unit": "ms", "against": "x", "ratio": 2.0, "bar": 1.0,
         "note": "True", "verdict": "missed"}
    ]  # fmt: skip


# --- real processes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sync", ["bsp", "ssp:0"])
def test_a_round_is_measured(sync: str):
    assert 0 < processes.round_s(256, 2, sync, 5) < math.inf


def test_training_and_preparation_are_measured():
    assert processes.training_s(1, workers=4, batch_size=2, sync="bsp") > 0
    assert processes.preparation_s() > 0


@pytest.mark.slow
def test_every_hook_trains_beside_all_reduce_and_sends_fewer_bytes():
    found = hooks.measured(3, batch_size=4)
    assert len({each.step_bytes for each in found.values()}) == len(found)
    assert all(each.step_bytes <= found["all-reduce"].step_bytes for each in found.values())
    assert all(0 < each.step_s < math.inf and 0 <= each.accuracy <= 1 for each in found.values())


@pytest.mark.slow
def test_every_gradient_of_rays_example_is_applied_once():
    ray, before = ray_example.load_ray(), ray_example.build_model("mlp", 0).state_dict()
    ray.init(address="local", include_dashboard=False, num_cpus=4)
    example = ray_example.Example(2, "mlp")
    assert 0 < example.asynchronous(10) < math.inf
    assert 0 < example.synchronous(5) < math.inf
    after = ray.get(example.server.get_weights.remote())
    steps = {name: (before[name] - after[name]).mean().item() / ray_example.RATE for name in before}
    example.close()
    ray.shutdown()
    assert steps == pytest.approx(dict.fromkeys(before, 2 * 10 + 2 * 5), rel=0.01)


@pytest.mark.slow
def test_every_peer_exchanges():
    with peers.peers(2) as others:
        for way in peers.WAYS:
            assert 0 < others.seconds(way, 8, 3) < math.inf
        assert others.seconds("copies", 100_000, 3) > 0  # more than one chunk


@pytest.mark.parametrize("name", command.SECTIONS)
def test_every_section_has_a_function(name: str):
    module, _, function = command.SECTIONS[name].path.partition(":")
    assert callable(getattr(import_module(f"tools.bench.{module}"), function))


# --- the server that decides ------------------------------------------------------------------------------------------


def test_a_server_that_decides_too_slowly_is_the_limit_that_arithmetic_says():
    busy, free = (scale.simulated("asp", 8, 4, message_s, 12) for message_s in (0.01, 0.0))
    by_part = scale.limits(8, 4, 0.01, 0.1)
    assert min(by_part, key=by_part.__getitem__) == "the server that decides"
    assert busy.pushes_s == pytest.approx(by_part["the server that decides"], rel=0.06)
    assert busy.busy == pytest.approx(1, rel=0.06)
    assert free.pushes_s == pytest.approx(by_part["the workers"], rel=0.2)
    assert free.computing > 0.9 > 0.4 > busy.computing > 0.25  # 80 iterations a second of 0.1 s would be all


def test_limits_are_those_of_each_part():
    """A push of 932,362 float32 and 24 bytes over 25 Gbit/s, 0.7 ms of work on it, and a message of 0.3 ms."""
    found = scale.limits(4, 1, 0.3e-3, 0.2)
    assert found == pytest.approx({"the workers": 20, "the servers' links": 25e9 / 8 / (4 * 932_362 + 24),
                                   "the work on the weights": 1 / 0.7e-3, "the server that decides": 1000})  # fmt: skip
    many = scale.limits(4, 64, 0.3e-3, 0.2)
    assert many["the server that decides"] == pytest.approx(1 / (64 * 0.3e-3 + 0.7e-3 / 64))
    assert many["the servers' links"] == pytest.approx(64 * found["the servers' links"], rel=2e-3)


# --- pruning ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", selection.DRAWS)
def test_each_rule_has_a_row(kind: str):
    rows = list(selection.selections(3000, kind, 0.0))
    assert [row.name.split()[0] for row in rows] == list(selection.THRESHOLDS)
    assert all(kind in row.name and 0 < row.ratio < math.inf for row in rows)
    assert "sends 1.00%; torch's operators" in rows[1].note
    assert "torch" not in rows[-1].note


def test_the_code_of_every_rule_is_measured_both_ways():
    rows = list(selection.codes(2000, 0.0))
    rules = [row.name.partition(":")[0] for row in rows[1:]]
    assert rules == [name for name in ROWS["quantize"] if name != "none" for _ in range(2)]
    assert all(0 < row.ours < math.inf for row in rows)
    assert rows[1].note.startswith("16.")


def test_operators_of_torch_select_the_same():
    v = selection.DRAWS["laplace"](5000, torch.Generator().manual_seed(0))
    for rule in (Static(0.01), Deviation(2.0)):
        same = selection.in_torch(rule, len(v))
        assert same is not None
        assert sorted(same(v).flatten().tolist()) == rule.select(v).tolist()
    assert selection.in_torch(Dynamic(), 9) is None


# --- ZipLine ----------------------------------------------------------------------------------------------------------


def test_power_fits_an_exponent():
    assert zipline.power([10, 100, 1000], [3e-5, 3e-3, 3e-1]) == pytest.approx(2)
    assert zipline.power([1, 2, 4], [1, 2, 8]) == pytest.approx(1.5)


def test_instances_are_those_of_the_authors():
    points = zipline.instance((100, 15))
    assert [len(row) for row in points] == [15] * 100
    intervals = [row[1] - row[0] for row in points]
    assert all(1000 <= interval <= 1500 for interval in intervals)
    assert all(row[14] - row[0] == 14 * interval for row, interval in zip(points, intervals, strict=True))
    starts = [row[0] - interval for row, interval in zip(points, intervals, strict=True)]
    assert max(starts) - min(starts) <= 1500
    assert zipline.instance((100, 15)) == points != zipline.instance((100, 15), 1)
    assert 1000 < zipline_sweep(zipline.instance((1000, 150))).spread < 1500  # about one interval
