"""The batch: notebooks with their parameters, and stamps that tell whether their results are up to date.

notebooks/batch.yaml lists them in the order of execution:

    - notebook: 20_sync_policies
      variant: best-rates                # part of the names of its files
      main: true                         # a part of `make figures`; the others are executed by `make figures-all`
      takes: [140, 60]                   # seconds on two cores and megabytes of the first execution
      set: {engine: virtual}             # parameters other than the notebook's defaults
      tiny: {pushes: 16}                 # parameters of a short execution, to test that the notebook works

An executed notebook in results/notebooks/ has a stamp beside it: its parameters, the records that it read, and its
figures. The notebook is executed again if one of these changed, or if its source or the drawing code is newer. Recorded
runs are not executed again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from pslab.config import plain_yaml
from pslab.config.run import FIELDS
from pslab.config.untrusted import read_json
from pslab.errors import ConfigError, DamagedRecord, nearest
from pslab.lab.records import journal
from pslab.lab.records.disk import MANIFEST, read_manifest
from pslab.lab.records.record import emulation_ok
from pslab.lab.studies.figures import stem
from pslab.lab.studies.parameters import check, check_named, of_notebook

PLAN = "batch.yaml"
DRAWING = ("plots", "records", "runs", "studies")  # packages of lab; a change in these or in config outdates figures
KEYS = ("notebook", "variant", "main", "takes", "set", "tiny")
MADE = {"begun_ns", "parameters", "records", "figures"}  # a stamp's facts about an execution
SUFFIXES = ("json", "html", "txt", "png", "svg", "pdf")  # files of a figure


@dataclass(frozen=True)
class BatchEntry:
    """An entry of batch.yaml: a notebook with its parameters, and the paths of its results."""

    notebook: str
    variant: str
    values: Mapping[str, Any]  #: parameters that differ from the notebook's defaults
    sources: Path
    results: Path
    takes: tuple[float, float] | None = None  #: seconds on two cores, and megabytes, with these parameters

    @property
    def name(self) -> str:
        """Return the name of its files without suffix: ``"20_sync_policies-best-rates"``."""
        return stem(self.notebook, self.variant)

    @property
    def source(self) -> Path:
        return self.sources / f"{self.notebook}.ipynb"

    @property
    def executed(self) -> Path:
        return self.results / "notebooks" / f"{self.name}.ipynb"

    @property
    def stamped(self) -> Path:
        return self.executed.with_suffix(".json")

    @cached_property
    def stamp(self) -> dict[str, Any]:
        """Return the stamp of the last execution; {} if there is none, or if it has the form of another version."""
        try:
            stamp = dict(read_json(self.stamped))
            return stamp if stamp["made"].keys() == MADE else {}
        except (AttributeError, KeyError, OSError, TypeError, ValueError):
            return {}

    @property
    def figures(self) -> list[Path]:
        """Return the paths of the last execution's figures, without suffix."""
        return [self.results / "figures" / name for name in self.stamp.get("made", {}).get("figures", [])]

    @property
    def parameters(self) -> dict[str, Any]:
        """Return `values` after a round trip through JSON, as the stamp has them."""
        return dict(json.loads(json.dumps(dict(self.values))))

    def done(self, *, again: bool = False) -> bool:
        """Whether the last execution had these parameters, and is newer than its sources (by file times, as in make).

        With `again`, the emulation of each run must have been kept, too.
        """
        made = self.stamp.get("made")
        if not made or not self.executed.is_file() or made["parameters"] != self.parameters:
            return False
        records = [self.results / name / MANIFEST for name in made["records"]]
        figures = [figure.with_name(f"{figure.name}.json") for figure in self.figures]
        ended_ns = self.stamped.stat().st_mtime_ns
        return (all(_changed_ns(path) <= made["begun_ns"] for path in (self.source, *_package()))
                and all(_changed_ns(path) <= ended_ns for path in (*records, *figures))
                and not (again and not all(map(self._kept, made["records"]))))  # fmt: skip

    def _kept(self, record: str) -> bool:
        folder = self.results / record
        try:
            return not (folder / MANIFEST).is_file() or emulation_ok(read_manifest(folder, ()))
        except DamagedRecord:  # the notebook's sweep moves it aside
            return False

    def expected_s(self) -> float | None:
        """Return the expected seconds of an execution, from the stamp of the last one: its seconds without recorded
        runs, scaled to the present parameters. Without a stamp return batch.yaml's seconds; None without these.
        """
        made = self.stamp.get("made")
        if not made:
            return self.takes[0] if self.takes else None
        if made["parameters"] == self.parameters:
            missing = [name for name in made["records"] if not (self.results / name / MANIFEST).is_file()]
            share = len(missing) / max(1, len(made["records"]))
        else:
            parameters = of_notebook(self.source)
            share = work(parameters | dict(self.values)) / work(parameters | made["parameters"])
        return float(self.stamp["drawing_s"]) + share * float(self.stamp["swept_s"])

    def stamp_of(self, entries: Sequence[dict[str, Any]], begun_ns: int, seconds: float) -> dict[str, Any]:
        """Return the stamp of an execution, from its journal's entries, its begin and its duration."""
        swept_s = sum(float(entry["swept_s"]) for entry in entries if "swept_s" in entry)
        return {
            "made": {
                "begun_ns": begun_ns,
                "parameters": self.parameters,
                "records": journal.collected(entries, "read"),
                "figures": journal.collected(entries, "figure"),
            },
            "claims": journal.collected(entries, "claim"),
            "swept_s": round(swept_s, 3),
            "drawing_s": round(max(0.0, seconds - swept_s), 3),
        }


