"""What no engine can run is refused before a process starts, with the field that is wrong."""

from __future__ import annotations

from typing import Any

import pytest
from tiny import tiny

from pslab.errors import ConfigError
from pslab.lab.runs.resolve import resolve
from pslab.policies.rates import Applied, Split


class Doubled:
    """A rate of the user's: a factor and no more."""

    def scale(self, step: Applied) -> float:
        return 2.0 / step.workers


class Unknown(Doubled):
    needs = "square"


LINK = {"bandwidth_bit_s": 4e6, "latency_s": 1e-4, "compute_s": 4e-3}
LAYERED = {"engine": "virtual", "cluster": LINK, "ranges": "layers"}
RANGED = {"engine": "virtual", "cluster": LINK, "prune": "range:5", "pull": "range"}


def layer_shares(*shares: tuple[float, float]) -> dict[str, Any]:
    return {**LAYERED, "cluster": {"compute_s": 1.0, "layer_shares": shares}}


@pytest.mark.parametrize(
    ("fields", "words", "field"),
    [
        ({"engine": "virtual", "cluster": "free"}, None, "cluster"),
        ({"engine": "timing", "cluster": "lab", "prune": "static:1%"}, None, "prune"),
        ({"engine": "timing", "cluster": "lab", "target_accuracy": 0.9}, None, "target_accuracy"),
        ({"engine": "virtal"}, None, "engine"),
        ({"engine": "local", "cluster": {"preset": "lab", "leave": {1: 2.0}}}, "virtual time", "cluster.leave"),
        ({"engine": "local", "cluster": {**LINK, "bandwidth_at": {1.0: 1e6}}}, "virtual time", "cluster.bandwidth_at"),
        ({"engine": "virtual", "cluster": {"preset": "lab", "join": {4: 2.0}}}, None, "cluster.join"),
        ({"engine": "virtual", "cluster": {"compute_s": 1, "join": dict.fromkeys(range(4), 2)}}, None, "cluster.join"),
        ({**LAYERED, "ranges": "whole", "order": "filo"}, "nothing to choose among: set ranges='layers'", "order"),
        ({**LAYERED, "sync": "eager"}, "asks for the whole model", "sync"),
        ({**LAYERED, "sync": "local:4"}, "pushes after several gradients", "sync"),
        ({**LAYERED, "ranges": "layer"}, "did you mean 'layers'", "ranges"),
        (layer_shares((1, 1)), "of the model's 2 layers", "cluster.layer_shares"),
        (layer_shares((1, -1), (1, 1)), "a pair for each", "cluster.layer_shares"),
        ({"engine": "virtual", "cluster": {"overhead_s": 1.0}}, "needs a bandwidth_bit_s", "cluster.overhead_s"),
        ({**RANGED, "pull": "whole"}, "set pull='range'", "pull"),
        ({**RANGED, "pull": "changed"}, "set pull='range'", "pull"),
        ({**RANGED, "prune": "none"}, "prune='range:300'", "pull"),
        ({**RANGED, "prune": "static:1%"}, "prune='range:300'", "pull"),
        ({**RANGED, "optimizer": "adam"}, "local_apply=off", "prune"),
        ({**RANGED, "rate": "dynsgd"}, "local_apply=off", "prune"),
        ({"rate": Unknown()}, "did you mean 'squares'", "rate"),
        ({"rate": "dynsgd", "push_weight": 1.0}, "use rate: constant, modulated", "push_weight"),
        ({"rate": Split(), "push_weight": 0.5}, "does not read it", "push_weight"),
        ({"prune": "dgc:1%", "optimizer": "sgd:momentum=0.9"}, "keeps momentum at the worker", "optimizer"),
        ({"prune": "dgc:1%", "optimizer": "adam"}, "use optimizer='sgd'", "optimizer"),
        ({"prune": "dgc:1%,masking=off", "optimizer": "sgd:momentum=0.9"}, "momentum=0 in the rule", "optimizer"),
        ({"prune": "dgc:1%,clip=1", "ranges": "layers"}, "clip needs the norm of the whole gradient", "prune"),
    ],
)
def test_fields_that_do_not_go_together_are_refused(fields: dict[str, Any], words: str | None, field: str):
    with pytest.raises(ConfigError, match=words) as error:
        resolve(tiny(**fields))
    assert error.value.field == field


@pytest.mark.parametrize(
    "fields",
    [{**RANGED, "prune": "range:5,local_apply=off", "optimizer": "adam"}, {"prune": "dgc:1%", "ranges": "layers"},
     {"prune": "dgc:1%,clip=1"}, {"prune": "dgc:1%,momentum=0", "optimizer": "sgd:momentum=0.9"},
     {"prune": "dgc:1%", "optimizer": "sgd"}],
)  # fmt: skip
def test_allowed_combinations_are_not_refused(fields: dict[str, Any]):
    resolve(tiny(**fields))


@pytest.mark.parametrize("rate", ["constant", "modulated", Doubled()])
def test_a_rate_that_reads_the_weight_of_a_push_may_have_one(rate: Any):
    assert resolve(tiny(rate=rate, push_weight=1.0)).run.push_weight == 1.0
