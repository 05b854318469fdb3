"""A user's loss and metric on real processes and in virtual time: the same bits, and the right numbers."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest
import torch
from tiny import finished, tiny
from tools.audit.verdict import audit
from torch import Tensor, nn
from torch.utils.data import DataLoader, Subset, TensorDataset
from whole import in_process

from pslab.config.metric import metric_of
from pslab.config.run import Run
from pslab.errors import ConfigError, WorkerFailed
from pslab.lab.records.results import load
from pslab.lab.runs.resolve import resolve
from pslab.lab.runs.run import run, sweep
from pslab.tensors.workload.data import Dataset, resolve_data


@lru_cache(maxsize=1)
def numbers() -> Dataset:
    """Regression: two outputs of three inputs, with float64 targets."""
    x = torch.linspace(-1, 1, 600).view(200, 3).sin()
    y = torch.stack([x.sum(1), x[:, 0] - x[:, 2]], 1).double()
    return resolve_data(lambda: (x[:128], y[:128], x[128:], y[128:]))


@lru_cache(maxsize=1)
def words() -> Dataset:
    """Sequences of five of seven words; the target is the word that comes after each."""
    at = torch.arange(160)[:, None] * 3 + torch.arange(5)
    return resolve_data(lambda: (at[:128] % 7, (at[:128] + 1) % 7, at[128:] % 7, (at[128:] + 1) % 7))


class Next(nn.Module):
    """[B, T] words -> [B, 7, T] scores."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(7, 12), nn.Linear(12, 7)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.out(self.embed(x)).transpose(1, 2)
        return scores


def line() -> nn.Module:
    return nn.Linear(3, 2)


def huber(output: Tensor, target: Tensor) -> Tensor:
    assert output.dtype == target.dtype  # numbers come in the dtype of the run
    return nn.functional.huber_loss(output, target, delta=0.3)


def worst_error(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).abs().amax(1)


worst_error.lower_is_better = True  # type: ignore[attr-defined]

REGRESSION = {"model": line, "data": numbers, "batch_size": 8, "learning_rate": 0.3, "cluster": "lab"}
CASES = {
    "mse": {**REGRESSION, "loss": "mse", "metric": "loss"},
    "own": {**REGRESSION, "loss": huber, "metric": worst_error},
    "module": {**REGRESSION, "loss": nn.SmoothL1Loss(), "metric": worst_error, "ranges": "layers"},
    "words": {"model": Next, "data": words, "batch_size": 8, "learning_rate": 1.0, "cluster": "lab"},
}  # fmt: skip


def wanted(name: str, **fields: object) -> Run:
    return tiny(**{"pushes": 48, "eval_every": 24, **CASES[name], **fields})


@pytest.mark.one_of(2)
@pytest.mark.parametrize("name", CASES)
def test_real_processes_and_virtual_time_learn_with_the_same_bits(name):
    local, virtual = (finished(wanted(name, engine=each)) for each in ("local", "virtual"))
    for other in (virtual, in_process(wanted(name, engine="virtual"))):
        assert np.array_equal(local.weights, other.weights)
        assert np.array_equal(local.accuracy[:, [0, 2, 3]], other.accuracy[:, [0, 2, 3]])
    first, last = local.accuracy[0], local.accuracy[-1]
    assert last[3] < first[3]


def test_a_loss_and_a_metric_go_by_their_path_to_the_same_bits(tmp_path):
    named = wanted("own", engine="virtual", loss=f"{__name__}:huber", metric=f"{__name__}:worst_error:lower")
    one, other = (run(each, results=tmp_path, progress=False) for each in (named, wanted("own", engine="virtual")))
    assert one.digest != other.digest
    assert one.manifest["weights_sha256"] == other.manifest["weights_sha256"]
    assert one.accuracy.equals(other.accuracy)
    assert one.manifest["verdict"] == "valid"
    (again,) = sweep([Run.of(named.plain() | {"model": line, "data": numbers})], results=tmp_path, progress=False)
    assert again.cached
    assert metric_of(load(one.path).run) == metric_of(other.run)


