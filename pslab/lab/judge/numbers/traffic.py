"""What is pushed and pulled takes the bytes of its entries, and crosses the network if it must."""

from __future__ import annotations

import numpy as np

from pslab.lab.judge.numbers.given import EXACT, Numbers
from pslab.lab.judge.report import report
from pslab.policies.partition import servers_of
from pslab.tensors.codec import START, body_bounds, largest_frame_bytes


def bytes_up(n: Numbers) -> list[str]:
    """A dense frame has one length; that of a sparse one follows from its entries, but for how their places lie."""
    h, p, codec = n.history, n.pushes, n.run.codec
    size = _sizes(n)
    if size is None:
        return ["the pushes of a range differ in bytes_up_raw, which is the size of the range"]
    entries = p["density"] * size
    k = np.round(entries)
    wrong = (np.abs(entries - k) > EXACT * size) | (k < 0) | (k > size)
    found = report(np.flatnonzero(wrong), lambda r: (
        f"{h.name(r)} has a density of {p['density'][r]:g}: no whole number of the {size[r]:g} entries"))  # fmt: skip
    if n.sparse is None or found or (n.sparse and not n.trained):
        return found
    held = np.array([h.rules.traits.pushes(iteration) for iteration in h.iteration.tolist()], bool)
    if not n.sparse:
        least = most = np.where(k == size, START + size * n.itemsize, np.nan)  # all of them, always
    else:
        low, high = body_bounds(k, size, n.itemsize, codec)
        start = np.where((k == 0) & n.keyed, 0, START)
        least, most = start + low, start + high
    nothing = np.where(k == 0, 0, np.nan)  # what is pushed now and then
    least, most = np.where(held, least, nothing), np.where(held, most, nothing)
    wrong = ~((p["bytes_up"] >= least) & (p["bytes_up"] <= most))
    return report(np.flatnonzero(wrong), lambda r: (
        f"{h.name(r)} took {p['bytes_up'][r]:g} bytes with {k[r]:g} of {size[r]:g} entries; a frame of those takes "
        f"{least[r]:g} to {most[r]:g}"))  # fmt: skip


def bytes_down(n: Numbers) -> list[str]:
    """A pull of all weights is a dense frame; every pull was answered, but for each worker's last."""
    h, down, raw, size = n.history, n.pushes["bytes_down"], n.pushes["bytes_down_raw"], _sizes(n)
    assert size is not None  # bytes_up has seen to it
    last = np.ones(h.size, bool)
    last[h.predecessors()[1]] = False
    answered = (raw == size * n.itemsize) & ((down >= START) | n.keyed)
    if n.run.pull == "whole":
        answered &= down == START + size * n.itemsize
    elif n.keyed:  # values in the request's order, without places
        k = (down - START) / n.itemsize
        answered &= (down == 0) | ((k == np.round(k)) & (k > 0) & (k <= size))
    else:
        answered &= down <= [largest_frame_bytes(int(each), n.itemsize) for each in size]
    fetched = np.array([h.rules.traits.fetches(iteration + 1) for iteration in h.iteration.tolist()], bool)
    answered = (answered & (fetched | h.moved)) | (~fetched & (raw == size * n.itemsize) & (down == 0))
    wrong = ~(answered | ((raw == 0) & (down == 0) & (last | h.moved)))
    return report(np.flatnonzero(wrong), lambda r: (
        f"the pull after {h.name(r)} took {down[r]:g} bytes of {raw[r]:g}; the range has {size[r] * n.itemsize:g}, and "
        f"pull={n.run.pull}"))  # fmt: skip


def network(n: Numbers) -> list[str]:
    """What has crossed the network is what the table adds up to, less what workers and the servers on their machines
    exchanged. Requests for keys come on top, and messages that are not in the table."""
    said, h, p, size = n.facts.get("network_bytes"), n.history, n.pushes, _sizes(n)
    assert size is not None  # bytes_up has seen to it
    sizes = np.zeros(h.arrivals.ranges, np.int64)
    sizes[h.range] = size
    if said is None or not sizes.all():
        return []
    server_of = range(len(sizes)) if n.keyed else servers_of(sizes.tolist(), n.run.servers)
    far = (np.array(list(server_of))[h.range] != h.worker) | (not n.cluster.colocated)
    least = float((p["bytes_up"] + p["bytes_down"])[far].sum())
    unlisted = np.isin(h.arrivals.kind, ["push", "pull"]).sum() - h.size - np.count_nonzero(p["bytes_down_raw"])
    most = least + n.facts.get("requested_bytes", 0) + unlisted * largest_frame_bytes(int(sizes.max()), n.itemsize)
    if least <= said <= most:
        return []
    return [f"{said} bytes crossed the network; by the pushes and their answers it was {least:.0f} to {most:.0f}"]


def _sizes(n: Numbers) -> np.ndarray | None:
    """Per push the entries of its range; None if the pushes of a range do not agree on it."""
    size = n.pushes["bytes_up_raw"] / n.itemsize
    for _, rows in n.history.ranges():
        if (size[rows] != size[rows[0]]).any() or size[rows[0]] < 1 or size[rows[0]] % 1:
            return None
    return np.asarray(size)
