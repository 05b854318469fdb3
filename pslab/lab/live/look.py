"""How a live view looks: what each worker does, how far a run is, and the list of runs, as HTML."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path

from pslab.lab.live.state import FINISHED, INTERRUPTED, LOST, QUEUED, SAMPLES, SILENT, UNDER_WAY, Doing, Track
from pslab.lab.plots.theme import FONT, INK, PHASES, SPACE, Style

WORKERS_SHOWN = 16
COLOURS = {"computing": PHASES["compute"], "transferring": PHASES["push"], "waiting": PHASES["wait"], "dead": "#9E1B32"}
WORDS = {QUEUED: "queued", FINISHED: "finished", INTERRUPTED: "interrupted, kept", LOST: "ended without a record",
         SILENT: "silent"}  # fmt: skip
LEGEND = (("computing", "computing"), ("transferring", "transferring"), ("waiting", "waiting for the worker named"))
MARKS = {"circle": '<circle cx="17" cy="6" r="3.6"/>', "diamond": '<path d="M17 1.6 21.4 6 17 10.4 12.6 6Z"/>',
         "square": '<path d="M13.5 2.5h7v7h-7Z"/>', "triangle-up": '<path d="M17 1.8 21.4 9.4H12.6Z"/>',
         "triangle-down": '<path d="M17 10.2 12.6 2.6h8.8Z"/>',
         "circle-open": '<circle cx="17" cy="6" r="3" fill="#fff"/>',
         "hexagon": '<path d="M13 3.7 17 1.4 21 3.7v4.6l-4 2.3-4-2.3Z"/>'}  # fmt: skip
STAR = '<path d="M17 1.2 18.4 4.5 22 4.8 19.3 7.1 20.1 10.6 17 8.7 13.9 10.6 14.7 7.1 12 4.8 15.6 4.5Z"/>'

# -- workers ---------------------------------------------------------------------------------------


def workers(track: Track) -> str:
    """A row for each worker: its iteration, its last seconds, and what it does now."""
    shown = track.workers[:WORKERS_SHOWN]
    clocks = [kept[-1].iteration for kept in track.workers if kept[-1].iteration is not None]
    slowest = min(clocks, default=0)
    rows = "".join(_worker(number, list(kept), slowest) for number, kept in enumerate(shown))
    more = len(track.workers) - len(shown)
    keys = "".join(f'<span><i style="background:{COLOURS[doing]}"></i>{words}</span>' for doing, words in LEGEND)
    keys += f"<span>and {more} more workers</span>" if more else ""
    scale = f'<span></span><span></span><div class="pslab-foot"><span>{SAMPLES // 5} s ago</span>{keys}<span>now</span>'
    scale += "</div><span></span><span></span>"
    return f'<div class="pslab-workers">{rows}{scale}</div>'


def _worker(number: int, kept: Sequence[Doing], slowest: int) -> str:
    now = kept[-1]
    ahead = "" if now.iteration is None or now.iteration == slowest else f" (+{now.iteration - slowest})"
    clock = "" if now.iteration is None else f"iteration {now.iteration}"
    share = Counter(doing.doing for doing in kept)["waiting"] / len(kept)
    return (f"<b>worker {number}</b>"
            f'<span class="k pslab-num">{clock}<span style="display:inline-block;width:34px">{ahead}</span></span>'
            f"{_strip(kept)}{_chip(now)}"
            f'<span class="k pslab-num" title="of these seconds">waits {100 * share:.0f}{SPACE}%</span>')  # fmt: skip


def _strip(kept: Sequence[Doing]) -> str:
    """The last seconds, the newest at the right; a number in a grey piece is the worker that it waited for."""
    pieces = [(SAMPLES - len(kept), "transparent", "", "not begun")] if len(kept) < SAMPLES else []
    for (doing, whom), same in itertools.groupby(kept, key=lambda each: (each.doing, each.whom)):
        count = len(list(same))
        names = ",".join(map(str, whom))
        text = names if doing == "waiting" and 4 * count > 3 * len(names) else ""
        pieces.append((count, COLOURS.get(doing, "#999999"), text, _words(doing, whom)))
    spans = "".join(f'<i style="flex:{count} 0 0;background:{colour}" title="{escape(title)}">{text}</i>'
                    for count, colour, text, title in pieces)  # fmt: skip
    return f'<div class="pslab-strip">{spans}</div>'


def _chip(now: Doing) -> str:
    colour = COLOURS.get(now.doing, "#999999")
    ink = INK if now.doing == "waiting" else "#fff"
    words = escape(_words(now.doing, now.whom))
    return f'<span class="pslab-chip" style="background:{colour};color:{ink}" title="{words}">{words}</span>'


def _words(doing: str, whom: Sequence[int]) -> str:
    if doing != "waiting":
        return doing
    return f"waits for {', '.join(map(str, whom))}" if whom else "waits for its push"


# -- runs ------------------------------------------------------------------------------------------


def progress(track: Track, label: str, style: Style, place: str) -> str:
    """How far a run is, at what rate, and when it may end; the bar carries the run's colour."""
    rate = f"{track.pushes / track.seconds:.0f} pushes/s" if track.seconds > 0 else "starting"
    budget = f"{track.pushes}/{track.run.pushes} pushes" if track.run.pushes is not None else f"{track.pushes} pushes"
    left = f"{track.left_s:.0f} s left" if track.left_s is not None else ""
    if track.fraction >= 1:
        left = "evaluating"
    words = " · ".join(filter(None, [budget, rate, f"{track.seconds:.1f} s", left]))
    bar = f'<i style="width:{100 * track.fraction:.1f}%;background:{style.colour}"></i>'
    head = f"{escape(place)} <b>{escape(label)}</b> · " if place else f"<b>{escape(label)}</b> · "
    return f'<div class="pslab-num">{head}{words}</div><div class="pslab-bar">{bar}</div>'


