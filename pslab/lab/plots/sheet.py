"""Draw a plotly figure on paper by matplotlib, as PNG, SVG and PDF, without a browser.

This module draws the traces scatter, bar and heatmap, panels by the domains of their axes, shapes, annotations, a
legend below and the title above. It refuses any other trace with `NotDrawn`, and warns of attributes that it ignores.
Sizes and fonts suit a paper: a figure is 7.16 or 3.5 inches wide, and as high as its panels and texts need.
"""

from __future__ import annotations

import base64
import html
import io
import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

import matplotlib
import numpy as np
import plotly.colors
import plotly.graph_objects as go
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap, Normalize, to_rgb, to_rgba
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import (
    EngFormatter,
    FixedFormatter,
    FixedLocator,
    FuncFormatter,
    LogLocator,
    MaxNLocator,
    NullLocator,
)
from matplotlib.transforms import Bbox, blended_transform_factory

from pslab.version import install

PX = 0.75  # points per px
TYPE, TITLE, INK, PALE = 7.0, 8.0, "#222222", "#E6E6E6"
STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans", "font.size": TYPE, "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": INK,
    "axes.labelsize": TYPE, "axes.linewidth": 0.6, "axes.spines.top": False, "axes.spines.right": False,
    "axes.axisbelow": True, "grid.color": PALE, "grid.linewidth": 0.5, "axes.labelpad": 2, "lines.scale_dashes": False,
    "lines.dash_capstyle": "butt", **{f"{side}tick.{key}": value for side in "xy" for key, value in {
        "labelsize": TYPE, "color": INK, "major.size": 2.2, "major.width": 0.6, "major.pad": 2}.items()},
    "legend.frameon": False, "legend.fontsize": TYPE, "legend.columnspacing": 1.4, "legend.borderpad": 0,
    "legend.borderaxespad": 0.3, "legend.labelspacing": 0.4, "legend.handletextpad": 0.6, "mathtext.default": "regular",
    "pdf.fonttype": 42, "svg.fonttype": "path", "svg.hashsalt": "pslab", "figure.dpi": 200, "savefig.dpi": 200,
    "hatch.linewidth": 0.5,
}  # fmt: skip
STEADY = {"svg": {"Date": None}, "pdf": {"CreationDate": None, "Producer": None}, "png": {"Software": None}}
SYMBOLS = {"circle": "o", "square": "s", "diamond": "D", "cross": "P", "x": "X", "triangle-up": "^", "star": "*",
           "triangle-down": "v", "triangle-left": "<", "triangle-right": ">", "pentagon": "p", "hexagon": "h",
           "octagon": "8", "hexagram": (6, 1, 0), "star-diamond": (4, 1, 0), "star-square": (4, 1, 45),
           "star-triangle-up": (3, 1, 0), "star-triangle-down": (3, 1, 180), "diamond-tall": "d",
           "diamond-wide": ((-1, 0), (0, 0.6), (1, 0), (0, -0.6), (-1, 0)),
           "hourglass": ((-1, -1), (1, -1), (-1, 1), (1, 1), (-1, -1)),
           "bowtie": ((-1, -1), (-1, 1), (1, -1), (1, 1), (-1, -1)), "x-thin": "x",
           "cross-thin": "+", "line-ns": "|", "line-ew": "_"}  # fmt: skip
DASHES = {"solid": (), "dot": (1, 1), "dash": (3, 3), "longdash": (5, 5), "dashdot": (3, 1, 1, 1),
          "longdashdot": (5, 2, 1, 2)}  # fmt: skip
STEPS = {"linear": "default", "hv": "steps-post", "vh": "steps-pre", "hvh": "steps-mid"}
#: Part of a figure -> the attributes that are drawn. Attributes that match SCREEN matter on a screen alone.
DRAWN = {
    "scatter": "fill fillcolor mode line marker cliponaxis textposition textfont error_x error_y",
    "bar": "base width marker texttemplate textposition textangle constraintext insidetextanchor insidetextfont "
    "outsidetextfont textfont error_x error_y cliponaxis",
    "heatmap": "z zmin zmax colorscale showscale texttemplate textfont xgap ygap",
    "": "type x y name text visible showlegend legendgroup opacity orientation xaxis yaxis offsetgroup alignmentgroup",
    "marker": "color size symbol opacity line maxdisplayed pattern",
    "line": "color width dash shape",
    "layout": "annotations shapes title legend showlegend width height margin meta font colorway barmode bargap "
    "bargroupgap template uniformtext separators paper_bgcolor plot_bgcolor",
    "axis": "anchor domain title type range autorange matches categoryorder categoryarray tickvals ticktext "
    "tickmode dtick nticks tickformat ticksuffix ticks ticklen tickfont tickangle showticklabels "
    "showgrid gridcolor showline linecolor zeroline automargin visible side fixedrange constrain",
}
SCREEN = re.compile(
    r"hover|customdata|ids|uid|meta|dragmode|uirevision|modebar|legendrank|clickmode|spike|selected|click"
)

Part = Mapping[str, Any]


class NotDrawn(ValueError):
    """The figure has a part that this module does not draw."""


def paper(fig: go.Figure, kinds: Sequence[str] = ("png", "svg", "pdf")) -> dict[str, bytes]:
    """Return the figure as {kind: bytes of the file}. The PDF has no title, because the caption below it begins with
    the title. Equal figures give equal bytes. A chart has its own width, another figure 3.5 in if it is narrower than
    400 px, else 7.16 in.

    Raises:
        NotDrawn: the figure has a trace, axis or shape of a kind that this module does not draw.
    """
    files = {}
    with matplotlib.rc_context(STYLE):
        sheet = Sheet(fig)
        for kind in sorted(kinds):  # the PDF is the first, because it has no title
            sheet.fit(titled=kind != "pdf")
            sheet.made.savefig(file := io.BytesIO(), format=kind, metadata=STEADY[kind])
            files[kind] = file.getvalue()
    return files


