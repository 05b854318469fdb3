"""python -m pslab figures: every figure's notebook, executed by papermill.

An executed notebook in results/notebooks/ has a stamp beside it that says from what it was made: the notebook, its
parameters, the records and the code that draws. What has an equal stamp, and its figures, is not executed again.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pslab.config.run import Run
from pslab.errors import ConfigError, PslabError, nearest
from pslab.lab.studies.notebook import PICTURES, UNFORESEEN, allowed, check_parameters, stem
from pslab.lab.studies.observation import Observation, Wanted, place_of, recorded
from pslab.lab.studies.studies import every_policy

FAMILIES, SYNCS = ("static", "std", "dynamic"), ("bsp", "ssp:3", "asp")
RATES = [0.125, 0.25, 0.5, 1.0]  # a grid for each policy: the best is the one in the middle, or the first with weight 1
HETEROGENEOUS: dict[str, Any] = {"preset": "lab-slow-net", "slow": {0: 2.0}}  # stalls for all, and one that is slow
IDENTITY = {"family", "sync", "live"}  # parameters that tell the batch's notebooks apart
DRAWING = ("plots", "studies", "live")
"""Rooms of the lab whose change redraws."""
DRAWING_SHARE = 0.25  # what executing a notebook that only draws takes, in runs on real processes
RUN_SHARES = {"virtual": 0.05, "timing": 0.03}  # ... and what runs in virtual time take, several at once
#: A single machine; grids of clusters and learning rates; studies of a few policies.
OTHER_KINDS = {"01_observation", "11_families", "25_ssp_tuning", "30_elastic", "40_eager", "50_order", "60_ranges",
               "70_rates"}  # fmt: skip
RENDERER = "plotly_mimetype+notebook"  # shows in JupyterLab, and in a converted page without a network


@dataclass(frozen=True)
class Job:
    """One notebook with its parameters, and where its results lie."""

    notebook: str
    values: dict[str, Any]
    sources: Path  #: the folder of the notebooks
    results: Path

    @cached_property
    def name(self) -> str:
        return stem(self.notebook, self.values)

    @cached_property
    def runs(self) -> Sequence[Wanted]:
        return check_parameters(self.notebook, self.values)

    @property
    def source(self) -> Path:
        return self.sources / f"{self.notebook}.ipynb"

    @property
    def executed(self) -> Path:
        return self.results / "notebooks" / f"{self.name}.ipynb"

    @property
    def pictures(self) -> list[Path]:
        """The figures, without suffix."""
        return [self.results / "figures" / f"{self.name}-{picture}" for picture in PICTURES[self.notebook]]

    def missing(self) -> list[Wanted]:
        """The runs that have no record yet."""
        return [run for run in self.runs if not recorded(run, self.results)]

    def stamp(self) -> dict[str, Any]:
        """From what the notebook is, or would be, made."""
        code = sorted(file for room in DRAWING for file in (Path(__file__).parents[1] / room).rglob("*.py"))
        manifests = {run.digest: place_of(run, self.results) / "manifest.json" for run in self.runs}
        return {
            "notebook": _sha(self.source),
            "parameters": {**allowed(self.notebook), **self.values},
            "records": {digest: _sha(path) for digest, path in manifests.items()},
            "drawing": [_sha(path) for path in code],
        }

    def done(self) -> bool:
        """Whether it was executed from just this, and its figures are there."""
        drawn = [path.with_name(f"{path.name}.{kind}") for path in self.pictures for kind in ("html", "json")]
        with contextlib.suppress(OSError, ValueError):
            stamped, fresh = self.executed.with_suffix(".json").read_text(), json.dumps(self.stamp())
            return all(path.is_file() for path in [self.executed, *drawn]) and json.loads(stamped) == json.loads(fresh)
        return False


def plan(sources: Path, results: Path) -> list[Job]:
    """The tour; pruning families under each policy; the policies side by side, each at its best rate too; gradients."""
    pruned = [Job("10_pruning", {"family": family, "sync": sync}, sources, results)
              for sync in SYNCS for family in FAMILIES]  # fmt: skip
    virtual = {"engine": "virtual", "seeds": [0, 1, 2]}
    # a narrow model over a tenth of the bandwidth: as much exchanging for as much computing
    best = {**virtual, "model": "mlp:64", "policies": every_policy(), "learning_rate": RATES,
            "push_weights": [None, 1.0], "cluster": HETEROGENEOUS}  # fmt: skip
    once = ("11_families", "20_sync_policies", "25_ssp_tuning", "70_rates", "30_elastic", "40_eager", "50_order",
            "60_ranges", "05_virtual_and_real", "01_observation")  # fmt: skip
    others = [Job(notebook, {}, sources, results) for notebook in once]
    compared = Job("20_sync_policies", best, sources, results)
    return [Job("00_tour", {"live": False}, sources, results), *pruned, *others, compared]


def add(verbs: Any) -> None:
    """The verb and its options."""
    parser = verbs.add_parser("figures", help="execute the notebooks through papermill and export their figures")
    parser.add_argument("--results", type=Path, help="where records, figures and notebooks go (default: results/)")
    parser.add_argument("--notebooks", type=Path, help="where the notebooks are (default: the project's)")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="a notebook, or one of its figures")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a parameter, read as YAML")
    parser.add_argument("--jobs", type=int, default=2, help="notebooks at once where nothing is left to run")
    parser.add_argument("--no-images", dest="images", action="store_false", help="no PNG, SVG and PDF")


def main(options: argparse.Namespace) -> int:
    """Execute what is not up to date; exit status 1 if a notebook failed, 2 for bad parameters."""
    try:
        return _batch(chosen(options), options.jobs, options.images)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("interrupted; what is completed is kept, the next call goes on") from None


def chosen(options: argparse.Namespace) -> list[Job]:
    """The jobs that the options name, with the parameters that they set, all of them checked.

    Raises:
        ConfigError: a name that is no notebook or figure, a parameter that a chosen notebook does not have.
    """
    from pslab.lab.records.record import default_results

    sources = options.notebooks or _notebooks()
    jobs = plan(sources.resolve(), (options.results or default_results()).resolve())
    if options.jobs < 1:
        raise ConfigError("jobs", options.jobs, "must be at least 1")
    for name in options.only:
        if not any(name in (job.name, job.notebook) for job in jobs):
            raise ConfigError("only", name, nearest(name, [job.name for job in jobs] + list(PICTURES)))
    jobs = [job for job in jobs if not options.only or {job.name, job.notebook} & set(options.only)]
    values = dict(_assignment(text) for text in options.set)
    for name in IDENTITY & set(values):
        raise ConfigError(name, values[name], "the batch goes through these itself; choose with --only")
    jobs = [job for job in jobs if not set(job.values) & set(values)]  # what such a job shows is just that value
    if not jobs:
        raise ConfigError("set", sorted(values), "the chosen notebooks have their own values of these")
    given = {notebook: _concerning(notebook, values, jobs) for notebook in {job.notebook for job in jobs}}
    jobs = [Job(job.notebook, {**job.values, **given[job.notebook]}, job.sources, job.results) for job in jobs]
    for notebook in {job.notebook for job in jobs}:
        _check_source(next(job.source for job in jobs if job.notebook == notebook))
    for job in jobs:
        _ = job.runs  # refuses parameters before anything runs
    if values:
        _resolve(jobs)
    return jobs


def _concerning(notebook: str, values: dict[str, Any], jobs: Sequence[Job]) -> dict[str, Any]:
    """The values but those that all studies of one cluster have and another kind of study has not, such as workers."""
    runs = {job.notebook for job in jobs} - OTHER_KINDS
    cluster = set.intersection(*(set(allowed(name)) for name in runs)) if runs else set()
    return {name: value for name, value in values.items() if name in allowed(notebook) or name not in cluster}


def _notebooks() -> Path:
    for folder in (Path.cwd(), *Path.cwd().parents, *Path(__file__).parents):
        if (folder / "notebooks" / "10_pruning.ipynb").is_file():
            return folder / "notebooks"
    raise ConfigError("notebooks", None, "not found from here: name their folder with --notebooks")


def _assignment(text: str) -> tuple[str, Any]:
    import yaml

    name, equals, value = text.partition("=")
    if not equals:
        raise ConfigError("set", text, "must be NAME=VALUE")
    try:
        return name, _numbers(yaml.safe_load(value))
    except yaml.YAMLError:
        raise ConfigError("set", text, "its value is not YAML") from None


def _numbers(value: Any) -> Any:
    """YAML reads 1e9 as text; people mean a number."""
    if isinstance(value, dict):
        return {key: _numbers(item) for key, item in value.items()}
    if isinstance(value, str) and re.fullmatch(r"[+-]?\d+(\.\d*)?[eE][+-]?\d+", value):
        return float(value)
    return value


def _check_source(source: Path) -> None:
    """papermill only warns of parameters that a notebook does not have: its cell must name what the study takes."""
    import papermill

    names = set(papermill.inspect_notebook(str(source)))
    if names != (expected := set(allowed(source.stem))):
        raise ConfigError("notebook", str(source), f"its cell of parameters differs in {sorted(names ^ expected)}")


def _resolve(jobs: Sequence[Job]) -> None:
    missing = {run.digest: run for job in jobs for run in job.missing()}
    if missing:
        from pslab.lab.runs.resolve import resolve
        from pslab.lab.studies.observe import check  # torch

        for run in missing.values():
            if isinstance(run, Run):
                resolve(run)
            elif isinstance(run, Observation):
                check(run)


def _batch(jobs: Sequence[Job], at_once: int, images: bool) -> int:
    """All runs, in one pool; notebooks that have more to run one after another; those that only draw; all images."""
    begin, todo = time.monotonic(), [job for job in jobs if not job.done()]
    watch = _Watch(todo)
    failed: list[str] = []
    drawing = []
    with _kernels(jobs[0].results), watch:
        _run(todo)
        for job in todo:
            if job.missing() or job.notebook in UNFORESEEN:
                _execute(job, watch, failed)
            else:
                drawing.append(job)
        with ThreadPoolExecutor(at_once) as pool:
            list(pool.map(lambda job: _execute(job, watch, failed), drawing))
    made = [job for job in jobs if job.name not in failed]
    if images:
        _images(made)
    kept = len(jobs) - len(todo)
    print(f"{len(todo) - len(failed)} notebooks executed, {kept} up to date, {len(failed)} failed, "
          f"{time.monotonic() - begin:.0f} s; figures in {jobs[0].results / 'figures'}")  # fmt: skip
    return 1 if failed else 0


def _run(jobs: Sequence[Job]) -> None:
    """What notebooks would run, without a pool for each. What fails, fails again in its notebook, where it is said."""
    if not any(isinstance(run, Run) for job in jobs for run in job.missing()):
        return
    from pslab.engines.processes import pool
    from pslab.lab.runs.run import sweep

    for job in jobs:
        with contextlib.suppress(PslabError):
            sweep([run for run in job.missing() if isinstance(run, Run)], results=job.results, progress=False)
    pool.release()


def _execute(job: Job, watch: _Watch, failed: list[str]) -> None:
    """Execute into a draft, which takes its place when it is whole; a failure is said and does not end the batch."""
    begin = time.monotonic()
    draft = job.executed.with_name(f".{job.name}.partial.ipynb")
    try:
        job.executed.parent.mkdir(parents=True, exist_ok=True)
        _papermill(job, draft)
        from pslab.lab.plots.export import replace

        replace(job.executed, _whole(draft))
        replace(job.executed.with_suffix(".json"), (json.dumps(job.stamp(), indent=1, sort_keys=True) + "\n").encode())
        job.executed.with_suffix(".failed.ipynb").unlink(missing_ok=True)
        draft.unlink()
    except Exception as error:  # a cell may raise anything
        failed.append(job.name)
        left = job.executed.with_suffix(".failed.ipynb")
        with contextlib.suppress(OSError):
            draft.replace(left)
        watch.say(f"{job.name} failed: {_reason(error)}" + (f"\n  its cells are in {left}" if left.is_file() else ""))
        return
    watch.finish(job, time.monotonic() - begin)


def _papermill(job: Job, draft: Path) -> None:
    import papermill
    from traitlets.config import Config

    # sockets in a folder of its own: two kernels that start at once would take the same ones
    with tempfile.TemporaryDirectory(prefix="pslab-kernel-") as folder:
        papermill.execute_notebook(
            str(job.source), str(draft), parameters=job.values, kernel_name="python3", progress_bar=False,
            cwd=str(job.sources), config=Config(KernelManager={"transport": "ipc", "ip": f"{folder}/socket"}),
        )  # fmt: skip


def _whole(draft: Path) -> bytes:
    """The executed notebook. papermill writes half a one to a full disk without a word."""
    import nbformat

    content = draft.read_bytes()
    cells: Any = nbformat.reads(content.decode(), as_version=4).cells  # type: ignore[no-untyped-call]
    if any(cell.cell_type == "code" and cell.execution_count is None for cell in cells):
        raise PslabError(f"{draft} has cells that were not executed")
    return content


def _reason(error: Exception) -> str:
    """What the failing cell said, without colours and without its traceback."""
    cell, name, text = (getattr(error, field, None) for field in ("exec_count", "ename", "evalue"))
    said = f"cell {cell}: {name}: {text}" if name else f"{type(error).__name__}: {error}"
    return re.sub(r"\x1b\[[0-9;]*m", "", said)


@contextlib.contextmanager
def _kernels(results: Path) -> Iterator[None]:
    """What the notebooks' kernels inherit."""
    wanted = {"PSLAB_RESULTS": str(results), "PLOTLY_RENDERER": RENDERER, "PYDEVD_DISABLE_FILE_VALIDATION": "1"}
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


