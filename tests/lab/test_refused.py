"""What cannot be is refused before a process starts: parameters from a notebook, a YAML file and the command line;
grids, tables, studies, and commands. One table of (call, words) for each."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import handmade
import pandas as pd
import pytest
import torch
import yaml
from tiny import tiny
from torch import nn

from pslab.__main__ import main
from pslab.config.run import FIELDS, Run
from pslab.engines.processes import pool
from pslab.errors import ConfigError
from pslab.lab.records.frames import groups, where
from pslab.lab.records.merit import merit_of
from pslab.lab.records.results import tidy
from pslab.lab.records.summary import summary
from pslab.lab.records.tuning import best
from pslab.lab.runs.grid import grid, tuned
from pslab.lab.runs.resolve import resolve
from pslab.lab.runs.run import run, sweep
from pslab.lab.studies.claims import claim
from pslab.lab.studies.observe import observe
from pslab.lab.studies.parameters import check, check_named, declared, parameters
from pslab.tensors.device import DEVICES, Device

Call = Callable[[], object]


@pytest.fixture(autouse=True)
def _no_process(monkeypatch):
    def started(workers):
        raise AssertionError("a process was about to be started")

    monkeypatch.setattr(pool, "acquire", started)


# -- runs --------------------------------------------------------------------------------------------

#: Of each field, values that it refuses by itself; the first three are no fields.
ALONE: dict[str, list[Any]] = {
    "wokers": [4],
    "sync_policy": ["bsp"],
    "lr": [0.1],
    "model": ["mpl", "no.such.module:Net", "json:NoSuchNet", "math:pi", "torchvision:resnet19"],
    "data": ["minst", "mnist:train=0", "no.such.module:load", "folder:/nowhere", "folder:/nowhere,loaders=2",
             "folder:/nowhere,memory=half"],
    "sync": ["bps", "ssp", "ssp:three", "ssp:-1", "ssp:3,4", "ssp:slack=3", "bsp:3", 3],
    "prune": ["static", "static:0", "static:150%", "std:-1", "dynamic:0", "static:1%,residual=maybe",
              "static:1%,mode=frosen", "std:2,warm_up=-1", "dynamic:mode=ratchet,gamma=2", "dgc:0.1%,momentum=1",
              "dgc:0.1%,residual=off", "top:1%"],
    "rate": ["constnat", "dynsgd:version", "adagrad:server,eps=-1"],
    "order": ["random"],
    "optimizer": ["sdg", "lbfgs", "sgd:lr=0.1", "sgd:momentum=-1", "sgd:nesterov=True", "adam:0.9"],
    "schedule": ["cosine:warm=-1", "steps:2", "steps:0.1,at=1.5"],
    "cluster": ["gigabit"],
    "loss": ["mes", "absent_module:huber", "os:sep"],
    "metric": ["acuracy", "torch.nn:MSELoss"],
    "workers": ["four", 2.5, True, 0, 5000],
    "batch_size": [[64], 0, 50000],
    "learning_rate": ["fast", -0.1, float("inf")],
    "seed": [0.5, -1],
    "push_weight": [0.0],
    "pushes": [0, None],
    "seconds": [0.0],
    "target_accuracy": [98.0],
    "eval_every": [0],
    "engine": ["locall"],
    "pull": ["delta"],
    "dtype": ["float16"],
    "device": ["tpu"],
    "on_death": ["ignore"],
    "evaluate": ["before"],
    "lease_s": [0.0],
    "dilation": [0.5, 65, "slow", 2],
}  # fmt: skip
BAD: list[tuple[dict[str, Any], str]] = [
    *(({field: value}, field) for field, values in ALONE.items() for value in values),
    ({"prune": "dgc:0.1%,clip=1", "ranges": "layers"}, "prune"),
    ({"prune": "dgc:0.1%", "optimizer": "sgd:momentum=0.9"}, "optimizer"),
    ({"rate": "dynsgd", "push_weight": 1.0}, "push_weight"),
    ({"rate": "split", "push_weight": 0.25}, "push_weight"),
    ({"order": "front:credit=40000", "ranges": "layers:100000"}, "order"),
    ({"schedule": "linear", "pushes": None, "seconds": 1.0}, "schedule"),
    ({"cluster": {"bandwidth_bit_s": 0}}, "cluster.bandwidth_bit_s"),
    ({"cluster": {"bandwith": 1000000000.0}}, "cluster.bandwith"),
    ({"cluster": {"compute_s": 0.02, "slow": {7: 2.0}}}, "cluster.slow"),
    ({"cluster": {"duplex": "simplex"}}, "cluster.duplex"),
    ({"cluster": {"latency_s": -1}}, "cluster.latency_s"),
    ({"cluster": {"stall_probability": 0.1}}, "cluster.compute_s"),
    ({"pushes": None, "target_accuracy": 0.9}, "eval_every"),
    ({"dilation": 2, "cluster": {"latency_s": 0.01}}, "dilation"),
    ({"dilation": 2, "cluster": "lab", "engine": "virtual"}, "dilation"),
]  # fmt: skip


@pytest.mark.parametrize(("parameters", "field"), BAD, ids=str)
def test_from_a_notebook_a_file_and_the_command_line(tmp_path, capsys, parameters, field):
    with pytest.raises(ConfigError) as error:
        run(Run.of(parameters), results=tmp_path)
    assert error.value.field == field
    assert error.value.problem
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


class Small(Device):
    """Two GPUs, of which the second has 1 GiB left."""

    def free_bytes(self) -> list[int]:
        return [2**40, 2**30]


@pytest.mark.parametrize(("fields", "words"), [
    ({"workers": 8}, r"4 workers compute on device 1: with [\d,]+ weights they take at least 1\.2 GiB, and 1\.0 GiB"),
    ({"data": "planted", "model": "logistic", "loss": "logistic"}, "on the CPU only: set device='cpu'"),
], ids=["memory", "sparse rows"])  # fmt: skip
def test_what_a_device_cannot_hold_is_refused_before_anything_starts(monkeypatch, fields, words):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setitem(DEVICES, "cuda", Small())
    for held in ({"workers": 6}, {"workers": 8, "engine": "virtual", "cluster": "lab"}):  # one process each, or fewer
        resolve(tiny(device="cuda", **held))
    with pytest.raises(ConfigError, match=words) as error:
        resolve(tiny(device="cuda", **fields))
    assert error.value.field == "device"


def test_batches_of_one_that_occur_are_tried():
    class Squeezed(nn.Sequential):
        def forward(self, x):
            return super().forward(x).squeeze()

    x, y = torch.randn(64, 4), torch.randn(64)
    model = Squeezed(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
    for batch_size, test, problem in ((1, 8, r"cannot learn from inputs \[1, 4\]"),
                                      (16, 1, r"not \[\] of torch.float32 and \[1\]")):  # fmt: skip
        with pytest.raises(ConfigError, match=problem):
            resolve(tiny(model=model, data=lambda test=test: (x, y, x[:test], y[:test]), loss="mse", metric="loss",
                         batch_size=batch_size))  # fmt: skip


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


# -- results, grids, and studies ---------------------------------------------------------------------

BASE = Run(pushes=8, workers=2, engine="virtual", cluster="lab")
CURVE = [0.1, 0.5, 0.9]
ONE = [handmade.curve(None, BASE, CURVE)]
RATED = handmade.finished(grid(BASE, learning_rate=[0.2, 1.0, 1e5], seed=[0, 1, 2]), CURVE)
ALIKE = ("by=['sync']: 9 runs of bsp differ in learning_rate (0.2, 1.0, 100000.0): name learning_rate in by=, keep one "
         "value with where(results, learning_rate=...), or choose with best(results, "
         "over='learning_rate')")  # fmt: skip
NUMBERS = {"families": {"static": ["static:1%"]}, "syncs": ["bsp", "asp"], "pushes": 625, "learning_rate": 0.5,
           "rates": [0.1, 0.2], "scale": 2.0, "sizes": [1, 2], "live": None, "quiet": False,
           "cluster": {"compute_s": 0.02}}  # fmt: skip
NAMES = {"policies": ["bsp", "ssp:3"], "families": {"static": ["static:1%"], "none": []}, "model": "mlp",
         "small": {"model": "mlp:8", "pushes": 3}}  # fmt: skip


def sums_of(**changed: Any) -> Call:
    return lambda: observe(**{"run": tiny(workers=1, pushes=12), "moments": [0, 11], "every": 5, "rules": ["std:2"],
                              "repeats": 1, **changed})  # fmt: skip


#: A call, and words of its error.
REFUSED: list[tuple[Call, str]] = [
    *((lambda given=given: sweep(given), words) for given, words in (
        ([BASE, "asp"], "must be a Run"), (handmade.asp(), "must be a Run"),
        (pd.DataFrame({"seed": [0]}), "gives a table with the column 'run'"),
        (pd.concat([grid(BASE, seed=[0]), pd.DataFrame({"seed": [1]})]), "must be a Run, but 1 of 2 rows have none"))),
    *((lambda axes=axes: grid(BASE, **axes), words) for axes, words in (
        ({"snyc": ["bsp"]}, r"snyc=\['bsp'\]: Run has no such field; .*did you mean 'sync'"),
        ({"sync": "asp"}, r"must be a list with at least one entry, such as \['asp'\], or map"),
        ({"sync": []}, r"at least one entry, such as \['bsp'\]"), ({"seed": 0}, r"must be a list .* such as \[0\]"),
        ({"epochs": [3]}, r"did you mean 'pushes=epochs \* examples // batch_size'\?"),
        ({"family": {"static": {"prnue": "static:1%"}}}, "did you mean 'prune'"),
        ({"family": {"static": {"prune": []}}}, "at least one entry"),
        ({"family": {"static": "static:1%"}}, "must map each name to fields"), ({"workers": [0]}, "workers=0"),
        ({"run": {"a": {}}}, "give the axis another name"), ({"refuse": "drop"}, "did you mean 'refused'"),
        ({"batch_size": [0, 64]}, "batch_size=0"),
        ({"prune": ["static:1%", "static:0.01"]}, "prune='static:0.01': is the same as 'static:1%': leave one out"),
        ({"sync": ["ssp:3", "SSP:3.0"]}, "sync='SSP:3.0': is the same as 'ssp:3'"),
        ({"batch_size": [0, -1], "refused": "drop"}, "no combination is left: 2 of 2 combinations"),
        ({"seed": [0], "refused": "dropped"}, r"refused='dropped': did you mean 'drop'\? allowed: drop, raise"))),
    (lambda: grid(grid(BASE, seed=[0]).drop(columns="run"), seed=[0]), "gives a table with the column 'run'"),
    (lambda: where(grid(BASE, sync=["bsp", "asp"]), snyc="bsp"), "did you mean 'sync'"),
    (lambda: where(grid(BASE, sync=["bsp", "asp"]), sync="ssp"),
     r"no run has this value; did you mean '\wsp'\? allowed: asp, bsp"),
    (lambda: tidy([handmade.bsp()], "pushs"), "did you mean 'push'"),
    (lambda: merit_of("byte"), "did you mean 'bytes'"),
    (lambda: summary(ONE, by="snyc"), "did you mean 'sync'"),
    (lambda: summary(grid(BASE, net_size={"small": {}}).assign(result=ONE), by="nett"),
     r"did you mean 'net_size'\? allowed: net_size, batch_size, "),
    (lambda: summary(ONE, by="nett"), "neither an axis of the table nor a field of Run; allowed: batch_size, "),
    (lambda: summary(RATED.assign(result=RATED.result.where(RATED.seed > 0))), r"3 of 9 rows .* dropna\(subset"),
    (lambda: summary([*RATED]), r"must be a Result, but .*\[\*table.result\] lists the"),
    (lambda: summary(ONE, measures=["waitin"]), "did you mean 'waiting'"),
    *((lambda call=call, given=given: call(given, goal=85), "goal=85: .* above 0 and at most 1: 85\u00a0% is 0.85")
      for call, given in ((summary, ONE), (best, ONE), (tuned, grid(BASE, seed=[0])))),
    (lambda: summary(ONE, measures=["seconds_to_goal"]), r"such as goal\(results\)"),
    (lambda: summary(RATED, by=["sync"]), f"^{re.escape(ALIKE)}$"),
    (lambda: groups(RATED, "sync", facet=None), "name learning_rate in by=, facet= or row="),
    (lambda: best(ONE, over="learnign_rate", goal=0.9), "did you mean 'learning_rate'"),
    (lambda: claim("a text", 0.5), "needs a bound"),
    *((lambda cell=cell: declared("10_pruning", cell), words) for cell, words in (
        ("pushes = 3", "needs a first cell that starts with '# Parameters'"),
        ("# Parameters\npushes = 3 * 5", r"plain literal, not 'pushes = 3 \* 5'"),
        ("# Parameters\na, b = 1, 2", "plain literal"), ("# Parameters\na = b = 1", "plain literal"),
        ("# Parameters\nimport os", "plain literal, not 'import os'"))),
    *((lambda values=values: check("10_pruning", NUMBERS, values), words) for values, words in (
        ({"pushs": 3}, r"^pushs=3: 10_pruning has no such parameter; did you mean 'pushes'\? allowed: cluster, "),
        ({"syncs": "bsp"}, "syncs='bsp': must be a list with at least one entry, such as"),
        ({"syncs": []}, "at least one entry"), ({"syncs": [3]}, "syncs=3: must be a string, such as 'bsp'"),
        ({"rates": ["fast"]}, "must be a number"), ({"sizes": [1.5]}, "must be a whole number"),
        ({"scale": True}, "must be a number"), ({"quiet": 1}, "must be True or False"),
        ({"families": ["static"]}, "must be a mapping"), ({"pushes": 0}, "must be a whole number from 1"),
        ({"pushes": True}, "pushes=True: must be a whole number"),  # as Run says it
        ({"cluster": 3}, "must be a preset's name or a mapping"), ({"learning_rate": "fast"}, "must be a number"))),
    *((lambda name=name, value=value: check_named(name, NAMES[name], value), words) for name, value, words in (
        ("policies", ["bsp", "spp:3"], "policies='spp:3': unknown name 'spp'; .*did you mean 'ssp'"),
        ("policies", ["ssp"], "needs staleness, as in 'ssp:3'"),
        ("policies", ["mine:Policy"], "unknown name 'mine'"), ("model", "mpl", "did you mean 'mlp'"),
        ("families", {"std": ["std:2", "sdt:3"]}, "std='sdt:3': unknown name 'sdt'"), ("model", "mlp:0", "hidden"),
        ("small", {"model": "mpl"}, "did you mean 'mlp'"))),
    (lambda: parameters("10_pruning"), "call this from one of its cells"),
    (sums_of(moments=[12]), "from 0 to 11"), (sums_of(moments=5), "must be a list"),
    (sums_of(moments=[True]), "must have only whole numbers"), (sums_of(every=0), "every"),
    (sums_of(rules="static:1%"), "must be a list"), (sums_of(rules=[]), "must be a list"),
    (sums_of(rules=[1]), "must be a list"), (sums_of(repeats=0), "repeats"),
    (sums_of(run=tiny(workers=2)), "one worker"),
    (lambda: resolve(tiny(data="CIFAR10")), "unknown name 'cifar10'; did you mean 'torchvision:CIFAR10'"),
    (lambda: resolve(Run(model="mlp:5000000")), r"50,003,985,000,010 weights.* GiB are free here: use a smaller model"),
    *((lambda fields=fields: resolve(tiny(checkpoint_every=20, **fields)), words) for fields, words in (
        ({"engine": "virtual", "cluster": "lab"}, "runs in virtual time have no checkpoints, because a repeated run"),
        ({"engine": "timing", "cluster": "lab"}, "runs in virtual time have no checkpoints"),
        ({"on_death": "continue"}, "set on_death='restart'"))),
]  # fmt: skip


@pytest.mark.parametrize(("call", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_what_cannot_be_is_refused_with_the_way_out(call, words, tmp_path, monkeypatch):
    monkeypatch.setenv("PSLAB_RESULTS", str(tmp_path))
    with pytest.raises(ConfigError, match=words):
        call()
    assert not list(tmp_path.iterdir())


# -- commands ----------------------------------------------------------------------------------------

ASK = ["advise", "--target", "0.9", "--cluster", "lab"]
#: The words of a command, and those of its error.
COMMANDS: list[tuple[list[str], str]] = [
    (["run", "--workers"], "expected one argument"), (["run", "workers=3"], "option='workers=3'"),
    (["run", "--file", "/nowhere.yaml"], "cannot be read"), (["run", "--wokers", "3"], "did you mean 'workers'"),
    (["run", "--push-wieght=1"], "did you mean 'push-weight'"), (["list", "--markdwn"], "did you mean 'markdown'"),
    ([*ASK, "--merit", "byte"], "did you mean 'bytes'"), (["list", "--port", "8899"], "--port"),
    (["list", "statik"], "did you mean 'static'?"), (["list", "qqqqqqq"], "shows all"),
    (["init"], "pslab init FOLDER, or pslab init --study NAME"), (["init", "--study", "../90"], "letters, digits"),
    (["init", "--study", "a b"], "letters, digits"),
    *((["check", *words], message) for words, message in (
        (["spp:3"], "sync='spp:3': unknown name 'spp'; did you mean 'ssp'? allowed: adiloco, admm, asp, "),
        (["ssp"], "ssp needs staleness"), (["ssp:-1"], "staleness=-1: must be a whole number of at least 0"),
        (["nowhere.at.all:Policy"], "nowhere.at.all cannot be imported"),
        (["ownpolicies:NeverWait"], "did you mean 'NeverWaits'"),
        (["ownpolicies:NUMBER"], "has no window, initial, step"),
        (["ownpolicies:AtMost"], "this class needs parameters"),
        (["asp", "--faults", "kil"],
         "faults='kil': did you mean 'kill'? allowed: duplicate, kill, lose, rejoin, reorder"),
        (["asp", "--workers", "0"], "workers=0: must be at least 1"), (["asp", "--ranges", "2,0"], "ranges=0"),
        (["asp", "--bound", "-1"], "bound=-1: must be 0 or more"),
        (["asp", "--iterations", "0"], "iterations=0: must be at least 1"))),
]  # fmt: skip


@pytest.mark.parametrize(("words", "message"), COMMANDS, ids=str)
def test_a_command_that_cannot_be_is_refused(words, message, capsys):
    assert main(words) == 2
    printed = capsys.readouterr()
    assert f"pslab {words[0]}: " in printed.err
    assert message in printed.err
    assert printed.out == ""