def images(fig: go.Figure, kinds: Sequence[str] = ("png", "svg", "pdf")) -> dict[str, bytes]:
    """Return the figure as {kind: bytes of the file}. A figure that `paper` refuses is drawn by kaleido and a browser.

    Raises:
        NotDrawn: `paper` refuses it, and there is no kaleido or no browser.
    """
    try:
        return paper(fig, kinds)
    except NotDrawn as unknown:
        try:
            return {kind: fig.to_image(format=kind, scale=1 if kind != "png" else 2) for kind in kinds}
        except (ImportError, ValueError, RuntimeError) as missing:
            raise NotDrawn(f"{unknown}. A browser draws it: {install('browser')}, and install Chromium") from missing


# -- values, colours, words ------------------------------------------------------------------------


def at(part: Any, path: str, default: Any = None) -> Any:
    """Return the value at a dotted path in nested mappings; `default` if it is missing or None."""
    for key in path.split("."):
        part = part.get(key) if isinstance(part, Mapping) else None
        if part is None:
            return default
    return part


def decoded(value: Any) -> Any:
    """Replace plotly's encoded arrays, at any depth of a value, by NumPy arrays."""
    if isinstance(value, Mapping) and {"dtype", "bdata"} <= value.keys():
        array = np.frombuffer(base64.b64decode(value["bdata"]), dtype=value["dtype"])
        return array.reshape([int(size) for size in str(value["shape"]).split(",")]) if "shape" in value else array
    if isinstance(value, Mapping):
        return {key: decoded(part) for key, part in value.items()}
    return [decoded(part) for part in value] if isinstance(value, (list, tuple)) else value


def each_of(value: Any, count: int) -> list[Any]:
    """Return a list of `count` values: a list is cut or padded with None, and a single value is repeated."""
    many = isinstance(value, (list, tuple, np.ndarray))
    return (list(value) + [None] * count)[:count] if many else [value] * count


def colour(value: Any, opacity: float = 1.0) -> Any:
    """Return a CSS colour in matplotlib's form: RGBA from 0 to 1; None is transparent."""
    if channels := re.fullmatch(r"rgba?\((.*)\)", str(value)):
        *rgb, alpha = ([float(part) for part in channels[1].split(",")] + [1.0])[:4]
        return (*(part / 255 for part in rgb), alpha * opacity)
    return to_rgba("none" if value in (None, "transparent") else value, None if opacity == 1 else opacity)


def on(fill: Any) -> str:
    """Return white or INK, whichever is easier to read on this fill."""
    return "white" if np.dot(to_rgb(fill), (0.299, 0.587, 0.114)) < 0.52 else INK


def stroke(line: Any, otherwise: Any = INK) -> dict[str, Any]:
    """Return matplotlib's properties for a line of plotly."""
    width, dash = at(line, "width", 2), at(line, "dash", "solid")
    parts = [part * max(width, 3) for part in DASHES[dash]] if dash in DASHES else [
        float(part.removesuffix("px")) for part in re.split("[, ]+", dash)]  # fmt: skip
    return {"color": colour(at(line, "color", otherwise)), "linewidth": PX * width,
            "linestyle": (0, [PX * part for part in parts]) if parts else "-"}  # fmt: skip


def plain(text: Any) -> str:
    """Return a plotly text without its tags; superscripts and subscripts become mathtext."""

    def script(part: re.Match[str]) -> str:
        words = re.sub(r"([_^%&#{} ])", r"\\\1", part[2])
        return f"${'^' if part[1] == 'sup' else '_'}{{\\mathregular{{{words}}}}}$"

    text = f"{text:g}" if isinstance(text, (int, float)) else str(text)
    text = re.sub(r"<(sup|sub)>(.*?)</\1>", script, text.replace("$", r"\$").replace("<br>", "\n"))
    return html.unescape(re.sub(r"<[^<>]*>", "", text))


def letters(text: Any, **more: Any) -> dict[str, Any]:
    """Return the font properties of a text, bold if the whole text is; `more` is added."""
    return {"weight": "bold" if re.fullmatch(r"<b>((?!</b>).)*</b>", str(text), re.DOTALL) else "normal", **more}


def number(value: float, how: str = "") -> str:
    """Return a number as text in a d3 format: Python's, with ``~`` (no trailing zeros) and ``s`` (SI prefix)."""
    if how.endswith("s"):
        digits = re.search(r"\.(\d+)", how)
        return EngFormatter(sep="").format_eng(float(f"{value:.{digits[1] if digits else 6}g}"))
    if how:
        try:
            text = format(round(value) if how[-1] == "d" else value, how.replace("~", ""))
        except ValueError:
            raise NotDrawn(f"the number format {how!r} is unknown: use one of Python, such as '.2f'") from None
        return re.sub(r"\.?0+(?=%?$)", "", text) if "~" in how and "." in text else text
    text = f"{value:.10g}"
    if not 1e-4 <= abs(value) < 1e6 and value:  # 2×10³
        text = re.sub(r"(?:1×)?(.*)e([+-])0*(\d+)", lambda parts: (
            f"{'' if parts[1] == '1' else parts[1] + '×'}10$^{{{parts[2].strip('+')}{parts[3]}}}$"), text)  # fmt: skip
    return text.replace("-", "−")


def templated(how: str, values: Mapping[str, Any]) -> str:
    """Fill these values into a plotly template, such as ``"%{x:.2f} s"``."""

    def word(field: re.Match[str]) -> str:
        value = values.get(field[1], "")
        return number(float(value), field[2] or "") if isinstance(value, (int, float)) else str(value)

    return re.sub(r"%\{(\w+)(?::([^}]*))?\}", word, how)


# -- axes ------------------------------------------------------------------------------------------


