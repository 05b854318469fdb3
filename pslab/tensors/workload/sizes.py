"""Published models as their layers' shapes and operations, for `engine="timing"`, without weights.

A layer's operations follow from its architecture: the multiplications and additions of its forward pass, for one image
of 224 x 224 pixels (Inception's 299 x 299), or for one sequence of BERT's 512, GPT-2's 1,024 or LLaMA's 2,048 tokens,
with the scores of attention. No source gives these models' times layer by layer, so the shares of time follow from
these operations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import nn

from pslab.errors import nearest

Shape = tuple[int, ...]
Layer = tuple[tuple[Shape, ...], float]  # shapes of parameters with equally many rows; operations


def layer(shape: Shape, uses: int = 1, vectors: int = 1, scores: int = 0) -> Layer:
    """Return a layer: a matrix or kernel that is applied `uses` times, `vectors` vectors with as many rows as it, and
    `scores` multiplications without weights."""
    return (shape, *[shape[:1]] * vectors), 2.0 * (uses * math.prod(shape) + scores)


def resnet(blocks: Sequence[int], expansion: int) -> Iterator[Layer]:
    """Yield the layers of ResNet (He et al., CVPR 2016), with the stride in the 3 x 3 convolution as in torchvision."""
    yield layer((64, 3, 7, 7), 112**2, 2)
    channels = 64
    for stage, count in enumerate(blocks):
        width, pixels = 64 << stage, (56 >> stage) ** 2
        for block in range(count):
            before = pixels if block or not stage else 4 * pixels  # the first block of a stage halves both sides
            if expansion == 1:
                yield layer((width, channels, 3, 3), pixels, 2)
                yield layer((width, width, 3, 3), pixels, 2)
            else:
                yield layer((width, channels, 1, 1), before, 2)
                yield layer((width, width, 3, 3), pixels, 2)
                yield layer((width * expansion, width, 1, 1), pixels, 2)
            if channels != width * expansion:
                yield layer((width * expansion, channels, 1, 1), pixels, 2)
            channels = width * expansion
    yield layer((1000, channels))


def vgg(counts: Sequence[int]) -> Iterator[Layer]:
    """Yield the layers of VGG (Simonyan and Zisserman, ICLR 2015)."""
    channels = 3
    for stage, (count, width) in enumerate(zip(counts, (64, 128, 256, 512, 512), strict=True)):
        for _ in range(count):
            yield layer((width, channels, 3, 3), (224 >> stage) ** 2)
            channels = width
    yield from (layer((4096, 25088)), layer((4096, 4096)), layer((1000, 4096)))


def inception() -> Iterator[Layer]:
    """Yield the layers of Inception-v3 (Szegedy et al., CVPR 2016) for 299 x 299 pixels, without the auxiliary head."""

    def branch(inputs: int, side: int, *kernels: tuple[int, ...]) -> Iterator[Layer]:
        for channels, height, width, *other in kernels:  # other: the side of its output, if not `side`
            yield layer((channels, inputs, height, width), (other or [side])[0] ** 2, 2)
            inputs = channels

    yield from branch(3, 149, (32, 3, 3), (32, 3, 3, 147), (64, 3, 3, 147), (80, 1, 1, 73), (192, 3, 3, 71))
    for inputs, pooled in ((192, 32), (256, 64), (288, 64)):
        for kernels in ([(64, 1, 1)], [(48, 1, 1), (64, 5, 5)], [(64, 1, 1), *[(96, 3, 3)] * 2], [(pooled, 1, 1)]):
            yield from branch(inputs, 35, *kernels)
    yield from branch(288, 17, (384, 3, 3))
    yield from branch(288, 35, (64, 1, 1), (96, 3, 3), (96, 3, 3, 17))
    for c in (128, 160, 160, 192):
        for kernels in ([(192, 1, 1)], [(c, 1, 1), (c, 1, 7), (192, 7, 1)],
                        [(c, 1, 1), (c, 7, 1), (c, 1, 7), (c, 7, 1), (192, 1, 7)], [(192, 1, 1)]):  # fmt: skip
            yield from branch(768, 17, *kernels)
    yield from branch(768, 17, (192, 1, 1), (320, 3, 3, 8))
    yield from branch(768, 17, (192, 1, 1), (192, 1, 7), (192, 7, 1), (192, 3, 3, 8))
    for inputs in (1280, 2048):
        for kernels in ([(320, 1, 1)], [(384, 1, 1), (384, 1, 3), (384, 3, 1)],
                        [(448, 1, 1), (384, 3, 3), (384, 1, 3), (384, 3, 1)], [(192, 1, 1)]):  # fmt: skip
            yield from branch(inputs, 8, *kernels)
    yield layer((1000, 2048))


def bert(width: int, depth: int, tokens: int = 512) -> Iterator[Layer]:
    """Yield the layers of BERT (Devlin et al., NAACL 2019) without the heads for pretraining."""
    norm, hidden = layer((width,), 0), 4 * width
    yield from (layer((rows, width), 0, 0) for rows in (30522, tokens, 2))
    yield norm
    for _ in range(depth):
        yield from [layer((width, width), tokens)] * 3
        yield from (layer((width, width), tokens, scores=2 * tokens**2 * width), norm)
        yield from (layer((hidden, width), tokens), layer((width, hidden), tokens), norm)
    yield layer((width, width))


def gpt2(width: int, depth: int, tokens: int = 1024) -> Iterator[Layer]:
    """Yield the layers of GPT-2 (Radford et al., OpenAI report 2019). The embedding of tokens is also the output layer:
    it is pushed as the first layer, and the operations of the output are counted at the last norm."""
    norm, words = layer((width,), 0), 50257
    yield from (layer((rows, width), 0, 0) for rows in (words, tokens))
    for _ in range(depth):
        yield from (norm, layer((3 * width, width), tokens))
        yield from (layer((width, width), tokens, scores=2 * tokens**2 * width), norm)
        yield from (layer((4 * width, width), tokens), layer((width, 4 * width), tokens))
    yield layer((width,), 0, scores=tokens * words * width)


def llama(width: int, depth: int, hidden: int, tokens: int = 2048) -> Iterator[Layer]:
    """Yield the layers of LLaMA (Touvron et al., arXiv 2023)."""
    norm, words = layer((width,), 0, 0), 32000
    yield layer((words, width), 0, 0)
    for _ in range(depth):
        yield from [layer((width, width), tokens, 0)] * 3
        yield layer((width, width), tokens, 0, 2 * tokens**2 * width)
        yield from [layer((hidden, width), tokens, 0)] * 2
        yield from (layer((width, hidden), tokens, 0), norm, norm)
    yield from (norm, layer((words, width), tokens, 0))


PUBLISHED: dict[str, Callable[[], Iterable[Layer]]] = {
    "resnet18": lambda: resnet((2, 2, 2, 2), 1), "resnet50": lambda: resnet((3, 4, 6, 3), 4),
    "resnet101": lambda: resnet((3, 4, 23, 3), 4), "resnet152": lambda: resnet((3, 8, 36, 3), 4),
    "vgg16": lambda: vgg((2, 2, 3, 3, 3)), "vgg19": lambda: vgg((2, 2, 4, 4, 4)),
    "inception-v3": inception, "bert-large": lambda: bert(1024, 24), "gpt2": lambda: gpt2(768, 12),
    "llama-7b": lambda: llama(4096, 32, 11008),
}  # fmt: skip


class Shapes(nn.Module):
    """Parameters with shapes but without values, layer by layer; `flops` are the operations of each layer."""

    def __init__(self, layers: Iterable[Layer]) -> None:
        super().__init__()
        self.flops: list[float] = []
        for number, (shapes, flops) in enumerate(layers):
            self.flops.append(flops)
            parameters = [nn.Parameter(torch.empty(shape, device="meta")) for shape in shapes]
            self.add_module(f"layer{number}", nn.ParameterList(parameters))


@dataclass(frozen=True)
class ModelSizes:
    """A model as the shapes of its layers, for engine="timing": a published model, or shapes such as 512x784+10x512."""

    of: Annotated[
        str, "resnet18, -50, -101, -152; vgg16, -19; inception-v3; bert-large; gpt2; llama-7b; or each layer's shape"
    ]

    def __post_init__(self) -> None:
        if self.of not in PUBLISHED and not all(sides and min(sides) > 0 for sides in self._shapes):
            raise ValueError(f"{self.of!r} is neither a model with known sizes nor shapes such as 512x784+10x512; "
                             f"{nearest(self.of, PUBLISHED)}")  # fmt: skip

    @property
    def _shapes(self) -> list[Shape]:
        texts = [text.split("x") for text in self.of.split("+")]
        return [tuple(map(int, sides)) if all(map(str.isdecimal, sides)) else () for sides in texts]

    def __call__(self) -> nn.Module:
        return Shapes(PUBLISHED[self.of]() if self.of in PUBLISHED else [layer(shape, 1, 0) for shape in self._shapes])
