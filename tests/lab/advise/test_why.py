"""The difference between two policies at a goal, in pieces and in words."""

from __future__ import annotations

from functools import partial
from itertools import combinations
from typing import Any

import handmade
import numpy as np
import pandas as pd
import pytest
from refusals import check_refused
from tiny import tiny

from pslab.config.run import Run
from pslab.lab.advise.why import ITERATIONS, PIECES, why
from pslab.lab.records.merit import MERITS
from pslab.lab.records.record import Result
from pslab.lab.records.summary import held, measured
from pslab.lab.runs.grid import grid
from pslab.lab.runs.run import sweep

BASE = Run(pushes=8, workers=2, engine="virtual", cluster="lab")
GOAL = 0.9
LEARNS, NEVER = [0.1, 0.5, 0.8, 0.9, 0.95], [0.1, 0.2, 0.3, 0.3, 0.4]
POLICIES = ["bsp", "asp", "local:2"]


def curve(accuracy: list[float], until_s: float = 4.0, **fields: Any) -> Result:
    """A run whose five evaluations are evenly spaced in time."""
    return handmade.curve(None, BASE.but(**fields), accuracy, np.linspace(0.0, until_s, len(accuracy)).tolist())


def spent(run: Run, pulling_s: float, waiting_s: float, pushes: int, gap_s: float = 0.0, by: Any = (1,)) -> Result:
    """Iterations of one worker: a second of computing, then a pull, then equal waits for workers `by`, and a gap; one
    evaluation each, and the goal is held at the last but one."""
    pulled, each_s = 1.0 + pulling_s, waiting_s / len(by)
    whole = pulled + waiting_s + gap_s
    phases = (
        ("compute", 0.0, 1.0, -1),
        ("pull", 1.0, pulled, -1),
        *(("wait", pulled + n * each_s, pulled + (n + 1) * each_s, worker) for n, worker in enumerate(by)),
    )
    rows = [(0, n, phase, n * whole + begin, n * whole + end, by) for n in range(pushes + 1)
            for phase, begin, end, by in phases]  # fmt: skip
    applied = [(n + 1, 0, n, 0, n + 1, n % 2, (n + 1) * whole) for n in range(pushes + 1)]
    made = handmade.record(None, run.but(workers=1), rows, applied)
    accuracy = [0.1] * pushes + [0.9, 0.95]
    table = pd.DataFrame({"pushes": range(pushes + 2), "iteration": range(pushes + 2), "accuracy": accuracy,
                          "seconds": [n * whole for n in range(pushes + 2)], "loss": 1.0})  # fmt: skip
    return handmade.changed(made, accuracy=table)


def test_each_piece_is_the_difference_of_an_iteration_times_the_default_iterations():
    table = why([spent(BASE, pulling_s=3.0, waiting_s=2.0, pushes=4)], [spent(BASE, 0.5, 0.0, pushes=5)], GOAL)
    seconds = {(row.piece, row.waits_for): row.difference for row in table.itertuples() if abs(row.difference) > 1e-9}
    assert seconds == pytest.approx({("pull", -1): -10.0, ("wait", 1): -8.0, (ITERATIONS, -1): 1.5})
    assert table.attrs["default_need"] == pytest.approx(24.0)
    assert table.attrs["winner_need"] == pytest.approx(7.5)
    assert [*table] == ["piece", "waits_for", "words", "default", "winner", "difference"]
    (waiting,) = table[table.piece == "wait"].itertuples()
    assert (waiting.default, waiting.winner) == pytest.approx((8.0, 0.0))
    coded = why([spent(BASE, 3.0, 2.0, 4)], [spent(BASE.but(quantize="int8"), 0.5, 0.0, 5)], GOAL).attrs
    assert (coded["default"], coded["winner"]) == ("BSP, dense, not quantized", "BSP, dense, int8")


def test_pieces_of_real_runs_sum_to_the_difference(tmp_path):
    slow = {"preset": "lab", "bandwidth_bit_s": 2e7, "slow": {0: 3.0}}
    runs = grid(tiny(engine="virtual", cluster=slow, pushes=48, eval_every=6), sync=POLICIES, seed=[0, 1])
    found = sweep(runs, results=tmp_path, progress=False)
    goal = min(result.accuracy.accuracy.rolling(3).median().max() for result in found.result)
    for one, other in combinations(POLICIES, 2):
        pair = found[found.sync == one], found[found.sync == other]
        table = why(*pair, goal)
        default_s, winner_s = (np.mean([held(result, goal)[0] for result in own.result]) for own in pair)
        assert table.difference.sum() == pytest.approx(winner_s - default_s, abs=1e-9)
        assert {*table.piece} <= {*PIECES}
        assert (table[table.piece == "rest"].default >= -1e-9).all()
    table = why(found[found.sync == "bsp"], found[found.sync == "asp"], goal)
    largest = table.loc[table.difference.idxmin()]
    assert largest.words == "waiting for worker 0"