def runs(rows: Iterable[tuple[Track, str, Style, bool]]) -> str:
    """The list of runs: sign, name, best accuracy, seconds, pushes, and how it is with it."""
    body = "".join(_run(*row) for row in rows)
    head = "".join(f"<th{c}>{t}</th>" for c, t in (("", ""), ("", "run"), (' class="n"', "test accuracy"),
                   (' class="n"', "time"), (' class="n"', "pushes"), ("", "state")))  # fmt: skip
    return f'<table class="pslab-runs"><tr>{head}</tr>{body}</table>' if body else ""


def _run(track: Track, label: str, style: Style, own: bool) -> str:
    accuracy = f"{100 * track.points[-1].accuracy:.2f}{SPACE}%" if track.points else "–"
    state = f"{100 * track.fraction:.0f}{SPACE}%" if track.state == UNDER_WAY else WORDS[track.state]
    if track.manifest.get("outcome") == "diverged":
        state = "diverged"
    where = "" if own else ", started elsewhere"
    begun = track.state != QUEUED
    numbers = (accuracy, f"{track.seconds:.1f}{SPACE}s" if begun else "–", str(track.pushes) if begun else "–")
    cells = "".join(f'<td class="n">{number}</td>' for number in numbers)
    return f"<tr><td>{sign(style)}</td><td>{escape(label)}</td>{cells}<td>{escape(state + where)}</td></tr>"


def sign(style: Style) -> str:
    """A curve's line and marker."""
    dash = "" if style.dash == "solid" else f' stroke-dasharray="{style.dash.replace("px", "")}"'
    mark = MARKS.get(style.marker, STAR)
    line = f'<path d="M0 6H34" stroke="{style.colour}" stroke-width="2"{dash}/>'
    group = f'<g fill="{style.colour}" stroke="#fff" stroke-width=".8">{mark}</g>'
    return f'<svg width="34" height="12" style="vertical-align:-1px">{line}{group}</svg>'


def said(error: str, note: str) -> str:
    """What went wrong, and what else is to be said."""
    wrong = f'<div class="pslab-said" role="alert">{escape(error)}</div>' if error else ""
    return wrong + (f'<div class="pslab-note">{escape(note)}</div>' if note else "")


def sheet(chips: Mapping[str, str]) -> str:
    """The style sheet; `chips` are the colours that the classes of chosen chips have."""
    rules = "".join(f".pslab-live .{name} {{ --pslab-chip: {colour}; --pslab-chip-text: {_ink(colour)}; }}"
                    for name, colour in chips.items())  # fmt: skip
    shared = Path(__file__).with_name("live.css").read_text()
    return f"<style>.pslab-live {{ --pslab-font: {FONT}; }}\n{shared}{rules}</style>"


def _ink(colour: str) -> str:
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return INK if 0.299 * red + 0.587 * green + 0.114 * blue > 150 else "#fff"
