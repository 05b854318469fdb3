"""The number of keys that can be exchanged during the computation of a gradient, fitted online.

    T(r) = alpha + beta r    seconds to exchange r keys; with overlap an iteration takes max(T_c, T(r))
    r*   = clamp(floor((T_c - alpha) / beta), 1, N)    at which neither worker nor link waits for the other

alpha and beta are fitted by recursive least squares with forgetting (x = (1, r), factor 0.98, P0 = 1e6 I). T_c, the
time to compute a gradient, is a moving mean, or a low quantile if a worker should almost never wait for its link. With
more than r* keys the worker waits for the link; with fewer keys the link is idle, and a sweep over all N keys takes
longer. Tsai's slides (2017) do not give a rule: this one is pslab's.
"""

from __future__ import annotations

import math
from typing import NamedTuple

FORGETTING = 0.98
P0 = 1e6
P_MAX = 1e9
BETA_MIN = 1e-12  # seconds per key; a smaller fit is noise
PROBES = 3  # first sweeps, which try two sizes, all keys and half of them, before the fit is used
SMOOTHING = 0.1  # weight of a new computing time in the moving mean
WINDOW = 40  # number of computing times of which the quantile is taken


class LinearFit(NamedTuple):
    """The fitted alpha and beta, and their uncertainty P = [[p, q], [q, s]]."""

    alpha_s: float = 0.0
    beta_s: float = 0.0
    p: float = P0
    q: float = 0.0
    s: float = P0


def fitted(line: LinearFit, size: float, seconds: float, forgetting: float = FORGETTING) -> LinearFit:
    """Return the fit after one more exchange: k = P x / (l + x'P x), theta += k (T - x'theta), P = (P - k x'P) / l.

    P is computed in Joseph's form, which stays positive. P would grow without bound if the sizes no longer varied, so a
    P above P_MAX is reset to P0.
    """
    p, q, s = line.p / forgetting, line.q / forgetting, line.s / forgetting
    u, v = p + q * size, q + s * size
    k, m = u / (1 + u + v * size), v / (1 + u + v * size)
    error = seconds - line.alpha_s - line.beta_s * size
    a, b, c, d = 1 - k, -k * size, -m, 1 - m * size  # I - (k, m) x'
    new = LinearFit(line.alpha_s + k * error, line.beta_s + m * error,
               a * a * p + 2 * a * b * q + b * b * s + k * k,
               a * c * p + (a * d + b * c) * q + b * d * s + k * m,
               c * c * p + 2 * c * d * q + d * d * s + m * m)  # fmt: skip
    return new if max(new.p, new.s) <= P_MAX else new._replace(p=P0, q=0.0, s=P0)


def exchange_s(line: LinearFit, size: float) -> float:
    """Return T(r) in seconds, with alpha at least 0 and beta at least BETA_MIN."""
    return max(0.0, line.alpha_s) + max(BETA_MIN, line.beta_s) * size


def best_size(line: LinearFit, compute_s: float, keys: int) -> int:
    """Return r*, the largest number of keys, from 1 to `keys`, whose exchange is hidden by computing."""
    crossing = (compute_s - max(0.0, line.alpha_s)) / max(BETA_MIN, line.beta_s)
    return int(min(max(math.floor(crossing + 1e-9), 1), keys))


def idle_s(line: LinearFit, size: float, compute_s: float) -> float:
    """Return the seconds of an iteration in which a worker waits for its link."""
    return max(0.0, exchange_s(line, size) - compute_s)


class Fit(NamedTuple):
    """The fit to one worker's exchanges and computations so far."""

    line: LinearFit = LinearFit()
    compute_s: float = math.nan  #: the moving mean, or the quantile
    times: tuple[float, ...] = ()  #: the last computing times, if a quantile is used
    sizes: frozenset[float] = frozenset()  #: up to two different sizes that were exchanged

    def exchanged(self, size: float, seconds: float) -> Fit:
        """Return the fit after one more exchange, of `size` keys in `seconds`."""
        sizes = self.sizes if len(self.sizes) > 1 else self.sizes | {size}
        return self._replace(line=fitted(self.line, size, seconds), sizes=sizes)

    def computed(self, seconds: float, quantile: float | None = None) -> Fit:
        """Return the fit after one more gradient, computed in `seconds`."""
        if quantile is not None:
            times = (*self.times, seconds)[-WINDOW:]
            return self._replace(times=times, compute_s=sorted(times)[math.floor(quantile * (len(times) - 1))])
        known = seconds if math.isnan(self.compute_s) else self.compute_s
        return self._replace(compute_s=known + SMOOTHING * (seconds - known))

    def size(self, sweep: int, keys: int) -> int:
        """Return the number of keys in each range of a sweep over `keys` keys; sweeps are counted from 0."""
        if sweep < PROBES or len(self.sizes) < 2 or math.isnan(self.compute_s):
            return keys if sweep % 2 == 0 else -(-keys // 2)
        return best_size(self.line, self.compute_s, keys)
