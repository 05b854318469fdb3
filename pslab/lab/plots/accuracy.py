"""Pictures and tables of results: accuracy against iterations, seconds and bytes, and where the time went."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from pslab.lab.plots.theme import INK, PALE, PHASES, SPACE, parts, sync_colour, sync_name, template, translucent
from pslab.lab.records.time_to_accuracy import final
from pslab.lab.studies.studies import Curve, caption, curves

if TYPE_CHECKING:
    from pslab.lab.records.record import Result

WIDTH, PAIR_WIDTH, HEIGHT = 760, 980, 500
BYTES = {"bytes": ("bytes_up", "bytes_down"), "bytes_up": ("bytes_up",), "bytes_down": ("bytes_down",)}
BYTES_TITLE = {"bytes": "bytes sent, both ways", "bytes_up": "bytes pushed", "bytes_down": "bytes pulled"}
PHASE_WORDS = {"wait": "wait (for worker)", "apply": "server applies", "serve": "server answers", "gap": "not measured"}


# -- accuracy --------------------------------------------------------------------------------------


def accuracy_by_iteration(results: Iterable[Result], title: str | None = None) -> go.Figure:
    """Test accuracy against iterations: pushes / workers, the single machine's pushes counted alike."""
    return _accuracy(results, ("iteration",), title)


def accuracy_by_seconds(results: Iterable[Result], title: str | None = None) -> go.Figure:
    """Test accuracy against seconds of training."""
    return _accuracy(results, ("seconds",), title)


def accuracy_by_bytes(results: Iterable[Result], direction: str = "both", title: str | None = None) -> go.Figure:
    """Test accuracy against bytes on the wire so far: "both" ways, "up" (pushes) or "down" (pulls)."""
    axis = {"both": "bytes", "up": "bytes_up", "down": "bytes_down"}[direction]
    return _accuracy(results, (axis,), title)


def accuracy_pair(results: Iterable[Result], title: str | None = None) -> go.Figure:
    """Test accuracy against iterations and against seconds, side by side, with one legend."""
    return _accuracy(results, ("iteration", "seconds"), title)


def series(result: Result, axis: str) -> pd.DataFrame:
    """One run's evaluations: x (pushes, seconds or bytes) and y (per cent), with what a reader may hover over."""
    table = result.accuracy.sort_values("pushes", kind="stable").drop_duplicates("pushes")
    table = table[np.isfinite(table.accuracy)]
    sent = {name: _bytes_at(result, table.seconds.to_numpy(), columns) for name, columns in BYTES.items()}
    x = sent[axis] if axis in BYTES else table["seconds" if axis == "seconds" else "pushes"].to_numpy(float)
    return pd.DataFrame({"x": x, "y": 100 * table.accuracy.to_numpy(), "pushes": table.pushes.to_numpy(),
                         "seconds": table.seconds.to_numpy(), "loss": table.loss.to_numpy(), **sent})  # fmt: skip


def _bytes_at(result: Result, seconds: np.ndarray, columns: Sequence[str]) -> np.ndarray:
    """Bytes that the pushes until each of these instants, and their pulls, took. A push may be of many gradients."""
    table = result.pushes
    order = np.argsort(table.seconds.to_numpy(), kind="stable")
    total = np.concatenate([[0.0], np.cumsum(table[list(columns)].sum(axis=1).to_numpy(float)[order])])
    sent: np.ndarray = total[np.searchsorted(table.seconds.to_numpy()[order], seconds, side="right")]
    return sent


def band(parts_: Sequence[pd.DataFrame], axis: str) -> pd.DataFrame:
    """Median, low and high over seeds, at every x that all of them reach (between evaluations: straight lines)."""
    if len(parts_) == 1:
        return parts_[0].assign(low=parts_[0].y, high=parts_[0].y)
    begin, end = max(p.x.iloc[0] for p in parts_), min(p.x.iloc[-1] for p in parts_)
    grid = np.unique(np.concatenate([p.x.to_numpy() for p in parts_]))
    grid = grid[(grid >= begin) & (grid <= end)]
    values = np.stack([np.interp(grid, p.x, p.y) for p in parts_])
    return pd.DataFrame({"x": grid, "y": np.median(values, 0), "low": values.min(0), "high": values.max(0)})


