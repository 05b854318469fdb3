"""Products by oneDNN are those of MKL but for their last bits, and have the same bits each time, wherever they lie."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from pslab.config.products import MKL, ONEDNN
from pslab.errors import ConfigError
from pslab.tensors.device import one_thread
from pslab.tensors.products import check_products, use_onednn


def drawn(*shape: int, offset: int = 0) -> torch.Tensor:
    """The same numbers, at another place in memory."""
    room = torch.empty(offset + torch.Size(shape).numel())
    return room[offset:].view(shape).copy_(torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))))


@settings(max_examples=60, deadline=None)
@given(batch=st.integers(1, 200), inputs=st.integers(1, 300), outputs=st.integers(1, 300), offset=st.integers(0, 17),
       twice=st.booleans())  # fmt: skip
def test_products_differ_by_their_last_bits_alone(batch: int, inputs: int, outputs: int, offset: int, twice: bool):
    """Output and gradients of a linear layer; of a gradient that is differentiated again, too."""
    with one_thread():
        found = []
        for begin in (0, offset):
            for library in (MKL, ONEDNN):
                layer, x = nn.Linear(inputs, outputs), drawn(batch, inputs, offset=begin).requires_grad_()
                layer.weight.data = drawn(outputs, inputs, offset=begin)
                layer.bias.data = drawn(outputs)
                if library == ONEDNN:
                    use_onednn(layer)
                output = layer(x)
                loss = (output * drawn(batch, outputs, offset=begin)).sum()
                if twice:
                    (inner,) = torch.autograd.grad(loss, x, create_graph=True)
                    loss = loss + inner.pow(2).sum()
                loss.backward()
                found.append((output.detach(), layer.weight.grad, layer.bias.grad, x.grad))
        mkl, onednn, _, moved = found
        for usual, other, again in zip(mkl, onednn, moved, strict=True):
            torch.testing.assert_close(other, usual, rtol=0.0, atol=3e-6 * float(usual.abs().max()))
            assert torch.equal(other, again)


def test_a_torch_without_onednn_is_refused_with_the_way_out(monkeypatch):
    check_products(ONEDNN)
    monkeypatch.setattr(torch.ops, "mkldnn", SimpleNamespace())
    check_products(MKL)
    with pytest.raises(ConfigError, match="has no oneDNN: set PSLAB_PRODUCTS=mkl"):
        check_products(ONEDNN)
