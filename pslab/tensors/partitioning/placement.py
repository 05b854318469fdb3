"""Which server holds which keys, once it is known which workers use them.

Servers on nodes of their own are balanced by load (`balanced`); a server beside each worker is given keys that this
worker uses (`beside_users`, or the rule of Parsa). `renumbered` makes each server's keys one contiguous range.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from pslab.errors import ConfigError

Array = NDArray[Any]
Uses = tuple[Array, Array]  # what `traffic.used` returns
Flat = TypeVar("Flat", Array, torch.Tensor)


def balanced(spreads: Array, servers: int) -> Array:
    """Keys to servers on nodes of their own: the largest load first, each to the server with the least so far.

    Its largest load is at most 4/3 - 1/(3 servers) times the least possible (Graham, SIAM J. Appl. Math. 1969, LPT).

    Args:
        spreads: int [keys], by how many workers each key is used.

    Returns:
        int64 [keys], the server of each, of one that nobody uses 0; ties go to the lowest number.
    """
    owner, load = np.zeros(len(spreads), np.int64), np.zeros(servers, np.int64)
    for key in np.argsort(-spreads, kind="stable")[: np.count_nonzero(spreads)].tolist():
        server = int(load.argmin())
        owner[key] = server
        load[server] += spreads[key]
    return owner


def beside_users(uses: Uses, key_count: int, servers: int | None = None) -> Array:
    """Keys to the servers beside their users: the most widely used first, each to its user with the least traffic.

    A node starts with the keys that its worker asks for; owning one spares a request of its own, and answers those of
    all other users. This project's rule; Parsa's does not see what an owner answers.

    Args:
        servers: beside the first workers; by default beside each. A key of none of these workers goes to any server.

    Returns:
        int64 [keys], of a key that nobody uses 0.
    """
    load, owner = np.diff(uses[0]).astype(np.int64), np.zeros(key_count, np.int64)
    for key, own, among in _hosts(uses, key_count, servers, widest_first=True):
        owner[key] = chosen = int(among[load[among].argmin()])
        load[chosen] += len(own) - 2 * (chosen in own)
    return owner


def parsa(uses: Uses, key_count: int, servers: int | None = None) -> Array:
    """Parsa's rule: key by key, each to the user that so far has got the smallest share of the keys that it uses.

    Source: Li et al. (KDD workshop 2015). That a key may have no user with a server is this project's: as in
    `beside_users`.
    """
    load, owner = np.zeros(len(uses[0]) - 1, np.int64), np.zeros(key_count, np.int64)
    for key, own, among in _hosts(uses, key_count, servers):
        load[own] += 1
        owner[key] = chosen = int(among[load[among].argmax()])
        load[chosen] -= chosen in own
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


RULES: dict[str, Callable[[Uses, int, int], Array]] = {
    "lpt": lambda uses, key_count, servers: balanced(np.bincount(uses[1], minlength=key_count), servers),
    "users": beside_users,
    "parsa": parsa,
}


def place(uses: Uses, key_count: int, servers: int, rule: str) -> Array:
    """The server of each key by one of RULES: int64 [keys].

    Keys that nobody uses are no load: they even out how many each server holds.

    Raises:
        ConfigError: a server is left without keys that are used.
    """
    owner, unused = RULES[rule](uses, key_count, servers), np.ones(key_count, bool)
    unused[uses[1]] = False
    held = np.bincount(owner[~unused], minlength=servers)
    if (idle := np.flatnonzero(held == 0)).size:
        raise ConfigError("placement", rule, f"leaves server {idle[0]} of {servers} without keys: use fewer servers")
    owner[unused] = np.repeat(np.arange(servers), filled(held, int(unused.sum())))
    return owner


def filled(held: Array, more: int) -> Array:
    """How many of so many more each is to get, so that the fewest are as many as can be: int64 [servers]."""
    found, order = np.zeros(len(held), np.int64), np.argsort(held, kind="stable")
    for count in range(len(held), 0, -1):  # those with the fewest get all
        low = order[:count]
        level, over = divmod(int(held[low].sum()) + more, count)
        if level >= held[low[-1]]:
            found[low] = level - held[low]
            found[low[:over]] += 1
            break
    return found


def renumbered(owner: Array) -> Array:
    """New numbers of the keys (int64 [keys]): those of a server follow each other, in their old order."""
    found = np.empty(len(owner), np.int64)
    found[np.argsort(owner, kind="stable")] = np.arange(len(owner))
    return found


def as_held(weights: Flat, places: Array | None) -> Flat:
    """Weights as servers hold them, each at its place, of weights in the order of their keys; None: the same order."""
    return weights if places is None else weights[np.argsort(places)]


def by_key(flat: Flat, places: Array | None) -> Flat:
    """Weights in the order of their keys, of weights as servers hold them."""
    return flat if places is None else flat[places]


def _hosts(
    uses: Uses, key_count: int, servers: int | None, *, widest_first: bool = False
) -> Iterator[tuple[int, Array, Array]]:
    """Each key that is used: its users, increasing, and the servers that it may go to: beside these, or any."""
    starts, keys = uses
    workers = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    users = workers[np.argsort(keys, kind="stable")]
    spreads = np.bincount(keys, minlength=key_count)
    ends = np.cumsum(spreads)
    everywhere = np.arange(min(servers or len(starts) - 1, len(starts) - 1))
    for key in (np.argsort(-spreads, kind="stable") if widest_first else np.arange(key_count)).tolist():
        if spreads[key]:
            own = users[ends[key] - spreads[key] : ends[key]]
            near = own[own < len(everywhere)]
            yield key, own, near if len(near) else everywhere
