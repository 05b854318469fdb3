"""Virtual time: the vectors by hand, the replay, and the same bits whatever the machine does."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from tiny import Diverges, finished, tiny
from whole import in_process

from pslab.config.metric import medians
from pslab.engines.execute import execute
from pslab.engines.experiment.experiment import Interrupted
from pslab.engines.experiment.wire import REQUEST_BYTES
from pslab.engines.server.ledger import PUSH_COLUMNS
from pslab.engines.worker.phases import PHASE_COLUMNS, PHASES
from pslab.lab.runs.resolve import resolve
from pslab.lab.runs.run import run
from pslab.policies.sync.ssp import SSP
from pslab.protocol.messages import Start


def timed(sync: str, slow: dict[int, float], workers: int, **fields) -> tuple[pd.DataFrame, pd.DataFrame, dict]:
    """Pushes, phases and facts of a run without tensors whose fastest worker takes a second per iteration."""
    cluster = {"compute_s": 1.0, "slow": slow, **fields.pop("cluster", {})}
    wanted = tiny(engine="timing", sync=sync, workers=workers, cluster=cluster, **fields)
    outcome = finished(wanted)
    phases = pd.DataFrame(outcome.phases, columns=PHASE_COLUMNS)
    phases["phase"] = phases.phase.astype(int).map(dict(enumerate(PHASES)))
    return pd.DataFrame(outcome.pushes, columns=PUSH_COLUMNS), phases, outcome.facts


def ends(phases: pd.DataFrame, worker: int) -> list[float]:
    mine = phases[(phases.worker == worker) & (phases.phase == "compute")]
    return list(mine.end_s)


def waited(phases: pd.DataFrame, worker: int) -> float:
    mine = phases[(phases.worker == worker) & (phases.phase == "wait")]
    return float((mine.end_s - mine.begin_s).sum())


@pytest.mark.parametrize(
    ("sync", "slow", "until_s", "a", "b", "wait_a"),
    [
        ("bsp", {0: 2, 1: 3}, 12, [2, 5, 8, 11], [3, 6, 9, 12], 3),  # and a wait of 1 that has not ended at 12
        ("asp", {0: 2, 1: 3}, 12, [2, 4, 6, 8, 10, 12], [3, 6, 9, 12], 0),
        ("ssp:1", {0: 1, 1: 4}, 16, [1, 2, 5, 9, 13], [4, 8, 12, 16], 8),  # blocked 13 -> 16 at the end
        ("ssp:1", {0: 2, 1: 3}, 12, [2, 4, 6, 8, 11], [3, 6, 9, 12], 1),
        ("dssp:1,4", {0: 1, 1: 4}, 16, [1, 2, 5, 9, 10, 11, 12], [4, 8, 12, 16], None),
        ("dssp:1,4,grant=literal", {0: 1, 1: 4}, 16, [1, 2, 5, *range(9, 17)], [4, 8, 12, 16], None),
        ("elastic:4", {0: 2, 1: 3}, 24, [2.0 * n for n in range(1, 13)], [3.0 * n for n in range(1, 9)], None),
        ("elastic:1", {0: 2, 1: 3}, 15, [2, 4, 6, 8, 11, 13, 15], [3, 6, 9, 12, 15], None),
    ],
)
def test_iterations_end_when_computed_by_hand(sync, slow, until_s, a, b, wait_a):
    _, phases, facts = timed(sync, slow, 2, pushes=None, seconds=float(until_s))
    assert facts["outcome"] == "seconds"
    assert ends(phases, 0) == a
    assert ends(phases, 1) == b
    if wait_a is not None:
        assert waited(phases[phases.end_s < until_s], 0) == wait_a


@pytest.mark.parametrize(
    ("sync", "slow", "counts"),
    [
        ("dssp:3,12", {1: 3.0}, [104, 100]),
        ("dssp:3,12,grant=literal", {1: 3.0}, [293, 100]),
        ("dssp:3,12,grant=literal", {3: 2.0}, [300, 300, 300, 150]),
    ],
)
def test_iterations_that_dssp_gains_are_counted(sync, slow, counts):
    _, phases, _ = timed(sync, slow, len(counts), pushes=None, seconds=300.0)
    assert [len(ends(phases, worker)) for worker in range(len(counts))] == counts


@pytest.mark.parametrize(("sync", "count"), [("bsp", 413), ("ssp:3", 422), ("elastic:15", 754), ("asp", 763)])
def test_iterations_that_elastic_bsp_gains_are_counted(sync, count):
    _, phases, _ = timed(sync, {1: 1.37, 2: 2.11, 3: 2.9}, 4, pushes=None, seconds=300.0)
    assert sum(len(ends(phases, worker)) for worker in range(4)) == count
    if sync == "elastic:15":
        assert [waited(phases, worker) for worker in range(4)] == pytest.approx([1.3, 0, 5.7, 10.8], abs=0.05)


def test_a_search_delays_by_its_cost():
    cluster = {"search_s": 0.125}
    pushes, phases, _ = timed("elastic:4", {0: 2, 1: 3}, 2, pushes=None, seconds=24.0, cluster=cluster)
    assert ends(phases, 0)[:4] == [2, 4, 6, 8]
    assert ends(phases, 1)[:3] == [3, 6, 10]  # it was there at 6, and started when 8 points had been searched
    assert list(pushes[pushes.worker == 1].seconds)[:3] == [3, 6, 10]


def test_elastic_bsp_goes_on_when_a_planned_worker_leaves():
    """At 5 one more of each is planned: worker 0 waits from 6 on, worker 1 is gone at 7."""
    _, phases, facts = timed("elastic:1", {0: 2, 1: 2.5}, 2, pushes=None, seconds=13.0, cluster={"leave": {1: 7.0}})
    assert facts["outcome"] == "seconds"
    assert ends(phases, 0) == [2, 4, 6, 9, 11, 13]
    assert ends(phases, 1) == [2.5, 5]


def test_a_worker_that_joins_in_a_superstep_waits_for_its_barrier():
    """At 5 the barrier is planned for 7.5; worker 2 comes at 5.5."""
    slow, cluster = {0: 2, 1: 2.5, 2: 1}, {"join": {2: 5.5}}
    _, phases, _ = timed("elastic:1", slow, 3, pushes=None, seconds=12.0, cluster=cluster)
    assert ends(phases, 0)[:4] == [2, 4, 6, 9.5]
    assert ends(phases, 2)[:2] == [8.5, 9.5]


@pytest.mark.parametrize("link_s", [0.4, 1.0, 1.5])
@pytest.mark.parametrize(("sync", "duplex", "model"), [
    ("asp", "full", lambda c, p, q: c + p + q), ("asp", "half", lambda c, p, q: c + p + q),
    ("eager", "full", max), ("eager", "half", lambda c, p, q: max(c, p + q)),
])  # fmt: skip
def test_eager_iteration_hides_its_exchange(sync, duplex, model, link_s):
    cluster = {"bandwidth_bit_s": 8 * (4 * 1930 + 24) / link_s, "duplex": duplex}  # a push, or a pull, takes link_s
    _, phases, _ = timed(sync, {}, 2, pushes=40, cluster=cluster)
    middle = np.diff(ends(phases, 0))[4:-4]
    assert middle.mean() == pytest.approx(model(1.0, link_s, link_s), rel=0.02)


@pytest.mark.parametrize(
    ("sync", "cluster", "a", "b"),
    [
        ("bsp", {"leave": {1: 2.5}}, [1, 2, 3, 4, 5, 6], [1, 2]),
        ("bsp", {"leave": {1: 2.5}, "join": {1: 4.5}}, [1, 2, 3, 4, 5, 6.5], [1, 2, 5.5, 6.5]),
        ("asp", {"join": {1: 2.5}}, [1, 2, 3, 4, 5, 6], [3.5, 4.5, 5.5, 6.5]),
        ("ssp:1", {"slow": {1: 4}, "leave": {1: 5}}, [1, 2, 5, 6, 7], [4]),  # held 2 -> 4, then by nobody
    ],
)
def test_workers_leave_and_join_at_their_instants(sync, cluster, a, b):
    pushes, phases, facts = timed(sync, {}, 2, pushes=None, seconds=7.0 if sync[0] == "s" else 6.5, cluster=cluster)
    assert facts["outcome"] == "seconds"
    assert ends(phases, 0) == a
    assert ends(phases, 1) == b
    assert not pushes.duplicated(["worker", "range", "iteration"]).any()


def test_messages_under_way_are_lost_when_their_worker_leaves():
    cluster = {"latency_s": 0.5, "leave": {1: 1.25}, "join": {1: 1.375}}  # its push is on the link
    pushes, phases, _ = timed("asp", {}, 2, pushes=None, seconds=4.0, cluster=cluster)
    assert list(pushes[pushes.worker == 1].seconds) == [1.375 + 1.0 + 1.0 + 0.5]
    assert ends(phases, 1) == [1.0, 3.375]


def test_the_run_ends_when_the_last_worker_leaves():
    _, _, facts = timed("asp", {}, 2, pushes=100, cluster={"leave": {0: 2.5, 1: 3.5}})
    assert (facts["outcome"], facts["accepted"]) == ("died", 5)


def test_links_add_up_by_hand():
    size = 4 * 1930 + 24  # a dense frame
    cluster = {"bandwidth_bit_s": 8.0 * size, "latency_s": 0.25}
    _, phases, facts = timed("bsp", {}, 1, pushes=2, cluster=cluster)
    first = phases[phases.iteration == 0].set_index("phase")
    request = REQUEST_BYTES / size  # it goes with the push
    assert first.begin_s["push"] == 1.0
    assert first.end_s["push"] == pytest.approx(2.25 + request)
    assert first.end_s["pull"] == pytest.approx(first.end_s["push"] + 1.25)
    assert facts["seconds"] == pytest.approx(first.end_s["pull"] + 2.25 + request)


def test_the_server_takes_the_time_of_its_costs():
    costs = {"apply_s": 0.5, "serve_s": 0.25, "message_s": 0.125, "decode_s": 9.0}
    pushes, phases, facts = timed("asp", {}, 2, pushes=3, cluster=costs)
    assert list(pushes.seconds)[:2] == [1.625, 2.5]  # the second frame waits until the first one is dealt with
    first = phases[(phases.worker == 0) & (phases.iteration == 0)].set_index("phase")
    assert (first.begin_s["serve"], first.end_s["serve"]) == (1.625, 1.875)
    assert facts["server_busy_s"] == facts["seconds"] - 1.0 - (2.875 - 2.75)  # at first, and until a gradient is there
    decoding = phases[phases.phase == "decode"]
    assert (decoding.end_s == decoding.begin_s).all()  # whole weights need none


def test_selection_and_codec_costs_are_of_sparse_runs_alone():
    costs = {"select_s": 0.25, "encode_s": 0.125, "serve_s": 0.5, "find_s": 1.0, "decode_s": 0.0625}
    cluster = {"compute_s": 1.0, **costs}
    dense, pruned = (
        in_process(tiny(engine="virtual", workers=1, sync="asp", pushes=2, cluster=cluster, **fields))
        for fields in ({}, {"prune": "static:5%", "pull": "changed"})
    )
    assert dense.facts["seconds"] == 1 + 0.5 + 1
    assert pruned.facts["seconds"] == (1 + 0.25 + 0.125) + (0.5 + 1.0 + 0.0625) + (1 + 0.25 + 0.125)


def test_a_virtual_run_is_recorded_and_reused(tmp_path):
    wanted = tiny(engine="virtual", cluster="straggler")
    result = run(wanted, results=tmp_path, progress=False)
    assert result.manifest["emulation_ok"]
    assert result.accuracy.pushes.iloc[-1] == 40
    assert list(result.phases[result.phases.iteration == 0].phase.unique()) != []
    assert run(wanted, results=tmp_path, progress=False).cached


def test_divergence_ends_the_run_at_its_instant():
    outcome = in_process(tiny(engine="virtual", cluster="steady", model=Diverges))
    assert outcome.facts["outcome"] == "diverged"
    assert outcome.facts["diverged"]["worker"] in range(4)
    assert np.isfinite(outcome.weights).all()


def test_a_target_stops_at_a_snapshot_and_disturbs_nothing():
    wanted = tiny(engine="virtual", sync="asp", pushes=4000, eval_every=40, target_accuracy=0.5, learning_rate=1.0,
                  cluster="steady")  # fmt: skip
    first, second = finished(wanted), in_process(wanted)
    assert first.facts["outcome"] == "target"
    assert first.accuracy[-1][2] >= 0.5
    assert not first.facts["disturbed"]
    assert np.array_equal(first.accuracy, second.accuracy)
    assert first.accuracy[-1][1] == first.facts["seconds"]


def test_a_target_that_is_to_be_held_ends_a_run_as_soon_as_it_is_and_what_was_run_is_the_longer_runs_beginning():
    longer = tiny(engine="virtual", sync="asp", pushes=400, eval_every=8, learning_rate=1.0, cluster="steady")
    wanted = longer.but(target_accuracy=0.4, target_held=True)
    whole, outcome = finished(longer), finished(wanted)
    values = whole.accuracy[:, 2].tolist()
    held = next(at for at, value in enumerate(medians(values)) if value >= 0.4)
    assert outcome.facts["outcome"] == "target"
    assert outcome.facts["pushes"] == whole.accuracy[held + 1, 0] < 400  # what comes after it decides
    assert np.array_equal(outcome.accuracy, whole.accuracy[: held + 2])
    assert np.array_equal(outcome.pushes[:, :7], whole.pushes[: len(outcome.pushes), :7])
    reached = next(at for at, value in enumerate(values) if value >= 0.4)
    assert finished(longer.but(target_accuracy=0.4)).facts["pushes"] == whole.accuracy[reached, 0]


def test_an_interrupt_keeps_completed_pushes_and_the_hosts(tmp_path):
    calls = []

    def on_progress(news):
        calls.append(news)
        if len([c for c in calls if c]) == 2:
            raise KeyboardInterrupt

    long = tiny(engine="virtual", cluster="steady", pushes=100_000, eval_every=50)
    with pytest.raises(Interrupted) as interrupt:
        execute(resolve(long), on_progress)
    outcome = interrupt.value.outcome
    assert 0 < outcome.facts["pushes"] < 100_000
    assert outcome.accuracy[-1][0] == outcome.facts["pushes"]
    assert run(tiny(seed=9), results=tmp_path, progress=False).manifest["pushes"] == 40


class AlwaysHold(SSP):
    def step(self, state, event, clocks):
        return state, tuple(d for d in super().step(state, event, clocks)[1] if not isinstance(d, Start))


def test_a_run_in_which_no_worker_can_go_on_is_stalled():
    outcome = in_process(tiny(engine="virtual", cluster="steady", sync=AlwaysHold(1)))
    assert (outcome.facts["outcome"], outcome.facts["pushes"]) == ("stalled", 4)


def test_evaluations_by_time_are_at_most_one_a_period_after_a_time_without_pushes():
    cluster = {"compute_s": 1.0, "trace": {0: [10.0] + [0.125] * 80}}
    wanted = tiny(engine="virtual", sync="asp", workers=1, pushes=None, seconds=20.0, cluster=cluster)
    seconds = in_process(wanted).accuracy[:, 1]
    periods = np.floor(seconds[:-1]).tolist()  # the last one is at the run's end
    assert periods == [0, *range(10, 20)]
