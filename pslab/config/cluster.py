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

# The shortest of 100 to 230 interleaved calls of each on one core of an AMD EPYC: the thesis's MLP, batches of 64, four
# workers under ASP. Each rule is measured at its usual setting: static:1%, std:2, dynamic:5, dgc:0.1%, range:300. Other
# densities cost more or less (static:10% 2.5, static:0.1% 0.9): `calibrate` measures a given run. The factors of
# lowrank:2, powersgd:2, demo, sketch:cols=50000, ef21:1%, randomk:1%, adaq:1% are medians of 240, one worker, with
# encoding included, because their encoding makes the factors, coefficients and sketches.
#: Cost of a rule's selection, in `select_s`; "own squares" is added for a rate that divides gradients at the worker.
SELECT_FACTORS = {"none": 0.0, "static": 1.0, "std": 1.6, "dynamic": 2.3, "dgc": 1.4, "range": 1.5,
                  "threshold": 1.0, "randomk": 19.0, "adaq": 14.0, "lowrank": 22.0, "powersgd": 20.0, "demo": 59.0,
                  "sketch": 39.0, "ef21": 1.5, "own squares": 0.75}  # fmt: skip
#: Relative increase for each rank above 2: slope of a line through the shortest of 56 calls at ranks 1 to 16.
RANK_FACTORS = {"lowrank": 0.13, "powersgd": 0.04}
#: The cost of applying a dense and a sparse push, in `apply_s`, by a rate's state at the server and by optimizer.
APPLY_FACTORS = {"versions": (1.2, 1.0), "squares": (3.2, 1.6), "directions": (4.9, 3.1), "sgd": (2.2, 6.8),
                 "adam": (5.1, 22.0), "adamw": (5.4, 22.0), "adagrad": (3.3, 13.0), "rmsprop": (3.7, 13.0),
                 "other": (3.7, 13.0)}  # fmt: skip


ALLREDUCE = "allreduce"
OF_WORKERS, OF_FRAMES = ("kill", "stop"), ("duplicate", "delay", "drop", "corrupt")


