"""python -m pslab list: all that this version has by name, read from its tables and docstrings.

A class may say in its docstring, beside what it is: `Source: Ho et al. (NIPS 2013).`, `Example: ssp:3`, and under
`Args:` a line for each parameter.
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import json
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pslab.config import cluster
from pslab.config.table import KINDS as KINDS_OF_RUN
from pslab.config.table import ROWS, Row
from pslab.lab.studies.studies import describe_cluster
from pslab.tensors.update.optimizers import ELEMENTWISE

WIDTH = 100
KINDS = ("sync", "prune", "rate", "ranges", "order", "schedule", "codec", "optimizer", "model", "data", "cluster",
         "engine")  # fmt: skip
#: What else a parameter of this kind may be.
OTHERS: dict[str, str] = {
    **{kind: ", ".join((*what.forms, what.objects)) for kind, what in KINDS_OF_RUN.items() if what.objects},
    **{kind: f"an object with {', '.join(what.methods)}" for kind, what in KINDS_OF_RUN.items() if what.methods},
    "optimizer": "a class of torch.optim that is one of these",
    "cluster": "a mapping of Cluster's fields, perhaps over a preset",
}
ROOT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True)
class Parameter:
    """One parameter of a policy string; `default` is None where it must be given."""

    name: str
    type: str
    default: str | None
    what: str


@dataclass(frozen=True)
class Entry:
    """One name, with what its own text says of it."""

    kind: str
    name: str
    what: str  #: the first sentence
    text: str  #: the rest
    parameters: tuple[Parameter, ...]
    source: str  #: author (venue year); empty if there is none
    file: str
    example: str

    @property
    def form(self) -> str:
        """Its string form: ``ssp:STALENESS``, ``static:FRACTION[,RESIDUAL,WARM_UP,MODE]``."""
        if self.kind in ("optimizer", "cluster"):
            return self.name + ("[:OPTION=VALUE,...]" if self.kind == "optimizer" else "")
        needed = ",".join(p.name.upper() for p in self.parameters if p.default is None)
        others = ",".join(p.name.upper() for p in self.parameters if p.default is not None)
        joined = f"[{',' if needed else ':'}{others}]" if others else ""
        return self.name + (f":{needed}" if needed else "") + joined

    @property
    def command(self) -> str:
        """The example as it is typed."""
        quoted = f"'{self.example}'" if re.search(r"[\s(;{]", self.example) else self.example
        return f"python -m pslab run --{self.kind} {quoted}"

    def plain(self) -> dict[str, Any]:
        """The entry as JSON can hold it."""
        return {**dataclasses.asdict(self), "form": self.form, "command": self.command}


def entries() -> list[Entry]:
    """Everything that has a name, by kind."""
    found = [_of_row(row) for rows in ROWS.values() for row in rows.values()]
    found += [_optimizer(name, cls) for name, cls in ELEMENTWISE.items()]
    found += [_preset(name, fields) for name, fields in cluster.PRESETS.items()]
    return sorted(found, key=lambda entry: KINDS.index(entry.kind))


# -- reading ---------------------------------------------------------------------------------------


def _of_row(row: Row) -> Entry:
    cls = row.load()
    _, text, _, args = read_docstring(cls.__doc__ or "")
    fields = dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()
    comments = _comments(cls)
    parameters = tuple(
        Parameter(f.name, _type(f.type), _shown(f.default), args.get(f.name) or comments.get(f.name, ""))
        for f in fields
    )
    example = row.example or row.name
    return Entry(row.kind, row.name, row.summary, text, parameters, row.source, _file(cls), example)


def _optimizer(name: str, cls: type) -> Entry:
    what, _, _, args = read_docstring(cls.__doc__ or "")
    options = [p for p in inspect.signature(cls).parameters.values() if p.name not in ("params", "lr")]
    parameters = tuple(
        Parameter(p.name, _type(p.annotation), _shown(p.default), args.get(p.name, ""))
        for p in options
    )
    example = f"{name}:weight_decay=0.0001" if any(p.name == "weight_decay" for p in options) else name
    return Entry("optimizer", name, what, "", parameters, "", f"torch.optim.{cls.__name__}", example)


def _preset(name: str, fields: Mapping[str, Any]) -> Entry:
    comments, used = _comments(cluster.Cluster), cluster.Cluster(**fields)
    parameters = tuple(
        Parameter(f.name, _type(f.type), _shown(getattr(used, f.name)), comments.get(f.name, ""))
        for f in dataclasses.fields(cluster.Cluster)
    )
    what = describe_cluster(dict(fields))
    words = f"{what[0].upper()}{what[1:]}" if fields else "None emulated: as fast as this machine"
    return Entry("cluster", name, words, "", parameters, "", _file(cluster.Cluster), name)


def read_docstring(text: str) -> tuple[str, str, dict[str, str], dict[str, str]]:
    """First sentence; the rest of the text; the notes `Word: value`; what `Args:` says of each parameter."""
    lines = inspect.cleandoc(text).splitlines() or [""]
    notes: dict[str, str] = {}
    body: list[str] = []
    args: dict[str, list[str]] = {}
    section = ""
    for line in lines[1:]:
        if heading := re.fullmatch(r"(Args|Raises|Returns|Example|\.\. \w+::?):?", line.strip()):
            section = heading[1]
        elif section == "Args" and (named := re.match(r" {4}(\w+)(?: \([^:]*\))?: ?(.*)", line)):
            args[named[1]] = [named[2]]
        elif section == "Args" and args and line.startswith(" " * 8):
            args[list(args)[-1]].append(line.strip())
        elif note := re.fullmatch(r"(Source|Example): (.+)", line):
            notes[note[1]] = note[2].rstrip(".")
        elif line and not line.startswith(" "):
            section = ""
            body.append(line)
        elif not line.strip() and not section:
            body.append("")
    joined = {name: re.sub(r"\s*\(default: .*", "", " ".join(said).strip()) for name, said in args.items()}
    return lines[0].rstrip("."), "\n".join(body).strip(), notes, joined


def _comments(cls: Any) -> dict[str, str]:
    """The comments #: behind a dataclass's fields."""
    try:
        source = inspect.getsource(cls)
    except (OSError, TypeError):
        return {}
    return dict(re.findall(r"^ {4}(\w+): .*?#: (.*)$", source, re.MULTILINE))


