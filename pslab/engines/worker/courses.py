"""The gradients of an iteration under a method that makes a push of several gradients, or has state at the worker."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from pslab.engines.experiment.job import Job
from pslab.engines.worker.gradient import Computing
from pslab.policies.rates import Applied
from pslab.tensors.finite import checked_finite
from pslab.tensors.update import methods
from pslab.tensors.update.steps import Iteration


class Courses:
    """A worker's part in a policy's method: it computes the gradients of each iteration.

    Args:
        computing: computes one gradient.
        memory: the method's state at the worker, by name.
        rho: the server's present rho, if the method has one.
    """

    def __init__(
        self, job: Job, worker: int, computing: Computing, memory: Mapping[str, torch.Tensor], rho: torch.Tensor | None
    ) -> None:
        run = job.run
        alone = Applied(run.workers, 1, False, job.push_weight, 0, 0, 0)
        self._job, self._worker, self._computing = job, worker, computing
        self._local = methods.at_worker(job.sync, memory, job.rate.scale(alone), rho, job.inner, job.layout.dtype,
                                        run.workers, job.parts)  # fmt: skip
        self._reached, self._reaches = memory.get(methods.REACHED), 0
        self._fetched = True  # whether new weights have come for the next iteration
        self._counted = 0  # gradients of all workers that the server had when it sent these weights
        self._assigned: range | None = None  # the numbers of the iteration's gradients, if the policy assigns them

    def installed(self, fetched: bool, counted: int, begin: int, steps: int) -> None:
        """Note the facts of a reply: `fetched`, whether it has weights; `counted`, the gradients that the server had;
        `begin` and `steps`, the gradients of the next iteration, if the policy assigns them (else `steps` is 0)."""
        # called for each range: ranges answer at different moments, and the largest number is the newest
        self._fetched, self._counted = fetched, max(self._counted, counted)
        self._assigned = range(begin, begin + steps) if steps else None

    def run(self, iteration: int, buffer: int) -> float:
        """Compute all gradients of an iteration, and write the method's push into a buffer; return the mean loss.

        The weights do not change.
        """
        steps = self._assigned or self._steps(iteration)
        # a single gradient without stored vectors is the push itself
        if len(steps) == 1 and not self._local.keeps:
            return self._computing.gradient(self._batches(steps)[0], buffer)
        self._course = self._course_of(iteration, steps, buffer, self._fetched, self._counted)
        return self._local.run(self._course)

    def follow(self, iteration: int, buffer: int) -> None:
        """Take the first steps of an iteration right after the previous push, before the iteration's weights arrive."""
        self._local.follow(self._course_of(iteration, self._steps(iteration), buffer, True))

    def commit(self) -> None:
        """Store the method's state after `run`; raise NonFinite if the push is not finite."""
        # not in `run`: a successor may compute the iteration again, and must find the vectors as they were before
        if self._local.keeps:
            checked_finite(self._course.gradient)
            self._local.commit(self._course)
            if self._reached is not None:
                self._reached.fill_(self._reaches)

    def _steps(self, iteration: int) -> range:
        """Return the indices of an iteration's gradients in the worker's sequence, including the steps of `follow`."""
        traits = self._job.traits
        begin, overlap = traits.gradients_before(iteration), traits.overlap
        end = begin + traits.unassigned(self._worker, iteration) - overlap
        return range(begin - (overlap if iteration else 0), end)

    def _batches(self, steps: range) -> list[int]:
        rounds = self._computing.reader.batches.rounds
        return [step % rounds for step in steps] if self._job.traits.repeats else list(steps)

    def _course_of(self, iteration: int, steps: range, buffer: int, fetched: bool, counted: int = 0) -> Iteration:
        job, traits, late = self._job, self._job.traits, self._job.traits.overlap if iteration else 0
        # the schedule counts the gradients of all workers: unless the server tells, assume that all are equally fast
        begin = counted if traits.counted else (steps.start + late) * job.run.workers
        counts = [begin + (step - late) * job.run.workers for step in range(len(steps))]
        if late and self._reached is not None:  # steps after a push continue the count of the iteration before
            counts[:late] = [int(self._reached) + step * job.run.workers for step in range(late)]
        self._reaches = counts[-1] + job.run.workers
        rates, computing = [job.learning_rate(count) for count in counts], self._computing
        return Iteration(self._batches(steps), rates, lambda batch: computing.gradient(batch, buffer),
                         computing.weights, computing.buffers[buffer], fetched, traits.pushes(iteration), iteration,
                         late)  # fmt: skip
