"""Quantization rules: what a vector is read as, and how many bytes its code takes, computed by hand or by torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pslab.config.spec import build
from pslab.config.table import ROWS
from pslab.errors import ConfigError, FrameError
from pslab.tensors.finite import NonFinite
from pslab.tensors.quantize.codes import Coded, packed, single
from pslab.tensors.quantize.rules import E4M3, OneBit, ScaledSign, Unquantized, quantization_traits

V = (0.3, -0.4, 0.0, 1.2)
U = (0.1, 0.6, 0.3, 0.9)
EVERY = [row.example or name for name, row in ROWS["quantize"].items() if name != "none"]


def code(rule: Any, v: Any, u: Any = ()) -> np.ndarray:
    """The code of values in float32, with this chance if the rule draws."""
    if isinstance(rule, str):
        rule = build("quantize", rule)
    values, traits = np.array(v, np.float32).astype(np.float64), quantization_traits(rule)
    chance = [np.array(u[: len(v)], np.float32)] if traits.draws else []
    kept = [np.zeros(len(values), np.float32)] if traits.keeps else []
    return np.asarray(rule.encode(values, *chance, *kept))


def read(rule: str, v: Any, u: Any = ()) -> np.ndarray:
    return build("quantize", rule).decode(code(rule, v, u), len(v))


@pytest.mark.parametrize(
    ("rule", "v", "found", "size"),
    [("fp16", (0.1, 1e6, -1e6), (0.0999755859, 65504, -65504), 6),
     ("bf16", (1.00390625, 1.01171875), (1, 1.015625), 4),
     ("bf16", (3.4e38, -3.4e38), (3.38953139e38, -3.38953139e38), 4),
     ("int8", V, (0.302362, -0.396850, 0, 1.2), 8), ("int8:2", V, (0.299213, -0.4, 0, 1.2), 12),
     ("uint8", V, (0.301176, -0.401569, 0, 1.198431), 9), ("uint8:3", V, (0.299216, -0.400784, 0, 1.2), 14),
     ("fp8", V, (0.3, -0.385714, 0, 1.2), 8), ("fp8:1", V, V, 20),
     ("e3m0", (1, -0.74, 0.76, 0.1, 0.007, 0.008), (1, -0.5, 1, 0.125, 0, 0.015625), 7),
     ("e3m0", (1, 0.75), (1, 1), 5),  # of two that are as near the upper one
     ("qsgd:2", V, (1.3, 0, 0, 1.3), 5), ("qsgd:4", V, (0.371429, -0.371429, 0, 1.114286), 6),
     ("qsgd:8", V, (0.307087, -0.399213, 0, 1.197638), 8), ("qsgd:2,bucket=3", V, (0.5, -0.5, 0, 1.2), 9),
     ("qsgd:4,norm=max", V, (0.342857, -0.342857, 0, 1.2), 6),
     ("terngrad", V, (1.2, 0, 0, 1.2), 5), ("terngrad", (0.5, 0.5, 0.5, 0.5), (0.5,) * 4, 5),
     ("terngrad", (0.5,), (0.5,), 5),  # without deviation nothing is clipped
     ("onebit", V, (0.5, -0.4, 0.5, 0.5), 9), ("efsign", V, (0.475, -0.475, 0.475, 0.475), 5),
     ("sign", V, (1, -1, 1, 1), 1), ("sign", (-1.0,) * 9, (-1,) * 9, 2),
     ("uniform8", V, V, 1036), ("uniform8", (0.7,), (0.7,), 1033), ("uniform8", (0.5, 0.5), (0.5, 0.5), 1034),
     ("quantile:2", V, (0.75, -0.2, -0.2, 0.75), 9), ("quantile:3", (1, 2), (1, 2), 13),
     ("dynamic8", V, (0.297188, -0.398438, 0, 1.2), 8), ("dynamic8:1", (2, -2), (2, -1.985938), 10),
     ("inceptionn", (1.5, 0.3, -0.01, 0.0005, 0.99999), (1.5, 0.299987793, -0.009765625, 0, 0.999969482), 11),
     ("inceptionn:7", (-0.5, 1.0, 0.001), (-0.5, 1, 0), 6)],
)  # fmt: skip
def test_a_rule_reads_a_vector_as_worked_by_hand(rule: str, v: Any, found: Any, size: int) -> None:
    np.testing.assert_allclose(read(rule, v, U), found, rtol=2e-6, atol=1e-9)
    assert len(code(rule, v, U)) == size
    low, high = build("quantize", rule).bounds(len(v))
    assert low <= size <= high
    assert low == high or rule.startswith("inceptionn")


def test_natural_compression_rounds_to_powers_of_two_by_chance() -> None:
    assert read("natural", V, (0.1, 0.7, 0.3, 0.1)).tolist() == [0.5, -0.25, 0, 2]
    far = (2.0**-108, 2.0**-109, -(2.0**18), 2.0**20)
    assert read("natural", far, (0.5,) * 4).tolist() == [2.0**-108, 0, -(2.0**18), 2.0**18]
    assert len(code("natural", V, U)) == 4


def test_signum_keeps_a_momentum() -> None:
    rule, kept, signs = build("quantize", "signum:0.9"), np.zeros(1), []
    for v, momentum in ((1, 0.1), (-2, -0.11), (-2, -0.299)):
        signs.append(rule.decode(rule.encode(np.array([v], float), kept), 1)[0])
        assert kept == pytest.approx(momentum)
    assert signs == [1, -1, -1]


def sent(rule: Any, gradients: Any) -> tuple[list[list[float]], list[list[float]]]:
    """With error feedback: what is read of each gradient, and the residual after it."""
    residual, each = np.zeros(len(gradients[0])), []
    for gradient in gradients:
        v = residual + gradient
        found = rule.decode(rule.encode(v), len(v))
        residual = v - found
        each.append((found.tolist(), residual.tolist()))
    return [found for found, _ in each], [after for _, after in each]


def test_error_feedback_of_one_bit_and_of_the_scaled_sign() -> None:
    assert sent(OneBit(), [(1, -3, 2)] * 2) == ([[1.5, -3, 1.5]] * 2, [[-0.5, 0, 0.5], [-1, 0, 1]])
    assert sent(ScaledSign(), [(1, -3)] * 3) == (
        [[2, -2], [2, -2], [-3, -3]], [[-1, -1], [-2, -2], [2, -2]])  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "error"),
    [("fp8", 0.026), ("int8", 0.009), ("uint8", 0.008), ("uniform8", 0.0135), ("dynamic8", 0.0125), ("e3m0", 0.20),
     ("natural", 0.29), ("qsgd:8", 0.037), ("qsgd:4", 0.66), ("qsgd:2", 2.85), ("qsgd:4,norm=max", 0.165),
     ("efsign", 0.60), ("onebit", 0.60), ("terngrad", 1.0)],
)  # fmt: skip
def test_relative_error_of_ten_thousand_gaussians(rule: str, error: float) -> None:
    rng = np.random.default_rng(0)
    v, u = rng.standard_normal(10_000), rng.random(10_000, np.float32)
    found = np.linalg.norm(read(rule, v, u) - v) / np.linalg.norm(v)
    assert found == pytest.approx(error, rel=0.06)


@pytest.mark.parametrize("rule", ["qsgd:2", "qsgd:4", "qsgd:4,norm=max", "natural", "terngrad"])
def test_random_rounding_has_the_right_mean(rule: str) -> None:
    rng, v = np.random.default_rng(0), np.array([0.3, -0.4, 0.05, 0.5])
    mean = np.mean([read(rule, v, rng.random(4, np.float32)) for _ in range(4000)], axis=0)
    np.testing.assert_allclose(mean, v, atol=0.03)


@pytest.mark.parametrize("rule", [each for each in EVERY if not each.startswith("sign")])
@pytest.mark.parametrize("v", [(0.0,) * 5, (1e-45, 0.0, -1e-45, 0.0, 0.0)], ids=["zeros", "scale 0"])
def test_a_piece_of_zeros_is_read_as_zeros(rule: str, v: Any) -> None:
    np.testing.assert_allclose(read(rule, v, (0.0,) * 5), 0, atol=1.5e-45)


def test_a_sign_alone_has_no_zero() -> None:
    assert read("sign", (0.0, -0.0)).tolist() == read("signum", (0.0, 0.0)).tolist() == [1, 1]


def test_e4m3_is_that_of_torch() -> None:
    x = torch.linspace(-448, 448, 100_001)
    unit = (448.0, *(x.tolist()))  # so that the scale is 1
    assert np.array_equal(read("fp8", unit)[1:], x.to(torch.float8_e4m3fn).double().numpy())
    assert E4M3[-1] == 448


def test_half_precision_is_that_of_torch() -> None:
    x = torch.from_numpy(np.random.default_rng(0).standard_normal(10_000).astype(np.float32)) * 1e-3
    assert np.array_equal(read("bf16", x.numpy()), x.bfloat16().double().numpy())
    assert np.array_equal(read("fp16", x.numpy()), x.half().double().numpy())


def test_what_is_truncated_is_never_rounded_away_from_zero() -> None:
    v = np.array([0.1, -0.1, 1.0, 1 + 2.0**-30, -1 - 2.0**-24 * 1.5, 3e38, -1e39])
    rule = build("quantize", "inceptionn:15")
    found = rule.decode(rule.encode(v), len(v))
    assert (np.abs(found) <= np.abs(v)).all()
    np.testing.assert_allclose(found[:2], v[:2], atol=2.0**-15)
    np.testing.assert_allclose(found[2:6], v[2:6], rtol=2.0**-23)
    assert found[6] == -np.finfo(np.float32).max


def test_symbols_are_packed_lowest_bits_first() -> None:
    assert packed(np.array([1, 2, 3]), 4).tolist() == [0x21, 0x03]
    assert packed(np.array([1, 0, 0, 1, 0, 0, 0, 0, 1]), 1).tolist() == [0b1001, 1]


@settings(max_examples=300)
@given(st.sampled_from(EVERY), st.integers(1, 300), st.data())
def test_forged_codes_are_refused_or_are_finite(text: str, n: int, data: st.DataObject) -> None:
    rule = build("quantize", text)
    rng = np.random.default_rng(n)
    forged = code(text, rng.standard_normal(n), rng.random(n, np.float32)).copy()
    for _ in range(data.draw(st.integers(1, 3))):
        forged[data.draw(st.integers(0, len(forged) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = rule.decode(forged, n)
    except FrameError:
        return
    assert found.shape == (n,)
    assert np.isfinite(found).all()


def f4(x: float) -> bytes:
    return np.float32(x).tobytes()


@pytest.mark.parametrize(
    ("rule", "n", "forged", "words"),
    [("int8", 1, f4(1) + bytes([255]), "255, of 255"), ("int8", 1, f4(-1) + bytes([1]), "negative"),
     ("int8", 1, f4(np.nan) + bytes([1]), "no finite number"), ("int8", 1, f4(np.inf) + bytes([1]), "no finite number"),
     ("int8", 1, f4(1), "5 bytes, not 4"), ("int8", 1, f4(1) + bytes(2), "5 bytes, not 6"),
     ("efsign", 3, f4(1) + bytes([0b1000]), "not 0"), ("sign", 9, bytes([0, 2]), "not 0"),
     ("e3m0", 1, f4(1) + bytes([0x10]), "not 0"), ("e3m0", 1, f4(-0.0) + bytes([1]), "negative"),
     ("terngrad", 1, f4(1) + bytes([3]), "3, of 3"), ("quantile:3", 1, bytes(12) + bytes([3]), "3, of 3"),
     ("quantile:2", 1, f4(np.nan) + f4(0) + bytes([0]), "no finite number"),
     ("fp8", 1, f4(1) + bytes([0x7F]), "no finite number"), ("fp8", 1, f4(1) + bytes([0xFF]), "no finite number"),
     ("fp16", 1, np.float16(np.inf).tobytes(), "no finite number"),
     ("bf16", 1, bytes([0x80, 0x7F]), "no finite number"),
     ("inceptionn", 4, b"", "too few"), ("inceptionn", 1, bytes([0b100]), "not 0"),
     ("inceptionn", 1, bytes([0x03]) + bytes(2) + bytes([0xFE, 0x01]), "no finite number")],
)  # fmt: skip
def test_codes_that_no_encoder_writes_are_refused(rule: str, n: int, forged: bytes, words: str) -> None:
    with pytest.raises(FrameError, match=words):
        build("quantize", rule).decode(np.frombuffer(forged, np.uint8), n)


def test_a_scale_beyond_float32_is_refused() -> None:
    with pytest.raises(NonFinite, match="too large for float32"):
        single(1e39)
    assert single(3.4e38) == np.float64(np.float32(3.4e38))


@pytest.mark.parametrize(
    ("text", "words"),
    [("terngrad:residual=on", "would grow for ever: use residual=off"), ("qsgd", "needs bits, as in 'qsgd:4'"),
     ("qsgd:1", "from 2 to 8"), ("qsgd:9", "from 2 to 8"), ("int8:-1", "of at least 0"),
     ("quantile:1", "from 2 to 256"),
     ("signum:1", "below 1"), ("inceptionn:16", "from 7 to 15"), ("qsgd:4,norm=l1", "l2, max"),
     ("none:1", "none takes no parameters"), ("qsdg:4", "did you mean 'qsgd'")],
)  # fmt: skip
def test_a_wrong_rule_is_refused_with_what_is_allowed(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        build("quantize", text)


def test_the_residual_of_a_rule_is_kept_where_its_code_is_biased() -> None:
    kept = {name for name, row in ROWS["quantize"].items() if build("quantize", row.example or name).residual}
    assert kept == {"onebit", "efsign"}
    assert not Unquantized.residual


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_the_residual_of_random_rounding_stays_bounded(bits: int) -> None:
    """Without the division by 1 + w, that of two bits is beyond 10^13 after 200 steps."""
    def after(rule: Any, steps: int) -> float:
        rng, residual = np.random.default_rng(0), np.zeros(1000)
        for _ in range(steps):
            v = residual + rng.standard_normal(1000)
            residual = v - rule.decode(rule.encode(v, rng.random(1000, np.float32)), 1000)
        return float(np.sqrt(np.mean(residual**2)))

    rule = build("quantize", f"qsgd:{bits},residual=on")
    assert after(rule, 400) < {2: 3.2, 4: 1.1, 8: 0.06}[bits]
    if bits == 2:
        assert after(build("quantize", "qsgd:2"), 50) > 1e4


def test_every_rule_has_what_the_stage_asks_of_it() -> None:
    for text in EVERY:
        rule = build("quantize", text)
        assert isinstance(rule, Coded) or quantization_traits(rule).length is not None
        assert rule.bounds(1)[0] > 0
