"""The traffic of a partition: how many workers use each key, and what their pushes and pulls weigh.

A key that λ workers use travels λ times a pass from servers on nodes of their own, and λ - 1 times where its server is
on one of these workers' nodes (Li et al., KDD workshop 2015, "Parsa"; Duan, Wang and Wu).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pslab.tensors.compression.bits import positions
from pslab.tensors.compression.frame import length
from pslab.tensors.sparse import SparseRows

Array = NDArray[Any]


def used(rows: SparseRows, parts: Array, workers: int) -> tuple[Array, Array]:
    """Return the keys that each worker uses: (starts [workers + 1], keys), by worker, keys increasing."""
    pairs = np.unique(parts[rows.row_of].astype(np.int64) * rows.key_count + rows.keys)
    starts = np.searchsorted(pairs, np.arange(workers + 1, dtype=np.int64) * rows.key_count)
    return starts, pairs % rows.key_count


def spread(rows: SparseRows, parts: Array, workers: int) -> Array:
    """λ: the number of workers that use each key (int64 [keys])."""
    return np.bincount(used(rows, parts, workers)[1], minlength=rows.key_count)


def remote(spreads: Array) -> int:
    """Σ(λ - 1): the keys that travel in one pass, if each lies with one of its users."""
    return int(np.maximum(spreads - 1, 0).sum())


def of_batches(rows: SparseRows, batches: Iterable[Array], owner: Array | None = None, worker: int = -1) -> int:
    """Return the keys that one worker's batches of rows ask for, without the keys that `worker` itself owns."""
    total = 0
    for batch in batches:
        keys = np.unique(rows.take(np.asarray(batch)).keys)
        total += len(keys) if owner is None else int((owner[keys] != worker).sum())
    return total


def exchanged(places: Array, starts: Array) -> Array:
    """The bytes of a push of some keys to each server, of a request for them, and of the answer: int64 [servers, 3].

    Args:
        places: int [k], increasing, where the keys lie: they themselves, or what `placement.renumbered` makes of them.
        starts: int [servers + 1], where each server's begin, and the number of all keys.
    """
    counts = np.zeros((len(starts) - 1, 3), np.int64)
    bounds = np.searchsorted(places, starts)
    for server in range(len(counts)):
        own = places[bounds[server] : bounds[server + 1]] - starts[server]
        count = int(starts[server + 1] - starts[server])
        counts[server] = push_bytes(own, count), request_bytes(own, count), reply_bytes(own)
    return counts


def push_bytes(keys: Array, count: int) -> int:
    """The bytes of a push of these keys to a server that holds `count` keys; 0 if there are none.

    The keys are numbered from 0 in that server, and increase.
    """
    return length([[_written(keys, count), torch.empty(len(keys))]]) if len(keys) else 0


def request_bytes(keys: Array, count: int) -> int:
    """The bytes of a request for these keys, which holds their positions alone."""
    return length([[_written(keys, count)]]) if len(keys) else 0


def reply_bytes(keys: Array) -> int:
    """The bytes of the answer, which holds values in the request's order, without positions."""
    return length([[torch.empty(len(keys))]]) if len(keys) else 0


def _written(keys: Array, count: int) -> Any:
    return positions(torch.from_numpy(np.asarray(keys, np.int64)), count)
