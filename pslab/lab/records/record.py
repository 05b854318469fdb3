"""Records: a folder for each digest, which exists only if it is complete, with a fixed list of files.

results/runs/<digest>/
    manifest.json   the run, how it ended, whether the emulation was kept; written last
    accuracy.csv    pushes, iteration, seconds, accuracy (or the run's other metric), loss, other metrics
    phases.csv      worker, iteration, phase, begin_s, end_s, waits_for, range (-1: all of them)
    pushes.csv      a row for each applied push: versions, staleness, loss, density, bytes pushed and pulled
    arrivals.csv    the messages that the server handled, in order: pushes, pulls, workers that leave and join
    weights.npy     the final weights, flat, if the run keeps them or was interrupted
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
TEXTS = ("phase", "kind")  # columns that are not numbers
REQUIRED = ("outcome", "seconds", "pushes")  # facts that every manifest has
WEIGHTS = "weights.npy"
FILES = ("manifest.json", *(f"{name}.csv" for name in TABLES[:3]))  # old records have no arrivals


@dataclass(frozen=True)
class Result:
    """The result of a finished run; tables and weights are read from its record on first use."""

    run: Run
    path: Path
    manifest: Mapping[str, Any]
    cached: bool = field(default=True, compare=False)  #: whether the record existed before the call

    @property
    def digest(self) -> str:
        """Return the digest of the run, which is the start of its record's name."""
        return str(self.manifest["digest"])

    @property
    def final(self) -> float:
        """Return the last evaluation by the run's metric (an accuracy is 0 to 1); NaN if there is no evaluation."""
        return float(self.accuracy.accuracy.iloc[-1]) if len(self.accuracy) else math.nan

    @property
    def seconds(self) -> float:
        """Return the duration of the training in the cluster's seconds."""
        return float(self.manifest["seconds"])

    @property
    def diverged(self) -> bool:
        """Whether the weights stopped being finite."""
        return bool(self.manifest["outcome"] == "diverged")

    @property
    def emulation_ok(self) -> bool:
        """Whether the machine kept up with the emulated cluster; if not, the result's seconds are meaningless."""
        return emulation_ok(self.manifest)

    @property
    def ended(self) -> str:
        """Return how the run ended, in words: ``"97.12% after 625 pushes, 3.21 s"``."""
        return f"{self._reached} after {self.manifest['pushes']} pushes, {card.times(self.manifest)}"

    @property
    def _reached(self) -> str:
        if self.diverged:
            return "diverged"
        return metric_of(self.run).text(self.final) if len(self.accuracy) else "ended"

    @property
    def remarks(self) -> list[str]:
        """Return remarks on the result, such as that its emulation was not kept, or that a worker was replaced."""
        return card.remarks(self.manifest)

    def model(self) -> Any:
        """Return the trained model in evaluation mode; running statistics are recomputed for the final weights.

        Raises:
            RecordError: the run did not keep its weights (keep_weights=True).
            ConfigError: the model or the data of the run cannot be made here.
        """
        return import_module("pslab.lab.runs.resolve").trained_model(self.run, self.weights)  # loads the engines

    def state_dict(self) -> dict[str, Any]:
        """Return the parameters and buffers of `model()` by name, for torch.save and load_state_dict."""
        return dict(self.model().state_dict())

    def trace(self, out: Path | str | None = None) -> Path:
        """Write a trace of the run in Chrome's format, for ui.perfetto.dev; return the file's path.

        Args:
            out: the file; by default traces/<digest>.json in the results folder.

        Raises:
            ExportError: the disk is full or the folder is not writable.
        """
        events = import_module("pslab.lab.records.trace").trace(self)
        path = self.path.parents[1] / "traces" / f"{self.digest}.json" if out is None else Path(out)
        return write_file(path, json.dumps(events, separators=(",", ":"), ensure_ascii=False).encode())

    def __repr__(self) -> str:
        return f"<Result {self.digest}: {self}>"

    def __str__(self) -> str:  # a result is one cell of a table
        return f"{self._reached}, {self.manifest['pushes']} pushes, {self.seconds:.3g} s" + "".join(
            sign for sign, _, test in card.MARKS if test(self.manifest))  # fmt: skip

    def _repr_html_(self) -> str:
        """Return the result as HTML for a notebook: a card with its curve."""
        fields = {name: textwrap.shorten(str(plain(value)), 200) for name, value in self.run.changed.items()}
        table = self.accuracy.sort_values("pushes")
        curve = card.sparkline(table.pushes.tolist(), table.accuracy.tolist(), metric_of(self.run).text)
        return card.card(self.ended, fields, curve, self.remarks, str(self.path))

    @cached_property
    def accuracy(self) -> pd.DataFrame:
        """Return the evaluations: pushes, iteration (pushes / workers), seconds, accuracy (0 to 1, on test data; or the
        run's metric), loss, and the metric's further values by name."""
        return self._table("accuracy")

    @cached_property
    def phases(self) -> pd.DataFrame:
        """Return the phases of each worker, in seconds from the run's start; waits_for is a worker, or -1 for none."""
        return self._table("phases")

    @cached_property
    def pushes(self) -> pd.DataFrame:
        """Return the applied pushes in order: their versions, staleness, loss, density, seconds and bytes."""
        return self._table("pushes")

    @cached_property
    def arrivals(self) -> pd.DataFrame:
        """Return the messages in the order in which the server handled them; -1 stands for a missing value.

        Columns: kind (push, pull, leave, join), worker, range, iteration, version (of the weights on which a push was
        computed), seconds.

        Raises:
            RecordError: an older version of pslab made the record, without arrivals.
        """
        if "arrivals.csv" not in self.manifest["sha256"]:
            raise RecordError(f"{self.path} has no table of arrivals: execute the run again with another results=")
        return self._table("arrivals")

    @cached_property
    def weights(self) -> np.ndarray:
        """Return the final weights of all trainable parameters, as one vector in the order of `model.parameters()`.

        Raises:
            RecordError: the run did not keep its weights (keep_weights=True).
        """
        if WEIGHTS not in self.manifest["sha256"]:
            problem = "the manifest has only their checksum: execute the run with keep_weights=True"
            raise RecordError(f"the weights of {self.path} were not kept; {problem}")
        content = read_file(self.path, WEIGHTS, self.manifest)
        try:
            weights: np.ndarray = np.load(content, allow_pickle=False)
        except (ValueError, EOFError, MemoryError, OverflowError) as error:
            raise DamagedRecord(self.path, f"{self.path / WEIGHTS} cannot be read ({error})") from error
        if not isinstance(weights, np.ndarray) or weights.ndim != 1 or weights.dtype.kind != "f":
            raise DamagedRecord(self.path, f"{self.path / WEIGHTS} is not a vector of floating-point numbers")
        return weights

    def _table(self, name: str) -> pd.DataFrame:
        table = read_table(self.path, name, self.manifest)
        return table if len(table) else table.astype({column: float for column in table if column not in TEXTS})


