"""A random run, of a policy, a cluster and its faults, as the seed and the number of it say."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np

from pslab.config.cluster import OF_FRAMES
from pslab.config.run import Run
from pslab.tensors.random_streams import numpy_generator

T = TypeVar("T")
MODEL, DATA = "mlp:4", "mnist:train=1024,test=256"
ORDERS = ("fifo", "filo", "stalest", "advancing", "needed", "front:100000", "tic", "tac")
KILLS = 0.15  # of the faults
# whose workers push after several gradients
METHODS = ("local", "diloco", "adiloco", "easgd", "downpour", "average", "admm")


def drawn(seed: int, number: int, engine: str) -> Run:
    """The run of this number: on real processes tens of milliseconds long, in virtual time without tensors."""
    draw = _Draw(numpy_generator(seed, "chaos", engine, number))
    workers, scale_s = draw.integer(1, 7 if engine == "timing" else 5), draw.log(0.005, 0.02)
    sync = draw.sync(workers)
    alone = sync.startswith(("eager", *METHODS))  # no layer by layer, and no range by range
    layered = not alone and draw.chance(0.35)
    fields: dict[str, Any] = {"sync": sync, "ranges": draw.pick("layers", "layers:1000") if layered else "whole"}
    pushed = draw.chance(0.15) and not layered and not alone
    if pushed:
        fields |= {"prune": f"range:{draw.integer(1, 15)},local_apply=off", "pull": "range"}
    elif engine == "local":
        fields |= draw.tensors(sync, layered=layered)
    cluster = draw.cluster(workers, scale_s, engine)
    if layered and (engine == "timing" or "latency_s" in cluster):
        fields["order"] = draw.pick(*ORDERS)
    cluster["faults"] = [draw.fault(workers, scale_s) for _ in range(draw.integer(0, 5))]
    pushes, on_death = draw.integer(5, 41), draw.pick("continue", "restart")
    if engine == "local" and sync.startswith("downpour"):  # what its workers have fetched is lost with them
        on_death = "continue"
    if draw.chance(0.2) and not sync.startswith("admm"):
        fields["servers"] = 2 if layered else draw.integer(2, 4)
    if sync.startswith(("diloco", "adiloco")):  # of a stream of their own, too
        fields |= _Draw(numpy_generator(seed, "chaos", engine, number, "fragments")).fragments(sync, fields)
    if engine == "local":  # of a stream of their own: the rest of a run does not depend on them
        more = _Draw(numpy_generator(seed, "chaos", engine, number, "kept"))
        fields |= {"eval_every": more.pick(1000, 1000, 3, 10), "evaluate": more.pick("after", "after", "beside"),
                   "checkpoint_every": more.pick(None, None, 4, 12)}  # fmt: skip
        if on_death != "restart":
            del fields["checkpoint_every"]
        if fields.get("pull", "whole") == "whole" and not sync.startswith("admm"):
            fields["downlink"] = more.pick("none", "none", "int8", "static:20%+fp16")
        if fields.get("prune", "none") == "none" and not sync.startswith(("admm", "eager")):
            fields["prune"] = more.pick("none", "none", "lowrank:1")
    return Run.of({
        "model": MODEL, "data": DATA, "batch_size": 16, "learning_rate": 0.05, "workers": workers, "eval_every": 1000,
        **fields, "cluster": cluster, "engine": engine, "seed": number, "pushes": pushes,
        "lease_s": 5.0 if engine == "local" else max(0.1, draw.log(2, 50) * scale_s), "keep_weights": True,
        "on_death": on_death, "dilation": 1,
    })  # fmt: skip


class _Draw:
    """Draws from one stream."""

    def __init__(self, generator: np.random.Generator) -> None:
        self._generator = generator

    def chance(self, probability: float) -> bool:
        return bool(self._generator.random() < probability)

    def integer(self, low: int, end: int) -> int:
        return int(self._generator.integers(low, end))

    def log(self, low: float, high: float) -> float:
        """A number between these, each order of magnitude as likely as any other, to three digits."""
        return float(f"{np.exp(self._generator.uniform(np.log(low), np.log(high))):.3g}")

    def pick(self, *values: T) -> T:
        return values[self.integer(0, len(values))]

    def sync(self, workers: int) -> str:
        """A policy, with parameters."""
        small = self.integer(0, 4)
        found = self.pick("bsp", "asp", f"ssp:{small}", f"ssp:{small}", f"dssp:{small},{self.integer(0, 5)}",
                          f"elastic:{1 + 3 * small}", f"eager:{1 + small},rmw=off", f"eager:{1 + small}",
                          f"local:{1 + small}", f"backup:{self.integer(0, workers)}")  # fmt: skip
        if not found.startswith("local"):
            return found
        return self.pick(found, f"diloco:{1 + small}", f"adiloco:{1 + small}", f"adiloco:{2 + 3 * small},dylu=on",
                         f"adiloco:{1 + small},staleness={small}", f"easgd:{1 + small}", f"easgd:{1 + small},alone=on",
                         f"downpour:{1 + small},{self.integer(1, 5)}", f"average:{0.02 * (1 + small):g}",
                         f"admm:{1 + small}")  # fmt: skip

    def fragments(self, sync: str, fields: dict[str, Any]) -> dict[str, Any]:
        """DiLoCo, in rounds or not, as it was drawn, or by fragments of the model's two layers, or with steps that
        follow a push."""
        if self.chance(0.4):
            return {"sync": sync}
        fragments, steps = self.pick(1, 2, 2), self.integer(1, 5)
        merge = self.pick("mix", "mix,alpha=0.5", "replace", "carry")
        found = f"{fragments * steps},{fragments},overlap={self.integer(0, steps)},merge={merge}"
        found = f"decoupled:{found},quorum={self.integer(1, 5)}" if sync.startswith("a") else f"streaming:{found}"
        servers = fields.get("servers", 1)
        return {"sync": found, "servers": servers if fragments == 1 else min(servers, fragments)}

    def tensors(self, sync: str, *, layered: bool) -> dict[str, Any]:
        """What only real gradients have."""
        if sync.startswith("admm"):
            return {"optimizer": "sgd"}
        if sync.startswith("easgd"):
            return {"optimizer": "sgd", "inner": self.pick("sgd", "sgd:momentum=0.9")}
        if sync.startswith(("diloco", "adiloco")):
            return {"optimizer": self.pick("sgd", "sgd:momentum=0", "dn:period=2"),
                    "inner": self.pick("sgd", "adamw:clip=1")}  # fmt: skip
        eager = sync.startswith("eager") and "rmw=off" not in sync
        found: dict[str, Any] = {
            "optimizer": "sgd" if eager else self.pick("sgd", "sgd:momentum=0.5", "adam"),
            "rate": "constant" if eager else self.pick("constant", "constant", "dynsgd"),
        }
        if self.chance(0.5):
            found |= {"prune": self.pick("static:5%", "std:2", "static:50%"), "pull": self.pick("whole", "changed")}
        return found

    def cluster(self, workers: int, scale_s: float, engine: str) -> dict[str, Any]:
        """Links, computation and costs; in virtual time also workers that come and go."""
        found: dict[str, Any] = {}
        if engine == "timing" or self.chance(0.7):
            found |= {"compute_s": scale_s, "compute_sigma": self.pick(0.0, 0.1, 0.5)}
            if self.chance(0.4):
                found["slow"] = {self.integer(0, workers): self.log(0.3, 5)}
            if self.chance(0.3):
                found |= {"stall_probability": 0.1, "stall_factor": self.log(1, 10)}
        if self.chance(0.7):
            found["latency_s"] = self.log(0.01, 1) * scale_s
        if self.chance(0.6):
            found |= {"bandwidth_bit_s": self.log(2e6, 1e9), "duplex": self.pick("full", "half")}
            if self.chance(0.3):
                found["overhead_s"] = self.log(0.001, 0.1) * scale_s
        if self.chance(0.3):
            found["server_bandwidth_bit_s"] = self.log(5e6, 1e9)
        if engine != "timing":
            return found
        for name in ("apply_s", "serve_s", "message_s", "select_s"):
            if self.chance(0.3):
                found[name] = self.log(0.001, 0.3) * scale_s
        if found.get("bandwidth_bit_s") and self.chance(0.3):
            found["bandwidth_at"] = {self.log(1, 20) * scale_s: self.log(2e6, 1e9)}
        if workers > 1 and self.chance(0.3):
            for worker in range(1, workers):  # worker 0 is always present
                if self.chance(0.4):
                    found.setdefault("leave", {})[worker] = leaves = self.log(0.5, 15) * scale_s
                    if self.chance(0.6):
                        found.setdefault("join", {})[worker] = leaves + self.log(0.1, 10) * scale_s
                elif self.chance(0.2):
                    found.setdefault("join", {})[worker] = self.log(0.5, 10) * scale_s
        return found

    def fault(self, workers: int, scale_s: float) -> dict[str, Any]:
        """A fault; worker 0 is never killed."""
        what = "kill" if workers > 1 and self.chance(KILLS) else self.pick("stop", *OF_FRAMES)
        found: dict[str, Any] = {"what": what}
        if what == "kill":
            found["worker"] = self.integer(1, workers)
        elif self.chance(0.4):
            found["worker"] = self.integer(0, workers)
        when = self.integer(1, 3) if what == "kill" else self.integer(0, 3)
        if when == 0:
            found["probability"] = self.pick(0.03, 0.1, 0.3, 1.0) if what == "duplicate" else self.pick(0.03, 0.1, 0.3)
        elif when == 1:
            found["iteration"] = self.integer(0, 12)
        else:
            found["at_s"] = self.log(0.1, 20) * scale_s
        if what in OF_FRAMES and self.chance(0.5):
            found["direction"] = self.pick("up", "down")
        if what not in ("kill", "duplicate"):
            found["for_s"] = self.log(0.05, 20) * scale_s
        return found
