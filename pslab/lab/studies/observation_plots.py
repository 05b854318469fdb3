"""Pictures of an observation: how gradients are distributed by layer, what the rules send, and what that costs."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.colors
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from pslab.config.run import Run
from pslab.lab.plots.theme import INK, PALE, SPACE, Style, prune_name, rgb, styles, template
from pslab.lab.studies.observation import BINS
from pslab.lab.studies.observation_tables import SOURCE_SHARE, claimed, costs
from pslab.lab.studies.studies import WORDS

if TYPE_CHECKING:
    import pandas as pd

    from pslab.lab.studies.observation import Observed

WIDTH, PANEL, MOST_LAYERS = 980, 250, 8
MOMENTS = ("#E1BE3F", "#6F8FA6", "#0B2A5B")  # from the first to the last iteration
GAUSS = {"color": INK, "width": 1.4, "dash": "2px,3px"}
GAUSSIAN = "Gaussian of the same deviation"
DEVICES = {"cpu": "CPU, one thread", "cuda": "GPU"}


def distribution(seen: Observed, title: str | None = None) -> go.Figure:
    """|g| / std by layer at each moment, on logarithmic axes, beside the Gaussian of the same deviation."""
    figure, places = _panels(seen)
    moments = _moments(seen)
    z = np.logspace(-4, 2, 241)
    bell = 2 * z * math.log(10) * np.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    for layer, place in places.items():
        first = layer == next(iter(places))
        for k in (1, 2, 3):
            figure.add_trace(go.Scatter(x=[k, k], y=[1e-9, 2.4], mode="lines", line={"color": PALE, "width": 0.9},
                                        showlegend=False, hoverinfo="skip"), **place)  # fmt: skip
            figure.add_annotation(x=math.log10(k), y=0.52, text=f"{k}σ", font={"size": 10, "color": PALE}, **place)
        figure.add_trace(go.Scatter(x=z, y=bell, mode="lines", line=GAUSS, name=GAUSSIAN, legendgroup=GAUSSIAN,
                                    showlegend=first, hoverinfo="skip"), **place)  # fmt: skip
        for moment, colour in moments.items():
            x, y = _density(seen, layer, moment)
            name = f"iteration {moment}"
            figure.add_trace(go.Scatter(
                x=x, y=y, mode="lines", line={"color": colour, "width": 2}, name=name, legendgroup=name,
                showlegend=first, hovertemplate=f"<b>{layer}, {name}</b><br>|g| = %{{x:.3g}} σ<br>%{{y:.3g}} of the "
                                                "entries per decade<extra></extra>"), **place)  # fmt: skip
    figure.update_xaxes(type="log", range=[-3.5, 1.8], **_powers(-3, 1))
    figure.update_yaxes(type="log", range=[-4.5, 0.7], **_powers(-4, 0))
    _name_axes(figure, places, "|g| / σ of its layer", "share of entries per decade")
    lines = [_training(seen), "σ: standard deviation of a layer's gradient; entries that are exactly zero are left out"]
    names = [GAUSSIAN, *(f"iteration {m}" for m in moments)]
    return _finish(figure, title or "How gradients are distributed, by layer", lines, names)


def densities(seen: Observed, title: str | None = None) -> go.Figure:
    """The share of each layer's entries that each rule would send, against the iteration."""
    figure, places = _panels(seen)
    looks = _styles(seen)
    for layer, place in places.items():
        for rule, style in looks.items():
            own = seen.rules[(seen.rules.layer == layer) & (seen.rules.rule == rule)]
            name = prune_name(rule)
            sizes = [6.5 if step % 6 == 0 else 0.0 for step in range(len(own))]  # between them the dash stays visible
            line = {"color": style.colour, "dash": style.dash, "width": 1.8}
            common = {"mode": "lines+markers", "line": line, "name": name, "legendgroup": rule}
            marker = {"symbol": style.marker, "color": style.colour, "opacity": 1,
                      "line": {"color": "white", "width": 0.6}}  # fmt: skip
            figure.add_trace(go.Scatter(
                x=own.iteration, y=100 * own.sent / own.entries, showlegend=False, marker={**marker, "size": sizes},
                hovertemplate=f"<b>{layer}, {name}</b><br>iteration %{{x}}: %{{y:.3g}} %<extra></extra>", **common,
                ), **place)  # fmt: skip
            if layer == next(iter(places)):
                figure.add_trace(go.Scatter(x=[None], y=[None], marker={**marker, "size": 7}, **common), **place)
    sent = 100 * seen.rules.sent / seen.rules.entries
    low = math.log10(max(1e-4, sent[sent > 0].min())) - 0.15
    figure.update_yaxes(type="log", range=[low, math.log10(sent.max()) + 0.15], **_powers(-4, 2))
    figure.update_xaxes(range=[-0.02 * seen.rules.iteration.max(), 1.02 * seen.rules.iteration.max()])
    _name_axes(figure, places, "iteration", "entries sent (%)")
    lines = [_training(seen), "of each gradient as it is, without a residual"]
    return _finish(figure, title or "What each rule would send, by layer", lines, [prune_name(rule) for rule in looks])


