"""The placement of keys at servers by Parsa's rule: a key goes to a server beside a worker that uses the key."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pslab.errors import ConfigError

Array = NDArray[Any]
Uses = tuple[Array, Array]  # the result of `traffic.used`


def parsa(uses: Uses, key_count: int, servers: int | None = None) -> Array:
    """Place each key at the server of the worker, among its users, that has the most keys elsewhere so far (Parsa).

    Keys are placed in increasing order.

    Args:
        servers: the number of servers, which are on the nodes of the first workers; None: one for each worker. A key
            that none of these workers uses goes to any server.

    Returns:
        The server of each key: int64 [keys], 0 for a key without users.

    Source: Li et al. (KDD workshop 2015); keys without a user that has a server are this project's extension.
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
    """Return the number of keys that cross each node's link in one pass: int64 [workers].

    A node's worker requests keys from other nodes, and the node's server answers requests of other nodes.
    """
    starts, keys = uses
    workers = len(starts) - 1
    asks = np.repeat(np.arange(workers), np.diff(starts))
    far = owner[keys] != asks
    return np.bincount(asks[far], minlength=workers) + np.bincount(owner[keys[far]], minlength=workers)


def place(uses: Uses, key_count: int, servers: int) -> Array:
    """Return the server of each key: int64 [keys], by Parsa's rule.

    Keys that no worker uses are placed such that servers have as equally many keys as possible.

    Raises:
        ConfigError: a server gets no key that a worker uses.
    """
    owner, unused = parsa(uses, key_count, servers), np.ones(key_count, bool)
    unused[uses[1]] = False
    counts = np.bincount(owner[~unused], minlength=servers)
    if (idle := np.flatnonzero(counts == 0)).size:
        raise ConfigError("placement", "parsa", f"leaves server {idle[0]} of {servers} without keys: set fewer servers")
    owner[unused] = np.repeat(np.arange(servers), filled(counts, int(unused.sum())))
    return owner


def filled(counts: Array, more: int) -> Array:
    """Return how many of `more` keys each server gets, such that the smallest new count is as large as possible."""
    added, order = np.zeros(len(counts), np.int64), np.argsort(counts, kind="stable")
    for count in range(len(counts), 0, -1):  # the servers with the fewest keys get all of them
        low = order[:count]
        level, over = divmod(int(counts[low].sum()) + more, count)
        if level >= counts[low[-1]]:
            added[low] = level - counts[low]
            added[low[:over]] += 1
            break
    return added
