"""The invariants of server, workers and policy: each function checks one, and returns a message if it is broken.

In a message `<0>`, `<1>`, ... stand for workers, and `<self>` for the worker that moves.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Set
from typing import Any

from pslab.errors import ProtocolError

Wrong = str | None


def name(sync: Any) -> str:
    """Return a policy's name for messages: its repr without addresses."""
    return _plain(repr(sync))


def _plain(text: str) -> str:
    return re.sub(r"<(?:[^<>\s]+\.)?(\w+) object at 0x[0-9a-f]+>", r"\1", text)


def raised(error: Exception, sync: Any) -> str:
    """Return the message for an exception: neither a state machine nor a policy may raise."""
    if isinstance(error, ProtocolError):
        # mark workers as in this module's messages
        words = re.sub(r"(worker[= ]|\()(\d+)", r"\1<\2>", _plain(str(error)))
        return f"the server cannot perform a decision: {words}"
    return f"the server, or {name(sync)} in it, raises {type(error).__name__}: {error}"


def windows(server: Any, length: int | None) -> Wrong:
    """Check all windows: the low bound is the least clock of the present workers, and each count of pushes is right."""
    for index, part in enumerate(server.ranges):
        wrong = _window(part.window, part.clocks, length)
        if wrong:
            return f"the window of range {index} is wrong: {wrong}"
        for worker in part.asked:
            if worker not in part.clocks:
                return f"range {index} holds a request of worker <{worker}>, which has left"
    for scope in server.scopes:
        if scope.complete is not None:
            parts = [server.ranges[index] for index in scope.indices]
            clocks = {worker: min(part.clocks[worker] for part in parts) for worker in parts[0].clocks}
            if wrong := _window(scope.complete, clocks, length):
                return f"the window of the whole model is wrong: {wrong}"
    return None


def _window(window: Any, clocks: Mapping[int, int], length: int | None) -> Wrong:
    if window.members != len(clocks):
        return f"it counts {window.members} members of {len(clocks)}"
    if window.length != length:
        return f"its length is {window.length}, the policy's {length}"
    if not clocks:
        return None
    low, high = min(clocks.values()), max(clocks.values())
    if window.base != low:
        return f"its low bound is {window.base}, the least clock {low}"
    for iteration in {*range(low, high), *window.counts}:
        pushed = sum(clock > iteration for clock in clocks.values())
        counted = window.counts.get(iteration, 0)
        if counted != (pushed if iteration >= low else 0):
            return f"it counts {counted} pushes of iteration {iteration}; {pushed} workers have pushed it"
    return None


def bound(iteration: int, low: int, length: int | None, verb: str = "is started with") -> Wrong:
    """Check that no worker is more than length - 1 iterations ahead of the slowest, whose clock is `low`."""
    if length is None or iteration - low <= length - 1:
        return None
    return f"worker <self> {verb} iteration {iteration}, the slowest is at {low}: bound {length - 1} exceeded"


def stepped(version: int, before: int) -> Wrong:
    """Check that a step makes the next version."""
    return None if version == before + 1 else f"a step makes version {version} from version {before}"


def applied(iteration: int, done: int) -> Wrong:
    """Check that the iterations of a worker are applied in order, each exactly once; `done` were applied before."""
    if iteration == done:
        return None
    if iteration < done:
        return f"iteration {iteration} of worker <self> is applied twice"
    return f"iteration {iteration} of worker <self> is applied before its iteration {done}"


def unread(readers: Sequence[int], index: int) -> Wrong:
    """Check that weights do not change while they are read."""
    return f"range {index} changes while worker <{readers[0]}> is being sent its weights" if readers else None


def unused(busy: Sequence[int], index: int) -> Wrong:
    """Check that weights do not change while a worker computes on them, if the policy claims a barrier."""
    if not busy:
        return None
    return f"range {index} changes while worker <{busy[0]}> computes on it; the policy claims a barrier"


def newest(version: int, current: int) -> Wrong:
    """Check that a worker that is started gets the newest weights."""
    return None if version == current else f"worker <self> is sent version {version}; the newest is {current}"


def replied(iteration: int, done: int, ahead: int, *, left: bool) -> Wrong:
    """Check that a started worker is present, and its weights contain all its own pushes but the last `ahead`."""
    if left:
        return "worker <self> is started after it left"
    if done < iteration - ahead:
        return f"worker <self> is started with iteration {iteration} on weights without its own push of {done}"
    return None


def freed(iteration: int, *, applied: bool) -> Wrong:
    """Check that the payload of a push is freed only after the push is applied or dropped."""
    return None if applied else f"the payload of iteration {iteration} of worker <self> is freed before it is applied"


def contained(reported: int, actual: int) -> Wrong:
    """Check the number of own pushes that a reply to an eager worker reports to be in its weights."""
    if reported == actual:
        return None
    return f"the reply to worker <self> reports {reported} of its pushes; its weights contain {actual}"


def joined(iteration: int, pushed: Sequence[int]) -> Wrong:
    """Check that a worker that rejoins repeats no push; `pushed` has its clocks when it left, by range."""
    if iteration >= max(pushed):
        return None
    return f"worker <self> joins with iteration {iteration}, but has pushed iteration {max(pushed) - 1}"


