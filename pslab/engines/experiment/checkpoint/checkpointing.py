"""Decide in a run when a checkpoint on disk is due, write it, and continue from one.

If a checkpoint cannot be written, the run continues without further checkpoints.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from pslab.engines.experiment.checkpoint.store import CheckpointStore
from pslab.errors import CheckpointError

if TYPE_CHECKING:
    import torch

SHARE = 0.02  #: the share of a run's time that checkpoints may take
PERIOD_S = 10.0  # the least time between two checkpoints, and before the first: a short run has none
State = tuple[Mapping[str, Any], Mapping[str, "torch.Tensor"]]  # the facts and the tensors of a checkpoint
T = TypeVar("T")


class Checkpointing:
    """The checkpoints of a run; if `store` is None, none are made.

    Args:
        every: pushes between two checkpoints; None: as many checkpoints as take SHARE of the run's time.
        say: is called with the reason if a checkpoint is skipped, or if no more are written.
    """

    def __init__(
        self, store: CheckpointStore | None, every: int | None, say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._place, self._every, self._say, self._clock = store, every, say, clock
        self.resumed: list[dict[str, Any]] = []  #: per checkpoint from which the run has continued: "pushes", "made"
        self._written, self._spent_s, self._expected_s = 0, 0.0, 0.0  # count, seconds of all, and of the next
        self._begin(0)

    def newest(self, read: Callable[[Mapping[str, Any], Mapping[str, torch.Tensor]], T]) -> T | None:
        """Call `read` with each checkpoint, the newest first, until a call does not raise; return its result, or None
        if there is no such checkpoint."""
        for facts, tensors in () if self._place is None else self._place.newest(self._say):
            try:
                pushes, made, resumed = int(facts["pushes"]), str(facts["made"]), list(facts["resumed"])
                restored = read(facts, tensors)
            except (CheckpointError, KeyError, TypeError, ValueError, RuntimeError) as error:  # the last is torch's
                problem = f"it does not match this run's state: {error!r}"
                self._say(f"checkpoint {facts['number']} was passed over: {problem}")
                continue
            self.resumed = [*resumed, {"pushes": pushes, "made": made}]
            self._begin(pushes)
            self._say(f"goes on after {pushes} pushes, from the checkpoint of {made}")
            return restored
        return None

    def due(self, pushes: int) -> bool:
        """Whether a checkpoint is due after so many pushes."""
        if self._place is None:
            return False
        if self._every is not None:
            return pushes >= self._pushes + self._every
        now = self._clock()
        early = now < self._last_s + PERIOD_S
        return not early and self._spent_s + self._expected_s <= SHARE * (now - self._begun_s)

    def write(self, pushes: int, state: Callable[[], State]) -> None:
        """Write a checkpoint of `state()`; after a failure, report it and write no more."""
        if self._place is None:
            return
        begun_s = self._clock()
        try:
            facts, tensors = state()
            made = time.strftime("%Y-%m-%d %H:%M:%S")
            self._place.write({**facts, "pushes": pushes, "made": made, "resumed": self.resumed}, tensors)
            self._written += 1
        except (OSError, MemoryError) as error:
            self._say(f"no more checkpoints: they cannot be written to {self._place.folder}: {error}")
            self._place = None
        self._last_s, self._pushes = self._clock(), pushes
        self._expected_s = self._last_s - begun_s
        self._spent_s += self._expected_s

    def facts(self) -> dict[str, Any]:
        """Return the facts about checkpoints for the manifest."""
        resumed = {"resumed": self.resumed} if self.resumed else {}
        written = {"checkpoints": self._written, "checkpoints_s": self._spent_s} if self._written else {}
        return {**resumed, **written}

    def _begin(self, pushes: int) -> None:
        self._begun_s = self._last_s = self._clock()
        self._pushes = pushes
