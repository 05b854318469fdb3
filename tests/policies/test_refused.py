"""What no policy can be, and what a method or an eager worker cannot be run with: the field, and what is allowed."""

from __future__ import annotations

import functools

from refusals import check_refused
from tiny import tiny

from pslab.config.spec import build
from pslab.lab.runs.resolve import resolve
from pslab.policies.rates import AdaGrad, DynSGD, Modulated, Split

VALUES: list[tuple[str, str, str]] = [
    ("sync", "backup:-1", "spare=-1: must be a whole number of at least 0"),
    ("sync", "local:0", "period=0: must be a whole number of at least 1"),
    ("sync", "local:2,after=-1", "after=-1: must be"),
    ("sync", "eager:0", "must be a whole number of at least 1, or None"), ("sync", "eager:-1", "at least 1"),
    ("sync", "dssp:-1,3", "low=-1: must be a whole number of at least 0"), ("sync", "dssp:1,-3", "extra=-3"),
    ("sync", "dssp:3,12,grant=litteral", "did you mean 'literal'"),
    ("sync", "dssp:3,12,interval=start", "allowed: push, release"),
    ("sync", "dssp:3,12,cap=maybe", "cap='maybe' cannot be read"),
    ("sync", "elastic:0", "iterations=0: must be"), ("sync", "elastic:15,k=0", "k=0: must be"),
    ("sync", "elastic:15,weight=0", "weight=0.0: must be a number above 0"),
    ("sync", "elastic:15,search=optb", "did you mean 'optbs'"),
    ("sync", "elastic:15,predict=mean", "allowed: ewma, last, median"),
    ("rate", "dynsgd:version", "versions"), ("rate", "adagrad:both", "server, worker"),
    ("rate", "adagrad:server,eps=0", "eps"), ("rate", "split:fast", "staleness"), ("rate", "split:clamp=0", "clamp"),
    ("rate", "split:clamp=nan", "clamp"), ("rate", "split:clamp=inf", "clamp"), ("rate", "modulated:ofset", "offset"),
    ("rate", "modulated:offset,2", "takes"), ("rate", "constant:0.5", "no parameters"),
    ("schedule", "steps:0", "above 0"), ("schedule", "steps:1.5", "at most 1"),
    ("schedule", "steps:at=0.5/1", "shares of the budget"), ("schedule", "steps:at=", "shares|at="),
    ("schedule", "cosine:warm=-1", "at least 0|from 0"), ("schedule", "cosine:end=2", "from 0 to 1"),
    ("schedule", "cosine:warn=20", "did you mean 'warm'"), ("schedule", "cosine:warm=20,steps=20", "fewer than the 20"),
    ("schedule", "warmup:1,then=cosine:warm=2", "without a warm-up, such as linear"),
    ("schedule", "warmup", "needs epochs"), ("schedule", "warmup:0", "above 0"),
    ("schedule", "warmup:1,start=2", "start"), ("schedule", "warmup:1,then=lineer", "did you mean 'linear'"),
    ("schedule", "warmup:1,then=warmup:1", "without a warm-up"), ("schedule", "warmup:1,then=steps:0", "above 0"),
    ("order", "front:0", "credit=0: must be a whole number of at least 1, or None"),
    ("ranges", "layers:0", "most=0: must be a whole number of at least 1"),
    ("prune", "static:1", "1 is the whole: for 1 in a hundred write 1%, for everything 100%"),
    ("prune", "static:5", "write 5%"), ("prune", "dgc:fraction=1", "1%"), ("prune", "dgc:sample=10", "10%"),
]  # fmt: skip