def _accuracy(results: Iterable[Result], axes: Sequence[str], title: str | None) -> go.Figure:
    found = curves(results)
    drawn = [c for c in found if not (c.single and axes[0] in BYTES)]  # a single machine sends nothing
    figure = make_subplots(1, len(axes), shared_yaxes=True, horizontal_spacing=0.035)
    workers = {c.run.workers for c in drawn if not c.single}
    per_iteration = workers.pop() if len(workers) == 1 else 1
    low, high = accuracy_range(found)
    for column, axis in enumerate(axes, start=1):
        unit = per_iteration if axis == "iteration" else 1
        for curve in drawn:
            for trace in traces(curve, axis, unit, low, shown=column == 1):
                figure.add_trace(trace, row=1, col=column)
        figure.update_xaxes(x_axis(axis, drawn, per_iteration), row=1, col=column)
    figure.update_yaxes(range=[low, high])
    figure.update_yaxes(title_text="test accuracy (%)", row=1, col=1)
    for curve in found[: len(found) if axes[0] in BYTES else 0]:
        if curve.single:
            _level(figure, curve)
    names = [legend_of(c, low) for c in drawn]
    words = {"iteration": "against iterations", "seconds": "against time"}.get(axes[0], "against bytes")
    told = title or f"{headline(found)}: test accuracy" + (f" {words}" if len(axes) == 1 else "")
    return finish(figure, told, caption(drawn), names, PAIR_WIDTH if len(axes) > 1 else WIDTH)


def traces(
    curve: Curve, axis: str, unit: int, low: float, shown: bool, legend: str = "legend", opacity: float = 0.16
) -> list[go.Scatter]:
    """The band over seeds, the line, and a cross where a seed diverged; in one of the figure's legends if `shown`."""
    runs = [series(result, axis).assign(x=lambda t: t.x / unit) for result in curve.results]
    ended = [r for r, result in zip(runs, curve.results, strict=True) if result.manifest["outcome"] == "diverged"]
    whole = [r for r in runs if not any(r is e for e in ended)] or ended
    middle = band(whole, axis)
    if axis in BYTES:
        middle = middle[middle.x > 0]
    style, name = curve.style, curve.label
    common = {"legendgroup": name, "name": legend_of(curve, low), "legend": legend}
    found = []
    if len(whole) > 1:
        found.append(go.Scatter(
            x=np.concatenate([middle.x, middle.x[::-1]]), y=np.concatenate([middle.high, middle.low[::-1]]),
            fill="toself", fillcolor=translucent(style.colour, opacity), line={"width": 0}, hoverinfo="skip",
            showlegend=False, mode="lines", **common))  # fmt: skip
    edge = "white" if "open" not in style.marker else style.colour
    drawn = {"mode": "lines+markers", "line": {"color": style.colour, "dash": style.dash, "width": style.width}}
    marker = {"symbol": style.marker, "color": style.colour, "opacity": 1, "line": {"color": edge, "width": 0.8}}
    sizes = _markers(len(middle), 7.0)
    found.append(go.Scatter(x=middle.x, y=middle.y, showlegend=False, marker={**marker, "size": sizes},
                            **drawn, **common, **_hover(middle, name)))  # fmt: skip
    if shown:  # a legend would draw a marker of changing size too small
        found.append(go.Scatter(x=[None], y=[None], marker={**marker, "size": 7}, **drawn, **common))
    found += [go.Scatter(
        x=[e.x.iloc[-1]], y=[max(low, e.y.iloc[-1])], mode="markers", cliponaxis=False, showlegend=False, **common,
        marker={"symbol": "x", "size": 11, "color": style.colour, "line": {"color": INK, "width": 0.8}},
        hovertemplate=f"<b>{name}</b><br>diverged here<extra></extra>") for e in ended if len(e)]  # fmt: skip
    return found


def _level(figure: go.Figure, curve: Curve) -> None:
    """Where the single machine ends, on an axis of bytes: it sends none."""
    end = 100 * float(np.median([final(result) for result in curve.results]))
    line = {"color": curve.style.colour, "dash": curve.style.dash, "width": 1.4}
    figure.add_hline(y=end, line=line, annotation_text=f"{curve.label} at its end", annotation_position="bottom left",
                     annotation_font={"size": 12, "color": PALE})  # fmt: skip


def _markers(count: int, size: float) -> list[float]:
    """The sizes of a line's markers: the ends and about ten between, so that its dash stays visible."""
    step = max(1, math.ceil(count / 11))
    return [size if (count - 1 - place) % step == 0 or place == 0 else 0.0 for place in range(count)]


