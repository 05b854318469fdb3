"""pslab trace: the timeline of a completed run, as a figure and for ui.perfetto.dev."""

from __future__ import annotations

import argparse
from difflib import SequenceMatcher
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pslab.errors import ConfigError, RecordError

if TYPE_CHECKING:
    from pslab.lab.records.record import Result

NEAREST = 5  # records that are named after an unknown digest


def add(verbs: Any) -> None:
    """The verb and its options."""
    parser = verbs.add_parser("trace", help="the timeline of a completed run: a figure, and events for ui.perfetto.dev")
    parser.add_argument("record", help="a record's directory, or its digest, or the start of its digest")
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="Chrome trace events, for ui.perfetto.dev")
    parser.add_argument("--html", type=Path, metavar="FILE.html", help="the figure; it needs no network")
    parser.add_argument("--from", dest="from_s", type=float, metavar="S", help="from this second of the run")
    parser.add_argument("--to", dest="to_s", type=float, metavar="S", help="to this second of the run")
    parser.add_argument("--results", type=Path, help="where the records are (default: results/)")


def main(options: argparse.Namespace) -> int:
    """Write what is asked for, and print where it is. Exit status: 2 bad arguments, 1 an incomplete record."""
    from pslab.lab.records.record import default_results

    results = (options.results or default_results()).resolve()
    result = find_record(options.record, results)
    window = _window(result, options.from_s, options.to_s)
    for path in write(result, options.out, options.html, window, results / "traces"):
        print(path)
    return 0


def find_record(name: str, results: Path) -> Result:
    """The record in this directory, or the one whose digest starts so.

    Raises:
        ConfigError: no record, or several. RecordError: it is incomplete.
    """
    from pslab.lab.records.record import load

    if (Path(name) / "manifest.json").is_file():
        return load(name)
    digests = sorted(path.parent.name for path in (results / "runs").glob("[!.]*/manifest.json"))
    found = [digest for digest in digests if digest.startswith(name.lower())] if name else []
    if len(found) == 1:
        return load(results / "runs" / found[0])
    if not digests:
        raise ConfigError("record", name, f"there is no record in {results / 'runs'}")
    problem = f"{len(found)} digests start so" if found else f"no record in {results / 'runs'} has this digest; nearest"
    near = found or sorted(digests, key=lambda digest: -_likeness(name.lower(), digest))
    shown = "".join(f"\n  {digest}  {_words(results / 'runs' / digest)}" for digest in near[:NEAREST])
    raise ConfigError("record", name, f"{problem}:{shown}")


def _likeness(name: str, digest: str) -> float:
    return SequenceMatcher(None, name, digest[: max(1, len(name))], autojunk=False).ratio()


def _words(record: Path) -> str:
    """``"SSP, s = 3, dense, 4 workers, seed 0"``, or why the record cannot be read."""
    from pslab.lab.plots.labels import policy
    from pslab.lab.records.record import load

    try:
        run = load(record).run
    except RecordError:
        return "(incomplete)"
    return f"{policy('sync', run.sync)}, {policy('prune', run.prune)}, {run.workers} workers, seed {run.seed}"


def _window(result: Result, from_s: float | None, to_s: float | None) -> tuple[float | None, float | None]:
    """Raises ConfigError where nothing of the run lies between the two."""
    from pslab.lab.records.times.intervals import duration

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
    from pslab.lab.plots.export import page, replace
    from pslab.lab.plots.lanes import timeline
    from pslab.lab.plots.perfetto import write_perfetto

    if out is None and html is None:
        out, html = folder / f"{result.digest}.json", folder / f"{result.digest}.html"
    written = []
    if out is not None:
        written.append(write_perfetto(result, out, *window))
    if html is not None:
        written.append(replace(html, page(timeline(result, *window), f"timeline-{result.digest}").encode()))
    return written
