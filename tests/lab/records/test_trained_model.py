"""The trained model of a record, as torch users load it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import digits, tiny
from torch import Tensor, nn

from pslab.errors import ConfigError, RecordError
from pslab.lab.runs.run import run
from pslab.tensors.workload.data import batch


class Normed(nn.Module):
    """With running statistics, a frozen layer and one that nothing reaches."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen, self.norm = nn.Linear(49, 16), nn.BatchNorm1d(16)
        self.spare, self.head = nn.Linear(3, 2), nn.Linear(16, 10)
        self.frozen.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.head(self.norm(self.frozen(x.flatten(1) * 3)))
        return output


@pytest.mark.filterwarnings("ignore:no loss reaches")
def test_the_model_of_a_result_is_the_one_that_was_evaluated(tmp_path: Path):
    result = run(tiny(model=Normed, engine="virtual", cluster="lab"), results=tmp_path)
    data, model, loaded = digits(), result.model(), Normed()
    assert loaded.load_state_dict(result.state_dict()).missing_keys == []
    x = batch(data.test_x, torch.float32, data.mean, data.std)
    for each in (model, loaded.eval()):
        assert float((each(x).argmax(1) == data.test_y).double().mean()) == result.final
    assert result.final > 0.2
    trained = nn.utils.parameters_to_vector([each for each in model.parameters() if each.requires_grad])
    assert torch.equal(trained, torch.from_numpy(result.weights.copy()))


@pytest.mark.parametrize("model", ["mlp:8", nn.Sequential(nn.Flatten(), nn.Linear(784, 10))], ids=["name", "object"])
def test_models_by_name_and_objects(tmp_path: Path, model: Any):
    result = run(tiny(model=model, data="mnist:train=256,test=64", engine="virtual", cluster="lab"), results=tmp_path)
    again = [result.model() for _ in range(2)]
    wanted = nn.utils.parameters_to_vector(again[0].parameters())
    assert torch.equal(wanted, torch.from_numpy(result.weights.copy()))
    next(again[1].parameters()).data.zero_()  # to train it further changes no other
    assert torch.equal(nn.utils.parameters_to_vector(result.model().parameters()), wanted)


def test_weights_that_were_not_kept_or_are_of_another_model_are_refused(tmp_path: Path):
    kept = run(tiny(engine="virtual", cluster="lab"), results=tmp_path)
    with pytest.raises(ConfigError, match="has 12 trainable weights, and the record 1,930: it was changed since"):
        type(kept)(kept.run.but(model=lambda: nn.Linear(2, 4)), kept.path, kept.manifest).model()
    lost = run(tiny(engine="virtual", cluster="lab", keep_weights=False, seed=1), results=tmp_path)
    with pytest.raises(RecordError, match="run it with keep_weights=True"):
        lost.model()
