"""What rules, optimizers and rates cost in virtual time, by hand."""

from __future__ import annotations

import pytest
from conducted import judged
from ownpolicies import Largest
from tiny import tiny
from whole import in_process

from pslab.config.cluster import APPLY_FACTORS, SELECT_FACTORS
from pslab.config.table import ROWS
from pslab.engines.experiment.experiment import Experiment
from pslab.engines.worker.phases import APPLY
from pslab.lab.runs.resolve import resolve
from pslab.tensors.update import rate_state
from pslab.tensors.update.optimizers import ELEMENTWISE

SPARSE = {"prune": "static:5%", "pull": "changed"}
COSTS = {"compute_s": 1.0, "select_s": 0.25, "apply_s": 0.5}


def found(**fields: object) -> Experiment:
    return resolve(tiny(engine="virtual", sync="asp", **{"cluster": COSTS, **fields}))


@pytest.mark.parametrize(
    ("fields", "select", "apply"),
    [
        ({}, 0.0, 1.0),
        (SPARSE, 1.0, 1.0),
        ({**SPARSE, "prune": "dynamic:mode=ratchet"}, SELECT_FACTORS["dynamic"], 1.0),
        ({**SPARSE, "prune": Largest()}, 1.0, 1.0),
        ({"rate": "adagrad"}, SELECT_FACTORS["own squares"], 1.0),
        ({**SPARSE, "rate": "adagrad"}, 1.0 + SELECT_FACTORS["own squares"], 1.0),
        ({"rate": "adagrad:server"}, 0.0, APPLY_FACTORS["squares"][0]),
        ({**SPARSE, "rate": "split"}, 1.0, APPLY_FACTORS["directions"][1]),
        ({"rate": "split:identity"}, 0.0, 1.0),
        ({"optimizer": "sgd:momentum=0.9"}, 0.0, APPLY_FACTORS["sgd"][0]),
        ({**SPARSE, "optimizer": "nadam"}, 1.0, APPLY_FACTORS["other"][1]),
        ({"rate": "split", "optimizer": "adam"}, 0.0, APPLY_FACTORS["directions"][0] + APPLY_FACTORS["adam"][0] - 1),
        ({"rate": "split", "cluster": {**COSTS, "apply_factor": {"directions": [7, 2]}}}, 0.0, 7.0),
        ({**SPARSE, "cluster": {**COSTS, "select_factor": {"static": 2}}}, 2.0, 1.0),
    ],
)  # fmt: skip
def test_a_kind_costs_its_factor(fields, select, apply):
    experiment = found(**fields)
    assert experiment.select_factor == pytest.approx(select)
    assert experiment.apply_factor == pytest.approx(apply)


def test_every_rule_and_everything_that_a_rate_keeps_has_a_factor():
    assert set(ROWS["prune"]) | set(rate_state.AT_WORKER) == set(SELECT_FACTORS)
    assert set(rate_state.AT_SERVER) < set(APPLY_FACTORS)
    assert set(APPLY_FACTORS) - set(rate_state.AT_SERVER) - {"other"} < set(ELEMENTWISE)


@pytest.mark.one_of(2)
@pytest.mark.parametrize(
    ("fields", "select_s", "apply_s"),
    [
        ({}, 0.0, 0.5),
        ({"rate": "split"}, 0.0, 1.5),
        ({"rate": "split", **SPARSE}, 0.25, 1.0),
        ({"prune": "std:1", "pull": "changed"}, 0.5, 0.5),
        ({"rate": "adagrad"}, 0.125, 0.5),
    ],
)
def test_virtual_time_passes_by_the_costs_of_the_rule_and_the_rate(fields, select_s, apply_s):
    factors = {"select_factor": {"std": 2, "own squares": 0.5}, "apply_factor": {"directions": [3, 2]}}
    fields = {"engine": "virtual", "sync": "asp", "workers": 1, "pushes": 2, "cluster": {**COSTS, **factors}, **fields}
    for ranges in ("whole", "layers"):
        wanted = tiny(ranges=ranges, **fields)
        outcome = in_process(wanted)
        assert judged(wanted, outcome) == {"verdict": "valid"}
        _, iteration, phase, begin_s, end_s, *_ = outcome.phases.T
        assert (end_s - begin_s)[(phase == APPLY) & (iteration == 0)].sum() == pytest.approx(apply_s)
        assert ranges == "layers" or outcome.facts["seconds"] == 2 * (1 + select_s + apply_s)
