"""In a run: when a checkpoint is due, what it has, and how the run goes on from it.

What cannot be saved or written ends checkpoints, and not the run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from pslab.engines.experiment.checkpoint.file import pack
from pslab.engines.experiment.checkpoint.flatten import Fixed, flatten
from pslab.engines.experiment.checkpoint.graph import Graph, externals_of, modules_of
from pslab.engines.experiment.checkpoint.rebuild import rebuild
from pslab.engines.experiment.checkpoint.store import CheckpointStore
from pslab.engines.experiment.shared_memory import Arena
from pslab.errors import CheckpointError

SHARE = 0.02  #: of a run's time that checkpoints may take
PERIOD_S = 10.0  # at least, between two of them, and before the first: a short run has none
DISK_BYTE_S = 1e8  # what is assumed before the first one is written
State = dict[str, Any]


class StateSaver:
    """A state and some places (offset, bytes) in an arena as a graph, and back.

    A state is a dictionary of what one process has made for the run, by names of its own. `job` is a Job, of a room
    above; `externals` are what else the run is given anew.
    """

    def __init__(self, job: Any, arena: Arena, places: Sequence[tuple[int, int]], **externals: Any) -> None:
        self._arena, self._places, self._end = arena, places, job.layout.end
        self._externals, self._modules = externals_of(job, arena=arena, **externals), modules_of(job)
        self._constant = Fixed.of(job)

    def memory(self) -> Iterator[tuple[int, memoryview]]:
        """The pieces (offset, content) of the places that have been written to."""
        for offset, size in self._places:
            yield from self._arena.written(offset, size)

    def saved(self, state: State) -> Graph:
        """The graph of a state, and of the places in the arena. CheckpointError: it cannot be saved."""
        self._constant.check()
        memory = [(at, np.frombuffer(piece, np.uint8)) for at, piece in self.memory()]
        return flatten([state, memory], self._externals, self._arena, self._modules)

    def restored(self, graph: Graph, **kinds: type) -> State:
        """The state of a graph; the places in the arena have their content then.

        Raises:
            CheckpointError: it is none of this run; nothing was changed.
        """
        try:
            state, memory = rebuild(graph, self._externals, self._arena, self._modules)
            inside = all(isinstance(content, np.ndarray) and content.dtype == np.uint8 and content.ndim == 1
                         and at >= 0 and at + len(content) <= self._end for at, content in memory)
            known = isinstance(state, dict) and all(isinstance(state.get(name), kinds[name]) for name in kinds)
            if not known or not inside:
                raise CheckpointError("it is the state of something else")
        except (TypeError, ValueError) as error:
            raise CheckpointError(f"it is the state of something else: {error}") from error
        for _, piece in self.memory():
            piece[:] = bytes(len(piece))
        for at, content in memory:
            self._arena.bytes(at, len(content))[:] = content.data
        found: State = state
        return found


class Checkpointing:
    """One run's checkpoints; without a `place` there are none.

    The places in the arena whose content outlasts an event are kept `beside` the state, unless that has all that is
    needed. `say` is called with why a checkpoint was passed over, and, once, why there are none any more.
    """

    def __init__(
        self, place: CheckpointStore | None, job: Any, arena: Arena, say: Callable[[str], None], *, beside: bool = True,
        **externals: Any,
    ) -> None:  # fmt: skip
        self._place, self._say = place, say
        self._states = StateSaver(job, arena, job.layout.live(job.sparse) if beside else (), **externals)
        self._every: int | None = job.run.checkpoint_every
        self.resumed: list[dict[str, Any]] = []  #: from which checkpoints the run went on: pushes, when it was made
        self.kept, self._spent_s = 0, 0.0
        self._expected_s: float | None = None  # for the next one
        self.begin()

    def begin(self, pushes: int = 0, before_s: float = 0.0) -> None:
        """The run starts now, or goes on after so many pushes and seconds."""
        self._begun_s = self._last_s = time.monotonic()
        self._pushes, self.before_s = pushes, before_s

    @property
    def turned_s(self) -> float:
        """Since the run started, without what was lost."""
        return self.before_s + time.monotonic() - self._begun_s

    def newest(self, **kinds: type) -> State | None:
        """The state of the newest whole checkpoint, if there is one, with values of these types by name; the arena has
        what belongs to it then."""
        for facts, graph in () if self._place is None else self._place.newest(self._say):
            try:
                pushes, made, before_s, resumed = (facts[name] for name in ("pushes", "made", "turned_s", "resumed"))
                self.resumed = [*resumed, {"pushes": int(pushes), "made": str(made)}]
                self.begin(int(pushes), float(before_s))
                state = self._states.restored(graph, **kinds)
            except (CheckpointError, KeyError, TypeError, ValueError) as error:
                self._say(f"checkpoint {facts['number']} was passed over: {error}")
                continue
            self._say(f"goes on after {pushes} pushes, from the checkpoint of {made}")
            return state
        self.resumed = []
        self.begin()
        return None

    def due(self, pushes: int) -> bool:
        """Whether a checkpoint is to be made now: by pushes, or as often as all of them take SHARE of the time."""
        if self._place is None:
            return False
        if self._every is not None:
            return pushes >= self._pushes + self._every
        now = time.monotonic()
        if now < self._last_s + PERIOD_S:
            return False
        if self._expected_s is None:
            self._expected_s = sum(len(piece) for _, piece in self._states.memory()) / DISK_BYTE_S
        return self._spent_s + self._expected_s <= SHARE * (now - self._begun_s)

    def keep(self, pushes: int, state: Callable[[], State]) -> None:
        """Make a checkpoint, and write it."""
        if self._place is None:
            return
        begun_s = time.monotonic()
        facts = {"pushes": pushes, "made": time.strftime("%Y-%m-%d %H:%M:%S"), "turned_s": self.turned_s,
                 "resumed": self.resumed, **self._place.facts}  # fmt: skip
        try:
            self._place.write(pack(facts, self._states.saved(state())))
            self.kept += 1
        except CheckpointError as error:
            self._end(str(error))
        except (OSError, MemoryError) as error:
            self._end(f"no more checkpoints: they cannot be written to {self._place.folder}: {error}")
        self._last_s, self._pushes = time.monotonic(), pushes
        self._expected_s = self._last_s - begun_s
        self._spent_s += self._expected_s

    def facts(self) -> dict[str, Any]:
        """What a manifest says."""
        resumed = {"resumed": self.resumed} if self.resumed else {}
        return {**resumed, **({"checkpoints": self.kept, "checkpoints_s": self._spent_s} if self.kept else {})}

    def _end(self, why: str) -> None:
        self._place = None
        self._say(why)
