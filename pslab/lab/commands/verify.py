"""pslab verify: whether a record's files are unchanged, whether its policy decides the same once more, and whether a
rerun leaves the same."""

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

#: Facts of a run of real processes that follow from the order at its server.
ORDERED = ("pushes", "accepted", "dropped", "dropped_bytes", "diverged", "pass_iterations", "ranges",
           "requested_bytes", "network_bytes", "residuals")  # fmt: skip
MEASURED = ("preparation_s", "turning_s", "wall_s")  # facts of a virtual run that the machine's clock said


def add(verbs: Any) -> None:
    """Add the verb and its options."""
    parser = verbs.add_parser("verify", help="whether records are unchanged, replayed and repeated to the bit")
    parser.add_argument("records", nargs="+", metavar="RECORD",
                        help="a digest of a run, its start, or a record's directory")  # fmt: skip
    parser.add_argument("--results", type=Path, help="where the records are (default: results/)")


def main(options: argparse.Namespace) -> int:
    """Print a line for each check of each record. Exit status: 1 if one of them fails, 2 no such record."""
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
    """The findings of a record, one check after another; it is run again only if the others find no problem."""
    try:
        yield sums(result)
    except RecordError as error:
        yield Finding("sums", PROBLEM, str(error))
        return
    yield (judged := judgement(result))
    if judged.state != PROBLEM:
        yield rerun(result)


def sums(result: Result) -> Finding:
    """Whether every file has the sum that its manifest says, and the manifest is of this run.

    Raises:
        RecordError: it is not.
    """
    from pslab.lab.records.disk import read_file
    from pslab.lab.records.record import FILES

    manifest, files = result.manifest, dict(result.manifest.get("sha256", {}))
    for name in {*files, *FILES} - {"manifest.json"}:
        read_file(result.path, name, manifest)
    if strays := sorted({path.name for path in result.path.iterdir()} - {*files, *FILES}):
        raise RecordError(f"{result.path} holds {', '.join(strays)}, which its manifest does not name: move it away")
    # a user's object is in a manifest by the digest of its content alone
    made = manifest.get("environment", {})
    named = result.run.digest_on(str(made.get("gpu", "")), str(made.get("products", MKL)))
    if not result.run.unknown and "source" not in manifest and named != result.digest:
        problem = f"the digest of its run is {named}, not {result.digest}: its parameters were changed"
        raise RecordError(f"{result.path}: {problem}, or it is of another version of pslab")
    if not result.path.name.startswith(result.digest):
        raise RecordError(f"{result.path} holds the record of {result.digest}")
    return Finding("sums", OK, f"{len(files)} files are as they were recorded")


def judgement(result: Result) -> Finding:
    """The judge's verdict on the tables, made now."""
    from pslab.lab.judge import judge
    from pslab.lab.records.record import TABLES

    tables = {name: getattr(result, name) for name in TABLES if f"{name}.csv" in result.manifest["sha256"]}
    findings = judge(result.run, tables, result.manifest)
    if findings.verdict == "valid":
        return Finding("judge", OK, "valid: from the recorded arrivals the policy decides the same once more")
    if findings.verdict == "unknown" and "sync" in objects(result.run) and result.manifest.get("verdict") == "valid":
        return Finding("judge", NOTE, f"valid when it was recorded; now {findings.why}")
    return Finding("judge", PROBLEM, f"{findings.verdict}: {findings.why}")


def objects(run: Run) -> dict[str, str]:
    """The fields that were objects of the user, of which a record has the name and a digest of the content alone."""
    given = {name: getattr(run, name) for name in NAMED}
    return {name: value for name, value in given.items() if named_object(value)}


