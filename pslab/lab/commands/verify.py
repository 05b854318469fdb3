"""pslab verify: checks that a record's files are unchanged, that a replay decides the same, and that a rerun gives the
same results."""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Iterator, Mapping
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pslab.config.cluster import resolve_cluster
from pslab.config.products import MKL
from pslab.config.run import MODELLED, NAMED, Run, named_object
from pslab.errors import ProtocolError, PslabError, RecordError
from pslab.lab.commands.finding import NOTE, OK, PROBLEM, Finding, line

if TYPE_CHECKING:
    import pandas as pd

    from pslab.engines.experiment.experiment import Outcome
    from pslab.lab.records.record import Result

#: Facts of a run on real processes that the order of messages at its server determines.
ORDERED = ("pushes", "accepted", "dropped", "dropped_bytes", "diverged", "pass_iterations", "ranges",
           "requested_bytes", "network_bytes", "residuals")  # fmt: skip
MEASURED = ("preparation_s", "turning_s", "wall_s")  # facts of a virtual run that are measured by the machine's clock


def add(verbs: Any) -> None:
    """Add the verb and its options."""
    parser = verbs.add_parser("verify", help="check that records are unchanged, and replay and rerun to the same bits")
    parser.add_argument("records", nargs="+", metavar="RECORD",
                        help="the digest of a run, its first digits, or the folder of a record")  # fmt: skip
    parser.add_argument("--results", type=Path, help="folder of the records (default: results/)")


def main(options: argparse.Namespace) -> int:
    """Print a line for each check of each record; return 1 if a check fails, else 0."""
    from pslab.lab.records.record import default_results
    from pslab.lab.records.results import load

    results, well = (options.results or default_results()).resolve(), True
    for name in options.records:
        print(name)
        try:
            for finding in checks(load(name, results)):
                print(line(finding), flush=True)
                well = well and finding.state != PROBLEM
        except RecordError as error:
            print(line(Finding("record", PROBLEM, str(error))))
            well = False
    return 0 if well else 1


def checks(result: Result) -> Iterator[Finding]:
    """Make the checks of a record and yield their findings; execute the run again only if no problem was found."""
    try:
        yield sums(result)
    except RecordError as error:
        yield Finding("sums", PROBLEM, str(error))
        return
    yield (judged := judgement(result))
    if judged.state != PROBLEM:
        yield rerun(result)


def sums(result: Result) -> Finding:
    """Check that every file has the checksum in the manifest, and that the manifest belongs to this run.

    Raises:
        RecordError: a file or the manifest was changed, or the folder has another file or another name.
    """
    from pslab.lab.records.disk import read_file
    from pslab.lab.records.record import FILES

    manifest, files = result.manifest, dict(result.manifest.get("sha256", {}))
    for name in {*files, *FILES} - {"manifest.json"}:
        read_file(result.path, name, manifest)
    if strays := sorted({path.name for path in result.path.iterdir()} - {*files, *FILES}):
        raise RecordError(f"{result.path} contains {', '.join(strays)}, which its manifest does not list: move it away")
    # a manifest has only the digest of a user's object
    made = manifest.get("environment", {})
    named = result.run.digest_on(str(made.get("gpu", "")), str(made.get("products", MKL)))
    if not result.run.unknown and "source" not in manifest and named != result.digest:
        problem = f"the digest of its run is {named}, not {result.digest}: its parameters were changed"
        raise RecordError(f"{result.path}: {problem}, or another pslab wrote the record. Execute the run again")
    if not result.path.name.startswith(result.digest):
        raise RecordError(f"{result.path} is the record of {result.digest}: rename the folder to {result.digest}")
    return Finding("sums", OK, f"{len(files)} files are as they were recorded")


def judgement(result: Result) -> Finding:
    """Judge the recorded tables again; return ok for a valid run, and a note if a user's policy is not available."""
    from pslab.lab.judge import judge
    from pslab.lab.records.record import TABLES

    tables = {name: getattr(result, name) for name in TABLES if f"{name}.csv" in result.manifest["sha256"]}
    findings = judge(result.run, tables, result.manifest)
    if findings.verdict == "valid":
        return Finding("judge", OK, "valid: replayed on the recorded arrivals, the policy decides the same")
    if findings.verdict == "unknown" and "sync" in objects(result.run) and result.manifest.get("verdict") == "valid":
        return Finding("judge", NOTE, f"valid when it was recorded; now {findings.why}")
    return Finding("judge", PROBLEM, f"{findings.verdict}: {findings.why}")


def objects(run: Run) -> dict[str, str]:
    """Return the fields whose values were a user's objects, with the name and digest that the record has of them."""
    return {name: value for name in NAMED if named_object(value := getattr(run, name))}


def rerun(result: Result) -> Finding:
    """Execute the run again and compare the results bit by bit.

    Of a virtual run, tables, weights and facts are compared. A run on real processes is repeated in its recorded order
    of messages, and gradients, weights and evaluations are compared.
    """
    if given := objects(result.run):
        what = " and ".join(f"{name}={value!r}" for name, value in given.items())
        return Finding("rerun", NOTE, f"none: {what} names an object, which a record does not contain: where the "
                       "object is defined, execute the run again into another folder")  # fmt: skip
    again = _in_virtual_time if result.run.engine in MODELLED else _in_recorded_order
    try:
        what, other = again(result)
    except ProtocolError as error:
        return Finding("rerun", PROBLEM, f"the recorded order is impossible: {error}")
    except PslabError as error:
        state = NOTE if getattr(error, "field", "") == "device" else PROBLEM  # a GPU may be elsewhere
        return Finding("rerun", state, f"it cannot be run again: {error}")
    if not what:
        return Finding("rerun", NOTE, f"none: {other[0]}")
    if not other:
        return Finding("rerun", OK, f"the same bits: {what}")
    return Finding("rerun", PROBLEM, f"differs in {', '.join(other)}", _elsewhere(result.manifest))


