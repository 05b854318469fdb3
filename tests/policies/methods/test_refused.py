"""What a method cannot be run with is refused, with the field and what is allowed."""

from __future__ import annotations

import re

import pytest
from tiny import tiny

from pslab.errors import ConfigError
from pslab.lab.runs.resolve import resolve

CHANGES = ("diloco:4", "adiloco:4", "easgd:2", "streaming:4,2", "decoupled:6,2")  # whose pushes are changes of weights
REFUSED: list[tuple[dict[str, object], str, str]] = [
    *(({"sync": sync, "prune": "dgc:5%"}, "prune", "whose momentum is the server's: use none, static, std, dynamic")
      for sync in CHANGES),
    *(({"sync": sync, "rate": "dynsgd"}, "rate", "which outer_learning_rate scales: use constant") for sync in CHANGES),
    *(({"sync": sync, "ranges": "layers"}, "sync", "pushes after several gradients")
      for sync in ("admm:2", *CHANGES)),
    ({"sync": "bsp", "inner": "adamw"}, "inner", "is for workers that train by themselves"),
    ({"sync": "local:4", "outer_learning_rate": 0.7}, "outer_learning_rate", "is for workers that train"),
    ({"sync": "diloco:4,periods=4;4"}, "sync", "gives periods to 2 workers, and the run has 4"),
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
    ({"workers": 1, "sync": "easgd:2,beta=1"}, "sync", "weights and those of the center would change places"),
    ({"sync": "easgd:2", "optimizer": "sgd:momentum=0.9"}, "optimizer", "forces alone: use sgd"),
    ({"sync": "easgd:2,beta=1.5"}, "sync", "a number above 0 and at most 1"),
    ({"sync": "easgd:2,beta=0"}, "sync", "a number above 0 and at most 1"),
    ({"sync": "streaming:10,4"}, "sync", "fragments=4: must divide the period of 10 steps, as 5 does"),
    ({"sync": "streaming:10,2,overlap=5"}, "sync", "overlap=5: must be less than the 5 steps between two pushes"),
    ({"sync": "streaming:10,2,merge=carry,alpha=0.5"}, "sync", "alpha=0.5: is of merge=mix"),
    ({"sync": "streaming:10,2,merge=mean"}, "sync", "allowed: carry, mix, replace"),
    ({"sync": "streaming:10,2,layout=stridden"}, "sync", "did you mean 'strided'"),
    ({"sync": "streaming:9,3,layout=balanced"}, "fragments", "the model makes 2 of its layers: use 2, or"),
    ({"sync": "streaming:9,3"}, "fragments", "the model makes 2 of its blocks by layout=strided: use 2, or"),
    ({"sync": "streaming:4,2", "servers": 3}, "servers", "servers=3"),
    ({"sync": "streaming:4,2", "pull": "keys"}, "pull", "pull='keys'"),
    ({"sync": "decoupled:6,2,quorum=0"}, "sync", "quorum=0: must be a whole number of at least 1"),
    ({"sync": "decoupled:6,0"}, "sync", "fragments=0: must be a whole number of at least 1"),
    ({"sync": "decoupled:6,12"}, "sync", "fragments=12: must divide the period of 6 steps"),
    ({"sync": "decoupled:6,2,average=rdb"}, "sync", "did you mean 'rda'"),
    ({"sync": "decoupled:6,2", "quantize": "sign"}, "quantize", "moves every weight by the whole outer_learning_rate"),
    ({"sync": "decoupled:6,2", "prune": "ef21:1%"}, "prune", "this policy's steps are no rounds"),
    ({"sync": "admm:2", "prune": "static:1%"}, "prune", "none of which is to be left out"),
    ({"sync": "admm:2", "optimizer": "adam"}, "optimizer", "use sgd"),
    ({"sync": "admm:2", "rate": "dynsgd"}, "rate", "which no rate scales"),
    ({"sync": "downpour:2,1", "prune": "range:9", "pull": "range"}, "prune", "ranges of keys in turn"),
    ({"sync": "downpour:2,1", "on_death": "restart", "engine": "local"}, "on_death", "would be lost"),
    ({"sync": "average", "pushes": None, "seconds": 1.0}, "pushes", "needs a budget"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "field", "words"), REFUSED)
def test_what_a_method_cannot_be_run_with(fields, field, words):
    with pytest.raises(ConfigError) as caught:
        resolve(tiny(**{"engine": "virtual", "cluster": "lab", **fields}))
    assert caught.value.field == field, str(caught.value)
    assert words in re.sub(r"\s+", " ", str(caught.value))
