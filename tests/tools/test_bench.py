"""pslab bench and the page of a GPU: how they measure, at sizes that take no time. No speed is judged here."""

from __future__ import annotations

import json
import math

import pytest

from pslab.__main__ import main
from pslab.config.run import Run
from pslab.policies.planning.zipline import zipline_sweep
from tools import gpu
from tools.bench import command, peers, processes, scale, selection, virtual, zipline
from tools.bench.measure import Row, alternated, interleaved


def test_calls_that_are_compared_take_turns_and_medians_are_kept():
    order: list[str] = []
    seconds = interleaved({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, 0.0)
    assert "".join(order) == "abababab"  # the first two without being measured
    assert set(seconds) == {"a", "b"}
    values = {"a": iter([3.0, 1.0, 2.0]), "b": iter([5.0, 5.0, 9.0])}
    assert alternated({name: lambda it=it: next(it) for name, it in values.items()}, 3) == {"a": 2.0, "b": 5.0}


def test_sections_are_printed_and_written_and_unknown_ones_are_refused(capsys, monkeypatch, tmp_path):
    assert all(callable(command.rows_of(section)) for section in command.SECTIONS)
    assert main(["bench", "round"]) == 2
    assert "did you mean 'rounds'" in capsys.readouterr().err
    monkeypatch.setattr(processes, "rounds", lambda quick: iter([Row("n", 1e-3, 0.5e-3, "x", 1.0, note=str(quick))]))
    assert main(["bench", "rounds", "--quick", "--json", str(tmp_path / "b.json")]) == 0
    title, row = capsys.readouterr().out.splitlines()
    assert title.startswith("rounds: a dense round")
    assert row.split() == ["n", "1", "ms", "2", "x", "x", "bar", "1:", "missed", "True"]
    assert json.loads((tmp_path / "b.json").read_text())["rows"] == [
        {"section": "rounds", "name": "n", "value": 1.0, "unit": "ms", "against": "x", "ratio": 2.0, "bar": 1.0,
         "note": "True", "verdict": "missed"}
    ]  # fmt: skip


def test_the_page_of_a_gpu_says_in_one_line_that_there_is_none(capsys, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert gpu.main() == 1
    assert capsys.readouterr().out == "torch sees no CUDA device here; use device='cpu'\n"


def test_rounds_training_preparation_events_and_messages_are_measured():
    lab = Run(engine="timing", sync="ssp:3", workers=4, batch_size=1, pushes=40, cluster="lab")
    measured = [
        *(processes.round_s(256, 2, sync, 5) for sync in ("bsp", "ssp:0")), processes.preparation_s(),
        processes.training_s(1, workers=4, batch_size=2, sync="bsp"), scale.message_s("bsp", 4, 64, 2),
        scale.server_s("asp", 4, 2, 64), virtual.event_s(lab)]  # fmt: skip
    assert all(0 < each < math.inf for each in measured)


@pytest.mark.slow
def test_every_peer_exchanges_or_trains():
    with peers.peers(2) as seconds:
        for name in (peers.SHARED, peers.GLOO, peers.BARE, *peers.TORCHS, *peers.COMPRESSORS):
            assert 0 < seconds(name, 8, 3) < math.inf, name
        assert seconds(peers.SHARED, 100_000, 3) > 0  # more than one chunk


def test_each_rule_has_a_row():
    for drawn in (selection.gaussian, selection.laplace):
        rows = list(selection.selections(3000, drawn, 0.0))
        assert [row.name.split()[0] for row in rows] == list(selection.THRESHOLDS)
        assert all(drawn.__name__ in row.name and 0 < row.ours / row.reference < math.inf for row in rows)
        assert "sends 1.00%" in rows[1].note
    for prune in ("none", "static:1%"):
        assert selection.iteration(prune)()


def test_instances_of_zipline_are_those_of_the_authors():
    points = zipline.instance((100, 15))
    intervals = [row[1] - row[0] for row in points]
    assert all(1000 <= interval <= 1500 for interval in intervals)
    starts = [row[0] - interval for row, interval in zip(points, intervals, strict=True)]
    assert max(starts) - min(starts) <= 1500
    assert zipline.instance((100, 15)) == points != zipline.instance((100, 15), 1)
    assert 1000 < zipline_sweep(zipline.instance(zipline.LARGEST)).spread < 1500  # about one interval
