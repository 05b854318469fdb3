"""The emulated cluster: speeds, stragglers, links and costs. Every engine reads the same object."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from pslab.config.parameters import SHARE, Bounds, OneOf, check, check_names, parameters
from pslab.errors import ConfigError, nearest

SECONDS = Bounds(at_least=0, at_most=3600)
BIT_S = Bounds(at_least=1, at_most=1e15)
FACTOR = Bounds(at_least=0, at_most=1e6)

# The shortest of 100 to 230 calls of each, in turn, on one core of an AMD EPYC: the thesis's MLP, batches of 64, four
# workers under ASP. A kind is measured as it is most used: static:1%, std:2, dynamic:5, dgc:0.1%, range:300. Other
# densities take other times, such as static:10% 2.5 and static:0.1% 0.9: `calibrate` measures a run's own. Of
# lowrank:2, powersgd:2, demo, sketch:cols=50000, ef21:1%, randomk:1%, adaq:1% it is the median of 240, one worker, with
# the encoding, which makes factors, coefficients and sketches.
#: What a rule's selection takes, in `select_s`; "own squares" is added for a rate that divides gradients at the worker.
SELECT_FACTORS = {"none": 0.0, "static": 1.0, "std": 1.6, "dynamic": 2.3, "dgc": 1.4, "range": 1.5,
                  "threshold": 1.0, "randomk": 19.0, "adaq": 14.0, "lowrank": 22.0, "powersgd": 20.0, "demo": 59.0,
                  "sketch": 39.0, "ef21": 1.5, "own squares": 0.75}  # fmt: skip
#: By how much of it that is longer for each rank above 2, a line through the shortest of 56 calls at ranks 1 to 16.
RANK_FACTORS = {"lowrank": 0.13, "powersgd": 0.04}
#: What applying a dense and a sparse push takes, in `apply_s`: by what a rate keeps at the server, and by optimizer.
APPLY_FACTORS = {"versions": (1.2, 1.0), "squares": (3.2, 1.6), "directions": (4.9, 3.1), "sgd": (2.2, 6.8),
                 "adam": (5.1, 22.0), "adamw": (5.4, 22.0), "adagrad": (3.3, 13.0), "rmsprop": (3.7, 13.0),
                 "other": (3.7, 13.0)}  # fmt: skip


ALLREDUCE = "allreduce"
OF_WORKERS, OF_FRAMES = ("kill", "stop"), ("duplicate", "delay", "drop", "corrupt")


@dataclass(frozen=True)
class Fault:
    """A fault in a cluster: it happens at an iteration's push, at an instant, or by chance at each push.

    Raises:
        ConfigError: a value that no fault can have, or not exactly one of `iteration`, `at_s` and `probability`.
    """

    what: Annotated[str, OneOf(*OF_WORKERS, *OF_FRAMES), "of a worker: kill, stop; of its frames: the others"]
    worker: Annotated[int | None, Bounds(at_least=0), "the worker that it meets; None: each one"] = None
    iteration: Annotated[int | None, Bounds(at_least=0), "whose computation, push, pull or answer it meets"] = None
    at_s: Annotated[float | None, SECONDS, "when it happens; of frames, the first one from then on"] = None
    probability: Annotated[float | None, SHARE, "of each computation or frame, from a stream of the run's seed"] = None
    direction: Annotated[str, OneOf("up", "down", "both"), "of frames: to the server, from it, or both"] = "both"
    for_s: Annotated[
        float, Bounds(above=0, at_most=3600),
        "how long a stop or a delay takes; after how long what was dropped or refused is there again",
    ] = 0.2

    def __post_init__(self) -> None:
        check(self, "cluster.faults.")
        when = {name: getattr(self, name) for name in ("iteration", "at_s", "probability")}
        if sum(value is not None for value in when.values()) != 1:
            problem = "a fault comes at an iteration's push, at an instant or by chance: give exactly one of these"
            raise ConfigError("cluster.faults", when, problem)
        if self.direction != "both" and self.what in OF_WORKERS:
            raise ConfigError("cluster.faults.direction", self.direction,
                              f"{self.what} happens to a worker, not to frames: leave direction out")  # fmt: skip

    @classmethod
    def of(cls, given: Any) -> Fault:
        """A fault from a mapping of its fields; a Fault is itself."""
        if isinstance(given, Fault):
            return given
        if isinstance(given, Mapping):
            check_names(given, parameters(Fault), "cluster.faults.")
        if not isinstance(given, Mapping) or "what" not in given:
            problem = "must be a list of faults, each a mapping such as {what: drop, probability: 0.01}"
            raise ConfigError("cluster.faults", given, problem)
        return cls(**given)

    def plain(self) -> dict[str, Any]:
        """The fields that are not at their defaults."""
        return {name: value for name, field_ in parameters(Fault).items()
                if (value := getattr(self, name)) != field_.default}  # fmt: skip


@dataclass(frozen=True)
class Cluster:
    """Workers, each with a link to the server, whose own link they share.

    Raises:
        ConfigError: a value that no cluster can have, such as a bandwidth of zero.
    """

    bandwidth_bit_s: Annotated[float | None, BIT_S, "of each worker's link, per direction; None: no limit"] = None
    latency_s: Annotated[float, SECONDS, "one way"] = 0.0
    overhead_s: Annotated[float, SECONDS, "for which each message occupies its worker's link, whatever its size"] = 0.0
    server_bandwidth_bit_s: Annotated[
        float | None, BIT_S, "of the server's link, which all workers share, per direction; None: no limit"
    ] = None
    colocated: Annotated[
        bool, "whether server s stands on worker s's machine: what these two exchange passes no link"
    ] = False
    duplex: Annotated[str, OneOf("full", "half"), "both directions at once, or they share the bandwidth"] = "full"
    aggregate: Annotated[
        str, OneOf("servers", ALLREDUCE),
        "virtual time only: who adds up gradients, servers or a ring of the workers, each of which passes on all but "
        "its own part in workers - 1 steps, and the sum likewise"
    ] = "servers"
    wire_bytes: Annotated[
        int | None, Bounds(at_least=1, at_most=8),
        "engine='timing' only: of a number that no code shortens, such as 2 of bfloat16; None: as the dtype has"
    ] = None
    compute_s: Annotated[
        float | None, Bounds(at_least=1e-6, at_most=3600), "mean time of one gradient; None: as fast as this machine"
    ] = None
    layer_shares: Annotated[
        Sequence[tuple[float, float]], "forward and backward share of compute_s by layer; (): by their operations"
    ] = ()
    compute_sigma: Annotated[float, Bounds(at_least=0, at_most=3), "log-normal jitter around compute_s"] = 0.0
    stall_probability: Annotated[float, Bounds(at_least=0, at_most=1), "that a gradient takes longer"] = 0.0
    stall_factor: Annotated[float, Bounds(at_least=1, at_most=1e6), "by which it is then longer"] = 1.0
    costs: Annotated[
        str, OneOf("none", "epyc-core"), "virtual time only: the table by which costs that are not given follow"
    ] = "none"
    select_s: Annotated[float, SECONDS, "virtual time only: to select a gradient's entries by static:1%"] = 0.0
    encode_s: Annotated[float, SECONDS, "virtual time only: to encode their frames"] = 0.0
    apply_s: Annotated[float, SECONDS, "virtual time only: to apply one push by plain SGD at a constant rate"] = 0.0
    serve_s: Annotated[float, SECONDS, "virtual time only: to prepare the answer to one pull"] = 0.0
    find_s: Annotated[float, SECONDS, "virtual time only: to find and encode changed weights"] = 0.0
    decode_s: Annotated[float, SECONDS, "virtual time only: to install what was pulled"] = 0.0
    message_s: Annotated[float, SECONDS, "virtual time only: to handle one frame at the server"] = 0.0
    search_s: Annotated[float, SECONDS, "virtual time only: of a plan, per predicted point"] = 0.0
    select_factor: Annotated[
        Mapping[str, float], FACTOR,
        "virtual time only: by which another rule's select_s is longer, over SELECT_FACTORS"
    ] = field(default_factory=dict)
    apply_factor: Annotated[
        Mapping[str, tuple[float, float]], FACTOR,
        "virtual time only: by which another optimizer's or rate's apply_s is longer, of dense and sparse pushes, over "
        "APPLY_FACTORS"
    ] = field(default_factory=dict)
    slow: Annotated[
        Mapping[int, float], Bounds(above=0, at_most=1e6), "permanent stragglers: worker -> factor"
    ] = field(default_factory=dict)
    trace: Annotated[
        Mapping[int, Sequence[float]], Bounds(above=0, at_most=3600), "worker -> seconds of its gradients, repeated"
    ] = field(default_factory=dict)
    leave: Annotated[Mapping[int, float], Bounds(above=0), "virtual time only: worker -> when it leaves, in s"] = field(
        default_factory=dict
    )
    join: Annotated[
        Mapping[int, float], Bounds(above=0),
        "virtual time only: worker -> when it joins or comes back, in s; before that it is absent"
    ] = field(default_factory=dict)
    bandwidth_at: Annotated[
        Mapping[float, float], "virtual time only: seconds -> bit/s of each link from then on"
    ] = field(default_factory=dict)
    faults: Annotated[Sequence[Any], "faults: a list of mappings of Fault's fields"] = ()

    def __post_init__(self) -> None:
        check(self, "cluster.")
        faults = self.faults if isinstance(self.faults, (list, tuple)) else (self.faults,)
        object.__setattr__(self, "faults", tuple(map(Fault.of, faults)))
        for name in BY_WORKER:
            object.__setattr__(self, name, _by_worker(name, getattr(self, name)))
        self._check_factors()
        changes = {float(at): float(bit_s) for at, bit_s in dict(self.bandwidth_at).items()}
        object.__setattr__(self, "bandwidth_at", changes)
        if not all(0 < at < math.inf and BIT_S.hold(bit_s) for at, bit_s in changes.items()):
            raise ConfigError("cluster.bandwidth_at", changes, f"must map seconds above 0 to bit/s {BIT_S}")
        if changes and self.bandwidth_bit_s is None:
            raise ConfigError("cluster.bandwidth_bit_s", None, "a bandwidth that changes needs a first value")
        for worker in self.leave.keys() & self.join.keys():
            if self.leave[worker] == self.join[worker]:
                raise ConfigError("cluster.join", self.join, f"worker {worker} leaves and joins at the same instant")
        self._check_shares()
        if self.aggregate == ALLREDUCE:
            for name in ("server_bandwidth_bit_s", "colocated", "leave", "join", "faults"):
                if given := getattr(self, name):
                    problem = "is for a cluster with servers, and a ring needs all its workers: leave it out"
                    raise ConfigError(f"cluster.{name}", given, f"{problem}, or use aggregate='servers'")
        if self.overhead_s and self.bandwidth_bit_s is None:
            raise ConfigError("cluster.overhead_s", self.overhead_s, "an occupied link needs a bandwidth_bit_s")
        if self.compute_s is None and (self.compute_sigma or self.stall_probability or self.slow):
            raise ConfigError("cluster.compute_s", None, f"jitter and stragglers need {MODELLED}")

    def _check_factors(self) -> None:
        for name, known, count in (("select_factor", SELECT_FACTORS, 1), ("apply_factor", APPLY_FACTORS, 2)):
            given = dict(getattr(self, name))
            for key, value in given.items():
                if key not in known:
                    raise ConfigError(f"cluster.{name}", key, f"nothing has this name; {nearest(str(key), known)}")
                factors = tuple(value) if isinstance(value, (tuple, list)) else (value,)
                if len(factors) != count or not all(isinstance(x, (int, float)) and FACTOR.hold(x) for x in factors):
                    wanted = "a number" if count == 1 else "two numbers, for dense and for sparse pushes,"
                    raise ConfigError(f"cluster.{name}", {key: value}, f"must map names to {wanted} {FACTOR}")
                given[key] = _floats(factors) if count == 2 else float(factors[0])
            object.__setattr__(self, name, given)

    def _check_shares(self) -> None:
        try:
            shares = tuple((float(forward), float(backward)) for forward, backward in self.layer_shares)
        except (TypeError, ValueError):
            shares = ((-1.0, -1.0),)
        numbers = [share for pair in shares for share in pair]
        if not all(0 <= share < math.inf for share in numbers) or (numbers and not sum(numbers)):
            problem = "must be a pair for each layer: its forward and its backward pass's share of compute_s, from 0"
            raise ConfigError("cluster.layer_shares", self.layer_shares, problem)
        object.__setattr__(self, "layer_shares", shares)

    def check_workers(self, count: int) -> None:
        """Refuse a field that names a worker beyond so many.

        Raises:
            ConfigError: with its name.
        """
        named = {name: [*getattr(self, name)] for name in BY_WORKER}
        named["faults"] = [fault.worker for fault in self.faults if fault.worker is not None]
        for name, workers in named.items():
            if beyond := [worker for worker in workers if worker >= count]:
                given = getattr(self, name) if name in BY_WORKER else [fault.plain() for fault in self.faults]
                problem = f"there is no worker {beyond[0]}: with workers={count} they are 0 to {count - 1}"
                raise ConfigError(f"cluster.{name}", given, problem)

    @property
    def free(self) -> bool:
        """Whether messages take no modelled time, and nothing happens to them."""
        limited = self.bandwidth_bit_s is not None or self.server_bandwidth_bit_s is not None or self.latency_s > 0
        return not limited and not any(fault.what in OF_FRAMES for fault in self.faults)

    @property
    def emulated(self) -> bool:
        """Whether anything takes a modelled time."""
        return not self.free or self.compute_s is not None or bool(self.trace)

    def modelled(self, workers: int) -> bool:
        """Whether the computation of each of so many workers takes a modelled time."""
        return self.compute_s is not None or set(range(workers)) <= set(self.trace)

    def present(self, worker: int) -> bool:
        """Whether a worker is present when the run starts."""
        return worker not in self.join or self.leave.get(worker, math.inf) < self.join[worker]


def _floats(values: Any) -> tuple[float, ...]:
    return tuple(map(float, values))


def _by_worker(name: str, given: Any) -> dict[int, Any]:
    """A field's value for each worker that it names: a number, or of a trace several."""
    bounds, each = parameters(Cluster)[name].bounds, _floats if name == "trace" else lambda value: (float(value),)
    try:
        values = {int(worker): each(value) for worker, value in dict(given).items()}
        whole = all(int(worker) == float(worker) >= 0 for worker in given)
    except (TypeError, ValueError):
        whole = False
    if not whole or not all(of_one and all(map(bounds.hold, of_one)) for of_one in values.values()):
        raise ConfigError(f"cluster.{name}", given, f"must map workers, from 0, to numbers {bounds}")
    return {worker: of_one if name == "trace" else of_one[0] for worker, of_one in values.items()}


