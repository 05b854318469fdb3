"""Delayed Nesterov: momentum for pushes that are applied one by one, as they come."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch


class DelayedNesterov(torch.optim.Optimizer):
    """Delayed Nesterov: each gradient moves the weights at once, `period` of them together the momentum.

    With g, the gradient, and N, the period:

        s <- s + g
        at each N-th gradient   m <- momentum m + s / N,  s <- 0,  w <- w - lr ((1 - cN + c) momentum m + g / N)
        at the others           w <- w - lr (c momentum m + g / N)

    A gradient counts 1 / N, so that N workers that push in turn move the weights as their mean does; no push weight
    divides it again. `activation`, c from 0 to 1 / N, is the share of the momentum that is spread over the gradients
    between. A period of 1 is Nesterov's momentum. A run that names none takes its number of workers, or 1 if its steps
    are means of rounds.

    Raises:
        ValueError: a momentum outside of 0 to 1, a period that is no whole number of at least 1, an activation outside
            of 0 to 1 / N.

    Source: Liu et al. (arXiv 2401.09135, 2024)
    """

    def __init__(
        self, params: Iterable[torch.Tensor], lr: float = 1e-3, momentum: float = 0.9, period: int = 1,
        activation: float = 0.0,
    ) -> None:  # fmt: skip
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum={momentum} must be at least 0 and below 1")
        if isinstance(period, bool) or not isinstance(period, int) or period < 1:
            raise ValueError(f"period={period} must be a whole number of at least 1: of gradients, as many as workers")
        if not 0 <= activation <= 1 / period:
            raise ValueError(f"activation={activation} must be from 0 to 1 / period")
        super().__init__(params, {"lr": lr, "momentum": momentum, "period": period, "activation": activation})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Take the step of one gradient."""
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