def _hover(middle: pd.DataFrame, name: str) -> dict[str, Any]:
    if "pushes" not in middle:
        rows, columns = "<br>%{y:.2f} % (%{customdata[0]:.2f} to %{customdata[1]:.2f})", ["low", "high"]
        return {"customdata": middle[columns].to_numpy(), "hovertemplate": f"<b>{name}</b>{rows}<extra></extra>"}
    rows = ("<br>%{y:.2f} %, loss %{customdata[0]:.3f}<br>%{customdata[1]} pushes, %{customdata[2]:.2f} s"
            "<br>%{customdata[3]:.3s}B up, %{customdata[4]:.3s}B down")  # fmt: skip
    columns = ["loss", "pushes", "seconds", "bytes_up", "bytes_down"]
    return {"customdata": middle[columns].to_numpy(), "hovertemplate": f"<b>{name}</b>{rows}<extra></extra>"}


def legend_of(curve: Curve, low: float) -> str:
    """A curve's entry: what is under the frame is said."""
    ends = [100 * r.accuracy.accuracy.iloc[-1] for r in curve.results if r.manifest["outcome"] != "diverged"]
    below = f" (ends at {np.median(ends):.0f}{SPACE}%, below)" if ends and np.median(ends) < low else ""
    return curve.legend + below


def accuracy_range(found: Iterable[Curve]) -> tuple[float, float]:
    """Per cent between which the ends of the curves can be told apart; the way up from chance is not the matter."""
    ends = [100 * r.accuracy.accuracy.max() for c in found for r in c.results if r.manifest["outcome"] != "diverged"]
    worst, best = min(ends, default=0.0), max(ends, default=100.0)
    low = max(0.0, worst - 0.6 * (best - worst) - 4, best - 45)
    step = 5 if best - low > 15 else 2
    low = step * math.floor(low / step)
    return low, min(100.0, best + 0.08 * (best - low))


def x_axis(axis: str, found: Sequence[Curve], per_iteration: int) -> dict[str, Any]:
    """The axis of iterations, seconds or bytes; of iterations of so many pushes."""
    if axis == "seconds":
        return {"title": {"text": "training time (s)"}, "rangemode": "tozero"}
    if axis == "iteration":
        samples = {c.run.batch_size for c in found}
        each = f", {per_iteration * samples.pop()} samples" if len(samples) == 1 else ""
        text = f"iteration ({per_iteration} pushes{each})" if per_iteration > 1 else "pushes"
        return {"title": {"text": text}, "rangemode": "tozero"}
    title, totals = {"title": {"text": BYTES_TITLE[axis]}}, [series(r, axis).x.max() for c in found for r in c.results]
    if not totals or max(totals) <= 10 * min(totals):
        return {**title, "tickformat": "~s", "ticksuffix": "B", "rangemode": "tozero"}
    decades = [10.0**power for power in range(13)]
    return {**title, "type": "log", "tickvals": decades, "ticktext": [size(d).replace(".0", "") for d in decades]}


# -- time ------------------------------------------------------------------------------------------


#: What a worker is said to do where its phases overlap: the last of these.
FOREMOST = ("push", "apply", "pull", "serve", "wait", "decode", "encode", "select", "compute")


def budget(result: Result) -> pd.DataFrame:
    """Seconds per worker, part and worker waited for (-1: none); "gap" is what no phase covers of the worker's time.

    Every instant counts once: a transfer that overlaps with computing costs what it takes beyond that.
    """
    parts_ = []
    for worker, own in result.phases.groupby("worker"):
        waits_for = own.waits_for.where(own.phase == "wait", -1)
        whole = pd.DataFrame({"phase": own.phase, "waits_for": waits_for, "seconds": _exposed(own)})
        table = whole.groupby(["phase", "waits_for"])["seconds"].sum().reset_index()
        gap = max(0.0, own.end_s.max() - own.begin_s.min() - table.seconds.sum())
        table = pd.concat([table, pd.DataFrame([{"phase": "gap", "waits_for": -1, "seconds": gap}])])
        parts_.append(table.assign(worker=worker, share=table.seconds / table.seconds.sum()))
    return pd.concat(parts_, ignore_index=True)[["worker", "phase", "waits_for", "seconds", "share"]]


def _exposed(phases: pd.DataFrame) -> np.ndarray:
    """Of each phase of one worker the seconds in which no other one is foremost."""
    begins, ends = phases.begin_s.to_numpy(float), phases.end_s.to_numpy(float)
    instants = np.unique([begins, ends])
    foremost = np.full(len(instants), -1)
    firsts, lasts = np.searchsorted(instants, begins), np.searchsorted(instants, ends)
    ranks = phases.phase.map({name: rank for rank, name in enumerate(FOREMOST)}).fillna(-1).to_numpy()
    for row in np.lexsort((begins, ranks)):
        foremost[firsts[row] : lasts[row]] = row
    lengths = np.diff(instants, append=instants[-1:])
    return np.bincount(foremost[foremost >= 0], lengths[foremost >= 0], minlength=len(phases))