@dataclass
class Scale:
    """An axis of the figure: its range, and the positions of values."""

    name: str
    spec: Part
    log: bool = False
    categories: dict[str, int] | None = None

    def positions(self, values: Any) -> np.ndarray:
        """Return values as numbers on this axis: a category by its rank, a missing value as NaN."""
        values = list(values) if isinstance(values, (list, tuple, np.ndarray)) else [values]
        if self.categories is not None:
            return np.array([self.categories.get(str(value), value if isinstance(value, (int, float)) else math.nan)
                             for value in values], float)  # fmt: skip
        return np.array([math.nan if value is None or value == "" else value for value in values], float)

    def limits(self, drawn: tuple[float, float]) -> tuple[float, float]:
        """Return the values at the beginning and at the end of the axis; without a given range, matplotlib's limits."""
        if (given := at(self.spec, "range")) is not None:
            low, high = (10.0**end if self.log else end for end in map(float, self.positions(given)))
            return (low, high) if low != high else (low - 0.5, high + 0.5)
        low, high = sorted(drawn) if self.categories is None else (-0.5, len(self.categories) - 0.5)
        return (high, low) if at(self.spec, "autorange") == "reversed" else (low, high)

    def draw_ticks(self, axis: Any) -> None:
        """Set the ticks, their texts and the grid."""
        spec = self.spec

        def text(value: float, _: Any = None) -> str:
            return number(round(value, 12), at(spec, "tickformat", "")) + str(at(spec, "ticksuffix", ""))

        values, texts, step = at(spec, "tickvals"), at(spec, "ticktext"), at(spec, "dtick")
        low, high = sorted(axis.get_view_interval())
        if values is None and self.categories is not None:
            values = texts = [*self.categories]
        if values is None and isinstance(step, (int, float)) and not self.log:
            values = step * np.arange(math.ceil(low / step - 1e-9), high / step + 1e-9)
        if values is not None:
            ticks = self.positions(values)
            words = map(plain, texts) if texts is not None else map(text, ticks)
            shown = [(float(tick), word) for tick, word in zip(ticks, words, strict=False)
                     if low - 1e-9 * abs(low) <= tick <= high + 1e-9 * abs(high)]  # fmt: skip
            axis.set_major_locator(FixedLocator([tick for tick, _ in shown]))
            axis.set_major_formatter(FixedFormatter([word for _, word in shown]))
        else:
            fine = (1, 2, 5) if self.log and (high / low < 50 or step == "D2") else (1,)
            axis.set_major_locator(LogLocator(subs=fine) if self.log else MaxNLocator(
                "auto" if at(spec, "nticks", 9) > 6 else 6, steps=[1, 2, 5, 10], min_n_ticks=3))  # fmt: skip
            axis.set_major_formatter(FuncFormatter(text))
        axis.set_minor_locator(NullLocator())
        axis.grid(at(spec, "showgrid", True) and self.categories is None)
        visible, side = at(spec, "visible", True), "bottom" if axis.axis_name == "x" else "left"
        axis.set_tick_params(
            rotation=-(at(spec, "tickangle") or 0), **{f"label{side}": visible and at(spec, "showticklabels", True)},
            **({"length": 0} if at(spec, "ticks") == "" or not visible or self.categories else {}))  # fmt: skip


@dataclass
class Panel:
    """A pair of plotly axes, and matplotlib's axes for it."""

    axes: Axes
    x: Scale
    y: Scale
    span: tuple[float, float]
    rise: tuple[float, float]
    stacks: dict[Any, float] = field(default_factory=dict)


# -- the sheet -------------------------------------------------------------------------------------


