"""pslab run: executes a run, as `run(...)` does in a notebook."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from pslab.config import plain_yaml
from pslab.config.cluster import Cluster
from pslab.config.parameters import Parameter, parameters
from pslab.config.ray_options import RayOptions
from pslab.config.run import FIELDS, NAMED, Run
from pslab.config.table import ROWS
from pslab.errors import ConfigError

GROUPS: dict[str, tuple[str, ...]] = {
    "training": ("model", "data", "loss", "metric", "batch_size", "optimizer", "learning_rate", "schedule",
                        "inner", "outer_learning_rate", "dtype", "seed"),
    "policies": ("sync", "prune", "quantize", "rate", "push_weight", "ranges", "order", "pull", "downlink",
                 "partition", "placement"),
    "where it runs": ("workers", "servers", "cluster", "engine", "ray", "device", "dilation"),
    "end and records": ("pushes", "seconds", "target_accuracy", "target_held", "eval_every", "evaluate",
                                      "keep_weights"),
    "faults": ("on_death", "lease_s", "checkpoint_every"),
}  # fmt: skip
MAPPINGS: dict[str, type] = {"cluster": Cluster, "ray": RayOptions}  # fields that may be a mapping of fields
UNBROKEN = "\u00a0"  # a space at which no line ends
#: Example values, as typed, of the fields that have neither choices nor names in the table.
EXAMPLES = {
    "workers": "8", "servers": "2", "optimizer": "sgd:momentum=0.9", "learning_rate": "0.5", "push_weight": "1",
    "batch_size": "32", "pushes": "2000", "seconds": "60", "target_accuracy": "0.97", "target_held": "on",
    "cluster": "\"{preset: lab, slow: {0: 2.0}}\"",
    "seed": "1", "eval_every": "100", "keep_weights": "on", "lease_s": "10", "dilation": "4",
    "checkpoint_every": "500", "ray": "\"{gpus: 0.5}\"", "inner": "adamw:clip=1", "outer_learning_rate": "0.7",
    "downlink": "int8",
}  # fmt: skip


def example(name: str) -> str:
    """Return an example value of a field, as typed in a shell; if possible another value than the default."""
    field = FIELDS[name]
    if name in NAMED and name in ROWS:
        names = [row.example or row.name for row in ROWS[name].values()]
        return next((candidate for candidate in names if ":" in candidate), names[-1])
    return EXAMPLES.get(name) or next((word for word in field.choices if word != field.default), field.shown)


class Unbroken(argparse.HelpFormatter):
    """A formatter of help that never breaks a line within an example, so that examples can be copied."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        lines = textwrap.wrap(text, width, break_on_hyphens=False)
        return [line.replace(UNBROKEN, " ") for line in lines]


def add(verbs: Any) -> None:
    """Add the verb, and an option for each field of Run."""
    parser = verbs.add_parser(
        "run", help="one run: pslab run --sync ssp:3 --prune static:1%%", formatter_class=Unbroken,
        usage="pslab run [--file YAML] [--results RESULTS] [--again] [--fresh] [--FIELD VALUE ...]", description=(
            "Execute one run, or read its record if it exists. Values are written as in a notebook; 'pslab list' shows "
            "the names."),
    )  # fmt: skip
    add_fields(parser)
    parser.add_argument("--again", action="store_true", help="repeat a recorded run that was too much for this machine")
    parser.add_argument("--fresh", action="store_true", help="start from the beginning, not from a checkpoint")


def add_fields(parser: argparse.ArgumentParser, without: Collection[str] = ()) -> None:
    """Add --file, --results, and an option for each field of Run that is not in `without`."""
    parser.add_argument("--file", type=Path, metavar="YAML", help="a mapping of fields; options replace its values")
    parser.add_argument("--results", type=Path, help="folder of records (default: results/)")
    for title, names in GROUPS.items():
        group = parser.add_argument_group(title)
        for name in (known for known in names if known not in without):
            option = f"--{name.replace('_', '-')}"
            typed = f"{option} {example(name)}".replace(" ", UNBROKEN)
            words = f"{FIELDS[name].words}; as {typed}".replace("%", "%%")
            group.add_argument(option, metavar=name.upper(), help=words)


def main(options: argparse.Namespace) -> int:
    """Execute the run that the options describe, and print its result and the path of its record; return 0."""
    from pslab.lab.runs.run import run

    result = run(asked(options), results=options.results, again=options.again, fresh=options.fresh)
    print(result.ended + (" (from the record)" if result.cached else ""))
    for remark in result.remarks:
        print(f"({remark})")
    if not result.emulation_ok:
        print("(--again runs it again)")
    print(result.path)
    return 0


def asked(options: argparse.Namespace) -> Run:
    """Return the run that the options describe; fields given as options replace fields in --file.

    Raises:
        ConfigError: the file cannot be read, or Run refuses a value.
    """
    given = {name: value for name in FIELDS if (value := getattr(options, name, None)) is not None}
    fields = {**_read(options.file), **given} if options.file else given
    return Run.of({name: _value(name, value) for name, value in fields.items()})


def _read(file: Path) -> dict[str, Any]:
    try:
        content = plain_yaml.read(file)
    except plain_yaml.Unreadable as error:
        raise ConfigError("file", str(file), f"cannot be read: {error}") from None
    if not isinstance(content, dict):
        raise ConfigError("file", str(file), "must be a mapping of Run's fields to values, such as 'sync: ssp:3'")
    return {str(name).replace("-", "_"): value for name, value in content.items()}


def _value(name: str, value: Any) -> Any:
    if name not in MAPPINGS:
        return value if name in NAMED else _typed(FIELDS, name, value)
    try:
        given = plain_yaml.load(value) if isinstance(value, str) else value
    except plain_yaml.Unreadable as error:
        raise ConfigError(name, value, f"cannot be read as YAML: {error}") from None
    known = parameters(MAPPINGS[name])
    if not isinstance(given, Mapping):
        return given
    fields = {str(key).replace("-", "_"): item for key, item in given.items()}
    return {key: _typed(known, key, item) for key, item in fields.items()}


def _typed(known: Mapping[str, Parameter], name: str, value: Any) -> Any:
    """Return text as a value of the field's type (YAML reads 1e9 as text); else unchanged, so that Run refuses it."""
    try:
        return known[name].read(value) if isinstance(value, str) and name in known else value
    except ValueError:
        return value
