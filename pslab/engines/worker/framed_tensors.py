"""Workers whose pushes, or whose pulled weights, are frames of entries."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch

from pslab.engines.experiment.job import Job
from pslab.engines.experiment.layout import in_turn
from pslab.engines.experiment.wire import WHOLE, PushInfo
from pslab.engines.worker.tensors import Producer, Pulled
from pslab.tensors.compression import frame as frames
from pslab.tensors.compression.bits import prepare
from pslab.tensors.compression.rule import Parts
from pslab.tensors.entries import Entries
from pslab.tensors.update.part import Part
from pslab.tensors.workload.data import rounds


class FramedProducer(Producer):
    """The tensors of a worker that compresses pushes, if the run has a rule, and decodes frames of pulled weights."""

    def __init__(self, job: Job, *given: Any, **named: Any) -> None:
        super().__init__(job, *given, **named)
        layout = job.layout
        room = layout.frames[-1][0] + layout.frames[-1][1]
        self._up = [self._arena.bytes(at, room) for at in layout.up[self._worker]]
        self._down = [self._arena.bytes(at, room) for at in layout.down[self._worker]]
        self._downlink = None if job.downlink is None else job.downlink.compression(job)
        # rules that warm up count in epochs
        self._pass_iterations = max(1, rounds(job.examples, job.run.workers, job.run.batch_size))
        self._pushes = dict[int, tuple[list[Parts], int]]()  # range: its compressed push, until it is written

    def warm_up(self) -> None:
        job, here = self._job, not self._device.separate  # whether gradients are compressed on the CPU
        if job.positioned or (here and job.sends_frames):
            prepare(job.layout.dtype, selects=here)  # takes seconds
        super().warm_up()

    def _encode(
        self, iteration: int, loss: float, ranges: Sequence[int], made: Sequence[int], span: slice
    ) -> tuple[list[PushInfo], float]:
        if (rules := self._job.compression) is None:
            return super()._encode(iteration, loss, ranges, made, span)
        buffer = self._buffer(iteration)
        # a layered worker's GPU compresses all ranges at its first layer: later layers find theirs in `_pushes`
        if made:
            whole = rules.rule.before(self._gradients[buffer], self._job.run.workers)
            pushes = rules.pushes(made, whole, self._memories, **self._whose(iteration))
            self._pushes = dict(zip(made, pushes, strict=True))
        # only writing counts as encoding: selection was done for all ranges
        selected_s, payloads = time.monotonic(), []
        for index in ranges:
            pieces, count = self._pushes.pop(index)
            offset, room = self._job.layout.frames[index]
            size = frames.write(self._up[buffer][offset : offset + room], pieces)
            payloads.append(PushInfo(size, count, loss))
        return payloads, selected_s

    def _whose(self, iteration: int) -> dict[str, Any]:
        step = self._job.traits.gradients_before(iteration)
        return {"worker": self._worker, "step": step, "turn": iteration, "epoch": step / self._pass_iterations}

    def _sent(self, index: int, iteration: int, size_bytes: int) -> Entries:
        """Return a push of this worker, which is still in its buffer, as the server reads it."""
        made, (offset, _) = self._job.compression, self._job.layout.frames[index]
        assert made is not None
        # read from the frame, not from the gradient: quantized values are applied as the server applies them
        frame = self._up[self._buffer(iteration)][offset : offset + size_bytes]
        return made.read(index, frames.read(frame), made.told(index, self._memories), **self._whose(iteration))

    def _read_own(self, index: int, iteration: int, rate: float, size_bytes: int) -> None:
        if size_bytes == WHOLE:
            super()._read_own(index, iteration, rate, size_bytes)
        else:
            self._job.parts[index].add(self._shared_weights, self._sent(index, iteration, size_bytes), -rate)

    def _put(self, part: Part, pulled: Pulled) -> None:
        if pulled.size_bytes == WHOLE:
            return super()._put(part, pulled)
        index, iteration, size_bytes, *_ = pulled
        (offset, _), made = self._job.layout.frames[index], self._job.compression
        parts = frames.read(in_turn(self._down, iteration)[offset : offset + size_bytes])
        if self._downlink is not None:
            # the difference is added here as it was added to the server's copy, so both stay equal to the bit
            part.add(self._held, self._downlink.read(index, parts, torch.empty(0), step=iteration), 1.0)
        elif made is not None and made.rule.tells:
            weights, numbers = (values.view(self._job.layout.dtype) for values in parts[0])
            made.told(index, self._memories).copy_(self._device.to(numbers))
            part.put(self._held, Entries(part.size, None, weights.numpy()))
        else:
            self._put_entries(index, frames.entries_of(parts[0], part.size, self._job.layout.dtype))

    def _put_entries(self, index: int, entries: Entries) -> None:
        self._job.parts[index].put(self._held, entries)
