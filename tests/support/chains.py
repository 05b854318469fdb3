"""Chains of layers: the worked examples, and any small one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from pslab.lab.studies.chain import Chain

LAYERS = {
    "E1": {"forward_s": (1, 1, 1), "backward_s": (1, 1, 1), "sizes": (1, 1, 3)},
    "E2": {"forward_s": (2, 2, 2), "backward_s": (2, 2, 2), "sizes": (1, 1, 6)},
    "E3": {"forward_s": (1, 1), "backward_s": (1, 1), "sizes": (1, 4)},
}


def example(name: str, duplex: str, piece: int | None = None, **more: Any) -> Chain:
    return Chain(**LAYERS[name], duplex=duplex, piece_bytes=piece, **more)


seconds = st.integers(0, 8).map(lambda eighths: eighths / 8)
layer = st.tuples(seconds, seconds, st.integers(1, 9))


@st.composite
def chains(draw: st.DrawFn, most: int = 5, pieces: int | None = None) -> Chain:
    """Any small chain; of at most so many pieces if a number is given."""
    layers = draw(st.lists(layer, min_size=1, max_size=most))
    forward_s, backward_s, sizes = zip(*layers, strict=True)
    chain = Chain(
        forward_s=forward_s, backward_s=backward_s, sizes=sizes, byte_s=draw(st.sampled_from((2.0, 8.0, 32.0))),
        duplex=draw(st.sampled_from(("full", "half"))), piece_bytes=draw(st.sampled_from((None, 2, 4))),
        overhead_s=draw(st.sampled_from((0.0, 0.25))), latency_s=draw(st.sampled_from((0.0, 0.5))),
        workers=draw(st.sampled_from((1, 4))))  # fmt: skip
    if pieces is not None and len(chain.pieces) > pieces:
        chain = replace(chain, piece_bytes=None)
    return chain
