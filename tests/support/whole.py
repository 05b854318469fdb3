"""A virtual run whole in this process, that may be ended at any checkpoint as if its process had been killed."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from pslab.config.run import Run
from pslab.engines.experiment.checkpoint import checkpointing
from pslab.engines.experiment.checkpoint.store import CheckpointStore
from pslab.engines.experiment.experiment import TABLES, Outcome
from pslab.engines.experiment.job import SharedDataset
from pslab.engines.experiment.shared_memory import Arena
from pslab.engines.processes.channel import Report, await_report
from pslab.engines.processes.child import ProcessContext
from pslab.engines.virtual.parallel_runs import WholeRun, outcome_of
from pslab.lab.runs.resolve import resolve
from pslab.tensors.device import one_thread

TIMES = ("preparation_s", "turning_s", "wall_s", "checkpoints", "checkpoints_s", "resumed")


class Killed(BaseException):
    """The process is gone."""


class Line:
    """The pipe to a parent, which keeps what it gets."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def send_bytes(self, message: bytes) -> None:
        self.sent.append(message)

    def recv_bytes(self) -> bytes:
        return self.sent.pop(0)

    def poll(self) -> bool:
        return False

    def reports(self) -> list[Report]:
        return [await_report(self) for _ in range(len(self.sent))]  # type: ignore[arg-type]


def conduct(run: Run, folder: Path | None = None, facts: dict[str, Any] | None = None) -> tuple[Outcome, list[str]]:
    """What came of a run, and what was said of its checkpoints."""
    experiment = resolve(run)
    place = None if folder is None else CheckpointStore(folder, facts or {})
    experiment = dataclasses.replace(experiment, checkpoints=place)
    line, data = Line(), Arena()
    context = ProcessContext(0, line, [], Arena(), data, Arena(), (Arena(), Arena()))  # type: ignore[arg-type]
    try:
        with one_thread():
            WholeRun(context, experiment, SharedDataset.store(data, experiment.dataset)).conduct()
    finally:
        for arena in (context.arena, data, context.snapshots, *context.ledger):
            arena.close()
    reports = line.reports()
    said = [found.body["checkpoint"] for found in reports if found.kind == "news" and "checkpoint" in found.body]
    return outcome_of(experiment, [found for found in reports if found.kind != "news"]), said


def in_process(run: Run) -> Outcome:
    """What a virtual run leaves that nobody watches, without the processes of hosts."""
    return conduct(run)[0]


@contextlib.contextmanager
def ended_after(monkeypatch: pytest.MonkeyPatch, checkpoints: int, error: type[BaseException]) -> Iterator[list[int]]:
    """A run is ended by this error once so many checkpoints have been made; after how many pushes each was."""
    keep, made = checkpointing.Checkpointing.keep, list[int]()

    def kept(self: Any, pushes: int, state: Any) -> None:
        keep(self, pushes, state)
        made.append(pushes)
        if len(made) == checkpoints:
            raise error

    with monkeypatch.context() as patched:
        patched.setattr(checkpointing.Checkpointing, "keep", kept)
        yield made


def killed(monkeypatch: pytest.MonkeyPatch, run: Run, folder: Path, after: int) -> None:
    """The run's process is killed after so many checkpoints."""
    with ended_after(monkeypatch, after, Killed) as made:
        try:
            _, said = conduct(run, folder)
        except Killed:
            return
    raise AssertionError(f"it came to its end with {len(made)} checkpoints: {said}")


def same(one: Outcome, other: Outcome, without: Sequence[str] = ()) -> None:
    """Both left the same bits: every table, the weights, and the facts that do not depend on the machine."""
    for name in TABLES:
        if name in without:
            continue
        assert getattr(one, name).tobytes() == getattr(other, name).tobytes(), name
    ours, theirs = ({k: repr(v) for k, v in each.facts.items() if k not in TIMES} for each in (one, other))
    assert ours == theirs
