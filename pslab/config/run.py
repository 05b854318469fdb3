"""Run: one frozen plain value that says everything about an experiment; its digest names its results."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
import math
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pslab.config.table import ROWS
from pslab.errors import ConfigError, nearest

SEMANTICS = 2  # raise it whenever the same Run would give other results than before: old records are then not reused

Named = str | object  # a short string, or an object that does the same
CHOICES: dict[str, tuple[str, ...]] = {
    "engine": tuple(ROWS["engine"]),
    "pull": ("whole", "changed", "range"),
    "codec": tuple(ROWS["codec"]),
    "device": ("cpu", "cuda"),
    "dtype": ("float32", "float64"),
    "on_death": ("stop", "continue"),
    "evaluate": ("after", "beside"),
}
NAMED = ("model", "data", "sync", "prune", "rate", "ranges", "order", "optimizer", "schedule", "cluster")


def digest_of(content: Mapping[str, Any]) -> str:
    """Sixteen hexadecimal digits that name plain content."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class Run:
    """One experiment.

    The budget and the x-axis count accepted pushes over all workers; an iteration is pushes / workers. The run stops
    at whichever of `pushes`, `seconds` and `target_accuracy` comes first.

    Raises:
        ConfigError: a field of the wrong type or an impossible value. Names are resolved by `pslab.lab.runs.resolve`.
    """

    model: Named = "mlp"  #: mlp, cnn, "package.module:factory", or a callable that returns an nn.Module
    data: Named = "mnist"  #: mnist, "torchvision:NAME", "package.module:function", or a callable
    workers: int = 4
    sync: Named = "bsp"
    prune: Named = "none"
    rate: Named = "constant"
    ranges: Named = "whole"  #: what a request is about: the whole model, or each layer, or slices of layers
    order: Named = "fifo"  #: which request goes next on a worker's link, where there are several
    pull: str = "whole"  #: everything; what changed since this worker's last pull (lossless); the keys it has pushed
    codec: str = "auto"  #: how sparse payloads are written
    optimizer: Named = "sgd"  #: at the server: an elementwise torch.optim class, as "sgd:momentum=0.9"
    learning_rate: float = 0.1
    schedule: Named = "constant"  #: constant, linear (to zero at the end of the budget), steps:FACTOR,AT,...
    push_weight: float | None = None  #: the constant rate of a push that is applied alone; 1 / workers if None
    batch_size: int = 64  #: per worker
    pushes: int | None = 937
    seconds: float | None = None
    target_accuracy: float | None = None
    cluster: str | Mapping[str, Any] = "free"
    engine: str = "local"  #: real processes; virtual time with real gradients; virtual time without tensors
    device: str = "cpu"
    dtype: str = "float32"
    seed: int = 0
    eval_every: int | None = None  #: pushes between evaluations; a twentieth of the budget if None
    evaluate: str = "after"  #: after the timed run, or beside it: curves grow live, but the run is disturbed
    on_death: str = "stop"
    lease_s: float = 60.0  #: a worker without a word for so long is dead

    def __post_init__(self) -> None:
        for f in dataclasses.fields(self):
            object.__setattr__(self, f.name, _typed(f.name, getattr(self, f.name), KINDS[f.name]))
        for name, allowed in CHOICES.items():
            if (value := getattr(self, name)) not in allowed:
                raise ConfigError(name, value, nearest(str(value), allowed))
        for name, low, high, words in LIMITS:
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise ConfigError(name, value, f"must be {words}")
        if self.pushes is None and self.seconds is None and self.target_accuracy is None:
            raise ConfigError("pushes", None, "a run needs a stop rule: pushes, seconds or target_accuracy")
        if self.pushes is None and self.seconds is None and self.eval_every is None:
            raise ConfigError("eval_every", None, "a stop at a target accuracy alone needs an evaluation period")

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> Run:
        """A Run from loose parameters, as a notebook, the command line or a YAML file gives them.

        Raises:
            ConfigError: an unknown name (with the nearest right one), or anything that Run itself refuses.
        """
        for name in parameters:
            if name not in KINDS:
                raise ConfigError(str(name), parameters[name], f"Run has no such field; {nearest(str(name), KINDS)}")
        return cls(**parameters)

    def but(self, **changes: Any) -> Run:
        """This run with some fields changed."""
        plain = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return Run.of({**plain, **changes})

    def plain(self) -> dict[str, Any]:
        """The fields as JSON can hold them: an object becomes its source text and arguments."""
        return {f.name: _plain(getattr(self, f.name)) for f in dataclasses.fields(self)}

    @property
    def cacheable(self) -> bool:
        """Whether the digest says everything: an object without source text cannot name its results."""
        return all(_source(getattr(self, name)) is not None for name in NAMED)

    @property
    def digest(self) -> str:
        """Sixteen hexadecimal digits that name the results of this run."""
        return digest_of({"semantics": SEMANTICS, **self.plain()})

    @property
    def evaluation_period(self) -> int | None:
        """Pushes between two evaluations; None where no budget in pushes gives one (then by time)."""
        if self.eval_every is not None:
            return self.eval_every
        return None if self.pushes is None else max(1, self.pushes // 20)


KINDS: dict[str, Any] = typing.get_type_hints(Run)
INFINITY = math.inf
LIMITS: tuple[tuple[str, float, float, str], ...] = (
    ("workers", 1, 1024, "from 1 to 1024"),
    ("learning_rate", 1e-12, 1e6, "above 0 and at most 1e6"),
    ("push_weight", 1e-12, 1e6, "above 0 and at most 1e6"),
    ("batch_size", 1, 1_000_000, "from 1 to 1000000"),
    ("pushes", 1, 10**12, "at least 1"),
    ("seconds", 1e-3, 1e9, "at least 0.001"),
    ("target_accuracy", 1e-9, 1, "above 0 and at most 1 (a share, not per cent)"),
    ("seed", 0, 2**63 - 1, "from 0 to 2**63 - 1"),
    ("eval_every", 1, 10**12, "at least 1"),
    ("lease_s", 0.1, 1e6, "at least 0.1"),
)


def _typed(name: str, value: Any, kind: Any) -> Any:
    """The value if it is of the annotated kind (an int may stand for a float); ConfigError if not."""
    if name == "cluster":
        if isinstance(value, str):
            return value
        if isinstance(value, Mapping):
            return dict(value)
        raise ConfigError(name, value, "must be a preset's name or a mapping of Cluster's fields")
    if name in NAMED:
        if value is None or isinstance(value, (bool, int, float)):
            raise ConfigError(name, value, "must be a name, or an object that does the same")
        return value
    options = typing.get_args(kind) or (kind,)
    if value is None and type(None) in options:
        return None
    if isinstance(value, bool) and bool not in options:
        raise ConfigError(name, value, f"must be {_words(options)}")
    if float in options and isinstance(value, (int, float)):
        if not math.isfinite(value):
            raise ConfigError(name, value, "must be finite")
        return float(value)
    if isinstance(value, tuple(o for o in options if o is not type(None))):
        return value
    raise ConfigError(name, value, f"must be {_words(options)}, not {type(value).__name__}")


def _words(options: tuple[Any, ...]) -> str:
    names = {int: "a whole number", float: "a number", str: "a string", bool: "True or False", type(None): "None"}
    return " or ".join(names[o] for o in options)


def _source(value: Any) -> str | None:
    """What stands for a named field in the digest: the string itself, or an object's source text and arguments."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return json.dumps(value, sort_keys=True, default=str)
    try:
        text = inspect.getsource(value if inspect.isclass(value) or inspect.isroutine(value) else type(value))
    except (OSError, TypeError):
        return None
    if inspect.isclass(value) or inspect.isroutine(value):
        return text
    arguments = vars(value) if hasattr(value, "__dict__") else {}
    return text + json.dumps({k: repr(v) for k, v in sorted(arguments.items())})


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return _source(value) or repr(value)



