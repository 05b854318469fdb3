"""pslab trace: the timeline of a completed run, as a figure and for ui.perfetto.dev."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pslab.errors import ConfigError

if TYPE_CHECKING:
    from pslab.lab.records.record import Result


def add(verbs: Any) -> None:
    """The verb and its options."""
    parser = verbs.add_parser("trace", help="the timeline of a completed run: a figure, and events for ui.perfetto.dev")
    parser.add_argument("record", help="a record's directory, or its digest, or the start of its digest")
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="Chrome trace events, for ui.perfetto.dev")
    parser.add_argument("--html", type=Path, metavar="FILE.html", help="the figure; it needs no network")
    parser.add_argument("--from", dest="from_s", type=float, metavar="S", help="begin at this second of the run")
    parser.add_argument("--to", dest="to_s", type=float, metavar="S", help="end at this second of the run")
    parser.add_argument("--results", type=Path, help="where the records are (default: results/)")


def main(options: argparse.Namespace) -> int:
    """Write the files that are asked for, and print their names. Exit status: 2 bad arguments, 1 failed."""
    from pslab.lab.records.record import default_results
    from pslab.lab.records.results import load

    results = (options.results or default_results()).resolve()
    result = load(options.record, results)
    window = _window(result, options.from_s, options.to_s)
    for path in write(result, options.out, options.html, window, results / "traces"):
        print(path)
    return 0


def _window(result: Result, from_s: float | None, to_s: float | None) -> tuple[float | None, float | None]:
    """The two bounds as they are; a ConfigError if no part of the run lies between them."""
    from pslab.lab.records.intervals import duration

    low, high = from_s or 0.0, duration(result) if to_s is None else to_s
    if not (low < high and low < duration(result) and high > 0):
        field, value = ("from", from_s) if from_s is not None else ("to", to_s)
        raise ConfigError(field, value, f"nothing lies between: the run is from 0 to {duration(result):.3f} s")
    return from_s, to_s


def write(
    result: Result, out: Path | None, html: Path | None, window: tuple[float | None, float | None], folder: Path
) -> list[Path]:
    """The files that are asked for; without any, both into `folder`. They show the whole run, or the window of it.

    Raises:
        ExportError: a file cannot be written.
    """
    from pslab.lab.plots.charts.timeline import timeline
    from pslab.lab.plots.export import page
    from pslab.lab.plots.perfetto import write_perfetto
    from pslab.lab.records.disk import write_file

    if out is None and html is None:
        out, html = folder / f"{result.digest}.json", folder / f"{result.digest}.html"
    written = []
    if out is not None:
        written.append(write_perfetto(result, out, *window))
    if html is not None:
        written.append(write_file(html, page(timeline(result, *window), f"timeline-{result.digest}").encode()))
    return written
