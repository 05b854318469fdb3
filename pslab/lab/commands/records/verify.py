"""pslab verify: whether records are what was recorded, whether they can be, and whether a rerun leaves the same."""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Iterator, Mapping
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pslab.errors import PslabError, RecordError
from pslab.lab.commands.finding import NOTE, OK, PROBLEM, Finding, line

if TYPE_CHECKING:
    import pandas as pd

    from pslab.lab.records.record import Result

MEASURED = ("preparation_s", "turning_s", "wall_s")  # facts of a virtual run that the machine's clock said


def add(verbs: Any) -> None:
    """The verb and its options."""
    parser = verbs.add_parser("verify", help="are records unchanged, possible, and, in virtual time, repeatable?")
    parser.add_argument("records", nargs="+", metavar="RECORD", help="a digest, its start, or a record's directory")
    parser.add_argument("--results", type=Path, help="where the records are (default: results/)")


def main(options: argparse.Namespace) -> int:
    """Print a line for each check of each record. Exit status: 1 if one of them fails, 2 no such record."""
    from pslab.lab.records.record import default_results
    from pslab.lab.records.results import load

    results, well = (options.results or default_results()).resolve(), True
    for name in options.records:
        print(name)
        try:
            found = checks(load(name, results))
            for finding in found:
                print(line(finding), flush=True)
                well = well and finding.state != PROBLEM
        except RecordError as error:
            print(line(Finding("record", PROBLEM, str(error))))
            well = False
    return 0 if well else 1


def checks(result: Result) -> Iterator[Finding]:
    """What is found of a record, one check after another; a rerun only of what may be true."""
    try:
        yield sums(result)
    except RecordError as error:
        yield Finding("sums", PROBLEM, str(error))
        return
    yield (judged := judgement(result))
    if judged.state != PROBLEM:
        yield rerun(result)


def sums(result: Result) -> Finding:
    """Whether every file is what its manifest says, and the manifest that of this run.

    Raises:
        RecordError: it is not.
    """
    from pslab.lab.records.disk.atomic_folder import read_file
    from pslab.lab.records.record import FILES, WEIGHTS

    manifest, files = result.manifest, dict(result.manifest.get("sha256", {}))
    for name in {*files, *FILES} - {"manifest.json"}:
        read_file(result.path, name, manifest)
    if WEIGHTS in files and hashlib.sha256(result.weights.tobytes()).hexdigest() != manifest["weights_sha256"]:
        raise RecordError(f"the weights of {result.path} are not those whose SHA-256 its manifest has")
    # a user's object is in a manifest by the digest of its content alone
    if not result.run.unknown and "source" not in manifest and result.run.digest != result.digest:
        problem = f"the digest of its run is {result.run.digest}, not {result.digest}: its parameters were changed"
        raise RecordError(f"{result.path}: {problem}, or it is of another version of pslab")
    if not result.path.name.startswith(result.digest):
        raise RecordError(f"{result.path} holds the record of {result.digest}")
    return Finding("sums", OK, f"{len(files)} files are as they were recorded")


def tables_in(result: Result) -> dict[str, pd.DataFrame]:
    """The tables that a record has."""
    from pslab.lab.records.record import TABLES

    return {name: getattr(result, name) for name in TABLES if f"{name}.csv" in result.manifest["sha256"]}


def judgement(result: Result) -> Finding:
    """What the judge says of the tables, now."""
    from pslab.lab.judge.verdict import judge

    found = judge(result.run, tables_in(result), result.manifest)
    if found.verdict == "valid":
        return Finding("judge", OK, f"valid: {len(found.checked)} rules hold")
    why = found.violations or found.unjudged
    return Finding("judge", PROBLEM, f"{found.verdict}: {'; '.join(why)}")


def rerun(result: Result) -> Finding:
    """In virtual time: whether the run, executed again, leaves the same tables, weights and facts, to the bit."""
    if result.run.engine == "local":
        return Finding("rerun", NOTE, "none: what real processes measured cannot be measured again")
    from pslab.engines.execute import execute
    from pslab.lab.judge.tables import tables_of
    from pslab.lab.runs.resolve import resolve

    try:
        tables, weights, facts = tables_of(result.run, execute(resolve(result.run), lambda news: None))
    except PslabError as error:
        return Finding("rerun", PROBLEM, f"it cannot be run again: {error}")
    other = [f"{name}.csv" for name, table in tables.items() if not _same(result, name, table)]
    if hashlib.sha256(weights.tobytes()).hexdigest() != result.manifest["weights_sha256"]:
        other.append("the weights")
    other += _differing(facts, result.manifest)
    if not other:
        return Finding("rerun", OK, "the same bits: tables, weights and facts")
    return Finding("rerun", PROBLEM, f"differs in {', '.join(other)}", _elsewhere(result.manifest))


def _same(result: Result, name: str, table: pd.DataFrame) -> bool:
    text = StringIO()
    table.to_csv(text, index=False)
    return bool(hashlib.sha256(text.getvalue().encode()).hexdigest() == result.manifest["sha256"].get(f"{name}.csv"))


def _differing(facts: Mapping[str, Any], manifest: Mapping[str, Any]) -> list[str]:
    """The facts that a manifest has otherwise."""
    return [name for name, value in facts.items() if name not in MEASURED and not _equal(value, manifest.get(name))]


def _equal(one: Any, other: Any) -> bool:
    """The same, or neither a number, as the largest weight of a run that diverged."""
    return bool(one == other or (one != one and other != other))


def _elsewhere(manifest: Mapping[str, Any]) -> str:
    """How the record's machine differs from this one, as far as it may change the last bits."""
    from pslab.lab.records.record import environment

    here, there = environment(), manifest.get("environment", {})
    names = [name for name in ("torch", "machine", "capability") if here[name] != there.get(name)]
    pairs = ", ".join(f"{name} {there.get(name)}, here {here[name]}" for name in names)
    return f"it was recorded with {pairs}: only there are bits the same" if pairs else "its machine was like this one"