class Sheet:
    """A matplotlib figure with the contents of a plotly figure."""

    def __init__(self, fig: go.Figure) -> None:
        spec = decoded(fig.to_plotly_json())
        self.layout: dict[str, Any] = spec["layout"]
        self.traces = [trace for trace in spec["data"] if at(trace, "visible", True) is True]
        self.base = at(self.layout, "font.size", at(self.layout, "template.layout.font.size", 12))
        self._refuse()
        inches = at(self.layout, "meta.inches", 3.5 if at(self.layout, "width", 690) < 400 else 7.16)
        self.made = Figure(figsize=(inches, 2 + at(self.layout, "height", 450) / 80), layout=None)
        self.renderer: Any = FigureCanvasAgg(self.made).get_renderer()  # type: ignore[no-untyped-call]
        self.roots: dict[str, str] = {}  # name of an axis -> name of the axis that it matches, or its own
        self.scales = self._scales()
        self.panels = self._panels()
        self.words: list[tuple[Any, str, Part, Callable[[], float]]] = []  # texts to wrap, their fonts and widths
        self.within: list[tuple[Any, Any]] = []  # texts within bars, each with its bar
        self.handles: dict[Any, tuple[Any, str]] = {}
        self.arranged = False
        colorway = at(self.layout, "colorway", at(self.layout, "template.layout.colorway",
                                                  plotly.colors.qualitative.Plotly))  # fmt: skip
        for rank, trace in enumerate(self.traces):
            trace.setdefault("_colour", colorway[rank % len(colorway)])
            TRACES[trace["type"]](self, self.panels[at(trace, "xaxis", "x"), at(trace, "yaxis", "y")], trace)
            self._remember(trace)
        for panel in self.panels.values():
            for side, scale in (("x", panel.x), ("y", panel.y)):
                getattr(panel.axes, f"set_{side}scale")("log" if scale.log else "linear")
                getattr(panel.axes, f"set_{side}lim")(*scale.limits(getattr(panel.axes, f"get_{side}lim")()))
                scale.draw_ticks(getattr(panel.axes, f"{side}axis"))
        for shape in at(self.layout, "shapes", []):
            self._shape(shape)
        for note in at(self.layout, "annotations", []):
            self._note(note)

    def _refuse(self) -> None:
        """Refuse kinds of traces and axes that are not drawn; warn of attributes that are ignored."""
        if any(key.startswith("coloraxis") for key in self.layout):
            raise NotDrawn("coloraxis cannot be drawn on paper: give each trace its own colours")
        parts = [("layout", "", self.layout)]
        for trace in self.traces:
            kind = trace["type"]
            if kind not in TRACES:
                raise NotDrawn(f"a trace of type {kind!r} cannot be drawn on paper: use {', '.join(TRACES)}")
            parts += [(kind, f"{kind}.", trace), *((part, f"{part}.", at(trace, part, {})) for part in DRAWN
                                                   if part in ("marker", "line"))]  # fmt: skip
        for key, axis in self.layout.items():
            if re.fullmatch(r"[xy]axis\d*", key):
                if at(axis, "type", "-") not in ("-", "linear", "log", "category"):
                    raise NotDrawn(f"an axis of type {axis['type']!r} cannot be drawn on paper: use linear or log")
                if "overlaying" in axis or axis.get("side") in ("top", "right"):
                    raise NotDrawn(f"{key} overlays another axis, or is at the top or right: use a panel of its own")
                parts.append(("axis", f"{key}.", axis))
        left = {f"{prefix}{key}" for kind, prefix, part in parts for key in part
                if key not in (*DRAWN[kind].split(), *DRAWN[""].split()) and not SCREEN.search(key)
                and not (kind == "layout" and re.fullmatch(r"[xy]axis\d*", key))}  # fmt: skip
        if left:
            warnings.warn(f"left out on paper: {', '.join(sorted(left))}", stacklevel=4)

    # -- axes and panels --

    def _scales(self) -> dict[str, Scale]:
        """Return the axes by name. Matched axes share values, categories and range."""
        scales, seen = {}, dict[str, list[Any]]()
        specs = {key.replace("axis", ""): part for key, part in self.layout.items()
                 if re.fullmatch(r"[xy]axis\d*", key)}  # fmt: skip
        for trace in self.traces or [{}]:
            for side in "xy":
                name = at(trace, f"{side}axis", side)
                self.roots.setdefault(name, at(specs, f"{name}.matches", name))
                seen.setdefault(self.roots[name], []).extend(at(trace, side, ()))
        shared = ("type", "categoryorder", "categoryarray", "range", "autorange")
        for name, root in self.roots.items():
            alike = [part for other, part in specs.items() if root in (other, at(part, "matches"))]
            spec = {key: part[key] for part in alike for key in shared if part.get(key) is not None}
            spec |= at(specs, name, {})
            values, kind, order = seen[root], at(spec, "type", "-"), at(spec, "categoryorder", "trace")
            words = [value for value in values if isinstance(value, str)]
            dates = (isinstance(value, np.datetime64) or hasattr(value, "year") for value in values)
            if any(dates) or any(re.match(r"\d{4}-\d\d-\d\d", word) for word in words):
                raise NotDrawn("an axis of dates cannot be drawn on paper: use numbers, such as days since the first")
            named = any(not re.fullmatch(r"[-+.\deE]*", word) for word in words) or "categoryarray" in spec
            scale = scales[name] = Scale(name, spec, kind == "log")
            if kind == "category" or (kind == "-" and named):
                if order not in ("trace", "array"):
                    raise NotDrawn(f"categoryorder={order!r} cannot be drawn on paper: use 'trace' or 'array'")
                ranked = [*at(spec, "categoryarray", ()), *values]
                names = dict.fromkeys(str(value) for value in ranked if value is not None)
                scale.categories = {value: rank for rank, value in enumerate(names)}
        return scales

    def _panels(self) -> dict[tuple[str, str], Panel]:
        def domain(name: str) -> tuple[float, float]:
            low, high = at(self.scales[name].spec, "domain", (0, 1))
            return round(low, 6), round(high, 6)

        pairs = dict.fromkeys((at(trace, "xaxis", "x"), at(trace, "yaxis", "y")) for trace in self.traces or [{}])
        spans = {(x, y): (domain(x), domain(y)) for x, y in pairs}
        # begins and ends of columns from the left, of rows from below
        (left, right), (bottom, top) = ([sorted({side[end] for side in sides}) for end in (0, 1)]
                                        for sides in zip(*spans.values(), strict=True))  # fmt: skip
        names = {plain(trace["name"]) for trace in self.traces if at(trace, "name") and at(trace, "showlegend", True)}
        keys = math.ceil(sum(5.6 * len(name) + 46 for name in names) / at(self.layout, "width", 690))
        under = at(self.layout, "margin.b", at(self.layout, "template.layout.margin.b", 80))
        under = max(under, 45 + 19 * keys * at(self.layout, "showlegend", len(self.traces) > 1))
        inner = at(self.layout, "height", 450) - at(self.layout, "margin.t", 100) - under  # px, of all rows
        lanes = dict[float, int]()  # px that the names beside a row need
        for (_, y), (_, (_, end)) in spans.items():
            categories = self.scales[y].categories or ()
            texts = [*map(str, at(self.scales[y].spec, "ticktext", ())), *categories]
            lane = 10 * max((text.count("<br>") + 1 for text in texts), default=0) + 4
            lanes[end] = max(lanes.get(end, 0), lane * len(categories))
        self.rows = [max(inner * (end - begin), lanes.get(end, 0), 24) * 7.16 / 690
                     for begin, end in zip(bottom, top, strict=True)][::-1]  # fmt: skip
        wide = [end - begin for begin, end in zip(left, right, strict=True)]
        grid = self.made.add_gridspec(len(bottom), len(left), height_ratios=self.rows, width_ratios=wide)
        panels, firsts = {}, dict[str, Axes]()  # by root: the first of the matching axes
        for (x, y), (span, rise) in spans.items():
            rows = slice(len(top) - 1 - top.index(rise[1]), len(bottom) - bottom.index(rise[0]))
            roots, columns = (self.roots[x], self.roots[y]), slice(left.index(span[0]), right.index(span[1]) + 1)
            shared = {f"share{side}": firsts.get(root) for side, root in zip("xy", roots, strict=True)}
            axes = self.made.add_subplot(grid[rows, columns], **shared)
            firsts = dict.fromkeys(roots, axes) | firsts
            panels[x, y] = Panel(axes, self.scales[x], self.scales[y], span, rise)
            for scale, side in ((self.scales[x], "bottom"), (self.scales[y], "left")):
                axes.spines[side].set_visible(at(scale.spec, "visible", True))
        return panels

    # -- legend, title, layout --

    def _remember(self, trace: Part) -> None:
        """Add the sample of a trace to the legend, once for each legend group or name."""
        shown, name = at(trace, "showlegend", len(self.traces) > 1), at(trace, "name")
        if not shown or not name or trace["type"] == "heatmap":
            return
        mode = at(trace, "mode", "lines+markers" if trace["type"] == "scatter" else "")
        fill = at(trace, "marker.color")
        tone = colour(fill if isinstance(fill, str) else at(trace, "line.color", trace["_colour"]))
        if not mode or ("lines" in mode and at(trace, "fill") and not at(trace, "line.width", 2)):
            sample: Any = Patch(facecolor=tone, edgecolor=colour(at(trace, "marker.line.color", tone)), linewidth=0.4)
        else:
            line = stroke(at(trace, "line"), trace["_colour"]) if "lines" in mode else {"linestyle": "none"}
            sample = Line2D([], [], **line, **(marks(trace, 0, tone) if "markers" in mode else {}))
            sample.set_markersize(min(sample.get_markersize(), 7))
        self.handles.setdefault(at(trace, "legendgroup") or name, (sample, plain(name)))

    def _legend(self) -> None:
        samples = [*self.handles.values()] if at(self.layout, "showlegend", len(self.traces) > 1) else []
        for columns in range(len(samples), 0, -1):
            legend = self.made.legend(
                *zip(*samples, strict=True), ncols=columns, loc="outside lower left", alignment="left",
                handlelength=1 if all(isinstance(sample, Patch) for sample, _ in samples) else 2.4,
                title=plain(at(self.layout, "legend.title.text", "")) or None, title_fontsize=TYPE)  # fmt: skip
            if columns == 1 or legend.get_window_extent().width < self.made.bbox.width - 10:
                break
            legend.remove()

    def fit(self, titled: bool) -> None:
        """Wrap texts to the width of the sheet, and fit its height to the panels and the texts around them."""
        title = at(self.layout, "title.text", "")
        if titled and title:
            ours = re.sub(r"<.*?>", " ", title).split() == str(at(self.layout, "meta.title", "")).split()
            text = title.replace("<br>", " ") if ours else title  # a chart has wrapped it for the screen
            how = letters(text, size=TITLE)
            self.made.suptitle(self._wrapped(plain(text), 0.98 * self.made.bbox.width, how), x=0.01, ha="left", **how)
        if self.arranged:
            self._arrange()
            return
        self._legend()
        self._titles()
        self._arrange()
        for text, words, look, room in self.words:
            text.set_text(self._wrapped(words, room(), look))
        for panel in self.panels.values():
            self._thin(panel)
        self._arrange()
        for text, bar in self.within:
            wide = bar.get_window_extent(self.renderer).width + 1
            text.set_visible(text.get_window_extent(self.renderer).width < wide)
        self.arranged = True

    def _arrange(self) -> None:
        for _ in range(2):
            self.made.set_layout_engine("constrained", w_pad=0.03, h_pad=0.03, wspace=0.02, hspace=0.02)
            self.made.draw_without_rendering()
            shares = {panel.rise[1]: panel.axes.get_position().height for panel in self.panels.values()}
            more = sum(self.rows) - sum(shares.values()) * self.made.get_figheight()
            if abs(more) < 0.01:
                break
            self.made.set_figheight(round(self.made.get_figheight() + more, 3))
        self.made.set_layout_engine("none")  # positions stay, without the last digits, which differ between processes
        for axes in self.made.axes:
            axes.set_position(Bbox.from_bounds(*(round(bound, 5) for bound in axes.get_position().bounds)))
            axes.set_in_layout(True)

    def _wrapped(self, text: str, width: float, how: Part) -> str:
        """Return a text in lines that are at most `width` px wide on the sheet."""
        font, lines = FontProperties(**{"family": "DejaVu Sans", "size": TYPE, **how}), list[str]()
        for paragraph in text.split("\n"):
            lines.append("")
            for word in re.split(r"(?<= )(?=\S)", paragraph):
                line = lines[-1] + word.rstrip()
                wide = self.renderer.get_text_width_height_descent(line, font, line.count("$") > 1)[0]
                lines[-1:] = [lines[-1], word] if lines[-1] and wide > width else [lines[-1] + word]
        return "\n".join(line.rstrip() for line in lines)

    def _titles(self) -> None:
        """Set the titles of axes, wrapped to the width of the panel, or of all panels if there is only one title."""
        for side in "xy":
            specs = [(panel, getattr(panel, side).spec) for panel in self.panels.values()]
            titled = [(panel, text) for panel, spec in specs
                      if (text := at(spec, "title.text")) and at(spec, "visible", True)]  # fmt: skip
            alone = len({panel.span if side == "x" else panel.rise for panel, _ in titled}) == 1
            for panel, text in titled:
                words = plain(text.replace("<br>", " ") if side == "x" else text)  # a chart wraps it for the screen
                label = getattr(panel.axes, f"set_{side}label")(plain(text), **letters(text))
                beside = [*self.panels.values()] if alone else [panel]
                share = 1.1 if side == "y" or len(beside) == len(self.panels) else 0.97  # leaves a gap
                self.words.append((label, words, {}, partial(self._room, beside, side, share)))

    def _room(self, panels: Sequence[Panel], side: str, share: float) -> float:
        whole = Bbox.union([panel.axes.bbox for panel in panels])
        return share * (whole.width if side == "x" else whole.height)

    def _thin(self, panel: Panel) -> None:
        """Hide some tick texts of an axis if they touch; names below a panel are turned first."""
        for axis, side, apart in ((panel.axes.xaxis, "x", 4.0), (panel.axes.yaxis, "y", -4.0)):
            for _ in range(2):
                labels = [tick.label1 for tick in axis.get_major_ticks()
                          if tick.label1.get_visible() and tick.label1.get_text()]  # fmt: skip
                boxes = [label.get_window_extent(self.renderer) for label in labels]
                spans = sorted((getattr(box, f"{side}0"), getattr(box, f"{side}1")) for box in boxes)
                every = next((k for k in range(1, len(spans)) if all(
                    after[0] > before[1] + apart for before, after in pairwise(spans[::k]))), 1)  # fmt: skip
                if side == "y" or every == 1 or panel.x.categories is None:
                    break
                axis.set_tick_params(rotation=90)
            for rank, label in enumerate(labels):
                label.set_visible(rank % every == 0)

    # -- shapes and annotations --

    def _placed(self, part: Part, ends: str = "") -> tuple[Panel, Any, Callable[[str, Any], float]]:
        """Return the panel of a shape or annotation, its transform, and a function from coordinates to positions there.
        A coordinate is a value, or a share of a panel ("x domain") or of the figure ("paper": the nearest panel)."""
        refs = {side: at(part, f"{side}ref", side) for side in "xy"}
        names = {side: ref.removesuffix(" domain") for side, ref in refs.items()}
        first = {side: at(part, f"{side}{ends[:1]}", 0) for side in "xy"}

        def far(panel: Panel) -> float:
            return sum((0 if scale.name == names[side] else 9) if names[side] != "paper" else
                       max(room[0] - first[side], first[side] - room[1], 0)
                       for side, scale, room in (("x", panel.x, panel.span), ("y", panel.y, panel.rise)))  # fmt: skip

        panel = min(self.panels.values(), key=lambda panel: round(far(panel), 4))
        sides = {"x": (panel.x, panel.span), "y": (panel.y, panel.rise)}

        def position(side: str, value: Any) -> float:
            scale, (low, high) = sides[side]
            if refs[side] == "paper":
                return float((value - low) / (high - low))
            if " domain" in refs[side]:
                return float(value)
            number = float(scale.positions(value)[0])
            return 10**number if scale.log and not ends else number

        data, share = panel.axes.transData, panel.axes.transAxes
        how = blended_transform_factory(*(data if refs[side] == names[side] != "paper" else share for side in "xy"))
        return panel, how, position

    def _shape(self, shape: Part) -> None:
        if (kind := at(shape, "type", "rect")) not in ("line", "rect"):
            raise NotDrawn(f"a shape of type {kind!r} cannot be drawn on paper: use line or rect")
        panel, how, position = self._placed(shape, "01")
        (x0, x1), (y0, y1) = ([position(side, at(shape, f"{side}{end}", 0)) for end in "01"] for side in "xy")
        fade, line = at(shape, "opacity", 1.0), stroke(at(shape, "line"))
        edge = {"transform": how, "zorder": 0.6 if at(shape, "layer") == "below" else 2.6,
                "alpha": None if fade == 1 else fade,
                "clip_on": "paper" not in (at(shape, "xref"), at(shape, "yref"))}  # fmt: skip
        if kind == "line":
            panel.axes.add_line(Line2D([x0, x1], [y0, y1], **line, **edge))
            return
        tone = line.pop("color")
        line |= {"facecolor": colour(at(shape, "fillcolor")), "edgecolor": tone if line["linewidth"] else "none"}
        panel.axes.add_patch(Rectangle((x0, y0), x1 - x0, y1 - y0, **line, **edge))

    def _note(self, note: Part) -> None:
        panel, how, position = self._placed(note)
        spot, text = (position("x", at(note, "x", 0)), position("y", at(note, "y", 0))), at(note, "text", "")
        tone, size = colour(at(note, "font.color", INK)), self.size(at(note, "font.size"))
        if at(note, "showarrow", at(self.layout, "template.layout.annotationdefaults.showarrow", True)):
            arrow = {"arrowstyle": "-|>,head_width=0.1,head_length=0.25" if at(note, "arrowhead", 1) else "-",
                     "color": colour(at(note, "arrowcolor", INK)), "linewidth": 0.6 * at(note, "arrowwidth", 1),
                     "shrinkA": 0, "shrinkB": 0}  # fmt: skip
            data = at(note, "axref", "pixel") != "pixel"
            tail = (position("x", at(note, "ax", 0)), position("y", at(note, "ay", 0))) if data else (
                PX * at(note, "ax", -10), -PX * at(note, "ay", -30))  # fmt: skip
            panel.axes.annotate(  # behind markers, which may have numbers
                plain(text), spot, tail, xycoords=how, textcoords=how if data else "offset points", color=tone,
                ha="center", va="center", arrowprops=arrow, annotation_clip=False, zorder=2.45,
                **letters(text, size=size))  # fmt: skip
            return
        shares = {"left": 0.0, "center": 0.5, "right": 1.0, "bottom": 0.0, "middle": 0.5, "top": 1.0}
        align, offset, refs = list[float](), list[float](), [at(note, f"{side}ref", side) for side in "xy"]
        for side, ref, value in zip("xy", refs, spot, strict=True):
            third = min(2, max(0, int(3 * value))) / 2 if ref == "paper" or "domain" in ref else 0.5
            align.append(shares.get(at(note, f"{side}anchor", "auto"), third))
            offset.append(PX * at(note, f"{side}shift", 0) + 3 * (1 - 2 * align[-1]))
        turn, wraps = at(note, "textangle", 0) or 0, "paper" in refs and not at(note, "textangle", 0)
        look, words = letters(text, size=size), plain(text)
        room = 0.9 * (panel.span[1] - panel.span[0]) * self.made.bbox.width - 0.35 * self.made.dpi
        drawn = panel.axes.annotate(
            self._wrapped(words, room, look) if wraps else words, spot, (offset[0], offset[1]), xycoords=how,
            color=tone, zorder=4, textcoords="offset points", rotation=-turn, annotation_clip=False,
            ha=("left", "center", "right")[int(2 * align[0])], va=("bottom", "center", "top")[int(2 * align[1])],
            **look)  # fmt: skip
        if wraps:
            self.words.append((drawn, words, look, lambda: panel.axes.bbox.width))

    def size(self, px: float | None) -> float:
        """Return a font size in points for px; the figure's default size becomes TYPE."""
        return TYPE * float(px or self.base) / float(self.base)


