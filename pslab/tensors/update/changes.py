"""The mean of changes of the weights, where each counts by its steps, or tensors are averaged in another way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from pslab.protocol.messages import Pull
from pslab.protocol.server import Step
from pslab.protocol.traits import traits_of
from pslab.tensors.update.methods import AVERAGE
from pslab.tensors.update.part import Gradient, Part
from pslab.tensors.update.states import State, table
from pslab.tensors.update.vectors import cuts, dense, inside, mean, mean_over_users, outside, radial_directional, scaled
from pslab.tensors.workload.keyspace import Keyspace

EMBEDDINGS = nn.Embedding, nn.EmbeddingBag  # whose rows move by themselves: a tensor of them has no one direction


class Changes:
    """The mean of changes of the weights, each of which counts by the steps that its worker has taken since it was sent
    the range; of some tensors the radial-directional average.

    Source: Douillard et al. (arXiv 2604.21428, 2026)

    Args:
        tensors: those, as slices of the range.
    """

    def __init__(self, sync: Any, part: Part, tensors: Sequence[slice]) -> None:
        self._traits, self._part, self._tensors = traits_of(sync), part, tuple(tensors)
        self._sent: dict[int, int] = {}  # by worker: the iteration for which it was sent the range last

    def answered(self, pull: Pull) -> None:
        self._sent[pull.worker] = pull.iteration

    def state(self) -> State:
        """Return for which iteration each worker was sent the range last."""
        return {"sent": table(self._sent.items())}

    def restore(self, state: State) -> None:
        """Return to a state."""
        self._sent = dict(state["sent"].tolist())

    def adjust(self, step: Step, gradients: Sequence[Gradient]) -> Sequence[Gradient]:
        if len(gradients) == 1:
            return gradients
        traits = self._traits
        steps = [traits.gradients_before(push.iteration + 1) - traits.gradients_before(self._sent.get(push.worker, 0))
                 - traits.overlap for push in step.pushes]  # fmt: skip
        counted = by_steps(self._part, gradients, steps)
        if not self._tensors:
            return counted
        found = dense(mean([inside(self._part, each) for each in counted]))
        vectors = [dense(inside(self._part, gradient)) for gradient in gradients]
        for tensor in self._tensors:
            found[tensor] = radial_directional([vector[tensor] for vector in vectors], steps)
        return [outside(found)]


def at_server(sync: Any, parts: Sequence[Part], keyspace: Keyspace, module: nn.Module) -> list[Changes]:
    """The state that the server keeps of each range; empty if the policy takes the plain mean."""
    if traits_of(sync).aggregate != "changes":
        return []
    rows = {f"{path}.weight" for path, each in module.named_modules() if isinstance(each, EMBEDDINGS)}
    tensors = [slice(slot.offset, slot.offset + slot.size) for slot in keyspace.parameters
               if getattr(sync, "average", "rda") == "rda" and slot.name not in rows]  # fmt: skip
    return [Changes(sync, part, cuts(part, tensors)) for part in parts]


def by_steps(part: Part, gradients: Sequence[Gradient], steps: Sequence[int]) -> Sequence[Gradient]:
    """Changes whose mean counts each by the steps that it is made of."""
    mean = sum(steps) / len(steps)
    return [outside(scaled(inside(part, each), count / mean)) for each, count in zip(gradients, steps, strict=True)]


def over_users(sync: Any, part: Part, gradients: Sequence[Gradient]) -> Sequence[Gradient]:
    """The gradients whose mean is applied to a range where pushes hold the keys of their workers' examples alone: an
    averaging policy takes the mean over the workers that have moved a weight."""
    if traits_of(sync).method != AVERAGE:
        return gradients
    return [outside(mean_over_users([inside(part, gradient) for gradient in gradients])[0])]
