"""How every picture looks: one template, one colour per synchronization policy, one ramp per pruning family.

Colours are told apart by people who see no red, green or blue, and by lightness alone; dash and marker say it again.
The first three policies carry Paul Tol's high-contrast colours (SRON/EPS/TN/09-002, 2021).
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from pslab.config.parameters import number as number_of
from pslab.config.run import Run
from pslab.config.spec import split

INK, PALE, GRID = "#222222", "#666666", "#E6E6E6"
FONT = "Inter, Helvetica Neue, Helvetica, Arial, Liberation Sans, DejaVu Sans, sans-serif"
SPACE = "\u00a0"  # between a number and its unit

#: Reserved: a policy keeps its colour and its marker in every figure that will ever be drawn.
SYNCS: dict[str, tuple[str, str]] = {
    "bsp": ("#004488", "circle"),
    "ssp": ("#DDAA33", "diamond"),
    "asp": ("#BB5566", "square"),
    "dssp": ("#00A08A", "triangle-up"),
    "elastic": ("#7FC4F0", "triangle-down"),
    "eager": ("#661133", "cross"),
    "local": ("#7A6A00", "star"),
    "backup": ("#8877CC", "hexagon"),
}
#: Request orders: colour, and name. Several coincide where a worker's layers are a chain.
ORDERS: dict[str, tuple[str, str]] = {
    "fifo": ("#888888", "FIFO"),
    "filo": ("#BB5566", "FILO"),
    "stalest": ("#7FC4F0", "stalest pull"),
    "advancing": ("#DDAA33", "advancing push"),
    "needed": ("#004488", "needed"),
    "front": ("#00A08A", "front first"),
    "tic": ("#8877CC", "TIC"),
    "tac": ("#661133", "TAC"),
}
#: From the mildest threshold of a family to the strongest.
RAMPS: dict[str, tuple[str, str, str]] = {
    "static": ("#F39A5B", "#BF2F6B", "#4A1466"),
    "std": ("#86CF7E", "#17788F", "#1E3A85"),
    "dynamic": ("#D9B44A", "#A0662A", "#5A2418"),
    "dgc": ("#BFA8F0", "#7A55D8", "#31197A"),
}
#: Where thresholds that come from the gradient before lie among those that are found anew in so many passes.
MODES = {"decay": 3.0, "ratchet": 6.0, "literal": 8.0}
#: The threshold of each family, or the size.
FIRST = {"static": "fraction", "std": "sigmas", "dynamic": "passes", "dgc": "fraction", "range": "size"}
OTHER_RAMP = ("#9DB0C4", "#5D7A99", "#26405C")
MARKERS = ("square", "diamond", "triangle-up", "triangle-down", "star", "hexagon")
DASHES = ("solid", "6px,3px", "9px,3px,2px,3px", "2px,3px", "12px,4px", "12px,3px,2px,3px,2px,3px")

#: The parts of a worker's time, in the order in which they happen. Neighbours differ in lightness; no hatches, because
#: a browser prints them as large bitmaps.
PHASES: dict[str, str] = {
    "compute": "#004488",
    "select": "#DDAA33",
    "encode": "#F3DC9B",
    "push": "#1A9E89",
    "apply": "#882244",
    "wait": "#DDDDDD",
    "serve": "#D98C97",
    "pull": "#8FD3C5",
    "decode": "#FBEFCB",
    "gap": "#FFFFFF",
}


@dataclass(frozen=True)
class Style:
    """How one curve is drawn."""

    colour: str
    dash: str = "solid"
    marker: str = "circle"
    width: float = 2.0


DENSE = Style("#000000", "solid", "circle", 2.4)
SINGLE = Style("#939393", "2px,3px", "circle-open", 2.0)


# -- names -----------------------------------------------------------------------------------------


def parts(value: object) -> tuple[str, list[str], dict[str, str]]:
    """A policy, given as a string, as an object or as the source text of one -> name, values, named values."""
    if isinstance(value, str):
        source = re.search(r"^\s*(?:class|def)\s+(\w+)", value, re.MULTILINE)
        return (source[1], [], {}) if source else split(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [(f.name, getattr(value, f.name), f.default) for f in dataclasses.fields(value)]
        return type(value).__name__, [], {n: _plain(v) for n, v, default in fields if v != default}
    return getattr(value, "__name__", type(value).__name__), [], {}


def _plain(value: object) -> str:
    return ("on" if value else "off") if isinstance(value, bool) else str(value)


def number(values: Sequence[str]) -> float | None:
    """The first of the texts, if it is a number (``"1%"`` is 0.01)."""
    try:
        return number_of(values[0]) if values else None
    except ValueError:
        return None


#: A policy in words, and how its parameters are said, in their order.
NAMES: dict[str, tuple[str, dict[str, str]]] = {
    "bsp": ("BSP", {}), "ssp": ("SSP", {"staleness": "s{0}={0}{1}"}), "asp": ("ASP", {}),
    "dssp": ("DSSP", {"low": "s{0}={0}{1}", "extra": "up to {1}{0}more"}),
    "elastic": ("ElasticBSP", {"iterations": "R{0}={0}{1}"}), "eager": ("eager pull", {"staleness": "s{0}={0}{1}"}),
    "local": ("local SGD", {"period": "{1}{0}steps"}), "backup": ("backup workers", {"spare": "{1}{0}spare"}),
}  # fmt: skip


def sync_name(value: object) -> str:
    """``"ssp:3"`` -> ``"SSP, s = 3"``."""
    name, positional, named = parts(value)
    words, forms = NAMES.get(name.lower(), (name, {}))
    given = {**dict(zip(forms, positional, strict=False)), **{key: named[key] for key in forms if key in named}}
    said = [forms[key].format(SPACE, _short(text)) for key, text in given.items()]
    others = {key: text for key, text in named.items() if key not in forms}
    return _name(words, [*said, *positional[len(forms) :]], others)


def _short(text: str) -> str:
    value = number([text])
    return text if value is None else f"{value:g}"


def order_name(value: object) -> str:
    """``"front:credit=16000000"`` -> ``"front first, credit 16000000"``."""
    name, positional, named = parts(value)
    return _name(ORDERS.get(name.lower(), ("", name))[1], positional, named)


def order_colour(value: object) -> str:
    """The colour of a request order in every figure; one without a reserved colour is dark grey."""
    return ORDERS.get(parts(value)[0].lower(), ("#444444", ""))[0]


def prune_name(value: object) -> str:
    """``"static:1%"`` -> ``"static 1 %"``; no pruning is ``"dense"``."""
    family, threshold, rest, named = pruned(value)
    if family == "none":
        return "dense"
    if family == "range":
        if threshold is not None:
            return _name(f"ranges of {threshold:.0f}{SPACE}keys", rest, named)
        return _name("fitted ranges", rest[1:], {key: text for key, text in named.items() if key != FIRST[family]})
    words = "DGC" if family == "dgc" else parts(value)[0]
    if threshold is None or family not in RAMPS:
        return _name(words, rest, named)
    first = {
        "static": f"static {100 * threshold:g}{SPACE}%",
        "std": f"std {threshold:g}{SPACE}σ",
        "dynamic": f"dynamic, {threshold:g}{SPACE}passes",
        "dgc": f"DGC {100 * threshold:g}{SPACE}%",
    }[family]
    return _name(first, rest, named)


def pruned(value: object) -> tuple[str, float | None, list[str], dict[str, str]]:
    """A pruner's family, its threshold if it is given as a number, and the rest of its values."""
    name, positional, named = parts(value)
    first = FIRST.get(name.lower(), "")
    texts = positional[:1] or [text for key, text in named.items() if key == first]
    threshold = number(texts)
    if threshold is None:
        return name.lower(), None, positional, named
    return name.lower(), threshold, positional[1:], {key: text for key, text in named.items() if key != first}


