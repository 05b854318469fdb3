"""A chain of layers and one link: what an iteration takes at least, and at best.

The forward pass goes from the input to the output, the backward pass back. A layer's gradient is pushed when its
backward pass has ended; its weights are pulled when the push has arrived, and must arrive before its next forward pass.
This is one worker, or any number of equal workers under BSP whose links share nothing.

Before the last layer's forward pass all weights have been pulled, and nothing is on the link until its backward pass
has ended: every iteration is like the first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate, permutations, product

from pslab.config.run import Run
from pslab.errors import ConfigError
from pslab.lab.runs.resolve import resolve
from pslab.tensors.compression.frame import dense_bytes

SEARCHED = 4  # messages each way: all their orders are 576 with full duplex and 2,520 with half duplex


@dataclass(frozen=True, kw_only=True)
class Chain:
    """Layers, the input's first, and a worker's link. What is pushed of a layer is as large as what is pulled."""

    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    messages_s: tuple[tuple[float, ...], ...]  #: per layer, how long each message of it keeps the link busy
    latency_s: float = 0.0  #: from the end of a message to its arrival; the link is free meanwhile
    duplex: str = "full"

    @property
    def ready_s(self) -> list[float]:
        """Per layer: when its gradient is ready, after the last layer's backward pass has started."""
        return list(accumulate(reversed(self.backward_s)))[::-1]

    @property
    def tail_s(self) -> list[float]:
        """Per layer: from the start of its forward pass to the end of the last layer's, if nothing is waited for."""
        return list(accumulate(reversed(self.forward_s)))[::-1]


def chain_of(run: Run) -> Chain:
    """The chain that a run's equal workers are; every message has a frame's header.

    Raises:
        ConfigError: the run's requests are not by layer, or its cluster has no compute_s or no bandwidth_bit_s.
    """
    experiment = resolve(run)
    cluster = experiment.cluster
    if not experiment.layered or cluster.bandwidth_bit_s is None or cluster.compute_s is None:
        raise ConfigError("ranges", str(run.ranges), "a chain needs ranges='layers', a compute_s and a bandwidth_bit_s")
    byte_s, itemsize = cluster.bandwidth_bit_s / 8, experiment.weights.element_size()
    messages_s: list[list[float]] = [[] for _ in experiment.layer_shares]
    for part in experiment.parts:
        messages_s[part.layer].append(dense_bytes(part.size, itemsize) / byte_s + cluster.overhead_s)
    return Chain(
        forward_s=tuple(cluster.compute_s * forward for forward, _ in experiment.layer_shares),
        backward_s=tuple(cluster.compute_s * backward for _, backward in experiment.layer_shares),
        messages_s=tuple(map(tuple, messages_s)), latency_s=cluster.latency_s, duplex=cluster.duplex)  # fmt: skip


def lower_bound_s(chain: Chain) -> float:
    """What an iteration takes at least, whatever the order, also one that waits on purpose.

    Of some neighbouring layers nothing can be pushed before the last one's gradient is ready, and after the last of
    their pulls has arrived at least the layers from there on are still to be computed forward; in between all their
    messages share the link. With full duplex the first pull waits for a push, and a pull follows the last push. The
    input's layer alone is the critical path of computing. Never below the computation, and never below the time that
    all messages keep the link busy.
    """
    found, ready_s, tail_s = 0.0, chain.ready_s, chain.tail_s
    for first in range(len(chain.messages_s)):
        load_s, first_s, last_s = 0.0, math.inf, math.inf
        for last in range(first, len(chain.messages_s)):
            load_s += sum(chain.messages_s[last])
            least_s = min(chain.messages_s[last])
            first_s = min(first_s, ready_s[last] + least_s)  # a push has been sent
            last_s = min(last_s, least_s + tail_s[last])  # from the start of the last pull
            if chain.duplex == "half":
                found = max(found, ready_s[last] + 2 * load_s + chain.latency_s + tail_s[last])
            else:
                latencies_s = 2 * chain.latency_s
                found = max(found, latencies_s + load_s + max(ready_s[last] + last_s, first_s + tail_s[last]))
    return found


# -- all orders ------------------------------------------------------------------------------------

Message = tuple[str, int]  # push or pull, and its number; a layer's messages follow each other


def optimum_s(chain: Chain) -> float:
    """The shortest iteration that any order of the messages gives; NaN for more than SEARCHED of them each way.

    An order says what each direction of the link sends next, and a link waits for it even if something else is ready.
    """
    numbers = range(sum(map(len, chain.messages_s)))
    if len(numbers) > SEARCHED:
        return math.nan
    pushes, pulls = [("push", n) for n in numbers], [("pull", n) for n in numbers]
    orders: Iterable[tuple[tuple[Message, ...], ...]] = product(permutations(pushes), permutations(pulls))
    if chain.duplex == "half":
        orders = ((order,) for order in _mixed(frozenset(numbers), frozenset()))
    return min(_iteration_s(chain, links) for links in orders)


def _mixed(pushes: frozenset[int], pulls: frozenset[int]) -> Iterator[tuple[Message, ...]]:
    """Every order of these messages on one link, with the pull of each push somewhere after it."""
    if not pushes and not pulls:
        yield ()
    for n in pushes:
        yield from ((("push", n), *rest) for rest in _mixed(pushes - {n}, pulls | {n}))
    for n in pulls:
        yield from ((("pull", n), *rest) for rest in _mixed(pushes, pulls - {n}))


def _iteration_s(chain: Chain, links: Iterable[tuple[Message, ...]]) -> float:
    """What an iteration takes whose links send in these orders."""
    messages = [(layer, seconds) for layer, each in enumerate(chain.messages_s) for seconds in each]
    ready_s, arrived_s = chain.ready_s, dict[Message, float]()
    for link in links:  # pushes first: a pull's link needs to know when they arrive
        free_s = 0.0
        for what, n in link:
            layer, seconds = messages[n]
            free_s = max(free_s, ready_s[layer] if what == "push" else arrived_s["push", n]) + seconds
            arrived_s[what, n] = free_s + chain.latency_s
    now = ready_s[0]
    for layer, seconds in enumerate(chain.forward_s):
        now = max(now, *(arrived_s["pull", n] for n, (place, _) in enumerate(messages) if place == layer)) + seconds
    return now
