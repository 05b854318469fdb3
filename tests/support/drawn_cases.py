"""Random runs in virtual time with real gradients: policy, cluster and faults of a chaos run, and rules of all kinds.

A new policy, rule, code, rate or fault is drawn here by its name. All train on the digits of `tiny`.
"""

from __future__ import annotations

import random
from functools import partial
from typing import Any

from tiny import Attention, Odd, digits, net
from tools.chaos.draw import drawn

from pslab.config.run import Run
from pslab.errors import ConfigError
from pslab.lab.runs.resolve import resolve

RULES = ("static:5%", "static:20%,mode=frozen", "std:2", "dgc:5%,warm_up=1", "adaq:10%", "dynamic:mode=ratchet",
         "randomk:10%", "threshold:0.01", "lowrank:1")  # fmt: skip
OF_ROUNDS = ("powersgd:1", "ef21:10%", "demo:topk=4,chunk=16", "sketch:cols=30")  # which need a push of every worker
CODES = ("fp16", "int8", "qsgd:4", "efsign", "onebit", "signum", "e3m0", "natural:residual=on")
RATES = ("constant", "dynsgd", "adagrad", "adagrad:server", "split", "modulated")
MODELS = {"small": net, "wide": partial(net, 96), "attention": Attention, "odd": Odd}


def case(seed: int) -> Run:
    """The policy, the cluster and the faults of a chaos run, and real gradients with rules of all kinds."""
    plain, draw = drawn(7, seed, "timing"), random.Random(seed)
    fields: dict[str, Any] = {
        "model": MODELS[draw.choice([*MODELS])], "data": digits, "engine": "virtual", "learning_rate": 0.02,
        "dtype": draw.choice(["float32", "float64"]), "eval_every": draw.choice([10**6, 5]),
        "schedule": draw.choice(["constant", "linear", "steps:0.1,at=0.5"]),
    }  # fmt: skip
    if not {"leave", "join"} & {*plain.cluster} and "kill" not in str(plain.cluster["faults"]):
        fields["on_death"] = "stop"  # some rules forget what a worker kept that dies
    if plain.ranges != "whole":
        fields["ranges"] = draw.choice(["layers", "layers:700"])
    if plain.prune == "none" and draw.random() < 0.6:
        fields |= {"prune": draw.choice(RULES), "pull": draw.choice(["whole", "changed"])}
    if plain.prune == "none" and plain.sync == "bsp" and draw.random() < 0.85:
        fields |= {"prune": draw.choice(OF_ROUNDS), "pull": "whole"}
    if draw.random() < 0.4:
        fields["quantize"] = draw.choice(CODES)
    if draw.random() < 0.3:
        fields["downlink"] = draw.choice(["int8", "static:20%+fp16", "efsign"])
    fields["rate"], fields["optimizer"] = draw.choice(RATES), draw.choice(["sgd", "sgd", "sgd:momentum=0.5", "adam"])
    for dropped in ((), ("downlink",), ("rate", "optimizer"), ("quantize",), ("rate", "optimizer", "downlink"),
                    ("rate", "optimizer", "downlink", "quantize"), ("prune", "pull"),
                    ("rate", "optimizer", "downlink", "quantize", "prune", "pull")):  # fmt: skip
        try:
            run = plain.but(**{name: value for name, value in fields.items() if name not in dropped})
            resolve(run)
        except ConfigError:  # fields that exclude each other
            continue
        return run
    return plain.but(model=net, data=digits, engine="virtual")
