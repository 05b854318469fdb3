"""Results as notebooks that run them, as event files for TensorBoard, and as runs in MLflow.

TensorBoard and MLflow need packages that nothing else here does: pip install 'pslab-workbench[export]'.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pslab.config.metric import metric_of
from pslab.config.parameters import plain
from pslab.config.run import FIELDS, named_object
from pslab.errors import ConfigError, ExportError, nearest
from pslab.lab.records.disk import MANIFEST
from pslab.lab.records.frames import Given, unique
from pslab.lab.records.own_source import cells_of, statements_of
from pslab.lab.records.record import Result, default_results
from pslab.lab.records.results import evaluations
from pslab.version import install

EXPERIMENT, DIGEST = "pslab", "pslab.digest"  # the experiment in MLflow, and the tag that a run is found by
AT_ONCE = 1000  # values that MLflow takes in one call
OLD_STORE = "MLFLOW_ALLOW_FILE_STORE"  # MLflow 3 opens a folder only if this is set


def export(results: Given, to: str, out: Path | str | None = None) -> str:
    """Write results for another tool; where they are now.

    Args:
        to: notebook (one for each run, which runs it: own objects' sources, parameters, the Run), tensorboard (a folder
            of events for each run; steps are pushes, times the cluster's) or mlflow (runs of the experiment "pslab";
            runs that are there already stay).
        out: a folder, by default results/exports/<to>; of mlflow also a store's address, such as sqlite:///mlflow.db.

    Raises:
        ConfigError: an unknown tool, or its package is not installed. ExportError: nothing can be written there.
    """
    if to not in TOOLS:
        raise ConfigError("to", to, nearest(str(to), TOOLS))
    package, write = TOOLS[to]
    if find_spec(package) is None:
        raise ConfigError("to", to, f"needs the package {package}: {install('export')}")
    place = str(default_results() / "exports" / to if out is None else out)
    try:
        write(unique(results), place)
    except OSError as error:
        raise ExportError(f"{place} cannot be written: {error}") from error
    return place


def _tensorboard(results: Sequence[Result], place: str) -> None:
    from torch.utils.tensorboard import SummaryWriter

    for result in results:
        folder = Path(place) / result.digest
        for old in folder.glob("events.out.tfevents.*"):
            old.unlink()  # TensorBoard would show both
        with SummaryWriter(str(folder)) as writer:
            begun_s = _begun_s(result)
            for row in evaluations(result).to_dict("records"):
                for name, value in _scalars(result, row).items():
                    writer.add_scalar(name, value, row["pushes"], walltime=begun_s + row["seconds"])
            fields = {name: str(value) if value is None else value for name, value in _fields(result).items()}
            writer.add_hparams(fields, {"final": result.final}, run_name=".")


def _mlflow(results: Sequence[Result], place: str) -> None:
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param, RunTag
    from mlflow.exceptions import MlflowException

    folder = "://" not in place
    if folder:
        os.environ.setdefault(OLD_STORE, "true")
    try:
        client = MlflowClient(Path(place).absolute().as_uri() if folder else place)
        known = client.get_experiment_by_name(EXPERIMENT)
        number = known.experiment_id if known else client.create_experiment(EXPERIMENT)
        for result in results:
            if client.search_runs([number], f"tags.`{DIGEST}` = '{result.digest}'"):
                continue
            begun_ms = round(1000 * _begun_s(result))
            run = client.create_run(number, begun_ms, {DIGEST: result.digest}, run_name=result.digest).info.run_id
            values = [Metric(name, value, begun_ms + round(1000 * row["seconds"]), row["pushes"])
                      for row in evaluations(result).to_dict("records")
                      for name, value in _scalars(result, row).items()]  # fmt: skip
            client.log_batch(run, params=[Param(name, str(value)) for name, value in _fields(result).items()],
                             tags=[RunTag("outcome", result.ended), RunTag("remarks", "; ".join(result.remarks))])
            for first in range(0, len(values), AT_ONCE):
                client.log_batch(run, metrics=values[first : first + AT_ONCE])
            client.log_artifact(run, str(result.path / MANIFEST))
            client.set_terminated(run, end_time=begun_ms + round(1000 * result.seconds))
    except MlflowException as error:
        raise ExportError(f"MLflow refuses {place}: {error}") from error


def _begun_s(result: Result) -> float:
    """When the run began, had the cluster's seconds been the clock's: tools that show times of day take it for one."""
    return (result.path / MANIFEST).stat().st_mtime - result.seconds


def _fields(result: Result) -> dict[str, Any]:
    return {name: plain(getattr(result.run, name)) for name in FIELDS}


def _scalars(result: Result, row: Mapping[Any, Any]) -> dict[str, float]:
    """The finite numbers of an evaluation, by name; an accuracy by the name of the run's metric."""
    named = {metric_of(result.run).name if name == "accuracy" else name: value for name, value in row.items()}
    return {name: float(value) for name, value in named.items() if name != "pushes" and math.isfinite(value)}


def _notebook(results: Sequence[Result], place: str) -> None:
    Path(place).mkdir(parents=True, exist_ok=True)
    for result in results:
        texts = dict(result.manifest.get("source", {}))
        files = {name: texts.pop(name) for name in [*texts] if name not in FIELDS}
        read = {name: statements_of(text) for name, text in texts.items()}
        fields = {name: value for name, value in result.run.changed.items() if name not in read}
        lacking = {name: value for name, value in fields.items() if named_object(value)}
        statements = [f"raise NotImplementedError({f'{name} was {value}, which the record does not contain'!r})"
                      for name, value in lacking.items()]  # fmt: skip
        statements += [statement for each, _ in read.values() for statement in each]
        given = [f"{name}={text}" for name, (_, text) in read.items()] + [f"{name}={name}" for name in fields]
        parameters = "\n".join(f"{name} = {value!r}" for name, value in fields.items() if name not in lacking)
        words = "Written by `pslab export`. If `result.digest` is another one, an object is not what it was."
        cells = [_cell(f"# Run {result.digest}\n\n{result.ended}. {words}", kind="markdown")]
        cells += [_cell(f"%%writefile {name}\n{text}") for name, text in files.items()]
        cells += map(_cell, cells_of(dict.fromkeys(statements)))
        cells += [_cell(parameters, tags=["parameters"]),
                  _cell(f"from pslab import Run, run\n\nresult = run(Run({', '.join(given)}))\nresult")]  # fmt: skip
        kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
        notebook = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 4}
        (Path(place) / f"{result.digest}.ipynb").write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")


def _cell(text: str, *, kind: str = "code", **metadata: Any) -> dict[str, Any]:
    outputs: dict[str, Any] = {"execution_count": None, "outputs": []} if kind == "code" else {}
    return {"cell_type": kind, "metadata": metadata, "source": text.splitlines(keepends=True), **outputs}


#: The package that a tool needs, and what writes for it.
TOOLS: Mapping[str, tuple[str, Callable[[Sequence[Result], str], None]]] = MappingProxyType(
    {"notebook": ("json", _notebook), "tensorboard": ("tensorboard", _tensorboard), "mlflow": ("mlflow", _mlflow)}
)
