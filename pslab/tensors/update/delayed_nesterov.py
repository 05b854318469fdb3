"""Delayed Nesterov: momentum for pushes that are applied one by one, in the order of their arrival."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch


class DelayedNesterov(torch.optim.Optimizer):
    """Delayed Nesterov: each gradient moves the weights at once; `period` gradients together change the momentum.

    With g, the gradient, and N, the period:

        s <- s + g
        at each N-th gradient   m <- momentum m + s / N,  s <- 0,  w <- w - lr ((1 - cN + c) momentum m + g / N)
        at other gradients      w <- w - lr (c momentum m + g / N)

    The optimizer itself divides a gradient by N, so that N workers that push in turn move the weights as the mean of
    their gradients would. `activation` is c, from 0 to 1 / N: the share of the momentum that the other gradients apply.
    A period of 1 is Nesterov's momentum. The default period is the run's number of workers, or 1 if a step is the mean
    of all workers' pushes.

    Raises:
        ValueError: a momentum outside of 0 to 1, a period that is not a whole number of at least 1, or an activation
            outside of 0 to 1 / N.

    Source: Liu et al. (arXiv 2401.09135, 2024)
    """

    def __init__(
        self, params: Iterable[torch.Tensor], lr: float = 1e-3, momentum: float = 0.9, period: int = 1,
        activation: float = 0.0,
    ) -> None:  # fmt: skip
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum={momentum} must be at least 0 and below 1, such as 0.9")
        if isinstance(period, bool) or not isinstance(period, int) or period < 1:
            raise ValueError(f"period={period} must be a whole number of at least 1, such as the number of workers")
        if not 0 <= activation <= 1 / period:
            raise ValueError(f"activation={activation} must be from 0 to 1 / period = {1 / period:g}")
        super().__init__(params, {"lr": lr, "momentum": momentum, "period": period, "activation": activation})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Take a step by the parameters' gradients."""
        for group in self.param_groups:
            lr, beta, n, c = (group[name] for name in ("lr", "momentum", "period", "activation"))
            for weights in group["params"]:
                if (gradient := weights.grad) is None:
                    continue
                state = self.state[weights]
                if not state:
                    state["step"] = torch.zeros(())
                    state["sum"], state["momentum"] = torch.zeros_like(weights), torch.zeros_like(weights)
                state["step"] += 1
                state["sum"].add_(gradient)
                if complete := int(state["step"]) % n == 0:
                    state["momentum"].mul_(beta).add_(state["sum"], alpha=1 / n)
                    state["sum"].zero_()
                share = 1 - c * n + c if complete else c
                weights.add_(gradient, alpha=-lr / n).add_(state["momentum"], alpha=-lr * share * beta)