def test_the_digest_knows_the_file_that_a_loss_comes_from(tmp_path, monkeypatch):
    found = []
    for number, weight in enumerate((1, 2)):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "pslab_own_loss.py").write_text(f"def loss(output, target):\n    return {weight} * output.mean()\n")
        with monkeypatch.context() as patch:
            patch.syspath_prepend(folder)
            found.append(tiny(loss="pslab_own_loss:loss").digest)
    assert found[0] != found[1]


def test_a_path_that_hides_that_lower_is_better_is_refused():
    with pytest.raises(ConfigError, match=f"lower is better.*write '{__name__}:worst_error:lower'") as error:
        resolve(wanted("own", metric=f"{__name__}:worst_error"))
    assert error.value.field == "metric"


@pytest.mark.parametrize(
    ("value", "problem"),
    [("mes", "did you mean 'mse'"), ("mse:3", "mse takes no parameters"), ("os:getcwdd", "did you mean 'getcwd'"),
     ("absent_module:loss", "cannot be imported: ModuleNotFoundError"), ("torch.nn:MSELoss", "is a class"),
     ("os:sep", "must be one of .*package.module:name"), ("os:path.", "form package.module:name")],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["loss", "metric"])
def test_a_path_that_leads_to_no_loss_or_metric_is_refused(kind, value, problem):
    if kind == "metric":
        value, problem = ({"mes": "los", "mse:3": "loss:3"}.get(value, value), problem.replace("mse", "loss"))
    with pytest.raises(ConfigError, match=problem):
        resolve(tiny(**{kind: value}))


def test_an_evaluation_is_the_loss_and_the_metric_of_the_whole_test_set():
    data, model, given = numbers(), line(), wanted("own", engine="virtual")
    found = in_process(given)
    resolve(given).keyspace.bind(model, torch.from_numpy(found.weights.copy()), None)
    with torch.no_grad():
        output, target = model(data.test_x), data.test_y.float()
        assert found.accuracy[-1][3] == pytest.approx(float(huber(output, target)), rel=1e-5)
        assert found.accuracy[-1][2] == pytest.approx(float(worst_error(output, target).mean()), rel=1e-5)


def below_zero(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).pow(2).mean() - 9.0


@pytest.mark.parametrize("fields", [{}, {"loss": below_zero}, {"metric": worst_error}], ids=["mse", "loss", "metric"])
def test_an_audit_knows_the_values_of_named_losses_and_the_accuracy_alone(tmp_path, fields):
    result = run(wanted("mse", engine="virtual", **fields), results=tmp_path, progress=False)
    assert result.manifest["verdict"] == "valid"
    tables = {"accuracy": result.accuracy, "phases": result.phases, "pushes": result.pushes,
              "arrivals": result.arrivals}  # fmt: skip
    low = {**tables, "pushes": result.pushes.assign(loss=-1.0)}
    recorded = Run.of(result.run.plain())
    verdict = audit(recorded, low, result.manifest)
    assert any("has a loss of -1" in each for each in verdict.violations) == ("loss" not in fields)


@pytest.mark.parametrize("engine", ["local", "virtual"])
def test_a_run_stops_when_a_metric_that_is_better_where_lower_has_fallen_to_the_target(engine):
    given = wanted("mse", engine=engine, pushes=4000, eval_every=8, target_accuracy=0.05)
    outcome = finished(given)
    assert outcome.facts["outcome"] == "target"
    assert outcome.facts["pushes"] < 4000
    assert min(outcome.accuracy[:, 2]) <= 0.05 < outcome.accuracy[0, 2]


def test_only_a_named_loss_leaves_a_gradient_to_any_process():
    assert resolve(wanted("mse")).portable
    assert not resolve(wanted("own")).portable


# --- labels -----------------------------------------------------------------------------------------------------------

X, Y = torch.linspace(-2, 2, 384).view(64, 6).sin(), torch.arange(64) % 3


class Items(torch.utils.data.Dataset):
    """Examples that are read one by one, of which the labels are not known before."""

    def __init__(self, y: Tensor) -> None:
        self.y = y

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, place: int) -> tuple[Tensor, Tensor]:
        return X[place], self.y[place]


