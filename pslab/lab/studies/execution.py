"""The execution of a notebook of the batch, by papermill in a separate kernel."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pslab.errors import PslabError, Unwritable
from pslab.lab.records import journal
from pslab.lab.runs.progress import in_words
from pslab.lab.runs.run import AGAIN
from pslab.lab.studies.batch import SUFFIXES, BatchEntry
from pslab.lab.studies.figures import NO_IMAGES, VARIANT
from pslab.lab.studies.parameters import PACKAGE
from pslab.version import SOURCE

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
RENDERER = "plotly_mimetype+notebook"  # works in JupyterLab, and offline in a converted page


def execute(entry: BatchEntry, watch: BatchProgress, *, again: bool = False) -> float:
    """Execute a notebook into a draft, which replaces the executed notebook once complete; return the seconds taken.

    With `again`, recorded runs whose emulation was not kept are executed again.
    """
    from pslab.lab.records.disk import write_file

    begun_s, before = time.monotonic(), entry.figures
    draft = entry.executed.with_name(f".{entry.name}.partial.ipynb")
    entry.executed.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="pslab-kernel-") as home:
        begun_ns = Path(home).stat().st_mtime_ns  # by the file system's clock, to detect later edits of the notebook
        written = Path(home) / "journal"
        watch.start(entry, written)
        try:
            with _environment(entry, written, again):
                _papermill(entry, draft, Path(home))
            content = _whole(draft)
        except Exception:
            with contextlib.suppress(OSError):
                draft.replace(entry.executed.with_suffix(".failed.ipynb"))
            raise
        finally:
            watch.stop()
            draft.unlink(missing_ok=True)
        stamp = entry.stamp_of(journal.entries(written), begun_ns, time.monotonic() - begun_s)
    write_file(entry.executed, content)
    write_file(entry.stamped, (json.dumps(stamp, indent=1, sort_keys=True) + "\n").encode())
    vars(entry).pop("stamp", None)  # the cached stamp is outdated
    entry.executed.with_suffix(".failed.ipynb").unlink(missing_ok=True)
    for figure in set(before) - set(entry.figures):  # figures that the notebook no longer draws
        for suffix in SUFFIXES:
            figure.with_name(f"{figure.name}.{suffix}").unlink(missing_ok=True)
    return time.monotonic() - begun_s


def _papermill(entry: BatchEntry, draft: Path, home: Path) -> None:
    import papermill
    from traitlets.config import Config

    logging.getLogger("papermill").setLevel(logging.ERROR)  # it warns of parameters on several lines
    # a socket in a private folder, because every user of the machine could reach a kernel over TCP
    papermill.execute_notebook(
        str(entry.source), str(draft), parameters=dict(entry.values), kernel_name="python3", progress_bar=False,
        cwd=str(entry.sources), config=Config(KernelManager={"transport": "ipc", "ip": f"{home}/socket"}),
    )  # fmt: skip


def _whole(draft: Path) -> bytes:
    """Return the executed notebook; check that it is complete, because on a full disk papermill writes only a part."""
    import nbformat

    content = draft.read_bytes()
    cells: Any = nbformat.reads(content.decode(), as_version=4).cells  # type: ignore[no-untyped-call]
    if any(cell.cell_type == "code" and cell.execution_count is None for cell in cells):
        raise PslabError(f"{draft} has cells that were not executed: free some disk space, and execute it again")
    return content


def reason(error: Exception) -> str:
    """Return the error of the failed cell on a notebook's execution, without colours and traceback."""
    cell, name, value = (getattr(error, field, None) for field in ("exec_count", "ename", "evalue"))
    text = f"cell {cell}: {name}: {value}" if name else f"{type(error).__name__}: {error}"
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def unwritable(error: Exception) -> bool:
    """Whether results cannot be written, so that every other notebook would fail, too."""
    kinds = type(error).__name__, getattr(error, "ename", "")  # raised here, or in the notebook's kernel
    return Unwritable.__name__ in kinds or getattr(error, "errno", None) in NO_ROOM


@contextlib.contextmanager
def _environment(entry: BatchEntry, written: Path, again: bool) -> Iterator[None]:
    wanted = {
        "PSLAB_RESULTS": str(entry.results),
        VARIANT: entry.variant,
        NO_IMAGES: "1",
        PACKAGE: str(SOURCE),
        journal.JOURNAL: str(written),
        "PLOTLY_RENDERER": RENDERER,
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
    }
    wanted |= {AGAIN: "1"} if again else {}
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


class BatchProgress:
    """Shows the progress of the current notebook, from its kernel's journal, and the expected time of the rest."""

    def __init__(self, todo: Sequence[BatchEntry]) -> None:
        self._todo, self._place = list(todo), 0
        self._journal: Path | None = None
        self._live = sys.stderr.isatty()
        self._ended, self._lock = threading.Event(), threading.Lock()
        self._thread = threading.Thread(target=self._show, daemon=True)

    def __enter__(self) -> BatchProgress:
        if self._todo:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._todo:
            self._thread.join()
            self._print("\r\x1b[K" if self._live else "", end="")

    def start(self, entry: BatchEntry, written: Path) -> None:
        """Show the progress of this notebook, whose kernel writes its journal to the file `written`."""
        self._place, self._journal = self._todo.index(entry) + 1, written

    def stop(self) -> None:
        """Stop reading the journal, because the kernel has ended."""
        self._journal = None

    def say(self, text: str) -> None:
        """Print a line that the display of progress does not overwrite."""
        self._print(f"\r\x1b[K{text}" if self._live else text)

    def line(self) -> str:
        """Return the progress of the current notebook, and the number and expected time of the rest, on one line."""
        at = max(1, self._place)
        words = [f"[{at}/{len(self._todo)}] {self._todo[at - 1].name}: {self._sweeping()}"]
        later = [other.expected_s() for other in self._todo[at:]]
        known = [seconds for seconds in later if seconds is not None]
        if later:
            ahead = [f"then {len(later)} notebook{'s' if len(later) > 1 else ''}"]
            ahead += [f"about {in_words(sum(known))}"] if known else []
            ahead += [f"{len(later) - len(known)} never executed"] if len(known) < len(later) else []
            words.append(", ".join(ahead))
        return "; ".join(words)

    def _sweeping(self) -> str:
        sweeps = journal.entries(self._journal) if self._journal else []
        sweeping = [entry for entry in sweeps if {"progress", "asked", "swept_s"} & set(entry)]
        latest: dict[str, Any] = sweeping[-1] if sweeping else {}
        if latest.get("missing"):
            return f"{latest['missing']} runs"
        if "progress" not in latest:
            return "draws" if sweeps else "images" if self._place and not self._journal else "starts"
        at = latest["progress"]
        left = "" if at["left_s"] is None else f", about {in_words(at['left_s'])} left"
        return f"run {min(at['done'] + 1, at['of'])}/{at['of']}{left}"

    def _show(self) -> None:
        while not self._ended.wait(1.0 if self._live else 30.0):
            self._print(f"\r\x1b[K{self.line()}" if self._live else self.line(), end="" if self._live else "\n")

    def _print(self, text: str, end: str = "\n") -> None:
        with self._lock:
            print(text, end=end, file=sys.stderr, flush=True)