def _name(first: str, positional: Sequence[str], named: dict[str, str]) -> str:
    extra = [*positional, *(_option(key, text) for key, text in named.items())]
    return ", ".join([first, *extra])


def _option(key: str, text: str) -> str:
    off, words = text.lower() in ("off", "false", "no", "0"), key.replace("_", "-")
    if key == "mode":
        return text
    return f"no {words}" if off else f"{words} {text}"


def single(run: Run, runs: Sequence[Run]) -> bool:
    """Whether this is the single-machine curve among curves of several workers."""
    return run.workers == 1 and any(other.workers > 1 for other in runs)


# -- styles ----------------------------------------------------------------------------------------


def styles(runs: Sequence[Run]) -> list[Style]:
    """A style for each curve. Colour and marker: the policy's if policies differ, else the pruning threshold's.

    The dash goes with them, or, where several curves share them, with what else differs.
    """
    crowd = [run for run in runs if not single(run, runs)]
    if len({sync_name(run.sync) for run in crowd}) > 1:
        hues, field = [_sync_style(run) for run in crowd], "sync"
    elif any(parts(run.prune)[0] != "none" for run in crowd):
        hues, field = _prune_styles(crowd), "prune"
    else:
        hues, field = [_plain_style(rank) for rank in range(len(crowd))], ""
    if len({(hue.colour, hue.marker) for hue in hues}) < len(hues):
        hues = _by_dash(crowd, hues, field)
    drawn = iter(hues)
    return [SINGLE if single(run, runs) else next(drawn) for run in runs]


