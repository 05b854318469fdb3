"""What a notebook calls: its checked parameters, the name of what it yields, and the writing of its figures."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pslab.errors import ConfigError, nearest
from pslab.lab.plots.theme import parts
from pslab.lab.records import journal
from pslab.lab.studies.studies import STUDIES

#: What each notebook draws; a file is named <stem>-<picture>.
PICTURES: dict[str, tuple[str, ...]] = {
    "11_families": ("accuracy", "bytes", "until", "thresholds", "starts"),
    "20_sync_policies": ("accuracy", "targets", "bytes", "time", "waiting", "staleness", "timeline"),
    "25_ssp_tuning": ("settings",),
    "40_eager": ("timeline", "time"),
}
KEYS: dict[str, tuple[str, ...]] = {
    "11_families": (), "40_eager": (),
}  # fmt: skip
"""Parameters that a file is named after; the others' are named after `prune`."""
SCENE = ("engine", "cluster", "workers")  # named where they are not the default
PARAMETERS_CELL = "# Parameters"  # how papermill, and our notebooks, begin a cell of parameters


def allowed(notebook: str) -> dict[str, Any]:
    """The parameters of a notebook with their defaults, as plain literals."""
    if notebook not in STUDIES:
        raise ConfigError("notebook", notebook, nearest(notebook, STUDIES))
    signature = inspect.signature(STUDIES[notebook]).parameters.values()
    return {**{p.name: _literal(p.default) for p in signature}, "images": False}


def check_parameters(notebook: str, values: Mapping[str, Any]) -> Sequence[Any]:
    """The runs, or observations, that these parameters ask for; nothing is started.

    Raises:
        ConfigError: an unknown name (with the nearest right one), a wrong type, an impossible value.
    """
    names = allowed(notebook)
    for name in values:
        if name not in names:
            raise ConfigError(str(name), values[name], f"{notebook} has no such parameter; {nearest(str(name), names)}")
    chosen = {**names, **values}
    if not isinstance(images := chosen.pop("images"), bool):
        raise ConfigError("images", images, "must be True or False")
    return STUDIES[notebook](**chosen)


def parameters(notebook: str, namespace: Mapping[str, Any]) -> dict[str, Any]:
    """The checked parameters in a notebook's globals, as its study takes them.

    papermill only warns of a name that the notebook does not know: every name that a cell of parameters assigned since
    the last check must be one of the notebook's.
    """
    names = allowed(notebook)
    assigned = [name for name in _assigned(namespace.get("In", [])) if name in namespace]
    found = {name: namespace[name] for name in [*names, *assigned] if name in namespace}
    check_parameters(notebook, found)
    return {name: value for name, value in found.items() if name != "images"}


def stem(notebook: str, values: Mapping[str, Any]) -> str:
    """The name of what a notebook yields with these parameters: ``"10_pruning-static-ssp3"``."""
    defaults = allowed(notebook)
    chosen = {**defaults, **values}
    keys = KEYS.get(notebook, ("prune",))
    others = [f"w{chosen[key]}" if key == "workers" else _slug(chosen[key]) for key in SCENE
              if key in chosen and isinstance(chosen[key], (str, int)) and chosen[key] != defaults[key]]  # fmt: skip
    others += ["rates"] if isinstance(chosen.get("learning_rate"), (list, tuple)) else []
    return "-".join([notebook, *(_slug(chosen[key]) for key in keys), *others])


def save(notebook: str, values: Mapping[str, Any], drawn: Mapping[str, Any], images: bool = False) -> list[Path]:
    """Write a notebook's figures to results/figures; the paths."""
    from pslab.lab.plots import export
    from pslab.lab.records.record import default_results

    if set(drawn) != set(PICTURES[notebook]):
        raise ConfigError("drawn", sorted(drawn), f"{notebook} draws {', '.join(PICTURES[notebook])}")
    named = {f"{stem(notebook, values)}-{picture}": figure for picture, figure in drawn.items()}
    journal.note(figure=list(named))
    return export.write_all(named, default_results() / "figures", images)


def _assigned(cells: Sequence[str]) -> list[str]:
    """Names that cells of parameters assign, back to the last run of the cell that checks (the last one)."""
    found: list[str] = []
    for source in reversed(cells[:-1]):
        if source == cells[-1]:
            break
        if source.lstrip().startswith(PARAMETERS_CELL):
            names = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)]
            found += [node.id for node in names if isinstance(node.ctx, ast.Store)]
    return found


def _slug(value: Any) -> str:
    name, positional, named = parts(value)
    return re.sub(r"[^a-z0-9.]+", "", "".join([name, *positional, *named.values()]).lower()) or "other"


def _literal(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    return dict(value) if isinstance(value, Mapping) else value
