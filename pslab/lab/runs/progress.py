"""Progress of a sweep: one bar of tqdm, whose total is the expected time of its runs.

Times are seconds of this machine's clock. The time left is estimated from the records of similar runs, corrected by the
pace of this sweep.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any, TextIO

from tqdm import tqdm

from pslab.config.metric import metric_of
from pslab.config.run import Run
from pslab.config.untrusted import read_json
from pslab.errors import in_a_sentence
from pslab.lab.records import journal
from pslab.lab.records.disk import MANIFEST, records_in

FORMAT = "{percentage:3.0f}%|{bar:20}| {desc}"
LIVE_PERIOD_S, LOG_PERIOD_S, JOURNAL_PERIOD_S = 0.1, 10.0, 1.0
LATEST = 200  # number of records that are read
PRIOR = 0.2  # weight of earlier runs relative to this sweep's own pace, as a share of the sweep
EVALUATION = 0.1  # share of a run's time spent on its evaluation
KIND = ("engine", "model", "batch_size", "cluster", "workers", "prune", "sync")  # they decide the time of a push
Kind = tuple[str, ...]  # values of the fields KIND, or of the first few


class Progress:
    """Displays the progress of a sweep and the estimated time left.

    Args:
        runs: the runs of the sweep, by name.
        taken: seconds of a push in earlier runs, by kind of run.
        at_once: the number of virtual runs that are executed at a time.
        shown: whether a bar is drawn; None: yes, unless the batch reads this process's journal.
        stream: the stream for the bar; None: stdout in a notebook, which shows stderr as a fault, and stderr elsewhere.
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
        self._runs, self._ended_count = runs, 0
        self._work, self._known = work(runs, taken or {}, at_once), bool(taken)
        self._shares: dict[str, float] = {}  # share of each run's work that is done
        self._start: tuple[float, float] | None = None  # the instant of the first report, and the work done by then
        self._noted_s = -math.inf
        in_notebook = stream is None and has_front_end()
        stream = stream or (sys.stdout if in_notebook else sys.stderr) or io.StringIO()  # a process may have no stderr
        self._lines = not in_notebook  # whether a line is printed for each ended run
        period_s = LIVE_PERIOD_S if in_notebook or stream.isatty() else LOG_PERIOD_S
        shown = not journal.active() if shown is None else shown
        self._bar = tqdm(
            total=sum(self._work.values()), file=stream, disable=not shown, bar_format=FORMAT,
            mininterval=period_s, miniters=0,
        )  # fmt: skip
        self._note(always=True)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def say(self, name: str, doing: str) -> None:
        """Show the activity of a run that has no pushes yet."""
        self._show(name, doing)

    def begin(self, name: str) -> None:
        """Show that a run starts."""
        self._shares[name] = 0.0
        self.say(name, "starts its processes" if self._runs[name].engine == "local" else "starts")

    def update(self, name: str, news: Mapping[str, Any]) -> None:
        """Show the progress of a run from a report of its engine (`OnProgress`)."""
        run, anew = self._runs[name], {"repeated", "checkpoint"} & news.keys()
        if anew:  # a second attempt, and work before a checkpoint, do not count for the pace
            self._shares[name], self._start = _share(run, news), None
        else:
            self._shares[name] = max(self._shares.get(name, 0.0), _share(run, news))
            self._start = self._start or (time.monotonic(), self._done())
        self._note()
        for words in (news[kind] for kind in ("repeated", "waits", "checkpoint") if kind in news):
            self._write(f"{self._label(name)}: {words}")
        self._show(name, _how_far(run, news))

    def end(self, name: str, accuracy: float | None, took: str) -> None:
        """Show that a run is finished and recorded; `took` is its duration in words."""
        reached = "ended" if accuracy is None else metric_of(self._runs[name]).text(accuracy)
        text = f"{self._label(name)}: {reached} after {took}"
        self.drop(name)
        if self._lines:
            self._write(text)

    def fail(self, name: str, error: Exception) -> None:
        """Show that a run ended by an error, without a result."""
        self._write(f"{self._label(name)}: failed: {in_a_sentence(error)}")
        self.drop(name)

    def drop(self, name: str) -> None:
        """Count a run as done, with or without a result."""
        self._shares[name] = 1.0
        self._show(name, "ended")
        self._ended_count += 1
        self._note(always=True)

    def left_s(self) -> float | None:
        """Return the estimated seconds until the sweep is done; None while nothing is known about its pace."""
        begun_s, before = self._start or (time.monotonic(), self._done())
        spent_s, done = time.monotonic() - begun_s, self._done() - before
        prior = PRIOR * sum(self._work.values()) if self._known else 0.0
        if done + prior <= 0:
            return None
        return (sum(self._work.values()) - before - done) * (spent_s + prior) / (done + prior)

    def _done(self) -> float:
        return sum(self._work[name] * share for name, share in self._shares.items())

    def _note(self, always: bool = False) -> None:
        if always or time.monotonic() - self._noted_s >= JOURNAL_PERIOD_S:
            self._noted_s = time.monotonic()
            journal.note(progress={"done": self._ended_count, "of": len(self._runs), "left_s": self.left_s()})

    def _label(self, name: str) -> str:
        run, count = self._runs[name], len(self._runs)
        number = f"[{min(self._ended_count + 1, count)}/{count}] " if count > 1 else ""
        return f"{number}{_word(run.sync)} {_word(run.prune)} W={run.workers} seed {run.seed}"

    def _show(self, name: str, words: str) -> None:
        left_s = self.left_s()
        left = f"; about {in_words(left_s)} left" if left_s else ""
        self._bar.set_description_str(f"{self._label(name)}: {words}{left}", refresh=False)
        self._bar.update(self._done() - self._bar.n)

    def _write(self, text: str) -> None:
        if not self._bar.disable:
            self._bar.write(text, file=self._bar.fp)