def default_results() -> Path:
    """Return $PSLAB_RESULTS; or results/ in the nearest parent folder with notebooks/batch.yaml, or else in `.`."""
    if named := os.environ.get("PSLAB_RESULTS"):
        return Path(named)
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / "notebooks" / "batch.yaml").is_file():
            return folder / "results"
    return here / "results"


def emulation_ok(manifest: Mapping[str, Any]) -> bool:
    """Whether the machine kept up with the emulated cluster, from a run's manifest."""
    return manifest.get("emulation_ok") is not False


def find(run: Run, results: Path) -> Result | None:
    """Return the recorded result of a run; None if there is no record, or if the digest cannot identify the run.

    Raises:
        DamagedRecord: `read_facts` refuses the record, a table was changed, or the record is of another run.
    """
    folder = results / "runs" / run.digest
    if run.unknown or not os.path.lexists(folder):
        return None
    manifest = read_facts(folder)
    if manifest.get("digest") != run.digest or manifest.get("run") != json.loads(json.dumps(run.plain())):
        raise DamagedRecord(folder, f"{folder} is the record of another run than its name says")
    check_sums(folder, manifest, manifest["sha256"].keys() - {WEIGHTS})  # weights are large, and seldom read
    return Result(run, folder, manifest)


def read_facts(folder: Path) -> dict[str, Any]:
    """Return the manifest of a run's record.

    Raises:
        DamagedRecord: a required fact is missing, or `read_manifest` refuses the record.
    """
    manifest = read_manifest(folder, FILES)
    if missing := [name for name in REQUIRED if name not in manifest]:
        problem = f"{folder / 'manifest.json'} is not the manifest of a run: it has no {', '.join(missing)}"
        raise DamagedRecord(folder, problem)
    return manifest


def environment(device: str = "cpu") -> dict[str, Any]:
    """Return the versions of software and the properties of this machine, for a manifest.

    The last bits of results depend on torch's instructions (`capability`) and on the library that multiplies matrices
    (`products`); on a GPU, also on its model, driver and CUDA. GPU operations without a deterministic form give other
    last bits each time (see pslab.tensors.device).
    """
    torch: Any = sys.modules.get("torch")
    facts = {"pslab": __version__, "torch": version("torch"), "python": platform.python_version(),
             "machine": platform.machine(), "cores": os.cpu_count(), "products": products.here(),
             "capability": None if torch is None else torch.backends.cpu.get_cpu_capability()}  # fmt: skip
    if device != "cpu":
        facts |= {"gpu": gpus.kinds(), "driver": gpus.version(), "deterministic": "where torch has such operations",
                  "cuda": None if torch is None else torch.version.cuda}  # fmt: skip
    return facts
