"""What no policy can be, and what a method or an eager worker cannot be run with: the field, and what is allowed."""

from __future__ import annotations

import functools

from refusals import check_refused
from tiny import tiny

from pslab.config.spec import build
from pslab.lab.runs.resolve import resolve

VALUES: list[tuple[str, str, str]] = [
    ("sync", "dssp:3,12,cap=maybe", "cap='maybe' cannot be read"),
    ("rate", "modulated:offset,2", "takes"), ("rate", "constant:0.5", "no parameters"),
    ("rate", "split:clamp=inf", "clamp"),
    ("schedule", "steps:at=0.5/1", "shares of the budget"), ("schedule", "steps:at=", "shares|at="),
    ("schedule", "cosine:warn=20", "did you mean 'warm'"), ("schedule", "cosine:warm=20,steps=20", "fewer than the 20"),
    ("schedule", "warmup:1,then=cosine:warm=2", "without a warm-up, such as linear"),
    ("schedule", "warmup", "needs epochs"), ("schedule", "warmup:1,then=lineer", "did you mean 'linear'"),
    ("schedule", "warmup:1,then=warmup:1", "without a warm-up"), ("schedule", "warmup:1,then=steps:0", "above 0"),
    ("prune", "static:1", "1 is the whole: for 1 in a hundred write 1%, for everything 100%"),
    ("prune", "static:5", "write 5%"), ("prune", "dgc:fraction=1", "1%"), ("prune", "dgc:sample=10", "10%"),
]  # fmt: skip


class ByStaleness:
    """A rate that depends on what the worker cannot know."""

    def scale(self, step):
        return 1.0 / (1 + step.staleness)


CHANGES = ("diloco:4", "adiloco:4", "easgd:2", "streaming:4,2", "decoupled:6,2")  # whose pushes are changes of weights
FORESEEN: list[tuple[dict[str, object], str, str]] = [
    ({"optimizer": "sgd:momentum=0.9"}, "sync", "the server's step"), ({"optimizer": "adam"}, "sync", "server's step"),
    ({"rate": ByStaleness()}, "sync", "compute the rate"),
]  # fmt: skip
RUNS: list[tuple[dict[str, object], str, str]] = [
    *(({"sync": "eager", **fields}, field, words) for fields, field, words in FORESEEN),
    *(({"sync": sync, "prune": "dgc:5%"}, "prune", "may not be added: use none, static, std or dynamic")
      for sync in CHANGES),
    *(({"sync": sync, "rate": "dynsgd"}, "rate", "and outer_learning_rate scales them")
      for sync in CHANGES),
    *(({"sync": sync, "ranges": "layers"}, "sync", "pushes after several gradients")
      for sync in ("admm:2", *CHANGES)),
    ({"sync": "bsp", "inner": "adamw"}, "inner", "applies only if workers take steps between exchanges"),
    ({"sync": "local:4", "outer_learning_rate": 0.7}, "outer_learning_rate", "applies only if workers take steps"),
    ({"sync": "diloco:4,periods=4;4"}, "sync", "has periods for 2 workers, and the run has 4"),
    ({"sync": "diloco:4,periods=3;3;3;2"}, "sync", "the largest of them the period, 4"),
    ({"sync": "diloco:4,periods=4;3;x;2"}, "sync", "must be whole numbers of at least 1"),
    ({"sync": "diloco:4", "inner": "adamv"}, "inner", "unknown name 'adamv'; did you mean 'adam"),
    ({"sync": "diloco:4", "inner": "lbfgs"}, "inner", "lbfgs is not elementwise"),
    ({"sync": "diloco:4", "inner": "sgd:clip=much"}, "inner", "must be a number above 0"),
    ({"sync": "diloco:4", "inner": "adamw:lr=1"}, "inner", "set learning_rate instead"),
    ({"workers": 1, "sync": "easgd:2,beta=1"}, "sync", "worker and the center would swap weights"),
    ({"sync": "easgd:2", "optimizer": "sgd:momentum=0.9"}, "optimizer", "by the pushes alone: use optimizer='sgd'"),
    ({"sync": "streaming:10,4"}, "sync", "fragments=4: must divide the period of 10 steps, as 5 does"),
    ({"sync": "streaming:10,2,overlap=5"}, "sync", "overlap=5: must be less than the 5 steps between two pushes"),
    ({"sync": "streaming:10,2,merge=carry,alpha=0.5"}, "sync", "alpha=0.5: is a parameter of merge=mix"),
    ({"sync": "streaming:9,3,layout=balanced"}, "fragments", "layout=balanced the model has layers for 2 only"),
    ({"sync": "streaming:9,3"}, "fragments", "layout=strided the model has blocks for 2 only: use"),
    ({"sync": "streaming:4,2", "servers": 3}, "servers", "servers=3"),
    ({"sync": "streaming:4,2", "pull": "keys"}, "pull", "pull='keys'"),
    ({"sync": "decoupled:6,12"}, "sync", "fragments=12: must divide the period of 6 steps"),
    ({"sync": "decoupled:6,2", "quantize": "sign"}, "quantize", "change every weight by the whole outer_learning_rate"),
    ({"sync": "decoupled:6,2", "prune": "ef21:1%"}, "prune", "which sync='decoupled:6,2' does not ensure"),
    ({"sync": "admm:2", "prune": "static:1%"}, "prune", "and needs all of them: use prune='none'"),
    ({"sync": "admm:2", "optimizer": "adam"}, "optimizer", "use optimizer='sgd'"),
    ({"sync": "admm:2", "rate": "dynsgd"}, "rate", "and no rate scales them: use rate='constant'"),
    ({"sync": "downpour:2,1", "prune": "range:9", "pull": "range"}, "prune", "needs a push after every fetch"),
    ({"sync": "downpour:2,1", "on_death": "restart", "engine": "local"}, "on_death", "would lack the weights"),
    ({"sync": "average", "pushes": None, "seconds": 1.0}, "pushes", "needs the run's length"),
]  # fmt: skip


def test_parameters_that_no_policy_has_and_fields_that_a_method_or_an_eager_worker_cannot_be_run_with():
    check_refused((kind, functools.partial(build, kind, text), words) for kind, text, words in VALUES)
    check_refused((field, lambda fields=fields: resolve(tiny(**{"engine": "virtual", "cluster": "lab", **fields})),
                   words) for fields, field, words in RUNS)  # fmt: skip
    for fields, _, _ in FORESEEN:
        resolve(tiny(sync="eager:rmw=off", **fields))
