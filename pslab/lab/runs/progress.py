"""Progress of a sweep: one line that rewrites itself on a terminal and in a notebook, plain lines elsewhere.

All times are the clock's. The time left is what such runs took before, by the records, corrected by this sweep's own
pace.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, TextIO

from pslab.config.metric import metric_of
from pslab.config.run import Run
from pslab.config.untrusted import read_json
from pslab.errors import in_a_sentence
from pslab.lab.records import journal
from pslab.lab.records.disk import MANIFEST, records_in

PLAIN_PERIOD_S = 10.0
LIVE_PERIOD_S = 0.1
JOURNAL_PERIOD_S = 1.0
LATEST = 200  # records that are looked at
PRIOR = 0.2  # of a sweep, what former runs count for against its own pace
EVALUATION = 0.1  # of a run's time, until one of the sweep shows what it is
KIND = ("engine", "model", "batch_size", "cluster", "workers", "prune", "sync")  # of a run, what counts most first
Kind = tuple[str, ...]  # what makes a push take as long as another: these fields' values, or the first of them


class Progress:
    """Shows pushes, rate and the time left of a sweep. `shown` None: yes, unless the batch reads a journal.

    `taken` are the seconds that a push took before; `at_once` names the runs that are executed several at a time.
    """

    def __init__(
        self,
        runs: Mapping[str, Run],
        *,
        taken: Mapping[Kind, float] | None = None,
        at_once: int = 1,
        shown: bool | None = None,
        stream: TextIO | None = None,
    ) -> None:
        self._runs, self._done = runs, 0
        self._page = stream is None and has_front_end()  # which shows what goes to stderr as if it were wrong
        self._stream = stream or (sys.stdout if self._page else sys.stderr) or io.StringIO()  # there may be none
        self._live = self._page or self._stream.isatty()
        self._shown = shown if shown is not None else not journal.active()
        self._printed_s = self._noted_s = time.monotonic()
        self._first: tuple[float, float] | None = None  # when news came first, and what was done then
        self._width = 0
        self._work, self._known = work(runs, taken or {}, at_once), bool(taken)
        self._shares: dict[str, float] = {}
        self._pushes: dict[str, int] = {}  # the most of each: an evaluation's news are of an earlier snapshot
        self._began_s: dict[str, float] = {}
        self._paced: dict[str, tuple[float, int]] = {}  # when a run's own news came first, and its pushes then
        self._evaluation = EVALUATION
        self._trained: dict[str, tuple[float, int]] = {}  # when a run's training was over, and what was evaluated then
        if self._known:
            self._foretell(taken or {})

    def say(self, name: str, doing: str) -> None:
        """Say what is being done that has no pushes to be counted; where lines stay, of the first run alone."""
        if self._shown and (self._live or name == next(iter(self._runs))):
            self._print(f"{self._place()} {_label(self._runs[name])}: {doing}", passing=True)

    def begin(self, name: str) -> None:
        """A run starts."""
        self._shares[name], self._began_s[name] = 0.0, time.monotonic()
        self.say(name, "starts its processes" if self._runs[name].engine == "local" else "starts")

    def update(self, name: str, news: Mapping[str, Any]) -> None:
        """How far a run is, as the engine says it: see `OnProgress`."""
        now, run = time.monotonic(), self._runs[name]
        again = bool(news.get("repeated"))
        before = 0.0 if again else self._shares.get(name, 0.0)
        self._pushes[name] = max(news["pushes"], 0 if again else self._pushes.get(name, 0))
        if "evaluating" in news:
            self._shares[name] = self._evaluated(name, news["evaluating"], now)
        elif name not in self._trained:
            self._shares[name] = max(before, (1 - self._evaluation_of(run)) * _share(run, news))
        # what it takes to start processes belongs to no run; what a checkpoint has was done before
        self._first = None if "checkpoint" in news else self._first or (now, self._worked())
        if "checkpoint" in news or again:
            self._paced.pop(name, None)
            self._trained.pop(name, None)
        else:
            self._paced.setdefault(name, (now, self._pushes[name]))
        self._note(now)
        for words in (news[kind] for kind in ("repeated", "waits", "checkpoint") if self._shown and kind in news):
            self._print(f"{self._place()} {_label(run)}: {words}")
        if self._shown and now - self._printed_s >= (LIVE_PERIOD_S if self._live else PLAIN_PERIOD_S):
            self._printed_s = now
            text = f"{self._place()} {_label(run)}: {self._how_far(name, news, now)}{_words(self.left_s())}"
            self._print(text, passing=True)

    def end(self, name: str, accuracy: float | None, took: str) -> None:
        """Note that a run is finished and recorded; `took` are its seconds in words."""
        self._shares[name] = 1.0
        reached = "ended" if accuracy is None else metric_of(self._runs[name]).text(accuracy)
        if self._shown:
            more = self._done + 1 < len(self._runs)
            left = _words(self.left_s()) if more else ""
            text = f"{self._place()} {_label(self._runs[name])}: {reached} after {took}{left}"
            self._print(text, passing=self._page and more)
        self._done += 1
        self._note(time.monotonic(), always=True)

    def fail(self, name: str, error: Exception) -> None:
        """A run ended without a result."""
        if self._shown:
            self._print(f"{self._place()} {_label(self._runs[name])}: failed: {in_a_sentence(error)}")
        self.drop(name)

    def drop(self, name: str) -> None:
        """A run is not to be executed any more."""
        self._shares[name] = 1.0
        self._done += 1
        self._note(time.monotonic(), always=True)

    def left_s(self) -> float | None:
        """Seconds until the sweep is done; None while nothing is known."""
        begun_s, before = self._first or (time.monotonic(), self._worked())
        spent_s, done = time.monotonic() - begun_s, self._worked() - before
        prior = PRIOR * sum(self._work.values()) if self._known else 0.0
        if done + prior <= 0:
            return None
        return (sum(self._work.values()) - before - done) * (spent_s + prior) / (done + prior)

    def _foretell(self, taken: Mapping[Kind, float]) -> None:
        """How long it takes, before it begins."""
        same = all(kind_of(run.plain()) in taken for run in self._runs.values())
        count = len(self._runs)
        if self._shown:
            what = f"{count} runs" if count > 1 else f"[run] {_label(next(iter(self._runs.values())))}"
            how = "as such runs took before" if same else "by what other runs took"
            self._print(f"{what}: about {in_words(self.left_s() or 0.0)}, {how}", passing=self._page)
        self._note(self._noted_s, always=True)

    def _how_far(self, name: str, news: Mapping[str, Any], now: float) -> str:
        """``"20/100 pushes, 10/s"``, by this machine's clock, or ``"evaluating 4 of 16"``."""
        if "evaluating" in news:
            return "evaluating {} of {}".format(*news["evaluating"])
        pushes, budget = self._pushes[name], self._runs[name].pushes
        since_s, before = self._paced.get(name, (now, pushes))
        rate = f", {(pushes - before) / (now - since_s):.0f}/s" if now > since_s else ""
        return f"{pushes}{'' if budget is None else f'/{budget}'} pushes{rate}"

    def _evaluation_of(self, run: Run) -> float:
        return 0.0 if run.engine == "timing" else self._evaluation

    def _evaluated(self, name: str, far: Sequence[int], now: float) -> float:
        """The share of its time that a run has taken whose snapshots are being evaluated, at the pace of that."""
        count, of = far
        over_s, before = self._trained.setdefault(name, (now, count))
        if count > before:
            all_s = (now - over_s) * (of - before) / (count - before)
            self._evaluation = all_s / max(over_s - self._began_s[name] + all_s, 1e-9)
        return 1 - self._evaluation * (of - count) / max(of - before, 1)

    def _worked(self) -> float:
        return sum(self._work[name] * share for name, share in self._shares.items())

    def _note(self, now: float, always: bool = False) -> None:
        if always or now - self._noted_s >= JOURNAL_PERIOD_S:
            self._noted_s = now
            journal.note(progress={"done": self._done, "of": len(self._runs), "left_s": self.left_s()})

    def _place(self) -> str:
        count = len(self._runs)
        return f"[{min(self._done + 1, count)}/{count}]" if count > 1 else "[run]"

    def _print(self, text: str, passing: bool = False) -> None:
        """A line; the next one takes the place of a passing one, where that can be."""
        start, passing = "\r" if self._live else "", passing and self._live
        print(start + text.ljust(self._width), end="" if passing else "\n", file=self._stream, flush=True)
        self._width = len(text) if passing else 0


