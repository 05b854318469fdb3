"""Records: one directory per digest, with a fixed list of files, complete or absent.

    results/runs/<digest>/
        manifest.json   what ran, how it ended, whether the emulation was kept; written last
        accuracy.csv    pushes, iteration, seconds, accuracy (or what else the run's metric is), loss, other metrics
        phases.csv      worker, iteration, phase, begin_s, end_s, waits_for, range (-1: all of them)
        pushes.csv      one row per applied push: versions, staleness, loss, density, bytes each way
        arrivals.csv    what the server was handed, in order: pushes, pulls, workers that leave and join
        weights.npy     the final weights, flat: where the run keeps them, or was interrupted
"""

from __future__ import annotations

import json
import math
import os
import platform
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pslab.config import gpus, products
from pslab.config.metric import metric_of
from pslab.config.parameters import plain
from pslab.config.run import Run
from pslab.errors import DamagedRecord, RecordError
from pslab.lab.records import card
from pslab.lab.records.disk import check_sums, read_file, read_manifest, read_table, write_file
from pslab.version import __version__

TABLES = ("accuracy", "phases", "pushes", "arrivals")
TEXTS = ("phase", "kind")  # the columns that are no numbers
REQUIRED = ("outcome", "seconds", "pushes")  # of a manifest
WEIGHTS = "weights.npy"
FILES = ("manifest.json", *(f"{name}.csv" for name in TABLES[:3]))  # records of before have no arrivals


@dataclass(frozen=True)
class Result:
    """A finished run, read from its directory."""

    run: Run
    path: Path
    manifest: Mapping[str, Any]
    cached: bool = field(default=True, compare=False)  #: whether it was recorded before it was asked for

    @property
    def digest(self) -> str:
        """The name of the record."""
        return str(self.manifest["digest"])

    @property
    def final(self) -> float:
        """The last evaluation by the run's metric (an accuracy is 0 to 1); NaN if it was not finite."""
        return float(self.accuracy.accuracy.iloc[-1]) if len(self.accuracy) else math.nan

    @property
    def seconds(self) -> float:
        """The duration of the training, in the cluster's seconds."""
        return float(self.manifest["seconds"])

    @property
    def diverged(self) -> bool:
        """Whether the weights stopped being finite."""
        return bool(self.manifest["outcome"] == "diverged")

    @property
    def emulation_ok(self) -> bool:
        """Whether the machine kept up with the cluster that it emulated; if not, its seconds mean nothing."""
        return emulation_ok(self.manifest)

    @property
    def ended(self) -> str:
        """How it ended, in words: ``"97.12% after 625 pushes, 3.21 s"``."""
        return f"{self._reached} after {self.manifest['pushes']} pushes, {card.times(self.manifest)}"

    @property
    def _reached(self) -> str:
        if self.diverged:
            return "diverged"
        return metric_of(self.run).text(self.final) if len(self.accuracy) else "ended"

    @property
    def remarks(self) -> list[str]:
        """The remarks on it, a sentence each: that its emulation was not kept, or from what it recovered."""
        return card.remarks(self.manifest)

    def model(self) -> Any:
        """The trained model (an nn.Module, in evaluation mode, with its frozen weights, and running statistics for the
        final weights), of a run with keep_weights=True.

        Raises:
            RecordError: the weights were not kept.
            ConfigError: the model or the data of the run cannot be made here.
        """
        return import_module("pslab.lab.runs.resolve").trained_model(self.run, self.weights)  # with engines

    def state_dict(self) -> dict[str, Any]:
        """The trained model's parameters and buffers by name, for torch.save and load_state_dict; see `model`."""
        return dict(self.model().state_dict())

    def trace(self, out: Path | str | None = None) -> Path:
        """Write the run in Chrome's trace format, for ui.perfetto.dev: a file, by default traces/<digest>.json in the
        results; the file's path is returned.

        Raises:
            ExportError: the disk is full or the folder cannot be written to.
        """
        events = import_module("pslab.lab.records.trace").trace(self)
        path = self.path.parents[1] / "traces" / f"{self.digest}.json" if out is None else Path(out)
        return write_file(path, json.dumps(events, separators=(",", ":"), ensure_ascii=False).encode())

    def __repr__(self) -> str:
        return f"<Result {self.digest}: {self}>"

    def __str__(self) -> str:  # a cell of a table
        return f"{self._reached}, {self.manifest['pushes']} pushes, {self.seconds:.3g} s" + "".join(
            sign for sign, _, test in card.MARKS if test(self.manifest))  # fmt: skip

    def _repr_html_(self) -> str:
        """A card for a notebook."""
        fields = {name: textwrap.shorten(str(plain(value)), 200) for name, value in self.run.changed.items()}
        table = self.accuracy.sort_values("pushes")
        curve = card.sparkline(table.pushes.tolist(), table.accuracy.tolist(), metric_of(self.run).text)
        return card.card(self.ended, fields, curve, self.remarks, str(self.path))

    @cached_property
    def accuracy(self) -> pd.DataFrame:
        """Test accuracy (0 to 1; or the metric), loss and the metric's other values, by name, against pushes,
        iterations (pushes / workers) and seconds."""
        return self._table("accuracy")

    @cached_property
    def phases(self) -> pd.DataFrame:
        """The phases of each worker: seconds from the start of the run; waits_for is a worker or -1."""
        return self._table("phases")

    @cached_property
    def pushes(self) -> pd.DataFrame:
        """Each applied push, in the order of application."""
        return self._table("pushes")

    @cached_property
    def arrivals(self) -> pd.DataFrame:
        """The arrivals at the server, in the order in which it handled them: kind (push, pull, leave, join), worker,
        range, iteration, version (of a push, that it was computed on), seconds; -1 where there is none.

        Raises:
            RecordError: the record is from before arrivals were recorded, and what `pushes` raises.
        """
        if "arrivals.csv" not in self.manifest["sha256"]:
            raise RecordError(f"{self.path} was recorded before arrivals were: run it again, elsewhere, to have them")
        return self._table("arrivals")

    @cached_property
    def weights(self) -> np.ndarray:
        """The final weights, flat: all trainable parameters in the order of `model.parameters()`, as
        torch.nn.utils.parameters_to_vector has them; frozen ones and buffers are in `model()` alone.

        Raises:
            RecordError: they were not kept.
        """
        if WEIGHTS not in self.manifest["sha256"]:
            problem = "only their SHA-256 is in its manifest: run it with keep_weights=True"
            raise RecordError(f"the weights of {self.path} were not kept; {problem}")
        content = read_file(self.path, WEIGHTS, self.manifest)
        try:
            weights: np.ndarray = np.load(content, allow_pickle=False)
        except (ValueError, EOFError, MemoryError, OverflowError) as error:
            raise DamagedRecord(self.path, f"{self.path / WEIGHTS} cannot be read ({error})") from error
        if not isinstance(weights, np.ndarray) or weights.ndim != 1 or weights.dtype.kind != "f":
            raise DamagedRecord(self.path, f"{self.path / WEIGHTS} is no vector of floating-point numbers")
        return weights

    def _table(self, name: str) -> pd.DataFrame:
        table = read_table(self.path, name, self.manifest)
        return table if len(table) else table.astype({column: float for column in table if column not in TEXTS})


