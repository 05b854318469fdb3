"""pslab doctor: the problems of this machine, or of a cluster's hosts, and what to do about each."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import gzip
import hashlib
import importlib
import io
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

from pslab.config import products
from pslab.config.free_memory import free_memory_bytes
from pslab.errors import ConfigError
from pslab.lab.commands.finding import NOTE, OK, PROBLEM, SIGNS, Finding, line
from pslab.lab.runs import machine
from pslab.version import DISTRIBUTION

OLDEST_PYTHON = (3, 11)
MODELS = ("resnet18", "vgg11")
MNIST = {  # sha256 of the four files, unpacked
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
WORKERS = (1, 2, 4, 8)
FREE_DISK_BYTES = (100 * 10**6, 10**9)  # less is a problem, less is a note
GET_BROWSER = "apt-get install chromium, or plotly_get_chrome (kaleido's); BROWSER_PATH names another"


def add(verbs: Any) -> None:
    """The verb and its options."""
    parser = verbs.add_parser("doctor", help="problems of this machine, or of a cluster's hosts, with advice")
    parser.add_argument("--cluster", metavar="FILE", help="examine the hosts of this cluster.yaml, or of: loopback")
    parser.add_argument("--write", metavar="FILE", help="write a run in virtual time that predicts it, as YAML")
    parser.add_argument("--json", action="store_true", help="as JSON")


def main(options: argparse.Namespace) -> int:
    """Print the finding of each check; exit status 1 if there is a problem.

    Raises:
        ConfigError: the cluster is none, or is this machine's shared memory; there is a file to write and no cluster.
    """
    if options.write and not options.cluster:
        raise ConfigError("write", options.write, "is for what --cluster FILE, or --cluster loopback, predicts")
    findings = examine()
    if options.cluster:
        from pslab.lab.commands import doctor_hosts

        findings = doctor_hosts.examine(options.cluster, options.write)
    found = []
    for finding in findings:
        found.append(finding)
        if not options.json:
            print(line(finding), flush=True)
    counts = {state: sum(finding.state == state for finding in found) for state in SIGNS}
    if options.json:
        print(json.dumps([dataclasses.asdict(finding) for finding in found], indent=1))
    else:
        print(", ".join(f"{count} {SIGNS[state]}" for state, count in counts.items() if count))
    return 1 if counts[PROBLEM] else 0


def python() -> Finding:
    """The interpreter's version."""
    oldest = ".".join(map(str, OLDEST_PYTHON))
    if sys.version_info[:2] >= OLDEST_PYTHON:
        return Finding("python", OK, f"{platform.python_version()} at {sys.executable}")
    return Finding("python", PROBLEM, platform.python_version(), f"install Python {oldest} or newer, then `make test`")


def packages() -> Finding:
    """The dependencies of the project, and the torch that torchvision was built for, as installed."""
    from packaging.requirements import Requirement

    bad, count = [], 0
    for package in (DISTRIBUTION, "torchvision"):
        for requirement in map(Requirement, (requires(package) or []) if _version(package) else []):
            if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
                continue
            count, found = count + 1, _version(requirement.name)
            if found is None or not requirement.specifier.contains(found, prereleases=True):
                bad.append(f"{requirement.name} {found or 'missing'} ({package} needs {requirement.specifier})")
    if bad:
        advice = "pip install --editable . in the project's folder; torch and torchvision come from the same index"
        return Finding("packages", PROBLEM, "; ".join(bad), advice)
    return Finding("packages", OK, f"{count} dependencies as they are asked for; torch {_version('torch')}")


def torchvision() -> Finding:
    """Whether torchvision loads, plainly or with its compiled operators declared, and its models can be built."""
    import torch

    from pslab.tensors.workload.models import build_model
    from pslab.tensors.workload.torchvision_ops import with_operators

    attempts = 0

    def load() -> Any:
        nonlocal attempts
        attempts += 1
        return importlib.import_module("torchvision")

    with_operators(load)
    with torch.device("meta"):  # no memory for weights that are never used
        for name in MODELS:
            build_model(f"torchvision:{name}", 0)
    way = "plainly" if attempts == 1 else "with pslab's declared operators beside this build of torch"
    found = f"{_version('torchvision')} loads {way}; {' and '.join(MODELS)} can be built"
    return Finding("torchvision", OK, found)