# -- traces ----------------------------------------------------------------------------------------


def marks(trace: Part, rank: int, tone: Any) -> dict[str, Any]:
    """Return matplotlib's properties for the marker of a point."""

    def value_of(path: str, default: Any) -> Any:
        value = at(trace, f"marker.{path}")
        value = value[rank] if isinstance(value, (list, np.ndarray)) else value
        return default if value is None else value

    symbol = str(value_of("symbol", "circle"))
    shape = symbol.removesuffix("-dot").removesuffix("-open")
    if shape not in SYMBOLS:
        raise NotDrawn(f"marker.symbol={symbol!r} cannot be drawn on paper: use another one, such as 'circle'")
    tone, fill = colour(value_of("color", tone), value_of("opacity", 1.0)), symbol.removeprefix(shape)
    outlined = fill or shape.endswith(("thin", "-ns", "-ew"))
    pale = (*(0.4 * part + 0.6 for part in tone[:3]), tone[3])  # instead of a dot, which matplotlib lacks
    larger = {"diamond": 0.85, "star": 1.5}.get(shape, 1.0)  # than matplotlib's, so that areas look alike
    return {"marker": SYMBOLS[shape], "markersize": PX * value_of("size", 6) * larger,
            "markerfacecolor": {"": tone, "-open": "white", "-dot": pale, "-open-dot": "#bbbbbb"}[fill],
            "markeredgewidth": PX * (value_of("line.width", 0) or (1.1 if outlined else 0)),
            "markeredgecolor": tone if outlined else colour(value_of("line.color", "#444444"))}  # fmt: skip


