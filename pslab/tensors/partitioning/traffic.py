"""The traffic of a partition: the number of workers that use each key, and the bytes of their pushes and pulls.

A key that λ workers use travels λ times in a pass if servers have separate nodes, and λ - 1 times if its server is on
the node of one of these workers (Li et al., KDD workshop 2015, "Parsa"; Duan, Wang and Wu).
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
    """Return the keys that each worker uses, as (starts [workers + 1], keys), increasing for each worker."""
    pairs = np.unique(parts[rows.row_of].astype(np.int64) * rows.key_count + rows.keys)
    starts = np.searchsorted(pairs, np.arange(workers + 1, dtype=np.int64) * rows.key_count)
    return starts, pairs % rows.key_count


def spread(rows: SparseRows, parts: Array, workers: int) -> Array:
    """Return λ, the number of workers that use each key (int64 [keys])."""
    return np.bincount(used(rows, parts, workers)[1], minlength=rows.key_count)


def remote(spreads: Array) -> int:
    """Return Σ(λ - 1), the number of keys sent in a pass if each key's server is beside a worker that uses the key."""
    return int(np.maximum(spreads - 1, 0).sum())


def of_batches(rows: SparseRows, batches: Iterable[Array], owner: Array | None = None, worker: int = -1) -> int:
    """Count the keys that one worker's batches of rows request; with `owner`, without keys at the worker's own node."""
    total = 0
    for batch in batches:
        keys = np.unique(rows.take(np.asarray(batch)).keys)
        total += len(keys) if owner is None else int((owner[keys] != worker).sum())
    return total


def exchanged(places: Array, starts: Array) -> Array:
    """Return the bytes of a push of some keys to each server, of a request for them, and of the reply: int64
    [servers, 3].

    Args:
        places: int [k], increasing, the keys' numbers, or their new numbers from `entries.renumbered`.
        starts: int [servers + 1]: the first key of each server, and the number of all keys.
    """
    counts = np.zeros((len(starts) - 1, 3), np.int64)
    bounds = np.searchsorted(places, starts)
    for server in range(len(counts)):
        keys = places[bounds[server] : bounds[server + 1]] - starts[server]
        count = int(starts[server + 1] - starts[server])
        counts[server] = push_bytes(keys, count), request_bytes(keys, count), reply_bytes(keys)
    return counts


def push_bytes(keys: Array, count: int) -> int:
    """Return the bytes of a push of these keys to a server with `count` keys; 0 for no keys.

    The keys are numbered from 0 at that server, and increase.
    """
    return length([[_written(keys, count), torch.empty(len(keys))]]) if len(keys) else 0


def request_bytes(keys: Array, count: int) -> int:
    """Return the bytes of a request for these keys, which contains only their positions; 0 for no keys."""
    return length([[_written(keys, count)]]) if len(keys) else 0


def reply_bytes(keys: Array) -> int:
    """Return the bytes of the reply, which contains the keys' values without positions; 0 for no keys."""
    return length([[torch.empty(len(keys))]]) if len(keys) else 0


def _written(keys: Array, count: int) -> Any:
    return positions(torch.from_numpy(np.asarray(keys, np.int64)), count)