def plan(
    sources: Path,
    results: Path,
    *,
    given: Mapping[str, Any] | None = None,
    only: Sequence[str] = (),
    tiny: bool = False,
    every: bool = True,
) -> list[BatchEntry]:
    """Return the chosen entries of batch.yaml, in order, with checked parameters.

    Args:
        given: values of parameters, for all chosen notebooks that have the parameter.
        only: names of entries, or of notebooks with all of their entries; empty: see `every`.
        tiny: whether to use the entries' parameters for short executions.
        every: whether to choose all entries; False: the main entries.

    Raises:
        ConfigError: no notebook or entry has a name in `only`; no chosen notebook has a given parameter; a value has
            another type than its default, or names an unknown policy; batch.yaml is not a list of entries.
    """
    given = given or {}
    listed = _listed(sources / PLAN)
    names = list(dict.fromkeys(name for item in listed for name in (item["notebook"], _name(item))))
    for name in only:
        if name not in names:
            raise ConfigError("only", name, f"{PLAN} has no such notebook; {nearest(name, names)}")
    entries = {_name(item) for item in listed}
    chosen = [item for item in listed if (_name(item) in only or item["notebook"] in {*only} - entries if only
                                          else every or item.get("main"))]  # fmt: skip
    allowed = {item["notebook"]: of_notebook(sources / f"{item['notebook']}.ipynb") for item in chosen}
    known = {name for names_ in allowed.values() for name in names_}
    for name, value in given.items():
        if name not in known:
            whose = f"{next(iter(allowed))} has no such" if len(allowed) == 1 else "no chosen notebook has such a"
            raise ConfigError(name, value, f"{whose} parameter; {nearest(name, known)}")
    planned = []
    for item in chosen:
        parameters = allowed[item["notebook"]]
        ours = {name: value for name, value in given.items() if name in parameters}
        parts = {"set": item.get("set", {}), "tiny": item.get("tiny", {}) if tiny else {}}
        for part, fields in parts.items():
            check(item["notebook"], parameters, fields, f": in `{part}` of {PLAN}")
        values = {**parts["set"], **parts["tiny"], **ours}
        check(item["notebook"], parameters, ours)
        for name in parameters.keys() & given.keys():
            check_named(name, parameters[name], given[name])
        seconds, megabytes = item.get("takes") or (0.0, 0.0)
        times = work(parameters | values) / work(parameters | dict(item.get("set", {})))
        takes = (seconds * times, megabytes * times) if seconds and not tiny else None
        planned.append(BatchEntry(item["notebook"], item.get("variant", ""), values, sources, results, takes))
    return planned


def work(values: Mapping[str, Any]) -> float:
    """Return the relative cost of a notebook's runs with these parameters: pushes times the lengths of all lists.

    Only costs of the same notebook can be compared: twice the seeds, or twice the pushes, cost twice as much.
    """
    return math.prod(_amount(name, value) for name, value in values.items())


def _amount(name: str, value: Any) -> float:
    if name == "pushes" and isinstance(value, (int, float)):
        return float(value)
    if isinstance(value, (list, tuple)):
        return sum(_amount("", item) for item in value) or 1.0
    if isinstance(value, Mapping) and value and not set(value) & {*FIELDS, "preset"}:
        return sum(_amount("", item) for item in value.values())
    return 1.0


def _name(item: Mapping[str, Any]) -> str:
    return stem(item["notebook"], item.get("variant", ""))


def _listed(path: Path) -> list[dict[str, Any]]:
    try:
        items = plain_yaml.read(path)
    except plain_yaml.Unreadable as error:
        raise ConfigError("notebooks", str(path), f"cannot be read: {error}") from None
    if not isinstance(items, list) or not all(isinstance(item, dict) and "notebook" in item for item in items):
        raise ConfigError("notebooks", str(path), "must be a list of entries, such as '- notebook: 10_pruning'")
    for item in items:
        for key in item:
            if key not in KEYS:
                problem = f"{item['notebook']} has an unknown key {key!r}; {nearest(str(key), KEYS)}"
                raise ConfigError("notebooks", str(path), problem)
    names = list(map(_name, items))
    for name in names:
        if names.count(name) > 1:
            raise ConfigError("notebooks", str(path), f"{name} is listed twice: give one of the entries a variant")
    return items


def folder(start: Path) -> Path:
    """Return the folder notebooks/ in `start` or in its nearest parent, or else beside the package's sources.

    Raises:
        ConfigError: there is no such folder, as for an installed package.
    """
    for parent in (start, *start.parents, *Path(__file__).parents):
        if (parent / "notebooks" / PLAN).is_file():
            return parent / "notebooks"
    problem = f"this folder and its parents have no notebooks/{PLAN}: change to a folder made by `pslab init FOLDER`"
    raise ConfigError("notebooks", None, problem)


@lru_cache(maxsize=1)
def _package() -> list[Path]:
    rooms = [*(Path(__file__).parents[1] / room for room in DRAWING), Path(__file__).parents[2] / "config"]
    return [file for room in rooms for file in room.rglob("*.py")]


def _changed_ns(path: Path) -> float:
    """Return the time of a file's last change, in nanoseconds since 1970; infinity if the file is missing."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return math.inf
