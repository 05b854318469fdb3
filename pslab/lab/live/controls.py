"""The controls of a live view: what they are set to is a list of runs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import ipywidgets as widgets

from pslab.config.run import Run
from pslab.errors import ConfigError
from pslab.lab.live.look import sheet
from pslab.lab.plots.theme import RAMPS, parts, prune_name, sync_colour, sync_name
from pslab.lab.runs import background

SYNCS = ("bsp", "ssp:3", "asp")
PRUNES = ("none", "static:10%", "static:1%", "static:0.1%", "std:2", "dynamic:5")
HINTS = {"sync": "others: ssp:1 ssp:8", "prune": "others: static:2%"}
TITLES = {"sync": "synchronization", "prune": "pruning"}
SCALARS = ("workers", "learning_rate", "schedule", "pushes", "cluster", "seed")
WIDTHS = {"workers": "62px", "learning_rate": "78px", "schedule": "118px", "pushes": "84px", "cluster": "140px",
          "seed": "62px"}  # fmt: skip


class Controls:
    """Widgets for some fields of Run; the others are fixed.

    `begin` holds fields of Run: perhaps several under sync and prune, one under each of SCALARS, and any other.
    """

    def __init__(self, begin: Mapping[str, Any]) -> None:
        shown = ("sync", "prune", *SCALARS)
        chosen = {name: begin[name] for name in shown}
        self._fixed = {name: value for name, value in begin.items() if name not in shown}
        self._chips: dict[str, list[tuple[widgets.ToggleButton, Any]]] = {}
        self._others = {name: widgets.Text(placeholder=hint, layout={"width": "150px"}, continuous_update=False)
                        for name, hint in HINTS.items()}  # fmt: skip
        colours: dict[str, str] = {}
        rows = [self._policies(name, known, chosen[name], colours)
                for name, known in (("sync", SYNCS), ("prune", PRUNES))]  # fmt: skip
        self._scalars = _scalars({name: chosen[name] for name in SCALARS})
        fields = [_field(name.replace("_", " "), widget) for name, widget in self._scalars.items()]
        scalars = widgets.HBox(fields, layout={"flex_flow": "row wrap", "grid_gap": "14px", "margin": "6px 0 0"})
        self.box = widgets.VBox([widgets.HTML(sheet(colours), layout={"display": "none"}), *rows, scalars])

    def runs(self) -> list[Run]:
        """Each chosen policy with each chosen threshold.

        Raises:
            ConfigError: what Run refuses; names are looked up when they are run.
        """
        values = {name: widget.value for name, widget in self._scalars.items()}
        fixed = {**self._fixed, "evaluate": "beside"}
        return [Run.of({**fixed, **values, "sync": sync, "prune": prune})
                for prune in self._several("prune") for sync in self._several("sync")]  # fmt: skip

    def mark(self, field: str) -> None:
        """Show which control was refused; none for an empty name."""
        for name, widget in {**self._scalars, **self._others}.items():
            (widget.add_class if name == field else widget.remove_class)("pslab-wrong")

    def _policies(self, name: str, known: Sequence[str], chosen: Any, colours: dict[str, str]) -> widgets.HBox:
        wanted = [chosen] if isinstance(chosen, str) or not isinstance(chosen, Sequence) else list(chosen)
        values = [*known, *(value for value in wanted if not isinstance(value, str) or value not in known)]
        label, colour = (sync_name, sync_colour) if name == "sync" else (prune_name, _prune_colour)
        chips = []
        for rank, value in enumerate(values):
            on = any(value is each or value == each for each in wanted)
            chip = widgets.ToggleButton(value=on, description=label(value), tooltip=str(value))
            chip.add_class(f"pslab-{name}-{rank}")
            colours[f"pslab-{name}-{rank}"] = colour(value)
            chips.append((chip, value))
        self._chips[name] = chips
        title = widgets.Label(TITLES[name], layout={"width": "98px"})
        return widgets.HBox([title, *(chip for chip, _ in chips), self._others[name]],
                            layout={"flex_flow": "row wrap", "align_items": "center"})  # fmt: skip

    def _several(self, name: str) -> list[Any]:
        typed = [text for text in re.split(r"[;\s]+", self._others[name].value.strip()) if text]
        found = [value for chip, value in self._chips[name] if chip.value] + typed
        if not found:
            raise ConfigError(name, "", "choose at least one, or type one")
        return found


def _scalars(values: Mapping[str, Any]) -> dict[str, Any]:
    names = background.names()
    clusters: list[tuple[str, Any]] = [(name, name) for name in names["cluster"]]
    if isinstance(values["cluster"], Mapping):
        clusters = [("as given", values["cluster"]), *clusters]
    elif values["cluster"] not in names["cluster"]:
        clusters = [(str(values["cluster"]), values["cluster"]), *clusters]  # refused when it is run, with the reason
    kinds: dict[str, Any] = {
        "workers": widgets.IntText, "learning_rate": widgets.FloatText, "pushes": widgets.IntText,
        "seed": widgets.IntText, "schedule": widgets.Combobox, "cluster": widgets.Dropdown,
    }  # fmt: skip
    more: dict[str, dict[str, Any]] = {"schedule": {"options": names["schedule"], "ensure_option": False},
                                       "cluster": {"options": clusters}}  # fmt: skip
    return {name: kinds[name](value=values[name], layout={"width": WIDTHS[name]}, **more.get(name, {}))
            for name in SCALARS}  # fmt: skip


def _field(title: str, widget: widgets.Widget) -> widgets.VBox:
    return widgets.VBox([widgets.HTML(f'<div class="pslab-head">{title}</div>'), widget])


def _prune_colour(value: Any) -> str:
    ramp = RAMPS.get(parts(value)[0].lower())
    return "#3c4654" if ramp is None else ramp[1]
