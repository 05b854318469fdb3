"""What a record tells of who did what when, against records written by hand."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import handmade
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pslab.config.run import Run
from pslab.lab.records import intervals as spans
from pslab.lab.records.record import TABLES, Result
from pslab.lab.records.server_states import pulling, ranges_of
from pslab.lab.runs.run import sweep


def test_spans_are_in_order_with_what_is_part_of_what():
    found = spans.spans(handmade.bsp())
    first = found[(found.worker == 0) & (found.iteration == 0)]
    assert list(first.activity) == ["compute", "select", "select", "push", "apply", "wait", "serve", "pull", "pull"]
    assert list(first.begin_s) == sorted(first.begin_s)


def test_a_release_is_a_wait_that_a_worker_ended():
    assert spans.releases(handmade.bsp()).to_dict("records") == [
        {"worker": 0, "iteration": 0, "begin_s": 2.1, "at_s": 4.2, "by": 1, "by_iteration": 0},
        {"worker": 1, "iteration": 1, "begin_s": 7.1, "at_s": 9.9, "by": 0, "by_iteration": 1}]  # fmt: skip
    assert spans.releases(handmade.asp()).empty
    alone = [row for row in handmade.BSP if row[0] == 0]  # worker 1 died
    result = handmade.record(None, Run(workers=2), alone, handmade.BSP_PUSHES)
    assert spans.releases(result)[["by", "by_iteration"]].to_numpy().tolist() == [[1, -1]]


def test_a_barrier_is_a_step_of_several_pushes():
    assert spans.barriers(handmade.bsp()).to_dict("records") == [
        {"range": 0, "version": 1, "at_s": 4.1, "pushes": 2, "staleness": 0},
        {"range": 0, "version": 2, "at_s": 9.7, "pushes": 2, "staleness": 0}]  # fmt: skip
    result = handmade.asp()
    assert spans.barriers(result).empty
    assert list(spans.steps(result).staleness) == [0, 0, 2]
    found = spans.steps(handmade.two_ranges(handmade.bsp()))
    assert found[["range", "version", "pushes"]].to_numpy().tolist() == [[0, 1, 2], [1, 1, 2], [0, 2, 2], [1, 2, 2]]


def test_inside_cuts_at_the_ends_of_the_window():
    found = spans.inside(handmade.asp().phases, 4.5, 5.05)
    assert list(zip(found.worker, found.phase, found.begin_s, found.end_s, strict=True)) == [
        (0, "push", 4.5, 5.0), (0, "apply", 5.0, 5.05), (1, "apply", 4.5, 4.6), (1, "serve", 4.6, 4.7),
        (1, "pull", 4.7, 5.05)]  # fmt: skip


@pytest.mark.parametrize(("made", "window", "share"), [
    (handmade.bsp, (2.1, 4.1), 0.5), (handmade.bsp, (1.1, 3.1), 0.25), (handmade.bsp, (0.0, 2.0), 0.0),
    (handmade.bsp, (), (2.1 / 10.6 + 2.8 / 10.5) / 2),  # of each worker's own time
    (handmade.asp, (5.6,), 0.0),  # worker 1 has ended
    (handmade.eager, (0.0, 12.5), 0.5 / 12.5),  # a worker that computes does not wait
    (lambda: handmade.record(None, Run(workers=2), [], []), (), 0.0),
])  # fmt: skip
def test_waiting_is_a_share_of_all_workers_time(made: Callable, window: tuple, share: float):
    assert spans.waiting(made(), *window) == pytest.approx(share)


# -- the window ------------------------------------------------------------------------------------


def steady(waits: dict[int, float], count: int = 40) -> object:
    """Worker 1 takes a second for each iteration; worker 0 waits in some of them, for so much of the second."""
    rows = []
    for i in range(count):
        rows += [(1, i, "compute", float(i), i + 1.0, -1),
                 (0, i, "compute", float(i), i + 1.0 - waits.get(i, 0.0), -1)]  # fmt: skip
        rows += [(0, i, "wait", i + 1.0 - waits[i], i + 1.0, 1)] if i in waits else []
    return handmade.record(None, Run(workers=2), rows, [(1, 0, 0, 0, 1, 0, 1.0)])


def test_the_window_is_of_the_middle_waits_as_much_as_the_whole_and_ends_with_the_shortest_run():
    assert spans.window([steady(dict.fromkeys(range(40), 0.5))]) == (pytest.approx(19.0), pytest.approx(25.0))
    result = steady({12: 0.65, **dict.fromkeys(range(30, 36), 0.6)})  # 4.25 s of 80 s, 0.65 s of 12 s
    begin_s, end_s = spans.window([result])
    assert begin_s <= 12 < end_s
    assert end_s - begin_s == pytest.approx(6.0)
    assert spans.window([result], iterations=3)[1] - spans.window([result], iterations=3)[0] == pytest.approx(3.0)
    short, long = steady({}, count=12), steady({}, count=40)
    begin_s, end_s = spans.window([long, short])
    assert 0 <= begin_s < end_s <= 12


# -- rows ------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)), max_size=25), st.booleans())
def test_on_a_row_spans_are_apart_or_nested(drawn: list[tuple[int, int]], nested: bool):
    table = pd.DataFrame(sorted(((b, b + n) for b, n in drawn), key=lambda s: (s[0], -s[1])), columns=["b", "e"])
    rows = spans.rows_of(list(table.b), list(table.e), nested=nested)
    for row in set(rows):
        own = [span for span, at in zip(table.itertuples(index=False), rows, strict=True) if at == row]
        for place, (_, end) in enumerate(own):
            for later_begin, later_end in own[place + 1 :]:
                assert later_begin >= end or (nested and later_end <= end)


@pytest.mark.parametrize(("sync", "speeds", "pushes", "lead"), [
    ("bsp", (1, 3), 200, 0), ("ssp:3", (1, 3), 203, 3), ("asp", (1, 3), 400, 201),
    ("dssp:3,12,literal", (1, 1, 1, 2), 1050, 151),
])  # fmt: skip
def test_leads_and_pushes_in_300_seconds_known_by_hand(
    sync: str, speeds: tuple[int, ...], pushes: int, lead: int, tmp_path: Path
):
    cluster = {"compute_s": 1.0, "slow": dict(enumerate(map(float, speeds)))}
    run = Run(sync=sync, engine="timing", workers=len(speeds), pushes=None, seconds=300.0, cluster=cluster)
    # what starts at the last instant has no end: the lead is seen a second later
    result, later = sweep([run, run.but(seconds=301.0)], results=tmp_path, progress=False)
    assert abs(int(result.manifest["accepted"]) - pushes) <= (1 if sync == "bsp" else 0)  # before the last barrier
    assert spans.lead(later) == lead


def test_common_starts_are_the_barriers_of_elastic_bsp(tmp_path: Path):
    """Workers of 2 and 3 s that look 4 iterations ahead meet every 12 s."""
    run = Run(sync="elastic:4", engine="timing", workers=2, pushes=None, seconds=40.0,
              cluster={"compute_s": 2.0, "slow": {1: 1.5}})  # fmt: skip
    elastic, free = sweep([run, run.but(sync="asp")], results=tmp_path, progress=False)
    at = list(spans.common_starts(elastic).at_s)
    assert at[:2] == pytest.approx([12.0, 24.0])
    starts = elastic.phases.query("phase == 'compute'").begin_s
    assert all((abs(starts - each) < 1e-9).sum() == 2 for each in at)
    assert len(spans.common_starts(free)) <= 1


def test_an_instant_counts_once_and_parts_of_spans_lie_in_computations():
    result = handmade.eager()
    done = spans.activity(result)
    assert (done.begin_s[1:].to_numpy() >= done.end_s[:-1].to_numpy()).all()
    seconds = spans.budget(result).set_index("phase").seconds.to_dict()
    # pushes and pulls within computations cost nothing; of the last wait half a second is left
    assert seconds == pytest.approx({"compute": 11.5, "pull": 0.5, "wait": 0.5, "gap": 0.0})
    found = {phase: list(spans.computed_over(result.phases, phase).round(9)) for phase in ("pull", "push", "wait")}
    assert found == {"pull": [1.8, 3.8], "push": [2.0, 1.5], "wait": [0.0, 0.0, 3.4]}
    assert not len(spans.computed_over(result.phases, "encode"))


# -- the two states of a server ----------------------------------------------------------------------


def rows(result: Result, sync: str = "") -> list[tuple[float, ...]]:
    """The spans in which it pulls; of the same history, of another policy."""
    if sync:
        tables = {name: getattr(result, name) for name in TABLES}
        result = handmade.changed(dataclasses.replace(result, run=result.run.but(sync=sync)), **tables)
    return [tuple(round(value, 6) for value in row) for row in pulling(result).itertuples(index=False)]


def test_each_range_has_a_state_of_its_own_unless_a_policy_decides_on_all_together():
    result = handmade.two_ranges(handmade.bsp())
    assert ranges_of(result) == [0, 1]
    assert rows(result) == [(0, 4.2, 4.4, 2), (0, 9.9, 10.1, 2), (1, 4.45, 4.65, 2), (1, 10.15, 10.35, 2)]
    together = rows(result, "elastic:15")
    assert [row[1:] for row in together if row[0] == 0] == [row[1:] for row in together if row[0] == 1]
    assert (0, 4.2, 4.4, 2) not in together  # range 1 was asked, and answers, after range 0
    for policy in ("mine#0123456789abcdef", "unheard-of"):  # of what only its user has, each range by itself
        assert rows(result, policy) == rows(result)
    single = handmade.bsp()
    at_once = single.phases.assign(
        end_s=single.phases.end_s.where(single.phases.phase != "serve", 4.1),
        begin_s=single.phases.begin_s.where(single.phases.phase != "serve", 4.1),
    )
    # the pull that arrived at 4.1 was answered with the others
    assert rows(handmade.changed(single, phases=at_once)) == [(0, 4.1, 4.1, 4)]
