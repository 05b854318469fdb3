"""The cluster that a run imagines: speeds, stalls and links. Every driver obeys the same object."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pslab.errors import ConfigError, nearest


@dataclass(frozen=True)
class Cluster:
    """W workers, one link each to the server, whose own link they share.

    Raises:
        ConfigError: a value that no cluster can have, such as a bandwidth of zero.
    """

    bandwidth_bit_s: float | None = None  #: of each worker's link, per direction; None is no limit
    latency_s: float = 0.0  #: one way
    overhead_s: float = 0.0  #: by which each message keeps its worker's link busy, whatever its size
    server_bandwidth_bit_s: float | None = None  #: of the server's link, shared by all workers, per direction
    duplex: str = "full"  #: full: both directions at once; half: they share the bandwidth
    compute_s: float | None = None  #: mean time of one iteration's gradient; None is as fast as the machine
    layer_shares: Sequence[tuple[float, float]] = ()  #: of it, forward and backward by layer; by their operations if ()
    compute_sigma: float = 0.0  #: log-normal jitter around that mean
    stall_probability: float = 0.0  #: chance that an iteration stalls
    stall_factor: float = 1.0  #: and then takes so many times as long
    select_s: float = 0.0  #: virtual time only: to choose a gradient's entries, per iteration; see calibrate
    encode_s: float = 0.0  #: ... to write their frames
    apply_s: float = 0.0  #: ... to apply one push at the server
    serve_s: float = 0.0  #: ... to lay the answer to one pull ready
    find_s: float = 0.0  #: ... and to find and encode what has changed, where only that is sent
    decode_s: float = 0.0  #: ... to install what was pulled
    message_s: float = 0.0  #: ... to handle one frame at the server
    search_s: float = 0.0  #: ... of a policy that plans ahead, per predicted point
    slow: Mapping[int, float] = field(default_factory=dict)  #: permanent stragglers: worker -> factor
    trace: Mapping[int, Sequence[float]] = field(default_factory=dict)  #: worker -> seconds of its gradients, again
    leave: Mapping[int, float] = field(default_factory=dict)  #: virtual time only: worker -> when it is gone, in s
    join: Mapping[int, float] = field(default_factory=dict)  #: ... when it comes, or comes back; until then it is not
    bandwidth_at: Mapping[float, float] = field(default_factory=dict)  #: ... seconds -> bit/s of each link from then on

    def __post_init__(self) -> None:
        for name, plain in (("slow", float), ("trace", _times), ("leave", float), ("join", float)):
            given = {int(worker): plain(value) for worker, value in dict(getattr(self, name)).items()}
            object.__setattr__(self, name, given)
        changes = {float(at): float(bit_s) for at, bit_s in dict(self.bandwidth_at).items()}
        object.__setattr__(self, "bandwidth_at", changes)
        if not all(0 < at < math.inf and 1 <= bit_s <= 1e15 for at, bit_s in changes.items()):
            raise ConfigError("cluster.bandwidth_at", changes, "must map seconds above 0 to bit/s of at least 1")
        if changes and self.bandwidth_bit_s is None:
            raise ConfigError("cluster.bandwidth_bit_s", None, "a bandwidth that changes must begin with one")
        for name, low, high, words in LIMITS:
            value = getattr(self, name)
            if value is None and name in OPTIONAL:
                continue
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
                raise ConfigError(f"cluster.{name}", value, f"must be {words}")
        if self.duplex not in ("full", "half"):
            raise ConfigError("cluster.duplex", self.duplex, nearest(str(self.duplex), ("full", "half")))
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
OPTIONAL = frozenset({"bandwidth_bit_s", "server_bandwidth_bit_s", "compute_s"})
LIMITS: tuple[tuple[str, float, float, str], ...] = (
    ("bandwidth_bit_s", 1.0, 1e15, "at least 1 bit/s, or None for no limit"),
    ("server_bandwidth_bit_s", 1.0, 1e15, "at least 1 bit/s, or None for no limit"),
    ("latency_s", 0.0, 3600.0, "from 0 to 3600 seconds"),
    ("overhead_s", 0.0, 3600.0, "from 0 to 3600 seconds"),
    ("compute_s", 1e-6, 3600.0, "from 1e-6 to 3600 seconds, or None for the machine's own speed"),
    ("compute_sigma", 0.0, 3.0, "from 0 to 3"),
    ("stall_probability", 0.0, 1.0, "from 0 to 1"),
    ("stall_factor", 1.0, 1e6, "at least 1"),
    *((name, 0.0, 3600.0, "from 0 to 3600 seconds") for name in COSTS),
)

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
