"""The frame of the benchmarks, and sections at sizes that take no time. No speed is judged here."""

from __future__ import annotations

import itertools
import json
import math
import sys

import pytest
import torch

from pslab.__main__ import main
from pslab.tensors.device import one_thread
from tools.bench import command, peers, ray_example
from tools.bench.flat import exchange
from tools.bench.measure import Row, alternated, interleaved
from tools.bench.sections import mnist, rounds, startup, training


def test_interleaved_calls_take_turns():
    order: list[str] = []
    seconds = interleaved({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, 0.0)
    assert order[:6] == ["a", "b", "a", "b", "a", "b"]
    assert set(seconds) == {"a", "b"}


def test_alternated_gives_medians_of_what_calls_measure():
    values = {"a": iter([3.0, 1.0, 2.0]), "b": iter([5.0, 5.0, 9.0])}
    assert alternated({name: lambda it=it: next(it) for name, it in values.items()}, 3) == {"a": 2.0, "b": 5.0}


def test_a_bar_is_the_largest_ratio_that_reaches_it():
    reached, missed, free = (Row("s", "n", 1.0, "ms", "x", ratio, bar) for ratio, bar in [(2, 2), (2.1, 2), (9, None)])
    assert (reached.verdict, missed.verdict, free.verdict) == ("reached", "missed", "")


def test_the_table_is_aligned_and_shows_the_bar():
    rows = [Row("s", "short", 1.5, "ms", "a copy", 2.0, 3.0), Row("s", "a longer name", 12.25, "us", "gloo", 0.5)]
    first, second = command.table(rows).splitlines()
    assert first.index("2 x a copy") == second.index("0.5 x gloo")
    assert "bar 3: reached" in first


def test_sections_have_rows_and_unknown_ones_are_refused(capsys, monkeypatch, tmp_path):
    assert main(["bench", "round"]) == 2
    assert "did you mean 'rounds'" in capsys.readouterr().err
    monkeypatch.setattr(rounds, "rows", lambda quick: [Row("s", "n", 1.0, "ms", "x", 2.0, 1.0)])
    assert main(["bench", "rounds", "--json", str(tmp_path / "b.json")]) == 0
    (row,) = json.loads((tmp_path / "b.json").read_text())["rows"]
    assert row["verdict"] == "missed"


@pytest.mark.parametrize("sync", ["bsp", "ssp:0"])
def test_a_round_of_the_local_engine_is_measured(sync):
    assert 0 < rounds.pslab_round(256, 2, sync, 5) < math.inf


def test_a_round_without_shared_memory_is_measured(small_pool):
    assert 0 < rounds.pslab_round(256, 1, "ssp:0", 5, "loopback") < math.inf


@pytest.mark.slow
def test_every_gradient_of_rays_example_is_applied_once():
    pytest.importorskip("ray")
    ray, before = ray_example.load_ray(), ray_example.build_model("mlp", 0).state_dict()
    ray.init(address="local", include_dashboard=False, num_cpus=4)
    example = ray_example.Example(2, "mlp")
    assert 0 < example.asynchronous(10) < math.inf
    assert 0 < example.synchronous(5) < math.inf
    after = ray.get(example._server.get_weights.remote())
    steps = {name: (before[name] - after[name]).mean().item() / ray_example.RATE for name in before}
    example.close()
    ray.shutdown()
    assert steps == pytest.approx(dict.fromkeys(before, 2 * 10 + 2 * 5), rel=0.01)


def test_without_ray_its_example_is_left_out_and_said_so(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setattr(rounds, "FLEET_ROUNDS", {})
    assert rounds.over_fleets(quick=True) == []
    assert "pip install 'pslab[ray]'" in capsys.readouterr().out


def test_ranges_partition_a_flat_model():
    experiment = exchange(1000, 3, workers=2, pushes=4)
    slices = [s for part in experiment.parts for s in part.slices]
    assert slices[0].start == 0
    assert slices[-1].stop == experiment.keyspace.size == 1024
    assert all(a.stop == b.start for a, b in itertools.pairwise(slices))


@pytest.mark.slow
def test_every_peer_exchanges():
    with peers.peers(2) as others:
        for way in peers.WAYS:
            assert 0 < others.seconds(way, 8, 3) < math.inf
        assert others.seconds("copies", 100_000, 3) > 0  # more than one chunk


def test_training_rounds_and_preparation_are_measured():
    assert training.training_round(4, rounds=1, sync="bsp") > 0
    assert startup._preparation() > 0


def test_the_target_is_reached_where_the_curve_first_exceeds_it():
    assert mnist.to_target([(1.0, 0.5), (2.0, 0.981), (3.0, 0.97), (4.0, 0.99)]) == 2.0
    assert mnist.to_target([(1.0, 0.5)]) is None


def test_one_thread_is_restored() -> None:
    before = torch.get_num_threads()
    with one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("name", command.SECTIONS)
def test_every_section_has_rows(name):
    assert callable(command.rows_of(name))