def sync_colour(value: object) -> str:
    """The colour of a policy in every figure; a policy without a reserved one is dark grey."""
    return SYNCS.get(parts(value)[0].lower(), ("#444444", ""))[0]


def _sync_style(run: Run) -> Style:
    name = parts(run.sync)[0].lower()
    if name not in SYNCS:
        return Style(sync_colour(run.sync), DASHES[-1], "star")
    colour, marker = SYNCS[name]
    return Style(colour, DASHES[list(SYNCS).index(name) % len(DASHES)], marker)


def _plain_style(rank: int) -> Style:
    colour, marker = list(SYNCS.values())[rank % len(SYNCS)]
    return Style(colour, DASHES[rank % len(DASHES)], marker)


def _prune_styles(runs: Sequence[Run]) -> list[Style]:
    families: dict[str, list[float]] = {}
    for run in runs:
        family, threshold = _threshold(run)
        families.setdefault(family, []).append(threshold)
    places = {family: _places(family, thresholds) for family, thresholds in families.items()}
    found = []
    for run in runs:
        family, threshold = _threshold(run)
        place, rank = places[family][threshold]
        style = Style(_on_ramp(RAMPS.get(family, OTHER_RAMP), place),
                      DASHES[rank % len(DASHES)], MARKERS[rank % len(MARKERS)])
        found.append(DENSE if family == "none" else style)
    return found


def _threshold(run: Run) -> tuple[str, float]:
    family, threshold, _, named = pruned(run.prune)
    return family, MODES.get(named.get("mode", ""), threshold or 0.0)


def _places(family: str, thresholds: Sequence[float]) -> dict[float, tuple[float, int]]:
    """Where each threshold lies on its family's ramp (0 to 1), and its rank, which names dash and marker.

    The places are fixed, so a threshold looks the same in every figure, unless two of them lie too close together.
    """
    mildest_first = sorted(set(thresholds), reverse=FIRST.get(family) == "fraction")
    fixed = [min(1.0, max(0.0, _place(family, t))) for t in mildest_first]
    ranks = [round(2 * place) for place in fixed]
    if family in RAMPS and len(set(ranks)) == len(ranks):
        return dict(zip(mildest_first, zip(fixed, ranks, strict=True), strict=True))
    last = max(1, len(mildest_first) - 1)
    return {t: (rank / last, rank) for rank, t in enumerate(mildest_first)}


