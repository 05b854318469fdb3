"""What no engine can run is refused before a process starts, with the field that is wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from ownpolicies import ByLoss, Doubled
from refusals import check_refused
from tiny import net, tiny
from torch import nn

from pslab.lab.runs.resolve import resolve
from pslab.policies.orders import Ready
from pslab.policies.partition import Cut
from pslab.policies.rates import Split
from pslab.protocol.requests import Request, View
from pslab.tensors.workload.models import Linear


class Unknown(Doubled):
    needs = "square"


class Squared(Doubled):
    needs = "squares"


class Directed(Doubled):
    needs = "directions"
    clamp = 10.0


class Credited:
    """An order of the user's with a credit, and nothing that says what the credit admits."""

    credit = 1000

    def pick(self, ready: Ready, view: View) -> Request:
        return ready[-1]


class Cuts:
    """Ranges of the user's."""

    layered = True

    def __init__(self, *edges: int) -> None:
        self.edges = edges

    def cut(self, layers: Sequence[slice]) -> tuple[Cut, ...]:
        return tuple(Cut(0, *each) for each in pairwise(self.edges))


def beside(kind: str, *values: complex, dtype: torch.dtype) -> Callable[[], nn.Module]:
    """A factory of a net with a buffer or a frozen parameter of this dtype."""

    def model() -> nn.Module:
        module, more = net(), torch.tensor(values, dtype=dtype)
        if kind == "buffer":
            module.register_buffer("more", more)
        else:
            module.more = nn.Parameter(more, requires_grad=False)
        return module

    return model


LINK = {"bandwidth_bit_s": 4e6, "latency_s": 1e-4, "compute_s": 4e-3}
LAB = {"engine": "timing", "cluster": "lab"}
LAYERED = {"engine": "virtual", "cluster": LINK, "ranges": "layers"}
RANGED = {"engine": "virtual", "cluster": LINK, "prune": "range:5", "pull": "range"}


KEYS = 240
KEYED = {"data": f"planted:rows=200,keys={KEYS},per_row=6,communities=4", "model": "linear", "pull": "keys",
         "workers": 3, "batch_size": 8}  # fmt: skip
DENSE = {"compute_s": 0.02, "bandwidth_bit_s": 8e6}
RING = {**DENSE, "aggregate": "allreduce"}
SIZES = {"engine": "timing", "cluster": DENSE, "model": "sizes:resnet18"}
GPT = {"model": "gpt:8,layers=1", "data": "text:128,32", "metric": "loss", "batch_size": 4}


