"""What a policy's object allows a history to have. Of a policy that is not known nothing is demanded that some policy
need not keep."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pslab.protocol.traits import Traits, traits_of
from pslab.protocol.worker import EAGER_BUFFERS


@dataclass(frozen=True)
class Rules:
    """The policy's capabilities, as the judge asks for them; `sync` is None if it is not known.

    `layered` workers wait in the midst of an iteration, for each layer's weights, and push each when it is ready.
    """

    sync: Any = None
    layered: bool = False

    @property
    def known(self) -> bool:
        return self.sync is not None

    @cached_property
    def traits(self) -> Traits:
        """What the policy can do, as far as it is known."""
        return traits_of(self.sync) if self.known else Traits()

    @property
    def eager(self) -> bool:
        """Whether it is known that weights are asked for as a computation begins."""
        return self.traits.eager

    @property
    def own(self) -> int:
        """Own pushes that a worker's weights may lack: it has a buffer for each, and can add them itself."""
        return EAGER_BUFFERS if self.eager or not self.known else 0

    @property
    def whole(self) -> bool:
        """Whether it is known that one decision is for all ranges."""
        return self.traits.whole

    @property
    def drops(self) -> bool:
        """Whether pushes may be dropped: by a policy that decides for all ranges."""
        return self.whole or not self.known

    @property
    def barrier(self) -> bool:
        return self.traits.barrier

    @property
    def hands(self) -> int:
        """Pushes of one worker that may be accepted and not yet applied."""
        return EAGER_BUFFERS if self.eager else 1

    def gradients(self, iteration: int) -> int:
        """What a push of this iteration counts."""
        return self.traits.gradients(iteration)

    def most(self, iterations: int) -> int:
        """The most that a push of one of the first so many iterations counts."""
        return max(map(self.gradients, range(iterations)), default=1)
