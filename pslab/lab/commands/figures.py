"""pslab figures: executes the notebooks of notebooks/batch.yaml by papermill, and exports their figures."""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pslab.config import plain_yaml
from pslab.errors import ConfigError, Unwritable
from pslab.lab.records.disk import free_bytes
from pslab.lab.runs.progress import in_words
from pslab.lab.studies.batch import BatchEntry, folder, plan
from pslab.lab.studies.claims import PLAIN, RED
from pslab.lab.studies.execution import BatchProgress, execute, reason, unwritable


def add(verbs: Any) -> None:
    """Add the verb and its options."""
    parser = verbs.add_parser("figures", help="execute the notebooks of notebooks/batch.yaml and export their figures")
    parser.add_argument("--results", type=Path, help="folder of records, figures and notebooks (default: results/)")
    parser.add_argument("--notebooks", type=Path, help="folder of the notebooks (default: the project's)")
    parser.add_argument("--all", action="store_true", help="every study, not only the main figures and the tour")
    parser.add_argument("--only", action="extend", nargs="+", default=[], metavar="NAME",
                        help="an entry of batch.yaml: a notebook, or one of its variants")  # fmt: skip
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a parameter, read as YAML")
    parser.add_argument("--tiny", action="store_true", help="few pushes per run; needs --results")
    parser.add_argument("--again", action="store_true", help="repeat recorded runs that were too much for this machine")
    parser.add_argument("--dry-run", action="store_true", help="only print the notebooks to execute, and their time")
    parser.add_argument("--no-images", dest="images", action="store_false", help="no PNG, SVG and PDF")


def main(options: argparse.Namespace) -> int:
    """Execute notebooks that are not up to date; return 1 if a notebook failed or a claim does not hold, else 0."""
    try:
        if options.dry_run:
            return _foretell(chosen(options), options.again)
        return _batch(chosen(options), options.images, options.again)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("interrupted; completed runs are recorded, and the next call continues") from None


def chosen(options: argparse.Namespace) -> list[BatchEntry]:
    """Return the entries of batch.yaml that the options choose, with checked parameters.

    Raises:
        ConfigError: `plan` refuses the options, or a value is not YAML.
    """
    from pslab.lab.records.record import default_results

    if options.tiny and options.results is None:
        raise ConfigError("tiny", True, "tiny figures must not replace full ones: name another folder by --results")
    sources = (options.notebooks or folder(Path.cwd())).resolve()
    results = (options.results or default_results()).resolve()
    given = dict(_assignment(text) for text in options.set)
    return plan(sources, results, given=given, only=options.only, tiny=options.tiny, every=options.all)


def _assignment(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ConfigError("set", text, "must be NAME=VALUE, such as pushes=100")
    try:
        return name.replace("-", "_"), _numbers(plain_yaml.load(value))
    except plain_yaml.Unreadable as error:
        raise ConfigError("set", text, f"its value must be YAML, as in rates=[0.1, 0.2]: {error}") from None


def _numbers(value: Any) -> Any:
    """Convert texts such as 1e9, which YAML reads as text, to numbers."""
    if isinstance(value, dict):
        return {key: _numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_numbers(item) for item in value]
    if isinstance(value, str) and re.fullmatch(r"[+-]?\d+(\.\d*)?[eE][+-]?\d+", value):
        return float(value)
    return value


# -- execution -------------------------------------------------------------------------------------


def _foretell(entries: Sequence[BatchEntry], again: bool = False) -> int:
    """Print for each notebook the expected time of its execution, or that the notebook is up to date."""
    todo = [entry for entry in entries if not entry.done(again=again)]
    for entry in entries:
        seconds = entry.expected_s()
        takes = f"about {in_words(seconds)}" if seconds else "time not known yet"
        print(f"{entry.name}: {takes if entry in todo else 'up to date'}")
    if todo:
        _announce(todo)
    return 0


def _batch(entries: Sequence[BatchEntry], images: bool, again: bool = False) -> int:
    """Execute the notebooks one after another, write their images, and print all claims; return the exit status."""
    begun_s, todo = time.monotonic(), [entry for entry in entries if not entry.done(again=again)]
    failed: dict[str, str] = {}
    if todo:
        _announce(todo)
    if images:
        _export([entry for entry in entries if entry not in todo])
    with BatchProgress(todo) as watch:
        for entry in todo:
            try:
                watch.say(f"{entry.name}: {in_words(execute(entry, watch, again=again))}")
            except Exception as error:  # a cell may raise anything
                left = entry.executed.with_suffix(".failed.ipynb")
                where = f"\n  its cells are in {left}" if left.is_file() else ""
                watch.say(f"{RED}{entry.name} failed: {reason(error)}{PLAIN}{where}")
                if unwritable(error):
                    problem = f"results cannot be written, so the batch ends at {entry.name}"
                    raise Unwritable(f"{problem}: free some disk space, or choose another --results") from error
                failed[entry.name] = reason(error).partition("\n")[0]
                continue
            if images:
                _export([entry])
    for name, why in failed.items():
        print(f"{RED}{name} failed: {why}{PLAIN}", file=sys.stderr)
    claimed = [(entry.name, claim) for entry in entries if entry.name not in failed
               for claim in entry.stamp.get("claims", [])]  # fmt: skip
    for name, claim in claimed:
        if claim["holds"]:
            print(f"{name} ✓ {claim['text']}")
    wrong = [(name, claim) for name, claim in claimed if claim["holds"] is False]
    for name, claim in wrong:
        print(f"{RED}{name} ✗ {claim['text']}: {claim['value']:g} is not {claim['bounds']}{PLAIN}", file=sys.stderr)
    recorded, claims = len(entries) - len(todo), f", {len(wrong)} claims do not hold" if wrong else ""
    where = f"; figures in {entries[0].results / 'figures'}" if entries else ""
    done = len(todo) - len(failed)
    print(f"{done} notebook{'s' * (done != 1)} executed, {recorded} up to date, {len(failed)} failed{claims}, "
          f"{time.monotonic() - begun_s:.0f} s{where}")  # fmt: skip
    return 1 if failed or wrong else 0


def _announce(todo: Sequence[BatchEntry]) -> None:
    """Print the expected time and disk space of the batch; raise ConfigError if the disk has too little space."""
    seconds = [entry.expected_s() for entry in todo]
    about = f"about {in_words(sum(filter(None, seconds)))}" if all(seconds) else "time not known yet"
    megabytes = sum(entry.takes[1] for entry in todo if entry.takes and not entry.stamp)
    print(f"to be executed: {', '.join(entry.name for entry in todo)}; {about}"
          + (f", {megabytes:.0f} MB of results" if megabytes else ""), flush=True)  # fmt: skip
    disk, free = free_bytes(todo[0].results)
    if free / 1e6 < megabytes:
        problem = f"has {free / 1e6:.0f} MB free, but {megabytes:.0f} MB are needed: name another disk by --results"
        raise ConfigError("results", str(disk), problem)


def _export(entries: Sequence[BatchEntry]) -> None:
    from pslab.lab.plots import export

    def old(figure: Path) -> bool:
        drawn_s = figure.with_name(f"{figure.name}.json").stat().st_mtime
        images = [figure.with_name(f"{figure.name}.{kind}") for kind in export.FORMATS]
        return any(not image.is_file() or image.stat().st_mtime < drawn_s for image in images)

    stale = [figure for entry in entries for figure in entry.figures if old(figure)]
    written = export.write_images((figure.with_name(f"{figure.name}.json"), figure) for figure in stale)
    for path in written:
        os.utime(path)  # an unchanged image is not written, so its date must be renewed here
