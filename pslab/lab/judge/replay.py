"""The recorded pushes once more, through a fresh server with the same policy: would it have decided the same?

A history does not tell which of two pushes at the same time came first, or the exact time that a policy was given. So
where the record and the replay differ, the replay is repeated with other times and in another order; a policy that then
decides differently is not judged by it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from pslab.lab.judge.phases import Phases
from pslab.lab.judge.pushes import History
from pslab.protocol.messages import Pull, Push
from pslab.protocol.server import Discard, Refuse, Reply, Server, Step

Name = tuple[int, int]  # a push: (worker, iteration)


class Decisions(NamedTuple):
    """What a policy decided on one range."""

    steps: list[frozenset[Name]]  #: the pushes of each version, from version 1 on
    starts: dict[Name, int]  #: (worker, iteration) that was started -> the version that it got
    dropped: frozenset[Name]
    refused: str  #: why the replay ended early; "" if it did not


class Replayed(NamedTuple):
    """The result of a replay."""

    events: int  #: pushes that were replayed
    violations: list[str]
    unjudged: list[str]  #: why something was left out


def replay(
    history: History, phases: Phases | None, sync: Any, workers: Iterable[int], until_s: float
) -> Replayed:
    """Replay every range, with the `workers` of the start, up to `until_s`, when the first worker joins or leaves."""
    events, violations, unjudged = 0, list[str](), list[str]()
    whole, ranges = history.rules.traits.whole, history.ranges()
    for index, rows in ranges[-1:] if whole else ranges:  # of one decision for all ranges, the last range has the times
        part = _Range(history, phases, rows, sync, tuple(workers))
        kept = part.order[part.came_s[part.order] < min(until_s, part.until_s)]
        problem, found = part.hidden, ""
        if not problem and len(kept):
            try:
                found, sure = part.differs(kept)
                problem = "" if sure else f"they depend on what the record does not contain ({found})"
            except Exception as error:  # whatever a user's policy raises
                problem = f"the policy raised {type(error).__name__}: {error}"
        if problem:
            unjudged.append(f"the decisions on range {index}: {problem}")
            continue
        events += len(kept) * (history.size // len(rows) if whole else 1)
        violations += [found] if found else []
    return Replayed(events, violations, unjudged)


class _Range:
    """One range's pushes in the order of their arrival; the applied ones by their rows, the dropped ones after them."""

    def __init__(
        self, history: History, phases: Phases | None, rows: np.ndarray, sync: Any, workers: tuple[int, ...]
    ) -> None:
        self.history, self.rows, self.sync, self.workers = history, rows, sync, workers
        self.eager = history.rules.traits.eager
        self.alone = bool((np.diff(history.applied[rows]) > 0).all())
        self.exact = history.range.max() == 0  # otherwise pulls may wait for those of other ranges
        none = np.empty(0, np.int64)
        lost = phases.dropped(history) if phases is not None and history.rules.drops else (none, none, none)
        self.worker, self.iteration = (np.concatenate(each) for each in zip(
            (history.worker, history.iteration), lost[:2], strict=True))  # fmt: skip
        self.pulled = np.concatenate((history.pulled, np.zeros_like(lost[0])))
        received_s, self.until_s = history.seconds, np.inf
        in_order = self.alone and not len(lost[0])  # what is applied on arrival arrived in the order of application
        if phases is not None and not in_order:
            received_s = self._received_s(phases)
            self.until_s = phases.unapplied_s(history)  # a push that the server holds counts in the clocks, too
        self.came_s = np.concatenate((received_s, lost[2]))
        entries = np.concatenate((rows, np.arange(history.size, len(self.worker))))
        self.order = rows if in_order else entries[np.argsort(self.came_s[entries], kind="stable")]
        self.asked = self._asked(phases) if self.eager and phases is not None else []
        self.hidden = self._hidden(phases)

    def _hidden(self, phases: Phases | None) -> str:
        """Why the record does not tell in which order messages arrived at the server; "" if it does."""
        if (self.history.gaps.any() or self.eager) and phases is None:
            return "when dropped pushes arrived, or eager workers sent requests, is only in the phases"
        if self.eager and not self.alone:
            return "requests of eager workers are not replayed under a policy that holds pushes"
        return ""

    def _received_s(self, phases: Phases) -> np.ndarray:
        """When each push was received, as far as that is recorded; otherwise when it was applied."""
        received_s = phases.received_s(self.history)
        return np.where(np.isnan(received_s), self.history.seconds, received_s)

    def _asked(self, phases: Phases) -> list[tuple[tuple[float, float], Pull]]:
        """The requests of eager workers and when the server received them; at equal times, before which version."""
        h, self.came_s = self.history, self._received_s(phases)
        got = dict(zip(zip(h.worker[self.rows].tolist(), h.iteration[self.rows].tolist(), strict=True),
                       h.pulled[self.rows].tolist(), strict=True))  # fmt: skip
        found = dict[tuple[int, int], tuple[tuple[float, float], Pull]]()
        for at in np.flatnonzero(phases.phase == "wait")[::-1].tolist():
            worker, iteration = int(phases.worker[at]), int(phases.iteration[at]) + 1
            place = got.get((worker, iteration), np.inf) + 0.5  # after the push that made it, before the next one
            request = (float(phases.begin[at]), place), Pull(worker, 0, iteration, 0)
            found[worker, iteration] = min(request, found.get((worker, iteration), request))
        return sorted(found.values())

    def differs(self, kept: np.ndarray) -> tuple[str, bool]:
        """How the replay of these rows differs from the record, in words; and whether it certainly does."""
        instants = self.came_s[kept].tolist()
        base = self._decide(kept, instants)
        found = self._compare(base, kept)
        if not found:
            return "", True
        index = np.arange(len(kept), dtype=float)
        for times in (instants, np.zeros(len(kept)), 0.1 * index, np.square(index)):
            if self._decide(kept, list(times)) != base:
                return found, False
        if self.order is self.rows:
            return found, True
        ties = kept[np.lexsort((-index, self.came_s[kept]))]
        return found, self._compare(self._decide(ties, instants), ties) == found

    def _decide(self, kept: np.ndarray, instants: Sequence[float]) -> Decisions:
        server = Server(self.workers, 1, self.sync)
        steps: list[frozenset[Name]] = []
        starts: dict[Name, int] = {}
        dropped: set[Name] = set()
        for message, now, row in self._messages(kept, instants):
            pending = deque(server.handle(message, now))
            while pending:
                effect = pending.popleft()
                if isinstance(effect, Step):
                    steps.append(frozenset((push.worker, push.iteration) for push in effect.pushes))
                elif isinstance(effect, Discard):
                    dropped.add((effect.push.worker, effect.push.iteration))
                elif isinstance(effect, Reply):
                    starts[effect.pull.worker, effect.pull.iteration] = effect.version
                    pending.extend(server.answered(0))
                elif isinstance(effect, Refuse):
                    refused = f"{self._name(row)} is refused: {effect.reason}"
                    return Decisions(steps, starts, frozenset(dropped), refused)
        return Decisions(steps, starts, frozenset(dropped), "")

    def _messages(self, kept: np.ndarray, instants: Sequence[float]) -> Iterator[tuple[Push | Pull, float, int]]:
        """The messages to the server: each push, then its worker's next request; an eager worker's at its own time."""
        asked, applied = deque(self.asked), self.history.applied
        for row, now in zip(kept.tolist(), instants, strict=True):
            while asked and asked[0][0] < (self.came_s[row], applied[row]):
                yield asked.popleft()[1], now, row
            worker, iteration = int(self.worker[row]), int(self.iteration[row])
            yield Push(worker, 0, iteration, int(self.pulled[row])), now, row
            if not self.eager:
                yield Pull(worker, 0, iteration + 1, 0), now, row

    def _name(self, row: int) -> str:
        if row < self.history.size:
            return self.history.name(row)
        return f"worker {self.worker[row]}'s push of iteration {self.iteration[row]}"

    def _compare(self, found: Decisions, kept: np.ndarray) -> str:
        """The first difference: a start, the pushes of a step, a push that is refused or dropped."""
        start = self._other_start(found, kept)
        step = self._other_step(found)
        if start and (not step or start[0] <= step[0]):
            return start[1]
        return step[1] if step else found.refused or self._other_drop(found, kept)

    def _other_start(self, found: Decisions, kept: np.ndarray) -> tuple[int, str] | None:
        h, first = self.history, None
        kept = kept[kept < h.size]
        names = zip(h.worker[kept].tolist(), h.iteration[kept].tolist(), strict=True)
        for row, name, version in zip(kept.tolist(), names, h.pulled[kept].tolist(), strict=True):
            got = found.starts.get(name)
            late = got is None and found.refused and version > len(found.steps)
            if name[1] == 0 or got == version or late:
                continue
            if not self.exact and got is not None and got < version:
                continue
            place = version if got is None else min(version, got)
            if first is None or place < first[0]:
                then = f"not before version {len(found.steps) + 1}" if got is None else f"on version {got}"
                first = place, f"{h.name(row)} started on version {version}; the policy starts it {then}"
        return first

    def _other_step(self, found: Decisions) -> tuple[int, str] | None:
        h, rows = self.history, self.rows
        bounds = np.flatnonzero(np.diff(h.applied[rows], prepend=0, append=h.applied[rows][-1] + 1))
        for index, (step, start, end) in enumerate(zip(found.steps, bounds, bounds[1:], strict=False)):
            here = rows[start:end]
            names = frozenset(zip(h.worker[here].tolist(), h.iteration[here].tolist(), strict=True))
            if names != step:
                return index, (f"version {index + 1}{h.on(here[0])} consists of {_in_words(names)}, which is push "
                               f"{h.push[here[0]]}; the policy makes it of {_in_words(step)}")  # fmt: skip
        return None

    def _other_drop(self, found: Decisions, kept: np.ndarray) -> str:
        lost = kept[kept >= self.history.size]
        names = frozenset(zip(self.worker[lost].tolist(), self.iteration[lost].tolist(), strict=True))
        if names == found.dropped:
            return ""
        less, more = names - found.dropped, found.dropped - names
        return (f"{_in_words(less)} was never applied; the policy does not drop it" if less else
                f"the policy drops {_in_words(more)}, which was applied")  # fmt: skip


def _in_words(names: frozenset[Name]) -> str:
    """The first few pushes in words, and the number of the others."""
    words = [f"worker {worker}'s iteration {iteration}" for worker, iteration in sorted(names)]
    return ", ".join(words[:4]) + (f" and {len(words) - 4} more" if len(words) > 4 else "")
