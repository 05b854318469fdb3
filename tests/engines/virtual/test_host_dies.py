"""A host that dies, or is stopped, is named as such; a run that may continue begins again, and leaves the same bits."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest
from tiny import tiny

from pslab.engines.processes import pool
from pslab.engines.virtual.engine import execute
from pslab.errors import WorkerDied
from pslab.lab.runs.resolve import resolve

pytestmark = pytest.mark.usefixtures("small_pool")
RUN = tiny(engine="virtual", cluster="lab", sync="asp", pushes=2000, eval_every=2000, lease_s=0.3)


def striking(by: signal.Signals):
    struck, news = [], []

    def on_progress(item):
        news.append(item)
        if "workers" in item and not struck:
            struck.append(by)
            os.kill(pool._kept.processes[0].pid, by)

    return news, on_progress


@pytest.mark.parametrize(
    ("by", "words"),
    [pytest.param(signal.SIGKILL, r"host 0 of virtual workers is gone \(killed by SIGKILL\)", id="killed"),
     pytest.param(signal.SIGSTOP, r"host 0 .*silent for longer than its lease of 0.3 s while computing", id="stopped",
                  marks=pytest.mark.slow)],
)  # fmt: skip
def test_a_host_that_dies_ends_the_run_and_its_work_is_kept(by, words):
    with pytest.raises(WorkerDied, match=words) as error:
        execute(resolve(RUN), striking(by)[1], hosts=2)
    outcome = error.value.outcome
    assert 0 < outcome.facts["pushes"] == len(outcome.pushes) < 2000


@pytest.mark.slow
def test_a_run_that_may_continue_begins_again_and_leaves_the_same_bits():
    news, on_progress = striking(signal.SIGKILL)
    again = execute(resolve(RUN.but(on_death="continue")), on_progress, hosts=2)
    undisturbed = execute(resolve(RUN), lambda item: None, hosts=2)
    (item,) = [item for item in news if "repeated" in item]
    assert item["repeated"] == "host 0 of virtual workers is gone (killed by SIGKILL): once again"
    np.testing.assert_array_equal(again.weights, undisturbed.weights)
    np.testing.assert_array_equal(again.pushes, undisturbed.pushes)
