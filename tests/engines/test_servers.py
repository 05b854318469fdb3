"""Several servers, each with a part of the weights: what they do together, in virtual time, and when."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conducted import judged
from tiny import tiny
from tools.chaos.campaign import performed
from tools.chaos.draw import drawn
from whole import in_process

from pslab.config.run import Run
from pslab.engines.server.ledger import PUSH_COLUMNS
from pslab.engines.virtual.server_node import StoreNode
from pslab.engines.virtual.timing import execute
from pslab.engines.worker.phases import COMPUTE, PHASE_COLUMNS
from pslab.errors import ConfigError
from pslab.lab.runs.resolve import resolve

CLUSTER = {"compute_s": 0.01, "slow": {1: 2.0}, "bandwidth_bit_s": 2e6, "latency_s": 2e-3, "apply_s": 4e-3,
           "serve_s": 1e-3, "message_s": 2e-4}  # fmt: skip
BESIDE = {**CLUSTER, "colocated": True}
END, PHASE, WORKER = map(PHASE_COLUMNS.index, ("end_s", "phase", "worker"))


def virtual(**fields: Any) -> Run:
    return tiny(**{"engine": "virtual", "cluster": CLUSTER, **fields})


def ends(run: Run, worker: int = 0) -> list[float]:
    """When a worker has computed each iteration."""
    phases = execute(resolve(run), lambda news: None).phases
    return phases[(phases[:, WORKER] == worker) & (phases[:, PHASE] == COMPUTE), END].tolist()


# --- what they leave --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fields", [{}, {"prune": "threshold:0.01", "pull": "changed"}, {"ranges": "layers:200"}],
                         ids=str)  # fmt: skip
def test_bsp_ends_with_the_same_weights_however_many_servers_hold_them(fields: dict[str, Any]):
    outcomes = [in_process(virtual(servers=servers, **fields)) for servers in (1, 2, 4)]
    for outcome in outcomes[1:]:
        assert outcome.weights.tobytes() == outcomes[0].weights.tobytes()
        assert outcome.accuracy[:, [0, 2, 3]].tobytes() == outcomes[0].accuracy[:, [0, 2, 3]].tobytes()
        assert outcome.facts["pushes"] == 40


def test_servers_answer_with_the_keys_that_they_hold():
    keyed = {"data": "planted:rows=200,keys=240,per_row=6,communities=4", "model": "linear", "pull": "keys",
             "batch_size": 8}  # fmt: skip
    expected, found = (in_process(virtual(servers=servers, **keyed)) for servers in (1, 4))
    assert found.weights.tobytes() == expected.weights.tobytes()
    assert judged(virtual(servers=4, **keyed), found) == {"verdict": "valid"}
    entries = [outcome.pushes[:, PUSH_COLUMNS.index("density")].sum() / outcome.facts["pushes"] * size
               for outcome, size in ((expected, 240), (found, 60))]  # fmt: skip
    assert entries[0] == pytest.approx(entries[1])


def test_a_run_with_several_servers_has_a_name_of_its_own():
    assert tiny(servers=1).digest == tiny().digest != tiny(servers=2).digest


@pytest.mark.parametrize("fields", [
    {"sync": "asp"}, {"sync": "ssp:1", "ranges": "layers"}, {"sync": "dssp:1,4"}, {"sync": "elastic:4"},
    {"sync": "backup:1"}, {"sync": "backup:1", "prune": "std:2", "pull": "changed"}, {"sync": "local:2"},
    {"sync": "eager:2"}, {"sync": "eager:2", "prune": "static:5%", "pull": "changed"},
    {"sync": "asp", "prune": "range:7", "pull": "range"}, {"sync": "eager:2", "prune": "range:7", "pull": "range"},
    {"sync": "asp", "optimizer": "adam", "pull": "changed"}, {"sync": "asp", "rate": "dynsgd"},
    {"sync": "asp", "rate": "adagrad:server"}, {"sync": "asp", "rate": "split"},
    {"sync": "asp", "prune": "dgc"}, {"sync": "asp", "ranges": "layers:100", "order": "needed"},
    {"sync": "asp", "cluster": BESIDE}, {"sync": "eager:2", "prune": "static:5%", "pull": "changed", "cluster": BESIDE},
    {"sync": "ssp:1", "ranges": "layers:100", "order": "needed", "cluster": BESIDE},
    {"sync": "downpour:1,2"}, {"sync": "average:1", "pushes": 64},
    {"sync": "asp", "pushes": None, "seconds": 0.3}, {"sync": "asp", "target_accuracy": 0.3, "eval_every": 8},
], ids=str)  # fmt: skip
@pytest.mark.one_of(3)
def test_every_history_with_several_servers_is_valid(fields: dict[str, Any]):
    run = virtual(servers=2, **fields)
    outcome = in_process(run)
    assert judged(run, outcome) == {"verdict": "valid"}


@pytest.mark.parametrize(("servers", "beside", "numbers"), [
    (2, False, range(20)), (2, True, range(20, 40)),
    *(pytest.param(*case, range(60), marks=pytest.mark.slow) for case in ((2, False), (3, False), (2, True))),
])  # fmt: skip
def test_a_campaign_of_clusters_and_faults_finds_nothing_with_several_servers(
    servers: int, beside: bool, numbers: range
):
    for number in numbers:
        run = drawn(2, number, "timing").but(servers=servers)
        try:
            run = run.but(cluster={**run.cluster, "colocated": beside})
            resolve(run)
        except ConfigError:  # fewer ranges than servers, or fewer workers
            continue
        assert performed(run)[1] == [], number


def test_bytes_are_those_of_each_servers_part():
    for servers in (1, 2, 4):
        outcome = in_process(virtual(servers=servers))
        up, down = (outcome.pushes[:, PUSH_COLUMNS.index(name)] for name in ("bytes_up", "bytes_down"))
        sizes = np.diff([1930 * number // servers for number in range(servers + 1)])
        each = sum(24 + 4 * int(size) for size in sizes)
        assert up.sum() == 40 * each
        assert set((up - down)[down > 0].tolist()) == {0.0}  # but for the last ones, every push is answered
        assert (down == 0).sum() < 4 * servers


# --- when they do it --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cluster", "one", "two"),
    [
        # a request and its answer; with two servers also the note, and the order
        ({"latency_s": 0.25}, 1.5, 2.0),
        # server 0 has applied its half at 1.5, when the note comes; server 1 hears at 1.75, and sends at 2
        ({"latency_s": 0.25, "apply_s": 0.5}, 2.0, 2.25),
        # a half alone takes a second up and one down; both share the worker's link, there and back
        ({"bandwidth_bit_s": 8 * (965 * 4 + 24)}, 1 + 4, 1 + 4),
    ],
)  # fmt: skip
def test_iterations_end_when_computed_by_hand(cluster: dict[str, float], one: float, two: float):
    for servers, period in ((1, one), (2, two)):
        fields = {"workers": 1, "sync": "asp", "pushes": 5, "servers": servers}
        run = tiny(engine="timing", cluster={"compute_s": 1.0, **cluster}, **fields)
        assert np.diff(ends(run)) == pytest.approx([period] * 4, rel=0.03)


@pytest.mark.parametrize(("ranges", "least", "most"), [("whole", 4.0, 4.4), ("layers:60", 2.9, 3.7)])
@pytest.mark.parametrize("servers", [1, 4, 16])
def test_workers_with_as_many_servers_and_equal_links_exchange_as_fast_as_one_worker_with_one(
    servers: int, ranges: str, least: float, most: float
):
    """But for the frames' heads, and for layers that do not fill all servers alike. The weights take a second."""
    cluster = {"compute_s": 2.0, "bandwidth_bit_s": 8 * 7720, "server_bandwidth_bit_s": 8 * 7720}
    run = tiny(engine="timing", cluster=cluster, workers=servers, servers=servers, pushes=5 * servers, ranges=ranges)
    assert all(least < period < most for period in np.diff(ends(run)[1:]))


