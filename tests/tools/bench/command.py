"""pslab bench [SECTION ...] [--json FILE] [--quick]"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pslab.errors import ConfigError, nearest

if TYPE_CHECKING:
    from tools.bench.measure import Row

SECTIONS = {
    "rounds": "a dense round of push and pull, beside shared memory, gloo and pickled pipes",
    "selection": "the selection of a gradient's entries, in read passes",
    "virtual": "virtual time, beside the bare gradients; events a second; a message by the number of workers",
    "training": "a round of real training, beside torch DDP and bare local steps; lateness of emulated messages",
    "layers": "requests layer by layer, beside the whole model at once and virtual time",
    "mnist": "to 98 % of MNIST, beside one process",
    "zipline": "ZipLine's variants, beside their published times",
    "startup": "spawning workers, and a second run in the same pool",
    "fleets": "a dense round without shared memory, beside raw TCP, and Ray's own parameter server (needs Ray)",
    "scale": "many workers and servers, of whom one decides, in virtual time; a model of 10^9 parameters",
}
BESIDE = {"fleets": "rounds:over_fleets"}  # sections that another one's module has
DEFAULT = tuple(name for name in SECTIONS if name != "scale")  # it needs 16 GiB and minutes


def add(verbs: Any) -> None:
    """The verb and its options."""
    parser = verbs.add_parser(
        "bench", help="speed, beside limits and peers", formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Speed, as ratios to limits and peers measured in the same call.",
        epilog="sections:\n" + "\n".join(f"  {name:10} {words}" for name, words in SECTIONS.items())
        + f"\nwithout a name: {', '.join(DEFAULT)}",
    )  # fmt: skip
    parser.add_argument("section", nargs="*")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the results there too")
    parser.add_argument("--quick", action="store_true", help="fewer repeats: rougher results")


def main(options: argparse.Namespace) -> int:
    """Measure and print. Exit status: 2 bad arguments; a missed bar is reported, not an error."""
    for name in options.section:
        if name not in SECTIONS:
            raise ConfigError("section", name, nearest(name, SECTIONS))
    rows = measure(options.section or DEFAULT, options.quick)
    if options.json:
        from pslab.lab.records.disk import write_file
        from pslab.lab.records.record import environment

        content = {"environment": environment(), "rows": [row.plain() for row in rows]}
        write_file(options.json, (json.dumps(content, indent=1) + "\n").encode())
    return 0


def measure(sections: Sequence[str], quick: bool) -> list[Row]:
    """The rows of some sections, each section's printed as soon as it is measured."""
    rows: list[Row] = []
    for name in sections:
        print(f"{name}: {SECTIONS[name]}", flush=True)
        new = rows_of(name)(quick)
        print(table(new), flush=True)
        rows += new
    return rows


def rows_of(section: str) -> Callable[[bool], list[Row]]:
    """What measures a section."""
    module, _, function = BESIDE.get(section, section).partition(":")
    sections = import_module(f"tools.bench.sections.{module}")
    found: Callable[[bool], list[Row]] = getattr(sections, function or "rows")
    return found


def table(rows: Sequence[Row]) -> str:
    """Aligned columns: value, ratio, bar."""
    cells = [(r.name, _value(r), f"{r.ratio:.3g} x {r.against}", _bar(r), r.note) for r in rows]
    widths = [max(len(row[i]) for row in cells) for i in range(4)]
    lines = ["  ".join(c.rjust(w) if i == 1 else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=False)))
             + ("  " + row[4] if row[4] else "") for row in cells]  # fmt: skip
    return "\n".join(f"  {line.rstrip()}" for line in lines) + "\n"


def _value(row: Row) -> str:
    return f"{row.value:.4g} {row.unit}"


def _bar(row: Row) -> str:
    return "" if row.bar is None else f"bar {row.bar:.3g}: {row.verdict}"
