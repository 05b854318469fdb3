"""The placement of keys at servers, by the workers that use them.

A server is given keys that the worker beside it uses, by the rule of Parsa.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pslab.errors import ConfigError

Array = NDArray[Any]
Uses = tuple[Array, Array]  # what `traffic.used` returns


def parsa(uses: Uses, key_count: int, servers: int | None = None) -> Array:
    """Parsa's rule: key by key, each to the user that so far has got the smallest share of the keys that it uses.

    Args:
        servers: beside the first workers; by default beside each. A key of none of these workers goes to any server.

    Returns:
        int64 [keys], of a key that nobody uses 0.

    Source: Li et al. (KDD workshop 2015). That a key may have no user with a server is this project's.
    """
    starts, keys = uses
    workers = len(starts) - 1
    users = np.repeat(np.arange(workers), np.diff(starts))[np.argsort(keys, kind="stable")]
    ends = np.cumsum(np.bincount(keys, minlength=key_count))
    load, owner = np.zeros(workers, np.int64), np.zeros(key_count, np.int64)
    everywhere = np.arange(min(servers or workers, workers))
    for key in np.unique(keys).tolist():
        key_users = users[ends[key - 1] if key else 0 : ends[key]]
        near = key_users[key_users < len(everywhere)]
        among = near if len(near) else everywhere
        load[key_users] += 1
        owner[key] = chosen = int(among[load[among].argmax()])
        load[chosen] -= chosen in key_users
    return owner


def traffic_of(uses: Uses, owner: Array) -> Array:
    """Keys that cross each node's link in one pass: those its worker asks of others, and those others ask of it.

    int64 [workers]; every worker's node has a server.
    """
    starts, keys = uses
    workers = len(starts) - 1
    asks = np.repeat(np.arange(workers), np.diff(starts))
    far = owner[keys] != asks
    return np.bincount(asks[far], minlength=workers) + np.bincount(owner[keys[far]], minlength=workers)


def place(uses: Uses, key_count: int, servers: int) -> Array:
    """The server of each key by Parsa's rule: int64 [keys].

    Keys that nobody uses are no load: they even out how many each server holds.

    Raises:
        ConfigError: a server is left without keys that are used.
    """
    owner, unused = parsa(uses, key_count, servers), np.ones(key_count, bool)
    unused[uses[1]] = False
    counts = np.bincount(owner[~unused], minlength=servers)
    if (idle := np.flatnonzero(counts == 0)).size:
        raise ConfigError("placement", "parsa", f"leaves server {idle[0]} of {servers} without keys: use fewer servers")
    owner[unused] = np.repeat(np.arange(servers), filled(counts, int(unused.sum())))
    return owner


def filled(counts: Array, more: int) -> Array:
    """How many of so many more each is to get, so that the fewest are as many as can be: int64 [servers]."""
    added, order = np.zeros(len(counts), np.int64), np.argsort(counts, kind="stable")
    for count in range(len(counts), 0, -1):  # those with the fewest get all
        low = order[:count]
        level, over = divmod(int(counts[low].sum()) + more, count)
        if level >= counts[low[-1]]:
            added[low] = level - counts[low]
            added[low[:over]] += 1
            break
    return added