def time_budget(results: Iterable[Result], title: str | None = None) -> go.Figure:
    """Stacked seconds per worker: computing, pruning, coding, transferring, waiting (for whom), and the gap."""
    found = curves(results)
    names = {c.label: wrapped(c.legend, 9 if c.run.workers == 1 else 14) for c in found}
    frames = [budget(result).assign(curve=rank, label=names[curve.label], weight=1 / len(curve.results))
              for rank, curve in enumerate(found) for result in curve.results]  # fmt: skip
    table = pd.concat(frames, ignore_index=True)
    table["seconds"] *= table.weight
    table = table.groupby(["curve", "label", "worker", "phase", "waits_for"])["seconds"].sum().reset_index()
    tallest = float(table.groupby(["curve", "worker"]).seconds.sum().max())
    bars, shown = [], []
    for phase in dict.fromkeys([*PHASES, *table.phase]):
        own = table[table.phase == phase]
        for whom in sorted(set(own.waits_for)):
            part = own[own.waits_for == whom]
            if part.seconds.max() > 1e-3 * tallest:
                bars.append(_bar(phase, int(whom), part, tallest, shown=phase not in shown))
                shown.append(phase)
    figure = go.Figure(bars)
    figure.update_xaxes(title_text="worker", tickfont_size=12, showgrid=False, dividercolor=PALE, dividerwidth=0.8)
    figure.update_yaxes(title_text="training time (s)", range=[0, 1.03 * tallest])
    figure.update_layout(barmode="stack", bargap=0.12, legend={"traceorder": "normal", "itemwidth": 30})
    lines = caption(found, "mean of ")
    words = [PHASE_WORDS.get(phase, phase) for phase in dict.fromkeys(shown)]
    finish(figure, title or f"{headline(found)}: where the time goes", lines, words, PAIR_WIDTH, below=78)
    return figure.update_layout(margin_r=44)  # the last label may be wider than its bar


def _bar(phase: str, whom: int, part: pd.DataFrame, tallest: float, shown: bool) -> go.Bar:
    word = PHASE_WORDS.get(phase, phase)
    label = f"waits for worker {whom}" if whom >= 0 else word
    return go.Bar(
        x=[list(part.label), [str(worker) for worker in part.worker]], y=part.seconds,
        name=word, legendgroup=phase, showlegend=shown,
        marker={"color": PHASES.get(phase, "#999999"),
                "line": {"color": PALE if phase == "gap" else "white", "width": 0.5}},
        text=[str(whom) if whom >= 0 and s > 0.03 * tallest else "" for s in part.seconds], textposition="inside",
        insidetextanchor="middle", textangle=0, constraintext="none", textfont={"size": 10, "color": INK},
        hovertemplate=f"<b>%{{x}}</b><br>{label}: %{{y:.2f}} s<extra></extra>")  # fmt: skip


def waiting_share(results: Iterable[Result], title: str | None = None) -> go.Figure:
    """The share of a worker's time that it waits: a bar for the mean, a dot for each worker and seed."""
    found = [c for c in curves(results) if not c.single]
    figure = go.Figure()
    for curve in found:
        shares = [share for result in curve.results for share in waits(result)]
        place = f"{wrapped(curve.legend)}<br>{np.mean(shares):.1f}{SPACE}%"
        figure.add_trace(go.Bar(
            x=[place], y=[np.mean(shares)], width=0.55, marker={"color": sync_colour(curve.run.sync), "line_width": 0},
            hovertemplate=f"<b>{curve.label}</b><br>mean %{{y:.1f}} %<extra></extra>"))  # fmt: skip
        figure.add_trace(go.Scatter(
            x=[place] * len(shares), y=shares, mode="markers", cliponaxis=False,
            marker={"symbol": "circle", "size": 8, "color": "white", "line": {"color": INK, "width": 1.2}},
            hovertemplate=f"<b>{curve.label}</b><br>a worker: %{{y:.1f}} %<extra></extra>"))  # fmt: skip
    figure.update_layout(showlegend=False)
    figure.update_xaxes(showgrid=False)
    figure.update_yaxes(title_text="time waiting (% of a worker's time)", rangemode="tozero")
    lines = [*caption(found, "mean of "), "a dot for each worker" + (" and seed" if several(found) else "")]
    return finish(figure, title or f"{headline(found)}: waiting", lines, [], WIDTH, below=60)


