"""Runs without tensors: the same instants, sizes and pushes as with them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from tiny import finished, tiny

from pslab.config.cluster import MEASURED, PRESETS, Cluster
from pslab.config.run import Run
from pslab.config.table import ROWS
from pslab.engines.experiment.wire import WHOLE, Wanted
from pslab.engines.server.ledger import PUSH_COLUMNS
from pslab.engines.virtual.timing import RecordedSizes, job_without_tensors
from pslab.lab.judge.verdict import judge
from pslab.lab.runs.resolve import resolve
from pslab.protocol.messages import NO_WORKER, Pull
from pslab.protocol.server import Reply

LAB = {"preset": "lab", "slow": {0: 3.0}}
THIN = {**LAB, "bandwidth_bit_s": 1e6}
LINK = {"bandwidth_bit_s": 4e6, "latency_s": 1e-4, "compute_s": 4e-3, "compute_sigma": 0.2}


@pytest.mark.one_of(2)
@pytest.mark.parametrize(
    "fields",
    [*({"sync": sync, "prune": "range:5", "pull": "range", "cluster": THIN} for sync in ("bsp", "asp", "eager")),
     {"sync": "ssp:2", "ranges": "layers", "cluster": LINK}, {"sync": "elastic:2", "cluster": LAB},
     *({"sync": "asp", "rate": rate, "cluster": LAB} for rate in ROWS["rate"])],
    ids=str,
)  # fmt: skip
def test_a_run_without_tensors_takes_as_long_and_sends_as_much(fields: dict[str, Any]):
    run = tiny(engine="virtual", pushes=24, **fields)
    with_tensors, without = (finished(run.but(engine=engine))
                             for engine in ("virtual", "timing"))  # fmt: skip
    assert np.array_equal(with_tensors.phases, without.phases)
    one, two = (
        pd.DataFrame(each.pushes, columns=PUSH_COLUMNS).drop(columns="loss") for each in (with_tensors, without)
    )
    pd.testing.assert_frame_equal(one, two)
    pushes = two.assign(loss=np.nan)[list(PUSH_COLUMNS)].astype(dict.fromkeys(PUSH_COLUMNS[:7], int))
    assert judge(run.but(engine="timing"), {"pushes": pushes}, without.facts).verdict != "invalid"


def test_a_large_model_needs_no_tensors():
    run = Run(model="torchvision:vgg16", engine="timing", ranges="layers", cluster={"compute_s": 0.5})
    experiment = resolve(run)
    assert experiment.keyspace.size == 138_357_544
    assert experiment.weights.device.type == "meta"
    assert len(experiment.parts) == len(experiment.layer_shares) == 16


def test_a_presets_costs_are_those_of_the_runs_own_weights():
    size = sum(part.size for part in resolve(tiny(engine="timing", cluster="lab")).parts)
    ours, given = (resolve(tiny(engine="timing", cluster=cluster)).cluster
                   for cluster in ("lab", {"preset": "lab", "decode_s": 1.0}))  # fmt: skip
    assert ours.select_s == pytest.approx(1.4e-3 * size / MEASURED)
    assert ours.message_s == PRESETS["lab"]["message_s"]
    assert (given.decode_s, given.apply_s) == (1.0, ours.apply_s)
    assert resolve(Run(engine="timing", cluster="lab")).cluster == Cluster(**PRESETS["lab"])


def test_a_worker_that_got_no_answer_would_have_got_that_of_the_others_in_its_round():
    job = job_without_tensors(resolve(tiny(engine="timing", workers=2, cluster="lab")))
    answers = {(0, 0): 100.0, (1, 0): 0.0, (0, 1): 300.0, (1, 1): 0.0}
    sizes = RecordedSizes(job, {push: {"bytes_down": size} for push, size in answers.items()})
    laid = [sizes.lay(Reply(Pull(1, 0, iteration, 0, Wanted(0, 0)), 1, NO_WORKER)) for iteration in (1, 2, 3)]
    assert laid == [100, 300, WHOLE]