def _place(family: str, threshold: float) -> float:
    if threshold <= 0 or family not in RAMPS:
        return 0.0
    if FIRST[family] == "fraction":
        return math.log10(0.1 / threshold) / 2
    return (threshold - 1) / 2 if family == "std" else math.log(threshold / 3) / math.log(8 / 3)


def _on_ramp(ramp: tuple[str, str, str], place: float) -> str:
    step = min(1, int(2 * place))
    low, high, share = rgb(ramp[step]), rgb(ramp[step + 1]), 2 * place - step
    return "#" + "".join(f"{round(a + share * (b - a)):02X}" for a, b in zip(low, high, strict=True))


def _by_dash(runs: Sequence[Run], hues: Sequence[Style], field: str) -> list[Style]:
    """Dashes for curves that share colours: one for what else differs, the same under every colour."""
    others = [_variant(run, field) for run in runs]
    order = list(dict.fromkeys(others))
    seen: dict[str, list[str]] = {}  # a policy's own parameters, such as two staleness bounds
    found = []
    for run, hue, other in zip(runs, hues, others, strict=True):
        bounds = seen.setdefault(hue.colour, [])
        own = json.dumps(parts(run.sync)[1:]) if field == "sync" else ""
        bounds += [own] if own not in bounds else []
        rank = order.index(other) + len(order) * bounds.index(own)
        found.append(dataclasses.replace(hue, dash=DASHES[rank % len(DASHES)]))
    return found


def _variant(run: Run, field: str) -> str:
    """What is left of a run when its seed and the field that gives the colour are taken away."""
    plain = {k: v for k, v in run.plain().items() if k not in ("seed", field)}
    if field == "prune":
        plain["rest"] = list(pruned(run.prune)[2:])
    return json.dumps(plain, sort_keys=True)


def rgb(colour: str) -> tuple[int, int, int]:
    """``"#004488"`` -> (0, 68, 136)."""
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def translucent(colour: str, alpha: float) -> str:
    """The colour of a band under its line."""
    return f"rgba{(*rgb(colour), alpha)}"


# -- template --------------------------------------------------------------------------------------


def template() -> go.layout.Template:
    """White paper, thin grid, ticks outside, type that stays readable at the width of a printed column."""
    axis = {
        "showline": True, "linecolor": INK, "linewidth": 1, "ticks": "outside", "ticklen": 4, "tickwidth": 1,
        "tickcolor": INK, "gridcolor": GRID, "gridwidth": 1, "zeroline": False, "automargin": True,
        "title": {"standoff": 8, "font": {"size": 14}}, "tickfont": {"size": 13},
        "spikecolor": PALE, "spikethickness": 0.6, "spikedash": "dot",
    }
    return go.layout.Template(layout={
        "font": {"family": FONT, "size": 13, "color": INK},
        "title": {"x": 0, "xref": "paper", "xanchor": "left", "y": 0.975, "yref": "container", "yanchor": "top",
                  "font": {"size": 17}, "subtitle": {"font": {"size": 12, "color": PALE}}},
        "paper_bgcolor": "white", "plot_bgcolor": "white", "colorway": [c for c, _ in SYNCS.values()],
        "xaxis": axis, "yaxis": axis, "hovermode": "closest", "separators": ".\u202f",
        "hoverlabel": {"font": {"family": FONT, "size": 12}, "align": "left"},
        "legend": {"orientation": "h", "x": 0, "xanchor": "left", "yref": "container", "y": 0.012,
                   "yanchor": "bottom", "itemwidth": 46, "font": {"size": 13}, "tracegroupgap": 0},
        "margin": {"l": 64, "r": 20, "t": 100, "b": 96},
        "annotationdefaults": {"showarrow": False, "font": {"size": 13}},
    })
