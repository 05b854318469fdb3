"""What is under way when another process takes a worker's place."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from tiny import tiny

from pslab.engines.experiment.wire import REQUEST_BYTES, WHOLE, Answer, PushInfo
from pslab.engines.local.lines.emulated_links import EmulatedLinks
from pslab.engines.virtual.timing import job_without_tensors
from pslab.lab.runs.resolve import resolve
from pslab.lab.runs.run import run
from pslab.protocol.messages import Push, Weights


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def push(worker: int) -> list[Push]:
    return [Push(worker, 0, 0, 0, PushInfo(WHOLE, 1930, 0.5, 0.0))]


def weights(worker: int, iteration: int, sent_s: float = 0.0) -> list[Weights]:
    return [Weights(worker, 0, iteration, 1, Answer(WHOLE, -1, 0.0, 0.0, 0.0, 0.0, sent_s))]


def test_what_a_process_has_sent_arrives_and_what_was_sent_to_it_is_lost():
    clock = Clock()
    cluster = {"compute_s": 1.0, "latency_s": 0.5}
    links = EmulatedLinks(job_without_tensors(resolve(tiny(workers=2, cluster=cluster, engine="timing"))), clock)
    links.send_up(1, push(1))
    links.send_down(1, weights(1, 1))
    links.send_down(0, weights(0, 1))
    assert links.travelling(1)
    assert not links.sent_all(1)
    links.renew(1)
    links.send_down(1, weights(1, 2))
    clock.now = 1.0
    assert [(worker, frame[0].iteration) for worker, frame in links.collect()] == [(0, 1), (1, 2)]
    assert links.take() == (1, push(1))
    assert links.sent_all(1)
    assert not links.travelling(1)


def test_without_links_nothing_is_sent_all_until_the_server_has_taken_it():
    job = job_without_tensors(resolve(tiny(workers=2, engine="timing", cluster={"compute_s": 1.0})))
    links = EmulatedLinks(job, Clock())
    links.send_up(1, push(1))
    assert (links.sent_all(0), links.sent_all(1)) == (True, False)
    links.take()
    assert links.sent_all(1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "asked", [{"latency_s": 0.02}, {"bandwidth_bit_s": 2e6}, {"bandwidth_bit_s": 1e7, "latency_s": 5e-3}], ids=str)
def test_real_processes_keep_to_the_bandwidth_and_the_latency_that_were_asked_for(tmp_path: Path, asked: dict):
    """In the middle of many exchanges, each four times slower than asked for: bandwidth to 5 %, latency to 1 ms."""
    wanted = tiny(workers=1, sync="asp", pushes=80, cluster={"compute_s": 0.02, **asked}, dilation=4.0)
    result = run(wanted, results=tmp_path, progress=False)
    took_s = (result.phases.end_s - result.phases.begin_s).groupby(result.phases.phase).median()
    up, down = result.pushes[["bytes_up", "bytes_down"]].median()
    for phase, size_bytes in (("push", up + REQUEST_BYTES), ("pull", down)):
        expected_s = asked.get("latency_s", 0.0) + 8 * size_bytes / asked.get("bandwidth_bit_s", math.inf)
        slack_s = 1e-3 if "latency_s" in asked else 0.05 * expected_s
        assert took_s[phase] == pytest.approx(expected_s, abs=slack_s), phase