def waits(result: Result) -> list[float]:
    """Per cent of each worker's time spent waiting."""
    table = budget(result)
    waiting = table[table.phase == "wait"].groupby("worker").share.sum()
    return [100 * float(waiting.get(worker, 0.0)) for worker in sorted(table.worker.unique())]


def staleness_distribution(results: Iterable[Result], title: str | None = None) -> go.Figure:
    """The share of pushes by staleness: steps that the server took between a push's pull and its application."""
    found = [c for c in curves(results) if not c.single]
    values = [np.concatenate([r.pushes.staleness.to_numpy() for r in c.results]) for c in found]
    width = max(1, math.ceil((max(v.max() for v in values) + 1) / 40))
    figure = go.Figure()
    for curve, stale in zip(found, values, strict=True):
        bins, counts = np.unique(stale // width * width, return_counts=True)
        figure.add_trace(go.Bar(
            x=bins, y=100 * counts / counts.sum(), marker={"color": curve.style.colour, "line": {"width": 0}},
            name=f"{curve.legend} (mean {stale.mean():.1f}, largest {stale.max()})",
            hovertemplate=f"<b>{curve.label}</b><br>staleness %{{x}}: %{{y:.1f}} %<extra></extra>"))  # fmt: skip
    figure.update_layout(barmode="group", bargap=0.15, showlegend=True, legend_itemwidth=30)
    bins_of = f", in bins of {width}" if width > 1 else ""
    figure.update_xaxes(title_text=f"staleness (steps){bins_of}", showgrid=False, dtick=5 if width > 1 else 1)
    figure.update_yaxes(title_text="pushes (%)")
    names = [str(trace.name) for trace in figure.data]
    return finish(figure, title or f"{headline(found)}: staleness", caption(found, ""), names, WIDTH)


# -- finish ----------------------------------------------------------------------------------------


def size(count: float) -> str:
    """Bytes for people: ``"12.3 MB"``."""
    for unit, step in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= step:
            return f"{count / step:.1f} {unit}"
    return f"{count:.0f} B"


def headline(found: Sequence[Curve]) -> str:
    """What the curves of a figure compare, in a few words."""
    crowd = [c.run for c in found if not c.single] or [c.run for c in found]
    syncs = list(dict.fromkeys(sync_name(run.sync) for run in crowd))
    pruned = list(dict.fromkeys(c.label for c in found if not c.single and parts(c.run.prune)[0] != "none"))
    families = {parts(run.prune)[0].lower() for run in crowd} - {"none"}
    if len(syncs) > 1:
        return "Synchronization policies" + (", pruned" if pruned else ", dense gradients")
    family = {"static": "Static pruning", "std": "Pruning by standard deviation", "dynamic": "Dynamic pruning",
              "dgc": "Deep gradient compression"}  # fmt: skip
    words = "Pruning" if families else "Dense gradients"
    if len(families) == 1:
        words = family.get(families.pop(), words)
    return f"{words} under {syncs[0]}" if syncs else words


def wrapped(text: str, width: int = 14) -> str:
    """The text in lines of a figure."""
    return "<br>".join(textwrap.wrap(text, width)) or text


def several(found: Iterable[Curve]) -> bool:
    """Whether there is more than one seed."""
    return any(len(curve.results) > 1 for curve in found)


def finish(
    figure: go.Figure, title: str, lines: Sequence[str], names: Sequence[str], width: int, below: int = 44
) -> go.Figure:
    """The template, a headline with its caption, and room for a legend of `names` under the picture."""
    small = [row for line in lines for row in textwrap.wrap(line, int(width / 6.1), break_long_words=False)]
    entries = [6.8 * len(name) + (46 if figure.data[0].type == "bar" else 62) for name in names]
    inside = width - 90
    columns = len(entries) if sum(entries) <= inside else max(1, int(inside / max(entries)))
    rows = math.ceil(len(entries) / max(1, columns))
    top, bottom = 52 + 16 * len(small), below + 14 + 22 * rows
    figure.update_layout(
        template=template(), width=width, height=HEIGHT - 160 + top + bottom,
        margin={"t": top, "b": bottom, "l": 66, "r": 22},
        title={"text": title, "subtitle": {"text": "<br>".join(small)}},
    )  # fmt: skip
    return figure