def test_parameters_that_no_policy_has_in_a_string_or_an_object():
    check_refused((kind, functools.partial(build, kind, text), words) for kind, text, words in VALUES)
    check_refused((field, make, "allowed|above 0") for field, make in (
        ("variant", lambda: DynSGD("A")), ("accumulator", lambda: AdaGrad("me")), ("alpha", lambda: Split("all")),
        ("form", lambda: Modulated("x")), ("eps", lambda: AdaGrad(eps=True)),
        ("clamp", lambda: Split(clamp="10"))))  # type: ignore[arg-type]  # fmt: skip


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
    ({"sync": "diloco:4,periods=4;4;4;0"}, "sync", "must be whole numbers of at least 1"),
    ({"sync": "diloco:4", "inner": "adamv"}, "inner", "unknown name 'adamv'; did you mean 'adam"),
    ({"sync": "diloco:4", "inner": "lbfgs"}, "inner", "lbfgs is not elementwise"),
    ({"sync": "diloco:4", "inner": "sgd:clip=0"}, "inner", "must be a number above 0"),
    ({"sync": "diloco:4", "inner": "sgd:clip=much"}, "inner", "must be a number above 0"),
    ({"sync": "diloco:4", "inner": "adamw:lr=1"}, "inner", "set learning_rate instead"),
    ({"sync": "adiloco:4,staleness=-1"}, "sync", "a whole number of at least 0, or None"),
    ({"sync": "adiloco:0"}, "sync", "a whole number of at least 1"),
    ({"workers": 1, "sync": "easgd:2,beta=1"}, "sync", "worker and the center would swap weights"),
    ({"sync": "easgd:2", "optimizer": "sgd:momentum=0.9"}, "optimizer", "by the pushes alone: use optimizer='sgd'"),
    ({"sync": "easgd:2,beta=1.5"}, "sync", "a number above 0 and at most 1"),
    ({"sync": "easgd:2,beta=0"}, "sync", "a number above 0 and at most 1"),
    ({"sync": "streaming:10,4"}, "sync", "fragments=4: must divide the period of 10 steps, as 5 does"),
    ({"sync": "streaming:10,2,overlap=5"}, "sync", "overlap=5: must be less than the 5 steps between two pushes"),
    ({"sync": "streaming:10,2,merge=carry,alpha=0.5"}, "sync", "alpha=0.5: is a parameter of merge=mix"),
    ({"sync": "streaming:10,2,merge=mean"}, "sync", "allowed: carry, mix, replace"),
    ({"sync": "streaming:10,2,layout=stridden"}, "sync", "did you mean 'strided'"),
    ({"sync": "streaming:9,3,layout=balanced"}, "fragments", "layout=balanced the model has layers for 2 only"),
    ({"sync": "streaming:9,3"}, "fragments", "layout=strided the model has blocks for 2 only: use"),
    ({"sync": "streaming:4,2", "servers": 3}, "servers", "servers=3"),
    ({"sync": "streaming:4,2", "pull": "keys"}, "pull", "pull='keys'"),
    ({"sync": "decoupled:6,2,quorum=0"}, "sync", "quorum=0: must be a whole number of at least 1"),
    ({"sync": "decoupled:6,0"}, "sync", "fragments=0: must be a whole number of at least 1"),
    ({"sync": "decoupled:6,12"}, "sync", "fragments=12: must divide the period of 6 steps"),
    ({"sync": "decoupled:6,2,average=rdb"}, "sync", "did you mean 'rda'"),
    ({"sync": "decoupled:6,2", "quantize": "sign"}, "quantize", "change every weight by the whole outer_learning_rate"),
    ({"sync": "decoupled:6,2", "prune": "ef21:1%"}, "prune", "which sync='decoupled:6,2' does not ensure"),
    ({"sync": "admm:2", "prune": "static:1%"}, "prune", "and needs all of them: use prune='none'"),
    ({"sync": "admm:2", "optimizer": "adam"}, "optimizer", "use optimizer='sgd'"),
    ({"sync": "admm:2", "rate": "dynsgd"}, "rate", "and no rate scales them: use rate='constant'"),
    ({"sync": "downpour:2,1", "prune": "range:9", "pull": "range"}, "prune", "needs a push after every fetch"),
    ({"sync": "downpour:2,1", "on_death": "restart", "engine": "local"}, "on_death", "would lack the weights"),
    ({"sync": "average", "pushes": None, "seconds": 1.0}, "pushes", "needs the run's length"),
]  # fmt: skip


def test_fields_that_a_method_or_an_eager_worker_cannot_be_run_with():
    check_refused((field, lambda fields=fields: resolve(tiny(**{"engine": "virtual", "cluster": "lab", **fields})),
                   words) for fields, field, words in RUNS)  # fmt: skip
    for fields, _, _ in FORESEEN:
        resolve(tiny(sync="eager:rmw=off", **fields))
