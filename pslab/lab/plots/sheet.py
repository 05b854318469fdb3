"""Draw a plotly figure on paper by matplotlib, as PNG, SVG and PDF, without a browser.

The figure is the description. This module draws the traces scatter, bar, heatmap and waterfall, panels by the domains
of their axes, shapes, annotations, one legend below and the title above. Any other trace is refused by name as
`NotDrawn`; attributes that have no meaning here are left out with a warning. Sizes, fonts and the positions of words
suit a paper: a figure is 7.16 or 3.5 inches wide, and as high as its panels and the words around them need.
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
from matplotlib.offsetbox import AnnotationBbox, HPacker, TextArea, VPacker
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import FixedFormatter, FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator
from matplotlib.transforms import Bbox, blended_transform_factory

from pslab.version import install

PX = 0.75  # points of a px of a screen
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
STEPS = {"linear": "default", "hv": "steps-post", "vh": "steps-pre", "hvh": "steps-mid", "spline": "default"}
#: The drawn attributes of each part; SCREEN is for a screen alone.
DRAWN = {
    "scatter": "fill fillcolor mode line marker cliponaxis connectgaps textposition textfont error_x error_y",
    "bar": "base width marker texttemplate textposition textangle constraintext insidetextanchor insidetextfont "
    "outsidetextfont textfont error_x error_y cliponaxis",
    "waterfall": "base measure connector increasing decreasing totals textposition textfont width cliponaxis",
    "heatmap": "z zmin zmax zmid colorscale reversescale showscale colorbar texttemplate textfont xgap ygap",
    "": "type x y name text visible showlegend legendgroup opacity orientation xaxis yaxis offsetgroup alignmentgroup",
    "marker": "color size symbol opacity line maxdisplayed pattern",
    "line": "color width dash shape",
    "layout": "annotations shapes title legend showlegend width height margin meta font colorway barmode bargap "
    "bargroupgap scattermode scattergap template uniformtext separators paper_bgcolor plot_bgcolor",
    "axis": "anchor domain title type range autorange rangemode matches categoryorder categoryarray tickvals ticktext "
    "tickmode tick0 dtick nticks tickformat tickprefix ticksuffix ticks ticklen tickfont tickangle showticklabels "
    "showgrid gridcolor showline linecolor zeroline automargin visible side overlaying fixedrange constrain",
}
SCREEN = re.compile(
    r"hover|customdata|ids|uid|meta|dragmode|uirevision|modebar|legendrank|clickmode|spike|selected|click"
)

Part = Mapping[str, Any]


class NotDrawn(ValueError):
    """The figure has a part that this module does not draw."""


def paper(
    fig: go.Figure, kinds: Sequence[str] = ("png", "svg", "pdf"), inches: float | None = None
) -> dict[str, bytes]:
    """Return the figure as files of these kinds. The PDF has no title, which is in the caption under it. Equal figures
    give equal bytes.

    Args:
        inches: the width; None: the width that a chart drew it for; of other figures 3.5 if they are narrower than
            400 px, else 7.16.

    Raises:
        NotDrawn: a kind of trace, axis or shape that is not drawn here.
    """
    found = {}
    with matplotlib.rc_context(STYLE):
        sheet = Sheet(fig, inches or at(fig.to_plotly_json()["layout"], "meta.inches"))
        for kind in sorted(kinds):  # the PDF, without title, is the first
            sheet.fit(titled=kind != "pdf")
            sheet.made.savefig(file := io.BytesIO(), format=kind, metadata=STEADY[kind])
            found[kind] = file.getvalue()
    return found


def images(fig: go.Figure, kinds: Sequence[str] = ("png", "svg", "pdf")) -> dict[str, bytes]:
    """Return the figure as files of these kinds. A figure that `paper` refuses is drawn by a browser if there is one,
    and the extra "browser".

    Raises:
        NotDrawn: `paper` refuses it, and there is no kaleido or no browser.
    """
    try:
        return paper(fig, kinds)
    except NotDrawn as unknown:
        try:
            return {kind: fig.to_image(format=kind, scale=1 if kind != "png" else 2) for kind in kinds}
        except (ImportError, ValueError, RuntimeError) as missing:
            raise NotDrawn(f"{unknown}; a browser draws it: {install('browser')}, and install Chromium") from missing


# -- values, colours, words ------------------------------------------------------------------------


def at(part: Any, path: str, default: Any = None) -> Any:
    """A value within nested mappings."""
    for key in path.split("."):
        part = part.get(key) if isinstance(part, Mapping) else None
        if part is None:
            return default
    return part


def decoded(value: Any) -> Any:
    """Plotly's typed arrays as arrays."""
    if isinstance(value, Mapping):
        if {"dtype", "bdata"} <= value.keys():
            found = np.frombuffer(base64.b64decode(value["bdata"]), dtype=value["dtype"])
            return found.reshape([int(each) for each in str(value["shape"]).split(",")]) if "shape" in value else found
        return {key: decoded(each) for key, each in value.items()}
    return [decoded(each) for each in value] if isinstance(value, (list, tuple)) else value


def each_of(value: Any, count: int) -> list[Any]:
    """Return a value for each of so many points."""
    many = isinstance(value, (list, tuple, np.ndarray))
    return (list(value) + [None] * count)[:count] if many else [value] * count


def colour(value: Any, opacity: float = 1.0) -> Any:
    """A colour of CSS."""
    if found := re.fullmatch(r"rgba?\((.*)\)", str(value)):
        *rgb, alpha = ([float(part) for part in found[1].split(",")] + [1.0])[:4]
        return (*(part / 255 for part in rgb), alpha * opacity)
    return to_rgba("none" if value in (None, "transparent") else value, None if opacity == 1 else opacity)


def on(fill: Any) -> str:
    """The colour of letters on a colour."""
    return "white" if np.dot(to_rgb(fill), (0.299, 0.587, 0.114)) < 0.52 else INK


def stroke(line: Any, otherwise: Any = INK) -> dict[str, Any]:
    """How matplotlib draws a line of plotly."""
    width, dash = at(line, "width", 2), at(line, "dash", "solid")
    parts = [each * max(width, 3) for each in DASHES[dash]] if dash in DASHES else [
        float(each.removesuffix("px")) for each in re.split("[, ]+", dash)]  # fmt: skip
    return {"color": colour(at(line, "color", otherwise)), "linewidth": PX * width,
            "linestyle": (0, [PX * part for part in parts]) if parts else "-"}  # fmt: skip


