"""Random runs in virtual time, held to what must be of every run, to computations that share no code with the machines,
and to what may not matter.

`case(seed)` is the run of a number; a failure names it. A rule that is drawn there by its name needs no test of its own
for the machines that carry it out.
"""

from __future__ import annotations

import math
import random
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from clockwork import fluid, queue
from drawn_cases import CODES, MODELS, case
from ownpolicies import AlwaysHold, Largest
from tiny import Diverges, Noisy, batch_norm, finished, quiet, tiny
from tools.audit.rules import judged
from tools.chaos.campaign import performed, replayable
from tools.chaos.draw import drawn
from tools.chaos.replay import pushes_of, replay
from whole import in_process

from pslab.config.cluster import Cluster
from pslab.config.metric import medians
from pslab.config.run import Run
from pslab.config.table import ROWS
from pslab.engines.emulation.compute_times import ComputeTimes
from pslab.engines.emulation.faults import KILL, LISTED, Faults, facts
from pslab.engines.emulation.links import DOWN, UP, Network
from pslab.engines.experiment.experiment import TABLES, Outcome
from pslab.engines.experiment.shared_memory import Arena
from pslab.engines.experiment.wire import REQUEST_BYTES
from pslab.engines.server.ledger import PUSH_COLUMNS
from pslab.engines.server.rows import FIRST, Rows, rows_in
from pslab.engines.server.worker_status import doings
from pslab.engines.virtual import engine, parallel_runs, recorded_order
from pslab.engines.worker.phases import PHASE_COLUMNS, PHASES
from pslab.errors import ConfigError
from pslab.lab.runs.resolve import resolve
from pslab.policies.sync.bsp import BSP
from pslab.protocol.messages import Pull, Push
from pslab.protocol.server import Server

SOME, MANY = range(24), range(24, 240)  # of `make test`, and of `make test-all`
SEEDS = pytest.mark.parametrize("seeds", [SOME, pytest.param(MANY, marks=pytest.mark.slow)], ids=["some", "many"])
SECONDS, PHASE, WORKER, BEGIN, END = PUSH_COLUMNS.index("seconds"), *map(
    PHASE_COLUMNS.index, ("phase", "worker", "begin_s", "end_s"))  # fmt: skip
#: whose frames have a length that their number of entries says
SIZED = ("none", "range", "randomk", "lowrank", "powersgd", "demo", "sketch", "fp16", "int8", "qsgd", "efsign", "e3m0")


def check(run: Run, outcome: Outcome) -> None:
    verdict = judged(run, outcome)
    assert verdict.verdict in ("valid", "unknown" if not outcome.facts["pushes"] else "valid"), (verdict, run.plain())


def left(outcome: Outcome) -> list[bytes]:
    return [getattr(outcome, name).tobytes() for name in TABLES]


# --- what holds of every run ------------------------------------------------------------------------------------------


@SEEDS
def test_a_run_is_valid_and_its_pushes_and_its_arrivals_alone_leave_its_weights(seeds: range):
    for seed in seeds:
        run = case(seed)
        experiment, outcome = resolve(run), in_process(run)
        check(run, outcome)
        ends = outcome.facts["outcome"]
        assert ends in ("budget", "died"), run.plain()
        cluster = experiment.cluster
        # a worker that leaves may have changed its state by a gradient that it never pushed
        leaves = cluster.leave or any(fault.what == KILL for fault in cluster.faults)
        if replayable(experiment) and outcome.facts["pushes"] and not leaves:
            assert torch.equal(replay(experiment, pushes_of(outcome)), torch.from_numpy(outcome.weights)), run.plain()
        if not recorded_order.unrepeatable(experiment, outcome.arrivals):
            there = {**recorded_order.CLUSTER, "colocated": cluster.colocated}
            again = recorded_order.execute(resolve(run.but(cluster=there)), outcome.arrivals, ends,
                                           outcome.facts["seconds"])  # fmt: skip
            assert np.array_equal(again.weights, outcome.weights), run.plain()


