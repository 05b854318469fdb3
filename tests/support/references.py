"""The rules of compression as their papers state them, in plain NumPy, one vector at a time: an oracle.

Nothing here is of pslab but the names of random streams; a rule costs it a few lines.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

Array = np.ndarray
LARGEST = float(np.finfo(np.float32).max)

# --- quantization: (values that are read, bytes of the code) of v, float64, and of chance u, and what is kept ---------


def f4(x: Any) -> Any:
    return np.asarray(x, np.float64).astype(np.float32).astype(np.float64)


def nearest(levels: Array, x: Array, tie: str) -> Array:
    """Of two levels at the same distance the even one or the upper one, by number."""
    middles = (levels[1:] + levels[:-1]) / 2
    at = np.searchsorted(middles, x, side="right" if tie == "up" else "left")
    if tie == "even":
        at += (x == middles[np.minimum(at, len(middles) - 1)]) & (at % 2 == 1)
    return levels[at]


def per_block(v: Array, size: int, code: Callable[[Array], Array]) -> tuple[Array, int]:
    """Each block by itself, and the number of blocks."""
    cuts = range(0, len(v), size or len(v))
    return np.concatenate([code(v[at : at + (size or len(v))]) for at in cuts]), len(cuts)


def scaled(v: Array, most: float, levels: Callable[[Array], Array]) -> Array:
    scale = float(f4(np.abs(v).max() / most))
    return scale * levels(v / scale) if scale else np.zeros(len(v))


FLOAT8 = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).double().numpy()
POWERS = np.array([0.0, *(2.0**e for e in range(-6, 1))])
PARTS = [np.linspace(0.1, 1, 2**i + 1) for i in range(7)]
MIDDLES = np.concatenate([10.0 ** (i - 6) * (each[1:] + each[:-1]) / 2 for i, each in enumerate(PARTS)])
DYNAMIC = np.sort([0.0, 1.0, *MIDDLES, *-MIDDLES])
#: Of codes that scale each block: the number that its largest entry becomes, and the levels.
SCALED: dict[str, tuple[float, Callable[[Array], Array]]] = {
    "int8": (127, lambda x: np.clip(np.rint(x), -127, 127)),
    "fp8": (448, lambda x: np.sign(x) * nearest(FLOAT8, np.abs(x), "even")),
    "e3m0": (1, lambda x: np.sign(x) * nearest(POWERS, np.abs(x), "up")),
    "dynamic8": (1, lambda x: nearest(DYNAMIC, x, "up")),
}


def uint8(v: Array) -> Array:
    low, high = min(v.min(), 0.0), max(v.max(), 0.0)
    scale = float(f4(max((high - low) / 255, 2.0**-23)))
    zero = np.clip(-np.rint(low / scale), 0, 255)
    return (np.clip(np.rint(v / scale) + zero, 0, 255) - zero) * scale


def qsgd(rule: Any, v: Array, u: Array) -> Array:
    top = 2 ** (rule.bits - 1) - 1
    norm = float(f4(np.abs(v).max() if rule.norm == "max" else np.sqrt((v * v).sum())))
    exact = top * np.abs(v / norm) if norm else np.zeros(len(v))
    level = np.minimum(np.floor(exact) + (u < exact - np.floor(exact)), top)
    worst = 1 + min(rule.bucket / top**2, math.sqrt(rule.bucket) / top) * rule.residual
    return np.sign(v) * level * norm / (top * worst)


def natural(rule: Any, v: Array, u: Array) -> Array:
    fraction, power = np.frexp(np.abs(v))  # |v| = 2 fraction 2^(power - 1)
    up = np.minimum(power + (u < 2 * fraction - 1), 19)  # the exponent, from -108 to 18, and one
    found = np.where((v == 0) | (up < -107), 0.0, np.ldexp(1.0, up - 1))
    return np.sign(v) * found / (1 + rule.residual / 8)


def group_means(v: Array, groups: Array) -> Array:
    return np.array([f4(np.mean(v[groups == each])) for each in groups])


def uniform8(v: Array) -> Array:
    mean, deviation = (float(f4(x)) for x in (v.mean(), v.std(ddof=1) if len(v) > 1 else 0.0))
    bins = np.rint((v - mean) * 256 / (6 * deviation)) + 128 if deviation else np.full(len(v), 128)
    return group_means(v, np.clip(bins, 0, 255))


def quantile(rule: Any, v: Array) -> Array:
    groups = np.empty(len(v))
    groups[np.argsort(v, kind="stable")] = np.arange(len(v)) * rule.runs // len(v)
    return group_means(v, groups)


def truncated(rule: Any, v: Array) -> tuple[Array, int]:
    """inceptionn: to 2^-e, to 2^-15, or to a float32, never away from 0."""
    size, low = np.abs(v), 2.0**-rule.e
    single = np.minimum(size, LARGEST).astype(np.float32)
    single = np.where(single > size, np.nextafter(single, np.float32(0)), single).astype(np.float64)
    tag = (size >= low).astype(int) + (size >= 2.0 ** (7 - rule.e)) + (size >= 1)
    found = np.choose(tag, [0 * size, np.floor(size / low) * low, np.floor(size * 2.0**15) / 2.0**15, single])
    return np.sign(v) * found, -(-(2 * len(v) + int(np.array([0, 8, 16, 32])[tag].sum())) // 8)


def terngrad(v: Array, u: Array) -> Array:
    most = (2.5 * v.std() if np.ptp(v) else 0.0) or math.inf
    scale = float(f4(min(most, np.abs(v).max())))
    return np.sign(v) * scale * (u.astype(float) * scale < np.minimum(np.abs(v), most if scale else 0.0))


def quantized(name: str, rule: Any, v: Array, u: Array, kept: Array) -> tuple[Array, int]:
    """What a rule of this name reads of v, and the bytes of its code; `kept` is changed."""
    n, block = len(v), getattr(rule, "block", 0)
    if name in SCALED:
        found, count = per_block(v, block, lambda b: scaled(b, *SCALED[name]))
        return found, 4 * count + (-(-n // 2) if name == "e3m0" else n)
    match name:
        case "fp16":
            top = 65504.0
            return np.clip(v, -top, top).astype(np.float16).astype(float), 2 * n
        case "bf16":
            top = float(torch.finfo(torch.bfloat16).max)
            return torch.from_numpy(np.clip(v, -top, top)).float().bfloat16().double().numpy(), 2 * n
        case "uint8":
            found, count = per_block(v, block, uint8)
            return found, 5 * count + n
        case "qsgd":
            cuts = range(0, n, rule.bucket)
            found = np.concatenate([qsgd(rule, v[a : a + rule.bucket], u[a : a + rule.bucket]) for a in cuts])
            return found, 4 * len(cuts) + -(-n * rule.bits // 8)
        case "natural":
            return natural(rule, v, u), n
        case "uniform8":
            return uniform8(v), 4 * 258 + n
        case "quantile":
            return quantile(rule, v), 4 * rule.runs + -(-n * (rule.runs - 1).bit_length() // 8)
        case "inceptionn":
            return truncated(rule, v)
        case "terngrad":
            return terngrad(v, u), 4 + -(-n // 4)
        case "onebit":
            means = [float(f4(np.abs(v[own]).mean())) if own.any() else 0.0 for own in (v >= 0, v < 0)]
            return np.where(v < 0, -means[1], means[0]), 8 + -(-n // 8)
        case "efsign":
            return np.where(v < 0, -1.0, 1.0) * f4(np.abs(v).mean()), 4 + -(-n // 8)
        case "sign":
            return np.sign(v), -(-n // 8) * (1 + (v == 0).any())
        case "signum":
            kept[:] = rule.beta * kept.astype(float) + (1 - rule.beta) * v
            return np.sign(kept), -(-n // 8) * (1 + (kept == 0).any())
        case _:
            raise LookupError(f"no reference of {name}")


# --- pruning: what is sent of each gradient, with all memories, tensor by tensor --------------------------------------

WARM_UP = (0.25, 0.0625, 0.015625, 0.004, 0.001)


def largest(v: Array, k: int) -> list[int]:
    return sorted(sorted(range(len(v)), key=lambda i: (-abs(v[i]), i))[:k])


def ceil_of(fraction: float, n: int) -> int:
    return min(n, max(1, math.ceil(round(fraction * n, 9))))


def means_above(v: Array, passes: int) -> list[float]:
    found: list[float] = []
    for _ in range(passes):
        above = np.abs(v)[np.abs(v) > (found[-1] * (1 + 1e-12) if found else 0)].astype(float)
        if not len(above):
            break
        found.append(float(above.mean()))
    return found


def by_dynamic(v: Array, passes: int) -> list[int]:
    means = means_above(v, passes)
    if not means:
        return []
    above = np.flatnonzero(np.abs(v) > means[-1] * (1 + 1e-12))
    return (above if len(above) else np.flatnonzero(np.abs(v) >= means[-1] * (1 - 1e-12))).tolist()


def by_deviation(v: Array, sigmas: float) -> list[int]:
    return np.flatnonzero(np.abs(v) > v.dtype.type(sigmas * np.std(v.astype(float)) * (1 + 1e-12))).tolist()


def by_sample(v: Array, fraction: float, part: float, draw: int) -> list[int]:
    """Lin et al.: a sampled threshold, lowered while too few reach it; of too many the largest."""
    n, k, enough, stride = len(v), ceil_of(fraction, len(v)), math.ceil(2 / fraction), 1
    if n > enough:
        least = max(ceil_of(part, n), enough)
        stride = math.ceil(n / least / 32) * 32 + 1
        while n // stride < least:
            stride -= 8
    if stride == 1:
        return largest(v, k)
    threshold = np.sort(np.abs(v[draw % stride :: stride]))[::-1][ceil_of(fraction, n // stride) - 1]
    for _ in range(10):
        if (np.abs(v) >= v.dtype.type(threshold)).sum() >= 0.8 * k:
            break
        threshold = float(threshold) * 0.8
    found = np.flatnonzero(np.abs(v) >= v.dtype.type(threshold))
    return found.tolist() if len(found) <= k else [int(found[i]) for i in largest(v[found], k)]


class Worker:
    """One worker's memories. `push` gives the entries of a layer, or of one of its tensors, that are sent."""

    def __init__(self, name: str, rule: Any, size: int, dtype: Any, setting: Any, seed_of: Callable[..., int]) -> None:
        self.name, self.rule, self.setting, self.seed_of = name, rule, setting, seed_of
        self.residual, self.momentum = np.zeros((2, size), dtype)
        self.thresholds: dict[int, float] = {}
        self.m = getattr(rule, "momentum", 0.0)

    def push(self, gradient: Array, start: int, layer: int, step: int, *, unpruned: bool) -> tuple[list[int], Array]:
        here, rule, g = slice(start, start + len(gradient)), self.rule, gradient
        if self.m:
            u = self.momentum[here]
            u[:] = self.m * (u + g) if rule.nesterov else self.m * u + g
            g = u + g if rule.nesterov else u.copy()
        if unpruned:
            return list(range(len(g))), g
        residual = self.residual[here]
        v = g + residual if self.name == "ef21" or (self.name != "none" and rule.residual) else g
        at = self.select(v, start, layer, step)
        values = v[at] * (len(v) / len(at) if self.name == "randomk" and not rule.residual else 1)
        if self.name == "ef21":
            residual[at] -= values
        elif rule.residual:
            residual[:] = v
            residual[at] = 0
        if self.m and rule.masking:
            self.momentum[here][at] = 0
        return at, values

    def select(self, v: Array, start: int, layer: int, step: int) -> list[int]:
        rule, size, last = self.rule, np.abs(v), self.thresholds.get(layer, 0.0)
        epoch, epochs = step / self.setting.epoch_iterations, getattr(rule, "warm_up", 0)
        warm = WARM_UP[int(epoch * 5 / max(epochs, 5))] if epoch < epochs else None
        if warm and self.name != "dgc":
            return largest(v, ceil_of(max(warm, getattr(rule, "fraction", 0)), len(v)))
        mode = getattr(rule, "mode", "")
        match self.name:
            case "none":
                return list(range(len(v)))
            case "static" if mode == "frozen" and last:
                return np.flatnonzero(size >= last * (1 - 1e-12)).tolist()
            case "static" | "ef21":
                found = largest(v, ceil_of(rule.fraction, len(v)))
                self.thresholds[layer] = float(size[found].min()) if found else 0.0
                return found
            case "std":
                return by_deviation(v, rule.sigmas)
            case "dynamic" if mode == "passes":
                return by_dynamic(v, rule.passes)
            case "dynamic":
                last *= rule.gamma if mode == "decay" else 1.0
                found = np.flatnonzero(size > last * (1 + 1e-12)).tolist()
                if found:
                    last = float(size[found].astype(float).mean())
                elif mode == "ratchet":
                    found, means = by_dynamic(v, 1), means_above(v, 1)
                    last = means[0] if means else 0.0
                self.thresholds[layer] = last
                return found
            case "dgc":
                draw = self.seed_of(self.setting.seed, "sample", self.setting.worker, step, start)
                return by_sample(v, max(warm or 0, rule.fraction), rule.sample, draw)
            case "threshold":
                return np.flatnonzero(size >= rule.theta * (1 - 1e-12)).tolist()
            case "randomk":
                draw = np.random.Generator(np.random.PCG64(self.seed_of(self.setting.seed, "shared", step, start)))
                return np.sort(draw.choice(len(v), ceil_of(rule.fraction, len(v)), False, shuffle=False)).tolist()
            case "adaq":
                signs = [(own, int(np.count_nonzero(own))) for own in (v.clip(min=0), v.clip(max=0))]
                return sorted(at for own, count in signs if count for at in largest(own, ceil_of(rule.fraction, count)))
        raise LookupError(f"no reference of {self.name}")


