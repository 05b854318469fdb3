"""A notebook of the batch, executed by papermill in a kernel of its own."""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pslab
from pslab.errors import PslabError
from pslab.lab.records import journal
from pslab.lab.studies.batch import SUFFIXES, Entry
from pslab.lab.studies.figures import VARIANT
from pslab.lab.studies.parameters import PACKAGE
from pslab.lab.studies.watch import Watch

RENDERER = "plotly_mimetype+notebook"  # shows in JupyterLab, and in a converted page without a network


def execute(entry: Entry, watch: Watch) -> float:
    """Execute into a draft, which takes its place when it is whole; the seconds that it took."""
    from pslab.lab.plots.export import replace

    begun_s, before = time.monotonic(), entry.figures
    draft = entry.executed.with_name(f".{entry.name}.partial.ipynb")
    entry.executed.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="pslab-kernel-") as place:
        written = Path(place) / "journal"
        watch.start(entry, written)
        try:
            with _environment(entry, written):
                _papermill(entry, draft, Path(place))
            content = _whole(draft)
        except Exception:
            with contextlib.suppress(OSError):
                draft.replace(entry.executed.with_suffix(".failed.ipynb"))
            raise
        finally:
            watch.stop()
            draft.unlink(missing_ok=True)
        stamp = entry.stamp_of(journal.entries(written), time.monotonic() - begun_s)
    replace(entry.executed, content)
    replace(entry.stamped, (json.dumps(stamp, indent=1, sort_keys=True) + "\n").encode())
    vars(entry).pop("stamp", None)  # it was read before
    entry.executed.with_suffix(".failed.ipynb").unlink(missing_ok=True)
    for figure in set(before) - set(entry.figures):  # which the notebook draws no longer
        for suffix in SUFFIXES:
            figure.with_name(f"{figure.name}.{suffix}").unlink(missing_ok=True)
    return time.monotonic() - begun_s


def _papermill(entry: Entry, draft: Path, place: Path) -> None:
    import papermill
    from traitlets.config import Config

    # a socket in a folder of its own: over TCP, anyone on the machine could talk to the kernel
    papermill.execute_notebook(
        str(entry.source), str(draft), parameters=dict(entry.values), kernel_name="python3", progress_bar=False,
        cwd=str(entry.sources), config=Config(KernelManager={"transport": "ipc", "ip": f"{place}/socket"}),
    )  # fmt: skip


def _whole(draft: Path) -> bytes:
    """The executed notebook. papermill writes half a one to a full disk without a word."""
    import nbformat

    content = draft.read_bytes()
    cells: Any = nbformat.reads(content.decode(), as_version=4).cells  # type: ignore[no-untyped-call]
    if any(cell.cell_type == "code" and cell.execution_count is None for cell in cells):
        raise PslabError(f"{draft} has cells that were not executed")
    return content


def reason(error: Exception) -> str:
    """What the failing cell said, without colours and without its traceback."""
    cell, name, text = (getattr(error, field, None) for field in ("exec_count", "ename", "evalue"))
    said = f"cell {cell}: {name}: {text}" if name else f"{type(error).__name__}: {error}"
    return re.sub(r"\x1b\[[0-9;]*m", "", said)


@contextlib.contextmanager
def _environment(entry: Entry, written: Path) -> Iterator[None]:
    """What the notebook's kernel inherits."""
    wanted = {"PSLAB_RESULTS": str(entry.results), VARIANT: entry.variant, PACKAGE: pslab.__file__,
              journal.JOURNAL: str(written), "PLOTLY_RENDERER": RENDERER, "PYDEVD_DISABLE_FILE_VALIDATION": "1"}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
