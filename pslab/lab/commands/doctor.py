"""pslab doctor: checks this machine for problems that would stop a new user, and prints advice."""

from __future__ import annotations

import argparse
import gzip
import hashlib
import importlib
import os
import platform
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

from pslab.config.available import free_memory_bytes, usable_cores
from pslab.lab.commands.finding import NOTE, OK, PROBLEM, SIGNS, Finding, line
from pslab.lab.runs import machine
from pslab.version import DISTRIBUTION

OLDEST_PYTHON = (3, 11)
MNIST = {  # sha256 of the four files, unpacked
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
WORKERS = 4  # the default of Run
FREE_DISK_BYTES = (100 * 10**6, 10**9)  # less than the first is a problem, less than the second a note


def add(verbs: Any) -> None:
    """Add the verb and its options."""
    verbs.add_parser("doctor", help="problems of this machine, with advice")


def main(options: argparse.Namespace) -> int:
    """Print the finding of each check; return the exit status: 1 if there is a problem, else 0."""
    counts = dict.fromkeys(SIGNS, 0)
    for finding in examine():
        counts[finding.state] += 1
        print(line(finding), flush=True)
    print(", ".join(f"{count} {SIGNS[state]}" for state, count in counts.items() if count))
    return 1 if counts[PROBLEM] else 0


def python() -> Finding:
    """Check that Python is new enough."""
    oldest = ".".join(map(str, OLDEST_PYTHON))
    if sys.version_info[:2] >= OLDEST_PYTHON:
        return Finding("python", OK, f"{platform.python_version()} at {sys.executable}")
    return Finding("python", PROBLEM, platform.python_version(), f"install Python {oldest} or newer, then `make test`")


def packages() -> Finding:
    """Check that the dependencies are installed in the required versions, and that torchvision can be imported."""
    from packaging.requirements import Requirement

    from pslab.tensors.workload.torchvision_ops import with_operators

    bad, count = [], 0
    for package in (DISTRIBUTION, "torchvision"):
        for requirement in map(Requirement, (requires(package) or []) if _version(package) else []):
            if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
                continue
            count, installed = count + 1, _version(requirement.name)
            if installed is None or not requirement.specifier.contains(installed, prereleases=True):
                bad.append(f"{requirement.name} {installed or 'missing'} ({package} needs {requirement.specifier})")
    if bad:
        advice = "pip install --editable . in the project's folder; torch and torchvision come from the same index"
        return Finding("packages", PROBLEM, "; ".join(bad), advice)
    with_operators(lambda: importlib.import_module("torchvision"))
    return Finding("packages", OK, f"{count} dependencies in the required versions; torch {_version('torch')}")


def data() -> Finding:
    """Check that the four files of MNIST exist and have the official digests."""
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
    """Check that this process may use a core for each worker of the default run."""
    count = usable_cores()
    if count >= WORKERS:
        return Finding("cores", OK, f"{count:g} may be used")
    text = f"{count:g} may be used, and the default run has {WORKERS} workers"
    advice = "runs that emulate a cluster go slower by themselves (Run.dilation); engine='virtual' never does"
    return Finding("cores", NOTE, text, advice)


def shared_memory() -> Finding:
    """Check that shared memory works, and whether it is anonymous; else pslab uses files in TMPDIR."""
    from pslab.engines.experiment.shared_memory import Arena

    arena = Arena()
    try:
        arena.reserve(1 << 20)
        arena.bytes(4096, 4)[:] = b"well"
        well = bytes(arena.bytes(4096, 4)) == b"well"
    finally:
        arena.close()
    if not well:
        return Finding("shared memory", PROBLEM, "written bytes are lost", "use a Linux kernel from 3.17")
    if not hasattr(os, "memfd_create"):
        return Finding("shared memory", NOTE, "no memfd_create: unlinked files in the temporary folder instead",
                       f"let TMPDIR (now {tempfile.gettempdir()}) be a folder in memory, such as /dev/shm")  # fmt: skip
    return Finding("shared memory", OK, "anonymous memory files work")


def memory() -> Finding:
    """Check that the free memory is enough for the processes of a default run."""
    importlib.import_module("torch")  # loaded in every process of a run; its memory is measured in this one
    free, resident = free_memory_bytes(), machine.resident_bytes()
    if free is None or resident is None:
        return Finding("memory", NOTE, "this system does not report its free memory", "use a tool of the system")
    needed = (WORKERS + 2) * resident  # 2: the server and this process
    text = f"{free / 1e9:.1f} GB free; six processes with torch take about {needed / 1e9:.1f} GB"
    if free < needed:
        return Finding("memory", NOTE, text, "close other programs or use fewer workers")
    return Finding("memory", OK, text)


def results() -> Finding:
    """Check that records can be written, and that enough disk space is free."""
    from pslab.lab.records.disk import free_bytes
    from pslab.lab.records.record import default_results

    folder = default_results()
    existing, free = free_bytes(folder)
    try:
        with tempfile.TemporaryFile(dir=existing) as file:
            file.write(b"pslab")
    except OSError as error:
        return Finding("results", PROBLEM, f"{folder} cannot be written to: {error.strerror or error}",
                       "change its permissions, or name another folder in PSLAB_RESULTS")  # fmt: skip
    text, advice = f"{folder} can be written to; {free / 1e9:.1f} GB free", "free some disk: a record takes megabytes"
    state = PROBLEM if free < FREE_DISK_BYTES[0] else NOTE if free < FREE_DISK_BYTES[1] else OK
    return Finding("results", state, text, "" if state == OK else advice)


CHECKS = (python, packages, memory, cores, shared_memory, data, results)


def examine() -> Iterator[Finding]:
    """Make each check and yield its finding; if a check raises, the finding is a problem."""
    for check in CHECKS:
        try:
            yield check()
        except Exception as error:  # a broken installation may raise anything
            name = check.__name__.replace("_", " ")
            first = (str(error).strip().splitlines() or [""])[0]
            yield Finding(name, PROBLEM, f"{type(error).__name__}: {first}",
                          "repair the named package, or set the environment up again: make clean test")  # fmt: skip


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
