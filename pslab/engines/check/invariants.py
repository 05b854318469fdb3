"""The invariants of server, workers and policy: each function returns words if one is broken.

In these words `<0>`, `<1>`, ... stand for workers, and `<self>` for the worker that moves.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Set
from typing import Any

from pslab.errors import ProtocolError

Wrong = str | None


def name(sync: Any) -> str:
    """A policy as it is shown: its repr without addresses."""
    return _plain(repr(sync))


def _plain(text: str) -> str:
    return re.sub(r"<(?:[^<>\s]+\.)?(\w+) object at 0x[0-9a-f]+>", r"\1", text)


def raised(error: Exception, sync: Any) -> str:
    """Machines and policies never raise."""
    if isinstance(error, ProtocolError):
        words = re.sub(r"(worker[= ]|\()(\d+)", r"\1<\2>", _plain(str(error)))  # its workers are this module's
        return f"the server cannot perform a decision: {words}"
    return f"the server, or {name(sync)} in it, raises {type(error).__name__}: {error}"


def windows(server: Any, length: int | None) -> Wrong:
    """In every window the low bound is the least clock of the workers that are present, and each count is right."""
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
    """No worker goes on more than length - 1 iterations ahead of the slowest; `low` is the least clock."""
    if length is None or iteration - low <= length - 1:
        return None
    return f"worker <self> {verb} iteration {iteration}, the slowest is at {low}: bound {length - 1} exceeded"


def stepped(version: int, before: int) -> Wrong:
    """A step makes the next version."""
    return None if version == before + 1 else f"a step makes version {version} from version {before}"


def applied(iteration: int, done: int) -> Wrong:
    """The iterations of one worker are applied in order, each exactly once; `done` of them were."""
    if iteration == done:
        return None
    if iteration < done:
        return f"iteration {iteration} of worker <self> is applied twice"
    return f"iteration {iteration} of worker <self> is applied before its iteration {done}"


def unread(readers: Sequence[int], index: int) -> Wrong:
    """Weights do not change while they are read."""
    return f"range {index} changes while worker <{readers[0]}> is being sent its weights" if readers else None


def unused(busy: Sequence[int], index: int) -> Wrong:
    """Under a barrier weights do not change while a worker computes on them."""
    if not busy:
        return None
    return f"range {index} changes while worker <{busy[0]}> computes on it; the policy claims a barrier"


def newest(version: int, current: int) -> Wrong:
    """A worker that is started gets the newest weights."""
    return None if version == current else f"worker <self> is sent version {version}; the newest is {current}"


def replied(iteration: int, done: int, ahead: int, *, left: bool) -> Wrong:
    """A worker that is started is present, and its weights contain its own pushes, except the last `ahead`."""
    if left:
        return "worker <self> is started, which has left"
    if done < iteration - ahead:
        return f"worker <self> is started with iteration {iteration} on weights without its own push of {done}"
    return None


def freed(iteration: int, *, applied: bool) -> Wrong:
    """The payload of a push is free once it is applied, or dropped, and not before."""
    return None if applied else f"the payload of iteration {iteration} of worker <self> is freed before it is applied"


def contained(reported: int, actual: int) -> Wrong:
    """A reply to an eager worker reports how many of the worker's own pushes its weights contain."""
    if reported == actual:
        return None
    return f"the reply to worker <self> reports {reported} of its pushes; its weights contain {actual}"


def joined(iteration: int, pushed: Sequence[int]) -> Wrong:
    """A worker that rejoins does not push again what it has pushed; `pushed` are its clocks when it left."""
    if iteration >= max(pushed):
        return None
    return f"worker <self> joins with iteration {iteration}, but has pushed iteration {max(pushed) - 1}"


def once(iteration: int, last: int) -> Wrong:
    """No worker is started twice without a push in between."""
    return None if iteration > last else f"worker <self> is started with iteration {iteration} after {last}"


def computes(iteration: int, last: int, todo: Sequence[int], acked: Sequence[int], buffers: int) -> Wrong:
    """Iterations are computed in order, each into a buffer that is free."""
    if todo:
        return f"worker <self> computes iteration {iteration} before it has pushed all of {last}"
    if iteration != last + 1:
        return f"worker <self> computes iteration {iteration} after {last}"
    if min(acked) < (lost := iteration - buffers):
        return f"worker <self> computes iteration {iteration} into the buffer of {lost}, which is not acknowledged"
    return None


