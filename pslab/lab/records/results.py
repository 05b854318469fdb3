"""The tables of finished runs, and records on disk by digest and by query."""

from __future__ import annotations

import re
import textwrap
import warnings
from collections.abc import Callable, Mapping, Sequence
from difflib import SequenceMatcher
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from pslab.config.run import FIELDS, Run
from pslab.errors import ConfigError, RecordError, nearest
from pslab.lab.records.disk import records_in
from pslab.lab.records.frames import ITEMS, RESULT, RUN, Given, axes, results_in, single, table, values, where
from pslab.lab.records.record import Result, default_results, read_facts

NEAREST, LIKE = 5, 0.7  # records that are named after an unknown digest, and how much they have to be like it


# -- tables ----------------------------------------------------------------------------------------


def tidy(results: Given, each: str = "run") -> pd.DataFrame:
    """Return a row for each run, or for each of its evaluations, pushes, phases or arrivals (EACH has the names).

    Columns: the results' own, the fields of Run, `digest`, and the columns of the record's table, before which a field
        of the same name stands back and an axis is `<name>_of_run`. A single machine's iteration counts as many pushes
        as an iteration of the runs beside it, so that all have seen as many samples at one iteration.

    Raises:
        ConfigError: an unknown name of a table.
    """
    if each not in EACH:
        raise ConfigError("each", each, nearest(str(each), EACH))
    frame = results_in(results)
    runs = frame[RUN].tolist()
    sizes, tables = {run.workers for run in runs if run.workers > 1}, []
    named = [*axes(frame), *(str(name) for name in frame if name not in (*axes(frame), *ITEMS, *FIELDS))]
    points = {name: values(frame, name) for name in dict.fromkeys([*named, *FIELDS])}
    for row, result in enumerate(frame[RESULT]):
        rows = EACH[each](result)
        if each == "evaluation" and single(result.run, runs) and len(sizes) == 1:
            rows = rows.assign(iteration=rows.pushes / min(sizes))
        point = {name + "_of_run" * (name in rows and name in named): cells[row] for name, cells in points.items()
                 if name in named or name not in rows}  # fmt: skip
        tables.append(pd.DataFrame({**point, "digest": result.digest}, index=rows.index).join(rows))
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()


def evaluations(result: Result) -> pd.DataFrame:
    """The finite evaluations of a run: pushes, iteration (pushes / workers), seconds, accuracy (0 to 1; or the metric),
    loss; the bytes on the wire until then: of pushes (bytes_up), of pulls (bytes_down), and of both (bytes); and the
    rounds: how often each worker has pushed, in the mean."""
    table = result.accuracy.sort_values("pushes", kind="stable").drop_duplicates("pushes")
    table = table[np.isfinite(table.accuracy)].reset_index(drop=True)
    sent = {name: _sent_until(result.pushes, table.seconds.to_numpy(), columns) for name, columns in BYTES.items()}
    each = result.run.workers * _exchanged(result.pushes)
    held = result.pushes.assign(rounds=(result.pushes.bytes_up > 0) / each)
    sent["rounds"] = _sent_until(held, table.seconds.to_numpy(), ("rounds",))
    found: pd.DataFrame = table[["pushes", "iteration", "seconds", "accuracy", "loss"]].assign(**sent)
    return found


def _exchanged(pushes: pd.DataFrame) -> int:
    """The number of ranges that an iteration exchanges."""
    worker, iteration, index = (pushes[name].to_numpy(np.int64) for name in ("worker", "iteration", "range"))
    if not len(pushes):
        return 1
    ranges = index.max() + 1
    named = np.unique((worker * (iteration.max() + 1) + iteration) * ranges + index) // ranges
    return int(np.bincount(named).max())


def _ending(result: Result) -> pd.DataFrame:
    """A row: outcome, verdict, final (by the run's metric), pushes, seconds, dilation, emulation_ok, remarks."""
    facts = {name: result.manifest.get(name) for name in ("outcome", "verdict", "pushes")}
    more = {"final": result.final, "seconds": result.seconds, "dilation": float(result.manifest.get("dilation", 1.0)),
            "emulation_ok": result.emulation_ok, "remarks": "; ".join(result.remarks)}  # fmt: skip
    return pd.DataFrame([{**facts, **more}])


