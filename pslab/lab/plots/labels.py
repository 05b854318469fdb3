"""Words in figures: the name of a value, a curve's label and its marks, the heading of a figure, and its caption.

The names of policies come from the rows of `pslab.config.table`, the names of Run's other fields from FIELDS below.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from pslab.config import parameters
from pslab.config.cluster import COSTS, PRESETS, Fault, cluster_fields
from pslab.config.metric import ACCURACY, metric_of
from pslab.config.run import FIELDS as PARAMETERS
from pslab.config.run import Run
from pslab.config.spec import split
from pslab.config.table import KINDS, find
from pslab.lab.records.card import MARKS
from pslab.lab.records.frames import Given, single, unique, where
from pslab.lab.records.frames import notes as choices
from pslab.lab.records.units import DASH, plain
from pslab.lab.records.units import SPACE as SPACE

BRIEF = 48  # the most characters of a cluster in words; a longer one is named by its preset
#: The words for a field of Run that is None.
UNSET = {"push_weight": "push weight 1/W", "pushes": "no limit of pushes", "seconds": "no limit of time",
         "target_accuracy": "no target", "eval_every": "evaluated 20 times",
         "checkpoint_every": "checkpoints as needed"}  # fmt: skip


# -- one value -------------------------------------------------------------------------------------


def name(field: str, value: object) -> str:
    """Return a value of a field of Run, or of any other axis, in words: ``"ssp:3"`` -> ``"SSP, s = 3"``."""
    if absent(value):
        return UNSET.get(field, DASH)
    if field in PARAMETERS and isinstance(value, str) and not {str, object} & {*PARAMETERS[field].kinds}:
        return value  # a name that the grid gave to a number
    if field in KINDS:
        return policy(field, value)
    return FIELDS[field](value) if field in FIELDS else plain(value)


def absent(value: object) -> bool:
    """Whether a value is None, or the NaN that stands for None in a column of numbers."""
    return value is None or value != value


def policy(kind: str, value: object) -> str:
    """Return a policy in words: by the label of its row in the table, or a user's object by the name of its class."""
    row, (first, positional, named) = find(kind, value) if kind in KINDS else None, parts(value)
    if row is None or not row.label:
        return _joined([first if row is None else row.name], positional, named)
    fields = re.findall(r"\{(\w+)", row.label)
    given = dict(zip(fields, positional, strict=False)) | {key: named[key] for key in fields if key in named}
    words = [_filled(part, given, rank == 0) for rank, part in enumerate(row.label.split(", "))]
    others = {key: text for key, text in named.items() if key not in fields}
    return _joined(filter(None, words), positional[len(fields) :], others)