@SEEDS
def test_a_run_without_tensors_takes_as_long_and_sends_as_much(seeds: range):
    loss, compared = PUSH_COLUMNS.index("loss"), 0
    for seed in seeds:
        run = case(500 + seed)
        rules = [str(each).partition(":")[0] for each in (run.prune, run.quantize, run.downlink)]
        if run.pull == "changed" or not all(rule in SIZED for rule in rules):
            run = run.but(prune="none" if run.pull == "changed" or rules[0] not in SIZED else run.prune, pull="whole",
                          quantize="none", downlink="none")  # fmt: skip
        try:
            bare = finished(run.but(engine="timing"))
        except ConfigError:  # of a push nobody knows the length
            continue
        outcome, compared = in_process(run), compared + 1
        assert np.array_equal(bare.phases, outcome.phases), run.plain()
        assert np.array_equal(np.delete(bare.pushes, loss, 1), np.delete(outcome.pushes, loss, 1)), run.plain()
        assert [bare.facts[name] for name in ("outcome", "seconds", "refused", "accepted")] == [
            outcome.facts[name] for name in ("outcome", "seconds", "refused", "accepted")]  # fmt: skip
    assert compared > len(seeds) / 2


@pytest.mark.parametrize(("servers", "beside", "numbers"), [
    (1, False, range(60)), (2, False, range(20)), (2, True, range(20, 40)),
    *(pytest.param(*each, range(100), marks=pytest.mark.slow) for each in ((2, False), (3, False), (2, True))),
])  # fmt: skip
def test_a_campaign_without_tensors_finds_nothing(servers: int, beside: bool, numbers: range):
    for number in numbers:
        run = drawn(2, number, "timing").but(servers=servers)
        try:
            run = run.but(cluster={**run.cluster, "colocated": beside, "per_host": 1 + number % 2})
            resolve(run)
        except ConfigError:  # fewer ranges than servers, or fewer workers
            continue
        assert performed(run)[1] == [], number


# --- what may not matter ----------------------------------------------------------------------------------------------


def doubled(cluster: dict[str, Any]) -> dict[str, Any]:
    """All that takes time takes twice as long; the sums of floating-point numbers are exactly doubled, too."""
    changed: dict[str, Any] = {}
    for name, value in cluster.items():
        if name.endswith("bit_s"):
            changed[name] = None if value is None else value / 2
        elif name.endswith("_s"):
            changed[name] = 2 * value
        elif name == "bandwidth_at":
            changed[name] = {2 * float(at): bit_s / 2 for at, bit_s in value.items()}
        elif name in ("leave", "join"):
            changed[name] = {worker: 2 * at for worker, at in value.items()}
        elif name == "faults":
            changed[name] = [{**each, **{key: 2 * each[key] for key in ("at_s", "for_s") if key in each}}
                             for each in value]  # fmt: skip
        else:
            changed[name] = value
    return changed


@SEEDS
def test_the_unit_of_time_and_frames_that_come_twice_change_nothing(seeds: range):
    for seed in seeds[::3]:
        run = case(1000 + seed)
        if not str(run.sync).startswith(("average", "adiloco", "decoupled")):  # which have instants of their own
            one, twice = in_process(run), in_process(run.but(cluster=doubled(run.cluster), lease_s=2 * run.lease_s))
            assert twice.weights.tobytes() == one.weights.tobytes(), run.plain()
            assert np.array_equal(twice.pushes[:, SECONDS], 2 * one.pushes[:, SECONDS]), run.plain()
            assert np.array_equal(twice.phases[:, [BEGIN, END]], 2 * one.phases[:, [BEGIN, END]]), run.plain()
        faults = [each for each in run.cluster["faults"] if each["what"] != "duplicate"]
        clean, again = (in_process(run.but(cluster={**run.cluster, "faults": [*faults, *more], "message_s": 0.0}))
                        for more in ([], [{"what": "duplicate", "probability": 1.0}]))  # fmt: skip
        assert again.weights.tobytes() == clean.weights.tobytes(), run.plain()
        assert again.facts["refused"] >= clean.facts["refused"]