def default_results() -> Path:
    """The environment's PSLAB_RESULTS, or results/ beside the notebooks/ that the working directory is in or beside."""
    if named := os.environ.get("PSLAB_RESULTS"):
        return Path(named)
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / "notebooks" / "batch.yaml").is_file():
            return folder / "results"
    return here / "results"


def emulation_ok(manifest: Mapping[str, Any]) -> bool:
    """Whether the machine kept up with the cluster that it emulated; if not, the record's seconds mean nothing."""
    return manifest.get("emulation_ok") is not False


def find(run: Run, results: Path) -> Result | None:
    """The record of a run, if there is one and the digest says everything about the run.

    Raises:
        DamagedRecord: what `read_facts` raises, a table that was changed, or another run's record.
    """
    place = results / "runs" / run.digest
    if run.unknown or not os.path.lexists(place):
        return None
    manifest = read_facts(place)
    if manifest.get("digest") != run.digest or manifest.get("run") != json.loads(json.dumps(run.plain())):
        raise DamagedRecord(place, f"{place} holds another run than its name says")
    check_sums(place, manifest, manifest["sha256"].keys() - {WEIGHTS})  # they are large, and seldom read
    return Result(run, place, manifest)


def read_facts(place: Path) -> dict[str, Any]:
    """The manifest of a run's record.

    Raises:
        DamagedRecord: a fact is missing that each has, or what `read_manifest` raises.
    """
    manifest = read_manifest(place, FILES)
    if missing := [name for name in REQUIRED if name not in manifest]:
        problem = f"{place / 'manifest.json'} is no manifest of a run: it has no {', '.join(missing)}"
        raise DamagedRecord(place, problem)
    return manifest


def environment(device: str = "cpu") -> dict[str, Any]:
    """Versions and machine of a run. torch chooses its instructions, and so the last bits, by `capability`,
    and `products` names the library that multiplies matrices; on a GPU they hang on its kind, its driver and the
    libraries that torch brings. What has no deterministic form there has other last bits each time (see
    pslab.tensors.device)."""
    torch: Any = sys.modules.get("torch")
    found = {"pslab": __version__, "torch": version("torch"), "python": platform.python_version(),
             "machine": platform.machine(), "cores": os.cpu_count(), "products": products.here(),
             "capability": None if torch is None else torch.backends.cpu.get_cpu_capability()}  # fmt: skip
    if device != "cpu":
        found |= {"gpu": gpus.kinds(), "driver": gpus.version(), "deterministic": "where torch has such operations",
                  "cuda": None if torch is None else torch.version.cuda}  # fmt: skip
    return found