def parts(value: object) -> tuple[str, list[str], dict[str, str]]:
    """Split a policy (a string, an object, or its text in a record) into name, positional values and named values."""
    if isinstance(value, str):
        name, hash_sign, _ = value.partition("#")
        written = "(" in name.partition(":")[0]  # a user's object in words: "Turns(every=10)"
        return (name, [], {}) if hash_sign or written else split(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [(f.name, getattr(value, f.name), f.default) for f in dataclasses.fields(value)]
        return type(value).__name__, [], {n: plain(v) for n, v, default in fields if v != default}
    return getattr(value, "__name__", type(value).__name__), [], {}


def number(text: str) -> float | None:
    """Return the number that a text means (``"1%"`` is 0.01); None if it is no number."""
    try:
        return parameters.number(text)
    except ValueError:
        return None


def _filled(part: str, given: Mapping[str, str], leads: bool) -> str:
    """Return a part of a label with its parameter filled in. Without the parameter, return "", or for the leading part
    the words before it."""
    field = re.search(r"\{(\w+)(:%)?\}", part)
    if field is None:
        return part
    if field[1] not in given:
        return part[: field.start()].strip() if leads else ""
    value = number(given[field[1]])
    if value is None:
        return part[: field.start()] + given[field[1]]
    shown = f"{100 * value:g}{SPACE}%" if field[2] else plain(value)
    return re.sub(r" (?==)|(?<==) |(?<=\}) (?=\S+$)", SPACE, part).replace(field[0], shown)


def _joined(words: Iterable[str], positional: Sequence[str], named: Mapping[str, str]) -> str:
    return ", ".join([*words, *positional, *(_option(key, text) for key, text in named.items())])


def _option(key: str, text: str) -> str:
    words = key.replace("_", "-")
    if text.lower() in ("off", "false", "no", "0"):
        return f"no{SPACE}{words}"
    return text if key == "mode" else f"{words}{SPACE}{text}"


def bits(rate: float) -> str:
    """Return bits per second with a unit: ``1e9`` -> ``"1 Gbit/s"``."""
    unit, size = next((u for u in (("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3)) if rate >= u[1]), ("bit/s", 1.0))
    return f"{rate / size:g}{SPACE}{unit}"


def duration(seconds: float) -> str:
    """Return seconds with a unit: ``0.0005`` -> ``"0.5 ms"``."""
    unit, size = next((u for u in (("s", 1.0), ("ms", 1e-3)) if seconds >= u[1]), ("µs", 1e-6))
    return f"{seconds / size:g}{SPACE}{unit}" if seconds else f"0{SPACE}s"


def cluster_name(cluster: str | Mapping[str, Any], engine: str = "local") -> str:
    """Return a cluster in words, with units: ``"1 Gbit/s per worker, full duplex"``; "not emulated" if it is free."""
    return ", ".join(cluster_words(cluster, engine)) or "not emulated"


def cluster_words(cluster: str | Mapping[str, Any], engine: str = "local") -> list[str]:
    """Return the properties of a cluster in words, with the costs only if they are modelled instead of measured."""
    c = cluster_fields(cluster)
    words = []
    per_host = c.get("per_host", 1)
    if c.get("bandwidth_bit_s"):
        sharing = "worker" if per_host == 1 else f"host of {per_host} workers"
        words += [f"{bits(c['bandwidth_bit_s'])} per {sharing}", f"{c.get('duplex', 'full')} duplex"]
    elif per_host > 1:
        words.append(f"{per_host} workers per host")
    if c.get("intra_host_bandwidth_bit_s"):
        words.append(f"{bits(c['intra_host_bandwidth_bit_s'])} inside a host")
    words += [f"{bits(rate)} from {duration(at)} on" for at, rate in dict(c.get("bandwidth_at", {})).items()]
    if c.get("latency_s"):
        words.append(f"{duration(c['latency_s'])} latency")
    if c.get("overhead_s"):
        words.append(f"{duration(c['overhead_s'])} per message")
    if c.get("server_bandwidth_bit_s"):
        words.append(f"{bits(c['server_bandwidth_bit_s'])} at the server")
    if c.get("colocated"):
        words.append("a server on each worker's machine" if per_host == 1 else "a server on each host")
    if c.get("compute_s"):
        jitter = f" (log-normal, σ{SPACE}{c['compute_sigma']:g})" if c.get("compute_sigma") else ""
        words.append(f"computation {duration(c['compute_s'])}{jitter}")
    if c.get("stall_probability"):
        share = f"{100 * c['stall_probability']:g}{SPACE}%"
        words.append(f"{share} of iterations ×{c.get('stall_factor', 1):g} slower")
    words += [f"worker {worker} ×{factor:g} slower" for worker, factor in dict(c.get("slow", {})).items()]
    words += [f"worker {worker} at {bits(rate)}" for worker, rate in dict(c.get("bandwidth_of", {})).items()]
    words += [f"worker {worker} with {duration(s)} latency" for worker, s in dict(c.get("latency_of", {})).items()]
    words += ["selecting, coding and serving cost time"] if engine not in ("local", "ray") and {*COSTS} & {*c} else []
    words += ["recorded computation times"] if c.get("trace") else []
    for field, verb in (("leave", "leaves"), ("join", "joins")):
        words += [f"worker {worker} {verb} at {duration(at)}" for worker, at in dict(c.get(field, {})).items()]
    words += map(_fault, map(Fault.of, c.get("faults", ())))
    if c.get("restart_s"):
        words.append(f"a dead worker is replaced after {duration(c['restart_s'])}")
    return words


def _fault(fault: Fault) -> str:
    who, length = "each worker" if fault.worker is None else f"worker {fault.worker}", duration(fault.for_s)
    does = {
        "kill": "is killed", "stop": f"stops for {length}", "delay": f"has a message delayed by {length}",
        "drop": "has a message lost", "duplicate": "has a message duplicated", "corrupt": "has a message corrupted",
    }  # fmt: skip
    when = {
        "iteration": f"in iteration {fault.iteration}", "at_s": f"at {duration(fault.at_s or 0)}",
        "probability": f"with probability {fault.probability or 0:g}",
        "per_hour": f"{fault.per_hour or 0:g} times an hour",
    }  # fmt: skip
    return f"{who} {does[fault.what]} {next(when[name] for name in when if getattr(fault, name) is not None)}"


def _cluster(value: Any) -> str:
    """Return a cluster in words; if they are too long, the name of its preset, which the caption explains."""
    fields = {"preset": value} if isinstance(value, str) else dict(value)
    if fields.get("preset", "free") not in PRESETS:
        return str(value)
    words, preset = cluster_name(value), fields.pop("preset", "free")
    if len(words) <= BRIEF or preset == "free":
        return words
    return ", ".join([f"cluster {preset}", *cluster_words(fields)])


#: Field of Run that is not a policy -> the words for a value.
FIELDS: dict[str, Callable[[Any], str]] = {
    "workers": lambda v: f"{v} worker{'s' if v != 1 else ''}",
    "servers": lambda v: f"{v} server{'s' if v != 1 else ''}",
    "seed": "seed {}".format,
    "batch_size": "batch {}".format,
    "optimizer": lambda v: policy("optimizer", v).replace("sgd", "SGD").replace(f", nesterov{SPACE}True",
                                                                                " (Nesterov)"),
    "learning_rate": lambda v: f"η{SPACE}={SPACE}{v:g}",
    "inner": lambda v: f"inner {v or 'optimizer as published'}",
    "outer_learning_rate": lambda v: "outer rate as published" if v is None else f"outer η{SPACE}={SPACE}{v:g}",
    "downlink": lambda v: f"downlink {v}".replace("+", " and "),
    "push_weight": lambda v: f"push weight {v:g}" if isinstance(v, (int, float)) else f"push weight {v}",
    "pushes": lambda v: f"{plain(v)} pushes",
    "seconds": lambda v: f"{v:g}{SPACE}s",
    "target_accuracy": lambda v: f"{ACCURACY.goal(v, SPACE)} accuracy",
    "target_held": lambda v: "target held" if v else "target reached",
    "cluster": _cluster,
    "pull": "pull {}".format,
    "ray": lambda v: f"Ray: {', '.join(f'{name} {value}' for name, value in (v or {}).items()) or 'defaults'}",
    "device": str, "dtype": str,
    "eval_every": "evaluated every {} pushes".format,
    "evaluate": "evaluated {} the run".format,
    "on_death": "on death {}".format,
    "checkpoint_every": "checkpoint every {} pushes".format,
    "keep_weights": lambda v: "weights kept" if v else "weights not kept",
    "dilation": lambda v: f"time dilated {v:g} times" if isinstance(v, (int, float)) else "time dilated as needed",
    "lease_s": lambda v: f"lease {v:g}{SPACE}s",
}  # fmt: skip


# -- columns of runs -------------------------------------------------------------------------------

COLUMNS = {"sync": "synchronization policy", "prune": "pruning rule", "quantize": "quantization rule",
           "rate": "learning-rate policy", "order": "request order", "learning_rate": "learning rate",
           "push_weight": "push weight", "inner": "inner optimizer"}  # fmt: skip


def column_title(column: str) -> str:
    """Return a column's title: ``"learning_rate"`` -> ``"learning rate"``."""
    return COLUMNS.get(column, column.replace("_", " "))


def column_name(field: str, value: Any, run: Run) -> str:
    """Return a value of a column in words, given a run with this value. A name given by the grid is returned
    unchanged."""
    present = getattr(run, field, None)
    if field in PARAMETERS and parameters.plain(value) != parameters.plain(present):
        return plain(value)
    if field == "target_accuracy" and value is not None and not (metric := metric_of(run)).share:
        return metric.goal(value)
    if field == "optimizer":
        return name(field, _at_server(run))
    # delayed Nesterov, "dn", divides each gradient by its period
    if field == "push_weight" and value is None and (averages(run) or str(_at_server(run)).partition(":")[0] == "dn"):
        return ""
    return name(field, present if field in PARAMETERS else value)


def averages(run: Run) -> bool:
    """Whether a step of the run's policy applies the mean of several pushes; then a push has no weight of its own."""
    row = find("sync", run.sync)
    return bool(getattr(run.sync, "rounds", False)) if row is None else row.averages


def _at_server(run: Run) -> Any:
    """Return the server's optimizer: the run's, or if that is the default, the one that the policy's paper uses."""
    row, named = find("sync", run.sync), run.optimizer
    if named != PARAMETERS["optimizer"].default:
        return named
    return getattr(run.sync if row is None else row.load(), "outer", named)


def label_of(values: Mapping[str, Any], names: Sequence[str], run: Run) -> str:
    """Return a curve's label: these columns' values in words; without columns, its policy and its pruning rule."""
    words = (column_name(name, values.get(name, getattr(run, name, None)), run) for name in names or ("sync", "prune"))
    return ", ".join(filter(None, words))


def heads_of(column: str, values: Sequence[Any], results: pd.DataFrame) -> list[str]:
    """Return the values of a column in words, as headings of panels."""
    return [column_name(column, value, where(results, **{column: value}).run.iloc[0]) or name(column, value)
            for value in values]  # fmt: skip


# -- marks -----------------------------------------------------------------------------------------


#: Facts that change the last bits of a run, so that records with different facts are not quite comparable.
MADE_BY = {"capability": "instruction sets of the CPU", "torch": "versions of torch",
           "products": "libraries of products"}  # fmt: skip


def marks(results: Iterable[Any]) -> str:
    """Return the marks after the label of these results: ``"*"``, and ``"✖2/3"`` if two of three seeds diverged."""
    manifests = [result.manifest for result in results]
    diverged = sum(manifest.get("outcome") == "diverged" for manifest in manifests)
    signs = "".join(mark for mark, _, test in MARKS if any(map(test, manifests)))
    return signs + (f"{SPACE}✖{diverged}/{len(manifests)}" if diverged else "")


def notes_of(results: Iterable[Any]) -> list[str]:
    """Return the lines of a caption that explain the marks of these results."""
    manifests = [result.manifest for result in results]
    lines = [f"{mark} {words}" for mark, words, test in MARKS if any(map(test, manifests))]
    for name, words in MADE_BY.items():
        kinds = {str(manifest.get("environment", {}).get(name)) for manifest in manifests} - {"None"}
        lines += [f"made with several {words}: {', '.join(sorted(kinds))}"] if len(kinds) > 1 else []
    slower = sorted({float(manifest.get("dilation", 1.0)) for manifest in manifests})
    if slower and slower[-1] > 1:
        factor = "–".join(f"{k:g}" for k in dict.fromkeys((slower[0], slower[-1])))
        lines.append(f"emulated {factor} times slower than shown: seconds are the cluster's own")
    diverged = any(manifest.get("outcome") == "diverged" for manifest in manifests)
    return lines + (["✖ diverged: the run ended there, and is not in the band"] if diverged else [])


# -- over and under a figure -----------------------------------------------------------------------


def heading(title: Any, what: Iterable[str], against: Iterable[str] = (), columns: Iterable[str] = ()) -> str:
    """Return the title over a figure: the given text, or the title of a Claim. If `title` is None, the text names the
    shown quantities, as in ``"Test accuracy against time, by pruning rule"``."""
    if given := title if isinstance(title, str) else str(getattr(title, "title", "") or ""):
        return given
    by = _enumerated(map(column_title, dict.fromkeys(columns)))
    text = " against ".join(filter(None, (_enumerated(what), _enumerated(against))))
    return f"{text[0].upper()}{text[1:]}" + (f", by {by}" if by else "")


def _enumerated(words: Iterable[str]) -> str:
    *others, last = [*words] or [""]
    return " and ".join(filter(None, (", ".join(others), last)))


#: Fields in every caption, and fields in a caption only if they are not Run's default.
SHARED = ("model", "data", "sync", "prune", "workers", "batch_size", "optimizer", "learning_rate")
UNLESS_DEFAULT = ("servers", "loss", "metric", "inner", "outer_learning_rate", "schedule", "quantize", "pull",
                  "downlink", "rate", "order", "ranges", "partition", "placement", "device", "dtype",
                  "eval_every")  # fmt: skip
#: Engine -> its words in a caption.
ENGINES = {"virtual": "in virtual time", "ray": "on Ray", "timing": "without gradients"}
#: Fields without effect if no gradients are computed.
WITHOUT_TENSORS = frozenset({"data", "loss", "metric", "learning_rate", "batch_size", "optimizer", "schedule", "rate",
                             "push_weight", "inner", "outer_learning_rate", "eval_every"})  # fmt: skip
RANGE = "median and range of"


def under(
    results: pd.DataFrame, columns: Iterable[str], *more: str, notes: Iterable[str] = (), spread: str = RANGE
) -> list[str]:
    """Return the caption of a figure of these results: their common facts, the figure's own lines, how the results were
    chosen, the meaning of their marks, and the user's notes."""
    return [*caption(results, columns, spread), *more, *choices(results), *notes_of(unique(results)), *notes]


def caption(results: Given, shown: Iterable[str] = (), spread: str = RANGE) -> list[str]:
    """Return lines with the facts that these results share, except for the fields in `shown`.

    Args:
        spread: the words for a summary over seeds, such as "mean of".
    """
    runs = [result.run for result in unique(results)]
    crowd = [run for run in runs if not single(run, runs)]
    if not crowd:
        return []
    first = crowd[0]
    varied = {*shown, *(field for field in PARAMETERS if len({repr(getattr(run, field)) for run in crowd}) > 1)}
    left_out = varied | WITHOUT_TENSORS if first.engine == "timing" else varied
    needed = {"pull"} if any(run.prune != "none" for run in crowd) else set()  # or pulls would seem to be pruned, too
    fields = [*SHARED, *(field for field in UNLESS_DEFAULT
                         if field in needed or getattr(first, field) != getattr(Run(), field))]  # fmt: skip
    words = [f"{field} " * (field in ("partition", "placement")) + column_name(field, getattr(first, field), first)
             for field in fields if field not in left_out]  # fmt: skip
    if "push_weight" not in left_out:
        weighted = next((run for run in crowd if not averages(run)), None)
        words.append("one step a round by the mean gradient" if weighted is None else
                     column_name("push_weight", weighted.push_weight, weighted))  # fmt: skip
    words += [ENGINES[first.engine]] if first.engine in ENGINES and "engine" not in varied else []
    stops = [column_name(field, getattr(first, field), first) for field in ("pushes", "seconds", "target_accuracy")
             if field not in varied and getattr(first, field) is not None]  # fmt: skip
    ending = " held" * (first.target_held and "target_accuracy" not in varied)
    words += [f"stops at {' or '.join(stops)}{ending}"] if stops else []
    counts = sorted({*Counter(run.but(seed=0).digest for run in runs).values()})
    many = "–".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
    seeds = "one seed" if many == "1" else f"{spread} {many} seeds"
    lines = [", ".join(filter(None, [*words, seeds])), *_clusters(crowd, "cluster" in varied)]
    return lines + (["single machine: the same computation, no network"] if len(crowd) < len(runs) else [])


def _clusters(runs: Sequence[Run], several: bool) -> list[str]:
    """Return lines about the runs' clusters: the common properties, then the further properties of each preset."""
    words = {_cluster(run.cluster): cluster_words(run.cluster, run.engine) for run in runs}
    shared = set.intersection(*({*cluster_words(run.cluster, run.engine)} for run in runs))
    common = ", ".join(word for word in cluster_words(runs[0].cluster, runs[0].engine) if word in shared)
    lines = [f"{'all clusters' if several else 'cluster'}: {common or 'not emulated'}"] if common or not several else []
    presets = {f"cluster {preset}" for preset in PRESETS} if several else ()
    return lines + [f"{name}: {', '.join(word for word in members if word not in shared)}"
                    for name, members in words.items() if name in presets]  # fmt: skip
