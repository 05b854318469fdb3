"""The doctor: each check well here, and each failure provoked, with what to do about it."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import sys
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pslab.__main__ import main
from pslab.engines.local.pace import Pace
from pslab.lab.commands import doctor
from pslab.lab.commands.finding import NOTE, OK, PROBLEM, Finding
from pslab.tensors.workload.torchvision_ops import with_operators

Patch = pytest.MonkeyPatch
ROOT = Path(__file__).parents[3]
Usage = namedtuple("Usage", "total used free")


def versions(**changed: str | None) -> Callable[[str], str | None]:
    """The installed versions but for some."""
    real = doctor._version
    return lambda name: changed[name] if name in changed else real(name)


# -- each check ------------------------------------------------------------------------------------


def raises(error: Exception) -> Callable[..., Any]:
    def failing(*_: object, **__: object) -> None:
        raise error

    return failing


def twice(load: Callable[[], object]) -> object:
    """As if torchvision had been loaded only once its operators were declared."""
    with_operators(load)
    return load()


def no_image(*_: object) -> list[Path]:
    print("no PNG, SVG or PDF: it crashed", file=sys.stderr)
    return []


OPERATORS, DRIVER = "pslab.tensors.workload.torchvision_ops.with_operators", "pathlib.Path.exists"
FIND = "choreographer.browsers.chromium.Chromium.find_browser"
EXPORT, REHEARSE = "pslab.lab.plots.export.write_images", "pslab.engines.local.engine.rehearse"
MACHINE = "pslab.lab.runs.machine"
FREE = "pslab.lab.commands.doctor.free_memory_bytes"
TWO_CARDS = {"torch.cuda.is_available": lambda: True, "torch.cuda.device_count": lambda: 2,
             "torch.cuda.get_device_name": lambda index: f"Card {index}",
             "torch.cuda.mem_get_info": lambda index: (2**34, 2**36)}  # fmt: skip
NO_CARD = {"torch.cuda.is_available": lambda: False}
TWO_CORES = {f"{MACHINE}.usable_cores": lambda: 2.0}
SMALL_PROCESSES = {f"{MACHINE}.resident_bytes": lambda: 250_000_000}


def free_disk(free: int) -> Callable[[object], Usage]:
    return lambda _: Usage(10**12, 10**12 - free, free)


#: A check, what is otherwise than here, and its finding: its state, and words of what it found and advises.
FOUND: dict[str, tuple[Callable[[], Finding], dict[str, Any], str, list[str]]] = {
    "an old Python": (doctor.python, {"sys.version_info": (3, 10, 4)}, PROBLEM, ["3.11"]),
    "packages that are missing, too old or of two releases": (
        doctor.packages, {"pslab.lab.commands.doctor._version": versions(
            kaleido="0.2.1", papermill=None, torch="2.1.0+cpu")}, PROBLEM,
        ["kaleido 0.2.1 (pslab-workbench needs >=1.0)", "papermill missing", "torch 2.1.0+cpu (torchvision needs ==",
         "pip install"]),
    "torchvision does not load": (
        doctor.torchvision, {OPERATORS: raises(RuntimeError("operator torchvision::odd does not exist\nat length"))},
        PROBLEM, ["RuntimeError: operator torchvision::odd does not exist"]),
    "operators were declared": (doctor.torchvision, {OPERATORS: twice}, OK, ["declared operators"]),
    "two cards": (
        doctor.cuda, TWO_CARDS, OK, ["Card 0, 16 of 64 GiB free; Card 1, 16 of 64 GiB free"]),
    "no card": (doctor.cuda, {**NO_CARD, DRIVER: lambda self: False}, OK, ["none: runs use the CPU"]),
    "a driver that torch does not see": (doctor.cuda, {**NO_CARD, DRIVER: lambda self: True}, NOTE, ["CUDA build"]),
    "no browser": (doctor.browser, {FIND: lambda **_: None}, NOTE, ["apt-get install chromium", "plotly_get_chrome"]),
    "a browser that does not start": (
        doctor.browser, {FIND: lambda **_: "/opt/chrome", EXPORT: no_image}, NOTE,
        ["/opt/chrome exports nothing: no PNG, SVG or PDF: it crashed"]),
    "a browser": (doctor.browser, {FIND: lambda **_: "/opt/chrome", EXPORT: lambda *_: [Path("figure.png")]}, OK, []),
    "cores that suffice": (
        doctor.cores, {**TWO_CORES, f"{MACHINE}.measure": lambda: (0.005, 0.001)}, OK,
        ["1: 6.0 ms, 2: 7.2 ms, 4: 14.4 ms, 8: 28.8 ms"]),
    "cores that are too few for the usual cluster": (
        doctor.cores, {**TWO_CORES, f"{MACHINE}.measure": lambda: (0.012, 0.001)}, NOTE,
        ["'compute_s': 0.035"]),  # 31.2 ms, rounded up
    "clusters that are kept up with": (
        doctor.emulation, {REHEARSE: lambda experiment: Pace((0.008,), 0.0001)}, OK,
        ["4 workers side by side: a gradient takes 8.0 ms, a message is 0.1 ms late",
         "in their own seconds: lab, lab-slow-net, steady, straggler"]),
    "clusters that run slower": (
        doctor.emulation, {REHEARSE: lambda experiment: Pace((0.04,), 0.0001)}, NOTE,
        ["in their own seconds: none; slower: lab ×", "dilation"]),
    "memory that is not shared": (
        doctor.shared_memory, {"pslab.engines.experiment.shared_memory.Arena.bytes":
                               lambda self, offset, size: memoryview(bytes(size))}, PROBLEM, ["it does not keep"]),
    "memory files that are refused": (
        doctor.shared_memory, {"os.memfd_create": raises(OSError(38, "Function not implemented"))}, PROBLEM,
        ["OSError: [Errno 38] Function not implemented"]),
    "memory that suffices": (
        doctor.memory, {**SMALL_PROCESSES, FREE: lambda: 2_000_000_000}, OK, []),
    "little memory": (
        doctor.memory, {**SMALL_PROCESSES, FREE: lambda: 1_000_000_000}, NOTE,
        ["1.0 GB free; six processes with torch take about 1.5 GB"]),
    "memory that is not known": (doctor.memory, {FREE: lambda: None}, NOTE, []),
    "a disk that is nearly full": (doctor.results, {"shutil.disk_usage": free_disk(5 * 10**8)}, NOTE, []),
    "a full disk": (doctor.results, {"shutil.disk_usage": free_disk(5 * 10**7)}, PROBLEM, []),
    "results that cannot be written": (
        doctor.results, {"tempfile.TemporaryFile": raises(PermissionError(13, "Permission denied"))}, PROBLEM,
        ["Permission denied", "PSLAB_RESULTS"]),
}  # fmt: skip


@pytest.mark.parametrize("what", FOUND)
def test_what_is_otherwise_than_here_is_found(what: str, tmp_path: Path, monkeypatch: Patch):
    check, others, state, words = FOUND[what]
    monkeypatch.setenv("PSLAB_RESULTS", str(tmp_path / "not" / "yet" / "there"))
    with monkeypatch.context() as patch:
        for name, value in others.items():
            patch.setattr(name, value)
        found = examined(check, patch)
    assert found.state == state, found
    assert all(each in found.found + found.advice for each in words), found
    assert bool(found.advice) == (state != OK)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("check", [doctor.python, doctor.packages, doctor.torchvision, doctor.data,
                                   doctor.shared_memory])  # fmt: skip
def test_this_machine_is_well(check: Callable[[], Finding]):
    assert check().state == OK


def test_mnist_that_is_missing_or_changed(tmp_path: Path, monkeypatch: Patch):
    assert doctor.data().state == OK
    raw = tmp_path / "MNIST" / "raw"
    shutil.copytree(ROOT / "data" / "MNIST" / "raw", raw)
    monkeypatch.setenv("PSLAB_DATA", str(tmp_path))
    assert doctor.data().state == OK
    for file in raw.glob("train-labels-idx1-ubyte*"):
        file.unlink()
    for file in raw.glob("t10k-labels-idx1-ubyte*"):
        file.unlink()
    with gzip.open(raw / "t10k-labels-idx1-ubyte.gz", "wb") as packed:
        packed.write(b"something else")
    found = doctor.data()
    assert found.state == PROBLEM
    assert "missing: train-labels-idx1-ubyte;" in found.found
    assert "not the official files: t10k-labels-idx1-ubyte" in found.found
    assert "PSLAB_DATA" in found.advice


def test_the_digests_are_those_of_the_data_folder():
    text = (ROOT / "data" / "README.md").read_text()
    assert all(f"| {name} |" in text and digest in text for name, digest in doctor.MNIST.items())


def test_a_system_without_memory_files(monkeypatch: Patch):
    monkeypatch.delattr(os, "memfd_create")
    assert doctor.shared_memory().state == NOTE


# -- the command -----------------------------------------------------------------------------------


def examined(check: Callable[[], Finding], monkeypatch: Patch) -> Finding:
    monkeypatch.setattr(doctor, "CHECKS", (check,))
    (found,) = doctor.examine()
    return found


def well() -> Finding:
    return Finding("one", OK, "as it should be")


def noted() -> Finding:
    return Finding("two", NOTE, "so so " * 30, "do this " * 15)


def some_thing() -> Finding:
    raise ValueError


def test_a_problem_is_exit_status_1(monkeypatch: Patch, capsys: pytest.CaptureFixture):
    monkeypatch.setattr(doctor, "CHECKS", (well, noted))
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0] == "ok       one            as it should be"
    assert "-> do this" in out
    assert out.splitlines()[-1] == "1 ok, 1 note"
    assert max(map(len, out.splitlines())) <= 100
    monkeypatch.setattr(doctor, "CHECKS", (some_thing, well))
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert out.startswith("PROBLEM  some thing     ValueError:")
    assert "Traceback" not in out
    assert out.splitlines()[-1] == "1 ok, 1 PROBLEM"


def test_json_holds_every_finding(monkeypatch: Patch, capsys: pytest.CaptureFixture):
    monkeypatch.setattr(doctor, "CHECKS", (well, some_thing))
    assert main(["doctor", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found[0] == {"name": "one", "state": "ok", "found": "as it should be", "advice": ""}
    assert (found[1]["state"], bool(found[1]["advice"])) == ("problem", True)


def test_all_checks_are_in_the_list():
    own = {value for name, value in vars(doctor).items()
           if callable(value) and getattr(value, "__annotations__", {}).get("return") == "Finding"}  # fmt: skip
    assert set(doctor.CHECKS) == own
