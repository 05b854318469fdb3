"""pslab run: what one notebook cell does."""

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
UNBROKEN = "\u00a0"  # stands for a space at which no line ends
#: Values of fields that neither the table of names nor their own choices give one for, as they are typed.
EXAMPLES = {
    "workers": "8", "servers": "2", "optimizer": "sgd:momentum=0.9", "learning_rate": "0.5", "push_weight": "1",
    "batch_size": "32", "pushes": "2000", "seconds": "60", "target_accuracy": "0.97", "target_held": "on",
    "cluster": "\"{preset: lab, slow: {0: 2.0}}\"",
    "seed": "1", "eval_every": "100", "keep_weights": "on", "lease_s": "10", "dilation": "4",
    "checkpoint_every": "500", "ray": "\"{gpus: 0.5}\"", "inner": "adamw:clip=1", "outer_learning_rate": "0.7",
    "downlink": "int8",
}  # fmt: skip


def example(name: str) -> str:
    """A value of a field that is not its default, as it is typed; the default where none is known."""
    field = FIELDS[name]
    if name in NAMED and name in ROWS:
        names = [row.example or row.name for row in ROWS[name].values()]
        return next((candidate for candidate in names if ":" in candidate), names[-1])
    return EXAMPLES.get(name) or next((word for word in field.choices if word != field.default), field.shown)


class Unbroken(argparse.HelpFormatter):
    """Help whose examples stand on one line, to be copied."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        lines = textwrap.wrap(text, width, break_on_hyphens=False)
        return [line.replace(UNBROKEN, " ") for line in lines]


def add(verbs: Any) -> None:
    """Add the verb, and an option for each field of Run."""
    parser = verbs.add_parser(
        "run", help="one run: pslab run --sync ssp:3 --prune static:1%%", formatter_class=Unbroken,
        usage="pslab run [--file YAML] [--results RESULTS] [--again] [--fresh] [--FIELD VALUE ...]", description=(
            "One run, from its record if it is there. Values are read as in a notebook; 'pslab list' shows the names."),
    )  # fmt: skip
    add_fields(parser)
    parser.add_argument("--again", action="store_true", help="run again a recorded run whose emulation was not kept")
    parser.add_argument("--fresh", action="store_true", help="from the beginning, and not from a checkpoint")


def add_fields(parser: argparse.ArgumentParser, without: Collection[str] = ()) -> None:
    """Add an option for each field of Run but some, for a file of fields, and for the folder of records."""
    parser.add_argument("--file", type=Path, metavar="YAML", help="a mapping of fields; options change them")
    parser.add_argument("--results", type=Path, help="where records are (default: results/)")
    for title, names in GROUPS.items():
        group = parser.add_argument_group(title)
        for name in (known for known in names if known not in without):
            option = f"--{name.replace('_', '-')}"
            typed = f"{option} {example(name)}".replace(" ", UNBROKEN)
            words = f"{FIELDS[name].words}; as {typed}".replace("%", "%%")
            group.add_argument(option, metavar=name.upper(), help=words)


def main(options: argparse.Namespace) -> int:
    """Run what the options say and print where the record is."""
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
    """The run that a file, if there is one, and options say.

    Raises:
        ConfigError: the file cannot be read, or what Run refuses.
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
        raise ConfigError("file", str(file), "must hold a mapping of Run's fields")
    return {str(name).replace("-", "_"): value for name, value in content.items()}


def _value(name: str, value: Any) -> Any:
    """A field's value as the command line or YAML gives it."""
    if name not in MAPPINGS:
        return value if name in NAMED else _typed(FIELDS, name, value)
    try:
        given = plain_yaml.load(value) if isinstance(value, str) else value
    except plain_yaml.Unreadable as error:
        raise ConfigError(name, value, f"cannot be read: {error}") from None
    known = parameters(MAPPINGS[name])
    if not isinstance(given, Mapping):
        return given
    fields = {str(key).replace("-", "_"): item for key, item in given.items()}
    return {key: _typed(known, key, item) for key, item in fields.items()}


def _typed(known: Mapping[str, Parameter], name: str, value: Any) -> Any:
    """Text as the field's type reads it (YAML takes 1e9 for text); what cannot be read is refused where it is used."""
    try:
        return known[name].read(value) if isinstance(value, str) and name in known else value
    except ValueError:
        return value