def concentration(seen: Observed, title: str | None = None) -> go.Figure:
    """The share of a layer's squared norm against the share of its entries, the largest first; the rules are marks."""
    figure, places = _panels(seen)
    moments, looks = _moments(seen), _styles(seen)
    shares = np.logspace(-5, 0, 101)[:-1]
    edges = np.array([NormalDist().inv_cdf(1 - share / 2) for share in shares])
    bell = shares + 2 * edges * np.exp(-edges * edges / 2) / math.sqrt(2 * math.pi)
    for layer, place in places.items():
        first = layer == next(iter(places))
        figure.add_trace(go.Scatter(x=100 * shares, y=100 * bell, mode="lines", line=GAUSS, name=GAUSSIAN,
                                    hoverinfo="skip", legendgroup=GAUSSIAN, showlegend=first), **place)  # fmt: skip
        for moment, colour in moments.items():
            table = seen.concentration
            own = table[(table.layer == layer) & (table.iteration == moment)]
            name = f"iteration {moment}"
            figure.add_trace(go.Scatter(
                x=100 * own.sent_share, y=100 * own.norm_share, mode="lines", line={"color": colour, "width": 2},
                name=name, legendgroup=name, showlegend=first, hoverinfo="skip"), **place)  # fmt: skip
        for rule, style in looks.items():
            own = seen.rules[(seen.rules.layer == layer) & (seen.rules.rule == rule)]
            own = own[own.iteration.isin(moments)]
            figure.add_trace(go.Scatter(
                x=100 * own.sent / own.entries, y=100 * own.norm_share, mode="markers", name=prune_name(rule),
                legendgroup=rule, showlegend=first, customdata=own.iteration,
                marker={"symbol": style.marker, "color": style.colour, "size": 8,
                        "line": {"color": "white", "width": 0.8}},
                hovertemplate=f"<b>{layer}, {prune_name(rule)}</b><br>iteration %{{customdata}}<br>%{{x:.3g}} % of the "
                              "entries<br>%{y:.1f} % of the squared norm<extra></extra>"), **place)  # fmt: skip
    figure.update_xaxes(type="log", range=[-2.3, 2.05], **_powers(-2, 2))
    figure.update_yaxes(range=[0, 104])
    _name_axes(figure, places, "entries sent, the largest first (%)", "squared norm kept (%)")
    lines = [_training(seen), "a mark is where a rule cuts, at each of the moments"]
    names = [GAUSSIAN, *(f"iteration {m}" for m in moments), *map(prune_name, looks)]
    return _finish(figure, title or "How few entries carry the gradient, by layer", lines, names)


