"""Compression of a gradient between a worker and its server: `Rule` says what a rule must do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from pslab.tensors.compression import bits, select
from pslab.tensors.compression.codes import Plain
from pslab.tensors.compression.rule import Compression, Rule
from pslab.tensors.compression.sparse import Everything, Users
from pslab.tensors.update.store import Part
from pslab.tensors.workload.keyspace import Keyspace

__all__ = ["Compression", "Rule", "compression", "prepare", "rule_of"]


def compression(
    prune: Any, quantize: Any, parts: Sequence[Part], keyspace: Keyspace, seed: int = 0
) -> Compression | None:
    """Return the compression of a run's pushes by these rules; None if pushes hold all values as they are."""
    if isinstance(prune, Everything):
        return None if isinstance(quantize, Plain) else Compression(quantize, Plain(), parts, keyspace, seed)
    return Compression(rule_of(prune), quantize, parts, keyspace, seed)


def rule_of(prune: Any) -> Any:
    """Return a pruning rule, or the rule of an object of the user's."""
    return prune if isinstance(prune, Rule) else Users(prune)


def prepare(dtype: torch.dtype, *, selects: bool = True) -> None:
    """Compile the loops for positions, and for this process's selection of vectors of this dtype, where no earlier
    process has: that takes seconds, and no run is to be timed meanwhile."""
    if selects:
        v = torch.ones(64, dtype=dtype)
        select.add_top(v, 1, v.clone())
        select.std(v)
    bits.indices_of(bits.positions(torch.arange(3), 64), 64)