def test_the_last_evaluation_is_when_the_last_server_has_copied_its_weights():
    """The servers have ranges of three lengths, and so end at three instants."""
    cluster = {"compute_s": 1.0, "latency_s": 0.01, "apply_s": 1.0}
    fields = {"workers": 2, "pushes": 8, "sync": "bsp", "eval_every": 8, "ranges": "layers:1000", "servers": 3}
    outcome = in_process(virtual(cluster=cluster, **fields))
    assert outcome.accuracy[-1, 1] == outcome.facts["seconds"] == outcome.pushes[:, PUSH_COLUMNS.index("seconds")].max()


@pytest.mark.one_of(2)
@pytest.mark.parametrize(
    ("cluster", "servers", "periods"),
    [
        ({"latency_s": 0.25}, 1, [1.0, 1.5]),  # worker 0 is at home
        ({"latency_s": 0.25}, 2, [2.0, 1.5]),  # server 0 is told what came to server 1, and answers: so also at home
        ({"bandwidth_bit_s": 8 * (965 * 4 + 24)}, 2, [3.0, 3.0]),  # of the halves one travels, up and down
        ({"server_bandwidth_bit_s": 8 * (965 * 4 + 24)}, 2, [3.0, 3.0]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("duplex", ["full", "half"])
def test_what_a_server_on_a_workers_machine_exchanges_with_it_takes_no_time(cluster, servers, periods, duplex):
    cluster = {"compute_s": 1.0, "colocated": True, "duplex": duplex, **cluster}
    run = tiny(engine="timing", cluster=cluster, workers=2, sync="asp", pushes=10, servers=servers)
    assert [np.diff(ends(run, worker)).min() for worker in (0, 1)] == pytest.approx(periods, rel=0.03)


def test_two_servers_take_in_twice_as_much():
    """Four workers share what the servers' links can take: at each server two at a time."""
    cluster = {"compute_s": 1.0, "server_bandwidth_bit_s": 8 * (1930 * 4 + 24)}
    first = []
    for servers in (1, 2, 4):
        pushes = execute(resolve(tiny(engine="timing", servers=servers, cluster=cluster)), lambda news: None).pushes
        first.append(pushes[: 4 * servers, PUSH_COLUMNS.index("seconds")].max())
    assert first == pytest.approx([1 + 4, 1 + 2, 1 + 1], rel=0.05)


# --- what is refused, and what would be wrong -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "words"),
    [({"ranges": "layers", "servers": 3}, "the model has 2 ranges, and each server needs one"),
     ({"servers": 2000}, "servers=2000: "), ({"servers": 0}, "servers=0: "),
     ({"servers": 2, "sync": "admm:2"}, "judges its residuals over the whole model")],
)  # fmt: skip
def test_what_cannot_be_is_refused_before_a_process_starts(fields: dict[str, Any], words: str):
    with pytest.raises(ConfigError, match=words):
        resolve(virtual(**fields))


def test_a_server_that_reads_weights_too_early_is_noticed(monkeypatch):
    """A reply that is laid before the step that was ordered before it contains too little."""
    take = StoreNode._take

    def last_first(self: Any, content: None, now: float) -> None:
        self._machine.orders.insert(0, self._machine.orders.pop())
        take(self, content, now)

    monkeypatch.setattr(StoreNode, "_take", last_first)
    (words,) = performed(tiny(engine="timing", servers=2, sync="asp", cluster=CLUSTER))[1]
    assert "is done where version" in words
