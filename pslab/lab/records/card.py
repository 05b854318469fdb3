"""A result in words: how its run ended, remarks on the result, and its card in a notebook."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

#: For each mark behind a figure's label: the mark, its words, a test on the manifest.
MARKS: tuple[tuple[str, str, Callable[[Mapping[str, Any]], bool]], ...] = (
    ("*", "the machine was too slow for the emulated cluster: its seconds are not to be trusted",
     lambda manifest: manifest.get("emulation_ok") is False),
    ("†", "evaluated beside the training, which disturbs its seconds",
     lambda manifest: bool(manifest.get("disturbed"))),
    ("‡", "judged invalid: the run broke a rule of its policy", lambda manifest: manifest.get("verdict") == "invalid"),
    ("§", "weights of a million and more: training was about to diverge",
     lambda manifest: (manifest.get("largest_weight") or 0.0) >= 1e6),
)  # fmt: skip
WITH_ALL = "server ", "the run was ended"  # first words of `how`, if a process ended because the whole run did


def remarks(manifest: Mapping[str, Any]) -> list[str]:
    """Return the remarks on a result, such as that its emulation was not kept, or that the run was interrupted."""
    marked = [words for _, words, test in MARKS if test(manifest)]
    marked += ["interrupted: this is only the completed part of a run"] * (manifest.get("outcome") == "interrupted")
    marked += ["no step was applied: the weights are the initial weights"] * nothing_applied(manifest)
    return marked + ([f"recovered: {words}"] if (words := recovered(manifest)) else [])


def nothing_applied(manifest: Mapping[str, Any]) -> bool:
    """Whether a run used up its budget, in pushes or seconds, before its first step."""
    return manifest.get("outcome") in ("budget", "seconds") and manifest.get("pushes") == 0


def recovered(manifest: Mapping[str, Any]) -> str:
    """Return in words from which failures the run recovered, such as a replaced worker process; "" if none."""
    resumed, again, begun = (manifest.get(name, ()) for name in ("resumed", "rewinds", "fallen_starts"))
    ended = (entry for entry in manifest.get("lives", ()) if not entry["how"].startswith(WITH_ALL))
    workers = sorted({entry["worker"] for entry in ended})
    words = [f"continued at push {made['pushes']} from the checkpoint of {made['made']}" for made in resumed[-1:]]
    words += [f"its server was replaced {_times(len(again))}"] if again else []
    many = "s" * (len(workers) > 1)
    words += [f"processes of worker{many} {', '.join(map(str, workers))} were replaced"] if workers else []
    words += [f"began again {_times(len(begun))}"] if begun else []
    return "; ".join(words)


def times(manifest: Mapping[str, Any]) -> str:
    """Return a run's duration in words, ``"3.21 s"``; if the cluster's clock is not this machine's, by both clocks:
    ``"5.19 s of cluster time; took 164 s here"``."""
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
NOWRAP = "display:inline-block"  # no line break between a name and its value


def card(ended: str, fields: Mapping[str, object], curve: str, remarks: Iterable[str], folder: str) -> str:
    """Return a result as HTML in the page's colours: how its run ended, its curve, fields, remarks and folder."""
    named = (f"<span style='{NOWRAP}'>{html.escape(name)} <code>{html.escape(str(value))}</code></span>"
             for name, value in fields.items())  # fmt: skip
    rows = [f"<b>{html.escape(ended)}</b>", curve, " · ".join(named) or "every field at its default"]
    rows += [f"⚠ {html.escape(remark)}" for remark in remarks]
    rows.append(f"<code style='opacity:.7'>{html.escape(folder)}</code>")
    return f"<div style='{FRAME}'>{''.join(f'<div>{row}</div>' for row in rows if row)}</div>"


def sparkline(at: Sequence[float], values: Sequence[float], words: Callable[[float], str]) -> str:
    """Return a curve as a small SVG with its first and last value in words; "" if it has no finite value."""
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
