"""The controls of a live view, and the runs that their settings describe."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import ipywidgets as widgets

from pslab.config.cluster import PRESETS
from pslab.config.run import Run
from pslab.config.table import ROWS
from pslab.errors import ConfigError
from pslab.lab.plots.labels import name

KNOWN: dict[str, tuple[str, ...]] = {
    "sync": ("bsp", "ssp:3", "asp"),
    "prune": ("none", "static:10%", "static:1%", "static:0.1%", "std:2", "dynamic:5"),
}
HINTS = {"sync": "ssp:1 ssp:8", "prune": "static:2%"}
TITLES = {"sync": "synchronization", "prune": "pruning"}
SCALARS: dict[str, Any] = {  # a field of Run, with its widget
    "workers": widgets.IntText, "learning_rate": widgets.FloatText, "schedule": widgets.Combobox,
    "pushes": widgets.IntText, "cluster": widgets.Dropdown, "seed": widgets.IntText,
}  # fmt: skip
ROW = {"flex_flow": "row wrap", "align_items": "center"}
WRONG = "pslab-wrong"  # the class of a control whose value was refused


class Controls:
    """Widgets for the fields `sync`, `prune` and SCALARS of Run; other fields keep the given values.

    `values` maps fields of Run to values: one or several for sync and prune, one for each other field.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._fixed = {field: value for field, value in values.items() if field not in (*KNOWN, *SCALARS)}
        self.chips = {field: _chips(field, values[field]) for field in KNOWN}
        self.others = {field: widgets.Text(description="others", placeholder=hint, continuous_update=False,
                                            style={"description_width": "initial"}, layout={"width": "190px"})
                        for field, hint in HINTS.items()}  # fmt: skip
        self.scalars = {field: _scalar(field, values[field]) for field in SCALARS}
        titles = {field: widgets.Label(words, layout={"width": "110px"}).add_class("pslab-title")
                  for field, words in TITLES.items()}  # fmt: skip
        chips = {field: [chip for chip, _ in pairs] for field, pairs in self.chips.items()}
        rows = [widgets.HBox([titles[field], *chips[field], self.others[field]], layout=ROW).add_class("pslab-group")
                for field in KNOWN]  # fmt: skip
        self.box = widgets.VBox([*rows, widgets.HBox(list(self.scalars.values()), layout=ROW)])

    def runs(self) -> list[Run]:
        """Return a run for each chosen policy with each chosen pruning rule.

        Raises:
            ConfigError: Run refuses a value, or no policy or rule is chosen. Names are checked when a run starts.
        """
        fixed = {**self._fixed, "evaluate": "beside", **{field: w.value for field, w in self.scalars.items()}}
        return [Run.of({**fixed, "sync": sync, "prune": prune})
                for prune in self._several("prune") for sync in self._several("sync")]  # fmt: skip

    def mark(self, field: str) -> None:
        """Mark the control of this field as wrong, and no other; "" marks none."""
        for known, widget in {**self.scalars, **self.others}.items():
            (widget.add_class if known == field else widget.remove_class)(WRONG)

    def _several(self, field: str) -> list[Any]:
        typed = [text for text in re.split(r"[;\s]+", self.others[field].value.strip()) if text]
        values = [value for chip, value in self.chips[field] if chip.value] + typed
        if not values:
            raise ConfigError(field, "", f"needs at least one value: press a button, or type {HINTS[field].split()[0]}")
        return values


def _chips(field: str, chosen: Any) -> list[tuple[widgets.ToggleButton, Any]]:
    """Return a button for each known and each chosen value; the chosen values' buttons are pressed."""
    wanted = [chosen] if isinstance(chosen, str) or not isinstance(chosen, Sequence) else list(chosen)
    values = [*KNOWN[field], *(value for value in wanted if not isinstance(value, str) or value not in KNOWN[field])]
    return [(widgets.ToggleButton(value=any(value is one or value == one for one in wanted), tooltip=str(value),
                                  description=name(field, value), layout={"width": "auto"}), value)
            for value in values]  # fmt: skip


def _scalar(field: str, value: Any) -> widgets.Widget:
    more: dict[str, Any] = {}
    if field == "schedule":
        more = {"options": list(ROWS["schedule"]), "ensure_option": False}
    elif field == "cluster":
        given = "as given" if isinstance(value, Mapping) else str(value)  # a wrong name is refused when a run starts
        current = [] if value in [*PRESETS] else [(given, value)]  # a mapping has no hash
        more = {"options": [*current, *((preset, preset) for preset in PRESETS)]}
    return SCALARS[field](value=value, description=field.replace("_", " "), style={"description_width": "90px"},
                          layout={"width": "210px"}, **more)  # fmt: skip
