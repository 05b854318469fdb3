"""Bad parameters from a notebook, a YAML file and the command line: refused before a process starts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import yaml
from corpus import BAD
from tiny import tiny
from torch import nn

from pslab.__main__ import main
from pslab.config.run import FIELDS, Run
from pslab.engines.processes import pool
from pslab.errors import ConfigError
from pslab.lab.runs import resolve as resolving
from pslab.lab.runs.resolve import resolve
from pslab.lab.runs.run import run
from pslab.tensors.device import DEVICES, Device


@pytest.fixture(autouse=True)
def _no_process(monkeypatch):
    def started(workers):
        raise AssertionError("a process was about to be started")

    monkeypatch.setattr(pool, "acquire", started)


def test_the_corpus_is_large():
    assert len(BAD) >= 60


@pytest.mark.parametrize(("parameters", "field"), BAD, ids=str)
def test_from_a_notebook(tmp_path, parameters, field):
    with pytest.raises(ConfigError) as error:
        run(Run.of(parameters), results=tmp_path)
    assert error.value.field == field
    assert error.value.problem


@pytest.mark.parametrize(("parameters", "field"), BAD, ids=str)
def test_from_a_file_and_from_the_command_line(tmp_path, capsys, parameters, field):
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(parameters))
    words = []
    for name, value in parameters.items():
        text = value if isinstance(value, str) else yaml.safe_dump(value, default_flow_style=True).split("\n...")[0]
        words += [f"--{name.replace('_', '-')}", text.strip()]
    typed = field if field in FIELDS or "." in field else "option"
    for given, named in ((["--file", str(tmp_path / "run.yaml")], field), (words, typed)):
        if given != ["--sync", "3"]:  # what is typed is a name
            assert main(["run", *given, "--results", str(tmp_path)]) == 2
            assert f"pslab run: {named}=" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [(["--workers"], "expected one argument"), (["workers=3"], "option='workers=3'"),
     (["--file", "/nowhere.yaml"], "cannot be read"), (["--wokers", "3"], "did you mean 'workers'")],
)  # fmt: skip
def test_malformed_command_lines_are_refused(capsys, words, message):
    assert main(["run", *words]) == 2
    assert message in capsys.readouterr().err


def test_a_device_that_is_not_there_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="torch sees no CUDA device here; use device='cpu'") as error:
        run(tiny(device="cuda"), results=tmp_path)
    assert error.value.field == "device"
    assert list(tmp_path.iterdir()) == []


class Small(Device):
    """Two GPUs, of which the second has 1 GiB left."""

    def free_bytes(self) -> list[int]:
        return [2**40, 2**30]


@pytest.mark.parametrize(("fields", "words"), [
    ({"workers": 8}, r"4 workers compute on device 1: with [\d,]+ weights they take at least 1\.2 GiB, and 1\.0 GiB"),
    ({"data": "planted", "model": "logistic", "loss": "logistic"}, r"the rows of .* are sparse, for the CPU: use cpu"),
], ids=["memory", "sparse rows"])  # fmt: skip
def test_what_a_device_cannot_hold_is_refused_before_anything_starts(monkeypatch, fields, words):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setitem(DEVICES, "cuda", Small())
    for held in ({"workers": 6}, {"workers": 8, "engine": "virtual", "cluster": "lab"}):  # one process each, or fewer
        resolve(tiny(device="cuda", **held))
    with pytest.raises(ConfigError, match=words) as error:
        resolve(tiny(device="cuda", **fields))
    assert error.value.field == "device"


def test_a_model_whose_content_is_known_is_checked_once(monkeypatch):
    checked = []
    monkeypatch.setattr(resolving, "_FOUND", {})
    monkeypatch.setattr(resolving, "check_model", lambda *_: checked.append(1))
    for order in ("fifo", "front"):
        run = Run(model="mlp:8", engine="timing", ranges="layers", order=order, cluster="steady")
        assert len(resolving.resolve(run).layer_shares) == 4
    assert len(checked) == 1
    for wider in (0, 0, 1):
        resolving.resolve(tiny(model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(49, 10 + wider))))  # noqa: B023
    assert len(checked) == 3
    monkeypatch.setattr(Run, "unknown", "it is an object of its own kind")
    for _ in range(2):
        resolving.resolve(tiny())
    assert len(checked) == 5


@pytest.mark.parametrize(
    ("fields", "problem"),
    [({"batch_size": 1}, r"cannot learn from inputs \[1, 4\]"), ({"test": 1}, r"not \[\] of torch.float32 and \[1\]")],
)  # fmt: skip
def test_batches_of_one_that_occur_are_tried(fields, problem):
    class Squeezed(nn.Sequential):
        def forward(self, x):
            return super().forward(x).squeeze()

    test = fields.pop("test", 8)
    x, y = torch.randn(64, 4), torch.randn(64)
    model = Squeezed(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
    with pytest.raises(ConfigError, match=problem):
        resolve(tiny(model=model, data=lambda: (x, y, x[:test], y[:test]), loss="mse", metric="loss", **fields))


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="another system's shared memory")
def test_batches_for_which_loading_processes_have_no_room_are_refused():
    class Items(torch.utils.data.Dataset):
        def __len__(self):
            return 10**9

        def __getitem__(self, place):
            return torch.zeros(100_000), 0.0

    data = (torch.utils.data.DataLoader(Items(), num_workers=2), Items())
    with pytest.raises(ConfigError, match=r"16 batches that are read ahead take .* of /dev/shm, .* --shm-size"):
        resolve(tiny(data=lambda: data, loss="mse", metric="loss", batch_size=10**6))
