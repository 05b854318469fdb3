"""The server's average of pushed changes of the weights: weighted by steps, for some tensors radial-directional."""

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

EMBEDDINGS = nn.Embedding, nn.EmbeddingBag  # their rows move independently, so the tensor has no common direction


class Changes:
    """Averages the pushed changes of a range. A change's weight is the number of steps that its worker has taken since
    the worker last received the range.

    Source: Douillard et al. (arXiv 2604.21428, 2026)

    Args:
        tensors: slices of the range that get the radial-directional average instead of the mean.
    """

    def __init__(self, sync: Any, part: Part, tensors: Sequence[slice]) -> None:
        self._traits, self._part, self._tensors = traits_of(sync), part, tuple(tensors)
        self._sent: dict[int, int] = {}  # worker: the last iteration for which it received the range

    def answered(self, pull: Pull) -> None:
        self._sent[pull.worker] = pull.iteration

    def state(self) -> State:
        """Return the last iteration for which each worker received the range."""
        return {"sent": table(self._sent.items())}

    def restore(self, state: State) -> None:
        """Restore a saved state."""
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
        mean_change = dense(mean([inside(self._part, change) for change in counted]))
        vectors = [dense(inside(self._part, gradient)) for gradient in gradients]
        for tensor in self._tensors:
            mean_change[tensor] = radial_directional([vector[tensor] for vector in vectors], steps)
        return [outside(mean_change)]


def at_server(sync: Any, parts: Sequence[Part], keyspace: Keyspace, module: nn.Module) -> list[Changes]:
    """Return one `Changes` for each range; empty if the policy averages pushes with equal weights."""
    if traits_of(sync).aggregate != "changes":
        return []
    rows = {f"{path}.weight" for path, submodule in module.named_modules() if isinstance(submodule, EMBEDDINGS)}
    tensors = [slice(slot.offset, slot.offset + slot.size) for slot in keyspace.parameters
               if getattr(sync, "average", "rda") == "rda" and slot.name not in rows]  # fmt: skip
    return [Changes(sync, part, cuts(part, tensors)) for part in parts]


def by_steps(part: Part, gradients: Sequence[Gradient], steps: Sequence[int]) -> Sequence[Gradient]:
    """Scale the changes such that their plain mean is their mean weighted by `steps`."""
    mean = sum(steps) / len(steps)
    return [outside(scaled(inside(part, g), count / mean)) for g, count in zip(gradients, steps, strict=True)]


def over_users(sync: Any, part: Part, gradients: Sequence[Gradient]) -> Sequence[Gradient]:
    """Return the gradients to average for a range, if pushes contain only the keys of their workers' examples.

    With an averaging policy, return a single gradient: the mean of each weight over the pushes that contain it.
    """
    if traits_of(sync).method != AVERAGE:
        return gradients
    return [outside(mean_over_users([inside(part, gradient) for gradient in gradients])[0])]