@SEEDS
def test_rounds_leave_the_same_bits_however_they_are_cut(seeds: range):
    for seed in seeds:
        draw = random.Random(seed)
        cluster = {"compute_s": 1e-3, "bandwidth_bit_s": 1e8, "latency_s": 1e-4, "slow": {0: draw.uniform(0.5, 3)},
                   "server_bandwidth_bit_s": 2e8, "duplex": draw.choice(["full", "half"])}  # fmt: skip
        run = tiny(engine="virtual", model=draw.choice([*MODELS.values()]), cluster=cluster, workers=draw.randint(1, 4),
                   pushes=draw.randint(1, 24), seed=seed, prune=draw.choice(["none", "threshold:0.01", "dgc:5%"]),
                   sync=draw.choice(["bsp", "bsp", "bsp", "local:2"]), eval_every=10**6)  # fmt: skip
        whole = in_process(run)
        aggregated = {"aggregate": "allreduce"} if run.prune == "none" and run.sync == "bsp" else {}
        ring = {name: value for name, value in cluster.items() if name != "server_bandwidth_bit_s"} | aggregated
        for fields in ({"ranges": "layers"}, {"ranges": "layers:400", "order": "needed"}, {"servers": 2},
                       {"servers": 3, "ranges": "layers:300"}, {"pull": "changed"}, {"cluster": ring}):  # fmt: skip
            if run.prune == "dgc:5%" and ("layers:" in str(fields) or "servers" in fields):
                continue  # a layer that is cut is pruned by its slices
            try:
                cut = run.but(**fields)
                outcome = in_process(cut)
            except ConfigError:
                continue
            check(cut, outcome)
            assert outcome.weights.tobytes() == whole.weights.tobytes(), cut.plain()
            assert outcome.accuracy[:, [0, 2, 3]].tobytes() == whole.accuracy[:, [0, 2, 3]].tobytes()
            if {"servers", "ranges"} & fields.keys():  # ranges that decide for themselves end with the last whole round
                assert outcome.facts["pushes"] // run.workers == whole.facts["pushes"] // run.workers
            else:
                assert [outcome.facts[name] for name in ("accepted", "pushes")] == [whole.facts[name] for name in
                                                                                    ("accepted", "pushes")]  # fmt: skip


def test_side_by_side_and_on_any_number_of_hosts_runs_leave_the_bits_of_runs_alone():
    """A worker whose model or rule may remember something stays with one host."""
    lab = {"engine": "virtual", "cluster": {"preset": "lab", "slow": {1: 2.0}}, "sync": "asp", "pushes": 16}
    runs = [*(case(2000 + seed) for seed in range(10)), tiny(**lab, model=batch_norm), tiny(**lab, model=Noisy),
            tiny(**lab, model=Diverges), tiny(**lab, prune=Largest()), tiny(**lab, downlink="qsgd:4,residual=on"),
            tiny(**lab).but(target_accuracy=0.3, eval_every=8, pushes=200)]  # fmt: skip
    assert [resolve(run).portable for run in runs[10:]] == [False, False, False, False, True, True]
    alone = [in_process(run) for run in runs]
    together = dict(news for news in parallel_runs.conduct(map(resolve, runs), lambda: None)
                    if isinstance(news[1], Outcome))  # fmt: skip
    assert sorted(together) == list(range(len(runs)))
    for number, one in enumerate(alone):
        assert left(together[number]) == left(one), runs[number].plain()
    for hosts in (1, 3):
        for run, one in zip(runs[8:], alone[8:], strict=True):
            found = engine.execute(resolve(run), quiet, hosts=hosts)
            # without the accuracy: what a user's own model remembers, its evaluation may remember, too
            assert left(found)[1:] == left(one)[1:], (hosts, run.plain())


