"""Exports of results: notebooks that execute the runs again, event files for TensorBoard, and runs in MLflow.

TensorBoard and MLflow need packages that pslab needs for nothing else: pip install 'pslab-workbench[export]'.
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

EXPERIMENT, DIGEST = "pslab", "pslab.digest"  # the experiment in MLflow, and the tag that identifies a run
AT_ONCE = 1000  # most values that MLflow accepts in one call
OLD_STORE = "MLFLOW_ALLOW_FILE_STORE"  # MLflow 3 opens a folder only if this is set


def export(results: Given, to: str, out: Path | str | None = None) -> str:
    """Write results for another tool; return the folder or address to which they were written.

    Args:
        to: "notebook": a notebook for each run, which defines the user's objects and executes the run again.
            "tensorboard": a folder of events for each run; steps are pushes, times are in the cluster's seconds.
            "mlflow": runs of the experiment "pslab"; runs that this experiment has already are not changed.
        out: a folder, by default results/exports/<to>; for mlflow also the address of a store, such as
            sqlite:///mlflow.db.

    Raises:
        ConfigError: the tool is unknown, or its package is not installed. ExportError: `out` is not writable.
    """
    if to not in TOOLS:
        raise ConfigError("to", to, nearest(str(to), TOOLS))
    package, write = TOOLS[to]
    if find_spec(package) is None:
        raise ConfigError("to", to, f"needs the package {package}: {install('export')}")
    target = str(default_results() / "exports" / to if out is None else out)
    try:
        write(unique(results), target)
    except OSError as error:
        raise ExportError(f"{target} cannot be written: {error}; name another folder by out=") from error
    return target


def _tensorboard(results: Sequence[Result], target: str) -> None:
    from torch.utils.tensorboard import SummaryWriter

    for result in results:
        folder = Path(target) / result.digest
        for old in folder.glob("events.out.tfevents.*"):
            old.unlink()  # TensorBoard would show the old events, too
        with SummaryWriter(str(folder)) as writer:
            begun_s = _begun_s(result)
            for row in evaluations(result).to_dict("records"):
                for name, value in _scalars(result, row).items():
                    writer.add_scalar(name, value, row["pushes"], walltime=begun_s + row["seconds"])
            fields = {name: str(value) if value is None else value for name, value in _fields(result).items()}
            writer.add_hparams(fields, {"final": result.final}, run_name=".")


def _mlflow(results: Sequence[Result], target: str) -> None:
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param, RunTag
    from mlflow.exceptions import MlflowException

    folder = "://" not in target
    if folder:
        os.environ.setdefault(OLD_STORE, "true")
    try:
        client = MlflowClient(Path(target).absolute().as_uri() if folder else target)
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
            client.log_batch(
                run,
                params=[Param(name, str(value)) for name, value in _fields(result).items()],
                tags=[RunTag("outcome", result.ended), RunTag("remarks", "; ".join(result.remarks))],
            )
            for first in range(0, len(values), AT_ONCE):
                client.log_batch(run, metrics=values[first : first + AT_ONCE])
            client.log_artifact(run, str(result.path / MANIFEST))
            client.set_terminated(run, end_time=begun_ms + round(1000 * result.seconds))
    except MlflowException as error:
        problem = f"MLflow refuses {target}: {error}"
        raise ExportError(f"{problem}; name another store by out=, such as sqlite:///mlflow.db") from error


def _begun_s(result: Result) -> float:
    """Return a start time, in seconds since 1970, that fits the record's date: the run's end minus its duration."""
    return (result.path / MANIFEST).stat().st_mtime - result.seconds


def _fields(result: Result) -> dict[str, Any]:
    return {name: plain(getattr(result.run, name)) for name in FIELDS}


def _scalars(result: Result, row: Mapping[Any, Any]) -> dict[str, float]:
    named = {metric_of(result.run).name if name == "accuracy" else name: value for name, value in row.items()}
    return {name: float(value) for name, value in named.items() if name != "pushes" and math.isfinite(value)}


def _notebook(results: Sequence[Result], path: str) -> None:
    Path(path).mkdir(parents=True, exist_ok=True)
    for result in results:
        texts = dict(result.manifest.get("source", {}))
        files = {name: texts.pop(name) for name in [*texts] if name not in FIELDS}
        read = {name: statements_of(text) for name, text in texts.items()}
        fields = {name: value for name, value in result.run.changed.items() if name not in read}
        lacking = {name: value for name, value in fields.items() if named_object(value)}
        statements = [f"raise NotImplementedError({f'{name} was {value}, which the record does not contain'!r})"
                      for name, value in lacking.items()]  # fmt: skip
        statements += [statement for sources, _ in read.values() for statement in sources]
        given = [f"{name}={text}" for name, (_, text) in read.items()] + [f"{name}={name}" for name in fields]
        parameters = "\n".join(f"{name} = {value!r}" for name, value in fields.items() if name not in lacking)
        words = "Written by `pslab export`. If `result.digest` differs, the run or one of its objects has changed."
        cells = [_cell(f"# Run {result.digest}\n\n{result.ended}. {words}", kind="markdown")]
        cells += [_cell(f"%%writefile {name}\n{text}") for name, text in files.items()]
        cells += map(_cell, cells_of(dict.fromkeys(statements)))
        cells += [_cell(parameters, tags=["parameters"]),
                  _cell(f"from pslab import Run, run\n\nresult = run(Run({', '.join(given)}))\nresult")]  # fmt: skip
        kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
        notebook = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 4}
        (Path(path) / f"{result.digest}.ipynb").write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")


def _cell(text: str, *, kind: str = "code", **metadata: Any) -> dict[str, Any]:
    outputs: dict[str, Any] = {"execution_count": None, "outputs": []} if kind == "code" else {}
    return {"cell_type": kind, "metadata": metadata, "source": text.splitlines(keepends=True), **outputs}


#: For each tool: the package that it needs, and the function that writes for it.
TOOLS: Mapping[str, tuple[str, Callable[[Sequence[Result], str], None]]] = MappingProxyType(
    {"notebook": ("json", _notebook), "tensorboard": ("tensorboard", _tensorboard), "mlflow": ("mlflow", _mlflow)}
)
