"""Virtual against wall-clock time: twins on a measured cluster, their table and their pictures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tiny import tiny

from pslab.config.cluster import resolve_cluster
from pslab.errors import ConfigError
from pslab.lab.records.record import Result
from pslab.lab.runs import calibrate
from pslab.lab.runs.run import sweep
from pslab.lab.studies import agreement

Pair = tuple[list[Result], list[Result]]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """BSP and ASP with a worker that is three times slower, on processes and in virtual time."""
    results = tmp_path_factory.mktemp("results")
    cluster = {"compute_s": 0.004, "slow": {0: 3.0}}
    runs = [tiny(sync=sync, cluster=cluster, prune="static:10%", pull="changed") for sync in ("bsp", "asp")]
    real = sweep(runs, results=results, progress=False)
    return real, sweep(agreement.predicted(real), results=results, progress=False)


def test_twins_differ_in_engine_and_costs_alone(pair: Pair):
    real, virtual = pair
    for one, other in zip(real, virtual, strict=True):
        assert other.run.engine == "virtual"
        assert other.run.but(engine="local", cluster=one.run.cluster).digest == one.run.digest
        assert other.run.cluster == calibrate.calibrated(real[1])  # under ASP nobody waits
    assert resolve_cluster(virtual[0].run.cluster).select_s > 0


def test_the_table_says_how_far_they_agree(pair: Pair):
    table = agreement.compare(*pair)
    assert list(table.index) == ["BSP", "ASP"]
    assert table.equal["BSP"]  # the same gradients in the same order
    assert table["waiting virtual"]["BSP"] > 0.3
    assert table["waiting virtual"]["ASP"] == 0
    assert table["ms virtual"]["BSP"] > 12  # the slow worker's computation alone
    for name in ("BSP", "ASP"):
        row = table.loc[name]
        assert row.difference == pytest.approx(row["ms virtual"] / row["ms measured"] - 1)
        spent = agreement.per_iteration(pair[1][list(table.index).index(name)])
        assert sum(spent.values()) == pytest.approx(row["ms virtual"] / 1e3, rel=0.15)  # the last round ends early
    assert "equal to the bit" in str(agreement.readable(table).loc["BSP", "weights"])
    assert "ms an iteration measured" in agreement.findings(*pair)


def test_the_pictures_show_both(pair: Pair):
    drawn = agreement.accuracy(*pair)
    assert [trace.line.dash for trace in drawn.data[:4]] == ["solid", "6px,3px"] * 2
    assert list(drawn.data[1].x) == [0.0, *pair[1][0].accuracy.seconds[1:]]
    bars = agreement.time(*pair)
    wait = next(trace for trace in bars.data if trace.name.startswith("wait"))
    assert list(wait.x[1]) == ["measured", "virtual"] * 2
    assert wait.y[1] == pytest.approx(1e3 * agreement.per_iteration(pair[1][0])["wait"])


def test_a_virtual_run_has_measured_nothing(pair: Pair):
    with pytest.raises(ConfigError, match="engine local"):
        calibrate.calibrated(pair[1][0])


def test_a_recorded_trace_is_a_cluster_of_its_own(pair: Pair, tmp_path: Path):
    times = calibrate.trace(pair[0][1])
    assert set(times) == {0, 1, 2, 3}
    assert np.mean(times[0]) > 2 * np.mean(times[1])
    (again,) = sweep([tiny(engine="virtual", sync="asp", cluster={"trace": times})], results=tmp_path, progress=False)
    computing = again.phases[(again.phases.phase == "compute") & (again.phases.worker == 1)].sort_values("iteration")
    spent = (computing.end_s - computing.begin_s).to_numpy()
    assert np.allclose(spent[: len(times[1])], times[1][: len(spent)])