MODELLED = "a modelled compute time: set compute_s, such as 0.02, or begin with a preset, as in {'preset': 'lab', ...}"
COSTS = ("select_s", "encode_s", "apply_s", "serve_s", "find_s", "decode_s", "message_s", "search_s")
BY_WORKER = ("slow", "trace", "leave", "join")

_LAN = {"bandwidth_bit_s": 1e9, "latency_s": 5e-4, "server_bandwidth_bit_s": 1e10}
_COMPUTE = {"compute_s": 0.02, "compute_sigma": 0.1}
_STALLS = {"stall_probability": 0.05, "stall_factor": 5.0}
# the thesis's MLP of MEASURED weights under static:1% on one core of an AMD EPYC, by `calibrate`; with the weights of
# another model those OF_WEIGHTS grow. search_s: by `pslab bench zipline`
_COSTS = {"costs": "epyc-core", "select_s": 1.4e-3, "encode_s": 8e-4, "apply_s": 6e-4, "serve_s": 5e-4,
          "find_s": 1.5e-3, "decode_s": 7.5e-4, "message_s": 2e-4, "search_s": 5e-7}  # fmt: skip
#: Costs by the device that pays them. No source that could be read gives them for a GPU: `calibrate` measures yours.
COST_TABLES: dict[str, dict[str, Any]] = {"none": {"costs": "none", **dict.fromkeys(COSTS, 0.0)}, "epyc-core": _COSTS}
MEASURED = 932_362
OF_WEIGHTS = ("select_s", "encode_s", "apply_s", "serve_s", "find_s", "decode_s")
PRESETS: dict[str, dict[str, Any]] = {
    "free": {},  # no emulation: as fast as this machine
    "lab": {**_LAN, **_COMPUTE, **_STALLS, **_COSTS},  # 1 Gbit/s, transient stragglers
    "lab-slow-net": {**_LAN, "bandwidth_bit_s": 1e8, "server_bandwidth_bit_s": 1e9, **_COMPUTE, **_STALLS, **_COSTS},
    "steady": {**_LAN, **_COMPUTE, **_COSTS},  # equal workers, no stragglers
    "straggler": {**_LAN, **_COMPUTE, **_COSTS, "slow": {0: 3.0}},  # one permanent straggler
}


