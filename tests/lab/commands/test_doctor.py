"""The doctor: each check well here, and each failure provoked, with what to do about it."""

from __future__ import annotations

import gzip
import importlib.metadata
import os
import shutil
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from pslab.__main__ import main
from pslab.lab.commands import doctor
from pslab.lab.commands.finding import NOTE, OK, PROBLEM, Finding

Patch = pytest.MonkeyPatch
ROOT = Path(__file__).parents[3]
Usage = namedtuple("Usage", "total used free")


def versions(**changed: str | None) -> Callable[[str], str]:
    """The installed versions but for some."""
    real = importlib.metadata.version

    def version(name: str) -> str:
        if (found := changed.get(name, real(name))) is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return found

    return version


MACHINE, COMMAND = "pslab.lab.runs.machine", "pslab.lab.commands.doctor"
VERSION, FREE = f"{COMMAND}.version", f"{COMMAND}.free_memory_bytes"
LOADED = "pslab.tensors.workload.torchvision_ops.with_operators"
ODD = versions(cloudpickle="0.2.1", papermill=None, torch="2.1.0+cpu")
LOST = {"pslab.engines.experiment.shared_memory.Arena.bytes": lambda self, offset, size: memoryview(bytearray(size))}


def raises(error: Exception) -> Mock:
    return Mock(side_effect=error)


def memory(free: int) -> dict[str, Any]:
    return {f"{MACHINE}.resident_bytes": lambda: 250_000_000, FREE: lambda: free}


def disk(free: int) -> dict[str, Any]:
    return {"shutil.disk_usage": lambda _: Usage(10**12, 10**12 - free, free)}


#: A check, what is otherwise than here, and its finding: its state, and words of what it found and advises.
FOUND: list[tuple[Callable[[], Finding], dict[str, Any], str, list[str]]] = [
    (doctor.python, {"sys.version_info": (3, 10, 4)}, PROBLEM, ["3.11"]),
    (doctor.packages, {VERSION: ODD}, PROBLEM, [
        "cloudpickle 0.2.1 (pslab-workbench needs >=3.0)", "papermill missing", "pip install",
        "torch 2.1.0+cpu (torchvision needs =="]),
    (doctor.packages, {LOADED: raises(RuntimeError("operator torchvision::odd\nat length"))},
     PROBLEM, ["RuntimeError: operator torchvision::odd"]),
    (doctor.cores, {"pslab.lab.commands.doctor.usable_cores": lambda: 4.0}, OK, ["4 may be used"]),
    (doctor.cores, {"pslab.lab.commands.doctor.usable_cores": lambda: 1.5}, NOTE, ["1.5 may", "dilation"]),
    (doctor.shared_memory, LOST, PROBLEM, ["bytes are lost"]),
    (doctor.shared_memory, {"os.memfd_create": raises(OSError(38, "Function not implemented"))}, PROBLEM,
     ["OSError: [Errno 38] Function not implemented"]),
    (doctor.memory, memory(2_000_000_000), OK, []), (doctor.memory, {FREE: lambda: None}, NOTE, []),
    (doctor.memory, memory(1_000_000_000), NOTE, ["1.0 GB free; six processes with torch take about 1.5 GB"]),
    (doctor.results, disk(5 * 10**8), NOTE, []), (doctor.results, disk(5 * 10**7), PROBLEM, []),
    (doctor.results, {"tempfile.TemporaryFile": raises(PermissionError(13, "Permission denied"))}, PROBLEM,
     ["Permission denied", "PSLAB_RESULTS"]),
]  # fmt: skip


def test_what_is_otherwise_than_here_is_found(tmp_path: Path, monkeypatch: Patch):
    monkeypatch.setenv("PSLAB_RESULTS", str(tmp_path / "not" / "yet" / "there"))
    for check, others, state, words in FOUND:
        with monkeypatch.context() as patch:
            patch.setattr(doctor, "CHECKS", (check,))
            for name, value in others.items():
                patch.setattr(name, value)
            (found,) = doctor.examine()
        assert found.state == state, found
        assert all(each in found.text + found.advice for each in words), found
        assert bool(found.advice) == (state != OK)
    assert not list(tmp_path.iterdir())


def test_this_machine_is_well_but_without_mnist_or_memory_files(tmp_path: Path, monkeypatch: Patch):
    assert {check().state for check in (doctor.python, doctor.packages, doctor.data, doctor.shared_memory)} == {OK}
    text = (ROOT / "data" / "README.md").read_text()
    assert all(f"| {name} |" in text and digest in text for name, digest in doctor.MNIST.items())
    raw = tmp_path / "MNIST" / "raw"
    shutil.copytree(ROOT / "data" / "MNIST" / "raw", raw)
    monkeypatch.setenv("PSLAB_DATA", str(tmp_path))
    assert doctor.data().state == OK
    for file in (*raw.glob("train-labels-idx1-ubyte*"), *raw.glob("t10k-labels-idx1-ubyte*")):
        file.unlink()
    with gzip.open(raw / "t10k-labels-idx1-ubyte.gz", "wb") as packed:
        packed.write(b"something else")
    found = doctor.data()
    assert found.state == PROBLEM
    assert "missing: train-labels-idx1-ubyte;" in found.text
    assert "not the official files: t10k-labels-idx1-ubyte" in found.text
    assert "PSLAB_DATA" in found.advice
    monkeypatch.delattr(os, "memfd_create")
    assert doctor.shared_memory().state == NOTE


def test_a_problem_is_exit_status_1(monkeypatch: Patch, capsys: pytest.CaptureFixture):
    def some_thing() -> Finding:
        raise ValueError

    well, noted = Finding("one", OK, "as it should be"), Finding("two", NOTE, "so so " * 30, "do this " * 15)
    monkeypatch.setattr(doctor, "CHECKS", (lambda: well, lambda: noted))
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert (out[0], out[-1]) == ("ok       one            as it should be", "1 ok, 1 note")
    assert "-> do this" in "\n".join(out)
    assert max(map(len, out)) <= 100
    monkeypatch.setattr(doctor, "CHECKS", (some_thing, lambda: well))
    assert main(["doctor"]) == 1
    first, *_, last = capsys.readouterr().out.splitlines()
    assert (first[:35], last) == ("PROBLEM  some thing     ValueError:", "1 ok, 1 PROBLEM")


def test_all_checks_are_in_the_list():
    own = {value for name, value in vars(doctor).items()
           if callable(value) and getattr(value, "__annotations__", {}).get("return") == "Finding"}  # fmt: skip
    assert set(doctor.CHECKS) == own