class Whole(Linear):
    """A model that cannot do with the keys of a batch."""

    def __init__(self) -> None:
        super().__init__(KEYS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[1] != KEYS:
            raise ValueError("all keys are wanted")
        return super().forward(x)


FINE = 2.0**24 + 1  # which float32 rounds
UNKNOWN = r"known lengths of messages: use (none, static, dgc, .*, with pull='whole'|static, a code)"

Rows = list[tuple[dict[str, Any], str, str]]


def with_all(given: dict[str, Any], rows: Rows) -> Rows:
    """Add these fields to each row."""
    return [({**given, **fields}, words, field) for fields, words, field in rows]


#: What is asked for, words of the error, and the field that it names.
TABLE: Rows = [
    ({"engine": "virtual", "cluster": {}}, "", "cluster"), ({"engine": "virtal"}, "", "engine"),
    ({"engine": "local", "cluster": {"preset": "lab", "leave": {1: 2.0}}}, "virtual time", "cluster.leave"),
    ({"cluster": {"faults": [{"what": "kill", "worker": 1, "iteration": 2}]}}, "on_death='continue'", "on_death"),
    ({"cluster": {"restart_s": 9.0}}, "set on_death='restart', or leave restart_s out", "cluster.restart_s"),
    ({"cluster": {"faults": [{"what": "stop", "worker": 4, "at_s": 2}]}}, "no worker 4: .* to 3", "cluster.faults"),
    ({"engine": "local", "cluster": {**LINK, "bandwidth_at": {1.0: 1e6}}}, "virtual time", "cluster.bandwidth_at"),
    ({"engine": "virtual", "cluster": {"preset": "lab", "join": {4: 2.0}}}, "", "cluster.join"),
    ({"engine": "virtual", "cluster": {"compute_s": 1, "join": dict.fromkeys(range(4), 2)}}, "", "cluster.join"),
    ({"engine": "virtual", "cluster": {"overhead_s": 1.0}}, "set bandwidth_bit_s, such as", "cluster.overhead_s"),
    ({"schedule": "cosine:warm=10"}, "must be fewer than the 10 steps", "schedule"),
    ({"schedule": "cosine", "pushes": None, "seconds": 1.0}, "needs the run's length: set pushes", "schedule"),
    *with_all(LAB, [
        ({"target_accuracy": 0.9}, "", "target_accuracy"),
        ({"quantize": "inceptionn"}, "another code such as int8", "quantize"),
        ({"sync": ByLoss(2.0)}, "engine='timing' computes none", "sync"),
        ({"prune": "std:2"}, UNKNOWN, "prune"), ({"prune": "dynamic"}, UNKNOWN, "prune"),
        ({"prune": "static:1%,mode=frozen"}, UNKNOWN, "prune"), ({"downlink": "std:2"}, UNKNOWN, "downlink"),
        ({"prune": "sketch:cols=9", "pull": "changed"}, "use pull='whole'", "pull"),
    ]),
    # layers
    *with_all(LAYERED, [
        ({"ranges": "whole", "order": "filo"}, "one push and one pull to send: set ranges='layers'", "order"),
        ({"sync": "eager"}, "requests the whole model", "sync"),
        ({"sync": "local:4"}, "pushes after several gradients", "sync"),
        ({"ranges": "layer"}, "did you mean 'layers'", "ranges"),
        ({"cluster": {"compute_s": 1.0, "layer_shares": ((1, 1),)}}, "of the model's 2 layers", "cluster.layer_shares"),
        ({"cluster": {"compute_s": 1.0, "layer_shares": ((1, -1), (1, 1))}},
         r"must be \[forward, backward\] for each layer", "cluster.layer_shares"),
        ({"order": Credited()}, "has a credit and no admits", "order"),
        ({"order": "needed", "ranges": "layers:1", "model": partial(net, 120)},
         r"7210 ranges, but order='needed' can compare at most 4096 .*: use larger slices", "ranges"),
        ({"ranges": Cuts(0, 1000)}, r"cuts at \[0, 1000\]: ranges must follow .* to 1930", "ranges"),
        ({"ranges": Cuts(0, 7, 7, 1930)}, "each must have a weight", "ranges"),
        ({"engine": "local", "ranges": Cuts(0, 1930)}, "merges layers 0 to 1.*engine='virtual'", "ranges"),
        ({"prune": "lowrank:2", "ranges": "layers:64"}, "would be compressed: use prune='none'", "prune"),
        ({"prune": "dgc:1%,clip=1"}, "clip needs the norm of the whole gradient", "prune"),
        ({"engine": "timing", "model": "torchvision:inception_v3"},
         r"cannot be counted in a forward pass on an input \[1, 3, 224, 224\].*cluster.layer_shares", "model"),
    ]),
    # ranges in turn
    *with_all(RANGED, [
        ({"pull": "whole"}, "set pull='range'", "pull"), ({"pull": "changed"}, "set pull='range'", "pull"),
        ({"prune": "none"}, "prune='range:300'", "pull"), ({"prune": "static:1%"}, "prune='range:300'", "pull"),
        ({"optimizer": "adam"}, "local_apply=off", "prune"), ({"rate": "dynsgd"}, "local_apply=off", "prune"),
    ]),
    # rates
    ({"rate": Unknown()}, "did you mean 'squares'", "rate"),
    ({"rate": "dynsgd", "prune": "ef21:5%"}, "versions of each push, but prune='ef21:5%' combines pushes", "rate"),
    ({"rate": "split", "quantize": "sign", "sync": "backup:1"}, "quantize='sign' combines pushes", "rate"),
    ({"rate": "split", "prune": "powersgd:2", "sync": "local:3"}, "directions of each push", "rate"),
    ({"rate": Squared()}, "with needs='squares' a rate must have eps", "rate"),
    ({"rate": Directed()}, "with needs='directions' a rate must have share", "rate"),
    ({"rate": "dynsgd", "push_weight": 1.0}, "use rate: constant, modulated", "push_weight"),
    ({"rate": Split(), "push_weight": 0.5}, "does not read it", "push_weight"),
    # compression
    ({"prune": "dgc:1%", "optimizer": "sgd:momentum=0.9"}, "has momentum at the workers", "optimizer"),
    ({"prune": "dgc:1%", "optimizer": "adam"}, "use optimizer='sgd'", "optimizer"),
    ({"prune": "dgc:1%,masking=off", "optimizer": "sgd:momentum=0.9"}, "momentum=0 in the rule", "optimizer"),
    ({"quantize": "sign", "prune": "static:1%"}, "use prune='none', or quantize='efsign'", "quantize"),
    ({"quantize": "signum", "prune": "static:1%"}, "use prune='none', or quantize='efsign'", "quantize"),
    ({"quantize": "onebit", "prune": "static:1%,residual=off"}, "use residual=off in both", "quantize"),
    ({"quantize": "int8", "sync": "admm:3"}, "must be exact: use quantize='none'", "quantize"),
    ({"quantize": "sign", "sync": "diloco:4"}, "whole outer_learning_rate: use quantize='efsign'", "quantize"),
    ({"prune": "powersgd:10"}, "use a rank of at most 9, or prune='none'", "prune"),
    ({"prune": "demo", "pull": "changed"}, "changes all weights in each step: use pull='whole'", "pull"),
    ({"prune": "lowrank:2", "quantize": "qsgd:4"}, "these errors in its residual: use quantize='none'", "quantize"),
    *(({"prune": rule, "sync": sync}, "needs a push of every worker in each step", "prune") for rule, sync in (
        ("powersgd:2", "asp"), ("ef21:1%", "backup:1"), ("sketch:cols=9", "asp"), ("demo", "ssp:2"))),
    ({"prune": "sketch:cols=9", "sync": "decoupled:4"}, "which sync='decoupled:4' does not ensure", "prune"),
    ({"prune": "sketch:cols=9", "optimizer": "sgd:momentum=0.9"}, "includes momentum", "prune"),
    ({"prune": "sketch:cols=9", "sync": "diloco:2"}, "a policy that pushes gradients, not changes", "prune"),
    ({"prune": "demo", "optimizer": "adam"}, "includes momentum: use optimizer='sgd'", "prune"),
    ({"prune": "demo", "sync": "diloco:2"}, "includes momentum: use optimizer='sgd'", "prune"),
    ({"prune": "powersgd:2", "sync": "streaming:4,2"}, "such as static, or one fragment", "prune"),
    ({"prune": "ef21:1%", "sync": "diloco:4,periods=2;4;4;4,by=steps"}, "use by=workers", "sync"),
    ({"sync": "diloco:4,by=steps"}, "as in periods=50;50;25;12", "sync"),
    ({"sync": "diloco:4,periods=²;4"}, "must be whole numbers", "sync"),
    ({"prune": "ef21:1%", "on_death": "continue"}, "those of a dead worker: use on_death='stop'", "on_death"),
    ({"prune": "ef21:1%", "engine": "virtual", "cluster": {"compute_s": 1, "leave": {1: 2.0}}},
     "no worker may leave or join", "cluster.leave"),
    ({"downlink": "int8", "pull": "changed", "prune": "static:1%"}, "all weights: use pull='whole'", "pull"),
    ({"downlink": "int8", "prune": "powersgd:2"}, "answers must have only weights", "prune"),
    ({"downlink": "int8", "sync": "admm:3"}, "rho is for the exact weights", "sync"),
    # keys
    *with_all(KEYED, [
        ({"prune": "static:1%"}, "all entries", "prune"), ({"ranges": "layers"}, "one layer", "ranges"),
        ({"sync": "eager"}, "rmw=off", "sync"), ({"rate": "adagrad"}, "at the server", "rate"),
        ({"on_death": "restart"}, "stop or continue", "on_death"), ({"data": "mnist:512,128"}, "sparse rows", "pull"),
        ({"data": "mnist:512,128", "model": "mlp", "pull": "whole", "partition": "two-step"}, "sparse rows with keys",
         "partition"),
        ({"model": "mlp"}, f"one weight for each of the data's {KEYS} keys", "model"),
        ({"model": Whole}, "all keys are wanted", "model"),
        ({"placement": "parsa"}, "several servers", "placement"), ({"placement": "parso"}, "parsa", "placement"),
        ({"placement": "parsa", "servers": 2}, "workers with fixed examples", "placement"),
        ({"placement": "parsa", "servers": 2, "pull": "whole", "partition": "two-step"}, "pull='keys'", "placement"),
        ({"placement": "parsa", "servers": 4, "partition": "two-step"}, "server 3 of 4 without keys", "placement"),
        *(({"servers": most + 1, "engine": "virtual",
            "cluster": {"preset": "lab", "colocated": True, "per_host": per_host}},
           f"at most {most} servers", "cluster.colocated") for most, per_host in ((3, 1), (2, 2))),
    ]),
    # models of which only the sizes are known, and rings
    *with_all(SIZES, [
        ({"model": "sizes:resnet51"}, "did you mean 'resnet50'", "model"),
        ({"model": "sizes:10x-1"}, "neither a model with known sizes", "model"),
        ({"engine": "virtual"}, "only shapes.*engine='timing'.*torchvision:resnet50", "model"),
        ({"engine": "virtual", "model": "mlp", "cluster": {**DENSE, "wire_bytes": 2}}, "set quantize or downlink",
         "cluster.wire_bytes"),
        ({"cluster": {"preset": "lab", "costs": "epic-core"}}, "did you mean 'epyc-core'", "cluster.costs"),
    ]),
    *with_all({**SIZES, "cluster": RING}, [
        ({"sync": "asp"}, "every worker: use sync: bsp", "sync"), ({"servers": 2}, "use servers=1", "servers"),
        ({"prune": "static:1%"}, "use prune: none, powersgd", "prune"),
        ({"quantize": "int8"}, "none, fp16", "quantize"), ({"downlink": "int8"}, "use downlink='none'", "downlink"),
        ({"engine": "local", "model": "mlp"}, "use engine='virtual' or 'timing'", "engine"),
        *(({"cluster": {**RING, name: {0: value}}}, "as fast as its slowest link", f"cluster.{name}")
          for name, value in (("bandwidth_of", 1e6), ("latency_of", 0.1))),
        *(({"cluster": {**RING, name: value}}, "leave it out", f"cluster.{name}") for name, value in (
            ("colocated", True), ("server_bandwidth_bit_s", 1e9), ("leave", {0: 1.0}),
            ("faults", [{"what": "drop", "at_s": 1.0}]))),
    ]),
    # several servers
    ({"ranges": "layers", "servers": 3}, "each server needs a range, and the model has 2", "servers"),
    ({"servers": 0}, "servers=0: ", "servers"), ({"servers": 2000}, "servers=2000: ", "servers"),
    ({"servers": 2, "sync": "admm:2"}, "computes residuals of the whole model", "sync"),
    # text
    *with_all(GPT, [
        ({"data": "mnist:64,16"}, r"inputs \[2, 1, 28, 28\] .*takes bytes \[B, T\] as int64", "model"),
        ({"model": "mlp:8"}, r"cannot learn from inputs \[2, 64\] of torch.int64", "model"),
        ({"loss": "mse"}, "mse needs outputs and targets of one shape", "loss"),
        ({"ranges": "layers"}, r"is also its last layer.*use ranges='whole'", "model"),
    ]),
    # Ray
    *with_all({"engine": "ray"}, [
        ({"device": "cuda"}, "needs a GPU", "ray.gpus"), ({"cluster": "lab"}, "emulates no cluster", "cluster"),
        ({"ranges": "layers"}, "use ranges='whole'", "ranges"), ({"lease_s": 5.0}, "its own rule", "lease_s"),
        ({"checkpoint_every": 5}, "no checkpoints", "checkpoint_every"),
        ({"dilation": 2}, "emulated time", "dilation"),
    ]),
    ({"engine": "local", "ray": {}}, "is only for engine='ray'", "ray"),
    # models, losses and metrics of a user's
    *(({kind: value}, words, kind) for kind, mine in (("loss", "mse"), ("metric", "loss")) for value, words in (
        (f"{mine}:3", f"{mine} takes no parameters"), ("torch.nn:MSELoss", "is a class"))),
    ({"loss": "mse", "metric": "tiny:worst"}, "lower is better.*write 'tiny:worst:lower'", "metric"),
    ({"model": lambda: torch.jit.script(net())}, r"module 3 \(RecursiveScriptModule\) cannot be sent", "model"),
    ({"model": lambda: torch.jit.trace(net(), torch.zeros(2, 1, 7, 7))}, "cannot be sent to a worker's", "model"),
    *(({"model": beside(kind, 1j, dtype=torch.complex64)}, f"{kind} more is complex", "model")
      for kind in ("parameter", "buffer")),
    *(({"model": beside(kind, FINE, torch.nan, dtype=torch.float64)},
       f"{kind} more is float64, and would be rounded to .* dtype='float64'", "model")
      for kind in ("parameter", "buffer")),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_no_engine_can_run_is_refused_by_name():
    check_refused((field, lambda fields=fields: resolve(tiny(**fields)), words) for fields, words, field in TABLE)


def test_allowed_combinations_are_not_refused():
    for fields in (
        {**RANGED, "prune": "range:5,local_apply=off", "optimizer": "adam"}, {"prune": "dgc:1%", "ranges": "layers"},
        {"prune": "dgc:1%,clip=1"}, {"prune": "dgc:1%,momentum=0", "optimizer": "sgd:momentum=0.9"},
        {"prune": "dgc:1%", "optimizer": "sgd"}, {"rate": "dynsgd", "quantize": "sign", "sync": "asp"},
        {"rate": "split", "prune": "powersgd:9", "workers": 1}, {"rate": "adagrad:server", "prune": "ef21:5%"},
        *({"rate": rate, "push_weight": 1.0} for rate in ("constant", "modulated", Doubled())),
        {"model": beside("buffer", FINE, dtype=torch.float64), "dtype": "float64"},
        {"model": beside("buffer", 0.5, torch.nan, dtype=torch.float64)},
    ):  # fmt: skip
        resolve(tiny(**fields))


def test_a_model_whose_constructor_reads_numbers_needs_no_memory():
    found = resolve(tiny(**{**LAYERED, "model": "torchvision:regnet_y_400mf", "engine": "timing"}))
    assert found.keyspace.size == 4_344_144
    assert (found.weights.device.type, len(found.layer_shares)) == ("meta", len(found.keyspace.layers))
