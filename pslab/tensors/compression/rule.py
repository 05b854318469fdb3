"""A compression rule.

    worker   v = residual + gradient                 of each piece of a range: a layer, a tensor, or all of it
             parts = rule.compress(v, at)            a few arrays
             residual = v - rule.decompress(parts, at)
    server   rule.decompress(parts, at) of each push, whose mean is applied; or what `combine` makes of all of a step

A rule is a frozen value on a page of its own. It needs `compress` and `decompress`; `push` and `combine` only where it
does something else than error feedback, and than the mean. It runs where the gradient is: on the CPU or on a GPU. The
values that a run's `prune` leaves go as its `quantize` says: a rule whose `code` is that.
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
    kept: tuple[str, ...] = ()  #: vectors as long as the piece that a worker keeps, beside the residual
    numbers = 0  #: and so many numbers of each piece
    chooses = False  #: whether a push holds some entries of a gradient, and not all
    tells = False  #: whether the server's numbers come with the weights
    momentum = 0.0  #: of the rule's own at each worker
    rounds = False  #: whether a step needs a push of every worker
    every = False  #: whether it needs every entry of the gradient: none is pruned before
    alternates = False  #: whether its pushes hold this in one step, and that in the next
    changes_all = False  #: whether a step changes every weight
    own_momentum = False  #: whether its steps have a momentum of their own
    remembers = False  #: whether the server keeps what each worker has sent
    summable = False  #: whether the parts of two pushes may be added number by number
    draws = False  #: whether it draws roundings
    sends: Any = None  #: sends(n, at): how many of n entries are sent, if that is always the same

    def server(self, shape: tuple[int, ...]) -> int:
        """Return how many numbers the server keeps of such a piece."""
        return 0

    def before(self, gradient: torch.Tensor, workers: int) -> torch.Tensor:
        """Return the whole gradient, before it is cut into pieces."""
        return gradient

    def compress(self, v: torch.Tensor, at: At) -> Parts:
        """Return the parts of a piece [n], which is not changed."""
        raise NotImplementedError

    def decompress(self, parts: Parts, at: At) -> Any:
        """Return the piece, or some of its entries, from its parts; FrameError if they are no such parts."""
        raise NotImplementedError

    def push(self, gradient: torch.Tensor, at: At) -> Parts:
        """Return the parts of a worker's next push: error feedback, if there is a residual."""
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
        """Return how many values are sent."""
        return at.size

    def fixed(self, at: At) -> int | None:
        """Return how many numbers are sent of a piece, if that is no share of its entries."""
        return None

    combine: Any = None  #: combine(pushes, at): the piece to be applied, of the parts of all pushes of a step


class At(NamedTuple):
    """The position of a piece, and the push that it is in."""

    start: int = 0  #: in the flat vector
    shape: tuple[int, ...] = ()
    dtype: torch.dtype = torch.float32
    code: Rule = Rule()  #: by which chosen values go
    seed: int = 0
    worker: int = 0
    step: int = 0  #: of the worker's gradients
    turn: int = 0  #: of its pushes
    epoch: float = 0.0
    slices: Sequence[slice] = ()  #: of the flat vector, that a rule of ranges exchanges
    memory: Mapping[str, torch.Tensor] = {}  #: the vectors kept of this piece, changed in place

    @property
    def size(self) -> int:
        """The number of its entries."""
        return math.prod(self.shape)

    def of(self, n: int) -> At:
        """The same of n chosen values."""
        return self._replace(shape=(n,))

    def chance(self, like: torch.Tensor) -> torch.Tensor:
        """Return as many numbers from 0 to 1, other ones in each push."""
        drawn = numpy_generator(self.seed, "quantize", self.worker, self.step, self.start).random(len(like), np.float32)
        return sent(torch.from_numpy(drawn), like.device)

    def draw(self, *names: str | int) -> int:
        """A whole number, another one in each push; without the worker's number the same for all."""
        return seed_of(self.seed, *names, self.step, self.start)
