"""pslab list: prints every name that this version knows, from the table of names and the docstrings of its classes."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import re
import shlex
import sys
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from pslab.config.cluster import PRESET_SOURCES, PRESETS, Cluster
from pslab.config.parameters import Parameter, parameters
from pslab.config.table import KINDS, ROWS, Row

WIDTH = 100
#: For each kind, the values that are allowed besides names.
OTHERS: dict[str, str] = {
    **{name: ", ".join((*kind.forms, kind.objects)) for name, kind in KINDS.items() if kind.objects},
    **{name: f"an object with {', '.join(kind.methods)}" for name, kind in KINDS.items() if kind.methods},
    "optimizer": "an elementwise class of torch.optim, as itself or by name: adam, adamw, ...",
    "cluster": "a mapping of Cluster's fields; its key `preset` names a preset for the fields that it does not give",
}


@dataclass(frozen=True)
class Listing:
    """A name that `pslab list` prints, with its description and parameters."""

    kind: str
    name: str
    form: str  #: such as ``static:FRACTION[,RESIDUAL,WARM_UP,MODE]``
    what: str
    text: str
    parameters: list[dict[str, str]]  #: name, type, default ("" if required), what
    source: str
    file: str
    command: str


def entries() -> list[Listing]:
    """Return a listing of every name, by kind."""
    from pslab.tensors.update.optimizers import ELEMENTWISE  # torch

    listings = [_of_row(row) for rows in ROWS.values() for row in rows.values()]
    return listings + [_of_optimizer(*item) for item in ELEMENTWISE.items()] + [_of_preset(name) for name in PRESETS]


def _of_row(row: Row) -> Listing:
    loaded = row.load()
    first, _, rest = (inspect.getdoc(loaded) or "").partition("\n")
    given = list(parameters(loaded).values())
    required = ",".join(p.name.upper() for p in given if not p.shown)
    others = ",".join(p.name.upper() for p in given if p.shown)
    form = row.name + (f":{required}" if required else "") + (f"[{',' if required else ':'}{others}]" if others else "")
    return Listing(
        row.kind, row.name, form, row.summary, rest.strip() if first.rstrip(".") == row.summary else "",
        [_shown(p) for p in given], row.source, f"{row.path.partition(':')[0].replace('.', '/')}.py",
        _command(row.kind, row.example or row.name),
    )  # fmt: skip


def _of_optimizer(name: str, cls: type) -> Listing:
    options = [{"name": p.name, "type": str(p.annotation), "default": str(p.default), "what": ""}
               for p in inspect.signature(cls).parameters.values() if p.name not in ("params", "lr")]  # fmt: skip
    what, _, text = (inspect.getdoc(cls) or "").partition("\n")
    ours = cls.__module__.startswith("pslab.")
    file = f"{cls.__module__.replace('.', '/')}.py" if ours else f"torch.optim.{cls.__name__}"
    text, source = (text.strip(), text.rpartition("Source: ")[2]) if ours else ("", "")
    form, example = f"{name}[:OPTION=VALUE,...]", f"{name}:weight_decay=0.0001"
    return Listing("optimizer", name, form, what.rstrip("."), text, options, source, file,
                 _command("optimizer", example if "weight_decay" in str(options) else name))  # fmt: skip


def _of_preset(name: str) -> Listing:
    from pslab.lab.plots.labels import cluster_name

    preset, known = PRESETS[name], parameters(Cluster)
    fields = [{**_shown(known[field]), "default": dataclasses.replace(known[field], default=value).shown}
              for field, value in preset.items()]  # fmt: skip
    what = cluster_name(name) if preset else "no emulation: as fast as this machine"
    source, file = PRESET_SOURCES.get(name, ""), "pslab/config/cluster.py"
    return Listing("cluster", name, name, what, "", fields, source, file, _command("cluster", name))


def _shown(parameter: Parameter) -> dict[str, str]:
    return {"name": parameter.name, "type": parameter.allowed, "default": parameter.shown, "what": parameter.doc}


def _command(kind: str, example: str) -> str:
    return f"pslab run --{kind} {shlex.quote(example)}"


# -- output ----------------------------------------------------------------------------------------


def overview(listings: Iterable[Listing]) -> str:
    """Return the printed list of entries: under each kind a line for each name, with its description."""
    listings = list(listings)
    forms = [re.sub(r"\[.*\]", "[...]", entry.form) for entry in listings]
    widest = max(map(len, forms))
    lines: list[str] = []
    for kind in dict.fromkeys(entry.kind for entry in listings):
        lines += ["", kind] if lines else [kind]
        for form, entry in zip(forms, listings, strict=True):
            if entry.kind == kind:
                what = f"{entry.what}. {entry.source}" if entry.source else entry.what
                lines += _wrapped(what, f"  {form:<{widest}}  ")
        lines += _wrapped(f"or {_others(kind, ' (docs/{})')}", "  ") if kind in OTHERS else []
    return "\n".join(lines)


def page(entry: Listing) -> str:
    """Return the full description of an entry, with its parameters."""
    lines = [f"{entry.form}  ({entry.kind})", *_wrapped(f"{entry.what}.", "  ")]
    if entry.text:
        lines += ["", textwrap.indent(entry.text, "  ")]
    for parameter in entry.parameters:
        default = f", {parameter['default']} by default" if parameter["default"] else ""
        lines += ["", f"  {parameter['name']}: {parameter['type']}{default}", *_wrapped(parameter["what"], "      ")]
    return "\n".join([*lines, "", f"  file     {entry.file}", f"  example  {entry.command}"])


def markdown(listings: Iterable[Listing], page_of: Callable[[Listing], str] = lambda entry: "") -> str:
    """Return the page of names for the documentation: a table for each kind, without classes of torch.

    `page_of` returns the page to which a name links, or "".
    """
    listings = [entry for entry in listings if entry.file.startswith("pslab/")]

    def name(entry: Listing) -> str:
        return f"[`{entry.form}`]({page})" if (page := page_of(entry)) else f"`{entry.form}`"

    lines = [
        "# Policies, and every other name", "",
        "`make docs` writes this page from the table of names in `pslab/config/table.py`; `pslab list NAME` describes",
        "one name in full, with its parameters. A worker stores the entries that a pruning rule does not send, and",
        "adds them to its next gradient (error feedback; Seide et al., 2014); all rules but `dgc` take `residual=off`.",
        "`warm_up=4` starts with four epochs of 25, 6.25, 1.5625 and 0.4 %. A quantization rule is applied to the",
        "entries that pruning has selected ([how they compose](how-to/compress.md)).",
    ]  # fmt: skip
    for kind in dict.fromkeys(entry.kind for entry in listings):
        lines += ["", f"## {kind}", "", "| name | what it is | source | file |", "|---|---|---|---|"]
        lines += [f"| {name(entry)} | {entry.what.replace('|', '&#124;')} | {entry.source} | `{entry.file}` |"
                  for entry in listings if entry.kind == kind]  # fmt: skip
        lines += ["", f"Or {_others(kind, ' ([how to]({}))')}."] if kind in OTHERS else []
    return "\n".join(lines)


def _others(kind: str, guide: str) -> str:
    page = KINDS[kind].guide if kind in KINDS else ""
    return OTHERS[kind] + (guide.format(page) if page else "")


def _wrapped(text: str, head: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=head, subsequent_indent=" " * len(head), break_on_hyphens=False)


# -- the command -----------------------------------------------------------------------------------


def add(verbs: Any) -> None:
    """Add the verb and its options."""
    parser = verbs.add_parser("list", help="every policy, pruning rule, model, ... by name")
    parser.add_argument("name", nargs="?", help="a kind such as sync, or a name such as static, which is shown in full")
    parser.add_argument("--markdown", action="store_true", help="as tables, for the documentation")


def main(options: argparse.Namespace) -> int:
    """Print all names, the names of a kind, or the full description of a name; return 2 for an unknown name, else 0."""
    listings = everything = entries()
    kinds = dict.fromkeys(entry.kind for entry in everything)
    wanted = (options.name or "").partition(":")[0].strip().lower()
    if options.name is not None:
        listings = [entry for entry in everything if wanted in (entry.name, entry.kind)]
    if not listings:
        near = get_close_matches(wanted, sorted({*kinds, *(entry.name for entry in everything)}), n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}? " if near else ""
        print(f"pslab list: unknown name {options.name!r}; {hint}'pslab list' shows all", file=sys.stderr)
        return 2
    if options.markdown:
        print(markdown(listings))
    elif options.name is None or wanted in kinds:
        print(overview(listings))
    else:
        print("\n\n".join(page(entry) for entry in listings))
    return 0