# --- when things happen -----------------------------------------------------------------------------------------------


def test_instants_are_those_of_a_queue():
    """Constant computing times, links of each worker's own, and a server that takes its time."""
    for seed in range(60):
        draw = random.Random(seed)
        sync, workers = draw.choice(["bsp", "asp", "ssp:0", "ssp:1", "ssp:3"]), draw.randint(1, 5)
        compute_s = [draw.uniform(0.5, 4) for _ in range(workers)]
        costs = {name: draw.choice([0.0, draw.uniform(0.01, 0.3)]) for name in ("apply_s", "serve_s", "message_s")}
        latency_s, byte_s = draw.choice([0.0, draw.uniform(0.1, 1)]), draw.choice([1e12, 7744 / draw.uniform(0.1, 2)])
        cluster = {"compute_s": 1.0, "trace": {worker: [each] for worker, each in enumerate(compute_s)},
                   "latency_s": latency_s, "bandwidth_bit_s": 8 * byte_s, **costs}  # fmt: skip
        run = tiny(engine="timing", sync=sync, workers=workers, pushes=workers * 8, cluster=cluster, eval_every=10**6)
        found = pushes_of(outcome := finished(run))
        wanted = queue(sync, compute_s, size=4 * 1930 + 24, request=REQUEST_BYTES, byte_s=byte_s, latency_s=latency_s,
                       **costs, until=len(found))  # fmt: skip
        names = ["worker", "iteration"]
        assert found[names].to_numpy().tolist() == wanted[names].to_numpy().tolist(), (seed, run.plain())
        np.testing.assert_allclose(found.seconds, wanted.applied, rtol=1e-9, err_msg=str(run.plain()))
        ends = {(int(row[WORKER]), int(row[1])): row[END] for row in outcome.phases
                if PHASES[int(row[PHASE])] == "compute"}  # fmt: skip
        for row in wanted.itertuples():
            assert ends[row.worker, row.iteration] == pytest.approx(row.computed, rel=1e-9), run.plain()


def link_byte_s(cluster: Cluster, worker: int, at_s: float) -> float:
    common = [bit_s for since_s, bit_s in sorted(cluster.bandwidth_at.items()) if since_s <= at_s + 1e-12]
    return cluster.bandwidth_of.get(worker, [cluster.bandwidth_bit_s, *common][-1]) / 8


def link_latency_s(cluster: Cluster, worker: int) -> float:
    return cluster.latency_of.get(worker, cluster.latency_s)


