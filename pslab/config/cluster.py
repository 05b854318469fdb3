"""The cluster that a run imagines: speeds, stalls and links. Every driver obeys the same object."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from pslab.config.parameters import Bounds, OneOf, check
from pslab.errors import ConfigError, nearest

SECONDS = Bounds(at_least=0, at_most=3600)
BIT_S = Bounds(at_least=1, at_most=1e15)


@dataclass(frozen=True)
class Cluster:
    """W workers, one link each to the server, whose own link they share.

    Raises:
        ConfigError: a value that no cluster can have, such as a bandwidth of zero.
    """

    bandwidth_bit_s: Annotated[float | None, BIT_S, "of each worker's link, per direction; None: no limit"] = None
    latency_s: Annotated[float, SECONDS, "one way"] = 0.0
    overhead_s: Annotated[float, SECONDS, "for which each message occupies its worker's link, whatever its size"] = 0.0
    server_bandwidth_bit_s: Annotated[
        float | None, BIT_S, "of the server's link, which all workers share, per direction; None: no limit"
    ] = None
    duplex: Annotated[str, OneOf("full", "half"), "both directions at once, or they share the bandwidth"] = "full"
    compute_s: Annotated[
        float | None, Bounds(at_least=1e-6, at_most=3600), "mean time of one gradient; None: as fast as this machine"
    ] = None
    layer_shares: Annotated[
        Sequence[tuple[float, float]], "forward and backward share of compute_s by layer; (): by their operations"
    ] = ()
    compute_sigma: Annotated[float, Bounds(at_least=0, at_most=3), "log-normal jitter around compute_s"] = 0.0
    stall_probability: Annotated[float, Bounds(at_least=0, at_most=1), "that a gradient takes longer"] = 0.0
    stall_factor: Annotated[float, Bounds(at_least=1, at_most=1e6), "by which it is then longer"] = 1.0
    select_s: Annotated[float, SECONDS, "virtual time only: to select a gradient's entries; see calibrate"] = 0.0
    encode_s: Annotated[float, SECONDS, "... to encode their frames"] = 0.0
    apply_s: Annotated[float, SECONDS, "... to apply one push at the server"] = 0.0
    serve_s: Annotated[float, SECONDS, "... to prepare the answer to one pull"] = 0.0
    find_s: Annotated[float, SECONDS, "... to find and encode what has changed, where only that is sent"] = 0.0
    decode_s: Annotated[float, SECONDS, "... to install what was pulled"] = 0.0
    message_s: Annotated[float, SECONDS, "... to handle one frame at the server"] = 0.0
    search_s: Annotated[float, SECONDS, "... of a policy that plans ahead, per predicted point"] = 0.0
    slow: Annotated[Mapping[int, float], "permanent stragglers: worker -> factor"] = field(default_factory=dict)
    trace: Annotated[Mapping[int, Sequence[float]], "worker -> seconds of its gradients, repeated"] = field(
        default_factory=dict)
    leave: Annotated[Mapping[int, float], "virtual time only: worker -> when it leaves, in s"] = field(
        default_factory=dict)
    join: Annotated[Mapping[int, float], "... worker -> when it joins or comes back; until then it is absent"] = field(
        default_factory=dict)
    bandwidth_at: Annotated[Mapping[float, float], "... seconds -> bit/s of each link from then on"] = field(
        default_factory=dict)

    def __post_init__(self) -> None:
        check(self, "cluster.")
        for name, plain in (("slow", float), ("trace", _times), ("leave", float), ("join", float)):
            given = {int(worker): plain(value) for worker, value in dict(getattr(self, name)).items()}
            object.__setattr__(self, name, given)
        changes = {float(at): float(bit_s) for at, bit_s in dict(self.bandwidth_at).items()}
        object.__setattr__(self, "bandwidth_at", changes)
        if not all(0 < at < math.inf and 1 <= bit_s <= 1e15 for at, bit_s in changes.items()):
            raise ConfigError("cluster.bandwidth_at", changes, "must map seconds above 0 to bit/s of at least 1")
        if changes and self.bandwidth_bit_s is None:
            raise ConfigError("cluster.bandwidth_bit_s", None, "a bandwidth that changes must start from one")
        for name, possible, words in BY_WORKER:
            for worker, value in getattr(self, name).items():
                if worker < 0 or not possible(value):
                    raise ConfigError(f"cluster.{name}", getattr(self, name), f"must map workers, from 0, to {words}")
        for worker in self.leave.keys() & self.join.keys():
            if self.leave[worker] == self.join[worker]:
                raise ConfigError("cluster.join", self.join, f"worker {worker} leaves and joins at the same instant")
        self._check_shares()
        if self.overhead_s and self.bandwidth_bit_s is None:
            raise ConfigError("cluster.overhead_s", self.overhead_s, "a link that is kept busy needs a bandwidth_bit_s")
        if self.compute_s is None and (self.compute_sigma or self.stall_probability or self.slow):
            raise ConfigError("cluster.compute_s", None, "jitter, stalls and slow workers need a modelled compute time")

    def _check_shares(self) -> None:
        try:
            shares = tuple((float(forward), float(backward)) for forward, backward in self.layer_shares)
        except (TypeError, ValueError):
            shares = ((-1.0, -1.0),)
        each = [share for pair in shares for share in pair]
        if not all(0 <= share < math.inf for share in each) or (each and not sum(each)):
            problem = "must be a pair for each layer: its forward and its backward pass's share of compute_s, from 0"
            raise ConfigError("cluster.layer_shares", self.layer_shares, problem)
        object.__setattr__(self, "layer_shares", shares)

    @property
    def free(self) -> bool:
        """Whether messages take no modelled time."""
        return self.bandwidth_bit_s is None and self.server_bandwidth_bit_s is None and self.latency_s == 0

    def there(self, worker: int) -> bool:
        """Whether a worker is there when the run begins."""
        return worker not in self.join or self.leave.get(worker, math.inf) < self.join[worker]


def _times(values: Any) -> tuple[float, ...]:
    return tuple(map(float, values))


COSTS = ("select_s", "encode_s", "apply_s", "serve_s", "find_s", "decode_s", "message_s", "search_s")
BY_WORKER: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    ("slow", lambda factor: 0 < factor <= 1e6, "factors above 0"),
    ("trace", lambda times: len(times) > 0 and all(0 < t <= 3600 for t in times), "lists of seconds above 0"),
    ("leave", lambda at: 0 < at < math.inf, "seconds above 0"),
    ("join", lambda at: 0 < at < math.inf, "seconds above 0"),
)

_LAN = {"bandwidth_bit_s": 1e9, "latency_s": 5e-4, "server_bandwidth_bit_s": 1e10}
_COMPUTE = {"compute_s": 0.02, "compute_sigma": 0.1}
_STALLS = {"stall_probability": 0.05, "stall_factor": 5.0}
# the thesis's MLP under static:1% on one core of an AMD EPYC, by `calibrate`; for another model, measure them anew.
# search_s: by `python -m pslab bench zipline`
_COSTS = {"select_s": 1.4e-3, "encode_s": 8e-4, "apply_s": 6e-4, "serve_s": 5e-4, "find_s": 1.5e-3, "decode_s": 7.5e-4,
          "message_s": 2e-4, "search_s": 5e-7}  # fmt: skip
PRESETS: dict[str, dict[str, Any]] = {
    "free": {},  # no emulation: as fast as this machine
    "lab": {**_LAN, **_COMPUTE, **_STALLS, **_COSTS},  # 1 Gbit/s, transient stalls
    "lab-slow-net": {**_LAN, "bandwidth_bit_s": 1e8, "server_bandwidth_bit_s": 1e9, **_COMPUTE, **_STALLS, **_COSTS},
    "steady": {**_LAN, **_COMPUTE, **_COSTS},  # equal workers, no stalls
    "straggler": {**_LAN, **_COMPUTE, **_COSTS, "slow": {0: 3.0}},  # one permanent straggler
}


def resolve_cluster(value: str | Mapping[str, Any]) -> Cluster:
    """A preset's name, or a mapping of Cluster's fields, perhaps over a preset under the key "preset".

    Raises:
        ConfigError: unknown preset or field, with the nearest right name.
    """
    if isinstance(value, str):
        if value not in PRESETS:
            raise ConfigError("cluster", value, f"unknown preset; {nearest(value, PRESETS)}")
        return Cluster(**PRESETS[value])
    fields = dict(value)
    base = fields.pop("preset", "free")
    if base not in PRESETS:
        raise ConfigError("cluster.preset", base, f"unknown preset; {nearest(str(base), PRESETS)}")
    names = {f.name for f in dataclasses.fields(Cluster)}
    for name in fields:
        if name not in names:
            raise ConfigError(f"cluster.{name}", fields[name], f"there is no such field; {nearest(str(name), names)}")
    try:
        return Cluster(**{**PRESETS[base], **fields})
    except (TypeError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError("cluster", value, str(error)) from None