def resolve_cluster(value: str | Mapping[str, Any], weights: int = MEASURED) -> Cluster:
    """A preset's name, or a mapping of Cluster's fields, perhaps over a preset under the key "preset".

    Args:
        weights: of the model, with which a preset's costs grow; a cost that is given is of the model at hand.

    Raises:
        ConfigError: unknown preset or field, with the nearest right name.
    """
    if isinstance(value, str) and value not in PRESETS:
        raise ConfigError("cluster", value, f"unknown preset; {nearest(value, PRESETS)}")
    fields = {"preset": value} if isinstance(value, str) else dict(value)
    base = fields.pop("preset", "free")
    if base not in PRESETS:
        raise ConfigError("cluster.preset", base, f"unknown preset; {nearest(str(base), PRESETS)}")
    check_names(fields, parameters(Cluster), "cluster.")
    table = fields.get("costs", PRESETS[base].get("costs", "none"))
    if table not in COST_TABLES:
        raise ConfigError("cluster.costs", table, f"unknown table of costs; {nearest(str(table), COST_TABLES)}")
    costs = {name: cost * (weights / MEASURED) if name in OF_WEIGHTS else cost
             for name, cost in COST_TABLES[table].items()}  # fmt: skip
    links = {"server_bandwidth_bit_s": None} if fields.get("aggregate") == ALLREDUCE else {}
    try:
        return Cluster(**{**PRESETS[base], **links, **costs, **fields})
    except ConfigError:
        raise
    except (TypeError, ValueError) as error:  # a mapping of something else
        raise ConfigError("cluster", value, str(error)) from None


def cluster_fields(value: str | Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that differ from a cluster without emulation, among them the fields of its preset."""
    given = {"preset": value} if isinstance(value, str) else dict(value)
    if not {"preset", "costs"} & given.keys():
        return given
    resolved, nothing = resolve_cluster(given), Cluster()
    found = {name: field_ for name in parameters(Cluster)
             if (field_ := getattr(resolved, name)) != getattr(nothing, name)}  # fmt: skip
    return found | ({"faults": [fault.plain() for fault in resolved.faults]} if resolved.faults else {})