def rerun(result: Result) -> Finding:
    """Whether the run, executed again, leaves the same to the bit: in virtual time its tables, weights and facts; of
    real processes, whose order is recorded, the gradients in that order, the weights and the evaluations."""
    if given := objects(result.run):
        what = " and ".join(f"{name}={value!r}" for name, value in given.items())
        return Finding("rerun", NOTE, f"none: {what} names an object, which a record does not hold: where that object "
                       "is, run it again into another folder")  # fmt: skip
    again = _in_virtual_time if result.run.engine in MODELLED else _in_recorded_order
    try:
        what, other = again(result)
    except ProtocolError as error:
        return Finding("rerun", PROBLEM, f"the run cannot have left this order: {error}")
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
    other = [f"{name}.csv" for name, table in tables.items() if not _same(result, name, table)]
    return "tables, weights and facts", other + _other_weights(result, weights) + _differing(facts, result.manifest)


def _in_recorded_order(result: Result) -> Again:
    """A run of real processes; where its order does not say all, the weights that are kept are evaluated again."""
    import pandas as pd

    from pslab.engines.server.ledger import ARRIVAL_COLUMNS, ARRIVALS, PUSH_COLUMNS
    from pslab.engines.virtual import recorded_order
    from pslab.lab.judge import largest
    from pslab.lab.records.record import WEIGHTS
    from pslab.lab.runs.resolve import resolve

    run, manifest = result.run, result.manifest
    cluster = {**recorded_order.CLUSTER, "colocated": resolve_cluster(run.cluster).colocated}
    wanted = run.but(engine="virtual", cluster=cluster, ray=None, dilation="auto", evaluate="after")
    kinds = {name: number for number, name in enumerate(ARRIVALS)}
    arrivals = result.arrivals.assign(kind=result.arrivals.kind.map(kinds))[list(ARRIVAL_COLUMNS)].to_numpy(float)
    experiment = resolve(wanted)
    if why := recorded_order.unrepeatable(experiment, arrivals):
        if WEIGHTS not in manifest["sha256"] or experiment.places is not None:
            return "", [why]
        weights = experiment.from_record(result.weights)
        outcome = recorded_order.evaluate(experiment, weights, manifest["pushes"])
        return f"the first and the last evaluation; no more, since {why}", _other_evaluations(result, outcome)
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
    """A table of pushes, or of evaluations, as it is read from its file, in an order that no instant decides."""
    import pandas as pd

    by = [name for name in ("range", "version_applied", "pushes", "worker") if name in table]
    frame = pd.read_csv(StringIO(table.to_csv(index=False))).astype(float)
    return frame.sort_values(by, ignore_index=True)


def _other_evaluations(result: Result, outcome: Outcome) -> list[str]:
    """The evaluations after as many pushes, for a run that evaluates by time: another run may evaluate other
    weights."""
    import pandas as pd

    columns, (begin, end) = ["pushes", "accuracy", "loss"], (0, result.manifest["pushes"])
    mine = _ordered(pd.DataFrame(outcome.accuracy[:, :4], columns=["pushes", "seconds", "accuracy", "loss"])[columns])
    theirs = _ordered(result.accuracy[columns])
    if result.run.evaluation_period is None or len(mine) < 3:
        theirs, mine = theirs[theirs.pushes.isin(mine.pushes)], mine[mine.pushes.isin(theirs.pushes)]
    if not {begin, end} <= {*theirs.pushes} or not mine.reset_index(drop=True).equals(theirs.reset_index(drop=True)):
        return ["accuracy.csv"]
    return []


def _other_weights(result: Result, weights: Any) -> list[str]:
    same = hashlib.sha256(weights.tobytes()).hexdigest() == result.manifest.get("weights_sha256")
    return [] if same else ["the weights"]


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

    here, there = environment(str(manifest["run"].get("device"))), manifest.get("environment", {})
    names = [name for name in ("torch", "machine", "capability", "products", "gpu", "driver", "cuda")
             if here.get(name) != there.get(name, MKL if name == "products" else None)]  # fmt: skip
    pairs = ", ".join(f"{name} {there.get(name)}, here {here.get(name)}" for name in names)
    return f"it was recorded with {pairs}: only there are bits the same" if pairs else "its machine was like this one"
