"""The live view: choose policies, press Start, and watch the curves and the workers' waits.

Runs are executed by pslab.lab.runs.background. The view reads only records, so it also shows runs that another
notebook or a terminal has started.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from types import MappingProxyType
from typing import Any

import ipywidgets as widgets
import pandas as pd

from pslab.config.metric import metric_of
from pslab.config.run import FIELDS, Run
from pslab.errors import ConfigError, PslabError, RunsInterrupted, in_a_sentence
from pslab.lab.live import figure as live_figure
from pslab.lab.live.controls import Controls
from pslab.lab.live.figure import DARK_PAGE, LIGHT_PAGE, Session
from pslab.lab.live.front import Front
from pslab.lab.live.state import FINISHED, INTERRUPTED, LOST, QUEUED, SILENT, UNDER_WAY, Track, Watcher
from pslab.lab.plots.labels import SPACE, notes_of
from pslab.lab.records.frames import table
from pslab.lab.records.record import Result, default_results
from pslab.lab.records.results import load
from pslab.lab.runs.background import Background, current
from pslab.lab.runs.progress import has_front_end

DEFAULTS: Mapping[str, Any] = MappingProxyType({
    "sync": ("bsp", "ssp:3", "asp"), "prune": ("none",), "workers": 4, "learning_rate": 0.5, "schedule": "linear",
    "pushes": 937, "cluster": "lab", "seed": 0, "pull": "changed",
})  # fmt: skip
PERIOD_S = 0.25
RUNS_SHOWN = 3  # runs whose workers are shown
STATES = {QUEUED: "queued", FINISHED: "finished", INTERRUPTED: "interrupted, kept", LOST: "ended without a record",
          SILENT: "silent"}  # fmt: skip
DASH = "–"
GONE = "This live view ended with its kernel: run the cell again to get it back. Recorded runs are not executed again."


class Live:
    """A view that starts runs and shows all runs under way.

    It is displayed as the value of a notebook's cell. If `live` is False, or if it is None and no notebook shows
    widgets, the runs are executed at once, with a line of progress, and a static figure is displayed instead.

    Args:
        run: initial values of the controls; None: DEFAULTS.
        sync, prune: the initial policies and pruning rules; strings or objects.
        results: the folder of records.
        fields: fields of Run with other initial values.

    Raises:
        ConfigError: Run refuses a value.
    """

    def __init__(
        self, run: Run | None = None, *, sync: Any = None, prune: Any = None, live: bool | None = None,
        results: Path | str | None = None, **fields: Any,
    ) -> None:  # fmt: skip
        if live not in (True, False, None):
            raise ConfigError("live", live, "must be True, False, or None (True if a notebook can show widgets)")
        values = DEFAULTS if run is None else {name: getattr(run, name) for name in FIELDS}
        values = {**values, **fields}
        values |= {name: value for name, value in (("sync", sync), ("prune", prune)) if value is not None}
        self.place = default_results() if results is None else Path(results)
        self.live = has_front_end() if live is None else live
        self.controls = Controls(values)
        self.watcher, self._session = Watcher(self.place), Session()
        self._background: Background | None = None
        self._runs: list[Run] = []
        self._own: set[str] = set()  # digests of all runs that this view has started
        self._error = self._broken = ""
        self._following: asyncio.Task[None] | None = None
        self._kept: Any = None  # a second output of the cell, which stays in the notebook's file
        self._drawn: object = None
        self._settled: Background | None = None  # the ended background whose records the watcher has
        self._results: list[Result] = []
        wanted = self.controls.runs()  # refuses impossible values at once
        if self.live:
            self._build()
        else:
            self._execute([chosen.but(evaluate=values.get("evaluate", "after")) for chosen in wanted])

    # --- methods for notebooks and scripts ------------------------------------------------------------------------

    def start(self) -> None:
        """Start the chosen runs, as the button does; errors are shown in the view."""
        self._error = ""
        self.controls.mark("")
        try:
            runs = self.controls.runs()
            self._background = Background(runs, self.place)
            self._runs = runs
            self._own |= {run.digest for run in runs}
        except PslabError as error:
            self._show_error(str(error), error.field if isinstance(error, ConfigError) else "")
        self.watcher.show(self._runs)
        self.refresh()

    def stop(self) -> None:
        """Stop the run under way in this notebook gracefully; its record keeps the pushes so far."""
        if (running := current()) is not None:
            running.stop()
        self.refresh()

    def clear(self) -> None:
        """Remove ended runs from the view; their records stay."""
        self.watcher.forget()
        self._runs = [run for run in self._runs if run.digest in self.watcher.tracks or current() is not None]
        self.refresh()

    def wait(self) -> pd.DataFrame:
        """Wait until the runs are over and return their results; an interrupt stops them."""
        try:
            while self._background is not None and not self._background.wait(PERIOD_S):
                self.refresh()
        except KeyboardInterrupt:
            self.stop()
            raise RunsInterrupted("interrupted: the run under way stops, and its pushes so far are recorded; start() "
                                  "runs it again") from None  # fmt: skip
        self.refresh()
        return self.results

    @property
    def results(self) -> pd.DataFrame:
        """A table of the chosen runs that are finished."""
        tracks = [self.watcher.tracks.get(run.digest) for run in self._runs]
        ended = [load(t.path) for t in tracks if t is not None and t.state == FINISHED and t.path is not None]
        return table(self._results or ended)

    @property
    def error(self) -> str:
        """The last error in words; "" if there is none."""
        return self._error

    def refresh(self) -> None:
        """Read the records and update the view; if drawing raises, the view shows the error."""
        if not self.live:
            return
        try:
            self._refresh()
            self._broken = ""
        except Exception as error:  # records may vanish meanwhile, or contain values that cannot be drawn
            self._broken = f"This view cannot be drawn: {in_a_sentence(error)}"
        self._say()

    # --- the view -------------------------------------------------------------------------------------------------

    def _build(self) -> None:
        self.start_button = _button("Start", "run the chosen runs, one after another", self.start, "primary")
        self.stop_button = _button("Stop", "end the run in order; its finished pushes are kept", self.stop, "danger")
        self.clear_button = _button("Clear", "leave out the runs that have ended; their records stay", self.clear, "")
        hidden = {"width": "auto", "align_self": "flex-start", "display": "none"}
        self.others_button = widgets.ToggleButton(layout=hidden)
        self.others_button.observe(lambda _: self.refresh(), "value")
        self.message, self.table = widgets.HTML(), widgets.HTML()
        self.front = Front()
        self.page = self.front.page
        self.page.observe(lambda _: self.refresh(), ["dark", "shown"])
        buttons = widgets.HBox([self.start_button, self.stop_button, self.clear_button])
        shown = [self.controls.box, buttons, self.message, self.table, self.others_button, self.front]
        self.box = widgets.VBox(shown).add_class("pslab-live")
        self.refresh()

    def _refresh(self) -> None:
        changed = self.watcher.poll()
        running, background = current(), self._background
        if background is not None and not background.alive and background is not self._settled:
            self._settled = background
            self.watcher.show(self._runs)  # a run may start and end between two polls
        if background is not None and background.error and not self._error:
            self._show_error(background.error, background.field)
        self.start_button.disabled, self.stop_button.disabled = running is not None, running is None or running.stopping
        tracks = self._shown()
        self.clear_button.disabled = len(self.watcher.tracks) == len(self.watcher.under_way)
        state = [self.page.dark, *((track.digest, track.state, len(track.points)) for track in tracks)]
        if changed or state != self._drawn or running is not None:
            self._show(tracks, redraw=state != self._drawn)
            self._drawn = state

    def _shown(self) -> list[Track]:
        """Return the runs to show, and set the button for runs that were started elsewhere: the last SLOTS runs of this
        notebook (in the order of their starts, then queued ones), then the last SLOTS runs that were started elsewhere,
        if the user asks for these or if this notebook has no runs."""
        seen = self.watcher.tracks
        queued = self._runs if current() is not None and current() is self._background else []
        later = [Track(run, run.digest, QUEUED) for run in queued if run.digest not in seen]
        mine = [*(track for track in seen.values() if self._is_own(track)), *later][-live_figure.SLOTS :]
        others = [track for track in seen.values() if not self._is_own(track)][-live_figure.SLOTS :]
        running = sum(track.state == UNDER_WAY for track in others)
        self.others_button.layout.display = None if mine and others else "none"
        self.others_button.description = f"{len(others)} runs started elsewhere, {running} of them under way"
        return mine + others if self.others_button.value or not mine else mine

    def _is_own(self, track: Track) -> bool:
        return track.here or track.digest in self._own

    def _show(self, tracks: Sequence[Track], redraw: bool) -> None:
        named = dict(zip((track.digest for track in tracks), self._session.names(tracks), strict=True))
        ground = DARK_PAGE if self.page.dark else LIGHT_PAGE
        rows = [row_of(track, named[track.digest].label, self._is_own(track)) for track in tracks]
        with pd.option_context("display.max_colwidth", None):
            table = pd.DataFrame(rows).to_html(index=False, border=0, justify="left",
                                               classes="pslab-runs")  # fmt: skip
        shown = table + notes_under(tracks) if rows else ""
        self.table.value = f"<style>.{self._gone} {{ display: none; }}</style>{shown}"
        working = [track for track in tracks if track.state == UNDER_WAY and track.workers][-RUNS_SHOWN:]
        self.strips = live_figure.strips(working, [named[track.digest] for track in working], ground)
        self.page.strips = self.strips.to_json() if working else ""
        if redraw:
            self.figure = live_figure.curves(tracks, list(named.values()), ground)
            self.page.curves = self.figure.to_json()
            if self._kept is not None:
                self._kept.update(self._afterwards())

    @property
    def _gone(self) -> str:
        """The CSS class of elements that are hidden while this view's kernel runs."""
        return f"pslab-gone-{self.front.model_id}"

    def _afterwards(self) -> Any:
        """Return the HTML that stays in the notebook's file, and appears once the kernel has ended."""
        from IPython.display import HTML

        table = self.table.value.partition("</style>")[2]
        return HTML(f'<div class="{self._gone}"><p>{GONE}</p>{table}</div>')  # type: ignore[no-untyped-call]

    def _show_error(self, error: str, field: str) -> None:
        self._error = error
        self.controls.mark(field)

    def _say(self) -> None:
        """Show the errors and the current activity."""
        running, background = current(), self._background
        note = background.note if background is not None and background.note else ""
        if running is not None:
            note = "stopping …" if running.stopping else "" if self.watcher.under_way else "starting the processes …"
        self.message.value = _message([self._error, self._broken], note)

    def _execute(self, runs: list[Run]) -> None:
        """Execute the runs at once, without a front end."""
        from pslab.lab.plots.charts.curves import curves
        from pslab.lab.runs.run import sweep  # loads torch if a run must be executed

        self._runs, self._results = runs, sweep(runs, results=self.place)
        self.figure = curves(self._results, x=["iteration", "seconds"])

    def _ipython_display_(self) -> None:
        from IPython.display import display

        display(self.box if self.live else self.figure)  # type: ignore[no-untyped-call]
        if self.live:
            self._kept = display(self._afterwards(), display_id=True)  # type: ignore[no-untyped-call]
            if self._following is not None:
                self._following.cancel()
            with contextlib.suppress(RuntimeError):  # no event loop: a script calls refresh or wait
                self._following = asyncio.get_running_loop().create_task(follow(weakref.ref(self)))