def test_links_are_fluids():
    for seed in range(150):
        draw = random.Random(seed)
        servers, latency_s, overhead_s = draw.choice([1, 1, 3]), draw.choice([0.0, 0.25]), draw.choice([0.0, 0.0, 0.5])
        changes = {draw.uniform(1, 9): 8 * draw.choice([0.5, 2.0]) for _ in range(draw.choice([0, 0, 2]))}
        server_s = draw.choice([math.inf, 1.0, 2.5, 40.0])
        bandwidth_of = {
            worker: 8 * draw.choice([0.2, 0.5, 4.0]) for worker in draw.sample(range(5), draw.choice([0, 2]))
        }
        latency_of = {n: draw.choice([0.0, 0.1, 2.0]) for n in draw.sample(range(5), draw.choice([0, 2]))}
        per_host = draw.choice([1, 1, 2, 3])
        bandwidth_of = {n: bandwidth_of[n - n % per_host] for n in range(5) if n - n % per_host in bandwidth_of}
        fields = {"bandwidth_bit_s": 8.0, "latency_s": latency_s, "overhead_s": overhead_s, "bandwidth_at": changes,
                  "server_bandwidth_bit_s": None if server_s == math.inf else 8 * server_s,
                  "bandwidth_of": bandwidth_of, "latency_of": latency_of, "per_host": per_host}  # fmt: skip
        sent = [(at, draw.randrange(5), draw.choice([0.0, 1.0, draw.uniform(0, 5)]), draw.randrange(servers)) for at in
                sorted(draw.choice([0.0, 1.0, draw.uniform(0, 12)]) for _ in range(draw.randint(1, 30)))]  # fmt: skip
        network, arrived = Network(cluster := Cluster(**fields), None, servers), dict[int, float]()
        direction = draw.choice([UP, DOWN])
        for number, (at, worker, size, server) in enumerate(sent):
            for instant, _, message in network.arrived(at) if draw.random() < 0.5 else []:
                arrived[message] = instant
            network.send(direction, worker, size, number, at, server)
        while network.next_s() < math.inf:
            for at, way, number in network.arrived(network.next_s()):
                assert way == direction
                arrived[number] = at
        wanted = fluid(sent, partial(link_byte_s, cluster), server_s, partial(link_latency_s, cluster), overhead_s,
                       [*changes], per_host)  # fmt: skip
        noted = [latency_s * (direction == UP and bool(server)) for *_, server in sent]  # server 0 hears of it later
        np.testing.assert_allclose([arrived[n] for n in range(len(sent))], np.add(wanted, noted), rtol=1e-7, atol=1e-7,
                                   err_msg=str((seed, fields, sent)))  # fmt: skip
    for duplex, ends_s in (("half", [1.0, 2.0]), ("full", [1.0, 1.0])):
        network = Network(Cluster(bandwidth_bit_s=8.0, duplex=duplex))
        for direction in (UP, DOWN):
            network.send(direction, 0, 1, direction, 0.0)
        assert [at for at, *_ in network.arrived(9.0)] == ends_s
    network = Network(Cluster(per_host=2, intra_host_bandwidth_bit_s=8.0, latency_s=9.0, colocated=True))
    for size, message in ((2, "a"), (1, "b")):  # inside a host, one behind the other
        network.pass_by(DOWN, 0, size, message, 0.5)
    assert [(at, message) for at, _, message in network.arrived(9.0)] == [(2.5, "a"), (3.5, "b")]


class Alphabet:
    """Takes the message that comes first in the alphabet, while the credit lasts."""

    def __init__(self, credit: float | None) -> None:
        self.credit, self.acknowledged = credit, credit is not None

    def pick(self, worker: int, waiting: list[Any]) -> int:
        return min(range(len(waiting)), key=lambda at: waiting[at][1])

    def admits(self, under_way_bytes: float, size_bytes: float) -> bool:
        return under_way_bytes == 0 if self.credit is None else under_way_bytes + size_bytes <= self.credit


@pytest.mark.parametrize(("credit", "expected"), [
    (None, [(1.5, "c"), (2.5, "a"), (3.5, "d"), (4.5, "e")]), (1, [(1.5, "c"), (3.5, "a"), (5.5, "d"), (7.5, "e")]),
    (3, [(1.5, "c"), (2.5, "d"), (3.5, "e"), (4.5, "a")])])  # fmt: skip
def test_a_link_chooses_when_it_is_idle_and_a_credit_waits_for_acknowledgements(credit: float | None, expected: Any):
    network = Network(Cluster(bandwidth_bit_s=8.0, latency_s=0.5), Alphabet(credit))
    for message in "cde":
        network.send(UP, 0, 1, message, 0.0)
    network.choose(0.0)
    network.send(UP, 0, 1, "a", 0.25)
    network.fly(UP, 0, "z", 0.25)  # of no size, and behind no other
    network.pass_by(DOWN, 0, 1, "y", 0.25)  # between processes of one machine
    found = sorted((at, message) for at, _, message in network.arrived(50.0))
    assert found == [(0.25, "y"), (0.75, "z"), *expected]