def work(runs: Mapping[str, Run], taken: Mapping[Kind, float], at_once: int = 1) -> dict[str, float]:
    """Return the expected seconds of each run, by its name: its budget of pushes times the seconds of a push.

    `taken` has the seconds of a push in earlier runs; without any, a push counts 1. A kind without earlier runs takes
    the median of the kinds that agree with it in the most leading fields of KIND. Virtual runs are executed `at_once`
    at a time.
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
    """Return the kind of a run from its fields (`Run.plain()`): the values of KIND, as JSON."""
    return tuple(json.dumps(plain[field], sort_keys=True) for field in KIND)


def taken_before(results: Path) -> dict[Kind, float]:
    """Return this machine's seconds for a push, by kind of run: medians over the latest records."""
    latest = records_in(results / "runs")[: -LATEST - 1 : -1]
    times: dict[Kind, list[float]] = {}
    for path in latest:
        with contextlib.suppress(Exception):  # a damaged record is reported when it is requested
            manifest = read_json(path / MANIFEST)
            push_s = manifest.get("wall_s", manifest["seconds"]) / manifest["pushes"]
            if 0 < push_s < math.inf:
                times.setdefault(kind_of(manifest["run"]), []).append(push_s)
    return {kind: median(taken) for kind, taken in times.items()}


def _share(run: Run, news: Mapping[str, Any]) -> float:
    evaluation = 0.0 if run.engine == "timing" else EVALUATION
    if "evaluating" in news:
        count, of = map(int, news["evaluating"])
        return 1 - evaluation * (of - count) / max(of, 1)
    pushes = news["pushes"] / run.pushes if run.pushes else 0.0
    seconds = news["seconds"] / run.seconds if run.seconds else 0.0
    return (1 - evaluation) * float(min(1.0, max(pushes, seconds)))


def _how_far(run: Run, news: Mapping[str, Any]) -> str:
    if "evaluating" in news:
        return "evaluating {} of {}".format(*news["evaluating"])
    return f"{news['pushes']}{'' if run.pushes is None else f'/{run.pushes}'} pushes"


def _word(value: object) -> str:
    return value if isinstance(value, str) else type(value).__name__


def in_words(seconds: float) -> str:
    """Return a duration in words: ``"35 s"``, ``"4 min"``."""
    return f"{max(1, round(seconds))} s" if seconds < 90 else f"{round(seconds / 60)} min"


def has_front_end() -> bool:
    """Whether widgets can be shown: in JupyterLab, Notebook, VS Code or Colab; not under papermill or in a script."""
    if "IPython" not in sys.modules:
        return False
    from IPython import get_ipython

    shell = get_ipython()
    if shell is None or getattr(shell, "kernel", None) is None:
        return False
    names = {"JPY_SESSION_NAME", "VSCODE_PID", "COLAB_RELEASE_TAG"}
    return bool(names & set(os.environ)) or "__vsc_ipynb_file__" in shell.user_ns