def test_what_no_phase_covers_is_the_rest_and_only_common_seeds_count():
    table = why([spent(BASE, 3.0, 2.0, 4, gap_s=0.5)], [spent(BASE, 3.0, 2.0, 4)], GOAL)
    seconds = dict(zip(table.piece, table.difference, strict=True))
    assert seconds["rest"] == pytest.approx(-2.0)
    assert sum(map(abs, seconds.values())) == pytest.approx(2.0)
    default = [spent(BASE, 3.0, 2.0, 4), spent(BASE.but(seed=1), 30.0, 20.0, 4)]
    table = why(default, [spent(BASE, 0.5, 0.0, 5)], GOAL)
    assert table.attrs["seeds"] == 1
    assert table.difference.sum() == pytest.approx(7.5 - 24.0)


def test_what_cannot_be_explained_is_refused():
    winners = [
        ("winner", [], "shares no seed with the default"),
        ("winner", [curve(LEARNS, seed=3)], r"shares no seed with the default, which has \[0\]"),
        ("goal", [curve(NEVER, sync="asp")], "ASP, dense does not hold the goal with seed 0"),
        ("goal", [curve([0.95] * 5, sync="asp")], "before its first push"),
    ]
    check_refused([(field, partial(why, [curve(LEARNS)], winner, GOAL), words) for field, winner, words in winners])
    check_refused([("goal", partial(why, [curve(LEARNS)], [curve(NEVER, sync="asp")], 90), "90 % is 0.9")])


def frugal(step: float, up: int, down: int, **fields: Any) -> Result:
    """A run that holds the goal, with so many bytes each way a push."""
    result = curve(LEARNS, step, **fields)
    return handmade.changed(result, pushes=result.pushes.assign(bytes_up=up, bytes_down=down))


def test_of_bytes_the_pieces_are_what_is_pushed_and_pulled_and_sum_to_the_difference():
    default, winner = frugal(4.0, 100, 30), frugal(40.0, 10, 20, sync="asp", pushes=16)
    table = why([default], [winner], GOAL, MERITS["bytes"])
    differences = dict(zip(table.piece, table.difference, strict=True))
    assert differences == pytest.approx({"push": -540.0, "pull": -60.0, ITERATIONS: 180.0})
    needs = [measured(result, "held_bytes", GOAL) for result in (default, winner)]
    assert needs == [6 * 130.0, 12 * 30.0]
    assert table.difference.sum() == pytest.approx(needs[1] - needs[0])
    assert table.attrs["sentence"].replace("\u00a0", " ") == (
        "420 B less: 540 B less pushed, 60 B less pulled; paid with 180 B for 100 % more iterations, at a mean "
        "staleness of 1.5")  # fmt: skip


@pytest.mark.parametrize(("default", "winner", "words"), [
    ((3.0, 2.0, 4), (0.5, 0.0, 5), (
        "16.5 s sooner: 10.0 s less pulling, 8.0 s less waiting for worker 1; paid with 1.5 s for 25 % more "
        "iterations, at a mean staleness of 0.4")),
    ((0.5, 0.0, 5), (3.0, 2.0, 4), (
        "16.5 s later: 12.5 s more pulling, 10.0 s more waiting for worker 1; in return for 6.0 s by 20 % fewer "
        "iterations")),
    ((3.0, 2.0, 4), (3.0, 2.0, 4), "as soon as BSP, dense: after 24.0 s"),
    ((3.0, 0.0, 8), (3.0, 0.0, 4), "16.0 s sooner: 16.0 s by 50 % fewer iterations"),
])  # fmt: skip
def test_a_sentence_has_the_largest_savings_and_prices(default: tuple, winner: tuple, words: str):
    table = why([spent(BASE, *default)], [spent(BASE, *winner)], GOAL)
    assert table.attrs["sentence"].replace("\u00a0", " ") == words


@pytest.mark.parametrize(("by", "words"), [
    ((1, 2), "8.0 s less waiting for others"),
    ((2, 1, 2), "5.3 s less waiting for worker 2, 2.7 s less waiting for worker 1"),
    ((2, 2, 2, 2, 1, 3, 4), (
        "4.6 s less waiting for worker 2, 1.1 s less waiting for worker 1, 1.1 s less waiting for worker 3")),
])  # fmt: skip
def test_waits_are_for_others_unless_most_are_for_one_worker(by: tuple, words: str):
    table = why([spent(BASE, 3.0, 2.0, 4, by=by)], [spent(BASE, 3.0, 0.0, 4)], GOAL)
    assert table.attrs["sentence"].replace("\u00a0", " ") == f"8.0 s sooner: {words}"
