"""Runs in virtual time of all kinds, on a cluster whose workers differ, and their names."""

from __future__ import annotations

from typing import Any

import torch
from tiny import net

LAB = {"preset": "lab", "slow": {0: 2.0}}
THIN = {"pull": "range", "cluster": {**LAB, "bandwidth_bit_s": 2e6}}


def dropping() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Dropout(0.5), net())


PORTABLE: list[dict[str, Any]] = [
    {"data": "planted:rows=200,keys=240,per_row=6,communities=4", "model": "linear", "pull": "keys", "sync": "asp"},
    {"sync": "asp"},
    {"sync": "asp", "ranges": "layers", "order": "fifo"},
    {"sync": "asp", "model": dropping, "cluster": {"compute_s": 0.01, "slow": {0: 2.0}}},
    *({"sync": sync, "prune": prune, "pull": "changed"}
      for prune in ("dgc:5%,warm_up=1", "static:5%,mode=frozen", "dynamic:mode=ratchet", "dynamic:mode=decay,warm_up=1")
      for sync in ("bsp", "asp")),
    *({"sync": "asp", "rate": rate, **more} for rate in ("adagrad", "split", "dynsgd")
      for more in ({}, {"prune": "static:5%", "pull": "changed"})),
    *({"sync": sync, **more}
      for sync in ("eager", "eager:1", "local:3", "downpour:2,3", "backup:1")
      for more in ({}, {"prune": "static:5%", "pull": "changed"})),
    {"sync": "admm:3"},
    {"sync": "diloco:4,periods=4;3;1;2,by=steps", "learning_rate": 0.01, "schedule": "linear"},
    {"sync": "adiloco:6,dylu=on", "learning_rate": 0.01, "cluster": LAB},
    {"sync": "adiloco:3", "learning_rate": 0.01, "schedule": "linear"},
    *({"sync": f"easgd:3,alone={alone}", "inner": "sgd:momentum=0.9"} for alone in ("on", "off")),
    {"sync": "diloco:3", "learning_rate": 0.01, "prune": "static:5%", "pull": "changed"},
    {"sync": "streaming:6,2,overlap=2", "learning_rate": 0.01, "prune": "static:5%", "pull": "changed"},
    *({"sync": sync, "prune": f"range:{size}", **THIN} for sync in ("bsp", "ssp:3", "eager") for size in (5, "fit")),
]  # fmt: skip

# a host that laid a worker's first weights anew would lose the differences that came before
DOWNLINK: list[dict[str, Any]] = [
    {"sync": "asp", "downlink": "int8"},
    {"sync": "ssp:2", "downlink": "static:20%+fp16", "prune": "static:5%"},
    {"sync": "adiloco:3", "downlink": "qsgd:4,residual=on", "learning_rate": 0.01},
]  # fmt: skip


def in_words(fields: dict[str, Any]) -> str:
    """The name of a case, without the address of a function: the same in every process."""
    return " ".join(str(getattr(value, "__name__", value)) for value in fields.values())


def batch_norm() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.BatchNorm1d(49), torch.nn.Linear(49, 10))
