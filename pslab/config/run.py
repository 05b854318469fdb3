"""Run: one frozen value that describes an experiment completely; its digest names its results."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import sys
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from pslab.config import gpus, products, sources
from pslab.config.cluster import resolve_cluster
from pslab.config.content import Survey, survey
from pslab.config.metric import LOWER, medians, metric_of
from pslab.config.parameters import TRUE, Bounds, OneOf, check, described, parameters, plain
from pslab.config.ray_options import RayOptions
from pslab.config.spec import split
from pslab.config.table import ROWS
from pslab.errors import ConfigError

# Raise it when the same Run gives other results than before, so that old records are not reused. A new field does not
# need that: it is part of every digest, so old records are not reused either, unless ASIDE names the field.
SEMANTICS = 8

NAMED = ("model", "data", "loss", "metric", "sync", "prune", "quantize", "rate", "ranges", "order", "optimizer",
         "schedule", "cluster")  # fmt: skip
ASIDE = ("checkpoint_every", "ray")  # fields that change no result of a run, and are no part of its digest
USERS = ("model", "data", "loss", "metric")  # fields that accept package.module:name
Named = str | object  # fields that accept a short string or an object with the same methods
FREE, LAB = "free", "lab"  # default clusters: for real processes, and for virtual time
MODELLED = ("virtual", "timing")  # engines whose whole time is modelled
_PROCESS = os.urandom(4).hex()


def named_object(value: object) -> bool:
    """Whether a field of a record's run names an object, as ``"Turns#4f65..."``, that the record does not contain."""
    return isinstance(value, str) and "#" in value.partition(":")[0]