def cuda() -> Finding:
    """GPUs with their memory; none is well, too."""
    import torch

    if not torch.cuda.is_available():
        if Path("/proc/driver/nvidia/version").exists():
            return Finding("cuda", NOTE, "a driver is installed, but torch sees no GPU: runs use the CPU",
                           "install a CUDA build of torch and torchvision: see pytorch.org/get-started")  # fmt: skip
        return Finding("cuda", OK, "none: runs use the CPU")
    found = []
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        found.append(f"{torch.cuda.get_device_name(index)}, {free / 2**30:.0f} of {total / 2**30:.0f} GiB free")
    return Finding("cuda", OK, "; ".join(found))


def browser() -> Finding:
    """Whether figures can be exported as PNG, SVG and PDF: one is exported."""
    import plotly.graph_objects as go

    from pslab.lab.plots import export

    path = export.browser()
    if not path:
        return Finding("browser", NOTE, "no Chrome or Chromium: HTML and JSON figures only", GET_BROWSER)

    start_s, printed = time.monotonic(), io.StringIO()
    with tempfile.TemporaryDirectory(prefix="pslab-doctor-") as folder, contextlib.redirect_stderr(printed):
        written = export.write_images([(go.Figure(), Path(folder) / "figure")], ("png",))
    if not written:
        return Finding("browser", NOTE, f"{path} exports nothing: {printed.getvalue().strip()}", GET_BROWSER)
    return Finding("browser", OK, f"{path}; a figure took {time.monotonic() - start_s:.1f} s")


def data() -> Finding:
    """The four files of MNIST, compared with the official digests."""
    from pslab.tensors.datasets.mnist import RAW
    from pslab.tensors.workload.data import data_root

    raw = data_root() / RAW
    missing, changed = [], []
    for name, digest in MNIST.items():
        plain, packed = raw / name, raw / f"{name}.gz"
        if not plain.is_file() and not packed.is_file():
            missing.append(name)
        elif _sha256(plain if plain.is_file() else packed) != digest:
            changed.append(name)
    words = [f"missing: {', '.join(missing)}"] if missing else []
    words += [f"not the official files: {', '.join(changed)}"] if changed else []
    if words:
        return Finding("data", PROBLEM, f"{raw}: {'; '.join(words)}",
                       "git checkout data/MNIST, or name another folder in PSLAB_DATA: see data/README.md")  # fmt: skip
    return Finding("data", OK, f"MNIST is complete, at {raw}")


def cores() -> Finding:
    """How short a modelled computation may be for these cores to keep up with every worker."""
    from pslab.config.cluster import PRESETS

    count, (gradient_s, apply_s) = machine.usable_cores(), machine.measure()
    shortest = {workers: machine.shortest_compute_s(workers, count, gradient_s, apply_s) for workers in WORKERS}
    each = ", ".join(f"{workers}: {1000 * s:.1f} ms" for workers, s in shortest.items())
    found = (f"{count:g} cores; {products.here()} multiplies matrices of runs; "
             f"a gradient of the MLP takes {1000 * gradient_s:.1f} ms on one by torch itself; "
             f"the shortest compute_s that can be emulated, by workers: {each}")  # fmt: skip
    usual_s = PRESETS["lab"]["compute_s"]
    if shortest[4] <= usual_s:
        return Finding("cores", OK, found)
    advice = f"with 4 workers set cluster={{'preset': 'lab', 'compute_s': {_rounded_up(shortest[4]):g}}}, or use fewer"
    return Finding("cores", NOTE, found, advice)