@dataclass(frozen=True)
class Fault:
    """A fault of a worker or of its frames: at an iteration, at an instant, or by chance.

    Raises:
        ConfigError: an impossible value, or not exactly one of `iteration`, `at_s`, `probability` and `per_hour`.
    """

    what: Annotated[str, OneOf(*OF_WORKERS, *OF_FRAMES), "kill or stop a worker; the others change its frames"]
    worker: Annotated[int | None, Bounds(at_least=0), "the worker that has the fault; None: all workers"] = None
    iteration: Annotated[int | None, Bounds(at_least=0), "whose computation, push, pull or answer has the fault"] = None
    at_s: Annotated[float | None, SECONDS, "when it happens; to a worker's first frame from then on"] = None
    probability: Annotated[float | None, SHARE, "that a computation or frame has it, drawn from the run's seed"] = None
    per_hour: Annotated[float | None, Bounds(above=0, at_most=3.6e6), "kills of a worker, drawn from the seed"] = None
    direction: Annotated[str, OneOf("up", "down", "both"), "of frames: to the server, from it, or both"] = "both"
    for_s: Annotated[
        float,
        Bounds(above=0, at_most=3600),
        "duration of a stop or a delay; time until a dropped or corrupt frame has arrived again",
    ] = 0.2

    def __post_init__(self) -> None:
        check(self, "cluster.faults.")
        when = {name: getattr(self, name) for name in ("iteration", "at_s", "probability", "per_hour")}
        if sum(value is not None for value in when.values()) != 1:
            problem = "a fault happens at an iteration, at an instant or by chance: set exactly one of the four"
            raise ConfigError("cluster.faults", when, problem)
        if self.per_hour is not None and self.what != "kill":
            problem = f"is a rate of kills, and {self.what} is none: set probability, or use what='kill'"
            raise ConfigError("cluster.faults.per_hour", self.per_hour, problem)
        if self.direction != "both" and self.what in OF_WORKERS:
            raise ConfigError("cluster.faults.direction", self.direction,
                              f"only faults of frames have it, and {self.what} is not one: leave it out")  # fmt: skip

    @classmethod
    def of(cls, given: Any) -> Fault:
        """Return the fault that a mapping of fields describes; a Fault is returned as it is."""
        if isinstance(given, Fault):
            return given
        if isinstance(given, Mapping):
            check_names(given, parameters(Fault), "cluster.faults.")
        if not isinstance(given, Mapping) or "what" not in given:
            problem = "must be a list of mappings, each with `what`, such as {what: drop, probability: 0.01}"
            raise ConfigError("cluster.faults", given, problem)
        return cls(**given)

    def plain(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults."""
        return {name: value for name, field_ in parameters(Fault).items()
                if (value := getattr(self, name)) != field_.default}  # fmt: skip


@dataclass(frozen=True)
class Cluster:
    """The emulated cluster: each host of `per_host` workers has a link, and all workers share the server's link.

    Raises:
        ConfigError: an impossible value, such as a bandwidth of zero.
    """

    bandwidth_bit_s: Annotated[float | None, BIT_S, "of each host's link, in each direction; None: no limit"] = None
    latency_s: Annotated[float, SECONDS, "one way"] = 0.0
    overhead_s: Annotated[float, SECONDS, "that a message of any size occupies its worker's link"] = 0.0
    server_bandwidth_bit_s: Annotated[
        float | None, BIT_S, "of the server's link, which all workers share, in each direction; None: no limit"
    ] = None
    per_host: Annotated[
        int, Bounds(at_least=1, at_most=1024), "workers of a host, for instance one per GPU; they share its link"
    ] = 1
    intra_host_bandwidth_bit_s: Annotated[
        float | None, BIT_S, "between a worker and a server, or two workers of a ring, on one host; None: no limit"
    ] = None
    colocated: Annotated[bool, "whether server s is on host s: messages to and from its workers use no link"] = False
    duplex: Annotated[str, OneOf("full", "half"), "whether both directions have the bandwidth, or share it"] = "full"
    aggregate: Annotated[
        str,
        OneOf("servers", ALLREDUCE),
        "virtual time only: gradients are added up by servers, or by the workers in a ring, in workers - 1 steps and "
        "as many to distribute the sum",
    ] = "servers"
    wire_bytes: Annotated[
        int | None,
        Bounds(at_least=1, at_most=8),
        "engine='timing' only: of a number that is not quantized, such as 2 for bfloat16; None: by the dtype",
    ] = None
    compute_s: Annotated[
        float | None, Bounds(at_least=1e-6, at_most=3600), "mean time of one gradient; None: as fast as this machine"
    ] = None
    layer_shares: Annotated[
        Sequence[tuple[float, float]], "forward and backward share of compute_s by layer; (): by their operations"
    ] = ()
    compute_sigma: Annotated[float, Bounds(at_least=0, at_most=3), "log-normal jitter around compute_s"] = 0.0
    stall_probability: Annotated[float, Bounds(at_least=0, at_most=1), "of a stall: the gradient takes longer"] = 0.0
    stall_factor: Annotated[float, Bounds(at_least=1, at_most=1e6), "by which a stall lengthens it"] = 1.0
    costs: Annotated[
        str, OneOf("none", "epyc-core"), "virtual time only: the table of the costs that are not given"
    ] = "none"
    select_s: Annotated[float, SECONDS, "virtual time only: to select a gradient's entries by static:1%"] = 0.0
    encode_s: Annotated[float, SECONDS, "virtual time only: to encode the selected entries"] = 0.0
    apply_s: Annotated[float, SECONDS, "virtual time only: to apply one push by plain SGD at a constant rate"] = 0.0
    serve_s: Annotated[float, SECONDS, "virtual time only: to prepare the answer to one pull"] = 0.0
    find_s: Annotated[float, SECONDS, "virtual time only: to find and encode changed weights"] = 0.0
    decode_s: Annotated[float, SECONDS, "virtual time only: to install the weights of an answer"] = 0.0
    message_s: Annotated[float, SECONDS, "virtual time only: to handle one frame at the server"] = 0.0
    search_s: Annotated[float, SECONDS, "virtual time only: of a plan, for each predicted end"] = 0.0
    select_factor: Annotated[
        Mapping[str, float],
        FACTOR,
        "virtual time only: select_s of other rules, relative to static:1%; overrides SELECT_FACTORS",
    ] = field(default_factory=dict)
    apply_factor: Annotated[
        Mapping[str, tuple[float, float]],
        FACTOR,
        "virtual time only: apply_s of other optimizers and rates for dense and for sparse pushes, relative to plain "
        "SGD; overrides APPLY_FACTORS",
    ] = field(default_factory=dict)
    slow: Annotated[Mapping[int, float], Bounds(above=0, at_most=1e6), "permanent stragglers: worker -> factor"] = (
        field(default_factory=dict)
    )
    bandwidth_of: Annotated[Mapping[int, float], BIT_S, "worker -> bandwidth of its link, if it differs"] = field(
        default_factory=dict
    )
    latency_of: Annotated[Mapping[int, float], SECONDS, "worker -> latency of its link, if it differs"] = field(
        default_factory=dict
    )
    trace: Annotated[
        Mapping[int, Sequence[float]], Bounds(above=0, at_most=3600), "worker -> seconds of its gradients, repeated"
    ] = field(default_factory=dict)
    leave: Annotated[Mapping[int, float], Bounds(above=0), "virtual time only: worker -> when it leaves, in s"] = field(
        default_factory=dict
    )
    join: Annotated[
        Mapping[int, float],
        Bounds(above=0),
        "virtual time only: worker -> when it joins or comes back, in s; before that it is absent",
    ] = field(default_factory=dict)
    restart_s: Annotated[
        float, SECONDS, "virtual time only: from the notice of a death to the new worker, with on_death='restart'"
    ] = 0.0
    bandwidth_at: Annotated[Mapping[float, float], "virtual time only: seconds -> bit/s of each link from then on"] = (
        field(default_factory=dict)
    )
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
            raise ConfigError(
                "cluster.bandwidth_at", changes, f"must map seconds above 0 to bit/s {BIT_S}, as in {{6.0: 5e8}}"
            )
        if changes and self.bandwidth_bit_s is None:
            raise ConfigError("cluster.bandwidth_bit_s", None, "bandwidth_at needs a first value: set 1e9, for example")
        for worker in self.leave.keys() & self.join.keys():
            if self.leave[worker] == self.join[worker]:
                raise ConfigError("cluster.join", self.join, f"worker {worker} also leaves at this instant: change one")
        self._check_shares()
        if self.aggregate == ALLREDUCE:
            for name in ("server_bandwidth_bit_s", "colocated", "leave", "join", "faults"):
                if given := getattr(self, name):
                    problem = "a ring has no servers, and needs all its workers: leave it out"
                    raise ConfigError(f"cluster.{name}", given, f"{problem}, or use aggregate='servers'")
            for name, slowest in (("bandwidth_of", "bandwidth_bit_s"), ("latency_of", "latency_s")):
                if given := getattr(self, name):
                    problem = f"a ring is as fast as its slowest link: set {slowest} to it, or use aggregate='servers'"
                    raise ConfigError(f"cluster.{name}", given, problem)
        if (inside := self.intra_host_bandwidth_bit_s) and not self.colocated and self.aggregate != ALLREDUCE:
            problem = "no message stays inside a host: set colocated=True or aggregate='allreduce', or leave it out"
            raise ConfigError("cluster.intra_host_bandwidth_bit_s", inside, problem)
        if self.overhead_s and self.bandwidth_bit_s is None:
            raise ConfigError("cluster.overhead_s", self.overhead_s, "needs a link: set bandwidth_bit_s, such as 1e9")
        if self.compute_s is None and (self.compute_sigma or self.stall_probability or self.slow):
            raise ConfigError("cluster.compute_s", None, f"jitter and stragglers need {MODELLED}")

    def _check_factors(self) -> None:
        for name, known, count in (("select_factor", SELECT_FACTORS, 1), ("apply_factor", APPLY_FACTORS, 2)):
            given = dict(getattr(self, name))
            for key, value in given.items():
                if key not in known:
                    raise ConfigError(f"cluster.{name}", key, f"this name is unknown; {nearest(str(key), known)}")
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
            problem = "must be [forward, backward] for each layer, as in [[1, 2], [1, 2]]: at least 0, and not all 0"
            raise ConfigError("cluster.layer_shares", self.layer_shares, problem)
        object.__setattr__(self, "layer_shares", shares)

    def check_workers(self, count: int) -> None:
        """Refuse a field that names a worker beyond the run's `count` workers.

        Raises:
            ConfigError: a field names a worker with a number of `count` or more.
        """
        named = {name: [*getattr(self, name)] for name in BY_WORKER}
        named["faults"] = [fault.worker for fault in self.faults if fault.worker is not None]
        for name, workers in named.items():
            if beyond := [worker for worker in workers if worker >= count]:
                given = getattr(self, name) if name in BY_WORKER else [fault.plain() for fault in self.faults]
                problem = f"there is no worker {beyond[0]}: with workers={count} use 0 to {count - 1}"
                raise ConfigError(f"cluster.{name}", given, problem)
        for worker in range(count):
            first = worker - worker % self.per_host
            if self.bandwidth_of.get(worker) != self.bandwidth_of.get(first):
                problem = f"workers {first} and {worker} share the link of a host (per_host={self.per_host}): name both"
                raise ConfigError("cluster.bandwidth_of", self.bandwidth_of, f"{problem}, with equal bandwidths")

    def ring_bit_s(self, workers: int, bandwidth_bit_s: float | None) -> float | None:
        """Return the bandwidth of a ring's slowest link; the ring enters and leaves each host once, by a link of
        `bandwidth_bit_s`."""
        inside = self.intra_host_bandwidth_bit_s if self.per_host > 1 else None
        across = bandwidth_bit_s if workers > self.per_host else None
        return min((bit_s for bit_s in (inside, across) if bit_s is not None), default=None)

    @property
    def free(self) -> bool:
        """Whether messages take no modelled time and have no faults."""
        bandwidths = (self.bandwidth_bit_s, self.server_bandwidth_bit_s, self.intra_host_bandwidth_bit_s,
                      *self.bandwidth_of.values())  # fmt: skip
        limited = any(bit_s is not None for bit_s in bandwidths) or any((self.latency_s, *self.latency_of.values()))
        return not limited and not any(fault.what in OF_FRAMES for fault in self.faults)

    @property
    def emulated(self) -> bool:
        """Whether messages or computation take modelled time, or messages have faults."""
        return not self.free or self.compute_s is not None or bool(self.trace)

    def modelled(self, workers: int) -> bool:
        """Whether the computation of each of `workers` workers takes modelled time."""
        return self.compute_s is not None or set(range(workers)) <= set(self.trace)

    def present(self, worker: int) -> bool:
        """Whether a worker is present when the run starts."""
        return worker not in self.join or self.leave.get(worker, math.inf) < self.join[worker]


def _floats(values: Any) -> tuple[float, ...]:
    return tuple(map(float, values))


def _by_worker(name: str, given: Any) -> dict[int, Any]:
    # the value of each worker that a field names: a number, or several in a trace
    bounds, numbers = parameters(Cluster)[name].bounds, _floats if name == "trace" else lambda value: (float(value),)
    try:
        values = {int(worker): numbers(value) for worker, value in dict(given).items()}
        whole = all(int(worker) == float(worker) >= 0 for worker in given)
    except (TypeError, ValueError):
        whole = False
    if not whole or not all(of_one and all(map(bounds.hold, of_one)) for of_one in values.values()):
        example = "{0: [0.02, 0.03]}" if name == "trace" else "{0: 1.5}"
        raise ConfigError(f"cluster.{name}", given, f"must map workers to numbers {bounds}, as in {example}")
    return {worker: of_one if name == "trace" else of_one[0] for worker, of_one in values.items()}


MODELLED = "a modelled compute time: set compute_s, such as 0.02, or begin with a preset, as in {'preset': 'lab', ...}"
COSTS = ("select_s", "encode_s", "apply_s", "serve_s", "find_s", "decode_s", "message_s", "search_s")
BY_WORKER = ("slow", "bandwidth_of", "latency_of", "trace", "leave", "join")

_LAN = {"bandwidth_bit_s": 1e9, "latency_s": 5e-4, "server_bandwidth_bit_s": 1e10}
_COMPUTE = {"compute_s": 0.02, "compute_sigma": 0.1}
_STALLS = {"stall_probability": 0.05, "stall_factor": 5.0}
# measured by `calibrate` with the thesis's MLP of MEASURED weights under static:1% on one core of an AMD EPYC; costs in
# OF_WEIGHTS grow with the number of weights. search_s is measured by `pslab bench zipline`
_COSTS = {"costs": "epyc-core", "select_s": 1.4e-3, "encode_s": 8e-4, "apply_s": 6e-4, "serve_s": 5e-4,
          "find_s": 1.5e-3, "decode_s": 7.5e-4, "message_s": 2e-4, "search_s": 5e-7}  # fmt: skip
#: Costs by the device that pays them. No available source gives them for a GPU: `calibrate` measures yours.
COST_TABLES: dict[str, dict[str, Any]] = {"none": {"costs": "none", **dict.fromkeys(COSTS, 0.0)}, "epyc-core": _COSTS}
MEASURED = 932_362
OF_WEIGHTS = ("select_s", "encode_s", "apply_s", "serve_s", "find_s", "decode_s")


def _hosts(bandwidth_bit_s: float, inside_bit_s: float, latency_s: float) -> dict[str, Any]:
    # hosts of 8 workers, whose servers are on the same hosts, behind links of the same bandwidth
    return {"per_host": 8, "colocated": True, "bandwidth_bit_s": bandwidth_bit_s, "latency_s": latency_s,
            "server_bandwidth_bit_s": bandwidth_bit_s, "intra_host_bandwidth_bit_s": inside_bit_s}  # fmt: skip


PRESETS: dict[str, dict[str, Any]] = {
    "free": {},  # no emulation: as fast as this machine
    "lab": {**_LAN, **_COMPUTE, **_STALLS, **_COSTS},  # 1 Gbit/s, transient stragglers
    "lab-slow-net": {**_LAN, "bandwidth_bit_s": 1e8, "server_bandwidth_bit_s": 1e9, **_COMPUTE, **_STALLS, **_COSTS},
    "steady": {**_LAN, **_COMPUTE, **_COSTS},  # equal workers, no stragglers
    "straggler": {**_LAN, **_COMPUTE, **_COSTS, "slow": {0: 3.0}},  # one permanent straggler
    # NVLink of 150 GB/s in each direction; the latency is an assumption
    "v100-hosts": _hosts(2.5e10, 1.2e12, 5e-5),
    # a ConnectX-7 of 400 Gbit/s for each GPU, NVLink of 450 GB/s in each direction; the latency is an assumption
    "h100-hosts": _hosts(3.2e12, 3.6e12, 1e-5),
    # an example: sites of 8 workers, of which the first has the server; a site's workers share 1 Gbit/s
    "sites": _hosts(1e9, 2.5e10, 0.01),
}
PRESET_SOURCES = {"v100-hosts": "AWS, p3.16xlarge (2017)", "h100-hosts": "Imbue, a cluster of 4,088 H100 (2024)"}


def resolve_cluster(value: str | Mapping[str, Any], weights: int = MEASURED) -> Cluster:
    """Return the cluster of a preset's name or a mapping of fields, which may change a "preset" that it names.

    Args:
        weights: the model's number of weights, which scales the costs of a table; costs in `value` are not scaled.

    Raises:
        ConfigError: an unknown preset or field; the message has the nearest valid name.
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
    links = {"server_bandwidth_bit_s": None, "colocated": False} if fields.get("aggregate") == ALLREDUCE else {}
    try:
        return Cluster(**{**PRESETS[base], **links, **costs, **fields})
    except ConfigError:
        raise
    except (TypeError, ValueError) as error:  # a mapping whose keys are no strings
        raise ConfigError("cluster", value, str(error)) from None


def cluster_fields(value: str | Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a cluster, including a preset's, that differ from a cluster without emulation."""
    given = {"preset": value} if isinstance(value, str) else dict(value)
    if not {"preset", "costs"} & given.keys():
        return given
    resolved, nothing = resolve_cluster(given), Cluster()
    fields = {name: field_ for name in parameters(Cluster)
              if (field_ := getattr(resolved, name)) != getattr(nothing, name)}  # fmt: skip
    return fields | ({"faults": [fault.plain() for fault in resolved.faults]} if resolved.faults else {})