def _errors(panel: Panel, trace: Part, x: np.ndarray, y: np.ndarray, tone: Any) -> None:
    for side, middle in (("x", x), ("y", y)):
        error = at(trace, f"error_{side}", {})
        if not at(error, "visible", bool(error)) or "array" not in error:
            continue
        arrays = (each_of(error.get("arrayminus", error["array"]), len(x)), each_of(error["array"], len(x)))
        less, more = (np.nan_to_num(np.clip(np.array(array, float), 0, None)) for array in arrays)
        shown, width = (less + more > 0) & np.isfinite(middle), PX * at(error, "thickness", 2)
        ends: dict[str, Any] = {f"{side}err": [less[shown], more[shown]]}
        panel.axes.errorbar(x[shown], y[shown], **ends, fmt="none", zorder=2.4,
                            ecolor=colour(at(error, "color", tone)), elinewidth=width, capthick=width,
                            capsize=PX * at(error, "width", 4))  # fmt: skip


def scatter(sheet: Sheet, panel: Panel, trace: Part) -> None:
    """Draw lines, markers, bands, error bars and texts."""
    axes, x, y = panel.axes, panel.x.positions(at(trace, "x", ())), panel.y.positions(at(trace, "y", ()))
    x = x if len(x) else np.arange(len(y), dtype=float)
    count = min(len(x), len(y))
    x, y, mode = x[:count], y[:count], at(trace, "mode", "lines+markers" if count < 20 else "lines")
    tone, fade = at(trace, "line.color", at(trace, "marker.color", trace["_colour"])), at(trace, "opacity", 1.0)
    tone, alpha = tone if isinstance(tone, str) else trace["_colour"], fade if fade < 1 else None
    fill = at(trace, "fill", "none")
    if fill not in ("none", "toself"):
        raise NotDrawn(f"fill={fill!r} cannot be drawn on paper: use 'toself'")
    if fill != "none":
        red, green, blue, opacity = colour(at(trace, "fillcolor", colour(tone, 0.5)))
        axes.fill(x, y, facecolor=(red, green, blue, opacity * fade), linewidth=0, zorder=1.9)
    if "lines" in mode and at(trace, "line.width", 2):
        shape = at(trace, "line.shape", "linear")
        if shape not in STEPS:
            raise NotDrawn(f"line.shape={shape!r} cannot be drawn on paper: use {', '.join(STEPS)}")
        axes.plot(x, y, drawstyle=STEPS[shape], alpha=alpha, zorder=2.2, **stroke(at(trace, "line"), tone))
    if "markers" in mode:
        looks: dict[str, list[int]] = {}
        most = at(trace, "marker.maxdisplayed", 0)
        every = math.ceil(count / most) if most else 1
        for k in range((count - 1) % every if count else 0, count, every):
            looks.setdefault(repr(marks(trace, k, tone)), []).append(k)
        for points in looks.values():
            axes.plot(x[points], y[points], linestyle="none", alpha=alpha, zorder=2.5,
                      **marks(trace, points[0], tone), clip_on=at(trace, "cliponaxis", True))  # fmt: skip
    _errors(panel, trace, x, y, tone)
    if "text" in mode:
        _texts(sheet, panel, trace, x, y)


