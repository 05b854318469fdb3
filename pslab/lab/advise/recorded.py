"""The record of an advice: what was asked, what was answered, and the runs that it rests on.

    results/advice/<digest>/
        answer.json     how each policy stands, the sentence, and each run by its policy and its fields
        manifest.json   what was asked, and the sum of the other file; written last

It is found again by what is asked, but for the minutes: an answer for which they were used up is no record, so that the
search goes on when it is asked again. Nothing in it is measured: `pslab verify` makes it anew of the runs' records.
"""

from __future__ import annotations

import dataclasses
import json
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pslab.config.parameters import plain
from pslab.config.run import FIELDS, Run, digest_of
from pslab.errors import ConfigError, DamagedRecord, RecordError
from pslab.lab.advise.advice import Advice
from pslab.lab.advise.race import RaceAnswer, Standing
from pslab.lab.records.disk import MANIFEST, read_file, read_manifest, records_in, write_record
from pslab.lab.records.grid_axes import CHOICE
from pslab.lab.records.merit import merit_of
from pslab.lab.records.record import Result, default_results
from pslab.lab.records.record import find as find_run
from pslab.lab.records.results import Results, Runs

FOLDER, ANSWER = "advice", "answer.json"
OWN = ("default", "winner", "alone")  # the runs of one policy each that an answer names
ALONE = "alone"  # the single machine, among the policies that have run
FORMAT = 2  # raise it whenever the same question would have another answer from the same runs


