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
from pslab.tensors.compression.sparse import Deviation, Static
from tools.bench import command, hooks, peers, processes, scale, selection, zipline
from tools.bench.measure import Row, alternated, interleaved


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
    for section in command.SECTIONS.values():
        module, _, function = section.path.partition(":")
        assert callable(getattr(import_module(f"tools.bench.{module}"), function))
    assert main(["bench", "round"]) == 2
    assert "did you mean 'rounds'" in capsys.readouterr().err
    monkeypatch.setattr(processes, "rounds", lambda quick: iter([Row("n", 1e-3, 0.5e-3, "x", 1.0, note=str(quick))]))
    assert main(["bench", "rounds", "--quick", "--json", str(tmp_path / "b.json")]) == 0
    assert "rounds: a dense round" in capsys.readouterr().out
    assert json.loads((tmp_path / "b.json").read_text())["rows"] == [
        {"section": "rounds", "name": "n", "value": 1.0, "unit": "ms", "against": "x", "ratio": 2.0, "bar": 1.0,
         "note": "True", "verdict": "missed"}
    ]  # fmt: skip


def test_rounds_training_preparation_and_messages_are_measured():
    for measured in (processes.round_s(256, 2, "bsp", 5), processes.round_s(256, 2, "ssp:0", 5),
                     processes.training_s(1, workers=4, batch_size=2, sync="bsp"), processes.preparation_s(),
                     scale.message_s("bsp", 4, 64, 2), scale.server_s("asp", 4, 2, 64)):  # fmt: skip
        assert 0 < measured < math.inf


@pytest.mark.slow
def test_every_hook_trains_beside_all_reduce_and_every_peer_exchanges():
    found = hooks.measured(3, batch_size=4)
    assert len({each.step_bytes for each in found.values()}) == len(found)
    assert all(each.step_bytes <= found["all-reduce"].step_bytes for each in found.values())
    assert all(0 < each.step_s < math.inf and 0 <= each.accuracy <= 1 for each in found.values())
    with peers.peers(2) as others:
        for way in peers.WAYS:
            assert 0 < others.seconds(way, 8, 3) < math.inf
        assert others.seconds("shared", 100_000, 3) > 0  # more than one chunk


@pytest.mark.parametrize("kind", selection.DRAWS)
def test_each_rule_and_each_code_has_a_row(kind: str):
    rows = list(selection.selections(3000, kind, 0.0))
    assert [row.name.split()[0] for row in rows] == list(selection.THRESHOLDS)
    assert all(kind in row.name and 0 < row.ratio < math.inf for row in rows)
    assert "sends 1.00%; torch's operators" in rows[1].note
    assert "torch" not in rows[-1].note
    codes = list(selection.codes(2000, 0.0))[1:]
    assert [row.name.partition(":")[0] for row in codes] == [
        name for name in ROWS["quantize"] if name != "none" for _ in range(2)]  # fmt: skip
    assert codes[0].note.startswith("16.")
    v = selection.DRAWS[kind](5000, torch.Generator().manual_seed(0))
    for rule in (Static(0.01), Deviation(2.0)):
        same = selection.in_torch(rule, len(v))
        assert same is not None
        assert sorted(same(v).flatten().tolist()) == rule.select(v).tolist()


def test_instances_of_zipline_are_those_of_the_authors():
    points = zipline.instance((100, 15))
    assert [len(row) for row in points] == [15] * 100
    intervals = [row[1] - row[0] for row in points]
    assert all(1000 <= interval <= 1500 for interval in intervals)
    starts = [row[0] - interval for row, interval in zip(points, intervals, strict=True)]
    assert max(starts) - min(starts) <= 1500
    assert zipline.instance((100, 15)) == points != zipline.instance((100, 15), 1)
    assert 1000 < zipline_sweep(zipline.instance((1000, 150))).spread < 1500  # about one interval
