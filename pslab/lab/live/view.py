"""The live view: choose policies, press Start, and watch the curves grow and what each worker waits for.

Runs are executed by pslab.lab.runs.background; everything that is shown is read from records, so that runs which
another notebook or a terminal has started are shown as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import ipywidgets as widgets
import pandas as pd

from pslab.config.metric import metric_of
from pslab.config.run import FIELDS, Run
from pslab.errors import ConfigError, PslabError
from pslab.lab.live import figure as live_figure
from pslab.lab.live.controls import Controls
from pslab.lab.live.front import Front
from pslab.lab.live.looks import DARK_PAGE, LIGHT_PAGE, Session
from pslab.lab.live.state import FINISHED, INTERRUPTED, LOST, QUEUED, SILENT, UNDER_WAY, Track, Watcher
from pslab.lab.plots.labels import SPACE
from pslab.lab.plots.marks import notes_of
from pslab.lab.records.record import Result, default_results
from pslab.lab.records.results import Results, load
from pslab.lab.runs.background import Background, current

DEFAULTS: Mapping[str, Any] = MappingProxyType({
    "sync": ("bsp", "ssp:3", "asp"), "prune": ("none",), "workers": 4, "learning_rate": 0.5, "schedule": "linear",
    "pushes": 937, "cluster": "lab", "seed": 0, "pull": "changed",
})  # fmt: skip
PERIOD_S = 0.25
RUNS_SHOWN = 3  # with their workers
STATES = {QUEUED: "queued", FINISHED: "finished", INTERRUPTED: "interrupted, kept", LOST: "ended without a record",
          SILENT: "silent"}  # fmt: skip
DASH = "–"


class Live:
    """A view that starts runs, steers the next ones and shows all that are under way.

    It displays itself as the value of a cell. `live` None: a view where there is a front end; elsewhere, or for False,
    the runs are executed here and now, with a plain line of progress, and a static figure is shown.

    Args:
        run: what the controls start with; DEFAULTS if None. `fields` are fields of Run that replace its own.
        sync, prune: the policies to start with; strings or objects.
        results: where the records lie.

    Raises:
        ConfigError: what Run refuses.
    """

    _newest: ClassVar[asyncio.Task[None] | None] = None  # follows the runs; earlier views keep what they show

    def __init__(
        self, run: Run | None = None, *, sync: Any = None, prune: Any = None, live: bool | None = None,
        results: Path | str | None = None, **fields: Any,
    ) -> None:  # fmt: skip
        if live not in (True, False, None):
            raise ConfigError("live", live, "must be True, False, or None to find out")
        values = DEFAULTS if run is None else {name: getattr(run, name) for name in FIELDS}
        values = {**values, **fields}
        values |= {name: value for name, value in (("sync", sync), ("prune", prune)) if value is not None}
        self.place = default_results() if results is None else Path(results)
        self.live = has_front_end() if live is None else live
        self._controls = Controls(values)
        self._watcher, self._session = Watcher(self.place), Session()
        self._background: Background | None = None
        self._runs: list[Run] = []
        self._own: set[str] = set()  # digests of all runs that were started here
        self._error = ""
        self._drawn: object = None
        self._settled: Background | None = None  # whose runs' records have been looked for
        self._results: list[Result] = []
        wanted = self._controls.runs()  # refuses at once what cannot be
        if self.live:
            self._build()
        else:
            self._execute([each.but(evaluate=values.get("evaluate", "after")) for each in wanted])

    # --- what a notebook or a script calls ------------------------------------------------------------------------

    def start(self) -> None:
        """Start the chosen runs, as the button does; what is wrong is shown in the view."""
        self._error = ""
        self._controls.mark("")
        try:
            runs = self._controls.runs()
            self._background = Background(runs, self.place)
            self._runs = runs
            self._own |= {run.digest for run in runs}
        except PslabError as error:
            self._show_error(str(error), error.field if isinstance(error, ConfigError) else "")
        self._watcher.show(self._runs)
        self.refresh()

    def stop(self) -> None:
        """End the run that is under way in this notebook in order; what it has finished is kept."""
        if (running := current()) is not None:
            running.stop()
        self.refresh()

    def clear(self) -> None:
        """Leave out of the view what has ended; records stay."""
        self._watcher.forget()
        self._runs = [run for run in self._runs if run.digest in self._watcher.tracks or current() is not None]
        self.refresh()

    def wait(self) -> Results:
        """Block until the runs are over; their results. An interrupt stops them."""
        try:
            while self._background is not None and not self._background.wait(PERIOD_S):
                self.refresh()
        except KeyboardInterrupt:
            self.stop()
            raise
        self.refresh()
        return self.results

    @property
    def results(self) -> Results:
        """What is finished of the chosen runs."""
        tracks = [self._watcher.tracks.get(run.digest) for run in self._runs]
        ended = [load(t.path) for t in tracks if t is not None and t.state == FINISHED and t.path is not None]
        return Results(self._results or ended)

    @property
    def error(self) -> str:
        """What is wrong, in words; empty where nothing is."""
        return self._error

    def refresh(self) -> None:
        """Read the records, and bring the view up to date."""
        if not self.live:
            return
        try:
            self._refresh()
        except (PslabError, OSError) as error:  # records may vanish under a view
            self._show_error(str(error), "")

    # --- the view -------------------------------------------------------------------------------------------------

    def _build(self) -> None:
        self._start = _button("Start", "run what is chosen, one after another", self.start, "primary")
        self._stop = _button("Stop", "end the run in order; what it has finished is kept", self.stop, "danger")
        self._clear = _button("Clear", "leave out the runs that have ended; their records stay", self.clear, "")
        self._message, self._list = widgets.HTML(), widgets.HTML()
        self.figure, self.strips = live_figure.curves(), live_figure.strips()
        self._workers = widgets.VBox([self.strips]).add_class("pslab-workers")
        buttons = widgets.HBox([self._start, self._stop, self._clear])
        self._front = Front()
        self._front.observe(lambda _: self.refresh(), ["dark", "shown"])
        shown = [self._front, self._controls.box, buttons, self._message, self._list, self.figure, self._workers]
        self.box = widgets.VBox(shown).add_class("pslab-live")
        self.refresh()

    def _refresh(self) -> None:
        changed = self._watcher.poll()
        running, own = current(), self._background
        if own is not None and not own.alive and own is not self._settled:
            self._settled = own
            self._watcher.show(self._runs)  # a run may start and end between two looks
        if own is not None and own.error and not self._error:
            self._show_error(own.error, own.field)
        self._start.disabled, self._stop.disabled = running is not None, running is None or running.stopping
        note = own.note if own is not None and own.note else ""
        if running is not None:
            note = "stopping …" if running.stopping else "" if self._watcher.under_way else "starting the processes …"
        self._message.value = _message(self._error, note)
        tracks = self._shown()
        state = [self._front.dark, *((track.digest, track.state, len(track.points)) for track in tracks)]
        self._clear.disabled = len(tracks) == len(self._watcher.under_way)
        if changed or state != self._drawn or running is not None:
            # sent to a page that is not ready, a curve would be lost for good: the next message has only what changed
            ready = self._front.shown
            self._show(tracks, ready, redraw=ready and state != self._drawn)
            self._drawn = state if ready else None

    def _shown(self) -> list[Track]:
        """The runs that were seen, in the order in which they started, and the chosen ones that have not started."""
        seen = self._watcher.tracks
        queued = self._runs if current() is not None and current() is self._background else []
        later = [Track(run, run.digest, QUEUED) for run in queued if run.digest not in seen]
        return [*seen.values(), *later][-live_figure.SLOTS :]

    def _show(self, tracks: Sequence[Track], ready: bool, redraw: bool) -> None:
        named = dict(zip((track.digest for track in tracks), self._session.names(tracks), strict=True))
        ground = DARK_PAGE if self._front.dark else LIGHT_PAGE
        working = [t for t in self._watcher.under_way if t.digest in named and t.workers][-RUNS_SHOWN:]
        if ready and (working or redraw or self.strips.data[0].visible):
            live_figure.draw_strips(self.strips, working, [named[track.digest] for track in working], ground)
            self._workers.layout.display = None if working else "none"
        rows = [_row(track, named[track.digest].label, track.digest in self._own) for track in tracks]
        with pd.option_context("display.max_colwidth", None):
            table = pd.DataFrame(rows).to_html(index=False, border=0, justify="left",
                                               classes="pslab-runs")  # fmt: skip
        self._list.value = table + _notes(tracks) if rows else ""
        if redraw:
            live_figure.draw(self.figure, tracks, list(named.values()), ground)

    def _show_error(self, error: str, field: str) -> None:
        self._error = error
        self._controls.mark(field)
        if self.live:
            self._message.value = _message(error, "")

    def _execute(self, runs: list[Run]) -> None:
        """Without a front end: the runs, here and now."""
        from pslab.lab.plots.accuracy import curves
        from pslab.lab.runs.run import sweep  # torch, where something is left to run

        self._runs, self._results = runs, list(sweep(runs, results=self.place))
        self.figure = curves(self._results, x=["iteration", "seconds"])

    def _ipython_display_(self) -> None:
        from IPython.display import display

        if self.live:
            self._front.shown = False
        display(self.box if self.live else self.figure)  # type: ignore[no-untyped-call]
        if self.live:
            if Live._newest is not None:
                Live._newest.cancel()
            with contextlib.suppress(RuntimeError):  # no event loop: a script calls refresh or wait
                Live._newest = asyncio.get_running_loop().create_task(_follow(weakref.ref(self)))


async def _follow(view: weakref.ref[Live]) -> None:
    while (shown := view()) is not None:
        shown.refresh()
        del shown
        await asyncio.sleep(PERIOD_S)


def _button(name: str, tooltip: str, call: Callable[[], None], style: str) -> widgets.Button:
    button = widgets.Button(description=name, tooltip=tooltip, button_style=style)
    button.on_click(lambda _: call())
    return button


def _message(error: str, note: str) -> str:
    """An error, and a note."""
    wrong = f'<span role="alert" class="pslab-error">{escape(error)}</span>' if error else ""
    return "<br>".join(filter(None, (wrong, escape(note))))


def _far(track: Track) -> str:
    """``"8 %, 8 pushes/s, 12 s left"``."""
    rate = f"{track.pushes / track.seconds:.0f} pushes/s" if track.seconds > 0 else "starting"
    left = "evaluating" if track.fraction >= 1 else f"{track.left_s:.0f} s left" if track.left_s is not None else ""
    return ", ".join(filter(None, [f"{100 * track.fraction:.0f}{SPACE}%", rate, left]))


def _row(track: Track, label: str, own: bool) -> dict[str, str]:
    """One run in the list."""
    state = _far(track) if track.state == UNDER_WAY else STATES[track.state]
    state = "diverged" if track.diverged else state
    slower = track.manifest.get("dilation", 1.0)
    state += f", emulated {slower:g} times slower" if slower > 1 else ""
    accuracy = metric_of(track.run).text(track.points[-1].accuracy, SPACE) if track.points else DASH
    started, budget = track.state != QUEUED, f" of {track.run.pushes}" if track.run.pushes is not None else ""
    return {"run": label + track.marks, "test": accuracy,
            "time": f"{track.seconds:.1f}{SPACE}s" if started else DASH,
            "pushes": f"{track.pushes}{budget}" if started else DASH,
            "state": state if own else f"{state}, started elsewhere"}  # fmt: skip


def _notes(tracks: Sequence[Track]) -> str:
    """What the marks of the list mean."""
    found = notes_of([track for track in tracks if track.manifest and not track.diverged])
    return f'<p class="pslab-notes">{"<br>".join(map(escape, found))}</p>' if found else ""


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