def selection_cost(seen: Observed, title: str | None = None) -> go.Figure:
    """The time of each rule's selection as a share of forward and backward; whiskers: a round's lowest and highest."""
    table, looks = costs(seen), _styles(seen)
    devices = list(dict.fromkeys(table.device))
    figure = make_subplots(1, len(devices), horizontal_spacing=0.08,
                           subplot_titles=[_device(seen, table, device) for device in devices])  # fmt: skip
    colours = {"deviation": PALE, **{rule: style.colour for rule, style in looks.items()}}
    for column, device in enumerate(devices, start=1):
        own = table[(table.device == device) & (table.operation != "gradient")]
        figure.add_trace(_bars(own, [colours[name] for name in own.operation]), row=1, col=column)
        claim = {"x0": -0.5, "x1": 0.5, "y0": 100 * SOURCE_SHARE, "y1": 100 * SOURCE_SHARE}
        figure.add_shape(type="line", line={"color": INK, "width": 1.6, "dash": "4px,2px"}, row=1, col=column, **claim)
        figure.add_annotation(x=0, y=100 * SOURCE_SHARE, yanchor="bottom", yshift=2, bgcolor="rgba(255,255,255,0.85)",
                              text=f"source:<br>{100 * SOURCE_SHARE:.0f}{SPACE}%", font={"size": 11, "color": INK},
                              row=1, col=column)  # fmt: skip
    figure.update_yaxes(rangemode="tozero")
    figure.update_yaxes(title_text="time, % of forward and backward", col=1)
    figure.update_xaxes(showgrid=False, tickfont_size=12 if len(devices) == 1 else 10)
    rounds = f"medians over {seen.manifest['rounds']} rounds of {seen.observation.repeats}"
    spread = "whiskers from the lowest to the highest median of a round"
    lines = [_training(seen), f"{rounds}, {spread}; deviation alone: torch.std of every layer", claimed(seen)]
    return _finish(figure, title or "What selection costs", lines, [])


def _bars(own: pd.DataFrame, colours: Sequence[str]) -> go.Bar:
    texts = [f"{100 * share:.0f}{SPACE}%<br>{1000 * s:.2g}{SPACE}ms"
             for share, s in zip(own.share, own.seconds, strict=True)]  # fmt: skip
    light = [sum(share * c for share, c in zip((0.3, 0.6, 0.1), rgb(colour), strict=True)) > 140 for colour in colours]
    return go.Bar(
        x=[_operation(name) for name in own.operation], y=100 * own.share, showlegend=False,
        marker={"color": list(colours), "line": {"width": 0}}, text=texts, textposition="inside",
        insidetextanchor="start", textangle=0, constraintext="none",
        insidetextfont={"size": 11, "color": [INK if bright else "white" for bright in light]},
        error_y={"type": "data", "symmetric": False, "array": 100 * (own.share_high - own.share),
                 "arrayminus": 100 * (own.share - own.share_low), "color": INK, "thickness": 1.2, "width": 4},
        hovertemplate="<b>%{x}</b><br>%{y:.1f} % of forward and backward<extra></extra>")  # fmt: skip


# -- parts -----------------------------------------------------------------------------------------

Places = dict[str, dict[str, int]]  # layer -> row and column of its panel


