"""Which server holds which keys, once it is known which workers use them.

Servers on nodes of their own are balanced by load (`balanced`); a server beside each worker is given keys that this
worker uses (`beside_users`, or the rule of Parsa). `renumbered` makes each server's keys one contiguous range.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def balanced(spreads: Array, servers: int) -> Array:
    """Keys to servers on nodes of their own: the largest load first, each to the server with the least so far.

    Its largest load is at most 4/3 - 1/(3 servers) times the least possible (Graham, SIAM J. Appl. Math. 1969, LPT).

    Args:
        spreads: int [keys], by how many workers each key is used; one that nobody uses weighs nothing.

    Returns:
        int64 [keys], the server of each; ties go to the lowest number.
    """
    owner, load = np.empty(len(spreads), np.int64), np.zeros(servers, np.int64)
    for key in np.argsort(-spreads, kind="stable").tolist():
        server = int(load.argmin())
        owner[key] = server
        load[server] += spreads[key]
    return owner


def beside_users(uses: tuple[Array, Array], key_count: int) -> Array:
    """Keys to the servers beside their users: the most widely used first, each to its user with the least traffic.

    A node starts with the keys that its worker asks for; owning one spares a request of its own, and answers those of
    all other users. This project's rule; Parsa's does not see what an owner answers.

    Args:
        uses: what `traffic.used` returns.

    Returns:
        int64 [keys]; a key that nobody uses lies with node 0.
    """
    load = np.diff(uses[0]).astype(np.int64)
    owner = np.zeros(key_count, np.int64)
    users = _users(uses, key_count)
    spreads = np.diff(users[0])
    for key in np.argsort(-spreads, kind="stable").tolist():
        own = users[1][users[0][key] : users[0][key + 1]]
        if len(own):
            chosen = int(own[load[own].argmin()])
            owner[key] = chosen
            load[chosen] += len(own) - 2
    return owner


def parsa(uses: tuple[Array, Array], key_count: int) -> Array:
    """Parsa's rule: key by key, each to the user that so far has got the smallest share of the keys that it uses.

    Source: Li et al. (KDD workshop 2015).
    """
    users = _users(uses, key_count)
    load, owner = np.zeros(len(uses[0]) - 1, np.int64), np.zeros(key_count, np.int64)
    for key in range(key_count):
        own = users[1][users[0][key] : users[0][key + 1]]
        if len(own):
            load[own] += 1
            owner[key] = chosen = int(own[load[own].argmax()])
            load[chosen] -= 1
    return owner


def traffic_of(uses: tuple[Array, Array], owner: Array) -> Array:
    """Keys that cross each node's link in one pass: those its worker asks of others, and those others ask of it.

    int64 [workers]; every worker's node has a server.
    """
    starts, keys = uses
    workers = len(starts) - 1
    asks = np.repeat(np.arange(workers), np.diff(starts))
    far = owner[keys] != asks
    return np.bincount(asks[far], minlength=workers) + np.bincount(owner[keys[far]], minlength=workers)


def renumbered(owner: Array) -> Array:
    """New numbers of the keys (int64 [keys]): those of a server follow each other, in their old order."""
    found = np.empty(len(owner), np.int64)
    found[np.argsort(owner, kind="stable")] = np.arange(len(owner))
    return found


def _users(uses: tuple[Array, Array], key_count: int) -> tuple[Array, Array]:
    """The workers that use each key, increasing: (starts [keys + 1], workers)."""
    starts, keys = uses
    workers = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    order = np.argsort(keys, kind="stable")
    counts = np.bincount(keys, minlength=key_count)
    return np.concatenate([[0], np.cumsum(counts)]), workers[order]