def styled(text: Any) -> list[list[tuple[str, bool, bool]]]:
    """Lines of (text, bold, italic) of a text of plotly; raised and lowered letters are mathtext."""
    found: list[list[tuple[str, bool, bool]]] = [[]]
    bold = italic = 0
    script = ""
    text = f"{text:g}" if isinstance(text, (int, float)) else str(text)
    for token in re.split(r"(<[^<>]*>)", text.replace("\n", "<br>")):
        tag = re.fullmatch(r"<(/?)(\w+)[^<>]*>", token)
        if tag is None:
            words = html.unescape(token).replace("$", r"\$")
            if script and words:
                words = f"${script}" + r"{\mathregular{" + re.sub(r"([_^%&#{} ])", r"\\\1", words) + "}}$"
            if words:
                found[-1].append((words, bold > 0, italic > 0))
        elif tag[2] == "br":
            found.append([])
        else:
            turn = -1 if tag[1] else 1
            bold += turn * (tag[2] in ("b", "strong"))
            italic += turn * (tag[2] in ("i", "em"))
            script = "" if tag[1] else {"sup": "^", "sub": "_"}.get(tag[2], script)
    return found


def plain(text: Any) -> str:
    """A text of plotly of one style."""
    return "\n".join("".join(words for words, *_ in line) for line in styled(text))


def letters(text: Any, **more: Any) -> dict[str, Any]:
    """Weight and style of a text that has one."""
    runs = [run for line in styled(text) for run in line] or [("", False, False)]
    return {"weight": "bold" if all(bold for _, bold, _ in runs) else "normal",
            "style": "italic" if all(italic for *_, italic in runs) else "normal", **more}  # fmt: skip


def number(value: float, how: str = "") -> str:
    """A number as d3 formats it."""
    found = re.fullmatch(r"(,?)(?:\.(\d+))?(~?)([sfge%d]?)", how)
    if found is None:
        raise NotDrawn(f"tickformat {how!r}")
    comma, digits, short, kind = found.groups()
    if kind == "s":
        step = min(3, max(-4, math.floor(math.log10(abs(value)) / 3 + 1e-9))) if value else 0
        return f"{value / 1000**step:.{digits or 6}g}{dict(zip(range(-4, 4), 'pnµm kMG', strict=True))[step].strip()}"
    if kind or digits:
        text = f"{value:{comma}.{digits or (0 if kind == 'd' else 6)}{'f' if kind == 'd' else kind or 'g'}}"
        return re.sub(r"\.?0+(?=%?$)", "", text) if short and "." in text else text
    return (
        f"{value:{comma}.10g}"
        if 1e-4 <= abs(value) < 1e6 or not value
        else re.sub(
            r"(?:1×)?(.*)e([+-])0*(\d+)",
            lambda m: f"{'' if m[1] == '1' else m[1] + '×'}10$^{{{m[2].strip('+')}{m[3]}}}$",
            f"{value:.10g}",
        )
    ).replace("-", "−")


def templated(how: str, values: Mapping[str, Any]) -> str:
    """A text of values as a template of plotly says."""

    def word(found: re.Match[str]) -> str:
        value = values.get(found[1], "")
        return number(float(value), found[2] or "") if isinstance(value, (int, float)) else str(value)

    return re.sub(r"%\{(\w+)(?::([^}]*))?\}", word, how)


# -- axes ------------------------------------------------------------------------------------------


@dataclass
class Scale:
    """An axis of the figure: what it shows, and which values have which places."""

    name: str
    spec: Part
    log: bool = False
    categories: dict[str, int] | None = None
    low: float = math.inf
    high: float = -math.inf
    tight: bool = True
    filled: bool = False

    def places(self, values: Any) -> np.ndarray:
        """Values as numbers on this axis."""
        values = list(values) if isinstance(values, (list, tuple, np.ndarray)) else [values]
        if self.categories is not None:
            return np.array([self.categories.get(str(value), value if isinstance(value, (int, float)) else math.nan)
                             for value in values], float)  # fmt: skip
        return np.array([math.nan if value is None or value == "" else value for value in values], float)

    def saw(self, values: np.ndarray) -> None:
        """Widen the range to these values."""
        found = values[np.isfinite(values) & ((values > 0) | (not self.log))]
        if len(found):
            self.low, self.high = min(self.low, found.min()), max(self.high, found.max())

    def limits(self) -> tuple[float, float]:
        """From where to where it is shown."""
        back = at(self.spec, "autorange") == "reversed"
        given = at(self.spec, "range")
        if given is not None:
            low, high = (10.0**each if self.log else each for each in map(float, self.places(given)))
            return (low, high) if low != high else (low - 0.5, high + 0.5)
        low, high = self.low, self.high
        if self.categories is not None:
            low, high = -0.5, len(self.categories) - 0.5
        elif low > high:
            low, high = (1, 10) if self.log else (0, 1)
        elif self.log:
            room = (high / low) ** 0.04 if high > low else 1.5
            low, high = low / room, high * room
        else:
            zero = at(self.spec, "rangemode") in ("tozero", "nonnegative") or self.filled
            room = 0.04 * (high - low) or abs(high) / 4 or 1
            low, high = (0.0 if zero and low >= 0 else low - (0 if self.tight else room),
                         0.0 if self.filled and high <= 0 else high + (0 if self.tight else room))  # fmt: skip
        return (high, low) if back else (low, high)

    def ticks(self, axis: Any) -> None:
        """Set the ticks, their texts and the grid."""
        spec = self.spec
        ends = [plain(at(spec, f"tick{each}", "")) for each in ("prefix", "suffix")]

        def text(value: float, _: Any = None) -> str:
            return ends[0] + number(round(value, 12), at(spec, "tickformat", "")) + ends[1]

        values, texts, step = at(spec, "tickvals"), at(spec, "ticktext"), at(spec, "dtick")
        low, high = sorted(self.limits())
        if values is None and self.categories is not None:
            values = texts = [*self.categories]
        if values is None and isinstance(step, (int, float)) and not self.log:
            first = at(spec, "tick0", 0.0)
            values = first + step * np.arange(math.ceil((low - first) / step - 1e-9), (high - first) / step + 1e-9)
        if values is not None:
            shown = self.places(values)
            words = [plain(each) for each in texts] if texts is not None else [text(each) for each in shown]
            keep = [k for k, each in enumerate(shown) if low - 1e-9 * abs(low) <= each <= high + 1e-9 * abs(high)]
            axis.set_major_locator(FixedLocator([float(shown[k]) for k in keep]))
            axis.set_major_formatter(FixedFormatter([words[k] for k in keep]))
        else:
            near = self.log and high / low < 50
            axis.set_major_locator(
                LogLocator(subs=(1, 2, 5) if near or step == "D2" else (1,))
                if self.log
                else MaxNLocator("auto" if at(spec, "nticks", 9) > 6 else 6, steps=[1, 2, 5, 10], min_n_ticks=3)
            )
            axis.set_major_formatter(FuncFormatter(text))
        axis.set_minor_locator(NullLocator())
        axis.grid(at(spec, "showgrid", True) and self.categories is None)
        side = axis.axis_name
        bare = not at(spec, "visible", True)
        labels = {f"label{'bottom' if side == 'x' else 'left'}": at(spec, "showticklabels", True) and not bare}
        if self.flipped:
            labels = {"labelleft": False, "left": False, "labelright": True, "right": True}
        axis.set_tick_params(
            **labels,
            rotation=-(at(spec, "tickangle") or 0),
            **({"length": 0} if at(spec, "ticks") == "" or bare or self.categories else {}),
        )

    @property
    def flipped(self) -> bool:
        """Whether it stands at the right."""
        return self.name[0] == "y" and (at(self.spec, "side") == "right" or at(self.spec, "overlaying") is not None)


