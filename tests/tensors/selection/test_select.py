"""Selection: vectors by hand, the rules themselves as oracles, and the compiled loops against the plain reference."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from fractions import Fraction
from functools import lru_cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pslab.tensors.selection import cpu, reference, scan, select

DTYPES = (torch.float32, torch.float64)
LIMITS = {torch.float32: (1e-45, 1e-39, 1e30, 3e38), torch.float64: (1e-320, 1e-155, 1e150, 1e300)}


def by_sorting(v: torch.Tensor, k: int) -> list[int]:
    """The indices of the k largest magnitudes, ties to the lower index: the definition."""
    magnitudes = v.abs().tolist()
    return sorted(sorted(range(len(v)), key=lambda i: (-magnitudes[i], i))[:k])


def exact_std(v: torch.Tensor) -> float:
    values = [Fraction(x) for x in v.tolist()]
    mean = sum(values) / len(values)
    return math.sqrt(sum((x - mean) ** 2 for x in values) / len(values))


def exact_thresholds(v: torch.Tensor, passes: int) -> list[Fraction]:
    found: list[Fraction] = []
    magnitudes = [abs(Fraction(x)) for x in v.tolist()]
    for _ in range(passes):
        above = [m for m in magnitudes if m > (found[-1] if found else 0)]
        if above:
            found.append(sum(above) / Fraction(len(above)))
    return found


@lru_cache
def adversarial(n: int, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Vectors that mislead a sample, a stride, a block or a sum."""
    generator = torch.Generator().manual_seed(n)
    gauss = torch.randn(n, generator=generator, dtype=dtype)
    where = torch.arange(n)
    spike = torch.zeros(n, dtype=dtype)
    spike[n // 3] = -7
    late = gauss * 1e-3
    late[-n // 50 :] *= 1e6
    uniform = torch.rand(n, generator=generator, dtype=torch.float64) * 2 - 1
    return {
        **{f"limit {at}": (uniform * scale).to(dtype) for at, scale in enumerate(LIMITS[dtype])},
        "gauss": gauss,
        "mixed scales": gauss * torch.exp(torch.randn(n, generator=generator, dtype=dtype)),
        "rows": gauss * (1 + where // 1000 % 7),
        "zeros": torch.zeros(n, dtype=dtype),
        "constant": torch.full((n,), -0.1, dtype=dtype),
        "two signs": 0.1 * (1 - 2 * (where % 2)).to(dtype),
        "spike": spike,
        "late": late,
        "rising": where.to(dtype),
        "falling": -where.flip(0).to(dtype),
        "periodic": (where % 64).to(dtype) / 7,
        "period of a thousand": (where % 1000 == 3).to(dtype),
        "mostly zeros": gauss * (torch.rand(n, generator=generator) < 0.003),
        "few values": torch.randint(-3, 4, (n,), generator=generator).to(dtype) / 10,
        "far from zero": gauss + 1e4,
        "denormal": gauss * (1e-42 if dtype == torch.float32 else 1e-312),
        "negative zeros": torch.full((n,), -0.0, dtype=dtype),
    }


vectors = st.sampled_from(["f4", "f8"]).flatmap(
    lambda dtype: hnp.arrays(dtype, st.integers(1, 40), elements=st.one_of(
        st.floats(-1e3, 1e3, width=32), st.sampled_from([0.0, 0.1, -0.1, 0.5, 1.0, -1.0, 2.0])))
).map(torch.from_numpy)  # fmt: skip


@pytest.fixture
def small_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Vectors of a few hundred entries take the path of long ones, with poor bounds."""
    monkeypatch.setattr(cpu, "SMALL", 32)
    monkeypatch.setattr(scan, "DRAWN", (64, 64))
    monkeypatch.setattr(scan, "BLOCK", 0)


def same(expected: torch.Tensor | list[int], found: torch.Tensor) -> None:
    assert found.dtype == torch.int64
    assert torch.equal(torch.as_tensor(expected, dtype=torch.int64), found)


# --- by hand --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "expected"), [([0.0] * 9, []), ([-0.1], [0]), ([-0.1] * 9, list(range(9))), ([0, 1e-3, -0.1, 5], [3])]
)
def test_dynamic_selects_something_of_every_nonzero_vector(values: list[float], expected: list[int]) -> None:
    for dtype in DTYPES:
        for implementation in (select, reference):
            assert implementation.dynamic(torch.tensor(values, dtype=dtype), 50)[0].tolist() == expected


# --- by a sample ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "fraction", "stride"),
    [(2000, 0.001, 1), (2001, 0.001, 1), (100_000, 0.001, 49), (1_000_000, 0.001, 97), (1_000_000, 0.25, 97),
     (200, 0.01, 1), (933_000, 0.01, 97), (10**7, 0.001, 97)],
)  # fmt: skip
def test_sample_stride(n: int, fraction: float, stride: int) -> None:
    assert select.sample_stride(n, fraction, 0.01) == stride
    assert stride == 1 or n // stride >= max(math.ceil(0.01 * n), math.ceil(2 / fraction))


def test_sampled_selects_the_largest_and_at_most_a_fifth_too_few() -> None:
    v, sizes = torch.randn(100_000, generator=torch.Generator().manual_seed(11)), set()
    for first in range(0, 49, 3):
        found = select.sampled(v, 0.001, 0.01, first)
        same(reference.sampled(v, 100, first, 49, 3), found)
        assert 80 <= len(found) <= 100
        sizes.add(len(found))
        same(select.top(v, len(found)), found)
    assert len(sizes) > 3


def test_sampled_lowers_the_threshold_at_most_ten_times() -> None:
    v = torch.full((10_000,), 0.2)
    v[::97] = 1 + torch.arange(104) / 1e4  # exactly the sample, if it starts at 0
    stride = select.sample_stride(10_000, 0.03, 0.01)
    assert stride == 97
    found = select.sampled(v, 0.03, 0.01, 0)
    assert len(found) == 300  # the threshold is below 0.2 when it has been lowered eight times
    v[v < 1] = 0.1
    assert len(select.sampled(v, 0.03, 0.01, 0)) == 104  # it never is below 0.1: 0.8 ** 10 is 0.107
    same(reference.sampled(v, 300, 0, stride, 4), select.sampled(v, 0.03, 0.01, 0))


# --- against the definitions ------------------------------------------------------------------------------------------


@given(vectors, st.data())
def test_top_equals_sorting(v: torch.Tensor, data: st.DataObject) -> None:
    k = data.draw(st.integers(0, len(v)))
    same(by_sorting(v, k), select.top(v, k))
    same(by_sorting(v, k), reference.top(v, k))


@given(vectors, st.floats(-1, 3))
def test_above_and_reaching_are_comparisons(v: torch.Tensor, threshold: float) -> None:
    raised, lowered = (v.new_tensor(threshold * (1 + sign * 2.0**-40)) for sign in (1, -1))
    for implementation in (select, reference):
        same((v.abs() > raised).nonzero().flatten(), implementation.above(v, threshold))
        if threshold >= 0:
            same((v.abs() >= lowered).nonzero().flatten(), implementation.reaching(v, threshold))


@given(vectors)
def test_std_is_the_population_standard_deviation(v: torch.Tensor) -> None:
    exact = exact_std(v)
    assert select.std(v) == pytest.approx(exact, rel=1e-12, abs=1e-300)
    assert reference.std(v) == pytest.approx(exact, rel=1e-12, abs=1e-300)


@given(vectors, st.integers(1, 6))
def test_dynamic_thresholds_are_means(v: torch.Tensor, passes: int) -> None:
    integers = (v * 10).round()  # no mean of these is near another entry without being equal to it
    exact = [float(t) for t in exact_thresholds(integers, passes)]
    for found, thresholds in (select.dynamic(integers, passes), reference.dynamic(integers, passes)):
        assert thresholds == pytest.approx(exact, rel=1e-12)
        if exact:
            above = (integers.abs().double() > exact[-1] * (1 + 1e-12)).nonzero().flatten()
            same(above if len(above) else (integers.abs() == integers.abs().max()).nonzero().flatten(), found)
        else:
            assert not len(found)


@pytest.mark.parametrize("value", [0.1, -3.3e7, 1e-30, 0.0])
def test_std_of_a_constant_vector_is_zero(value: float) -> None:
    for v in (torch.full((n,), value, dtype=dtype) for n in (1, 7, 5000, 300_001) for dtype in DTYPES):
        assert select.std(v) == reference.std(v) == 0


def test_std_far_from_zero() -> None:
    v = torch.randn(20_000, generator=torch.Generator().manual_seed(1), dtype=torch.float64) + 1e9
    v[0] = -1e9  # a first entry that is a bad shift
    assert select.std(v) == pytest.approx(exact_std(v), rel=1e-12)
    assert select.std(v[1:]) == pytest.approx(exact_std(v[1:]), rel=1e-12)


def test_empty_vectors() -> None:
    empty = torch.empty(0)
    assert select.std(empty) == reference.std(empty) == 0
    assert not len(select.dynamic(empty, 3)[0])
    assert not len(select.sampled(empty, 0.001, 0.01, 3))


# --- the compiled loops against the reference -------------------------------------------------------------------------


def assert_agreement(v: torch.Tensor, k: Iterable[int], sigmas: Iterable[float], passes: Iterable[int]) -> None:
    """Both implementations select the same entries of v."""
    for each in k:
        found = select.top(v, each)
        assert len(found) == each
        same(reference.top(v, each), found)
    for factor in sigmas:
        same(reference.above(v, factor * reference.std(v)), select.deviation(v, factor))
    for count in passes:
        (found, thresholds), (expected, means) = select.dynamic(v, count), reference.dynamic(v, count)
        same(expected, found)
        assert thresholds == pytest.approx(means, rel=1e-12)
        assert len(found) or not v.any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", adversarial(8, torch.float32))
def test_implementations_agree(dtype: torch.dtype, name: str) -> None:
    for n in (1, 2, 3, 50, 63, 64, 65, 1023, 1025, 8192, 8193, 40_001):
        v = adversarial(n, dtype)[name]
        assert select.std(v) == pytest.approx(reference.std(v), rel=1e-12)
        assert_agreement(v, (0, 1, n // 1000, n // 100, n // 7, n - 1, n), (0.5, 2), (1, 3, 20))
        for fraction, draw in ((0.001, 3), (0.01, 17), (0.25, 10**18 + 5)):
            stride, k = select.sample_stride(n, fraction, 0.01), select.share(fraction, n)
            sampled = reference.sampled(v, k, draw % stride, stride, select.share(fraction, n // stride))
            same(reference.top(v, k) if stride == 1 else sampled, select.sampled(v, fraction, 0.01, draw))


@pytest.mark.usefixtures("small_samples")
def test_implementations_agree_on_poor_samples() -> None:
    @settings(max_examples=100, deadline=None)
    @given(st.integers(1, 400), st.sampled_from(DTYPES), st.data())
    def agree(n: int, dtype: torch.dtype, data: st.DataObject) -> None:
        v = adversarial(n, dtype)[data.draw(st.sampled_from(list(adversarial(1, dtype))))]
        choices = st.integers(0, n), st.sampled_from([0.1, 1, 2]), st.integers(1, 9)
        assert_agreement(v, *([data.draw(choice)] for choice in choices))

    agree()


SAMPLES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "large ones": lambda x: np.sort(x)[-4096:],
    "small ones": lambda x: x[np.argsort(np.abs(x))[:4096]],
    "zeros": lambda x: np.zeros(4096, x.dtype),
    "one value": lambda x: np.full(4096, 0.7, x.dtype),
    "too large": lambda x: np.full(4096, np.finfo(x.dtype).max),
    "nearly right": lambda x: np.random.default_rng(0).choice(x, 4096) * x.dtype.type(1.02),
    "no tail": lambda x: np.clip(np.random.default_rng(0).choice(x, 4096), -1.7, 1.7),
}


@pytest.mark.parametrize("name", [*SAMPLES, 0, 1, 1100, 5000])
@pytest.mark.parametrize("dtype", DTYPES)
def test_misleading_samples_and_short_lists_lose_no_entry(
    name: str | int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    v = torch.randn(20_000, generator=torch.Generator().manual_seed(5), dtype=dtype)
    if isinstance(name, str):
        monkeypatch.setattr(scan, "sample", lambda x: SAMPLES[name](x.settled()))
    else:
        monkeypatch.setattr(scan, "room", lambda n, count, size: name)
    assert_agreement(v, (1, 100, 9000), (0.5, 1, 3), (1, 2, 3, 5, 30))
    for threshold in (-1.0, 0.0, 0.5, 9.0):
        same(reference.above(v, threshold), select.above(v, threshold))


@pytest.mark.parametrize("kept", [99, 100, 101])
def test_top_lowers_an_edge_that_keeps_too_few(kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    v = torch.randn(20_000, generator=torch.Generator().manual_seed(9))
    edges, kth = iter([v.abs().sort(descending=True).values.numpy()[kept - 1]]), scan.kth
    monkeypatch.setattr(scan, "kth", lambda magnitudes, k: next(edges, None) or kth(magnitudes, k))
    same(reference.top(v, 100), select.top(v, 100))


def test_a_good_sample_saves_all_passes_but_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rule reads a million entries once, and then only those within its bounds."""
    read: list[int] = []
    loops = scan.loops(np.dtype(np.float32))

    class Counted:
        def __getattr__(self, name: str) -> object:
            loop = getattr(loops, name)
            return lambda x, *rest: (
                read.append(len(x[0] if isinstance(x, tuple) else x)) if name != "sample" else None, loop(x, *rest))[1]

    monkeypatch.setattr(scan, "loops", lambda dtype: Counted())
    v = torch.randn(1_000_000, generator=torch.Generator().manual_seed(6))
    for choose in (lambda: select.top(v, 10_000), lambda: select.deviation(v, 3), lambda: select.dynamic(v, 5)):
        read.clear()
        choose()
        assert read.count(len(v)) == 1
        assert sum(read) < 2 * len(v)


def test_selection_leaves_the_vector_unchanged() -> None:
    v = torch.randn(100_000, generator=torch.Generator().manual_seed(7), requires_grad=True)
    before = v.detach().clone()
    select.top(v, 1000), select.deviation(v, 2), select.dynamic(v, 3)
    assert torch.equal(v.detach(), before)
    same(reference.top(v[::2], 99), select.top(v[::2], 99))  # strided


def test_top_refuses_an_impossible_k() -> None:
    for k in (-1, 4):
        with pytest.raises(ValueError, match="the 3 entries"):
            select.top(torch.ones(3), k)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_selects_the_same() -> None:
    for v in (v for dtype in DTYPES for v in adversarial(70_001, dtype).values()):
        on_gpu = v.cuda()
        same(select.top(v, 700), select.top(on_gpu, 700).cpu())
        same(select.deviation(v, 2), select.deviation(on_gpu, 2).cpu())
        same(select.dynamic(v, 3)[0], select.dynamic(on_gpu, 3)[0].cpu())