def weighted(iteration: int, got: Sequence[int], needed: Sequence[int]) -> Wrong:
    """A gradient is computed on weights of every range that were sent for its iteration, or newer ones, by turns."""
    for index, (arrived, turn) in enumerate(zip(got, needed, strict=True)):
        if arrived < turn:
            return f"worker <self> computes iteration {iteration} without the weights of range {index} for it"
    return None


def labelled(version: int, held: int, iteration: int) -> Wrong:
    """A push names the version on which it was computed."""
    if version == held:
        return None
    return f"the push of iteration {iteration} by worker <self> names version {version}; it was computed on {held}"


def held(version: int, newest: int, iteration: int) -> Wrong:
    """A request names no version that its worker has not: what changed before that would never be sent to it."""
    if version <= newest:
        return None
    return f"the request for iteration {iteration} by worker <self> names version {version}; it has {newest}"


def observed(seen: int, others: int, iteration: int) -> Wrong:
    """The staleness that an eager worker observes are the steps that are not its own between its weights and its next.

    Versions are numbered by iterations here: of two in a row one is a step, by others if it holds no own push more.
    """
    if seen == others:
        return None
    return f"the push of iteration {iteration} by worker <self> reports a staleness of {seen}; it has observed {others}"


def lacking(lacks: Set[tuple[int, int]], own: Sequence[int], iteration: int, *, some: bool) -> Wrong:
    """An eager worker may add those of its pushes (range, iteration) that its weights lack, and adds none twice.

    `own` of them are in the weights of each range; `some`: those of a former life are gone.
    """
    true = {(index, each) for index, done in enumerate(own) for each in range(done, iteration)}
    if lacks == true or (some and lacks <= true):
        return None
    return (f"worker <self> takes its pushes {_listed(lacks)} as missing in its weights of iteration {iteration}; "
            f"missing are {_listed(true)}")  # fmt: skip


def _listed(names: Set[tuple[int, int]]) -> str:
    return ", ".join(f"{iteration} of range {index}" for index, iteration in sorted(names)) or "none"


def forgotten(alike: bool) -> Wrong:
    """A worker that rejoins starts like a new one."""
    return None if alike else "worker <self>, if it rejoins, has kept something of its former life"


def pure(same: bool) -> Wrong:
    """A policy is a function of its state, the event and the clocks."""
    return None if same else "the policy decides differently when it is asked again; step must be a function"


Combined = tuple[bool, tuple[tuple[int, int], ...]]  # whether a step is a mean, and its (worker, iteration)s


def combined(steps: Sequence[Combined], decided: Sequence[Combined]) -> Wrong:
    """A step is what the policy has decided: the mean of some pushes, or one of them alone."""
    for (mean, pushes), (wanted, named) in zip(steps, decided, strict=False):
        if sorted(pushes) != sorted(named):
            return f"a step is made of {len(pushes)} other pushes than the {len(named)} that the policy named"
        if mean != wanted:
            if wanted:
                return f"{len(pushes)} pushes are added; the policy decided to apply their mean"
            return "a push is applied as the mean of a step; the policy decided to apply it alone"
    return None


def clocks(reported: Sequence[int], actual: Sequence[int]) -> Wrong:
    """A worker's clock counts its pushes: those applied and those held."""
    for index, (clock, count) in enumerate(zip(reported, actual, strict=True)):
        if clock != count:
            return f"range {index} counts {clock} applied pushes of worker <self>; {count} were applied"
    return None


def budget(accepted: int, complete: int) -> Wrong:
    """The budget counts iterations whose pushes are complete on all ranges."""
    return None if accepted == complete else f"{accepted} iterations are counted as accepted; {complete} are complete"


def ended(finished: Mapping[int, bool], held: Sequence[tuple[int, int]], waits_for: Sequence[int]) -> Wrong:
    """Where no message is under way any more, every worker has finished and no push was forgotten."""
    stuck = [worker for worker, done in finished.items() if not done]
    if stuck:
        whom = f"; worker{'s' * (len(waits_for) > 1)} {' and '.join(f'<{w}>' for w in waits_for)} at the low bound"
        return f"worker <{stuck[0]}> waits forever{whom if waits_for else ''}"
    if finished and held:
        worker, iteration = held[0]
        return f"the push of iteration {iteration} by worker <{worker}> is never applied"
    return None