def _shown(default: object) -> str | None:
    if default in (dataclasses.MISSING, inspect.Parameter.empty):
        return None
    if isinstance(default, bool):
        return "on" if default else "off"
    return f"{default:g}" if isinstance(default, float) else str(default)


def _type(annotation: Any) -> str:
    """``float | None``, also where the annotation is a type and no text."""
    name = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    return name.replace("torch.Tensor", "Tensor")


def _file(thing: Any) -> str:
    return _relative(inspect.getsourcefile(thing) or "")


def _relative(file: str) -> str:
    path = Path(file).resolve()
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else str(path)


# -- showing ---------------------------------------------------------------------------------------


def overview(found: Sequence[Entry]) -> str:
    """A line for each entry, by kind."""
    widest = max(len(entry.form) for entry in found)
    lines: list[str] = []
    for kind in dict.fromkeys(entry.kind for entry in found):
        lines += ["", kind] if lines else [kind]
        for entry in (e for e in found if e.kind == kind):
            what = f"{entry.what}. {entry.source}" if entry.source else entry.what
            lines += _wrapped(what, widest + 4, f"  {entry.form:<{widest}}  ")
        lines += _wrapped(f"or {OTHERS[kind]}", 2) if kind in OTHERS else []
    return "\n".join(lines)


def page(entry: Entry) -> str:
    """One entry in full."""
    lines = [f"{entry.form}  ({entry.kind})", *_wrapped(f"{entry.what}.", 2)]
    for paragraph in filter(None, entry.text.split("\n\n")):
        lines += ["", *_wrapped(" ".join(paragraph.split()), 2)]
    if entry.parameters:
        lines += ["", "  parameters", *_table(entry.parameters)]
    facts = {"source": entry.source, "file": entry.file, "example": entry.command}
    return "\n".join([*lines, "", *(f"  {name:<9}{fact}" for name, fact in facts.items() if fact)])


def _table(parameters: Iterable[Parameter]) -> Iterator[str]:
    rows = [(p.name, p.type, "required" if p.default is None else p.default, p.what) for p in parameters]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    indent = 4 + sum(widths) + 6
    for name, kind, default, what in rows:
        head = f"    {name:<{widths[0]}}  {kind:<{widths[1]}}  {default:<{widths[2]}}  "
        if WIDTH - indent >= 30:
            yield from _wrapped(what, indent, head)
        else:
            yield head.rstrip()
            yield from _wrapped(what, 8) if what else ()


def _wrapped(text: str, indent: int, head: str = "") -> list[str]:
    """The text in lines of WIDTH behind a head, or behind spaces; the head alone if there is no text."""
    left = " " * indent
    lines = textwrap.wrap(text, WIDTH, initial_indent=head or left, subsequent_indent=left, break_on_hyphens=False)
    return lines or [head.rstrip()]


def main(arguments: list[str]) -> int:
    """List everything, one kind, or one name in full; exit status 2 for a name that nothing has."""
    parser = argparse.ArgumentParser("pslab list", description="Every name that this version of pslab knows.")
    parser.add_argument("name", nargs="?", help="a kind such as sync, or a name such as static: then in full")
    parser.add_argument("--json", action="store_true", help="as JSON")
    options = parser.parse_args(arguments)
    found = everything = entries()
    if options.name is not None:
        wanted = options.name.partition(":")[0].strip().lower()
        found = [entry for entry in everything if wanted in (entry.name, entry.kind)]
    if not found:
        names = {entry.name for entry in everything} | set(KINDS)
        near = get_close_matches(wanted, sorted(names), n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}? " if near else ""
        print(f"pslab list: unknown name {options.name!r}; {hint}'python -m pslab list' shows all", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps([entry.plain() for entry in found], indent=1))
    elif options.name is None or wanted in KINDS:
        print(overview(found))
    else:
        print("\n\n".join(page(entry) for entry in found))
    return 0
