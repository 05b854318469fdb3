"""Rules for the table of pushes under any policy: each push once, consecutive versions, own pushes read."""

from __future__ import annotations

import numpy as np

from tools.audit.reading import REPORTED, Pushes, Reading, report


def numbers(r: Reading) -> list[str]:
    """Pushes are numbered from 1, and are of workers, ranges and iterations of the run."""
    p, workers = r.pushes, r.run.workers
    wrong = np.flatnonzero(p.push != np.arange(1, p.size + 1))[:1]
    found = report(wrong, lambda i: f"push {p.push[i]} is where push {i + 1} was expected: one is missing or repeated")
    unknown = np.flatnonzero((p.worker < 0) | (p.worker >= workers))
    found += report(unknown, lambda i: f"push {p.push[i]} is of worker {p.worker[i]}, not of 0 to {workers - 1}")
    outside = np.flatnonzero((p.range < 0) | (p.iteration < 0) | (p.range >= r.arrivals.ranges))
    return found + report(outside, lambda i: f"push {p.push[i]} is of range {p.range[i]}, iteration {p.iteration[i]}: "
                                             "both count from 0, and ranges are those of what arrived")  # fmt: skip


def once(r: Reading) -> list[str]:
    """On every range, a worker's iterations are applied in order, each once."""
    p = r.pushes
    # a worker that returns continues where the others are; a dropped push leaves a gap
    wrong = np.where(p.moved | r.drops, p.iteration < p.due, p.iteration != p.due)
    rows = p.lines[wrong[p.lines]]
    first = np.unique(p.range[rows] * r.run.workers + p.worker[rows], return_index=True)[1]
    return report(np.sort(rows[first]), lambda row: _out_of_order(p, row))


def _out_of_order(p: Pushes, row: int) -> str:
    """In words, which push takes the place of the one that was due next from its worker."""
    due = p.due[row]
    own = (p.worker == p.worker[row]) & (p.range == p.range[row])
    same = np.flatnonzero(own & (p.iteration == p.iteration[row]))
    if len(same) > 1:
        return (f"worker {p.worker[row]}'s iteration {p.iteration[row]}{p.on(row)} is applied twice: as push "
                f"{p.push[same[0]]} and as push {p.push[same[1]]}")  # fmt: skip
    later = np.flatnonzero(own & (p.iteration == due))
    if len(later):
        return f"{p.name(row)} is applied before the worker's iteration {due}, which is push {p.push[later[0]]}"
    return (f"worker {p.worker[row]}'s iteration {due}{p.on(row)} was never applied: its next push, "
            f"{p.push[row]}, is iteration {p.iteration[row]}")  # fmt: skip


def versions(r: Reading) -> list[str]:
    """The steps on a range make consecutive versions."""
    p = r.pushes
    found = []
    for _, rows in p.by_range:
        version = p.applied[rows]
        before = np.concatenate(([0], version[:-1]))
        wrong = (version != before + 1) & ((version != before) | (before == 0))
        for at in np.flatnonzero(wrong)[:1]:
            expected = f"{before[at]} or {before[at] + 1}" if before[at] else "1"
            found.append(f"{p.name(rows[at])} is part of version {version[at]}; {expected} was expected")
    return found[:REPORTED]


def staleness(r: Reading) -> list[str]:
    """Staleness is the number of steps on the range between a push's pull and its own step."""
    p = r.pushes
    true = p.applied - 1 - p.pulled
    return report(np.flatnonzero(p.staleness != true), lambda i: (
        f"{p.name(i)} has a recorded staleness of {p.staleness[i]}; {true[i]} steps lie between version {p.pulled[i]}, "
        f"on which it was computed, and version {p.applied[i]}, which it made"))  # fmt: skip


def pulled(r: Reading) -> list[str]:
    """A version exists when it is pulled, and a run starts with version 0."""
    p = r.pushes
    future = np.flatnonzero(p.pulled >= p.applied)
    found = report(future, lambda i: (f"{p.name(i)} was computed on version {p.pulled[i]}, which is from the future: "
                                      f"the push itself made version {p.applied[i]}"))  # fmt: skip
    wrong = (p.pulled < 0) | ((p.iteration < r.traits.rotation.fragments) & (p.pulled != 0) & ~p.moved)
    return found + report(np.flatnonzero(wrong), lambda i: (
        f"{p.name(i)} was computed on version {p.pulled[i]}; the weights start with version 0"))  # fmt: skip


def own(r: Reading) -> list[str]:
    """A worker never pulls older weights than before, and its weights contain its own pushes, or it can add them."""
    p = r.pushes
    now, before = p.predecessors()
    older = p.pulled[now] < p.pulled[before]
    found = dict(zip(now[older].tolist(), before[older].tolist(), strict=True))
    now, before = p.predecessors(1 + r.lacking)
    lacking = (p.pulled[now] < p.applied[before]) & p.fetched[now]
    lost = dict(zip(now[lacking].tolist(), before[lacking].tolist(), strict=True))

    def words(row: int) -> str:
        if row in found:
            last = found[row]
            return f"{p.name(row)} was computed on version {p.pulled[row]}, the one before on version {p.pulled[last]}"
        last = lost[row]
        return (f"{p.name(row)} was computed on version {p.pulled[row]}, which lacks the worker's own push "
                f"{p.push[last]}: that made version {p.applied[last]}")  # fmt: skip

    return report(sorted({*found, *lost}), words)


def asked_before(r: Reading) -> list[str]:
    """An eager worker requests its next weights before its push, which they therefore cannot contain."""
    if not r.traits.eager:
        return []
    p = r.pushes
    now, before = p.predecessors()
    wrong = (p.iteration[now] == p.iteration[before] + 1) & ~p.moved[now] & (p.pulled[now] >= p.applied[before])
    earlier = dict(zip(now[wrong].tolist(), before[wrong].tolist(), strict=True))
    return report(sorted(earlier), lambda row: (
        f"{p.name(row)} was computed on version {p.pulled[row]}, which contains the worker's own push "
        f"{p.push[earlier[row]]}; the policy is eager: the weights were requested before that push"))  # fmt: skip


def alike(r: Reading) -> list[str]:
    """A decision for the whole model is the same on every range."""
    if not r.traits.whole:
        return []
    p = r.pushes
    made: list[set[tuple[int, int, int]]] = [
        set(zip(p.applied[rows].tolist(), p.worker[rows].tolist(), p.iteration[rows].tolist(), strict=True))
        for _, rows in p.by_range
    ]
    others = sorted(set[tuple[int, int, int]].union(*made) - set[tuple[int, int, int]].intersection(*made))
    return report(range(len(others)), lambda at: (
        f"worker {others[at][1]}'s iteration {others[at][2]} is part of version {others[at][0]} on some ranges and not "
        f"on others; the policy decides for all of them"))  # fmt: skip


def instants(r: Reading) -> list[str]:
    """The server's clock never runs backwards."""
    p = r.pushes
    if not np.isfinite(p.seconds).all() or p.seconds[0] < 0:
        return ["a push was applied at a time outside the run"]
    wrong = np.flatnonzero(np.diff(p.seconds) < 0) + 1
    return report(wrong, lambda i: (f"{p.name(i)} is applied at {p.seconds[i]:.6g} s, before push {p.push[i - 1]}, "
                                    f"which was applied at {p.seconds[i - 1]:.6g} s"))  # fmt: skip