def timed(sync: str, slow: dict[int, float], seconds: float, **cluster: Any) -> list[list[float]]:
    """When each worker has computed, where the fastest takes a second."""
    workers = 1 + max(*slow, *cluster.get("join", [1]))
    outcome = finished(tiny(engine="timing", sync=sync, workers=workers, pushes=None, seconds=seconds,
                            cluster={"compute_s": 1.0, "slow": slow, **cluster}))  # fmt: skip
    rows = [row for row in outcome.phases if PHASES[int(row[PHASE])] == "compute"]
    return [[row[END] for row in rows if row[WORKER] == worker] for worker in range(workers)]


@pytest.mark.parametrize(("sync", "slow", "until_s", "ends", "cluster"), [
    ("dssp:1,4", {0: 1, 1: 4}, 16, [[1, 2, 5, 9, 10, 11, 12], [4, 8, 12, 16]], {}),
    ("elastic:4", {0: 2, 1: 3}, 13, [[2, 4, 6, 8, 10, 12], [3, 6, 10, 13]], {"search_s": 0.125}),
    # at 5 one more of each is planned: worker 0 waits from 6 on, worker 1 is gone at 7
    ("elastic:1", {0: 2, 1: 2.5}, 13, [[2, 4, 6, 9, 11, 13], [2.5, 5]], {"leave": {1: 7.0}}),
    ("bsp", {0: 1, 1: 1}, 6.5, [[1, 2, 3, 4, 5, 6.5], [1, 2, 5.5, 6.5]], {"leave": {1: 2.5}, "join": {1: 4.5}}),
    ("asp", {0: 1, 1: 1}, 6.5, [[1, 2, 3, 4, 5, 6], [3.5, 4.5, 5.5, 6.5]], {"join": {1: 2.5}}),
], ids=str)  # fmt: skip
def test_iterations_end_when_computed_by_hand(sync: str, slow: Any, until_s: float, ends: Any, cluster: Any):
    """As in the documentation of the policies."""
    assert timed(sync, slow, until_s, **cluster) == ends


@pytest.mark.parametrize(("sync", "duplex", "model"), [
    ("asp", "half", lambda c, p: c + 2 * p), ("eager", "full", max), ("eager", "half", lambda c, p: max(c, 2 * p)),
], ids=["asp", "eager, full duplex", "eager, half duplex"])  # fmt: skip
def test_an_eager_iteration_hides_its_exchange(sync: str, duplex: str, model: Any):
    for link_s in (0.4, 1.5):
        ends = timed(sync, {0: 1, 1: 1}, 40, bandwidth_bit_s=8 * (4 * 1930 + 24) / link_s, duplex=duplex)
        assert np.diff(ends[0])[4:-4].mean() == pytest.approx(model(1.0, link_s), rel=0.02)


@pytest.mark.parametrize(("cluster", "servers", "periods"), [
    ({"latency_s": 0.25}, 1, [1.0, 1.5]),  # worker 0 is on the server's machine
    ({"latency_s": 0.25}, 2, [2.0, 1.5]),  # server 0 is told what came to server 1, and answers: so also on its own
    ({"bandwidth_bit_s": 8 * (965 * 4 + 24)}, 2, [3.0, 3.0]),  # of the halves one travels, up and down
    ({"latency_s": 0.25, "per_host": 2, "intra_host_bandwidth_bit_s": 8 * (1930 * 4 + 24)}, 1, [3.0, 3.0]),
    ({"per_host": 2, "intra_host_bandwidth_bit_s": 8 * (1930 * 4 + 24)}, 1, [3.0, 3.0]),  # the only limit
])  # fmt: skip
def test_what_a_server_on_a_workers_machine_exchanges_with_it_takes_no_time(cluster: Any, servers: int, periods: Any):
    run = tiny(engine="timing", cluster={"compute_s": 1.0, "colocated": True, **cluster}, workers=2, sync="asp",
               pushes=10, servers=servers)  # fmt: skip
    phases = finished(run).phases
    ends = [phases[(phases[:, WORKER] == worker) & (phases[:, PHASE] == PHASES.index("compute")), END]
            for worker in (0, 1)]  # fmt: skip
    assert [np.diff(each).min() for each in ends] == pytest.approx(periods, rel=0.03)