@dataclass
class Panel:
    """Two axes of the figure and the marks between them."""

    axes: Axes
    x: Scale
    y: Scale
    span: tuple[float, float]
    rise: tuple[float, float]
    stacks: dict[Any, float] = field(default_factory=dict)
    last: Any = None


# -- the sheet -------------------------------------------------------------------------------------


class Sheet:
    """A figure of matplotlib with all that a figure of plotly says."""

    def __init__(self, fig: go.Figure, inches: float | None = None) -> None:
        spec = decoded(fig.to_plotly_json())
        self.layout: dict[str, Any] = spec["layout"]
        self.traces = [each for each in spec["data"] if at(each, "visible", True) is True]
        self.base = at(self.layout, "font.size", at(self.layout, "template.layout.font.size", 12))
        self.colorway = at(
            self.layout, "colorway", at(self.layout, "template.layout.colorway", plotly.colors.qualitative.Plotly)
        )
        self._refuse()
        wide = at(self.layout, "width", 690)
        self.made = Figure(
            figsize=(inches or (3.5 if wide < 400 else 7.16), 2 + at(self.layout, "height", 450) / 80), layout=None
        )
        self.renderer: Any = FigureCanvasAgg(self.made).get_renderer()  # type: ignore[no-untyped-call]
        self.roots: dict[str, str] = {}  # of an axis the one that it matches
        self.scales = self._scales()
        self.panels = self._panels()
        self.words: list[tuple[Any, Panel]] = []  # texts that are as wide as their panel
        self.within: list[tuple[Any, Any]] = []  # texts that stand within a bar
        self.handles: dict[Any, tuple[Any, str]] = {}
        self.arranged = False
        for rank, trace in enumerate(self.traces):
            trace.setdefault("_colour", self.colorway[rank % len(self.colorway)])
            TRACES[trace["type"]](self, self.panels[at(trace, "xaxis", "x"), at(trace, "yaxis", "y")], trace)
            self._remember(trace)
        for panel in self.panels.values():
            for side, scale in (("x", panel.x), ("y", panel.y)):
                alike = [each for name, each in self.scales.items() if self.roots[name] == self.roots[scale.name]]
                scale.low, scale.high = min(each.low for each in alike), max(each.high for each in alike)
                scale.tight, scale.filled = all(each.tight for each in alike), any(each.filled for each in alike)
                getattr(panel.axes, f"set_{side}scale")("log" if scale.log else "linear")
                getattr(panel.axes, f"set_{side}lim")(*scale.limits())
                scale.ticks(getattr(panel.axes, f"{side}axis"))
        for shape in at(self.layout, "shapes", []):
            self._shape(shape)
        for note in at(self.layout, "annotations", []):
            self._note(note)

    def _refuse(self) -> None:
        left = set()
        if any(key.startswith("coloraxis") for key in self.layout):
            raise NotDrawn("an axis of colours")
        for trace in self.traces:
            kind = trace["type"]
            if kind not in TRACES:
                raise NotDrawn(f"a trace of type {kind!r}; drawn are {', '.join(TRACES)}")
            left |= {f"{kind}.{each}" for each in trace.keys() - {*DRAWN[kind].split(), *DRAWN[""].split()}}
            left |= {
                f"{part}.{each}"
                for part in ("marker", "line")
                for each in at(trace, part, {}).keys() - {*DRAWN[part].split()}
            }
        for key, part in self.layout.items():
            if not re.fullmatch(r"[xy]axis\d*", key):
                left |= {key} - {*DRAWN["layout"].split()}
                continue
            if at(part, "type", "-") not in ("-", "linear", "log", "category"):
                raise NotDrawn(f"an axis of type {part['type']!r}")
            left |= {f"{key}.{each}" for each in part.keys() - {*DRAWN["axis"].split()}}
        if left := {each for each in left if not SCREEN.search(each)}:
            warnings.warn(f"left out on paper: {', '.join(sorted(left))}", stacklevel=4)

    # -- axes and panels --

    def _scales(self) -> dict[str, Scale]:
        """Return the axes; matched axes share values, names and ends."""
        found, seen = {}, dict[str, list[Any]]()
        specs = {
            key.replace("axis", ""): part for key, part in self.layout.items() if re.fullmatch(r"[xy]axis\d*", key)
        }
        for trace in self.traces or [{}]:
            for side in "xy":
                name = at(trace, f"{side}axis", side)
                self.roots.setdefault(name, at(specs, f"{name}.matches", name))
                seen.setdefault(self.roots[name], []).extend(at(trace, side, ()))
        for name, root in self.roots.items():
            alike = [part for other, part in specs.items() if root in (other, at(part, "matches"))]
            shared = {
                key: part[key]
                for part in alike
                for key in ("type", "categoryorder", "categoryarray", "range", "autorange", "rangemode")
                if part.get(key) is not None
            }
            scale = found[name] = Scale(name, shared | at(specs, name, {}))
            values, kind = seen[root], at(scale.spec, "type", "-")
            scale.log = kind == "log"
            words = [value for value in values if isinstance(value, str)]
            if any(re.match(r"\d{4}-\d\d-\d\d", each) for each in words) or any(
                isinstance(value, np.datetime64) or hasattr(value, "year") for value in values
            ):
                raise NotDrawn("an axis of dates")
            named = any(not re.fullmatch(r"[-+.\deE]*", each) for each in words)
            if kind == "category" or (kind == "-" and (named or at(scale.spec, "categoryarray") is not None)):
                order, way = [*at(scale.spec, "categoryarray", ()), *values], at(scale.spec, "categoryorder", "trace")
                if way.startswith("category "):
                    order = sorted(values, reverse=way.endswith("descending"))
                elif way not in ("trace", "array"):
                    raise NotDrawn(f"categories in the order {way!r}")
                names = dict.fromkeys(str(each) for each in order if each is not None)
                scale.categories = {each: rank for rank, each in enumerate(names)}
        return found

    def _panels(self) -> dict[tuple[str, str], Panel]:
        def domain(scale: Scale) -> tuple[float, float]:
            over = at(scale.spec, "overlaying")
            low, high = at(self.scales[over].spec if over else scale.spec, "domain", (0, 1))
            return round(low, 6), round(high, 6)

        pairs = {(at(trace, "xaxis", "x"), at(trace, "yaxis", "y")): None for trace in self.traces} or {
            ("x", "y"): None
        }
        spans = {pair: (domain(self.scales[pair[0]]), domain(self.scales[pair[1]])) for pair in pairs}
        lines = []  # begins and ends of columns from the left, of rows from above
        for way in (0, 1):
            sides = {span[way] for span in spans.values()}
            lines.append((sorted({low for low, _ in sides}), sorted({high for _, high in sides})))
        (left, right), (bottom, top) = lines
        names = {plain(each["name"]) for each in self.traces if at(each, "name") and at(each, "showlegend", True)}
        keys = math.ceil(sum(5.6 * len(name) + 46 for name in names) / at(self.layout, "width", 690))
        under = at(self.layout, "margin.b", at(self.layout, "template.layout.margin.b", 80))
        under = max(under, 45 + 19 * keys * at(self.layout, "showlegend", len(self.traces) > 1))
        inner = at(self.layout, "height", 450) - at(self.layout, "margin.t", 100) - under  # px, of all rows
        lanes = dict[float, int]()  # px that the names beside a row need
        for (_, y), (_, (_, end)) in spans.items():
            texts = [*map(str, at(self.scales[y].spec, "ticktext", ())), *(self.scales[y].categories or ())]
            each_px = 10 * max((each.count("<br>") + 1 for each in texts), default=0) + 4
            lanes[end] = max(lanes.get(end, 0), each_px * len(self.scales[y].categories or ()))
        self.rows = [max(inner * (end - begin), lanes.get(end, 0), 24) * 7.16 / 690
                     for begin, end in zip(bottom, top, strict=True)][::-1]  # fmt: skip
        grid = self.made.add_gridspec(
            len(bottom),
            len(left),
            height_ratios=self.rows,
            width_ratios=[end - begin for begin, end in zip(left, right, strict=True)],
        )
        found = {}
        for (x, y), ((x0, x1), (y0, y1)) in spans.items():
            where = grid[
                len(top) - 1 - top.index(y1) : len(bottom) - bottom.index(y0), left.index(x0) : right.index(x1) + 1
            ]
            axes = self.made.add_subplot(where)
            found[x, y] = Panel(axes, self.scales[x], self.scales[y], (x0, x1), (y0, y1))
            if at(self.scales[y].spec, "overlaying"):
                axes.patch.set_visible(False)
                axes.xaxis.set_visible(False)
            if self.scales[y].flipped:
                axes.yaxis.set_label_position("right")
                axes.spines[["right", "left"]].set_visible([True, False])
            for scale, side in ((self.scales[x], "bottom"), (self.scales[y], "left")):
                axes.spines[side].set_visible(at(scale.spec, "visible", True) and not scale.flipped)
        return found

    # -- legend, title, layout --

    def _remember(self, trace: Part) -> None:
        """Add the sample of a trace to the legend, once for each group or look."""
        shown, name = at(trace, "showlegend", len(self.traces) > 1), at(trace, "name")
        if not shown or not name or trace["type"] == "heatmap":
            return
        mode = at(trace, "mode", "lines+markers" if trace["type"] == "scatter" else "")
        tone = colour(
            at(trace, "marker.color")
            if isinstance(at(trace, "marker.color"), str)
            else at(trace, "line.color", trace["_colour"])
        )
        if not mode or ("lines" in mode and at(trace, "fill") and not at(trace, "line.width", 2)):
            sample: Any = Patch(facecolor=tone, edgecolor=colour(at(trace, "marker.line.color", tone)), linewidth=0.4)
        else:
            sample = Line2D(
                [],
                [],
                **(stroke(at(trace, "line"), trace["_colour"]) if "lines" in mode else {"linestyle": "none"}),
                **(marks(trace, 0, tone) if "markers" in mode else {}),
            )
            sample.set_markersize(min(sample.get_markersize(), 7))
        self.handles.setdefault(at(trace, "legendgroup") or name, (sample, plain(name)))

    def _legend(self) -> None:
        samples = [*self.handles.values()] if at(self.layout, "showlegend", len(self.traces) > 1) else []
        for columns in range(len(samples), 0, -1):
            order = [samples[k] for column in range(columns) for k in range(column, len(samples), columns)]
            legend = self.made.legend(
                [sample for sample, _ in order], [name for _, name in order], ncols=columns, loc="outside lower left",
                handlelength=1 if all(isinstance(sample, Patch) for sample, _ in order) else 2.4, alignment="left",
                title=plain(at(self.layout, "legend.title.text", "")) or None, title_fontsize=TYPE)  # fmt: skip
            if columns == 1 or legend.get_window_extent().width < self.made.bbox.width - 10:
                break
            legend.remove()

    def fit(self, titled: bool) -> None:
        """Fit words to the width of the sheet, and the sheet's height to its panels and the texts around them."""
        title = at(self.layout, "title.text", "")
        if titled and title:
            text = title.replace("<br>", " ") if self._own(title) else title
            how = letters(text, size=TITLE)
            self.made.suptitle(self._wrapped(plain(text), 0.98 * self.made.bbox.width, how), x=0.01, ha="left", **how)
        if not self.arranged:
            self._legend()
            self._titles()
        self._arrange()
        if not self.arranged:
            for text, panel in self.words:
                text(panel.axes.bbox.width)
            for panel in self.panels.values():
                self._untangle(panel)
                self._thin(panel.axes.yaxis)
            self._arrange()
            renderer = self.renderer
            for text, bar in self.within:
                text.set_visible(text.get_window_extent(renderer).width < bar.get_window_extent(renderer).width + 1)
            self.arranged = True

    def _own(self, title: str) -> bool:
        """Whether the title is wrapped by the chart: its words stand in meta."""
        return re.sub(r"<.*?>", " ", title).split() == str(at(self.layout, "meta.title", "")).split()

    def _arrange(self) -> None:
        for _ in range(2):
            self.made.set_layout_engine("constrained", w_pad=0.03, h_pad=0.03, wspace=0.02, hspace=0.02)
            self.made.draw_without_rendering()
            shares = {panel.rise[1]: panel.axes.get_position().height for panel in self.panels.values()}
            more = sum(self.rows) - sum(shares.values()) * self.made.get_figheight()
            if abs(more) < 0.01:
                break
            self.made.set_figheight(round(self.made.get_figheight() + more, 3))
        self.made.set_layout_engine("none")  # the places stay, without the last digits, which differ between processes
        for axes in self.made.axes:
            axes.set_position(Bbox.from_bounds(*(round(bound, 5) for bound in axes.get_position().bounds)))
            axes.set_in_layout(True)

    def _wrapped(self, text: str, width: float, how: Part) -> str:
        """A text in lines of so many px of the sheet."""
        font, renderer = FontProperties(**{"family": "DejaVu Sans", "size": TYPE, **how}), self.renderer

        def wide(words: str) -> float:
            return float(renderer.get_text_width_height_descent(words, font, words.count("$") > 1)[0])

        found = []
        for line in text.split("\n"):
            own = ""
            for word in re.split(r"(?<= )(?=\S)", line):
                if own and wide(own + word.rstrip()) > width:
                    found.append(own.rstrip())
                    own = ""
                own += word
            found.append(own.rstrip())
        return "\n".join(found)

    def _titles(self) -> None:
        """Set the titles of axes; a title shared by a row or column stands at its middle."""
        for panel in self.panels.values():
            for side, scale, room in (("x", panel.x, panel.span), ("y", panel.y, panel.rise)):
                words = at(scale.spec, "title.text", "") if at(scale.spec, "visible", True) else ""
                if not words:
                    continue
                label = getattr(panel.axes, f"set_{side}label")(plain(words), **letters(words))
                alone = len({each.span if side == "x" else each.rise for each in self.panels.values()
                             if at((each.x if side == "x" else each.y).spec, "title.text")}) == 1  # fmt: skip

                def set_width(
                    width: float,
                    label: Any = label,
                    words: str = words,
                    panel: Panel = panel,
                    side: str = side,
                    alone: bool = alone,
                ) -> None:
                    boxes = [each.axes.bbox for each in self.panels.values()] if alone else [panel.axes.bbox]
                    ends = [(box.x0, box.x1) if side == "x" else (box.y0, box.y1) for box in boxes]
                    room = 1.1 * (max(end for _, end in ends) - min(begin for begin, _ in ends))
                    label.set_text(self._wrapped(plain(words), room, {}))

                self.words.append((set_width, panel))

    def _untangle(self, panel: Panel) -> None:
        """Wrap or turn names under an axis that touch; leave out every second of numbers."""
        axis, renderer = panel.axes.xaxis, self.renderer
        shown = [(tick.get_loc(), tick.label1) for tick in axis.get_major_ticks()
                 if tick.label1.get_visible() and tick.label1.get_text()]  # fmt: skip
        boxes = [label.get_window_extent(renderer) for _, label in shown]
        if not any(right.x0 < left.x1 + 4 for left, right in pairwise(boxes)) or at(panel.x.spec, "tickangle"):
            return
        places, texts = [place for place, _ in shown], [label.get_text() for _, label in shown]
        slot = panel.axes.bbox.width / max(1, len(panel.x.categories or places))
        if panel.x.categories is None:
            places, texts = places[::2], texts[::2]
        else:
            texts = [self._wrapped(each, 0.95 * slot, {}) for each in texts]
            font = FontProperties(family="DejaVu Sans", size=TYPE)
            widest = max(
                renderer.get_text_width_height_descent(line, font, False)[0]
                for each in texts
                for line in each.split("\n")
            )
            if widest > slot:
                texts = [each.replace("\n", " ") for each in texts]
                axis.set_tick_params(rotation=90)
        axis.set_major_locator(FixedLocator(places))
        axis.set_major_formatter(FixedFormatter(texts))

    def _thin(self, axis: Any) -> None:
        """Leave out some of the names beside an axis that touch."""
        labels = [
            tick.label1 for tick in axis.get_major_ticks() if tick.label1.get_visible() and tick.label1.get_text()
        ]
        boxes = sorted(
            (label.get_window_extent(self.renderer) for label in labels), key=lambda box: box.y0
        )
        every = next((k for k in range(1, len(boxes)) if all(
            upper.y0 > lower.y1 - 0.2 * lower.height for lower, upper in pairwise(boxes[::k]))), 1)  # fmt: skip
        for rank, label in enumerate(labels):
            label.set_visible(rank % every == 0)

    # -- shapes and annotations --

    def _place(self, part: Part, ends: str = "") -> tuple[Panel, Any, Callable[[str, Any], float]]:
        """The panel of a shape or annotation, its transform, and its places there: of values, of shares of the panel
        ("x domain"), or of shares of the figure ("paper"), which belong to the nearest panel."""
        refs = {side: at(part, f"{side}ref", side) for side in "xy"}
        names = {side: ref.removesuffix(" domain") for side, ref in refs.items()}
        first = {side: at(part, f"{side}{ends[:1]}", 0) for side in "xy"}

        def far(panel: Panel) -> float:
            return sum((0 if own.name == names[side] else 9) if names[side] != "paper" else
                       max(room[0] - first[side], first[side] - room[1], 0)
                       for side, own, room in (("x", panel.x, panel.span), ("y", panel.y, panel.rise)))  # fmt: skip

        panel = min(self.panels.values(), key=lambda each: round(far(each), 4))
        sides = {"x": (panel.x, panel.span), "y": (panel.y, panel.rise)}

        def place(side: str, value: Any) -> float:
            scale, (low, high) = sides[side]
            if refs[side] == "paper":
                return float((value - low) / (high - low))
            if " domain" in refs[side]:
                return float(value)
            found = float(scale.places(value)[0])
            return 10**found if scale.log and not ends else found

        data, share = panel.axes.transData, panel.axes.transAxes
        how = blended_transform_factory(*(data if refs[side] == names[side] != "paper" else share for side in "xy"))
        return panel, how, place

    def _shape(self, shape: Part) -> None:
        kind = at(shape, "type", "rect")
        if kind not in ("line", "rect"):
            raise NotDrawn(f"a shape of type {kind!r}")
        panel, how, place = self._place(shape, "01")
        (x0, x1), (y0, y1) = ([place(side, at(shape, f"{side}{end}", 0)) for end in "01"] for side in "xy")
        fade = at(shape, "opacity", 1.0)
        edge = {
            **stroke(at(shape, "line")),
            "transform": how,
            "zorder": 0.6 if at(shape, "layer") == "below" else 2.6,
            "alpha": None if fade == 1 else fade,
            "clip_on": "paper" not in (at(shape, "xref"), at(shape, "yref")),
        }
        if kind == "line":
            panel.axes.add_line(Line2D([x0, x1], [y0, y1], **edge))
        else:
            line = edge.pop("color")
            edge["edgecolor"] = line if at(shape, "line.width", 2) else "none"
            panel.axes.add_patch(
                Rectangle((x0, y0), x1 - x0, y1 - y0, facecolor=colour(at(shape, "fillcolor")), **edge)
            )

    def _note(self, note: Part) -> None:
        panel, how, place = self._place(note)
        x, y, text = place("x", at(note, "x", 0)), place("y", at(note, "y", 0)), at(note, "text", "")
        tone = colour(at(note, "font.color", INK))
        shift = PX * at(note, "xshift", 0), PX * at(note, "yshift", 0)
        if at(note, "showarrow", True):
            arrow = {"arrowstyle": "-|>,head_width=0.1,head_length=0.25" if at(note, "arrowhead", 1) else "-",
                     "color": colour(at(note, "arrowcolor", INK)), "linewidth": 0.6 * at(note, "arrowwidth", 1),
                     "shrinkA": 0, "shrinkB": 0}  # fmt: skip
            data = at(note, "axref", "pixel") != "pixel"
            tail = (place("x", at(note, "ax", 0)), place("y", at(note, "ay", 0))) if data else (
                PX * at(note, "ax", -10), -PX * at(note, "ay", -30))  # fmt: skip
            panel.axes.annotate(plain(text), (x, y), tail, xycoords=how, textcoords=how if data else "offset points",
                                color=tone, ha="center", va="center", arrowprops=arrow, annotation_clip=False,
                                zorder=2.45,  # behind markers, whose numbers are read
                                **letters(text, size=self.size(at(note, "font.size"))))  # fmt: skip
            return
        refs = [at(note, f"{side}ref", side) for side in "xy"]
        auto = [("left", "center", "right"), ("bottom", "middle", "top")]
        anchors = [at(note, f"{side}anchor", "auto") for side in "xy"]
        for way, value in enumerate((x, y)):
            if anchors[way] == "auto":
                share = refs[way] == "paper" or "domain" in refs[way]
                anchors[way] = auto[way][min(2, max(0, int(3 * value)))] if share else auto[way][1]
        share = {"left": 0.0, "center": 0.5, "right": 1.0, "bottom": 0.0, "middle": 0.5, "top": 1.0}
        align = share[anchors[0]], share[anchors[1]]
        offset = shift[0] + 3 * (0.5 - align[0]) * 2, shift[1] + 3 * (0.5 - align[1]) * 2
        turn = at(note, "textangle", 0) or 0
        self.write(panel, text, (x, y), how, offset, align, at(note, "font.size"), tone, turn, "paper" in refs)

    def size(self, px: float | None) -> float:
        """Return the points of letters of so many px; the figure's default size becomes the paper's."""
        return TYPE * float(px or self.base) / float(self.base)

    def write(self, panel: Panel, text: str, where: Any, how: Any, offset: Any, align: Any, px: float | None, tone: Any,
              turn: float = 0, wraps: bool = False) -> None:  # fmt: skip
        """Write a text with its bold and italic parts, at a position or beside it."""
        size = self.size(px)

        def rows(width: float) -> list[Any]:
            found = []
            for line in styled(text):
                whole = "".join(words for words, *_ in line)
                parts = self._wrapped(
                    whole, width, {"size": size, "weight": "bold" if line and line[0][1] else "normal"}
                ).split("\n")
                if len(parts) == 1 or len(line) < 2:
                    cut = [[(part, *line[0][1:])] for part in parts] if len(line) == 1 else [line]
                else:  # a head and words after it that have no room beside it
                    cut = [
                        [line[0]],
                        *(
                            [(part, *line[1][1:])]
                            for part in self._wrapped(
                                "".join(words for words, *_ in line[1:]).strip(), width, {"size": size}
                            ).split("\n")
                        ),
                    ]
                for own in cut:
                    found.append(HPacker(pad=0, sep=0, align="baseline", children=[
                        TextArea(words, textprops={"size": size, "color": tone, "weight": "bold" if bold else "normal",
                                                   "style": "italic" if italic else "normal", "rotation": -turn})
                        for words, bold, italic in own or [(" ", False, False)]]))  # fmt: skip
            return found

        def show(width: float) -> Any:
            side: Any = ("left", "center", "right")[int(2 * align[0])]
            return panel.axes.add_artist(
                AnnotationBbox(
                    VPacker(pad=0, sep=1.5, align=side, children=rows(width)),
                    where,
                    xybox=offset,
                    xycoords=how,
                    pad=0,
                    boxcoords="offset points",
                    box_alignment=align,
                    frameon=False,
                    annotation_clip=False,
                    zorder=4,
                )
            )

        if not wraps or turn:
            show(math.inf)
            return
        first = show(0.9 * (panel.span[1] - panel.span[0]) * self.made.bbox.width - 0.35 * self.made.dpi)
        self.words.append((lambda width: (first.remove(), show(width)), panel))


