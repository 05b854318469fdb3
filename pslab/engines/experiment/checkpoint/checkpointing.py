"""In a run: when a checkpoint on disk is due, and how the run goes on from one.

A checkpoint that cannot be written ends checkpoints, and not the run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from pslab.engines.experiment.checkpoint.store import CheckpointStore
from pslab.errors import CheckpointError

if TYPE_CHECKING:
    import torch

SHARE = 0.02  #: of a run's time that checkpoints may take
PERIOD_S = 10.0  # at least, between two of them, and before the first: a short run has none
State = tuple[Mapping[str, Any], Mapping[str, "torch.Tensor"]]  # the facts and the tensors of a checkpoint
T = TypeVar("T")


class Checkpointing:
    """The checkpoints of a run; without a `place` there are none.

    Args:
        every: pushes between two of them; None: as often as all of them take SHARE of the run's time.
        say: called with the reason why a checkpoint was passed over, or why there are none any more.
    """

    def __init__(
        self, place: CheckpointStore | None, every: int | None, say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._place, self._every, self._say, self._clock = place, every, say, clock
        self.resumed: list[dict[str, Any]] = []  #: the checkpoints that the run went on from: pushes, when it was made
        self._written, self._spent_s, self._expected_s = 0, 0.0, 0.0  # the last: for the next one
        self._begin(0)

    def newest(self, read: Callable[[Mapping[str, Any], Mapping[str, torch.Tensor]], T]) -> T | None:
        """Return what `read` makes of the newest checkpoint that it accepts: it raises for others, which are passed
        over."""
        for facts, tensors in () if self._place is None else self._place.newest(self._say):
            try:
                pushes, made, resumed = int(facts["pushes"]), str(facts["made"]), list(facts["resumed"])
                found = read(facts, tensors)
            except (CheckpointError, KeyError, TypeError, ValueError, RuntimeError) as error:  # the last one is torch's
                self._say(f"checkpoint {facts['number']} was passed over: it is the state of something else: {error!r}")
                continue
            self.resumed = [*resumed, {"pushes": pushes, "made": made}]
            self._begin(pushes)
            self._say(f"goes on after {pushes} pushes, from the checkpoint of {made}")
            return found
        return None

    def due(self, pushes: int) -> bool:
        """Whether a checkpoint is to be written now."""
        if self._place is None:
            return False
        if self._every is not None:
            return pushes >= self._pushes + self._every
        now = self._clock()
        early = now < self._last_s + PERIOD_S
        return not early and self._spent_s + self._expected_s <= SHARE * (now - self._begun_s)

    def write(self, pushes: int, state: Callable[[], State]) -> None:
        """Write a checkpoint of the state after so many pushes."""
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
        """Return the facts for the manifest."""
        resumed = {"resumed": self.resumed} if self.resumed else {}
        written = {"checkpoints": self._written, "checkpoints_s": self._spent_s} if self._written else {}
        return {**resumed, **written}

    def _begin(self, pushes: int) -> None:
        self._begun_s = self._last_s = self._clock()
        self._pushes = pushes