# --- chance -----------------------------------------------------------------------------------------------------------


def test_faults_are_those_of_their_seed_and_frame_and_compute_times_those_of_their_worker():
    def fates(order: int, seed: int, **fault: Any) -> dict[tuple[int, int], Any]:
        plan = Faults(Cluster(faults=({"what": "drop", "for_s": 0.5, **fault},)), seed)
        names = [(worker, at) for worker in range(4) for at in range(300)][::order]
        return {(worker, at): plan.fate("up", worker, [Push(worker, 0, at, 0)], at) for worker, at in names}

    one, other, third = fates(1, 0, probability=0.25), fates(-1, 0, probability=0.25), fates(1, 1, probability=0.25)
    assert one == other != third
    assert 0.2 < np.mean([fate.delay_s > 0 for fate in one.values()]) < 0.3
    assert [name for name, fate in fates(1, 0, at_s=7.5).items() if fate.delay_s] == [(w, 8) for w in range(4)]
    assert [name for name, fate in fates(1, 0, iteration=3, worker=2).items() if fate.delay_s] == [(2, 3)]
    assert not any(fate.delay_s for fate in fates(1, 0, iteration=3, direction="down").values())
    stops = Faults(Cluster(faults=({"what": "stop", "worker": 1, "at_s": 2.0, "for_s": 3.0},)), 0)
    assert [stops.pause_s(1, 0, begin, end) for begin, end in ((0, 1.9), (1, 2.5), (4, 5), (5, 6))] == [0, 3, 1, 0]
    kills = Faults(Cluster(faults=({"what": "kill", "worker": 1, "per_hour": 60},)), 0)
    instants = [0.0]
    while len(instants) < 2000:
        instants.append(kills.kill_s(1, instants[-1] + 1e-9))
    between_s = np.diff(instants)  # exponential: as wide as their mean
    assert [between_s.mean(), between_s.std()] == pytest.approx([60, 60], rel=0.1)
    assert kills.kill_s(0) == math.inf
    rows = [("drop", "up", 0, 0, 0, 1.0)] * 2000
    listed = facts(Cluster(faults=({"what": "drop", "probability": 0.1},)), rows)
    assert (len(listed["faulted"]), listed["faults"]) == (LISTED, {"drop": 2000})
    cluster = Cluster(compute_s=0.02, compute_sigma=0.1, slow={1: 3.0}, stall_probability=0.05, stall_factor=5.0,
                      trace={2: [0.1, 0.2]})  # fmt: skip
    pairs = [[ComputeTimes(cluster, seed, worker) for _ in "ab"] for seed, worker in ((0, 0), (0, 1), (1, 0), (0, 2))]
    drawn_s = [[np.array([times.draw() for _ in range(5000)]) for times in pair] for pair in pairs]
    assert all(np.array_equal(*pair) for pair in drawn_s)
    assert len({pair[0].tobytes() for pair in drawn_s}) == 4
    assert [pair[0].mean() for pair in drawn_s] == pytest.approx([0.024, 0.072, 0.024, 0.15], rel=0.03)


# --- tables, states and ends ------------------------------------------------------------------------------------------


def test_a_table_in_shared_memory_is_what_was_written_in_it():
    arena = Arena()
    for seed in range(16):  # one behind the other in the same memory
        draw, wanted = random.Random(seed), list[list[float]]()
        if seed % 3 == 2:
            wanted = [[float(row), 2.0, 3.0] for row in range(draw.choice([0, 2 * FIRST]))]
            rows = Rows.of(np.array(wanted).reshape(-1, 3), arena)
        else:
            rows = Rows(3, arena if seed % 3 else None)
        for _ in range(draw.choice([0, 1, FIRST, FIRST + 1, 5 * FIRST])):
            wanted.append([draw.random() for _ in range(3)])
            rows.append(tuple(wanted[-1]))
            if draw.random() < 0.2:
                at = draw.randrange(len(wanted))
                rows.put(at, 1, (7, 8))
                wanted[at][1:] = [7, 8]
        taken = rows.table()
        rows.append((0, 0, 0))  # what was taken does not change
        assert np.array_equal(taken, np.array(wanted).reshape(-1, 3))
        if seed % 3:
            assert np.array_equal(rows_in(arena, 3), [*wanted, [0, 0, 0]])
    arena.close()


