"""An iteration of a layered worker in modelled time: forward layer by layer, as weights arrive, then backward."""

from __future__ import annotations

from dataclasses import dataclass

from pslab.engines.experiment.job import Job


@dataclass
class Pass:
    """The progress of a worker in an iteration that takes `total_s` if no weights are late.

    In an iteration of several gradients the first forward pass waits for weights layer by layer, and the last backward
    pass has a gradient ready after each layer.
    """

    job: Job
    iteration: int
    total_s: float
    gradients: int = 1
    done: int = 0  #: passes of layers that have ended: forward from the first layer, then backward from the last
    waiting: bool = False  #: whether the worker waits for the weights of the next layer

    @property
    def layers(self) -> int:
        return len(self.job.ranges_of)

    @property
    def forward(self) -> bool:
        """Whether the next pass is a forward pass."""
        return self.done < self.layers

    @property
    def ended(self) -> bool:
        """Whether all passes have ended."""
        return self.done == 2 * self.layers

    @property
    def layer(self) -> int:
        """The number of the layer whose pass is next."""
        return self.done if self.forward else 2 * self.layers - 1 - self.done

    @property
    def takes_s(self) -> float:
        """The seconds that the next pass takes."""
        own_s = self.total_s / self.gradients
        between_s = self.total_s - own_s if self.done == self.layers else 0.0  # all but the first and last passes
        return between_s + own_s * self.job.layer_shares[self.layer][0 if self.forward else 1]

    @property
    def share(self) -> float:
        """The next layer's share of the model's weights, and so of the time to select and encode its gradient."""
        parts = self.job.parts
        return sum(parts[index].size for index in self.job.ranges_of[self.layer]) / self.job.layout.size