def once(iteration: int, last: int) -> Wrong:
    """Check that no worker is started twice without a push in between."""
    return None if iteration > last else f"worker <self> is started with iteration {iteration} after {last}"


def computes(iteration: int, last: int, todo: Sequence[int], acked: Sequence[int], buffers: int) -> Wrong:
    """Check that iterations are computed in order, each into a free buffer."""
    if todo:
        return f"worker <self> computes iteration {iteration} before it has pushed all of {last}"
    if iteration != last + 1:
        return f"worker <self> computes iteration {iteration} after {last}"
    if min(acked) < (lost := iteration - buffers):
        return f"worker <self> computes iteration {iteration} into the buffer of {lost}, which is not acknowledged"
    return None


def weighted(iteration: int, got: Sequence[int], needed: Sequence[int]) -> Wrong:
    """Check that a gradient is computed on weights of every range for its iteration, or newer; both given as turns."""
    for index, (arrived, turn) in enumerate(zip(got, needed, strict=True)):
        if arrived < turn:
            return f"worker <self> computes iteration {iteration} without the weights of range {index} for it"
    return None


def labelled(version: int, computed_on: int, iteration: int) -> Wrong:
    """Check that a push names the version on which it was computed."""
    if version == computed_on:
        return None
    words = f"the push of iteration {iteration} by worker <self> names version {version}"
    return f"{words}; it was computed on {computed_on}"


def held(version: int, newest: int, iteration: int) -> Wrong:
    """Check that a request names no newer version than its worker has: the server sends only changes after it."""
    if version <= newest:
        return None
    return f"the request for iteration {iteration} by worker <self> names version {version}; it has {newest}"


def observed(seen: int, others: int, iteration: int) -> Wrong:
    """Check the staleness in an eager worker's push: the number of other workers' steps between the weights that it
    computed on and the next weights."""
    # versions are numbered by iterations here: each is one step, by another worker unless it has one more own push
    if seen == others:
        return None
    return f"the push of iteration {iteration} by worker <self> reports a staleness of {seen}; it has observed {others}"


def lacking(lacks: Set[tuple[int, int]], contained: Sequence[int], iteration: int, *, some: bool) -> Wrong:
    """Check that `lacks` has exactly the own pushes (range, iteration) that an eager worker's weights lack.

    `contained` has, for each range, the number of own pushes in the weights. With `some`, pushes from before a rejoin
    may be missing in `lacks`.
    """
    true = {(index, later) for index, done in enumerate(contained) for later in range(done, iteration)}
    if lacks == true or (some and lacks <= true):
        return None
    return (f"worker <self> takes its pushes {_listed(lacks)} as missing in its weights of iteration {iteration}; "
            f"missing are {_listed(true)}")  # fmt: skip


def _listed(names: Set[tuple[int, int]]) -> str:
    return ", ".join(f"{iteration} of range {index}" for index, iteration in sorted(names)) or "none"


def forgotten(alike: bool) -> Wrong:
    """Check that a worker that rejoins starts like a new one."""
    return None if alike else "worker <self>, if it rejoins, has state from before it left; join must reset all of it"


def pure(same: bool) -> Wrong:
    """Check that a policy is a function of its state, the event and the clocks."""
    return None if same else "the policy decides differently when it is asked again; step must be a function"


Combined = tuple[bool, tuple[tuple[int, int], ...]]  # whether a step is a mean, and its (worker, iteration)s


def combined(steps: Sequence[Combined], decided: Sequence[Combined]) -> Wrong:
    """Check that steps are made as the policy has decided: the mean of the same pushes, or the same single push."""
    for (mean, pushes), (wanted, named) in zip(steps, decided, strict=False):
        if sorted(pushes) != sorted(named):
            return f"a step is made of {len(pushes)} other pushes than the {len(named)} that the policy named"
        if mean != wanted:
            if wanted:
                return f"{len(pushes)} pushes are added; the policy decided to apply their mean"
            return "a push is applied as the mean of a step; the policy decided to apply it alone"
    return None


def clocks(reported: Sequence[int], actual: Sequence[int]) -> Wrong:
    """Check that the server counts as many applied pushes of a worker as were applied, on each range."""
    for index, (clock, count) in enumerate(zip(reported, actual, strict=True)):
        if clock != count:
            return f"range {index} counts {clock} applied pushes of worker <self>; {count} were applied"
    return None


def budget(accepted: int, complete: int) -> Wrong:
    """Check that the budget counts the iterations that are pushed on all ranges."""
    return None if accepted == complete else f"{accepted} iterations are counted as accepted; {complete} are complete"


def ended(finished: Mapping[int, bool], unapplied: Sequence[tuple[int, int]], waits_for: Sequence[int]) -> Wrong:
    """Check that every worker has finished and every push is applied, once no message is under way."""
    stuck = [worker for worker, done in finished.items() if not done]
    if stuck:
        whom = f"; worker{'s' * (len(waits_for) > 1)} {' and '.join(f'<{w}>' for w in waits_for)} at the low bound"
        return f"worker <{stuck[0]}> waits forever{whom if waits_for else ''}"
    if finished and unapplied:
        worker, iteration = unapplied[0]
        return f"the push of iteration {iteration} by worker <{worker}> is never applied"
    return None
