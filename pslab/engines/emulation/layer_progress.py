"""An iteration of a layered worker in modelled time: forward layer by layer, each once its weights have arrived;
then backward."""

from __future__ import annotations

from dataclasses import dataclass

from pslab.engines.experiment.job import Job


@dataclass
class Pass:
    """The progress of a worker in an iteration that takes `total_s` if it waits for nothing."""

    job: Job
    iteration: int
    total_s: float
    done: int = 0  #: layers' passes that have ended: forward ones first, then backward ones from the last layer on
    waiting: bool = False  #: for the weights of the next layer

    @property
    def layers(self) -> int:
        return len(self.job.ranges_of)

    @property
    def forward(self) -> bool:
        """Whether the next pass is a forward one."""
        return self.done < self.layers

    @property
    def ended(self) -> bool:
        """Whether the iteration is computed."""
        return self.done == 2 * self.layers

    @property
    def layer(self) -> int:
        """The layer whose pass comes next."""
        return self.done if self.forward else 2 * self.layers - 1 - self.done

    @property
    def takes_s(self) -> float:
        """How long its next pass takes."""
        return self.total_s * self.job.layer_shares[self.layer][0 if self.forward else 1]

    @property
    def share(self) -> float:
        """The next layer's part of the model: what choosing and coding its gradient takes of the whole."""
        parts = self.job.parts
        return sum(parts[index].size for index in self.job.ranges_of[self.layer]) / self.job.layout.size
