"""A gradient is added to the memories while entries are selected, and the result is that of torch's operators."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from pslab.config.spec import build
from pslab.tensors.finite import NonFinite
from pslab.tensors.pruning.pruner import Pruner
from pslab.tensors.selection import scan, select
from pslab.tensors.selection.scan import Sum

LAYERS = (30_000, 300, 9_000)  # sampled ones, and one that is not
RULES = ("static:1%", "static:10%", "static:30%", "static:1%,mode=frozen", "std:1", "std:3", "dynamic:5", "dynamic:1",
         "dynamic:mode=literal", "dynamic:mode=ratchet", "dgc:1%,warm_up=0", "dgc:1%,warm_up=1,masking=off",
         "dgc:0.1%,warm_up=0,nesterov=on", "dgc:1%,warm_up=0,momentum=0,clip=1")  # fmt: skip


def gradients(dtype: torch.dtype, count: int = 12) -> list[torch.Tensor]:
    """Of slowly changing size, with zeros, equal entries and a jump, which no guess foresees."""
    generator = torch.Generator().manual_seed(3)
    found = []
    for step in range(count):
        g = torch.randn(sum(LAYERS), generator=generator, dtype=torch.float64) * (1 + 0.1 * step)
        g[::5], g[3::17] = 0.0, 1.25
        found.append((g * (100 if step == 7 else 1)).to(dtype))
    return found


def pruner(rule: str, dtype: torch.dtype) -> Pruner:
    ends = np.cumsum((0, *LAYERS)).tolist()
    layers = [slice(low, high) for low, high in pairwise(ends)]
    tensors = [(layers[0], 2), (layers[1], 1), (layers[2], 2)]
    return Pruner(build("prune", rule), layers, ends[-1], dtype, tensors=tensors)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rule", RULES)
def test_a_pruner_with_compiled_loops_sends_and_keeps_what_torchs_operators_do(rule: str, dtype: torch.dtype) -> None:
    ours, plain = pruner(rule, dtype), pruner(rule, dtype)
    plain._compiled = False
    for iteration, gradient in enumerate(gradients(dtype)):
        before = gradient.clone()
        mine, other = ours.prune(gradient, iteration), plain.prune(gradient, iteration)
        assert torch.equal(gradient, before)
        for a, b in zip((*mine, *ours.kept.values()), (*other, *plain.kept.values()), strict=True):
            assert a.numpy().tobytes() == b.numpy().tobytes()


def test_plain_pruners_are_those_that_add_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sum, "take", lambda *_: pytest.fail("a sum"))
    plain = pruner("static:1%", torch.float32)
    plain._compiled = False
    plain.prune(gradients(torch.float32, 1)[0], 0)


def test_a_gradient_that_is_like_the_one_before_is_added_and_searched_in_one_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: list[int] = []
    loops = scan.loops(np.dtype(np.float32))

    class Counted:
        def __getattr__(self, name: str) -> object:
            loop = getattr(loops, name)
            return lambda x, *rest: (read.append(len(x[0]) if isinstance(x, tuple) else 0), loop(x, *rest))[1]

    generator = torch.Generator().manual_seed(1)
    for rule in ("static:1%", "std:2"):
        one = Pruner(build("prune", rule), [slice(0, 100_000)], 100_000)
        for _ in range(8):
            one.prune(torch.randn(100_000, generator=generator), 0)
        with monkeypatch.context() as patched:
            patched.setattr(scan, "loops", lambda dtype: Counted())
            patched.setattr(scan, "sample", lambda x: pytest.fail("a guess makes a sample needless"))
            read.clear()
            one.prune(torch.randn(100_000, generator=generator), 0)
            assert sum(read) == 100_000


@pytest.mark.parametrize("guess", [(0.0, 0.01), (1e30, 0.01), (float("inf"), 0.5), (0.7, 0.0), (-1.0, 1.0)])
def test_a_wrong_guess_loses_no_entry(guess: tuple[float, float]) -> None:
    x = np.random.default_rng(0).standard_normal(20_000).astype(np.float32)
    for choose in (lambda v: select.top(v, 200), lambda v: select.deviation(v, 2.0)):
        v = Sum(x.copy(), x.copy())
        v.guess = np.float32(guess[0]), guess[1]
        assert choose(v).tolist() == choose(torch.from_numpy(x + x)).tolist()


@pytest.mark.parametrize("rule", [r for r in RULES if "clip" not in r])
def test_sums_without_a_number_are_refused_whatever_the_rule(rule: str) -> None:
    one = pruner(rule, torch.float32)
    one.kept["residual"][5] = one.kept["residual"][30_500] = torch.finfo(torch.float32).max
    gradient = torch.full((sum(LAYERS),), 1e37)
    with pytest.raises(NonFinite, match="the sum with the residual or the momentum"):  # soon
        [one.prune(gradient, 0) for _ in range(300)]
