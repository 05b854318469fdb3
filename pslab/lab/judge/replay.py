"""The recorded pushes once more, through a fresh server with the same policy: would it have decided the same?

A history does not tell everything: which of two pushes of one instant came first, or what a policy that looks at the
clock was told to the microsecond. Where the record and the replay differ, the replay is repeated with those told
otherwise; a policy that then decides otherwise is not judged by it.
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

    steps: list[frozenset[Name]]  #: what each version is made of, from version 1 on
    starts: dict[Name, int]  #: who was started with what, and the version that it got
    dropped: frozenset[Name]
    refused: str  #: why the replay ended early


class Replayed(NamedTuple):
    """What a replay says."""

    events: int  #: pushes that were replayed
    violations: list[str]
    unsaid: list[str]  #: why something was left out


def replay(
    history: History, phases: Phases | None, sync: Any, workers: Iterable[int], until_s: float
) -> Replayed:
    """Replay every range up to `until_s`, when the first worker comes or goes; `workers` are there at the begin."""
    events, violations, unsaid = 0, list[str](), list[str]()
    parts = history.ranges()
    if history.rules.whole:
        parts = parts[-1:]  # one decision for all ranges
    for index, rows in parts:
        begun = _Range(history, phases, rows, sync, tuple(workers))
        if begun.hidden:
            unsaid.append(f"the decisions on range {index}: {begun.hidden}")
            continue
        kept = begun.order[begun.came_s[begun.order] < min(until_s, begun.until_s)]
        if not len(kept):
            continue
        try:
            found, sure = begun.differs(kept)
        except Exception as error:  # whatever a user's policy raises
            unsaid.append(f"the decisions on range {index}: the policy raised {type(error).__name__}: {error}")
            continue
        if found and not sure:
            unsaid.append(f"the decisions on range {index}: they hang on what the record does not tell ({found})")
            continue
        events += len(kept) * (history.size // len(rows) if history.rules.whole else 1)
        violations += [found] if found else []
    return Replayed(events, violations, unsaid)


class _Range:
    """One range's pushes, in the order in which they came: the applied ones, by their rows, then the dropped ones."""

    def __init__(
        self, history: History, phases: Phases | None, rows: np.ndarray, sync: Any, workers: tuple[int, ...]
    ) -> None:
        self.history, self.rows, self.sync, self.workers = history, rows, sync, workers
        self.eager = history.rules.eager
        self.alone = bool((np.diff(history.applied[rows]) > 0).all())
        self.exact = history.range.max() == 0  # else the pulls may wait for those of other ranges
        none = np.empty(0, np.int64)
        lost = phases.dropped(history) if phases is not None and history.rules.drops else (none, none, none)
        self.worker, self.iteration = (np.concatenate(each) for each in zip(
            (history.worker, history.iteration), lost[:2], strict=True))  # fmt: skip
        self.pulled = np.concatenate((history.pulled, np.zeros_like(lost[0])))
        taken_s, self.until_s = history.seconds, np.inf
        if phases is not None and not (self.alone and not len(lost[0])):
            came_s = phases.taken_s(history)
            taken_s = np.where(np.isnan(came_s), history.seconds, came_s)
            self.until_s = phases.unapplied_s(history)  # a push that is held moves clocks, too
        self.came_s = np.concatenate((taken_s, lost[2]))
        entries = np.concatenate((rows, np.arange(history.size, len(self.worker))))
        # what is applied at once came in the order of application
        in_turn = self.alone and not len(lost[0])
        self.order = rows if in_turn else entries[np.argsort(self.came_s[entries], kind="stable")]
        self.asked = self._asked(phases) if self.eager and phases is not None else []
        self.hidden = self._hidden(phases)

    def _hidden(self, phases: Phases | None) -> str:
        """Why the record does not tell in what order the server heard what it heard; nothing if it does."""
        if (self.history.gaps.any() or self.eager) and phases is None:
            return "when dropped pushes came, or eager workers asked, is told by the phases alone"
        if self.eager and not self.alone:
            return "when eager workers ask, under a policy that holds pushes, is not replayed"
        return ""

    def _asked(self, phases: Phases) -> list[tuple[tuple[float, float], Pull]]:
        """The requests of eager workers: when the server heard them; at one instant, before which version."""
        h, taken_s = self.history, phases.taken_s(self.history)
        self.came_s = np.where(np.isnan(taken_s), h.seconds, taken_s)
        got = dict(zip(zip(h.worker[self.rows].tolist(), h.iteration[self.rows].tolist(), strict=True),
                       h.pulled[self.rows].tolist(), strict=True))  # fmt: skip
        found = dict[tuple[int, int], tuple[tuple[float, float], Pull]]()
        for at in np.flatnonzero(phases.phase == "wait")[::-1].tolist():
            worker, iteration = int(phases.worker[at]), int(phases.iteration[at]) + 1
            place = got.get((worker, iteration), np.inf) + 0.5  # after the push that made it, before the next one
            heard = (float(phases.begin[at]), place), Pull(worker, 0, iteration, 0)
            found[worker, iteration] = min(heard, found.get((worker, iteration), heard))
        return sorted(found.values())

    def differs(self, kept: np.ndarray) -> tuple[str, bool]:
        """How the replay of these rows differs from the record, in words; and whether nothing else could be said."""
        instants = self.came_s[kept].tolist()
        base = self._decide(kept, instants)
        found = self._compare(base, kept)
        if not found:
            return "", True
        index = np.arange(len(kept), dtype=float)
        for told in (instants, np.zeros(len(kept)), 0.1 * index, np.square(index)):
            if self._decide(kept, list(told)) != base:
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
        """What the server hears: a push, then its worker's next request; an eager worker's at its own instant."""
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
        """The first difference: who was started when, what a step was made of, a push that is refused."""
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
                first = place, f"{h.name(row)} was started on version {version}; the policy starts it {then}"
        return first

    def _other_step(self, found: Decisions) -> tuple[int, str] | None:
        h, rows = self.history, self.rows
        bounds = np.flatnonzero(np.diff(h.applied[rows], prepend=0, append=h.applied[rows][-1] + 1))
        for index, (step, begin, end) in enumerate(zip(found.steps, bounds, bounds[1:], strict=False)):
            here = rows[begin:end]
            names = frozenset(zip(h.worker[here].tolist(), h.iteration[here].tolist(), strict=True))
            if names != step:
                return index, (f"version {index + 1}{h.on(here[0])} was made of {_said(names)}, which is push "
                               f"{h.push[here[0]]}; the policy makes it of {_said(step)}")  # fmt: skip
        return None

    def _other_drop(self, found: Decisions, kept: np.ndarray) -> str:
        gone = kept[kept >= self.history.size]
        names = frozenset(zip(self.worker[gone].tolist(), self.iteration[gone].tolist(), strict=True))
        if names == found.dropped:
            return ""
        less, more = names - found.dropped, found.dropped - names
        return (f"{_said(less)} was never applied; the policy does not drop it" if less else
                f"the policy drops {_said(more)}, which was applied")  # fmt: skip


def _said(names: frozenset[Name]) -> str:
    """Pushes in words, the first few."""
    told = [f"worker {worker}'s iteration {iteration}" for worker, iteration in sorted(names)]
    return ", ".join(told[:4]) + (f" and {len(told) - 4} more" if len(told) > 4 else "")
