"""A language model on text: the same bits on real processes and in virtual time, dense and pruned; its loss."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from resumed import interrupted, pushes_resumed, quiet, same
from tiny import finished, tiny
from torch.nn import functional
from whole import in_process

from pslab.config.run import Run
from pslab.config.table import ROWS
from pslab.errors import ConfigError
from pslab.lab.runs.resolve import resolve
from pslab.tensors.workload.data import resolve_data
from pslab.tensors.workload.models import build_model

DATA = "text:128,32"
RULES = [row.example or row.name for row in ROWS["prune"].values()]


def wanted(prune: str = "none", **fields: object) -> Run:
    pull = "range" if prune.startswith("range") else "whole"
    return tiny(**{"model": "gpt:8,layers=1", "data": DATA, "metric": "loss", "batch_size": 4, "pushes": 16,
                   "eval_every": 8, "cluster": "lab", "prune": prune, "pull": pull, **fields})  # fmt: skip


@pytest.mark.one_of(3)
@pytest.mark.parametrize("prune", RULES)
def test_real_processes_and_virtual_time_train_a_language_model_to_the_same_bits(prune: str):
    local, virtual = (finished(wanted(prune, engine=each)) for each in ("local", "virtual"))
    for other in (virtual, in_process(wanted(prune, engine="virtual"))):
        assert np.array_equal(local.weights, other.weights)
        assert np.array_equal(local.accuracy[:, [0, 2, 3]], other.accuracy[:, [0, 2, 3]])
    assert local.accuracy[-1][3] < local.accuracy[0][3]


@pytest.mark.slow
def test_a_language_model_goes_on_from_a_checkpoint_with_the_same_bits(tmp_path: Path):
    run = wanted(engine="local", checkpoint_every=4, optimizer="adamw", learning_rate=3e-3, on_death="restart")
    interrupted(run, tmp_path / "ended")
    found = quiet(run, tmp_path / "ended")
    assert pushes_resumed(found)
    same(found, quiet(run, tmp_path / "alone"))


def test_the_loss_is_the_mean_over_all_bytes_of_the_test_set_and_the_accuracy_the_share_of_next_bytes():
    found = [in_process(wanted(engine="virtual", metric=metric, dtype="float64")) for metric in ("loss", "accuracy")]
    data, module = resolve_data(DATA), build_model("gpt:8,layers=1", 0).double()
    keyspace = resolve(wanted(dtype="float64")).keyspace
    keyspace.bind(module, torch.from_numpy(found[0].weights.copy()), None)
    with torch.no_grad():
        scores = module(data.test_x.long()).transpose(1, 2).flatten(0, 1)
    loss = float(functional.cross_entropy(scores, data.test_y.flatten()))
    assert found[0].accuracy[-1][[2, 3]] == pytest.approx([loss, loss], rel=1e-12)
    share = float((scores.argmax(1) == data.test_y.flatten()).double().mean())
    assert found[1].accuracy[-1][[2, 3]] == pytest.approx([share, loss], rel=1e-12)


@pytest.mark.parametrize("ranges", ["layers", "layers:100"])
@pytest.mark.parametrize("engine", ["local", "virtual"])
def test_workers_that_go_layer_by_layer_refuse_a_model_whose_first_and_last_layer_are_one(ranges: str, engine: str):
    with pytest.raises(ConfigError, match=r"first layer and the last one.*use ranges='whole'") as error:
        resolve(wanted(engine=engine, ranges=ranges))
    assert error.value.field == "model"


@pytest.mark.parametrize(
    ("fields", "words"),
    [({"data": "mnist:64,16"}, r"cannot learn from inputs \[2, 1, 28, 28\] .*takes bytes \[B, T\] as int64"),
     ({"model": "mlp:8"}, r"cannot learn from inputs \[2, 64\] of torch.int64"),
     ({"loss": "mse"}, "mse needs outputs and targets of one shape")],
)  # fmt: skip
def test_a_language_model_and_other_data_and_text_and_other_models_are_refused(fields: dict[str, str], words: str):
    with pytest.raises(ConfigError, match=words):
        resolve(wanted(**fields))



@pytest.mark.slow
def test_four_workers_under_bsp_learn_the_text_to_a_loss_of_2_3(tmp_path: Path):
    run = Run(model="gpt:64", data="text", metric="loss", workers=4, batch_size=8, pushes=1600, learning_rate=3e-3,
              optimizer="adamw:betas=(0.9;0.95),weight_decay=0.1", schedule="cosine:warm=20,end=0.1", engine="virtual",
              cluster="lab", eval_every=100, target_accuracy=2.3)  # fmt: skip
    result = quiet(run, tmp_path)
    assert result.manifest["verdict"] == "valid"
    assert (result.manifest["outcome"], result.manifest["pushes"] <= 1600) == ("target", True)
    assert result.final <= 2.3 < result.accuracy.accuracy.iloc[-2]
    assert result.accuracy.accuracy.iloc[0] == pytest.approx(math.log(256), abs=0.1)  # nothing is known at first