# -- traces ----------------------------------------------------------------------------------------


def marks(trace: Part, rank: int, tone: Any) -> dict[str, Any]:
    """How matplotlib draws the marker of a point."""

    def own(path: str, default: Any) -> Any:
        value = at(trace, f"marker.{path}")
        value = value[rank] if isinstance(value, (list, np.ndarray)) else value
        return default if value is None else value

    symbol = str(own("symbol", "circle"))
    shape, tone = symbol.removesuffix("-dot").removesuffix("-open"), colour(own("color", tone), own("opacity", 1.0))
    if shape not in SYMBOLS:
        raise NotDrawn(f"a marker {symbol!r}")
    fill, thin = symbol.removeprefix(shape), shape.endswith(("thin", "-ns", "-ew"))
    pale = (*(0.4 * part + 0.6 for part in tone[:3]), tone[3])  # in place of a dot, which matplotlib has not
    width = own("line.width", 1.1 if fill or thin else 0)
    return {
        "marker": SYMBOLS[shape],
        "markersize": PX * own("size", 6) * (1 if shape != "diamond" else 0.85),
        "markerfacecolor": {"": tone, "-open": "white", "-dot": pale, "-open-dot": "#bbbbbb"}[fill],
        "markeredgewidth": PX * (width or (1.1 if fill or thin else 0)),
        "markeredgecolor": tone if fill or thin else colour(own("line.color", "#444444")),
    }