@dataclasses.dataclass(frozen=True)
class Question:
    """What is asked of `advise`."""

    base: Run
    space: Runs
    given: Mapping[str, Any]  #: the other arguments that the answer depends on, by name, as JSON has them
    candidates: Sequence[Any]  #: of each run of the space its values on the axes, in words, and its fields

    @classmethod
    def of(cls, base: Run, space: Runs, given: Mapping[str, Any]) -> Question | None:
        """None where no digest says everything about the runs, or JSON does not hold a policy: then all is asked anew.
        """
        try:
            fields = [_fields(base, run) for run in space]
        except TypeError:
            return None
        if base.unknown:
            return None
        words = [{name: str(plain(value)) for name, value in point.items() if name != CHOICE}
                 for point, *_ in (points or [{}] for points in space.columns)]  # fmt: skip
        return cls(base, space, given, list(zip(words, fields, strict=True)))

    def plain(self) -> dict[str, Any]:
        """As JSON holds it."""
        return {"run": self.base.plain(), "candidates": self.candidates, "given": self.given}

    @property
    def digest(self) -> str:
        """Sixteen hexadecimal digits that name the answer."""
        return digest_of({"advice": FORMAT, **self.plain(), "run": self.base.digest})

    @classmethod
    def read(cls, place: Path) -> Question:
        """That of a recorded advice.

        Raises:
            RecordError: it is damaged, of another version, or another one than the folder's name says.
        """
        manifest = read_manifest(place, [ANSWER])
        try:
            asked = manifest["asked"]
            base, candidates = Run.of(asked["run"]), asked["candidates"]
            space = Runs([base.but(**fields) for _, fields in candidates], [[point] for point, _ in candidates])
            found = cls(base, space, dict(asked["given"]), candidates)
        except (ConfigError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise DamagedRecord(place, f"{place / MANIFEST} does not say what was asked ({error})") from error
        if not found.digest == manifest.get("digest") == place.name:
            problem = f"was asked what has the digest {found.digest}: it was changed, or is of another version"
            raise DamagedRecord(place, f"{place} {problem}")
        return found


# -- written ---------------------------------------------------------------------------------------


def recorded(asked: Question | None, advice: Advice, results: Path) -> Advice:
    """The advice, with the name of its record, which is written if it is not there.

    There is none of an answer for which the time was used up.

    Raises:
        Unwritable: the disk is full, or the place cannot be written to.
    """
    if asked is None or advice.answer.ending == "time":
        return advice
    place = results / FOLDER / asked.digest
    if not place.is_dir():
        content = json.dumps(answer_of(asked.base, advice), indent=1, sort_keys=True)
        facts = {"digest": asked.digest, "asked": asked.plain()}
        write_record(place, facts, {ANSWER: lambda path: path.write_text(f"{content}\n")})
    return dataclasses.replace(advice, digest=asked.digest)


def answer_of(base: Run, advice: Advice) -> dict[str, Any]:
    """What a record says of an advice. Runs are what of their fields the base, as it was asked for, has otherwise."""
    policies = [*(point["policy"] for point, *_ in advice.results.columns), *[ALONE] * len(advice.alone)]
    runs = [{"digest": result.digest, "policy": policy, "fields": _fields(base, result.run)}
            for result, policy in zip([*advice.results, *advice.alone], policies, strict=True)]  # fmt: skip
    return {
        "answer": dataclasses.asdict(advice.answer),
        "target": advice.target,
        "merit": advice.merit.name,
        "words": advice.words,
        "advised": _fields(base, advice.run),
        "refused": dict(advice.refused),
        "cost": {name: value for name, value in advice.cost.items() if name != "seconds"},
        "notes": list(advice.notes),
        "runs": runs,
        **{name: [result.digest for result in getattr(advice, name)] for name in OWN},
        "best": [[policy, _fields(base, run)] for policy, run in advice._runs.items()],
    }


def _fields(base: Run, run: Run) -> dict[str, Any]:
    """The fields in which a run differs from the base.

    Raises:
        TypeError: JSON does not hold one of them.
    """
    found = {name: getattr(run, name) for name in FIELDS if getattr(run, name) != getattr(base, name)}
    if base.but(**json.loads(json.dumps(found))).digest != run.digest:
        raise TypeError("JSON has another value of a field")
    return found


# -- found again -----------------------------------------------------------------------------------


def find(asked: Question | None, results: Path) -> Advice | None:
    """The recorded answer, if there is one and each run that it rests on is there.

    Raises:
        RecordError: what lies there is damaged.
    """
    if asked is None or not (results / FOLDER / asked.digest).is_dir():
        return None
    return _advice(results / FOLDER / asked.digest, asked.base, results)


def read(place: Path, results: Path) -> Advice:
    """The advice in a folder.

    Raises:
        RecordError: it is damaged, or a run is missing that it rests on.
    """
    base = Question.read(place).base
    if (found := _advice(place, base, results)) is None:
        first, *_ = missing(place, results)
        raise RecordError(f"{place} rests on the run {first}, which is not in {results / 'runs'}: ask again")
    return found


def missing(place: Path, results: Path) -> list[str]:
    """The digests of the runs that an answer rests on and that are not there.

    Raises:
        RecordError: it is damaged.
    """
    base = Question.read(place).base
    return [each["digest"] for each in said_in(place)["runs"] if _found(place, base, each, results) is None]


def said_in(place: Path) -> dict[str, Any]:
    """What a record says.

    Raises:
        RecordError: it is damaged.
    """
    try:
        found = json.load(read_file(place, ANSWER, read_manifest(place, [ANSWER])))
    except (ValueError, RecursionError) as error:
        raise DamagedRecord(place, f"{place / ANSWER} cannot be read ({error})") from error
    return dict(found)


def _found(place: Path, base: Run, each: Mapping[str, Any], results: Path) -> Result | None:
    """A run that an answer rests on."""
    try:
        found = find_run(base.but(**each["fields"]), results)
    except (ConfigError, TypeError) as error:
        problem = f"the run {each['digest']} of {place / ANSWER} cannot be made again ({error})"
        raise DamagedRecord(place, problem) from error
    return found if found is not None and found.digest == each["digest"] else None


def _advice(place: Path, base: Run, results: Path) -> Advice | None:
    """The advice that a record is of; None if a run is missing."""
    said = said_in(place)
    try:
        runs = {each["digest"]: (_found(place, base, each, results), each["policy"]) for each in said["runs"]}
        if any(result is None for result, _ in runs.values()):
            return None
        standings = tuple(Standing(**_restored(each)) for each in said["answer"]["standings"])
        own = {name: _placed(runs[digest] for digest in said[name]) for name in OWN}
        best = {policy: base.but(**fields) for policy, fields in said["best"]}
        answer = RaceAnswer(**{**_restored(said["answer"]), "standings": standings})
        raced = [pair for pair in runs.values() if pair[1] != ALONE]
        return Advice(base.but(**said["advised"]), answer, float(said["target"]), _placed(raced), said["refused"],
                      merit=merit_of(said["merit"]), cost={**said["cost"], "seconds": 0.0},
                      notes=tuple(said["notes"]), **own, _runs=best, _place=results, digest=place.name)  # fmt: skip
    except (ConfigError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise DamagedRecord(place, f"{place / ANSWER} is no answer of this version ({error})") from error


def _placed(runs: Iterable[tuple[Any, str]]) -> Results:
    pairs = list(runs)
    return Results([result for result, _ in pairs], [[{"policy": policy}] for _, policy in pairs])


def _restored(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a dataclass from JSON, which has lists for tuples, and texts for the seeds that are keys."""
    return {name: tuple(value) if isinstance(value, list) else
            {int(key): each for key, each in value.items()} if isinstance(value, dict) else value
            for name, value in fields.items()}  # fmt: skip


def named(name: Path | str, results: Path) -> Path | None:
    """The folder of a recorded advice by its digest, the start of it, or its directory; None if it is none."""
    if name and Path(name).is_dir():
        return Path(name) if (Path(name) / ANSWER).is_file() else None
    found = [path for path in records_in(results / FOLDER) if name and path.name.startswith(str(name).lower())]
    return found[0] if len(found) == 1 else None


def advices(*, results: Path | str | None = None) -> list[Advice]:
    """All recorded answers of `advise`, the oldest first. What cannot be read is left out, with a warning."""
    place = default_results() if results is None else Path(results)
    found, unreadable = [], []
    for path in (paths := records_in(place / FOLDER)):
        try:
            found.append(read(path, place))
        except RecordError as error:
            unreadable.append(str(error))
    if unreadable:
        warnings.warn(f"{len(unreadable)} of {len(paths)} answers are left out: {unreadable[0]}", stacklevel=2)
    return found
