"""Where tensors lie, random streams, and products by oneDNN, on the CPU."""

from __future__ import annotations

import copy
import gc
import os
import platform
import random
import re
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from apart import elsewhere
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import global_states
from torch import nn

from pslab.config.products import MKL, ONEDNN
from pslab.errors import ConfigError
from pslab.lab.runs.machine import resident_bytes
from pslab.tensors.device import Cuda, Device, one_thread, zeros
from pslab.tensors.products import check_products, use_onednn
from pslab.tensors.random_streams import (
    Generators,
    generator,
    numpy_generator,
    restored_globals,
    seed_globals,
    seed_of,
)


def test_zeros_take_memory_where_they_are_written():
    before = resident_bytes()
    many = zeros(1 << 24, 2, dtype=torch.float64)
    assert (many.dtype, many.shape) == (torch.float64, (1 << 24, 2))
    many[12345, 1] = 3.0
    assert many[12344:12347].tolist() == [[0.0, 0.0], [0.0, 3.0], [0.0, 0.0]]
    if before is not None:
        assert resident_bytes() - before < many.nbytes / 8


def test_a_gpu_computes_the_same_again_and_the_cpu_what_it_did(monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    try:
        Cuda().prepare()
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled()  # what has no such form is computed, and said
        assert not torch.backends.cudnn.benchmark
        assert not torch.backends.cudnn.allow_tf32
        assert not torch.backends.cuda.matmul.allow_tf32
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    finally:
        Device().prepare()  # the same process, for a run on the CPU
    assert not torch.are_deterministic_algorithms_enabled()


def test_torch_has_as_many_threads_after_one_thread_as_before_and_a_host_without_a_cuda_device_is_named(monkeypatch):
    with one_thread():  # as in all tests, once this one is over
        torch.set_num_threads(2)
        with one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    words = f"torch sees no CUDA device on {re.escape(platform.node())}, the host of worker 3; use device='cpu'"
    with pytest.raises(ConfigError, match=words):
        Cuda().of(3)


@pytest.mark.parametrize("refuses", [False, True])
def test_a_runs_memory_is_locked_once_and_that_of_the_run_before_no_longer(monkeypatch: pytest.MonkeyPatch, refuses):
    """Memory that cannot be locked is copied through other memory."""
    locked, asked = dict[int, int](), list[int]()

    def lock(at: int, size: int, flags: int) -> int:
        asked.append(at)
        locked.update({} if refuses else {at: size})
        return 2 * refuses

    functions = SimpleNamespace(cudaHostRegister=lock, cudaHostUnregister=locked.pop)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: functions)
    monkeypatch.setattr(torch.cuda, "device", nullcontext)
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda each: each.data_ptr() in locked)
    a, b, run, found = torch.zeros(3), torch.zeros(5), object(), []
    with elsewhere():
        for owner, blocks in (
            (run, [a, b]), (run, [a]),  # another worker in this process computes on the same weights
            (object(), [b]), (object(), []),  # at the same place, whose pages may be others by now
        ):  # fmt: skip
            Cuda().pin(owner, blocks)
            found.append((dict(locked), len(asked)))
    at_a, at_b = {a.data_ptr(): 12}, {b.data_ptr(): 20}
    assert found == ([({}, 2), ({}, 3), ({}, 4), ({}, 4)] if refuses else
                     [({**at_a, **at_b}, 2), ({**at_a, **at_b}, 2), (at_b, 3), ({}, 3)])  # fmt: skip


def test_streams_are_pinned_and_each_name_is_another_one() -> None:
    assert seed_of(0) == 7_520_536_977_032_167_579
    assert seed_of(7, "epoch", 3) == 6_137_592_112_203_514_467
    assert numpy_generator(0, "epoch", 0).permutation(8).tolist() == [0, 7, 5, 1, 3, 2, 6, 4]
    before = torch.random.get_rng_state()
    assert torch.randperm(8, generator=generator(0, "epoch", 0)).tolist() == [4, 6, 0, 2, 1, 3, 5, 7]
    assert torch.equal(before, torch.random.get_rng_state())
    seeds = [seed_of(0, "x", i) for i in range(1000)]
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert (max(seeds) > 2**62, len(set(seeds))) == (True, 1000)
    streams = [(0, "a", "b"), (0, "ab"), (0, "a", 1), (0, "a1"), (0, 1), (0, "1"), (0, "a,b"), (1, "a"), (0, "a"),
               (0, 1, "a")]  # fmt: skip
    assert len({seed_of(*names) for names in streams}) == len(streams)
    assert seed_of(np.int64(3), "epoch", np.int64(4)) == seed_of(3, "epoch", 4)
    with pytest.raises(TypeError):
        seed_of(0, 1.5)  # type: ignore[arg-type]


def test_global_generators_start_at_pinned_streams_of_their_own_and_are_restored() -> None:
    def draw(*names: str | int) -> tuple[float, ...]:
        seed_globals(3, *names)
        return random.random(), np.random.rand(), float(torch.rand((), dtype=torch.float64))

    before = global_states()
    with restored_globals():
        first, again, other = draw("layers", 0, 1), draw("layers", 0, 1), draw("layers", 0, 2)
        assert len({*first, *other}) == 6
        assert first == again
        assert global_states() != before
        seed_globals(0, "layers", 1, 2)
        assert torch.initial_seed() == seed_of(0, "layers", 1, 2)
        assert (random.randrange(10**6), np.random.randint(10**6)) == (360008, 75674)
    assert global_states() == before


class Holder:
    """Holds a generator and a number, nothing that Python's garbage collector tracks."""

    def __init__(self) -> None:
        self.draw, self.count = torch.Generator(), 3


def test_generators_are_found_in_what_python_does_not_track() -> None:
    one, two, three = Holder(), copy.deepcopy(Holder()), torch.Generator()
    for holder, held in ((one, one.draw), (two, two.draw), ([({"a": (three, 1)},)], three)):
        gc.collect()  # which ends the tracking of such tuples
        Generators(holder).seed(5, "x")
        first = held.initial_seed()
        Generators(holder).seed(6, "x")
        assert held.initial_seed() != first


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