def _grouped(sheet: Sheet, panel: Panel, kind: str, trace: Part) -> tuple[float, float]:
    """How far from its place, and how wide in shares of it, a trace of several side by side stands."""
    axes = [at(trace, "xaxis"), at(trace, "yaxis")]
    own = [at(each, "offsetgroup") or at(each, "name", str(k)) for k, each in enumerate(sheet.traces)
           if each["type"] == kind and [at(each, "xaxis"), at(each, "yaxis")] == axes]  # fmt: skip
    every = list(dict.fromkeys([*(at(each, "offsetgroup") for each in sheet.traces if at(each, "offsetgroup")), *own]))
    room = 1 - at(sheet.layout, f"{kind}gap", at(sheet.layout, "bargap", 0.2))
    rank = every.index(at(trace, "offsetgroup") or at(trace, "name", own[0]))
    return room * ((rank + 0.5) / len(every) - 0.5), room / len(every)


def _errors(panel: Panel, trace: Part, x: np.ndarray, y: np.ndarray, tone: Any) -> None:
    for side, scale, middle in (("x", panel.x, x), ("y", panel.y, y)):
        error = at(trace, f"error_{side}", {})
        if at(error, "visible", bool(error)) and "array" in error:
            more = np.array(each_of(error["array"], len(x)), float)
            less = np.array(each_of(error.get("arrayminus", error["array"]), len(x)), float)
            ends = [np.nan_to_num(np.clip(each, 0, None)) for each in (less, more)]
            keep = (ends[0] + ends[1] > 0) & np.isfinite(middle)
            panel.axes.errorbar(
                x[keep],
                y[keep],
                xerr=[end[keep] for end in ends] if side == "x" else None,
                yerr=[end[keep] for end in ends] if side == "y" else None,
                fmt="none",
                zorder=2.4,
                ecolor=colour(at(error, "color", tone)),
                elinewidth=PX * at(error, "thickness", 2),
                capthick=PX * at(error, "thickness", 2),
                capsize=PX * at(error, "width", 4),
            )
            scale.saw(np.concatenate([middle - ends[0], middle + ends[1]]))


