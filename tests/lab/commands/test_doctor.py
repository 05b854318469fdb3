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

import pytest
import torch

from pslab.__main__ import main
from pslab.engines.experiment.shared_memory import Arena
from pslab.engines.local import engine
from pslab.engines.local.pace import Pace
from pslab.lab.commands import doctor
from pslab.lab.commands.finding import NOTE, OK, PROBLEM, Finding
from pslab.lab.plots import export
from pslab.lab.runs import machine

Patch = pytest.MonkeyPatch
ROOT = Path(__file__).parents[3]
Usage = namedtuple("Usage", "total used free")


def versions(**changed: str | None) -> Callable[[str], str | None]:
    """The installed versions but for some."""
    real = doctor._version
    return lambda name: changed[name] if name in changed else real(name)


# -- each check ------------------------------------------------------------------------------------


def test_an_old_python(monkeypatch: Patch):
    assert doctor.python().state == OK
    monkeypatch.setattr(sys, "version_info", (3, 10, 4))
    found = doctor.python()
    assert found.state == PROBLEM
    assert "3.11" in found.advice


def test_packages_that_are_missing_too_old_or_of_two_releases(monkeypatch: Patch):
    assert doctor.packages().state == OK
    monkeypatch.setattr(doctor, "_version", versions(kaleido="0.2.1", papermill=None, torch="2.1.0+cpu"))
    found = doctor.packages()
    assert found.state == PROBLEM
    assert "kaleido 0.2.1 (pslab needs >=1.0)" in found.found
    assert "papermill missing" in found.found
    assert "torch 2.1.0+cpu (torchvision needs ==" in found.found
    assert "pip install" in found.advice


def test_torchvision_that_does_not_load(monkeypatch: Patch):
    well = doctor.torchvision()
    assert well.state == OK
    assert "resnet18 and vgg11 can be built" in well.found

    def broken(load: Callable[[], object]) -> object:
        raise RuntimeError("operator torchvision::odd does not exist\nat length")

    monkeypatch.setattr("pslab.tensors.workload.torchvision_ops.with_operators", broken)
    found = examined(doctor.torchvision, monkeypatch)
    assert (found.state, found.name) == (PROBLEM, "torchvision")
    assert found.found == "RuntimeError: operator torchvision::odd does not exist"


def test_declared_operators_are_reported(monkeypatch: Patch):
    def twice(load: Callable[[], object]) -> object:
        load()
        return load()

    monkeypatch.setattr("pslab.tensors.workload.torchvision_ops.with_operators", twice)
    assert "declared operators" in doctor.torchvision().found


def test_gpus_with_their_memory(monkeypatch: Patch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: f"Card {index}")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (2**34, 2**36))
    assert doctor.cuda() == Finding("cuda", OK, "Card 0, 16 of 64 GiB free; Card 1, 16 of 64 GiB free")


