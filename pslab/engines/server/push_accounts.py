"""Accounts of a run's pushes at a server, without tensors: staleness, learning rates, dropped pushes, the ledger."""

from __future__ import annotations

from collections.abc import Collection

from pslab.engines.experiment.job import Job
from pslab.engines.server.ledger import Ledger
from pslab.errors import ProtocolError
from pslab.policies.rates import Applied
from pslab.protocol.messages import Push
from pslab.protocol.server import Discard, Reply, Step


class PushAccounts:
    """Accounts of one run: `start_step` and `count` when a step is decided, `applied_at` when it has been applied."""

    def __init__(self, job: Job, ledger: Ledger) -> None:
        self._job, self.ledger = job, ledger
        present = [worker for worker in range(job.run.workers) if job.cluster.present(worker)]
        # per range: (worker, turn) -> the version on which its gradient is computed
        self._computing = [dict.fromkeys(((worker, 0) for worker in present), 0) for _ in job.parts]
        self._ranges = len(job.parts)
        self._missing: dict[tuple[int, int], int] = {}  # a push applied on some ranges: the number of the others
        self.applied = 0  #: gradients in pushes for which a step is decided on every range
        self.dropped = self.dropped_bytes = 0  #: pushes that the policy dropped, counted per range

    def start_step(self, step: Step) -> float:
        """Mark the pushes of a decided step as computed; return the step's learning rate.

        Raises:
            ProtocolError: a policy with a barrier makes a step while a worker may compute.
        """
        run, job, pushes = self._job.run, self._job, step.pushes
        before, computing = step.version - 1, self._computing[step.range]
        # for the step's pushes, then for all gradients of the range: some are still computed on older weights
        stale = before - min([push.version for push in pushes])
        stalest = max(stale, before - min(computing.values(), default=before))
        seen = max([push.seen for push in pushes]) if job.traits.eager else stale
        for push in pushes:
            computing.pop((push.worker, job.traits.rotation.turn(step.range, push.iteration)), None)
        # workers compute on the server's own weights, which the step would change under them
        if computing and job.layout.in_place and job.traits.barrier:
            problem = f"has a barrier, but applies {len(pushes)} pushes while others compute; set barrier = False"
            raise ProtocolError(f"{run.sync} {problem}")
        if job.averages(step):
            return 1.0  # the mean of changes is added as it is
        # the schedule counts the gradients of earlier steps: `count` comes after this
        applied = Applied(run.workers, len(pushes), step.aggregate, job.push_weight, stale, stalest, seen)
        rate = job.outer_learning_rate if job.traits.changes else job.learning_rate(self.applied)
        return rate * job.rate.scale(applied)

    def computing(self, index: int) -> Collection[int]:
        """The versions of a range on which workers compute now."""
        return self._computing[index].values()

    def count(self, step: Step) -> bool:
        """Count the pushes of a decided step; return whether some push has a decided step on all its ranges now."""
        complete = False
        for push in step.pushes:
            if self._ranges == 1 or self._complete(push):
                complete = True
                self.applied += push.steps
        return complete

    def applied_at(self, step: Step, now: float) -> None:
        """Record that the pushes of a step were applied at the instant `now`."""
        for push in step.pushes:
            self.ledger.applied(push, step.version, now)

    def replied(self, reply: Reply) -> None:
        """Record that a worker gets the weights of a range."""
        pull, computing = reply.pull, self._computing[reply.pull.range]
        key = pull.worker, self._job.traits.rotation.turn(pull.range, pull.iteration)
        computing.pop(key, None)  # a new process of the worker computes the iteration again
        computing[key] = reply.version

    def discard(self, discard: Discard) -> None:
        """Count a push that the policy dropped."""
        push = discard.push
        self.dropped += 1
        self.dropped_bytes += self._job.payload_bytes(push.range, push.payload.size_bytes)

    def leave(self, worker: int) -> None:
        """Forget the gradients that a departed worker was computing; its earlier pushes may still be applied."""
        for computing in self._computing:
            # else a barrier's step would be refused, and `stalest` would count weights that nobody computes on
            for key in [key for key in computing if key[0] == worker]:
                del computing[key]

    def _complete(self, push: Push) -> bool:
        """Count one range of a push; return whether a step is decided on all of its ranges now."""
        name = push.worker, push.iteration
        # the first range of a push to be decided starts the count
        missing = self._missing.pop(name, 0) or len(self._job.traits.rotation.ranges(push.iteration, self._ranges))
        missing -= 1
        if missing:
            self._missing[name] = missing
        return not missing