def scatter(sheet: Sheet, panel: Panel, trace: Part) -> None:
    """Draw lines, markers, bands, error bars and texts."""
    axes, x, y = panel.axes, panel.x.places(at(trace, "x", ())), panel.y.places(at(trace, "y", ()))
    if not len(x) or not len(y):
        x = np.arange(len(y), dtype=float) if not len(x) else x
    count = min(len(x), len(y))
    x, y, mode = x[:count], y[:count], at(trace, "mode", "lines+markers" if count < 20 else "lines")
    if at(sheet.layout, "scattermode") == "group":
        shift, _ = _grouped(sheet, panel, "scatter", trace)
        x, y = (x, y + shift) if at(trace, "orientation") == "h" else (x + shift, y)
    panel.x.saw(x)
    panel.y.saw(y)
    panel.y.tight = False
    panel.x.tight &= "markers" not in mode
    tone, fade = at(trace, "line.color", at(trace, "marker.color", trace["_colour"])), at(trace, "opacity", 1.0)
    tone = tone if isinstance(tone, str) else trace["_colour"]
    if (fill := at(trace, "fill", "none")) != "none":
        _fill(axes, panel, fill, x, y, colour(at(trace, "fillcolor", colour(tone, 0.5)), 1.0), fade)
    if "lines" in mode and at(trace, "line.width", 2):
        shown = np.isfinite(x + y) if at(trace, "connectgaps") else slice(None)
        shape = at(trace, "line.shape", "linear")
        axes.plot(x[shown], y[shown], drawstyle=STEPS[shape], alpha=fade if fade < 1 else None, zorder=2.2,
                  **stroke(at(trace, "line"), tone))  # fmt: skip
    if "markers" in mode:
        looks: dict[Any, list[int]] = {}
        many = any(not isinstance(at(trace, f"marker.{key}", 0), (int, float, str)) for key in (
            "symbol", "size", "color", "opacity", "line.color", "line.width"))  # fmt: skip
        most = at(trace, "marker.maxdisplayed", 0)
        every = math.ceil(count / most) if most else 1
        for k in range((count - 1) % every if count else 0, count, every):
            looks.setdefault(repr(marks(trace, k, tone)) if many else "", []).append(k)
        for own in looks.values():
            how = marks(trace, own[0], tone)
            axes.plot(x[own], y[own], linestyle="none", alpha=fade if fade < 1 else None, zorder=2.5, **how,
                      clip_on=at(trace, "cliponaxis", True))  # fmt: skip
    _errors(panel, trace, x, y, tone)
    if "text" in mode:
        _texts(sheet, panel, trace, x, y)
    panel.last = x, y