def work(runs: Mapping[str, Run], taken: Mapping[Kind, float], at_once: int = 1) -> dict[str, float]:
    """What each run weighs: its budget times the seconds that a push took before, if any are known.

    Runs in virtual time go `at_once` at a time. A kind that was never run counts as those that share the most of its
    first fields.
    """
    alike: dict[Kind, list[float]] = {}
    for kind, seconds in taken.items():
        for length in range(len(kind) + 1):
            alike.setdefault(kind[:length], []).append(seconds)
    weights = {}
    for name, run in runs.items():
        kind = kind_of(run.plain())
        nearest = next((alike[kind[:length]] for length in range(len(kind), -1, -1) if kind[:length] in alike), [1.0])
        push_s = median(nearest)
        lanes = min(at_once, len(runs)) if run.engine == "virtual" else 1
        weights[name] = push_s * (run.pushes or 1000) / lanes
    return weights


def kind_of(plain: Mapping[str, Any]) -> Kind:
    """What makes pushes comparable, of a run's fields as its record has them."""
    return tuple(json.dumps(plain[field], sort_keys=True) for field in KIND)


def taken_before(results: Path) -> dict[Kind, float]:
    """Seconds of this machine that a push took, by kind: medians over the latest records that say it."""
    latest = records_in(results / "runs")[: -LATEST - 1 : -1]
    found: dict[Kind, list[float]] = {}
    for path in latest:
        with contextlib.suppress(Exception):  # whatever is wrong with a record is said where it is asked for
            manifest = read_json(path / MANIFEST)
            push_s = manifest.get("wall_s", manifest["seconds"]) / manifest["pushes"]
            if 0 < push_s < math.inf:
                found.setdefault(kind_of(manifest["run"]), []).append(push_s)
    return {kind: median(times) for kind, times in found.items()}