def _images(jobs: Sequence[Job]) -> None:
    """Export what has no image, or an older one than its figure."""
    from pslab.lab.plots import export

    def old(picture: Path) -> bool:
        drawn_s = picture.with_name(f"{picture.name}.json").stat().st_mtime
        images = [picture.with_name(f"{picture.name}.{kind}") for kind in export.FORMATS]
        return any(not image.is_file() or image.stat().st_mtime < drawn_s for image in images)

    stale = [picture for job in jobs for picture in job.pictures if old(picture)]
    written = export.write_images((picture.with_name(f"{picture.name}.json"), picture) for picture in stale)
    for path in written:
        os.utime(path)  # an image that came out equal was not written, but is not old


def _sha(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "missing"


class _Watch:
    """Progress over the whole batch: a line that rewrites itself on a terminal, plain lines now and then elsewhere."""

    def __init__(self, todo: Sequence[Job]) -> None:
        self._results = todo[0].results if todo else Path()
        self._notebooks, self._executed = len(todo), 0
        self._missing = {place_of(run, self._results): RUN_SHARES.get(getattr(run, "engine", ""), 1.0)
                         for job in todo for run in job.missing()}  # fmt: skip
        self._live = sys.stderr.isatty()
        self._begin_s, self._ended, self._lock = time.monotonic(), threading.Event(), threading.Lock()
        self._thread = threading.Thread(target=self._show, daemon=True)

    def __enter__(self) -> _Watch:
        if self._notebooks:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._notebooks:
            self._thread.join()
            self._print("\r\x1b[K" if self._live else "", end="")

    def finish(self, job: Job, seconds: float) -> None:
        """A notebook is executed."""
        self._executed += 1
        self.say(f"[{self._executed}/{self._notebooks}] {job.name}: {seconds:.0f} s")

    def say(self, text: str) -> None:
        """A line that stays, and how far the batch is."""
        self._print(f"\r\x1b[K{text}" if self._live else f"{text}; {self.line()}")

    def line(self) -> str:
        """How far the batch is, and when it may end."""
        there = [share for place, share in self._missing.items() if (place / "manifest.json").is_file()]
        spent = time.monotonic() - self._begin_s
        done = sum(there) + DRAWING_SHARE * self._executed
        whole = sum(self._missing.values()) + DRAWING_SHARE * self._notebooks
        words = [f"notebooks {self._executed}/{self._notebooks}"]
        if self._missing:
            words.insert(0, f"runs {len(there)}/{len(self._missing)}")
        if 0 < done < whole:
            words.append(f"about {max(1, round(spent * (whole - done) / done))} s left")
        return "; ".join(words)

    def _show(self) -> None:
        while not self._ended.wait(1.0 if self._live else 30.0):
            self._print(f"\r\x1b[K{self.line()}" if self._live else self.line(), end="" if self._live else "\n")

    def _print(self, text: str, end: str = "\n") -> None:
        with self._lock:
            print(text, end=end, file=sys.stderr, flush=True)
