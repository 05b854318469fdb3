"""parameters(notebook): returns the checked parameters of a notebook.

A cell of parameters starts with "# Parameters". The first such cell declares names and defaults; later cells, such as
papermill's, give values. A value must have its default's type, but a default None admits any value, a float admits an
int, and each entry of a list must have the type of the default's first entry. A parameter that is named as a field of
Run admits every value that Run admits.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pslab.config.run import FIELDS, LAB, Run
from pslab.config.spec import build
from pslab.config.table import KINDS, ROWS, find
from pslab.errors import ConfigError, nearest
from pslab.version import SOURCE

CELL, TAG = "# Parameters", "parameters"  # the cell's first words, and the tag by which papermill finds it
PACKAGE = "PSLAB_PACKAGE"  # the path of the pslab whose batch executes the notebook
WORDS = {bool: "True or False", int: "a whole number", float: "a number", str: "a string",
         list: "a list with at least one entry", dict: "a mapping"}  # fmt: skip
_current = ""  # the notebook whose parameters were checked last; figures are named after it


def parameters(notebook: str) -> dict[str, Any]:
    """Return a notebook's parameters with the values that its cells of parameters have set, after a check.

    Raises:
        ConfigError: a cell sets a name that the first cell does not declare, or a value of another type than the
            default's; or the call is not in a notebook.
    """
    global _current
    if (shell := kernel()) is None:
        raise ConfigError("notebook", notebook, "only a notebook has parameters: call this from one of its cells")
    _current = notebook
    if os.environ.get(PACKAGE, str(SOURCE)) != str(SOURCE):
        problem = f"the kernel imports {SOURCE}, but the batch {os.environ[PACKAGE]}: install only one of the two"
        raise ConfigError("notebook", notebook, problem)
    return given(notebook, shell.user_ns.get("In", []), shell.user_ns)


def kernel() -> Any:
    """Return the shell of the notebook that runs this code; None outside of a notebook."""
    return getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()


def current() -> str:
    """Return the notebook that called `parameters` last; "" if none did."""
    return _current


def given(notebook: str, cells: Sequence[str], namespace: Mapping[str, Any]) -> dict[str, Any]:
    """Return the checked parameters after these cells; the last one is the cell that is being executed.

    An undeclared name is refused only if it was assigned since this cell was last executed, because a corrected cell
    stays in the session's history with its misspelt name.
    """
    names = declared(notebook, next((cell for cell in cells if _declares(cell)), ""))
    recent = [*cells[:-1]]
    for number in range(len(recent) - 1, -1, -1):
        if recent[number] == cells[-1]:
            recent = recent[number + 1 :]
            break
    assigned = [name for cell in recent if _declares(cell) for name in _assigned(cell)]
    values = {name: namespace[name] for name in dict.fromkeys([*names, *assigned]) if name in namespace}
    check(notebook, names, values)
    return {name: values.get(name, default) for name, default in names.items()}


def declared(notebook: str, cell: str) -> dict[str, Any]:
    """Return the names and defaults of a cell of parameters.

    Raises:
        ConfigError: the cell does not start with CELL, or has other statements than assignments of plain literals.
    """
    if not _declares(cell):
        raise ConfigError("notebook", notebook, f"needs a first cell that starts with {CELL!r} and declares parameters")
    values: dict[str, Any] = {}
    for statement in ast.parse(cell).body:
        try:
            (target,) = statement.targets  # type: ignore[attr-defined]
            values[target.id] = ast.literal_eval(statement.value)  # type: ignore[attr-defined]
        except (AttributeError, TypeError, ValueError):
            text = ast.unparse(statement)
            problem = f"each line of its parameters must be NAME = a plain literal, not {text!r}"
            raise ConfigError("notebook", notebook, problem) from None
    return values


def of_notebook(path: Path) -> dict[str, Any]:
    """Return the names and defaults of the parameters that a notebook on disk declares.

    Raises:
        ConfigError: the notebook cannot be read, its cell has no tag, or `declared` refuses the cell.
    """
    cell = next((cell for cell in _code_cells(path) if _declares(cell.source)), None)
    if cell is not None and TAG not in cell.metadata.get("tags", ()):
        problem = (f"its cell {CELL!r} lacks the tag {TAG!r}, so its defaults would overwrite the values given: in "
                   f"JupyterLab, select the cell and add the tag {TAG!r} in the property inspector")  # fmt: skip
        raise ConfigError("notebook", path.stem, problem)
    return declared(path.stem, "" if cell is None else cell.source)


def _code_cells(path: Path) -> list[Any]:
    import nbformat

    try:
        cells: Any = nbformat.read(path, 4).cells  # type: ignore[no-untyped-call]
    except (OSError, ValueError, nbformat.reader.NotJSONError) as error:
        raise ConfigError("notebook", str(path), f"cannot be read: {error}") from None
    return [cell for cell in cells if cell.cell_type == "code"]


def check(notebook: str, names: Mapping[str, Any], values: Mapping[str, Any], where: str = "") -> None:
    """Check that a notebook declares parameters for these values, and that the types fit. `where` ends the message
    about an unknown name.

    Raises:
        ConfigError: an unknown name, or a value whose type is not its default's.
    """
    for name, value in values.items():
        if name not in names:
            raise ConfigError(name, value, f"{notebook} has no such parameter; {nearest(name, names)}{where}")
        _check_value(name, names[name], value)


def check_named(name: str, default: Any, value: Any) -> None:
    """Check that each text in a value is a known name of the parameter's kind, such as a policy of the kind sync.

    The kind follows from the parameter's name, or from the texts in its default. Names in a user's module or in
    torchvision are not checked. The named objects are loaded, perhaps with torch.

    Raises:
        ConfigError: a name is unknown, or has impossible parameters.
    """
    if isinstance(value, Mapping):
        for key, item in value.items():
            check_named(str(key), default.get(key, default) if isinstance(default, Mapping) else default, item)
        return
    kind = name if name in KINDS else _kind_of(default)
    for text in _texts(value) if kind else ():
        if ":" not in text or not KINDS[kind].forms or find(kind, text):
            build(kind, text, name)


def _kind_of(default: Any) -> str:
    """Return the kind that knows all names in a default; "" if no kind or several kinds do."""
    texts = _texts(default)
    kinds = [kind for kind, rows in ROWS.items() if texts and all(text.partition(":")[0] in rows for text in texts)]
    return kinds[0] if len(kinds) == 1 else ""


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else ()
    return [text for item in inner for text in _texts(item)]


def _check_value(name: str, default: Any, value: Any) -> None:
    if default is None:
        return
    if name in FIELDS and _fits(name, default):
        if not _fits(name, value):
            _alone(name, value)  # raises Run's error
        return
    kind = type(default)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return
    kind = list if kind is tuple else kind
    entries = isinstance(value, (list, tuple)) if kind is list else type(value) is kind
    if not entries or (kind is list and default and not value):
        raise ConfigError(name, value, f"must be {WORDS[kind]}, such as {default!r}")
    if kind is list and default:
        for entry in value:
            _check_value(name, default[0], entry)


def _fits(name: str, value: Any) -> bool:
    try:
        _alone(name, value)
    except ConfigError as error:
        return error.field != name
    return True


def _alone(name: str, value: Any) -> None:
    Run.of({"cluster": LAB, name: value})


def _declares(cell: str) -> bool:
    return cell.lstrip().startswith(CELL)


def _assigned(cell: str) -> list[str]:
    names = [node for node in ast.walk(ast.parse(cell)) if isinstance(node, ast.Name)]
    return [node.id for node in names if isinstance(node.ctx, ast.Store)]
