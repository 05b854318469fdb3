"""The weights at a server, for runs whose pushes or replies are frames of entries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from pslab.engines.experiment.job import Job
from pslab.engines.experiment.layout import in_turn
from pslab.engines.experiment.shared_memory import Arena
from pslab.engines.experiment.wire import WHOLE
from pslab.engines.server.shard import TensorShard
from pslab.errors import FrameError, WorkerFailed
from pslab.protocol.messages import Pull, Push
from pslab.protocol.server import Reply, Step
from pslab.tensors.compression import frame
from pslab.tensors.compression.bits import prepare
from pslab.tensors.compression.rule import Parts
from pslab.tensors.entries import Entries
from pslab.tensors.update.part import Gradient
from pslab.tensors.update.states import State, fitting
from pslab.tensors.workload.keyspace import KeyRange


@contextmanager
def refusing(message: Push | Pull, what: str) -> Iterator[None]:
    """Raise a frame's error as a WorkerFailed that names the worker whose message has this frame."""
    try:
        yield
    except FrameError as error:
        problem = f"its {what} was refused: {error}"
        raise WorkerFailed(f"worker {message.worker}", message.iteration, problem) from error


class FramedShard(TensorShard):
    """Weights with compressed pushes, if the run has a rule for them, and with replies that are plain arrays."""

    def __init__(self, job: Job, arena: Arena) -> None:
        super().__init__(job, arena)
        # per range: values of the rule at the server, which reading a push may change and replies may contain (`tells`)
        self._served = (
            []
            if job.compression is None
            else [torch.zeros(job.compression.served(index), dtype=job.layout.dtype) for index in range(len(job.parts))]
        )
        if job.positioned:
            prepare(job.layout.dtype, selects=job.downlink is not None)  # takes seconds, so before the run is timed

    def state(self, server: int) -> State:
        served = {f"served {index}": self._served[index] for index in self._ranges(server) if self._served}
        return super().state(server) | served

    def restore(self, server: int, state: State) -> None:
        super().restore(server, state)
        for index in self._ranges(server) if self._served else ():
            self._served[index].copy_(fitting(state[f"served {index}"], self._served[index]))

    def _read(self, step: Step, pushes: Sequence[Push]) -> Sequence[Gradient]:
        rules = self._job.compression
        if not pushes or rules is None or rules.rule.combine is None:
            return super()._read(step, pushes)
        # the rule replaces the mean, for instance by a vote: it needs the parts of all pushes, not their gradients
        pieces = [self._pieces(push) for push in pushes]
        # the error may come from any of them: the message names the first worker, and says so
        with refusing(pushes[0], "frame, or another frame of the same step,"):
            return [rules.combined(step.range, pieces, self._served[step.range], **self._whose(pushes[0]))]

    def _gradient(self, push: Push) -> Gradient:
        rules = self._job.compression
        if rules is None or push.payload.size_bytes == WHOLE:
            return in_turn(self._gradients[push.worker], push.iteration)
        pieces = self._pieces(push)
        with refusing(push, "frame"):
            return rules.read(push.range, pieces, self._served[push.range], **self._whose(push))

    def _pieces(self, push: Push) -> list[Parts]:
        # a message has no address: layout, worker, range and iteration give it
        offset = in_turn(self._job.layout.up[push.worker], push.iteration) + self._job.layout.frames[push.range][0]
        with refusing(push, "frame"):
            return frame.read(self._arena.bytes(offset, push.payload.size_bytes))

    def _whose(self, push: Push) -> dict[str, int]:
        # as `FramedProducer._whose` at the worker: random rules draw the same numbers again by these
        step = self._job.traits.gradients_before(push.iteration)
        return {"worker": push.worker, "step": step, "turn": push.iteration}

    def _room(self, pull: Pull) -> memoryview:
        offset, room = self._job.layout.frames[pull.range]
        return self._arena.bytes(in_turn(self._job.layout.down[pull.worker], pull.iteration) + offset, room)


class AnsweringShard(FramedShard):
    """Weights whose replies are frames: of changed weights, of a range of keys, or with numbers of the compression."""

    _encoded: tuple[Any, bytes] | None = None  # the last reply: (its key, its bytes)

    def _answer(self, pull: Pull, version: int) -> int:
        index, weights, rules = pull.range, self._store.weights, self._job.compression
        if self._job.run.pull == "range":
            keys = KeyRange(pull.payload.start, pull.payload.stop)
            return self._write(pull, (index, keys, version), lambda: self._of_keys(index, keys))
        if rules is not None and rules.rule.tells:
            part, numbers = self._job.parts[index], self._served[index]
            return self._write(pull, (index, version), lambda: [torch.cat(part.views(weights)), numbers])
        entries = self._store.changed(index, pull.version)
        # nearly all have changed: a plain array is about as short, and needs no encoding
        if entries is None:
            return self._copy(pull, weights)
        return self._write(pull, entries, lambda: frame.parts_of(entries))

    def _of_keys(self, index: int, keys: KeyRange) -> Parts:
        slices = self._job.keyspace.slices(keys)
        indices = np.concatenate([np.arange(s.start, s.stop) for s in slices])
        values = torch.cat([self._store.weights[s] for s in slices]).numpy()
        return frame.parts_of(self._job.parts[index].inside(indices, values))

    def _write(self, pull: Pull, key: Any, parts: Callable[[], Parts]) -> int:
        """Write a reply as a frame and return its bytes; the workers of a round get equal frames, encoded once."""
        room = self._room(pull)
        # changed entries are compared by identity: the store returns one object to the workers of a round, and to
        # compare their arrays would cost as much as to encode them
        if self._encoded is None or (self._encoded[0] is not key and (
                isinstance(key, Entries) or self._encoded[0] != key)):  # fmt: skip
            size = frame.write(room, [parts()])
            self._encoded = key, bytes(room[:size])  # a copy: the room is the worker's, and is written again
            return size
        answer = self._encoded[1]
        room[: len(answer)] = answer
        return len(answer)


class DownlinkShard(FramedShard):
    """Weights whose replies are compressed differences."""

    def __init__(self, job: Job, arena: Arena) -> None:
        super().__init__(job, arena)
        from pslab.tensors.compression.downlink import HeldWeights

        assert job.downlink is not None
        # in rounds all workers receive the same replies, so that one copy stands for all of them
        workers = 0 if job.traits.rounds else job.run.workers
        made = job.downlink.compression(job)
        self._copies = HeldWeights(made, job.parts, self.weights, workers, job.traits.rotation)

    def _owners(self, server: int) -> dict[str, Any]:
        return {**super()._owners(server), "downlink": self._copies}

    def leave(self, worker: int) -> None:
        super().leave(worker)
        self._copies.leave(worker)

    def lay(self, reply: Reply) -> int:
        pull = reply.pull
        # the copies note every reply, also an empty one, or one whose weights go out whole
        if not (size_bytes := self._copies.lay(reply, self._store.weights, self._room(pull))):
            return super().lay(reply)
        if self._changes:
            self._changes[pull.range].answered(pull)
        return size_bytes

    def _answer(self, pull: Pull, version: int) -> int:
        # the copy, not the weights: the next difference will start from it
        return self._copy(pull, self._copies.of(pull.worker))
