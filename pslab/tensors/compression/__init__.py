"""Compression of gradients between worker and server; `Rule` is the interface of a rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pslab.tensors.compression.rule import Rule
from pslab.tensors.compression.uncompressed import Everything, Plain

if TYPE_CHECKING:
    from pslab.tensors.compression.pieces import Compression
    from pslab.tensors.update.part import Part
    from pslab.tensors.workload.keyspace import Keyspace

__all__ = ["Rule", "compression", "rule_of"]


def compression(
    prune: Any, quantize: Any, parts: Sequence[Part], keyspace: Keyspace, seed: int = 0
) -> Compression | None:
    """Return the compression of a run's pushes by these rules; None if pushes contain all values uncompressed."""
    if isinstance(prune, Everything) and isinstance(quantize, Plain):
        return None
    from pslab.tensors.compression.pieces import Compression  # late: an uncompressed run does not load it

    if isinstance(prune, Everything):
        return Compression(quantize, Plain(), parts, keyspace, seed)
    return Compression(rule_of(prune), quantize, parts, keyspace, seed)


def rule_of(prune: Any) -> Any:
    """Return a pruning rule unchanged, and wrap any other object, a user's pruner, in a rule."""
    if isinstance(prune, Rule):
        return prune
    from pslab.tensors.compression.sparse import Users

    return Users(prune)
