"""Streaming DiLoCo: fragments of the model are exchanged in turn, while the workers continue to train."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pslab.config.parameters import Bounds, OneOf, check
from pslab.errors import ConfigError
from pslab.policies.methods.diloco import DiLoCo
from pslab.policies.partition import servers_of
from pslab.policies.sync.bsp import BSP

BLOCK = re.compile(r"^(?:.*?\.)?\d+(?=\.|$)")  # the block in a layer's name, to the first number, as "blocks.0"


@dataclass(frozen=True)
class Streaming(BSP):
    """Streaming DiLoCo: DiLoCo by fragments of the model; workers push one every `period` / `fragments` steps.

    Each worker has its own weights. It pushes the difference of a fragment's weights from the server's last answer,
    takes `overlap` more steps while the messages travel, and merges the new answer. With `mix` the merged weights are
    (1 - alpha) times the server's plus alpha times the worker's, with `replace` the server's, with `carry` the server's
    plus the change of the worker's since the push. Each fragment has its own state of the outer optimizer. With one
    fragment this is DiLoCo; with one fragment, an overlap and `carry` it is delayed averaging (DaSGD, Zhou et al.,
    arXiv 2006.00441, 2020).

    Fragments consist of whole layers. The first fragment has all layers outside of numbered blocks, if there are any;
    the blocks are assigned to the other fragments in turn (`strided`), or in contiguous runs (`sequential`). In a model
    without numbered blocks each layer counts as a block. `balanced` assigns the layers, largest first, each to the
    smallest fragment.

    Source: Douillard et al. (arXiv 2501.18512, 2025)
    """

    period: Annotated[int, Bounds(at_least=1), "steps between two exchanges of a fragment"]
    fragments: Annotated[int, Bounds(at_least=1), "parts of the model; in a period each is exchanged once"] = 1
    overlap: Annotated[int, Bounds(at_least=0), "steps after a push, fewer than between two pushes"] = 0
    merge: Annotated[str, OneOf("mix", "replace", "carry"), "how a worker uses the server's weights"] = "mix"
    alpha: Annotated[float, Bounds(at_least=0, at_most=1), "the share of the worker's own weights in a mix"] = 0.0
    layout: Annotated[str, OneOf("strided", "sequential", "balanced"), "how layers are assigned"] = "strided"
    barrier: ClassVar[bool] = False  # a worker steps on its own weights
    method: ClassVar[str] = DiLoCo.method
    changes: ClassVar[bool] = True
    fresh: ClassVar[bool] = False
    inner: ClassVar[str] = DiLoCo.inner  #: the default of a run's `inner`
    outer: ClassVar[str] = DiLoCo.outer
    outer_learning_rate: ClassVar[float] = DiLoCo.outer_learning_rate

    def __post_init__(self) -> None:
        check(self)
        if self.period % self.fragments:
            able = [n for n in range(1, self.period + 1) if self.period % n == 0]
            near = min(able, key=lambda n: abs(n - self.fragments))
            problem = f"must divide the period of {self.period} steps, as {near} does, or use another period"
            raise ConfigError("fragments", self.fragments, problem)
        if self.overlap >= self.steps:
            problem = f"must be less than the {self.steps} steps between two pushes, period / fragments"
            raise ConfigError("overlap", self.overlap, problem)
        if self.alpha and self.merge != "mix":
            raise ConfigError("alpha", self.alpha, f"is a parameter of merge=mix: leave it out with {self.merge}")

    @property
    def steps(self) -> int:
        """Return the number of a worker's steps between two pushes."""
        return self.period // self.fragments

    @property
    def keeps_own(self) -> bool:
        """Whether a worker's weights differ from the server's even after it has received them."""
        return self.fragments > 1 or self.overlap > 0 or self.alpha > 0

    def gradients_before(self, iteration: int) -> int:
        """Return how many gradients a worker has computed before this iteration."""
        return iteration * self.steps

    def fragment_of(self, layers: Sequence[tuple[str, int]]) -> tuple[int, ...]:
        """Return the fragment of each layer; a layer is given by its name and its number of weights.

        Raises:
            ConfigError: there are fewer layers, or blocks, than fragments.
        """
        if self.layout == "balanced":
            by_name = sorted(range(len(layers)), key=lambda number: layers[number][0])
            fragments = servers_of([layers[number][1] for number in by_name], self.fragments)
            by_block = [fragment for _, fragment in sorted(zip(by_name, fragments, strict=True))]
        else:
            matches = [BLOCK.match(name) for name, _ in layers]
            blocks = [match and match[0] for match in matches] if any(matches) else [name for name, _ in layers]
            numbers = {block: number for number, block in enumerate(dict.fromkeys(filter(None, blocks)))}
            first = int(None in blocks and self.fragments > 1)
            several = self.fragments - first
            by_block = [0 if block is None else first + (
                numbers[block] % several if self.layout == "strided" else numbers[block] * several // len(numbers))
                for block in blocks]  # fmt: skip
        if (able := len({*by_block})) < self.fragments:
            what = "layers" if self.layout == "balanced" else "blocks"
            problem = f"with layout={self.layout} the model has {what} for {able} only: use at most {able}"
            more = ", or layout=balanced" if self.layout != "balanced" and len(layers) >= self.fragments else ""
            raise ConfigError("fragments", self.fragments, problem + more)
        return tuple(by_block)