def _texts(sheet: Sheet, panel: Panel, trace: Part, x: np.ndarray, y: np.ndarray) -> None:
    rows, sides = {"top": (1, "bottom"), "bottom": (-1, "top")}, {"right": (1, "left"), "left": (-1, "right")}
    marked = "markers" in at(trace, "mode", "")
    radius = PX * max(each_of(at(trace, "marker.size", 6), 1) or [6]) / 2 + 2 if marked else 0
    texts, positions, tones = (each_of(at(trace, path, default), len(x)) for path, default in (
        ("text", ""), ("textposition", "middle center"), ("textfont.color", INK)))  # fmt: skip
    for k, text in enumerate(texts):
        row, _, side = str(positions[k]).partition(" ")
        (up, va), (right, ha) = rows.get(row, (0, "center_baseline")), sides.get(side, (0, "center"))
        if text not in (None, "") and np.isfinite(x[k] + y[k]):
            panel.axes.annotate(
                plain(text), (x[k], y[k]), (right * radius, up * radius), textcoords="offset points", ha=ha, va=va,
                zorder=3, color=colour(tones[k]), annotation_clip=False, in_layout=bool(up or right),
                **letters(text, size=sheet.size(at(trace, "textfont.size"))))  # fmt: skip


def bar(sheet: Sheet, panel: Panel, trace: Part) -> None:
    """Draw bars side by side, stacked, or each at its base, with a text inside or beyond the end of each."""
    flat, mode = at(trace, "orientation") == "h", at(sheet.layout, "barmode", "group")
    along, cross = (panel.x, panel.y) if flat else (panel.y, panel.x)
    lengths, middles = (scale.positions(at(trace, scale.name[0], ())) for scale in (along, cross))
    middles = middles if len(middles) else np.arange(len(lengths), dtype=float)
    count, wide = len(lengths), 1 - at(sheet.layout, "bargap", 0.2)
    gaps = np.diff(np.unique(middles[np.isfinite(middles)]))
    unit = 1.0 if cross.categories is not None or not len(gaps) else float(gaps.min())
    begin = np.array(each_of(at(trace, "base", 0.0), count), float)
    if mode == "group":  # side by side
        groups = list(dict.fromkeys(at(other, "offsetgroup") or at(other, "name", str(k)) for k, other in enumerate(
            sheet.traces) if other["type"] == "bar" and ("offsetgroup" in other or (
                at(other, "xaxis"), at(other, "yaxis")) == (at(trace, "xaxis"), at(trace, "yaxis")))))  # fmt: skip
        mine = at(trace, "offsetgroup") or at(trace, "name", groups[0])
        middles = middles + unit * wide * ((groups.index(mine) + 0.5) / len(groups) - 0.5)
        wide /= len(groups)
    elif mode in ("relative", "stack") and "base" not in trace:
        for k, (middle, length) in enumerate(zip(middles, lengths, strict=True)):
            begin[k] = panel.stacks.get((middle, length >= 0), 0.0)
            panel.stacks[middle, length >= 0] = begin[k] + np.nan_to_num(length)
    width = np.array(each_of(at(trace, "width", unit * wide), count), float)
    tones = each_of(at(trace, "marker.color", trace["_colour"]), count)
    edge, edges = at(trace, "marker.line.width", 0), at(trace, "marker.line.color", "#444444")
    hatch = at(trace, "marker.pattern.shape", "")
    drawn = (panel.axes.barh if flat else panel.axes.bar)(
        middles, lengths, width, begin, zorder=1.5, color=[colour(tone, at(trace, "opacity", 1.0)) for tone in tones],
        edgecolor=colour(edges) if edge else [colour(tone) for tone in tones],
        linewidth=PX * edge if edge else 0.25,
        hatch=3 * hatch if isinstance(hatch, str) and hatch else None)  # fmt: skip
    ends = begin + lengths
    x, y = (ends, middles) if flat else (middles, ends)
    _errors(panel, trace, x, y, at(trace, "error_x.color", INK))
    over = np.array(each_of(at(trace, f"error_{along.name[0]}.array", 0.0), count), float)
    positions, how = each_of(at(trace, "textposition", "inside"), count), at(trace, "texttemplate", "")
    for k, text in enumerate(each_of(at(trace, "text", ""), count)):
        text = templated(how, {"text": text, "value": lengths[k], along.name[0]: lengths[k]}) if how else text
        if text in (None, "") or not np.isfinite(ends[k]):
            continue
        inside, upwards = positions[k] != "outside", lengths[k] >= 0
        font = at(trace, "insidetextfont" if inside else "outsidetextfont", at(trace, "textfont", {}))
        spot = begin[k] + lengths[k] / 2 if inside else ends[k] + (np.nan_to_num(over[k]) if upwards else 0)
        away = 0 if inside else 3 if upwards else -3
        note = panel.axes.annotate(
            plain(text), (spot, middles[k]) if flat else (middles[k], spot), (away, 0) if flat else (0, away),
            textcoords="offset points", ha="center" if inside or not flat else "left" if upwards else "right",
            va="center_baseline" if inside or flat else "bottom" if upwards else "top", zorder=3, annotation_clip=True,
            color=colour(at(font, "color", on(colour(tones[k])) if inside else INK)), in_layout=not inside,
            **letters(text, size=sheet.size(at(font, "size", 0.88 * sheet.base if inside else None))))  # fmt: skip
        if inside and flat:
            sheet.within.append((note, drawn[k]))


