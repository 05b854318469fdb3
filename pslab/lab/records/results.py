"""Tables of finished runs, and the search for records on disk by digest or by fields."""

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

NEAREST, LIKE = 5, 0.7  # number of records suggested for an unknown digest, and their least similarity to it


# -- tables ----------------------------------------------------------------------------------------


def tidy(results: Given, row: str = "run") -> pd.DataFrame:
    """Return a table with a row for each run, or for each evaluation, push, phase or arrival (`row` is a key of ROWS).

    Columns: all columns of `results`, the fields of Run, `digest`, and the columns of the record's table. If two have
        the same name, a field of Run is left out, and an axis is named `<name>_of_run`. If the other runs have equally
        many workers, an iteration of the single machine is as many pushes as an iteration of the other runs.

    Raises:
        ConfigError: `row` is unknown.
    """
    if row not in ROWS:
        raise ConfigError("row", row, nearest(str(row), ROWS))
    frame = results_in(results)
    runs = frame[RUN].tolist()
    sizes, tables = {run.workers for run in runs if run.workers > 1}, []
    named = [*axes(frame), *(str(name) for name in frame if name not in (*axes(frame), *ITEMS, *FIELDS))]
    points = {name: values(frame, name) for name in dict.fromkeys([*named, *FIELDS])}
    for number, result in enumerate(frame[RESULT]):
        rows = ROWS[row](result)
        if row == "evaluation" and single(result.run, runs) and len(sizes) == 1:
            rows = rows.assign(iteration=rows.pushes / min(sizes))
        point = {name + "_of_run" * (name in rows and name in named): cells[number] for name, cells in points.items()
                 if name in named or name not in rows}  # fmt: skip
        tables.append(pd.DataFrame({**point, "digest": result.digest}, index=rows.index).join(rows))
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()


def evaluations(result: Result) -> pd.DataFrame:
    """Return the finite evaluations of a run: pushes, iteration (pushes / workers), seconds, accuracy (0 to 1; or the
    run's metric), loss; the bytes sent until then by pushes (bytes_up), by pulls (bytes_down) and by both (bytes); and
    rounds, the mean number of pushes that a worker has made."""
    table = result.accuracy.sort_values("pushes", kind="stable").drop_duplicates("pushes")
    table = table[np.isfinite(table.accuracy)].reset_index(drop=True)
    sent = {name: _sent_until(result.pushes, table.seconds.to_numpy(), columns) for name, columns in BYTES.items()}
    round_bytes = result.run.workers * _exchanged(result.pushes)
    pushes = result.pushes.assign(rounds=(result.pushes.bytes_up > 0) / round_bytes)
    sent["rounds"] = _sent_until(pushes, table.seconds.to_numpy(), ("rounds",))
    points: pd.DataFrame = table[["pushes", "iteration", "seconds", "accuracy", "loss"]].assign(**sent)
    return points


def _exchanged(pushes: pd.DataFrame) -> int:  # the most ranges that a worker pushes in an iteration
    worker, iteration, index = (pushes[name].to_numpy(np.int64) for name in ("worker", "iteration", "range"))
    if not len(pushes):
        return 1
    ranges = index.max() + 1
    named = np.unique((worker * (iteration.max() + 1) + iteration) * ranges + index) // ranges
    return int(np.bincount(named).max())


def _ending(result: Result) -> pd.DataFrame:
    # a row: outcome, verdict, final (by the run's metric), pushes, seconds, dilation, emulation_ok, remarks
    facts = {name: result.manifest.get(name) for name in ("outcome", "verdict", "pushes")}
    more = {"final": result.final, "seconds": result.seconds, "dilation": float(result.manifest.get("dilation", 1.0)),
            "emulation_ok": result.emulation_ok, "remarks": "; ".join(result.remarks)}  # fmt: skip
    return pd.DataFrame([{**facts, **more}])


#: The tables that `tidy` can return.
ROWS: Mapping[str, Callable[[Result], pd.DataFrame]] = MappingProxyType({
    "run": _ending, "evaluation": evaluations, "push": lambda result: result.pushes,
    "phase": lambda result: result.phases, "arrival": lambda result: result.arrivals,
})  # fmt: skip