def changed(places: slice | list[int], label: int) -> Tensor:
    y = Y.clone()
    y[places] = label
    return y


GIVEN = {
    "tensors": lambda y: (X, y, X, y), "loaders": lambda y: [DataLoader(TensorDataset(X, y))] * 2,
    "parts": lambda y: [DataLoader(Subset(TensorDataset(X, y), range(64)), sampler=range(64))] * 2,
    "items": lambda y: [DataLoader(Items(y))] * 2, "chosen": lambda y: [DataLoader(Items(y), sampler=range(8, 60))] * 2,
}  # fmt: skip


def scored(y: Tensor, given: str, **fields: object) -> Run:
    return tiny(engine="virtual", cluster="lab", model=nn.Linear(6, 3), data=lambda: GIVEN[given](y), workers=2,
                pushes=4, **fields)  # fmt: skip


@pytest.mark.parametrize("given", ["tensors", "loaders", "parts"])
@pytest.mark.parametrize(
    ("y", "loss", "problem"),
    [(changed([40], 7), "cross_entropy", "at least 8 classes"),
     (Y + 1, "cross_entropy", "at least 4 classes .* count from 0"),
     (changed([40], -100), "cross_entropy", r"CrossEntropyLoss\(ignore_index=-100\)"),
     (changed([40], -1), nn.CrossEntropyLoss(), "Target -1 is out of bounds"),
     (changed([40], 3), nn.CrossEntropyLoss(), "Target 3 is out of bounds"),
     (changed([40], -100), lambda output, y: nn.functional.cross_entropy(output, y), "ignore_index must say so")],
    ids=["high", "from one", "ignored", "own", "own high", "unsaid"],
)  # fmt: skip
def test_a_label_out_of_range_is_refused_however_it_is_given(given, y, loss, problem):
    with pytest.raises(ConfigError, match=problem):
        resolve(scored(y, given, loss=loss))


@pytest.mark.parametrize(("label", "loss"), [(7, "cross_entropy"), (-100, "cross_entropy"), (7, nn.CrossEntropyLoss())])
@pytest.mark.parametrize("given", ["items", "chosen"])
def test_a_label_out_of_range_that_was_not_read_before_ends_a_run_with_the_example(given, label, loss):
    with pytest.raises(WorkerFailed, match=f"(training|test) example 40 has the label {label}, .* 3 outputs") as error:
        finished(scored(changed([40], label), given, loss=loss))
    assert "Traceback" not in str(error.value)


@pytest.mark.parametrize("given", [name for name in GIVEN if name != "chosen"])
@pytest.mark.parametrize("ignored", [-100, 1, 255])
def test_accuracy_leaves_out_the_labels_that_the_loss_ignores(given, ignored):
    y = changed(slice(10, 40), ignored)
    experiment = resolve(scored(y, given, loss=nn.CrossEntropyLoss(ignore_index=ignored)))
    model, found = nn.Linear(6, 3), finished(experiment)
    experiment.keyspace.bind(model, torch.from_numpy(found.weights.copy()), None)
    with torch.no_grad():
        right = (model(X).argmax(1) == y)[y != ignored]
        expected = nn.CrossEntropyLoss(ignore_index=ignored)(model(X), y)
    assert found.accuracy[-1][2] == pytest.approx(float(right.double().mean()), rel=1e-12)
    assert found.accuracy[-1][3] == pytest.approx(float(expected), rel=1e-6)


def test_accuracy_with_ignored_labels_is_that_of_the_whole_test_set():
    test, y = X.repeat(40, 1), torch.arange(2560) % 3
    y[30:1000] = -100
    given = tiny(engine="virtual", cluster="lab", model=nn.Linear(6, 3), data=lambda: (X, Y, test, y), workers=2,
                 pushes=4, loss=nn.CrossEntropyLoss())  # fmt: skip
    model, found = nn.Linear(6, 3), finished(given)
    resolve(given).keyspace.bind(model, torch.from_numpy(found.weights.copy()), None)
    with torch.no_grad():
        right = (model(test).argmax(1) == y)[y >= 0].double().mean()
    assert found.accuracy[-1][2] == pytest.approx(float(right), rel=1e-12)