Again = tuple[str, list[str]]  # the compared quantity and its differences; "" and the reason, if nothing was compared


def _in_virtual_time(result: Result) -> Again:
    from pslab.engines.execute import execute
    from pslab.lab.judge import tables_of
    from pslab.lab.runs.resolve import resolve

    tables, weights, facts = tables_of(result.run, execute(resolve(result.run), lambda news: None))
    made = {f"{name}.csv": table.to_csv(index=False).encode() for name, table in tables.items()}
    recorded = result.manifest["sha256"]
    other = [name for name, text in made.items() if hashlib.sha256(text).hexdigest() != recorded.get(name)]
    return "tables, weights and facts", other + _other_weights(result, weights) + _differing(facts, result.manifest)


def _in_recorded_order(result: Result) -> Again:
    import pandas as pd

    from pslab.engines.server.ledger import ARRIVAL_COLUMNS, ARRIVALS, PUSH_COLUMNS
    from pslab.engines.virtual import recorded_order
    from pslab.lab.judge import largest
    from pslab.lab.runs.resolve import resolve

    run, manifest = result.run, result.manifest
    given = resolve_cluster(run.cluster)
    cluster = {**recorded_order.CLUSTER, "colocated": given.colocated, "per_host": given.per_host}
    wanted = run.but(engine="virtual", cluster=cluster, ray=None, dilation="auto", evaluate="after")
    kinds = {name: number for number, name in enumerate(ARRIVALS)}
    arrivals = result.arrivals.assign(kind=result.arrivals.kind.map(kinds))[list(ARRIVAL_COLUMNS)].to_numpy(float)
    experiment = resolve(wanted)
    if why := recorded_order.unrepeatable(experiment, arrivals):
        return "", [why]
    first = [manifest["diverged"]["worker"]] if manifest.get("diverged") else []
    outcome = recorded_order.execute(experiment, arrivals, manifest["outcome"], manifest["seconds"], *first)
    mine, theirs = (_ordered(table.drop(columns=["push", "seconds"])) for table in (
        pd.DataFrame(outcome.pushes, columns=PUSH_COLUMNS), result.pushes))  # fmt: skip
    other = ["pushes.csv"] * (not mine.equals(theirs)) + _other_evaluations(result, outcome)
    other += _other_weights(result, outcome.weights)
    facts = {"largest_weight": largest(outcome.weights)}
    facts |= {name: outcome.facts[name] for name in ORDERED if name in outcome.facts}
    return "gradients in the recorded order, weights and evaluations", other + _differing(facts, manifest)


def _ordered(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table of pushes or evaluations with numbers as its file has them, sorted by columns other than times."""
    import pandas as pd

    by = [name for name in ("range", "version_applied", "pushes", "worker") if name in table]
    frame = pd.read_csv(StringIO(table.to_csv(index=False))).astype(float)
    return frame.sort_values(by, ignore_index=True)


def _other_evaluations(result: Result, outcome: Outcome) -> list[str]:
    """Return ["accuracy.csv"] if evaluations differ, else []. If runs are evaluated by time, only evaluations after
    equal numbers of pushes are compared."""
    import pandas as pd

    columns = ["pushes", "accuracy", "loss"]
    mine, theirs = (
        _ordered(pd.DataFrame(outcome.accuracy[:, [0, 2, 3]], columns=columns)),
        _ordered(result.accuracy[columns]),
    )
    if result.run.evaluation_period is None:
        theirs, mine = theirs[theirs.pushes.isin(mine.pushes)], mine[mine.pushes.isin(theirs.pushes)]
    whole = {0, result.manifest["pushes"]} <= {*theirs.pushes}
    return ["accuracy.csv"] * (not (whole and mine.reset_index(drop=True).equals(theirs.reset_index(drop=True))))


def _other_weights(result: Result, weights: Any) -> list[str]:
    return ["the weights"] * (hashlib.sha256(weights.tobytes()).hexdigest() != result.manifest.get("weights_sha256"))


def _differing(facts: Mapping[str, Any], manifest: Mapping[str, Any]) -> list[str]:
    """Return the names of the facts whose values differ from the manifest's; two NaN are equal."""
    pairs = {name: (value, manifest.get(name)) for name, value in facts.items() if name not in MEASURED}
    return [name for name, (one, other) in pairs.items() if one != other and (one == one or other == other)]


def _elsewhere(manifest: Mapping[str, Any]) -> str:
    """Return a sentence with the properties that may change the last bits and differ on the record's machine."""
    from pslab.lab.records.record import environment

    here, there = environment(str(manifest["run"].get("device"))), manifest.get("environment", {})
    names = [name for name in ("torch", "machine", "capability", "products", "gpu", "driver", "cuda")
             if here.get(name) != there.get(name, MKL if name == "products" else None)]  # fmt: skip
    pairs = ", ".join(f"{name} {there.get(name)}, here {here.get(name)}" for name in names)
    return f"it was recorded with {pairs}: only there the bits are equal" if pairs else "its machine was like this one"