def _panels(seen: Observed) -> tuple[go.Figure, Places]:
    """A panel for each layer, two beside each other; of many layers the largest."""
    sizes = seen.layers.groupby("layer", sort=False).entries.first()
    largest = set(sizes.sort_values(ascending=False, kind="stable").index[:MOST_LAYERS])
    shown = [str(layer) for layer in sizes.index if layer in largest]
    columns = min(2, len(shown))
    rows = math.ceil(len(shown) / columns)
    titles = [f"{layer} ({sizes[layer]:,} entries)".replace(",", "\u202f") for layer in shown]
    figure = make_subplots(rows, columns, shared_xaxes=True, shared_yaxes=True, subplot_titles=titles,
                           horizontal_spacing=0.035, vertical_spacing=0.16 / rows)  # fmt: skip
    figure.update_layout(height=PANEL * rows, width=WIDTH)
    return figure, {layer: {"row": 1 + n // columns, "col": 1 + n % columns} for n, layer in enumerate(shown)}


def _moments(seen: Observed) -> dict[int, str]:
    """The iterations of the histograms, with their colours."""
    found = sorted(int(moment) for moment in seen.histogram.iteration.unique())
    places = np.linspace(0, 1, len(found)) if len(found) > 1 else [1.0]
    colours = plotly.colors.sample_colorscale(plotly.colors.make_colorscale(list(MOMENTS)), list(places))
    return dict(zip(found, colours, strict=True))


def _styles(seen: Observed) -> dict[str, Style]:
    """How each rule is drawn: as its runs are."""
    rules = [str(rule) for rule in seen.rules.rule.unique()]
    return dict(zip(rules, styles([Run(prune=rule) for rule in rules]), strict=True))


def _density(seen: Observed, layer: str, moment: int) -> tuple[np.ndarray, np.ndarray]:
    """|g| / std at the middle of each bin, and the share of all entries per decade."""
    bins = seen.histogram[(seen.histogram.layer == layer) & (seen.histogram.iteration == moment)]
    facts = seen.layers[(seen.layers.layer == layer) & (seen.layers.iteration == moment)].iloc[0]
    x = 10.0 ** (bins["log10"].to_numpy() + 0.5 / BINS) / (facts["std"] or 1.0)
    return x, bins["count"].to_numpy() * BINS / facts.entries


def _powers(low: int, high: int) -> dict[str, Any]:
    values = [10.0**power for power in range(low, high + 1)]
    return {"tickvals": values, "ticktext": [f"{value:g}" for value in values]}


def _operation(name: str) -> str:
    return "deviation<br>alone" if name == "deviation" else prune_name(name).replace(" ", "<br>", 1)


def _device(seen: Observed, table: pd.DataFrame, device: str) -> str:
    own = table[(table.device == device) & (table.operation == "gradient")].seconds.iloc[0]
    name = seen.manifest["devices"][device]
    return f"{DEVICES.get(device, device)} ({name}): forward and backward {1000 * own:.2g}{SPACE}ms"


def _training(seen: Observed) -> str:
    run = seen.observation.run
    named = [WORDS[name](run) for name in ("model", "data", "learning_rate", "schedule")]
    words = [*named[:2], "one machine", f"batch {run.batch_size}", *named[2:], f"{run.pushes} iterations"]
    return ", ".join(filter(None, [*words, f"seed {run.seed}"]))


def _name_axes(figure: go.Figure, places: Places, x: str, y: str) -> None:
    """Titles at the outer panels only; a panel with nothing below keeps its ticks."""
    for place in places.values():
        below = {"row": place["row"] + 1, "col": place["col"]} in places.values()
        if not below:
            figure.update_xaxes(title_text=x, showticklabels=True, **place)
        if place["col"] == 1:
            figure.update_yaxes(title_text=y, **place)


def _finish(figure: go.Figure, title: str, lines: Sequence[str], names: Sequence[str]) -> go.Figure:
    """The template, a headline with its caption, and room for a legend of `names` under the picture."""
    small = [row for line in lines for row in textwrap.wrap(line, int(WIDTH / 6.1), break_long_words=False)]
    rows, left = 0, 0.0
    for wide in (6.8 * len(name) + 62 for name in names):  # entries flow like words
        rows, left = (rows, left - wide) if wide <= left else (rows + 1, WIDTH - 90 - wide)
    top, bottom = 78 + 16 * len(small), 58 + 22 * rows
    height = (figure.layout.height or 340) + top + bottom
    figure.update_annotations(selector={"yref": "paper"}, font={"size": 13})
    figure.update_layout(template=template(), width=WIDTH, height=height,
                         margin={"t": top, "b": bottom, "l": 66, "r": 22},
                         title={"text": title, "subtitle": {"text": "<br>".join(small)}})  # fmt: skip
    return figure
