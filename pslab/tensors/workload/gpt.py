"""A small language model of GPT-2's shape: it predicts each byte of a text from the bytes before it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn import functional

from pslab.config.parameters import Bounds, check
from pslab.errors import ConfigError

BYTES = 256  # values of a byte
PLACES = 64  # length of the longest input, in bytes
HEADS = 4
DEVIATION = 0.02  # standard deviation of the initial weights


class Block(nn.Module):
    """Causal attention and then two linear layers, each added to the input: [B, T, width] -> [B, T, width]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width, bias=False), nn.LayerNorm(width, bias=False)
        self.attend = nn.Linear(width, 3 * width, bias=False)  # queries, keys and values
        self.attended = nn.Linear(width, width, bias=False)
        self.widen = nn.Linear(width, 4 * width, bias=False)
        self.narrow = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.attend(self.norm1(x)).unflatten(2, (3, HEADS, -1))
        query, key, value = parts.permute(2, 0, 3, 1, 4)  # each [B, heads, T, width / heads]
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.attended(mixed.transpose(1, 2).flatten(2))
        residual: Tensor = x + self.narrow(functional.gelu(self.widen(self.norm2(x))))
        return residual


class GPT(nn.Module):
    """GPT-2 (Radford et al., 2019) for bytes, without biases and dropout: [B, T] int64 -> scores [B, 256, T].

    The scores at a position predict the next byte. The output layer uses the embedding of bytes: its weights are tied.

    Raises:
        ValueError: in the forward pass, the inputs are not bytes, or too long.
    """

    tied = True  #: a layer is used at both ends of a pass

    def __init__(self, width: int = 64, layers: int = 2) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(BYTES, width), nn.Embedding(PLACES, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(layers)))
        self.norm = nn.LayerNorm(width, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                into_stream = name.endswith(("attended.weight", "narrow.weight"))  # two such layers in a block
                nn.init.normal_(parameter, std=DEVIATION / (2 * layers) ** 0.5 if into_stream else DEVIATION)

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype != torch.int64 or x.ndim != 2 or x.shape[1] > PLACES:
            form = f"not {list(x.shape)} of {x.dtype}"
            raise ValueError(f"gpt takes bytes [B, T] as int64, T at most {PLACES}, {form}: use data='text'")
        stream = self.norm(self.blocks(self.bytes(x) + self.places.weight[: x.shape[1]]))
        scores: Tensor = functional.linear(stream, self.bytes.weight).transpose(1, 2)
        return scores


@dataclass(frozen=True)
class Transformer:
    """A language model of GPT-2's shape for bytes: `gpt:64` has 119,104 parameters, `gpt:128,layers=4` 828,544.

    Learned embeddings of bytes and positions, blocks of attention with 4 heads, no biases, no dropout, a tied output
    layer.
    The loss is the mean over all bytes, in nats; the accuracy is the share of next bytes that have the highest score.

    Source: Radford et al. (OpenAI report 2019)
    """

    width: Annotated[int, Bounds(at_least=HEADS, at_most=4096), "the width of a block, a multiple of 4"] = 64
    layers: Annotated[int, Bounds(at_least=1, at_most=64), "the number of blocks"] = 2

    def __post_init__(self) -> None:
        check(self)
        if self.width % HEADS:
            near = max(HEADS, round(self.width / HEADS) * HEADS)
            problem = f"must be a multiple of {HEADS}, the number of heads, such as {near}"
            raise ConfigError("width", self.width, problem)

    def __call__(self) -> nn.Module:
        return GPT(self.width, self.layers)
