"""A result as a person reads it: how it ended, the remarks on it, and its card in a notebook."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

#: A mark behind a figure's label, words for it, a test on the manifest.
MARKS: tuple[tuple[str, str, Callable[[Mapping[str, Any]], bool]], ...] = (
    ("*", "the machine was too slow for the emulated cluster: its seconds are not to be trusted",
     lambda manifest: manifest.get("emulation_ok") is False),
    ("†", "evaluated beside the training, which disturbs its seconds",
     lambda manifest: bool(manifest.get("disturbed"))),
    ("‡", "judged invalid: the run broke a rule of its policy", lambda manifest: manifest.get("verdict") == "invalid"),
    ("§", "weights of a million and more: training was about to diverge",
     lambda manifest: (manifest.get("largest_weight") or 0.0) >= 1e6),
)  # fmt: skip
WITH_ALL = "server ", "the run was ended"  # how the words for the end of a process begin that ended with all others


def remarks(manifest: Mapping[str, Any]) -> list[str]:
    """The remarks on a result, a sentence each: the words of its marks, and from what it recovered."""
    found = [words for _, words, test in MARKS if test(manifest)]
    found += ["interrupted: what it completed is no result"] * (manifest.get("outcome") == "interrupted")
    found += ["no step was applied: its weights are the first ones"] * nothing_applied(manifest)
    return found + ([f"recovered: {words}"] if (words := recovered(manifest)) else [])


def nothing_applied(manifest: Mapping[str, Any]) -> bool:
    """Whether a run has ended by its budget before its first step."""
    return manifest.get("outcome") in ("budget", "seconds") and manifest.get("pushes") == 0


def recovered(manifest: Mapping[str, Any]) -> str:
    """The failures that a run recovered from, in words: its own end, a worker's process's or a server's; or ""."""
    resumed, again, begun = (manifest.get(name, ()) for name in ("resumed", "rewinds", "fallen_starts"))
    own = (life for life in manifest.get("lives", ()) if not life["how"].startswith(WITH_ALL))
    workers = sorted({life["worker"] for life in own})
    words = [f"went on at push {each['pushes']} from the checkpoint of {each['made']}" for each in resumed[-1:]]
    words += [f"its server was replaced {_times(len(again))}"] if again else []
    many = "s" * (len(workers) > 1)
    words += [f"processes of worker{many} {', '.join(map(str, workers))} were replaced"] if workers else []
    words += [f"began again {_times(len(begun))}"] if begun else []
    return "; ".join(words)


def times(manifest: Mapping[str, Any]) -> str:
    """A run's seconds in words, ``"3.21 s"``; where the cluster's time is not this machine's, both: ``"5.19 s of
    cluster time; took 164 s here"``."""
    seconds = f"{manifest['seconds']:.2f} s"
    if manifest["run"]["engine"] == "local" and manifest.get("dilation", 1.0) == 1:
        return seconds
    here = f"; took {manifest['wall_s']:.3g} s here" if "wall_s" in manifest else ""
    return f"{seconds} of cluster time{here}"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


# -- in a notebook ---------------------------------------------------------------------------------

WIDTH, HEIGHT, EDGE = 240, 48, 4  # pixels of the curve, and of the margin around it
FRAME = ("display:inline-block;max-width:44em;padding:.6em .9em;border:1px solid rgba(128,128,128,.5);"
         "border-radius:6px;line-height:1.5")  # fmt: skip
NOWRAP = "display:inline-block"  # a name stays with its value


def card(ended: str, fields: Mapping[str, object], curve: str, remarks: Iterable[str], place: str) -> str:
    """A result as HTML, in the colours of the page that shows it: how it ended, its curve, its fields, where it is."""
    named = (f"<span style='{NOWRAP}'>{html.escape(name)} <code>{html.escape(str(value))}</code></span>"
             for name, value in fields.items())  # fmt: skip
    rows = [f"<b>{html.escape(ended)}</b>", curve, " · ".join(named) or "every field at its default"]
    rows += [f"⚠ {html.escape(remark)}" for remark in remarks]
    rows.append(f"<code style='opacity:.7'>{html.escape(place)}</code>")
    return f"<div style='{FRAME}'>{''.join(f'<div>{row}</div>' for row in rows if row)}</div>"


def sparkline(at: Sequence[float], values: Sequence[float], words: Callable[[float], str]) -> str:
    """A curve as a small SVG with its first and its last value in words; "" if nothing of it is finite."""
    points = [(x, y) for x, y in zip(at, values, strict=True) if math.isfinite(y)]
    if not points:
        return ""
    xs, ys = zip(*points, strict=True)
    wide, high = (max(xs) - min(xs)) or 1.0, (max(ys) - min(ys)) or 1.0
    placed = [(EDGE + (x - min(xs)) / wide * (WIDTH - 2 * EDGE), HEIGHT - EDGE - (y - min(ys)) / high
               * (HEIGHT - 2 * EDGE)) for x, y in points]  # fmt: skip
    line, (last_x, last_y) = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed), placed[-1]
    title = html.escape(f"{words(ys[0])} to {words(ys[-1])}")
    return (f"<svg role='img' aria-label='{title}' width='{WIDTH}' height='{HEIGHT}' style='vertical-align:middle'>"
            f"<title>{title}</title><polyline points='{line}' fill='none' stroke='currentColor' stroke-width='1.5'/>"
            f"<circle cx='{last_x:.1f}' cy='{last_y:.1f}' r='2.5' fill='currentColor'/></svg> {title}")  # fmt: skip