def test_no_gpu_is_ok_and_a_driver_that_torch_does_not_see_is_a_note(monkeypatch: Patch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(Path, "exists", lambda self: False)
    assert doctor.cuda() == Finding("cuda", OK, "none: runs use the CPU")
    monkeypatch.setattr(Path, "exists", lambda self: True)
    assert doctor.cuda().state == NOTE
    assert "CUDA build" in doctor.cuda().advice


def test_no_browser_and_one_that_does_not_start(monkeypatch: Patch):
    from choreographer.browsers.chromium import Chromium

    monkeypatch.setattr(Chromium, "find_browser", lambda **_: None)
    found = doctor.browser()
    assert found.state == NOTE
    assert "apt-get install chromium" in found.advice
    assert "plotly_get_chrome" in found.advice

    def silent(*_: object) -> list[Path]:
        print("no PNG, SVG or PDF: it crashed", file=sys.stderr)
        return []

    monkeypatch.setattr(Chromium, "find_browser", lambda **_: "/opt/chrome")
    monkeypatch.setattr(export, "write_images", silent)
    found = doctor.browser()
    assert found.state == NOTE
    assert "/opt/chrome exports nothing: no PNG, SVG or PDF: it crashed" in found.found
    monkeypatch.setattr(export, "write_images", lambda *_: [Path("figure.png")])
    assert doctor.browser().state == OK


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


def test_cores_that_are_too_few_for_the_usual_cluster(monkeypatch: Patch):
    monkeypatch.setattr(machine, "usable_cores", lambda: 2.0)
    monkeypatch.setattr(machine, "measure", lambda: (0.005, 0.001))
    well = doctor.cores()
    assert well.state == OK
    assert "1: 6.0 ms, 2: 7.2 ms, 4: 14.4 ms, 8: 28.8 ms" in well.found
    monkeypatch.setattr(machine, "measure", lambda: (0.012, 0.001))
    found = doctor.cores()
    assert found.state == NOTE
    assert "'compute_s': 0.035" in found.advice  # 31.2 ms, rounded up


def test_clusters_that_the_machine_keeps_up_with(monkeypatch: Patch):
    monkeypatch.setattr(engine, "rehearse", lambda experiment: Pace((0.008,), 0.0001))
    assert doctor.emulation() == Finding("emulation", OK, (
        "4 workers side by side: a gradient takes 8.0 ms, a message is 0.1 ms late; in their own seconds: "
        "lab, lab-slow-net, steady, straggler"))  # fmt: skip
    monkeypatch.setattr(engine, "rehearse", lambda experiment: Pace((0.04,), 0.0001))
    found = doctor.emulation()
    assert found.state == NOTE
    assert "in their own seconds: none; slower: lab ×" in found.found
    assert "dilation" in found.advice


def test_memory_that_is_not_shared(monkeypatch: Patch):
    assert doctor.shared_memory().state == OK
    monkeypatch.setattr(Arena, "bytes", lambda self, offset, size: memoryview(bytes(size)))
    assert doctor.shared_memory().state == PROBLEM

    def refused(*_: object) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "memfd_create", refused)
    found = examined(doctor.shared_memory, monkeypatch)
    assert found == Finding("shared memory", PROBLEM, "OSError: [Errno 38] Function not implemented", found.advice)


def test_a_system_without_memory_files(monkeypatch: Patch):
    monkeypatch.delattr(os, "memfd_create")
    assert doctor.shared_memory().state == NOTE


def test_little_memory(monkeypatch: Patch):
    monkeypatch.setattr(machine, "resident_bytes", lambda: 250_000_000)
    monkeypatch.setattr(machine, "free_memory_bytes", lambda: 2_000_000_000)
    assert doctor.memory().state == OK
    monkeypatch.setattr(machine, "free_memory_bytes", lambda: 1_000_000_000)
    found = doctor.memory()
    assert (found.state, found.found) == (NOTE, "1.0 GB free; six processes with torch take about 1.5 GB")
    monkeypatch.setattr(machine, "free_memory_bytes", lambda: None)
    assert doctor.memory().state == NOTE


def test_results_that_cannot_be_written_and_a_full_disk(tmp_path: Path, monkeypatch: Patch):
    monkeypatch.setenv("PSLAB_RESULTS", str(tmp_path / "not" / "yet" / "there"))
    assert doctor.results().state == OK
    assert not list(tmp_path.iterdir())
    for free, state in ((5 * 10**8, NOTE), (5 * 10**7, PROBLEM)):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, free=free: Usage(10**12, 10**12 - free, free))
        assert doctor.results().state == state

    def refused(**_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.TemporaryFile", refused)
    found = doctor.results()
    assert found.state == PROBLEM
    assert "Permission denied" in found.found
    assert "PSLAB_RESULTS" in found.advice


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


def test_the_command_does_not_import_torch():
    import subprocess

    code = "import sys, pslab.lab.commands.doctor; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