BYTES = {"bytes": ("bytes_up", "bytes_down"), "bytes_up": ("bytes_up",), "bytes_down": ("bytes_down",)}


def _sent_until(table: pd.DataFrame, seconds: np.ndarray, columns: Sequence[str]) -> np.ndarray:
    """Return for each instant in `seconds` the sum of some columns over all pushes until then."""
    order = np.argsort(table.seconds.to_numpy(), kind="stable")
    total = np.concatenate([[0.0], np.cumsum(table[list(columns)].sum(axis=1).to_numpy(float)[order])])
    sent: np.ndarray = total[np.searchsorted(table.seconds.to_numpy()[order], seconds, side="right")]
    return sent


# -- from disk -------------------------------------------------------------------------------------


def load(name: Path | str, results: Path | str | None = None) -> Result:
    """Return the recorded result whose digest begins with `name`, or whose record is in the folder `name`.

    Raises:
        ConfigError: no digest or several digests begin with `name`; the message has the most similar digests.
        RecordError: the record is incomplete, or has names that this version does not know.
    """
    if isinstance(name, Path) or (name and Path(name).is_dir()):
        return _read(Path(name))
    folder = (default_results() if results is None else Path(results)) / "runs"
    digests = sorted(path.name for path in records_in(folder))
    matching = [digest for digest in digests if digest.startswith(name.lower())] if name else []
    if len(matching) == 1:
        return _read(folder / matching[0])
    if not digests:
        raise ConfigError("record", name, f"there is no record in {folder}: name another folder by results=")
    problem = f"no record in {folder} has this digest; nearest"
    if matching:
        problem = f"{len(matching)} digests in {folder} begin so: give more characters of one, such as"
    near = matching or [digest for digest in digests if _likeness(name.lower(), digest) >= LIKE]
    near = sorted(near, key=lambda digest: -_likeness(name.lower(), digest))[:NEAREST]
    if not near:
        problem = f"no record in {folder} has a similar digest: pslab.records() lists all {len(digests)} records"
        raise ConfigError("record", name, problem)
    shown = "".join(f"\n  {digest}  {_run_in(folder / digest)}" for digest in near)
    raise ConfigError("record", name, f"{problem}:{shown}")


def records(*, results: Path | str | None = None, **fields: Any) -> pd.DataFrame:
    """Return all recorded runs, oldest first; with fields, as for `where`, only the runs with these values.

    Columns: the fields in which the runs differ, `run` and `result`. Records that cannot be read, such as records of
    another version, are left out with a warning.

    Raises:
        ConfigError: an unknown field, or a value that no run has.
    """
    folder = (default_results() if results is None else Path(results)) / "runs"
    readable, unreadable = [], []
    for path in (paths := records_in(folder)):
        try:
            readable.append(_read(path))
        except RecordError as error:
            unreadable.append(str(error))
    if unreadable:
        warnings.warn(f"{len(unreadable)} of {len(paths)} records are left out: {unreadable[0]}", stacklevel=2)
    return where(table(readable), **fields)


def _read(path: Path) -> Result:
    manifest = read_facts(path)
    if not re.fullmatch("[0-9a-f]{16}", str(manifest.get("digest"))) or not isinstance(manifest.get("run"), dict):
        raise RecordError(f"{path}: its manifest lacks `digest` or `run`: it is not the record of a run")
    try:
        run = Run.of(manifest["run"])
    except (ConfigError, TypeError, OverflowError) as error:
        problem = f"{path}: its run cannot be constructed ({error})"
        raise RecordError(f"{problem}: load the record with the version of pslab that wrote it") from error
    return Result(run, path, manifest)


def _likeness(name: str, digest: str) -> float:
    return SequenceMatcher(None, name, digest[: max(1, len(name))], autojunk=False).ratio()


def _run_in(record: Path) -> str:
    # "Run(sync='ssp:3')", or "(incomplete)" if the record cannot be read
    try:
        return textwrap.shorten(repr(_read(record).run), 100, placeholder=" ...")
    except RecordError:
        return "(incomplete)"
