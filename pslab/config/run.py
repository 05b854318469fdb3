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

# Raise it when the same Run gives other results than before: old records are then not reused. A field that is added
# needs no more: it is part of every digest, and so old records are not reused either, unless ASIDE names it.
SEMANTICS = 7

NAMED = ("model", "data", "loss", "metric", "sync", "prune", "quantize", "rate", "ranges", "order", "optimizer",
         "schedule", "cluster")  # fmt: skip
ASIDE = ("checkpoint_every", "ray")  # they change nothing of a run's results: no part of what names it
USERS = ("model", "data", "loss", "metric")  # which may be named as package.module:name
Named = str | object  # a short string, or an object that does the same
FREE, LAB = "free", "lab"  # the clusters of a run that names none: of this machine's time, of virtual time
MODELLED = ("virtual", "timing")  # engines whose time is all modelled
_PROCESS = os.urandom(4).hex()


def named_object(value: object) -> bool:
    """Whether a field of a record's run names an object, which the record does not contain: ``"Turns#4f65..."``."""
    return isinstance(value, str) and "#" in value.partition(":")[0]


def digest_of(content: Mapping[str, Any]) -> str:
    """Sixteen hexadecimal digits that name plain content."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


@described
@dataclass(frozen=True, kw_only=True)
class Run:
    """An experiment.

    The budget and the x-axis count accepted pushes over all workers; an iteration is pushes / workers. The run stops
    at whichever of `pushes`, `seconds` and `target_accuracy` comes first. Where a step is a round of all workers its
    weights are those after the last round that the budget holds whole; several ranges or servers stop there.

    Raises:
        ConfigError: an unknown field, one of the wrong type, or an impossible value. What names stand for
            is looked up by `pslab.lab.runs.resolve`.
    """

    model: Annotated[Named, "a name, package.module:factory, or a callable that returns an nn.Module"] = "mlp"
    data: Annotated[Named, "a name, folder:PATH, torchvision:NAME, package.module:function, or a callable"] = "mnist"
    loss: Annotated[
        Named, "the minimized function: a name, package.module:name, or a callable loss(output, target) -> scalar"
    ] = "cross_entropy"
    metric: Annotated[
        Named, "what an evaluation says: a name, package.module:name[:lower], or a callable metric(output, target)"
    ] = "accuracy"
    workers: Annotated[int, Bounds(at_least=1, at_most=1024), "that compute gradients"] = 4
    servers: Annotated[int, Bounds(at_least=1, at_most=1024), "that hold the weights, each its part of them"] = 1
    sync: Annotated[Named, "when a worker may start its next iteration, and when a push is applied"] = "bsp"
    prune: Annotated[Named, "which entries of a gradient are pushed"] = "none"
    quantize: Annotated[Named, "how a pushed value is coded: all its bits, or a short code"] = "none"
    rate: Annotated[Named, "how far one applied push moves the weights"] = "constant"
    ranges: Annotated[Named, "what a request is about: the whole model, or each layer, or slices of layers"] = "whole"
    order: Annotated[Named, "which request goes next on a worker's link, where there are several"] = "fifo"
    pull: Annotated[
        str, OneOf("whole", "changed", "range", "keys"),
        "all weights; those changed since this worker's last pull (lossless); the keys that it has pushed; the keys of "
        "its next batch, where data are sparse",
    ] = "whole"
    downlink: Annotated[
        str, "how the difference to the worker's weights is compressed in an answer: a pruning or quantization rule, "
        "or both, as in static:1%+int8; none: all weights"
    ] = "none"
    optimizer: Annotated[Named, "at the server: an elementwise torch.optim class, as sgd:momentum=0.9"] = "sgd"
    inner: Annotated[
        str, "at each worker that trains by itself, as diloco's: as the optimizer, and perhaps clip=1; '': its paper's"
    ] = ""
    learning_rate: Annotated[float, Bounds(above=0, at_most=1e6), "before rate and schedule"] = 0.1
    outer_learning_rate: Annotated[
        float | None, Bounds(above=0, at_most=1e6), "of the server's optimizer there; None: the paper's"
    ] = None
    schedule: Annotated[Named, "what the learning rate is multiplied by as the budget is used up"] = "constant"
    push_weight: Annotated[
        float | None, Bounds(above=0, at_most=1e6), "the factor of a push that is applied alone; None: 1 / workers"
    ] = None
    partition: Annotated[
        str, OneOf(*ROWS["partition"]), "which worker takes which examples: sparse rows can be shared out by their keys"
    ] = "shuffled"
    placement: Annotated[
        str, OneOf(*ROWS["placement"]), "which server holds which keys, where workers ask for their batches' keys"
    ] = "even"
    batch_size: Annotated[int, Bounds(at_least=1, at_most=1_000_000), "examples per worker and iteration"] = 64
    pushes: Annotated[int | None, Bounds(at_least=1, at_most=10**12), "stop after so many, of all workers"] = 937
    seconds: Annotated[float | None, Bounds(at_least=1e-3, at_most=1e9), "stop after so long"] = None
    target_accuracy: Annotated[
        float | None, "stop once the metric is as good: an accuracy from 0 to 1, or a value of another metric"
    ] = None
    target_held: Annotated[
        bool, "whether one evaluation that is as good is too few to stop: the running median of three is to be"
    ] = False
    cluster: Annotated[
        str | Mapping[str, Any],
        "a preset's name (in virtual time, lab instead of free), or a mapping of Cluster's fields",
    ] = FREE
    engine: Annotated[str, OneOf(*ROWS["engine"]), "what executes the run"] = "local"
    ray: Annotated[
        Mapping[str, Any] | None, "with engine='ray': the cluster's address, and cpus and gpus for each process"
    ] = None
    device: Annotated[str, OneOf("cpu", "cuda"), "where workers compute gradients"] = "cpu"
    dtype: Annotated[str, OneOf("float32", "float64"), "of weights and gradients"] = "float32"
    seed: Annotated[int, Bounds(at_least=0, at_most=2**63 - 1), "of weights, batches and all else that is drawn"] = 0
    eval_every: Annotated[
        int | None, Bounds(at_least=1, at_most=10**12), "pushes between evaluations; None: a twentieth of the budget"
    ] = None
    evaluate: Annotated[
        str, OneOf("after", "beside"), "after the timed run, or beside it: curves grow live, but they disturb the run"
    ] = "after"
    on_death: Annotated[
        str, OneOf("stop", "continue", "restart"),
        "what the run does when a process dies: end, go on without this worker, or put a new process in its place",
    ] = "stop"
    keep_weights: Annotated[bool, "whether the record has the final weights, or their SHA-256 alone"] = False
    lease_s: Annotated[
        float, Bounds(at_least=0.1, at_most=1e6), "a process without a sign of life for so many real seconds is dead"
    ] = 60.0
    checkpoint_every: Annotated[
        int | None, Bounds(at_least=1, at_most=10**12),
        "with on_death='restart' pushes between checkpoints, from which the same run goes on; None: as often as they "
        "take 2% of its time",
    ] = None
    dilation: Annotated[
        float | str, Bounds(at_least=1, at_most=64), OneOf("auto"),
        "by how much an emulated cluster runs slower than its own seconds; auto: as this machine needs it",
    ] = "auto"

    def __post_init__(self) -> None:
        if isinstance(self.model, (list, tuple)):
            object.__setattr__(self, "model", f"sizes:{'+'.join('x'.join(map(str, shape)) for shape in self.model)}")
        check(self)
        if self.engine in MODELLED and self.cluster == FREE:
            words = f"engine={self.engine!r} needs a modelled cluster, and none is named: it is cluster={LAB!r}"
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
                raise ConfigError(name, value, "must be a name, or an object that does the same")
        target = self.target_accuracy
        if target is not None and metric_of(self).share and not 0 < target <= 1:
            raise ConfigError("target_accuracy", target, "must be a number above 0 and at most 1, or None")
        if self.target_held and target is None:
            raise ConfigError("target_held", True, "there is no target to be held: give a target_accuracy, too")
        if self.pushes is None and self.seconds is None and target is None:
            raise ConfigError("pushes", None, "a run needs a stop rule: pushes, seconds or target_accuracy")
        if self.pushes is None and self.seconds is None and self.eval_every is None:
            raise ConfigError("eval_every", None, "a stop at a target accuracy alone needs an evaluation period")

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> Run:
        """A Run from loose parameters, as a notebook, the command line or a YAML file gives them.

        Raises:
            ConfigError: an unknown name (with the nearest right one), or anything that Run itself refuses.
        """
        return cls(**{str(name): value for name, value in parameters.items()})

    def but(self, **changes: Any) -> Run:
        """Return this run with some fields changed.

        Raises:
            ConfigError: what Run refuses; and a free cluster in virtual time, which would go by another name.
        """
        plain = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        if changes.get("cluster") == FREE and changes.get("engine", self.engine) in MODELLED:
            raise ConfigError("cluster", FREE, f"virtual time needs a modelled cluster, such as {LAB!r}")
        return Run.of({**plain, **changes})

    def as_now(self) -> Run:
        """Return this run; if it has objects, with the digest of their present content: a cell may have changed it."""
        given = (getattr(self, name) for name in NAMED)
        return self if all(isinstance(value, (str, Mapping)) for value in given) else self.but()

    def plain(self) -> dict[str, Any]:
        """The fields as JSON can hold them: an object becomes its name and a digest of its content."""
        fields = ((f.name, getattr(self, f.name)) for f in dataclasses.fields(self) if f.name not in ASIDE)
        return {name: self._objects[name] if name in self._objects else _plain(value) for name, value in fields}

    @property
    def changed(self) -> dict[str, Any]:
        """The fields that are not at their defaults."""
        return {f.name: value for f in dataclasses.fields(self) if (value := getattr(self, f.name)) != f.default}

    def __repr__(self) -> str:
        given = (f"{name}={value!r}" if isinstance(value, (str, Mapping)) else f"{name}={plain(value)}"
                 for name, value in self.changed.items())  # fmt: skip
        return f"Run({', '.join(given)})"

    def __str__(self) -> str:  # a cell of a table
        return self.digest

    @property
    def unknown(self) -> str:
        """Why the digest does not cover everything of this run; "" if it does."""
        return "; ".join(f"{name}: {survey.unknown}" for name, survey in self.surveys.items() if survey.unknown)

    @cached_property
    def digest(self) -> str:
        """Sixteen hexadecimal digits that name the results of this run, as its fields are when it is first asked for,
        and, of one on GPUs, as they are here.

        Raises:
            ConfigError: a module of the user's was edited after it was imported.
        """
        return self.digest_on(gpus.kinds(), products.here())

    def digest_on(self, gpu: str, library: str = products.MKL) -> str:
        """The digest that this run has on GPUs of this kind, or on a CPU where this library multiplies matrices."""
        named = {name: _sources(name, getattr(self, name)) for name in USERS}
        read = {name: files for name, files in named.items() if files}
        here = {"products": self.products_of(library), "gpu": gpu if self.device != "cpu" else ""}
        return digest_of({"semantics": SEMANTICS, **here, **self.plain(), **({"sources": read} if read else {})})

    def products_of(self, library: str) -> str:
        """The library that multiplies this run's matrices where this one is the machine's: MKL, unless linear layers
        have all their weights, as float32 on the CPU."""
        whole = self.pull != "keys" and self.engine != "timing"
        return library if whole and self.device == "cpu" and self.dtype == "float32" else products.MKL

    @cached_property
    def surveys(self) -> dict[str, Survey]:
        """The content of each field that holds an object, and the settings that the object reaches."""
        given = {name: getattr(self, name) for name in NAMED}
        return {name: _surveyed(name, value) for name, value in given.items() if not isinstance(value, (str, Mapping))}

    @cached_property
    def _objects(self) -> dict[str, str]:
        """The fields that hold an object: its name and content in a record."""
        objects = {name: _named(getattr(self, name), survey) for name, survey in self.surveys.items()}
        if "metric" in objects and metric_of(self).lower:
            objects["metric"] += LOWER
        return objects

    def reaches_target(self, evaluated: Iterable[float]) -> bool:
        """Whether these evaluations, in their order, end the run by its target."""
        values, target = [value for value in evaluated if math.isfinite(value)], self.target_accuracy
        compared, metric = medians(values) if self.target_held else values, metric_of(self)
        return target is not None and any(metric.reaches(value, target) for value in compared)

    @property
    def evaluation_period(self) -> int | None:
        """Pushes between two evaluations; None without a budget in pushes (then by time)."""
        if self.eval_every is not None:
            return self.eval_every
        return None if self.pushes is None else max(1, self.pushes // 20)


FIELDS = parameters(Run)  # the fields of a Run, by name


def _sources(field: str, value: object) -> dict[str, str]:
    """Digests of what a name stands for outside of pslab; {} for any other value.

    These are the user's files behind package.module:name, the images of a folder, a file of rows, or the interpreter
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
    """The file or folder that a string for data names."""
    _, first, named = split(data)
    given = named.get("path", first[0] if first else "")
    return Path(given).expanduser().absolute() if given else None


def _surveyed(field: str, value: Any) -> Survey:
    try:
        return survey(value)
    except ConfigError as error:
        raise ConfigError(field, _name(value), f"{error.value} {error.problem}") from error


def _named(value: Any, surveyed: Survey) -> str:
    digest = f"{_PROCESS}-{id(value):x}" if surveyed.unknown else surveyed.digest  # like no other, if it is unknown
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