def _fill(axes: Axes, panel: Panel, fill: str, x: np.ndarray, y: np.ndarray, tone: Any, fade: float) -> None:
    how: dict[str, Any] = {"facecolor": (*tone[:3], tone[3] * fade), "linewidth": 0, "zorder": 1.9}
    if fill == "toself":
        axes.fill(x, y, **how)
    elif fill == "tonexty" and panel.last is not None:
        axes.fill(np.concatenate([x, panel.last[0][::-1]]), np.concatenate([y, panel.last[1][::-1]]), **how)
    elif fill in ("tozeroy", "tonexty"):
        axes.fill_between(x, y, 0, **how)
    else:
        raise NotDrawn(f"a filling {fill!r}")


def _texts(sheet: Sheet, panel: Panel, trace: Part, x: np.ndarray, y: np.ndarray) -> None:
    rows, sides = {"top": (1, "bottom"), "bottom": (-1, "top")}, {"right": (1, "left"), "left": (-1, "right")}
    radius = (
        PX * max(each_of(at(trace, "marker.size", 6), 1) or [6]) / 2 + 2 if "markers" in at(trace, "mode", "") else 0
    )
    for k, text in enumerate(each_of(at(trace, "text", ""), len(x))):
        row, _, side = str(each_of(at(trace, "textposition", "middle center"), len(x))[k]).partition(" ")
        (up, va), (right, ha) = rows.get(row, (0, "center_baseline")), sides.get(side, (0, "center"))
        if text not in (None, "") and np.isfinite(x[k] + y[k]):
            panel.axes.annotate(
                plain(text),
                (x[k], y[k]),
                (right * radius, up * radius),
                textcoords="offset points",
                ha=ha,
                va=va,
                zorder=3,
                color=colour(each_of(at(trace, "textfont.color", INK), len(x))[k]),
                annotation_clip=False,
                in_layout=bool(up or right),
                **letters(text, size=sheet.size(at(trace, "textfont.size"))),
            )


def bar(sheet: Sheet, panel: Panel, trace: Part) -> None:
    """Draw bars side by side, stacked or at their bases, with a text within or behind each."""
    flat, mode = at(trace, "orientation") == "h", at(sheet.layout, "barmode", "group")
    long, cross = (panel.x, panel.y) if flat else (panel.y, panel.x)
    lengths, places = (scale.places(at(trace, scale.name[0], ())) for scale in (long, cross))
    places = places if len(places) else np.arange(len(lengths), dtype=float)
    count, room = len(lengths), 1 - at(sheet.layout, "bargap", 0.2)
    gaps = np.diff(np.unique(places[np.isfinite(places)]))
    unit = 1.0 if cross.categories is not None or not len(gaps) else float(gaps.min())
    shift, wide = _grouped(sheet, panel, "bar", trace) if mode == "group" else (0.0, room)
    width = np.array(each_of(at(trace, "width", unit * wide), count), float)
    places = places + unit * shift
    begin = np.array(each_of(at(trace, "base", 0.0), count), float)
    if mode in ("relative", "stack") and "base" not in trace:
        for k, (place, length) in enumerate(zip(places, lengths, strict=True)):
            begin[k] = panel.stacks.get((place, length >= 0), 0.0)
            panel.stacks[place, length >= 0] = begin[k] + np.nan_to_num(length)
    _bars(
        sheet,
        panel,
        trace,
        flat,
        places,
        begin,
        lengths,
        width,
        each_of(at(trace, "marker.color", trace["_colour"]), count),
    )


