"""The gradients of an iteration, where a policy's method makes a push of several, or has a state at the worker."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from pslab.engines.experiment.job import Job
from pslab.engines.worker.gradient import Computing
from pslab.policies.rates import Applied
from pslab.tensors.finite import checked_finite
from pslab.tensors.update import methods
from pslab.tensors.update.steps import Course


class Courses:
    """A worker's courses of steps: its half of the policy's method.

    Args:
        computing: its gradients.
        kept: what the worker keeps from one push to the next.
        rho: where the server states it, if the method has one.
    """

    def __init__(
        self, job: Job, worker: int, computing: Computing, kept: Mapping[str, torch.Tensor], rho: torch.Tensor | None
    ) -> None:
        run = job.run
        alone = Applied(run.workers, 1, False, job.push_weight, 0, 0, 0)
        self._job, self._worker, self._computing = job, worker, computing
        self._local = methods.at_worker(job.sync, kept, job.rate.scale(alone), rho, job.inner, job.layout.dtype,
                                        run.workers, job.parts)  # fmt: skip
        self._reached, self._reaches = kept.get(methods.REACHED), 0
        self._fetched = True  # the weights are new
        self._counted = 0  # gradients of all workers that the server had when the worker read them
        self._assigned: range | None = None  # the worker's own that its iteration is made of, if the policy says so

    def installed(self, fetched: bool, counted: int, begin: int, steps: int) -> None:
        """Take what came with weights: whether there are any, the gradients that the server had of all workers, and the
        worker's own that its iteration is made of, if the policy says so."""
        self._fetched, self._counted = fetched, max(self._counted, counted)
        self._assigned = range(begin, begin + steps) if steps else None

    def run(self, iteration: int, buffer: int) -> float:
        """Compute all gradients of an iteration; return their mean loss.

        In the buffer is what they make, which is to be pushed; the weights stay as they are.
        """
        steps = self._assigned or self._steps(iteration)
        if len(steps) == 1 and not self._local.keeps:
            return self._computing.gradient(self._batches(steps)[0], buffer)
        self._course = self._course_of(iteration, steps, buffer, self._fetched, self._counted)
        return self._local.run(self._course)

    def follow(self, iteration: int, buffer: int) -> None:
        """Take the first steps of an iteration, right after the push before: its weights are not here yet."""
        self._local.follow(self._course_of(iteration, self._steps(iteration), buffer, True))

    def commit(self) -> None:
        """Let the method keep the result of `run`; NonFinite if that is not finite."""
        if self._local.keeps:
            checked_finite(self._course.gradient)
            self._local.commit(self._course)
            if self._reached is not None:
                self._reached.fill_(self._reaches)

    def _steps(self, iteration: int) -> range:
        """The numbers of an iteration's gradients, with the steps right after the push before."""
        traits = self._job.traits
        begin, overlap = traits.gradients_before(iteration), traits.overlap
        end = begin + traits.unassigned(self._worker, iteration) - overlap
        return range(begin - (overlap if iteration else 0), end)

    def _batches(self, steps: range) -> list[int]:
        rounds = self._computing.reader.batches.rounds
        return [step % rounds for step in steps] if self._job.traits.repeats else list(steps)

    def _course_of(self, iteration: int, steps: range, buffer: int, fetched: bool, counted: int = 0) -> Course:
        job, traits, late = self._job, self._job.traits, self._job.traits.overlap if iteration else 0
        begin = counted if traits.counted else (steps.start + late) * job.run.workers
        counts = [begin + (step - late) * job.run.workers for step in range(len(steps))]
        if late and self._reached is not None:  # steps that follow a push go on from where the iteration before came to
            counts[:late] = [int(self._reached) + step * job.run.workers for step in range(late)]
        self._reaches = counts[-1] + job.run.workers
        rates, computing = [job.learning_rate(count) for count in counts], self._computing
        return Course(self._batches(steps), rates, lambda batch: computing.gradient(batch, buffer), computing.weights,
                      computing.buffers[buffer], fetched, traits.pushes(iteration), iteration, late)  # fmt: skip