async def follow(view: weakref.ref[Live]) -> None:
    """Refresh a view as long as a page shows it."""
    while (shown := view()) is not None:
        if shown.page.shown:
            shown.refresh()
        del shown
        await asyncio.sleep(PERIOD_S)


def _button(name: str, tooltip: str, call: Callable[[], None], style: str) -> widgets.Button:
    button = widgets.Button(description=name, tooltip=tooltip, button_style=style)
    button.on_click(lambda _: call())
    return button


def _message(errors: Sequence[str], note: str) -> str:
    wrong = [f'<span role="alert" class="pslab-error">{escape(error)}</span>' for error in errors if error]
    return "<br>".join(filter(None, (*wrong, escape(note))))


def _far(track: Track, now: float) -> str:
    """Return a run's progress, as in ``"8 %, 8 pushes/s, 12 s left"``, by this machine's clock at `now`."""
    rate, left = "" if track.pushes else "starting", "evaluating" if track.fraction >= 1 else ""
    if (pace := track.pace(now)) is not None and not left:
        rate, left = f"{pace[0]:.0f} pushes/s", f"{pace[1]:.0f} s left"
    return ", ".join(filter(None, [track.again, f"{100 * track.fraction:.0f}{SPACE}%", rate, left]))


def row_of(track: Track, label: str, mine: bool) -> dict[str, str]:
    """Return the row of a run in the list, by column title."""
    state = _far(track, time.monotonic()) if track.state == UNDER_WAY else STATES[track.state]
    state = "diverged" if track.diverged else state
    slower = track.manifest.get("dilation", 1.0)
    state += f", emulated {slower:g} times slower" if slower > 1 else ""
    accuracy = metric_of(track.run).text(track.points[-1].accuracy, SPACE) if track.points else DASH
    started, budget = track.state != QUEUED, f" of {track.run.pushes}" if track.run.pushes is not None else ""
    return {"run": label + track.marks, "test": accuracy,
            "cluster time": f"{track.seconds:.1f}{SPACE}s" if started else DASH,
            "pushes": f"{track.pushes}{budget}" if started else DASH,
            "state": state if mine else f"{state}, started elsewhere"}  # fmt: skip


def notes_under(tracks: Sequence[Track]) -> str:
    """Return HTML that explains the marks in the list; "" if no run has a mark."""
    notes = notes_of([track for track in tracks if track.manifest and not track.diverged])
    return f'<p class="pslab-notes">{"<br>".join(map(escape, notes))}</p>' if notes else ""
