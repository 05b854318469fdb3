"""A compression rule.

    worker   v = residual + gradient                 for each piece of a range: a layer, a tensor, or all of it
             parts = rule.compress(v, at)            a few arrays
             residual = v - rule.decompress(parts, at)
    server   the mean of rule.decompress(parts, at) over the pushes of a step, or the result of `combine`

A rule is a frozen dataclass with the methods `compress` and `decompress`. It overrides `push` only to replace error
feedback, and `combine` only to replace the mean. It runs on the gradient's device, the CPU or a GPU. The values that a
run's `prune` selects are encoded by the run's `quantize`, which is `at.code`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from pslab.tensors.device import sent
from pslab.tensors.random_streams import numpy_generator, seed_of

Parts = list[torch.Tensor]


class Sparse(NamedTuple):
    """Some entries of a piece; the others are zero."""

    indices: torch.Tensor  #: int64, increasing
    values: torch.Tensor


class Rule:
    """The base of all rules: error feedback at the worker, and the mean at the server."""

    unit = "tensor"  #: the piece that is compressed at once: "layer", "tensor" or "range"
    residual = False
    vectors: tuple[str, ...] = ()  #: names of vectors, as long as the piece, that a worker stores beside the residual
    numbers = 0  #: the number of scalars that a worker stores for each piece
    chooses = False  #: whether a push contains only some entries of a gradient
    tells = False  #: whether replies contain values that the server stores for the rule
    momentum = 0.0  #: the factor of the rule's own momentum at each worker
    rounds = False  #: whether a step needs a push of every worker
    every = False  #: whether it needs every entry of the gradient, so that it cannot follow pruning
    alternates = False  #: whether the content of its pushes alternates from step to step
    changes_all = False  #: whether a step changes every weight
    own_momentum = False  #: whether the rule itself adds momentum to the steps
    remembers = False  #: whether the server stores the sum of what workers have sent
    summable = False  #: whether the parts of two pushes may be added number by number
    draws = False  #: whether it rounds at random
    sends: Any = None  #: sends(n, at): how many of n entries are sent, if that does not depend on the values

    def server(self, shape: tuple[int, ...]) -> int:
        """Return the number of values that the server stores for a piece of this shape."""
        return 0

    def before(self, gradient: torch.Tensor, workers: int) -> torch.Tensor:
        """Return the whole gradient, before it is cut into pieces; a rule may clip it here."""
        return gradient

    def compress(self, v: torch.Tensor, at: At) -> Parts:
        """Compress a piece v [n] to parts, without changing v."""
        raise NotImplementedError

    def decompress(self, parts: Parts, at: At) -> Any:
        """Convert parts to a piece [n], or to some of its entries (Sparse); FrameError if the parts are invalid."""
        raise NotImplementedError

    def push(self, gradient: torch.Tensor, at: At) -> Parts:
        """Return the parts of a worker's next push of a piece.

        With a residual, add it to the gradient first, and store the difference that is not sent (error feedback).
        """
        if "residual" not in at.memory:
            return self.compress(gradient, at)
        v = at.memory["residual"].add_(gradient)
        parts = self.compress(v, at)
        sent = self.decompress(parts, at)
        if isinstance(sent, Sparse):
            v.index_add_(0, sent.indices, sent.values, alpha=-1)
        else:
            v.sub_(sent.reshape(-1))
        return parts

    def count(self, parts: Parts, at: At) -> int:
        """Return the number of values in these parts of a piece."""
        return at.size

    def fixed(self, at: At) -> int | None:
        """Return the number of values sent for a piece; None if it is proportional to the piece's number of entries."""
        return None

    combine: Any = None  #: combine(pushes, at): returns the piece to be applied, from the parts of a step's pushes


class At(NamedTuple):
    """The position of a piece in the flat vector, and the push to which it belongs."""

    start: int = 0  #: the position in the flat vector
    shape: tuple[int, ...] = ()
    dtype: torch.dtype = torch.float32
    code: Rule = Rule()  #: encodes the selected values
    seed: int = 0
    worker: int = 0
    step: int = 0  #: the number of the worker's gradient
    turn: int = 0  #: the number of the worker's push
    epoch: float = 0.0
    slices: Sequence[slice] = ()  #: slices of the flat vector that a rule of ranges exchanges
    memory: Mapping[str, torch.Tensor] = {}  #: the stored vectors for this piece, changed in place

    @property
    def size(self) -> int:
        """The number of entries."""
        return math.prod(self.shape)

    def of(self, n: int) -> At:
        """Return a copy with the shape [n], for n selected values."""
        return self._replace(shape=(n,))

    def chance(self, like: torch.Tensor) -> torch.Tensor:
        """Draw a number from 0 to 1 for each entry of `like`, different in each push."""
        drawn = numpy_generator(self.seed, "quantize", self.worker, self.step, self.start).random(len(like), np.float32)
        return sent(torch.from_numpy(drawn), like.device)

    def draw(self, *names: str | int) -> int:
        """Draw a whole number, different in each push; the same for all workers unless `names` has the worker."""
        return seed_of(self.seed, *names, self.step, self.start)