#: What a row of `tidy` may stand for.
EACH: Mapping[str, Callable[[Result], pd.DataFrame]] = MappingProxyType({
    "run": _ending, "evaluation": evaluations, "push": lambda result: result.pushes,
    "phase": lambda result: result.phases, "arrival": lambda result: result.arrivals,
})  # fmt: skip

BYTES = {"bytes": ("bytes_up", "bytes_down"), "bytes_up": ("bytes_up",), "bytes_down": ("bytes_down",)}


def _sent_until(table: pd.DataFrame, seconds: np.ndarray, columns: Sequence[str]) -> np.ndarray:
    """Sums over the pushes until each of these instants, such as of the bytes that they, and their pulls, took."""
    order = np.argsort(table.seconds.to_numpy(), kind="stable")
    total = np.concatenate([[0.0], np.cumsum(table[list(columns)].sum(axis=1).to_numpy(float)[order])])
    sent: np.ndarray = total[np.searchsorted(table.seconds.to_numpy()[order], seconds, side="right")]
    return sent


# -- from disk -------------------------------------------------------------------------------------


def load(name: Path | str, results: Path | str | None = None) -> Result:
    """A record by its digest, the start of it, or its directory, also without the Run that made it.

    Raises:
        ConfigError: no digest starts so, or several do; the nearest are named.
        RecordError: it is incomplete, or names what this version does not know.
    """
    if isinstance(name, Path) or (name and Path(name).is_dir()):
        return _read(Path(name))
    place = (default_results() if results is None else Path(results)) / "runs"
    digests = sorted(path.name for path in records_in(place))
    found = [digest for digest in digests if digest.startswith(name.lower())] if name else []
    if len(found) == 1:
        return _read(place / found[0])
    if not digests:
        raise ConfigError("record", name, f"there is no record in {place}")
    problem = f"{len(found)} digests start so" if found else f"no record in {place} has this digest; nearest"
    near = found or [digest for digest in digests if _likeness(name.lower(), digest) >= LIKE]
    near = sorted(near, key=lambda digest: -_likeness(name.lower(), digest))[:NEAREST]
    if not near:
        problem = f"no record in {place} has this digest, or one like it; pslab.records() has all {len(digests)}"
        raise ConfigError("record", name, problem)
    shown = "".join(f"\n  {digest}  {_run_in(place / digest)}" for digest in near)
    raise ConfigError("record", name, f"{problem}:{shown}")


def records(*, results: Path | str | None = None, **fields: Any) -> pd.DataFrame:
    """All finished runs that are recorded, the oldest first; with fields, as `where` takes them, the runs that have
    these. Columns: the fields in which they differ, `run` and `result`.

    What cannot be read, such as a record of another version, is left out, with a warning.

    Raises:
        ConfigError: an unknown field, or a value that no run has.
    """
    place = (default_results() if results is None else Path(results)) / "runs"
    found, unreadable = [], []
    for path in (paths := records_in(place)):
        try:
            found.append(_read(path))
        except RecordError as error:
            unreadable.append(str(error))
    if unreadable:
        warnings.warn(f"{len(unreadable)} of {len(paths)} records are left out: {unreadable[0]}", stacklevel=2)
    return where(table(found), **fields)


def _read(path: Path) -> Result:
    manifest = read_facts(path)
    if not re.fullmatch("[0-9a-f]{16}", str(manifest.get("digest"))) or not isinstance(manifest.get("run"), dict):
        raise RecordError(f"{path}: its manifest does not say which run it is of")
    try:
        run = Run.of(manifest["run"])
    except (ConfigError, TypeError, OverflowError) as error:
        raise RecordError(f"{path}: its run cannot be made again ({error})") from error
    return Result(run, path, manifest)


def _likeness(name: str, digest: str) -> float:
    return SequenceMatcher(None, name, digest[: max(1, len(name))], autojunk=False).ratio()


def _run_in(record: Path) -> str:
    """``"Run(sync='ssp:3')"``, or why the record cannot be read."""
    try:
        return textwrap.shorten(repr(_read(record).run), 100, placeholder=" ...")
    except RecordError:
        return "(incomplete)"