def emulation() -> Finding:
    """Which emulated clusters this machine keeps up with now, and by how much the others run slower: by a rehearsal."""
    from pslab.config.cluster import PRESETS, resolve_cluster
    from pslab.config.run import Run
    from pslab.engines.local.engine import rehearse
    from pslab.lab.runs.resolve import resolve

    runs = {name: Run(cluster=name) for name in PRESETS if resolve_cluster(name).emulated}
    experiments = {name: resolve(run) for name, run in runs.items()}
    pace = rehearse(experiments["lab"])
    needed = {name: pace.dilation(experiment) for name, experiment in experiments.items()}
    kept, slower = [n for n, k in needed.items() if k == 1], [f"{n} ×{k:g}" for n, k in needed.items() if k > 1]
    measured = f"a gradient takes {1000 * pace.gradient_s:.1f} ms, a message is {1000 * pace.late_s:.1f} ms late"
    found = f"{runs['lab'].workers} workers side by side: {measured}; in their own seconds: {', '.join(kept) or 'none'}"
    if not slower:
        return Finding("emulation", OK, found)
    advice = "they run slower by themselves (Run.dilation); stop other programs, or use fewer workers"
    return Finding("emulation", NOTE, f"{found}; slower: {', '.join(slower)}", advice)


def shared_memory() -> Finding:
    """Whether anonymous shared memory can be reserved, written and read."""
    import torch

    from pslab.engines.experiment.shared_memory import Arena

    arena = Arena()
    try:
        arena.reserve(1 << 20)
        arena.tensor(4096, 1024, torch.float32).fill_(1.5)
        well = bytes(arena.bytes(4096, 4)) == b"\x00\x00\xc0\x3f"
    finally:
        arena.close()
    if not well:
        return Finding("shared memory", PROBLEM, "it does not keep what is written", "use a Linux kernel from 3.17")
    if not hasattr(os, "memfd_create"):
        return Finding("shared memory", NOTE, "no memfd_create: unlinked files in the temporary folder instead",
                       f"let TMPDIR (now {tempfile.gettempdir()}) be a folder in memory")  # fmt: skip
    return Finding("shared memory", OK, "anonymous memory files work")


def memory() -> Finding:
    """Free memory, and what a run of four workers takes."""
    importlib.import_module("torch")  # every process of a run loads it: that is what is measured
    free, each = free_memory_bytes(), machine.resident_bytes()
    if free is None or each is None:
        return Finding("memory", NOTE, "this system does not say how much is free", "look with a tool of the system")
    needed = 6 * each  # four workers, the server, this process
    found = f"{free / 1e9:.1f} GB free; six processes with torch take about {needed / 1e9:.1f} GB"
    if free < needed:
        return Finding("memory", NOTE, found, "close other programs or use fewer workers")
    return Finding("memory", OK, found)


def results() -> Finding:
    """Whether records can be written, and on how much free disk."""
    from pslab.lab.records.disk import free_bytes
    from pslab.lab.records.record import default_results

    place = default_results()
    existing, free = free_bytes(place)
    try:
        with tempfile.TemporaryFile(dir=existing) as file:
            file.write(b"pslab")
    except OSError as error:
        return Finding("results", PROBLEM, f"{place} cannot be written to: {error.strerror or error}",
                       "change its permissions, or name another folder in PSLAB_RESULTS")  # fmt: skip
    found, advice = f"{place} can be written to; {free / 1e9:.1f} GB free", "free some disk: a record takes megabytes"
    state = PROBLEM if free < FREE_DISK_BYTES[0] else NOTE if free < FREE_DISK_BYTES[1] else OK
    return Finding("results", state, found, "" if state == OK else advice)


CHECKS = (python, packages, memory, torchvision, cuda, cores, emulation, shared_memory, data, results, browser)


def examine() -> Iterator[Finding]:
    """Each check's finding, as soon as it is made; what a check raises is its finding."""
    for check in CHECKS:
        try:
            yield check()
        except Exception as error:  # a broken installation raises anything
            name = check.__name__.replace("_", " ")
            first = (str(error).strip().splitlines() or [""])[0]
            yield Finding(name, PROBLEM, f"{type(error).__name__}: {first}",
                          "repair what is named here, or set the environment up again: make clean test")  # fmt: skip


def _rounded_up(seconds: float) -> float:
    return -(-int(seconds * 1e6) // 5000) * 5e-3


def _sha256(path: Path) -> str:
    found = hashlib.sha256()
    with (gzip.open(path) if path.suffix == ".gz" else path.open("rb")) as file:
        while chunk := file.read(1 << 20):
            found.update(chunk)
    return found.hexdigest()


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