# --- whole matrices: what is read of one ------------------------------------------------------------------------------


def orthogonal(x: Array) -> Array:
    return np.linalg.qr(x)[0]


def cosine(n: int) -> Array:
    rows = [[math.sqrt((2 if k else 1) / n) * math.cos(math.pi * (2 * i + 1) * k / (2 * n)) for i in range(n)]
            for k in range(n)]  # fmt: skip
    return np.array(rows)


def of_matrix(name: str, rule: Any, matrix: Array, turn: int, start: Array | None, hashes: Any) -> Array:
    """What is read of a matrix of which factors, coefficients or a sketch are sent; `start` is the factor before."""
    if name == "lowrank":  # one power iteration: the projection on what M Q spans
        p = orthogonal(matrix @ start)
        return p @ (p.T @ matrix)
    if name == "powersgd":
        return (matrix @ start) @ start.T if (turn - rule.after) % 2 else start @ (start.T @ matrix)
    if name == "demo":
        a, b = (next(d for d in range(min(side, rule.chunk), 0, -1) if side % d == 0) for side in matrix.shape)
        found = np.empty(matrix.shape)
        for i in range(0, matrix.shape[0], a):
            for j in range(0, matrix.shape[1], b):
                spectrum = (cosine(a) @ matrix[i : i + a, j : j + b] @ cosine(b).T).ravel()
                only = np.zeros(a * b)
                sent = largest(spectrum, min(rule.topk, a * b))
                only[sent] = f4(spectrum[sent])
                found[i : i + a, j : j + b] = cosine(a).T @ only.reshape(a, b) @ cosine(b)
        return found
    assert name == "sketch"
    (buckets, signs), v = hashes, matrix.ravel()
    table = np.zeros((rule.rows, rule.cols))
    for row in range(rule.rows):
        for entry, value in enumerate(v):
            table[row, buckets[row, entry]] += signs[row, entry] * value
    said = [[signs[row, entry] * f4(table[row, buckets[row, entry]]) for row in range(rule.rows)]
            for entry in range(len(v))]  # fmt: skip
    return np.median(said, axis=1).reshape(matrix.shape)
