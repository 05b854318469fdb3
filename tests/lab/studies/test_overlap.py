"""What an iteration takes beside the models, and how much of its pulls is hidden."""

from __future__ import annotations

from pathlib import Path

import handmade
import pytest
from tiny import digits, net

from pslab.errors import ConfigError
from pslab.lab.records.record import Result
from pslab.lab.runs.run import sweep
from pslab.lab.studies import overlap, studies

SIZE = 4 * 1930 + 24  # bytes of a push, and of a pull
CLUSTER = {"compute_s": 0.01, "bandwidth_bit_s": 8 * SIZE / 0.004, "duplex": "full"}  # C, P, Q = 10, 4, 4 ms


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[Result]:
    runs = studies.overlap_runs(bandwidths=[8 * SIZE / link_s for link_s in (0.004, 0.01, 0.015)], pushes=40,
                                model=net, data=digits, batch_size=16, cluster=CLUSTER)  # fmt: skip
    return sweep(runs, results=tmp_path_factory.mktemp("results"), progress=False)


def test_virtual_time_is_the_models(results: list[Result]):
    found = {}
    for result in results[2:]:
        each = overlap.iteration(result)
        assert each.whole_s == pytest.approx(each.model_s, rel=0.02)
        found[result.run.sync, result.run.cluster["duplex"], round(1e3 * each.push_s)] = round(1e3 * each.model_s, 6)
    assert found == {
        ("asp", "full", 4): 18, ("asp", "full", 10): 30, ("asp", "full", 15): 40,
        ("asp", "half", 4): 18, ("asp", "half", 10): 30, ("asp", "half", 15): 40,
        ("eager", "full", 4): 10, ("eager", "full", 10): 10, ("eager", "full", 15): 15,
        ("eager", "half", 4): 10, ("eager", "half", 10): 20, ("eager", "half", 15): 30,
    }  # fmt: skip


def test_real_processes_beside_their_models(results: list[Result]):
    table = overlap.table(results)
    assert list(table.index) == ["ASP", "eager pull"]
    assert list(table["model (ms)"]) == [pytest.approx(18, abs=1), pytest.approx(10, abs=1)]
    assert table["of a pull inside computation"]["ASP"] == "0.0 %"
    assert float(table["of a pull inside computation"]["eager pull"].split()[0]) > 50


def test_the_hidden_share_of_pulls_by_hand(tmp_path: Path):
    found = overlap.iteration(handmade.eager(tmp_path))
    assert found.hidden == pytest.approx((1.8 + 3.8) / (1.8 + 4.3))
    assert (found.compute_s, found.model_s) == (4.0, 4.0)  # a free link
    assert overlap.iteration(handmade.bsp(tmp_path / "bsp")).hidden == 0


def test_points_lie_on_the_lines(results: list[Result]):
    drawn = overlap.picture(results)
    lines = [trace for trace in drawn.data if trace.mode == "lines"]
    points = [trace for trace in drawn.data if trace.mode == "markers"]
    assert [line.name.split(": ")[1] for line in lines] == [
        "C + P + Q", "C + P + Q", "max(C, P, Q)", "max(C, P + Q)"]  # fmt: skip
    for line, dots in zip(lines, points, strict=True):
        assert list(dots.x) == list(line.x)
        assert list(dots.y) == pytest.approx(list(line.y), rel=0.02)
    assert "ASP" not in drawn.layout.title.subtitle.text  # it holds for all


def test_the_time_line_shows_the_real_ones(results: list[Result]):
    headings = " ".join(annotation.text for annotation in overlap.timeline(results).layout.annotations)
    assert "ASP" in headings
    assert "eager pull" in headings


def test_a_cluster_whose_bandwidth_is_varied_is_a_mapping():
    with pytest.raises(ConfigError, match="must be a mapping"):
        studies.overlap_runs(cluster="lab")
