"""pslab bench [SECTION ...] [--json FILE] [--quick]"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pslab.errors import ConfigError, nearest

if TYPE_CHECKING:
    from tools.bench.measure import Row

#: Measurements that belong together: in words, and the module and function that give their rows.
SECTIONS = {
    "rounds": ("a dense round of push and pull, beside shared memory and gloo", "processes:rounds"),
    "selection": ("the selection of a gradient's entries, in read passes; pruning in training", "selection:rows"),
    "virtual": ("virtual time, beside the bare gradients; events a second", "virtual:rows"),
    "training": ("a round of real training, beside torch DDP and bare local steps; lateness of emulated messages",
                 "processes:training"),
    "hooks": ("a step under torch DDP with pslab's compressors, beside torch's own hooks", "processes:hooks"),
    "zipline": ("ZipLine's variants, beside their published times", "zipline:rows"),
    "startup": ("a second run in the same pool of processes", "processes:startup"),
    "scale": ("a message at the server that decides, by the number of workers and servers", "scale:rows"),
}  # fmt: skip


def rows_of(section: str) -> Callable[..., Iterable[Row]]:
    """Return the function that measures a section row by row; its first argument is whether it is to be quick."""
    module, _, function = SECTIONS[section][1].partition(":")
    measure: Callable[..., Iterable[Row]] = getattr(import_module(f"tools.bench.{module}"), function)
    return measure


def add(verbs: Any) -> None:
    """Add the verb and its options."""
    parser = verbs.add_parser(
        "bench", help="speed, beside limits and peers", formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Speed, as ratios to limits and peers measured in the same call.",
        epilog="sections:\n" + "\n".join(f"  {name:10} {words}" for name, (words, _) in SECTIONS.items())
        + "\nwithout a section: all",
    )  # fmt: skip
    parser.add_argument("section", nargs="*", help="what to measure, of the list below")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the results there too")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"],
                        help="where two workers of the section training compute")  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="fewer repeats: rougher results")


def main(options: argparse.Namespace) -> int:
    """Measure, and print each row as soon as it is measured; a missed bar is reported, and no error."""
    for name in options.section:
        if name not in SECTIONS:
            raise ConfigError("section", name, nearest(name, SECTIONS))
    where = {} if options.device == "cpu" else {"device": options.device}
    if where and options.section != ["training"]:
        raise ConfigError("device", options.device, "only the section training has a device: name it alone")
    measured = []
    for name in options.section or SECTIONS:
        print(f"{name}: {SECTIONS[name][0]}", flush=True)
        for row in rows_of(name)(options.quick, **where):
            measured.append(row.plain(name))
            print(line(measured[-1]), flush=True)
    if options.json:
        from pslab.lab.records.disk import write_file
        from pslab.lab.records.record import environment

        content = {"environment": environment(), "rows": measured}
        write_file(options.json, (json.dumps(content, indent=1) + "\n").encode())
    return 0


def line(row: dict[str, Any]) -> str:
    """Return a row's columns: name, value, ratio, bar, note."""
    value, ratio = f"{row['value']:.4g} {row['unit']}", f"{row['ratio']:.3g} x {row['against']}"
    bar = "" if row["bar"] is None else f"bar {row['bar']:.3g}: {row['verdict']}"
    return f"  {row['name']:44}  {value:>9}  {ratio:40}  {bar:18}  {row['note']}".rstrip()