def digest_of(content: Mapping[str, Any]) -> str:
    """Return sixteen hexadecimal digits that identify plain content."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


@described
@dataclass(frozen=True, kw_only=True)
class Run:
    """An experiment.

    The budget and the x-axis count the accepted pushes of all workers. The number of iterations is pushes / workers.
    The run stops when the first of `pushes`, `seconds` and `target_accuracy` is reached. If each step is a round of all
    workers, the final weights are the weights after the last complete round of the budget. With several ranges or
    servers such a run also stops after that round.

    Raises:
        ConfigError: an unknown field, a value of the wrong type, or an impossible value. Names are looked up later, by
            `pslab.lab.runs.resolve`.
    """

    model: Annotated[Named, "a name, package.module:factory, or a callable that returns an nn.Module"] = "mlp"
    data: Annotated[Named, "a name, folder:PATH, torchvision:NAME, package.module:function, or a callable"] = "mnist"
    loss: Annotated[
        Named, "the function to minimize: a name, package.module:name, or a callable loss(output, target) -> scalar"
    ] = "cross_entropy"
    metric: Annotated[
        Named, "an evaluation's measure: a name, package.module:name[:lower], or a callable metric(output, target)"
    ] = "accuracy"
    workers: Annotated[int, Bounds(at_least=1, at_most=1024), "processes that compute gradients (the world size)"] = 4
    servers: Annotated[int, Bounds(at_least=1, at_most=1024), "processes that store the weights, each a part"] = 1
    sync: Annotated[Named, "when a worker may start its next iteration, and when a push is applied"] = "bsp"
    prune: Annotated[Named, "gradient sparsification: which entries are pushed"] = "none"
    quantize: Annotated[Named, "gradient quantization: pushed values unchanged, or in fewer bits"] = "none"
    rate: Annotated[Named, "a factor of the learning rate for each push, such as by its staleness"] = "constant"
    ranges: Annotated[Named, "what one push or pull covers: the whole model, a layer, or a slice of one"] = "whole"
    order: Annotated[Named, "which of several waiting requests a worker sends next"] = "fifo"
    pull: Annotated[
        str,
        OneOf("whole", "changed", "range", "keys"),
        "what a worker gets: all weights; those that changed since its last pull (lossless); the keys that it pushed; "
        "the keys of its next batch, for sparse data",
    ] = "whole"
    downlink: Annotated[
        str,
        "how an answer compresses its difference to the worker's weights: a pruning or quantization rule, or both, as "
        "in static:1%+int8; none: all weights",
    ] = "none"
    optimizer: Annotated[Named, "of the server: an elementwise torch.optim class, as in sgd:momentum=0.9"] = "sgd"
    inner: Annotated[str, "optimizer of workers with local steps, as in diloco; may have clip=1; '': the paper's"] = ""
    learning_rate: Annotated[float, Bounds(above=0, at_most=1e6), "before the factors of rate and schedule"] = 0.1
    outer_learning_rate: Annotated[
        float | None, Bounds(above=0, at_most=1e6), "of the server's optimizer beside an inner one; None: the paper's"
    ] = None
    schedule: Annotated[Named, "the learning-rate schedule: a factor that changes over the budget"] = "constant"
    push_weight: Annotated[
        float | None, Bounds(above=0, at_most=1e6), "the factor of a push that is applied by itself; None: 1 / workers"
    ] = None
    partition: Annotated[
        str, OneOf(*ROWS["partition"]), "which worker trains on which examples; sparse rows may be assigned by keys"
    ] = "shuffled"
    placement: Annotated[str, OneOf(*ROWS["placement"]), "which server stores which keys, with pull='keys'"] = "even"
    batch_size: Annotated[int, Bounds(at_least=1, at_most=1_000_000), "examples per worker and iteration"] = 64
    pushes: Annotated[int | None, Bounds(at_least=1, at_most=10**12), "stop after so many pushes of all workers"] = 937
    seconds: Annotated[float | None, Bounds(at_least=1e-3, at_most=1e9), "stop after so many seconds"] = None
    target_accuracy: Annotated[
        float | None, "stop early, once the metric reaches it: an accuracy from 0 to 1, or a value of another metric"
    ] = None
    target_held: Annotated[bool, "whether the running median of three evaluations must reach the target"] = False
    cluster: Annotated[
        str | Mapping[str, Any],
        "a preset's name (in virtual time free becomes lab), or a mapping of Cluster's fields",
    ] = FREE
    engine: Annotated[str, OneOf(*ROWS["engine"]), "what executes the run"] = "local"
    ray: Annotated[
        Mapping[str, Any] | None, "with engine='ray': the cluster's address, and cpus and gpus for each process"
    ] = None
    device: Annotated[str, OneOf("cpu", "cuda"), "where workers compute gradients"] = "cpu"
    dtype: Annotated[str, OneOf("float32", "float64"), "data type of weights and gradients"] = "float32"
    seed: Annotated[int, Bounds(at_least=0, at_most=2**63 - 1), "of all random draws: weights, batches, stalls"] = 0
    eval_every: Annotated[
        int | None, Bounds(at_least=1, at_most=10**12), "pushes between evaluations; None: a twentieth of the budget"
    ] = None
    evaluate: Annotated[
        str, OneOf("after", "beside"), "after the timed run, or beside it, which shows curves live but disturbs the run"
    ] = "after"
    on_death: Annotated[
        str,
        OneOf("stop", "continue", "restart"),
        "if a process dies, the run ends, continues without this worker, or starts a new process",
    ] = "stop"
    keep_weights: Annotated[bool, "whether the record has the final weights, not only their SHA-256"] = False
    lease_s: Annotated[
        float, Bounds(at_least=0.1, at_most=1e6), "heartbeat timeout: real seconds until a silent process is dead"
    ] = 60.0
    checkpoint_every: Annotated[
        int | None,
        Bounds(at_least=1, at_most=10**12),
        "pushes between checkpoints, with on_death='restart'; None: so often that they take 2% of the run's time",
    ] = None
    dilation: Annotated[
        float | str,
        Bounds(at_least=1, at_most=64),
        OneOf("auto"),
        "the factor by which emulation is slower than real time; auto: as large as this machine needs it",
    ] = "auto"

    def __post_init__(self) -> None:
        if isinstance(self.model, (list, tuple)):
            object.__setattr__(self, "model", f"sizes:{'+'.join('x'.join(map(str, shape)) for shape in self.model)}")
        check(self)
        if self.engine in MODELLED and self.cluster == FREE:
            words = f"engine={self.engine!r} needs a modelled cluster, and none is given: using cluster={LAB!r}"
            warnings.warn(words, stacklevel=4)
            object.__setattr__(self, "cluster", LAB)
        RayOptions.of(self.ray)
        if isinstance(self.cluster, Mapping):
            object.__setattr__(self, "cluster", dict(self.cluster))
        elif not isinstance(self.cluster, str):
            raise ConfigError("cluster", self.cluster, "must be a preset's name or a mapping of Cluster's fields")
        resolve_cluster(self.cluster).check_workers(self.workers)
        for name in NAMED:
            if (value := getattr(self, name)) is None or isinstance(value, (bool, int, float)):
                raise ConfigError(name, value, f"must be a name such as {FIELDS[name].default!r}, or an object")
        target = self.target_accuracy
        if target is not None:
            metric_of(self).check_goal("target_accuracy", target)
        if self.target_held and target is None:
            raise ConfigError("target_held", True, "needs a target: set target_accuracy, such as 0.97, too")
        if self.pushes is None and self.seconds is None and target is None:
            raise ConfigError("pushes", None, "a run needs a stop rule: set pushes, seconds or target_accuracy")
        if self.pushes is None and self.seconds is None and self.eval_every is None:
            raise ConfigError("eval_every", None, "only evaluations notice the target: set eval_every, such as 50")

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> Run:
        """Return the Run with the parameters that a notebook, the command line or a YAML file gives.

        Raises:
            ConfigError: an unknown name (with the nearest valid one), or anything that Run itself refuses.
        """
        return cls(**{str(name): value for name, value in parameters.items()})

    def but(self, **changes: Any) -> Run:
        """Return this run with some fields changed.

        Raises:
            ConfigError: values that Run refuses, or a free cluster in virtual time, which Run would replace by another
                cluster.
        """
        plain = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        if changes.get("cluster") == FREE and changes.get("engine", self.engine) in MODELLED:
            raise ConfigError("cluster", FREE, f"virtual time needs a modelled cluster, such as {LAB!r}")
        return Run.of({**plain, **changes})

    def as_now(self) -> Run:
        """Return this run, or a copy if it has objects: a cell may have changed their content, and so the digest."""
        given = (getattr(self, name) for name in NAMED)
        return self if all(isinstance(value, (str, Mapping)) for value in given) else self.but()

    def plain(self) -> dict[str, Any]:
        """Return all fields except ASIDE as JSON values; an object becomes its name and a digest of its content."""
        fields = ((f.name, getattr(self, f.name)) for f in dataclasses.fields(self) if f.name not in ASIDE)
        return {name: self._objects[name] if name in self._objects else _plain(value) for name, value in fields}

    @property
    def changed(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults."""
        return {f.name: value for f in dataclasses.fields(self) if (value := getattr(self, f.name)) != f.default}

    def __repr__(self) -> str:
        given = (f"{name}={value!r}" if isinstance(value, (str, Mapping)) else f"{name}={plain(value)}"
                 for name, value in self.changed.items())  # fmt: skip
        return f"Run({', '.join(given)})"

    def __str__(self) -> str:  # a run is one cell of a table
        return self.digest

    @property
    def unknown(self) -> str:
        """Return why the digest does not cover all content of this run; "" if it does."""
        return "; ".join(f"{name}: {survey.unknown}" for name, survey in self.surveys.items() if survey.unknown)

    @cached_property
    def digest(self) -> str:
        """Return sixteen hexadecimal digits that identify the run's results. They depend on the fields at the first
        call, and on this machine's kind of GPU or its library for matrices.

        Raises:
            ConfigError: one of the user's modules was edited after it was imported.
        """
        return self.digest_on(gpus.kinds(), products.here())

    def digest_on(self, gpu: str, library: str = products.MKL) -> str:
        """Return the digest of this run on GPUs of this kind, or on a CPU where this library multiplies matrices."""
        named = {name: _sources(name, getattr(self, name)) for name in USERS}
        read = {name: files for name, files in named.items() if files}
        here = {"products": self.products_of(library), "gpu": gpu if self.device != "cpu" else ""}
        return digest_of({"semantics": SEMANTICS, **here, **self.plain(), **({"sources": read} if read else {})})

    def products_of(self, library: str) -> str:
        """Return the library that multiplies this run's matrices on a machine that prefers `library`: MKL, unless the
        run uses whole linear layers in float32 on the CPU."""
        whole = self.pull != "keys" and self.engine != "timing"
        return library if whole and self.device == "cpu" and self.dtype == "float32" else products.MKL

    @cached_property
    def surveys(self) -> dict[str, Survey]:
        """Return, by field, the survey of each object: its content, and the settings that it uses."""
        given = {name: getattr(self, name) for name in NAMED}
        return {name: _surveyed(name, value) for name, value in given.items() if not isinstance(value, (str, Mapping))}

    @cached_property
    def _objects(self) -> dict[str, str]:
        # the name and content, as in a record, of each field that holds an object
        objects = {name: _named(getattr(self, name), survey) for name, survey in self.surveys.items()}
        if "metric" in objects and metric_of(self).lower:
            objects["metric"] += LOWER
        return objects

    def reaches_target(self, evaluated: Iterable[float]) -> bool:
        """Whether these evaluations, in this order, end the run because its target is reached."""
        values, target = [value for value in evaluated if math.isfinite(value)], self.target_accuracy
        compared, metric = medians(values) if self.target_held else values, metric_of(self)
        return target is not None and any(metric.reaches(value, target) for value in compared)

    @property
    def evaluation_period(self) -> int | None:
        """Return the number of pushes between two evaluations; None without a budget of pushes (then by time)."""
        if self.eval_every is not None:
            return self.eval_every
        return None if self.pushes is None else max(1, self.pushes // 20)


FIELDS = parameters(Run)  # the fields of a Run, by name


def _sources(field: str, value: object) -> dict[str, str]:
    """Return digests of the user's sources that a name refers to; {} for any other value.

    The sources are the files behind package.module:name, the images of a folder, a file of rows, or the interpreter
    whose functions or language reference are the data.
    """
    if not isinstance(value, str):
        return {}
    name = split(value)[0] if field == "data" else ""
    if name == "functions":
        return {"python": sys.version}
    if name == "text":
        return {"text": hashlib.sha256(sources.language_reference()).hexdigest()}
    if name in ("libsvm", "folder") and (folder := _path(value)):
        if name == "libsvm":
            return {"rows": sources.file(folder)}
        in_memory = split(value)[2].get("memory", "on").lower() in TRUE
        return {"folder": digest} if (digest := sources.folder(folder, content=in_memory)) else {}
    path, colon, _ = value.partition(":")
    if not colon or not all(part.isidentifier() for part in path.split(".")):
        return {}
    try:
        return sources.of(path)
    except ConfigError as error:
        raise ConfigError(field, value, f"{error.value} {error.problem}") from error


def _path(data: str) -> Path | None:
    # the file or folder that a string for `data` names, if any
    _, first, named = split(data)
    given = named.get("path", first[0] if first else "")
    return Path(given).expanduser().absolute() if given else None


def _surveyed(field: str, value: Any) -> Survey:
    try:
        return survey(value)
    except ConfigError as error:
        raise ConfigError(field, _name(value), f"{error.value} {error.problem}") from error


def _named(value: Any, surveyed: Survey) -> str:
    digest = f"{_PROCESS}-{id(value):x}" if surveyed.unknown else surveyed.digest  # unique if unknown
    return f"{_name(value)}#{digest}"


def _name(value: Any) -> str:
    return str(getattr(value, "__name__", type(value).__name__))


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return repr(value)