def test_each_worker_waits_for_the_slowest_of_each_range_that_it_lacks():
    server = Server(range(4), 2, BSP())
    for worker, index in ((0, 0), (0, 1), (3, 0)):
        server.handle(Push(worker, index, 0, 0), 0.0)
        server.handle(Pull(worker, index, 1, 0), 0.0)
    server.leave(2, 0.0)
    found = doings(server, [False, False, True, True])
    assert [(each["doing"], each["for"], each["iteration"]) for each in found] == [
        ("waiting", [1, 3], 1), ("computing", [], 0), ("dead", [], None), ("waiting", [1], 0)]  # fmt: skip


def test_runs_end_as_they_are_to_and_are_evaluated_when_it_is_due():
    lab = {"engine": "virtual", "cluster": "steady"}
    for fields in ({}, {"ranges": "layers"}, {"prune": "static:5%"}, {"sync": "local:2"}, {"sync": "eager"}):
        run = tiny(**lab, model=Diverges, **fields)
        outcome = in_process(run)
        check(run, outcome)
        assert outcome.facts["outcome"] == "diverged"
        assert np.isfinite(outcome.weights).all()
        assert np.isfinite(outcome.pushes[:, PUSH_COLUMNS.index("loss")]).all()
    assert in_process(tiny(**lab, sync=AlwaysHold(1))).facts["outcome"] == "stalled"
    late = in_process(tiny(engine="virtual", sync="asp", workers=1, pushes=None, seconds=20.0,
                           cluster={"compute_s": 1.0, "trace": {0: [10.0] + [0.125] * 80}}))  # fmt: skip
    assert np.floor(late.accuracy[:-1, 1]).tolist() == [0, *range(10, 20)]  # at most one a period
    for fields in ({}, {"ranges": "layers"}):  # a step of four pushes is evaluated if it is the first in its period
        outcome = in_process(tiny(**{**lab, "cluster": "lab"}, pushes=24, eval_every=6, **fields))
        applied_s = pushes_of(outcome).groupby("version_applied").seconds.max()
        assert outcome.accuracy[:, 0].tolist() == [0, 8, 12, 20, 24]
        assert outcome.accuracy[1:, 1].tolist() == applied_s[[2, 3, 5, 6]].tolist()
    run = tiny(**lab, sync="asp", pushes=400, eval_every=8, learning_rate=1.0)
    whole = in_process(run)
    values = whole.accuracy[:, 2].tolist()
    reached = next(at for at, value in enumerate(values) if value >= 0.4)
    held = 1 + next(at for at, value in enumerate(medians(values)) if value >= 0.4)  # what comes after it decides
    for last, target_held in ((reached, False), (held, True)):
        target = in_process(run.but(target_accuracy=0.4, target_held=target_held))
        assert (target.facts["outcome"], target.facts["pushes"]) == ("target", whole.accuracy[last, 0])
        assert np.array_equal(target.accuracy, whole.accuracy[: last + 1])
        assert np.array_equal(target.pushes[:, :7], whole.pushes[: len(target.pushes), :7])


def test_every_rule_code_and_rate_is_drawn():
    """No more runs are drawn than it takes to meet all."""
    left = {("rate", name) for name in ROWS["rate"]} | {("prune", name) for name in ROWS["prune"]}
    left |= {("quantize", code.partition(":")[0]) for code in ("none", *CODES)}
    for seed in range(240):
        run = case(seed)
        left -= {(field, str(getattr(run, field)).partition(":")[0]) for field in ("rate", "prune", "quantize")}
        if not left:
            break
    assert left == set()