def _bars(
    sheet: Sheet,
    panel: Panel,
    trace: Part,
    flat: bool,
    places: np.ndarray,
    begin: np.ndarray,
    lengths: np.ndarray,
    width: np.ndarray,
    tones: Sequence[Any],
) -> None:
    axes, count = panel.axes, len(places)
    long, cross = (panel.x, panel.y) if flat else (panel.y, panel.x)
    edge, edges = at(trace, "marker.line.width", 0), at(trace, "marker.line.color", "#444444")
    hatch = at(trace, "marker.pattern.shape", "")
    drawn = (axes.barh if flat else axes.bar)(
        places, lengths, width, begin, zorder=1.5, color=[colour(tone, at(trace, "opacity", 1.0)) for tone in tones],
        edgecolor=colour(edges) if edge else [colour(tone) for tone in tones], linewidth=PX * edge if edge else 0.25,
        hatch=3 * hatch if isinstance(hatch, str) and hatch else None)  # fmt: skip
    ends = begin + lengths
    long.saw(np.concatenate([begin, ends]))
    long.tight, long.filled, cross.tight = False, "base" not in trace, True
    cross.saw(np.concatenate([places - width / 2, places + width / 2]))
    x, y = (ends, places) if flat else (places, ends)
    _errors(panel, trace, x, y, at(trace, "error_x.color", INK))
    over = np.array(each_of(at(trace, f"error_{long.name[0]}.array", 0.0), count), float)
    texts, how = each_of(at(trace, "text", ""), count), at(trace, "texttemplate", "")
    for k, text in enumerate(texts):
        text = templated(how, {"text": text, "value": lengths[k], long.name[0]: lengths[k]}) if how else text
        if text in (None, "") or not np.isfinite(ends[k]):
            continue
        inside = each_of(at(trace, "textposition", "inside"), count)[k] != "outside"
        font = at(trace, "insidetextfont" if inside else "outsidetextfont", at(trace, "textfont", {}))
        tip = ends[k] + (np.nan_to_num(over[k]) if lengths[k] >= 0 else 0)
        spot = begin[k] + lengths[k] / 2 if inside else tip
        away = 0 if inside else 3 if lengths[k] >= 0 or trace["type"] == "waterfall" else -3
        spot = max(begin[k], ends[k]) if trace["type"] == "waterfall" and not inside else spot
        note = axes.annotate(
            plain(text),
            (spot, places[k]) if flat else (places[k], spot),
            (away, 0) if flat else (0, away),
            textcoords="offset points",
            ha="center" if inside or not flat else "left" if away > 0 else "right",
            zorder=3,
            va="center_baseline" if inside or flat else "bottom" if away > 0 else "top",
            annotation_clip=True,
            color=colour(at(font, "color", on(colour(tones[k])) if inside else INK)),
            in_layout=not inside,
            **letters(text, size=sheet.size(at(font, "size", 0.88 * sheet.base if inside else None))),
        )
        if inside and flat:
            sheet.within.append((note, drawn[k]))


def waterfall(sheet: Sheet, panel: Panel, trace: Part) -> None:
    """Draw sums as bars from zero, and the steps between them, with lines from each bar to the next."""
    flat = at(trace, "orientation") == "h"
    long, cross = (panel.x, panel.y) if flat else (panel.y, panel.x)
    sizes, places = (scale.places(at(trace, scale.name[0], ())) for scale in (long, cross))
    kinds, begin, ends, tones, total = each_of(at(trace, "measure"), len(sizes)), [], [], [], at(trace, "base", 0.0)
    for kind, size in zip(kinds, sizes, strict=True):
        whole = kind in ("absolute", "total", "a", "t")
        low = 0.0 if whole else total
        total = (size if kind in ("absolute", "a") else total) if whole else total + size
        begin.append(low)
        ends.append(total)
        way, default = (
            ("totals", "#4499FF") if whole else ("increasing", "#3D9970") if size >= 0 else ("decreasing", "#FF4136")
        )
        tones.append(at(trace, f"{way}.marker.color", default))
    width = np.full(len(sizes), at(trace, "width", 0.8))
    starts, lengths = np.array(begin), np.array(ends) - np.array(begin)
    _bars(sheet, panel, trace, flat, places, starts, lengths, width, tones)
    if at(trace, "connector.visible", True):
        line = stroke(at(trace, "connector.line"), "#444444")
        for k in range(len(sizes) - 1):
            across, along = [places[k] + 0.4, places[k + 1] - 0.4], [ends[k], ends[k]]
            panel.axes.plot(*((along, across) if flat else (across, along)), zorder=1.4, **line)


def heatmap(sheet: Sheet, panel: Panel, trace: Part) -> None:
    """Draw cells in colours, with their texts."""
    z = np.array(at(trace, "z"), dtype=float)
    centres = [
        scale.places(at(trace, scale.name[0], range(size)))
        for scale, size in ((panel.x, z.shape[1]), (panel.y, z.shape[0]))
    ]
    edges = []
    for scale, middle in zip((panel.x, panel.y), centres, strict=True):
        half = np.diff(middle) / 2 if len(middle) > 1 else np.array([0.5])
        edges.append(
            np.concatenate([[middle[0] - half[0]], middle[:-1] + half[: len(middle) - 1], [middle[-1] + half[-1]]])
        )
        scale.saw(edges[-1])
        scale.tight = True
    scale_ = at(trace, "colorscale", at(sheet.layout, "template.layout.colorscale.sequential", "Plasma"))
    steps = plotly.colors.get_colorscale(scale_) if isinstance(scale_, str) else scale_
    shades = LinearSegmentedColormap.from_list("", [(float(place), colour(tone)) for place, tone in steps], N=2048)
    shades = shades.reversed() if at(trace, "reversescale") else shades
    norm = Normalize(at(trace, "zmin", np.nanmin(z)), at(trace, "zmax", np.nanmax(z)))
    mesh = panel.axes.pcolormesh(*edges, np.ma.masked_invalid(z), cmap=shades, norm=norm, zorder=1, edgecolors="white",
                                 linewidth=PX * at(trace, "xgap", 0))  # fmt: skip
    if at(trace, "showscale", True):
        sheet.made.colorbar(mesh, ax=panel.axes, label=plain(at(trace, "colorbar.title.text", "")), aspect=30, pad=0.01,
                            use_gridspec=False)  # fmt: skip
    texts, how = at(trace, "text"), at(trace, "texttemplate", "")
    for row, column in np.ndindex(z.shape) if how else ():
        words = templated(how, {"z": z[row, column], "text": texts[row][column] if texts is not None else ""})
        if np.isfinite(z[row, column]) and words not in ("", "nan", "None"):
            panel.axes.annotate(
                plain(words),
                (centres[0][column], centres[1][row]),
                ha="center",
                va="center",
                zorder=3,
                in_layout=False,
                color=on(shades(norm(z[row, column]))),
                linespacing=0.95,
                **letters(words, size=sheet.size(at(trace, "textfont.size"))),
            )


TRACES: dict[str, Callable[[Sheet, Panel, Any], None]] = {
    "scatter": scatter, "bar": bar, "heatmap": heatmap, "waterfall": waterfall}  # fmt: skip