def heatmap(sheet: Sheet, panel: Panel, trace: Part) -> None:
    """Draw coloured cells with their texts."""
    z = np.array(at(trace, "z"), dtype=float)
    centres, edges = list[np.ndarray](), list[np.ndarray]()
    for scale, size in ((panel.x, z.shape[1]), (panel.y, z.shape[0])):
        middle = scale.positions(at(trace, scale.name[0], [*range(size)]))
        half = np.diff(middle) / 2 if size > 1 else np.array([0.5])
        edges.append(np.concatenate([[middle[0] - half[0]], middle[:-1] + half[: size - 1], [middle[-1] + half[-1]]]))
        centres.append(middle)
    named = at(trace, "colorscale", at(sheet.layout, "template.layout.colorscale.sequential", "Plasma"))
    steps = plotly.colors.get_colorscale(named) if isinstance(named, str) else named
    shades = LinearSegmentedColormap.from_list("", [(float(share), colour(tone)) for share, tone in steps], N=2048)
    norm = Normalize(at(trace, "zmin", np.nanmin(z)), at(trace, "zmax", np.nanmax(z)))
    panel.axes.pcolormesh(*edges, np.ma.masked_invalid(z), cmap=shades, norm=norm, zorder=1, edgecolors="white",
                                 linewidth=PX * at(trace, "xgap", 0))  # fmt: skip
    if at(trace, "showscale", True):
        raise NotDrawn("the colour bar of a heatmap cannot be drawn on paper: set showscale=False")
    texts, how = at(trace, "text"), at(trace, "texttemplate", "")
    for row, column in np.ndindex(z.shape) if how else ():
        words = templated(how, {"z": z[row, column], "text": texts[row][column] if texts is not None else ""})
        if np.isfinite(z[row, column]) and words not in ("", "nan", "None"):
            panel.axes.annotate(
                plain(words), (centres[0][column], centres[1][row]), ha="center", va="center", zorder=3,
                in_layout=False, color=on(shades(norm(z[row, column]))), linespacing=0.95,
                **letters(words, size=sheet.size(at(trace, "textfont.size"))))  # fmt: skip


TRACES: dict[str, Callable[[Sheet, Panel, Any], None]] = {
    "scatter": scatter, "bar": bar, "heatmap": heatmap}  # fmt: skip
