"""The study of range push: what is run, what is read from it beside the model, and what is drawn."""

from __future__ import annotations

import pytest
from tiny import digits, net

from pslab.config.run import Run
from pslab.errors import ConfigError
from pslab.lab.records.record import Result
from pslab.lab.runs.run import sweep
from pslab.lab.studies import notebook, ranging, ranging_plots, ranging_tables

KEY = 4 * 1930 / 42  # bytes of a mean key of the tiny net
CLUSTER = {"compute_s": 0.02, "bandwidth_bit_s": 8 * KEY / 0.001, "latency_s": 0.001}  # T(r) = 2 ms + 1 ms r, r* = 18
TINY = {
    "sizes": [6, 14, 42], "cluster": CLUSTER, "model": net, "workers": 2, "batch_size": 16, "halves_s": 2.0,
    "trained": net, "trained_sizes": [7, 14], "trained_cluster": CLUSTER, "learning_rate": 0.2, "pushes": 40,
    "longer": {"pushes": 60}, "longer_size": 14, "data": digits, "seeds": [0, 1],
}  # fmt: skip


def runs() -> list[Run]:
    return ranging.range_runs(**TINY)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[Result]:
    return sweep(runs(), results=tmp_path_factory.mktemp("results"), progress=False)


def test_what_is_run():
    found = [(r.engine, str(r.prune)) for r in runs()]
    timed = [("timing", f"range:{size}") for size in (6, 14, 42, "fit", "fit")]
    short = [("virtual", prune) for prune in ("none", "range:7", "range:14", "range:fit", "range:14,residual=off")]
    long = [("virtual", "range:14")]
    assert found == [("timing", "none"), *timed, *2 * [*short, *long], ("virtual", "none"), ("local", "range:14")]
    assert all((r.pull == "range") == (r.prune != "none") for r in runs())
    assert {r.schedule for r in runs() if r.engine == "virtual" and r.pushes == 60} == {"linear"}


@pytest.mark.parametrize(
    ("changed", "words"),
    [({"sizes": []}, "must be a list"), ({"cluster": "lab"}, "must be a mapping"), ({"halves_s": 0}, "halves"),
     ({"longer": {"pushs": 3}}, "did you mean 'pushes'"), ({"seeds": 1}, "must be a list")],
)  # fmt: skip
def test_what_is_refused(changed: dict[str, object], words: str):
    with pytest.raises(ConfigError, match=words):
        ranging.range_runs(**{**TINY, **changed})  # type: ignore[arg-type]


def test_sizes_and_what_is_kept():
    run = Run(prune="range:7,residual=off", pull="range")
    assert (ranging.size_of(run), ranging.keeps(run)) == (7, False)
    assert (ranging.size_of(Run()), ranging.keeps(Run())) == (float("inf"), True)
    assert ranging.size_of(Run(prune="range:fit", pull="range")) is None


def test_time_is_the_models(results: list[Result]):
    chosen = ranging.timed(results)
    line, compute_s, keys = ranging.model(chosen)
    assert (line.alpha_s, line.beta_s) == (pytest.approx(0.002), pytest.approx(0.001))
    assert (compute_s, keys, ranging.crossing(chosen)) == (0.02, 42, 18)
    table = ranging.exchanges(chosen).set_index(["kind", "keys"])
    small, whole = table.loc[("range", 6)], table.loc[("everything", 42)]
    assert small.whole_s == pytest.approx(0.02)
    assert (small.idle_s, whole.unused_s) == (pytest.approx(0, abs=1e-9), pytest.approx(0, abs=1e-3))
    assert small.unused_s == pytest.approx(0.02 - 0.002 - 0.006, abs=1e-3)  # a request and headers take a little
    assert whole.whole_s == pytest.approx(whole.model_s, rel=0.02)
    assert whole.idle_s == pytest.approx(0.024, abs=1e-3)
    assert table.loc[("range", 42)].whole_s == pytest.approx(whole.whole_s, rel=0.01)


def test_what_is_fitted_is_read_from_the_record(results: list[Result]):
    (changed,) = ranging.changing(results)
    before, after = ranging.levels(changed)
    assert (before[0], after[0]) == (18, 9)
    assert before[1] == pytest.approx(18, abs=4)
    assert after[1] == pytest.approx(9, abs=3)
    own = ranging.sweeps(changed)
    assert set(own.worker) == {0, 1}
    assert own["keys"].iloc[0] == 42
    assert (own.groupby("worker").begin_s.diff().dropna() > 0).all()
    with pytest.raises(ConfigError, match="range:fit"):
        ranging.keys_of([r for r in results if not r.manifest.get("sweeps")])


def test_what_is_learned_at_the_same_time(results: list[Result]):
    table = ranging_tables.learned(ranging.trained(results))
    assert len(table) == 2 * 5
    for _, own in table.groupby("seed"):
        fastest = own.loc[own.seconds.idxmin()]
        assert fastest.in_time == pytest.approx(fastest.accuracy)
        assert (own.until_s == fastest.seconds).all()
    assert (~table.kept).sum() == 2


def test_all_is_drawn_and_said(results: list[Result]):
    drawn = {"size": ranging_plots.sizes(results), "learned": ranging_plots.learned(results),
             "fit": ranging_plots.fits(results), "bytes": ranging_plots.by_bytes(results),
             "accuracy": ranging_plots.goal(results)}  # fmt: skip
    assert set(drawn) == set(notebook.PICTURES["60_ranges"])
    points = [trace for trace in drawn["size"].data if trace.mode == "markers" and len(trace.x) > 1]
    assert len(points) >= 3
    assert [trace.name for trace in drawn["fit"].data] == ["r*, by the cluster", "worker 0", "worker 1"]
    assert list(drawn["fit"].data[0].y) == [18, 9, 9]
    said = ranging_tables.findings(results)
    assert "r* is 18 keys" in said
    assert "with ranges: at the end" in said
    rows = ranging_tables.table(results)
    assert [name.rstrip("*") for name in rows.index] == [
        "range", "range", "fitted", "everything", "range", "real processes"]  # fmt: skip
    assert float(rows["by the model"].iloc[-1]) == 40.0
