"""What the judge allows a history, given the run's policy.

Of a policy that is not known, only what every policy must keep is demanded.
"""

from __future__ import annotations

from dataclasses import dataclass

from pslab.protocol.traits import Traits
from pslab.protocol.worker import EAGER_BUFFERS


@dataclass(frozen=True)
class Rules:
    """The traits of the run's policy, as far as they are known."""

    traits: Traits = Traits()  # noqa: RUF009  frozen
    known: bool = False
    layered: bool = False  #: whether workers wait for each layer's weights within an iteration, and push layer by layer
    servers: int = 1  #: each of which applies steps in its own time

    @property
    def own(self) -> int:
        """How many of its own pushes a worker's weights may lack: it has a buffer for each, and may add them itself."""
        return EAGER_BUFFERS if self.traits.eager or not self.known else 0

    @property
    def apart(self) -> bool:
        """Whether what was decided first may be applied later, at another server."""
        return self.servers > 1

    @property
    def drops(self) -> bool:
        """Whether pushes may be dropped, as by a policy that decides for all ranges at once."""
        return self.traits.whole or not self.known
