"""Runs that are ended before their time and asked for again: they leave the bits of undisturbed ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pslab.config.run import Run
from pslab.engines.execute import execute
from pslab.engines.experiment.experiment import Interrupted
from pslab.lab.records.record import Result
from pslab.lab.runs.machine import with_checkpoints
from pslab.lab.runs.resolve import resolve
from pslab.lab.runs.run import run

OF_THE_MACHINE = ("preparation_s", "turning_s", "wall_s", "resumed", "sha256", "environment")
#: What of a local run's pushes does not depend on the machine's time, where a barrier sets their order.
UNDER_A_BARRIER = ["worker", "iteration", "range", "version_pulled", "version_applied", "loss", "density", "bytes_up"]


def quiet(wanted: Run, results: Path, **more: Any) -> Result:
    """The result of a run that shows no progress."""
    return run(wanted, results=results, progress=False, **more)


def folder_of(wanted: Run, results: Path) -> Path:
    """The folder of a run's checkpoints."""
    return results / "checkpoints" / wanted.digest


def interrupted(wanted: Run, results: Path, after: int = 2) -> None:
    """The run is ended once so many checkpoints are on disk."""

    def look(news: dict[str, Any]) -> None:
        if len(list(folder_of(wanted, results).glob("*.checkpoint"))) >= after:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted):
        execute(with_checkpoints(resolve(wanted), results), look)


def same(one: Result, other: Result) -> None:
    """Both left the same bits: the weights, and of the tables and facts what does not depend on the machine."""
    assert np.array_equal(one.weights, other.weights)
    if one.run.engine == "local":
        ours, theirs = (each.pushes[UNDER_A_BARRIER].sort_values(UNDER_A_BARRIER[:3]) for each in (one, other))
        assert np.array_equal(ours, theirs)
        ours, theirs = (each.accuracy[["pushes", "accuracy", "loss"]] for each in (one, other))
        assert ours.equals(theirs)
        return
    for name in ("accuracy", "phases", "pushes", "arrivals"):
        assert getattr(one, name).equals(getattr(other, name)), name
    ours, theirs = ({k: v for k, v in each.manifest.items() if k not in OF_THE_MACHINE} for each in (one, other))
    assert ours == theirs


def pushes_resumed(result: Result) -> list[int]:
    """After how many pushes a run went on, each time."""
    return [each["pushes"] for each in result.manifest.get("resumed", [])]