def _share(run: Run, news: Mapping[str, Any]) -> float:
    """How much of its budget a run has used, 0 to 1."""
    shares = [news["pushes"] / run.pushes if run.pushes else 0.0, news["seconds"] / run.seconds if run.seconds else 0.0]
    return min(1.0, max(shares))


def _label(run: Run) -> str:
    return f"{_word(run.sync)} {_word(run.prune)} W={run.workers} seed {run.seed}"


def _word(value: object) -> str:
    return value if isinstance(value, str) else type(value).__name__


def _words(left_s: float | None) -> str:
    return "" if left_s is None else f"; about {in_words(left_s)} left"


def in_words(seconds: float) -> str:
    """``"35 s"``, ``"4 min"``."""
    return f"{max(1, round(seconds))} s" if seconds < 90 else f"{round(seconds / 60)} min"


def has_front_end() -> bool:
    """Whether widgets can be seen: in JupyterLab, Notebook, VS Code or Colab; not under papermill or in a script."""
    if "IPython" not in sys.modules:
        return False
    from IPython import get_ipython

    shell = get_ipython()
    if shell is None or getattr(shell, "kernel", None) is None:
        return False
    names = {"JPY_SESSION_NAME", "VSCODE_PID", "COLAB_RELEASE_TAG"}
    return bool(names & set(os.environ)) or "__vsc_ipynb_file__" in shell.user_ns
