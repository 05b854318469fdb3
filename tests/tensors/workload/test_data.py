"""Examples in memory and those that are read when they are needed: data sets, batches, and whatever reads or draws."""

from __future__ import annotations

import functools
import inspect
import random
from pathlib import Path

import cloudpickle
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from idx_files import digits, write
from readings import Flow, Items, loaded, of_all_generators, seen
from tiny import digits as small_digits
from tiny import global_states
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
    default_collate,
    get_worker_info,
)

from pslab.config.content import content
from pslab.errors import ConfigError
from pslab.tensors.workload.data import VISION, Batches, Dataset, batch, batch_slices, data_root, resolve_data
from pslab.tensors.workload.reading import ARGUMENTS
from pslab.tensors.workload.torchvision_ops import torchvision

ROOT = Path(__file__).resolve().parents[3] / "data"


def test_the_root_is_named_or_the_nearest_folder_upwards_or_that_of_the_sources(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("PSLAB_DATA", str(tmp_path / "elsewhere"))
    assert data_root() == tmp_path / "elsewhere"
    monkeypatch.delenv("PSLAB_DATA")
    monkeypatch.chdir(tmp_path)
    assert data_root() == ROOT
    for folder in (tmp_path, tmp_path / "project"):
        write(folder / "data" / "MNIST")
    (tmp_path / "project" / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path / "project" / "notebooks")
    assert data_root() == tmp_path / "project" / "data"


def test_datasets_of_torchvision(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    write(tmp_path / "FashionMNIST", packed=False)
    data = resolve_data("torchvision:fashionmnist", tmp_path)
    images, labels = digits(20, 20)
    assert data.train_x.shape == (20, 1, 28, 28)
    assert np.array_equal(data.train_x.squeeze(1).numpy(), images)
    assert (data.train_y.tolist(), data.test_y.tolist()) == (labels.tolist(), digits(10, 10)[1].tolist())
    assert (data.mean, data.std) == (pytest.approx(images.mean() / 255), pytest.approx(images.std() / 255))
    assert all(hasattr(torchvision().datasets, name) for name in VISION)

    class CIFAR10:
        """The data set without its files, with the colour of a pixel last."""

        def __init__(self, root: Path, train: bool, **more: object) -> None:
            self.data, self.targets = np.arange(2 * 4 * 5 * 3, dtype=np.uint8).reshape(2, 4, 5, 3), [0, 1]

    monkeypatch.setattr(torchvision().datasets, "CIFAR10", CIFAR10)
    found = resolve_data("torchvision:cifar10", tmp_path).train_x
    assert torch.equal(found, torch.arange(120, dtype=torch.uint8).view(2, 4, 5, 3).permute(0, 3, 1, 2))


def tensors() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return torch.rand(6, 3), torch.tensor([0, 1, 2, 0, 1, 2]), torch.rand(4, 3), torch.tensor([0, 1, 2, 4])


def test_a_users_function_gives_floats_as_they_are_or_bytes_that_are_measured_or_a_dataset():
    floats = resolve_data(tensors)
    assert (floats.name, floats.mean, floats.std, floats.classes) == ("tensors", 0.0, 1.0, 5)
    assert torch.equal(batch(floats.train_x, torch.float32, floats.mean, floats.std), floats.train_x)
    x = np.array([[0, 255], [255, 255]], np.uint8)
    data = resolve_data(lambda: (x, [0, 1], np.zeros((1, 2), np.uint8), np.ones(1, np.int32)))
    assert (data.mean, data.classes, data.test_y.dtype) == (0.75, 2, torch.int64)
    assert data.std == pytest.approx(np.std([0, 1, 1, 1]))
    assert data.train_y.tolist() == [0, 1]
    given = Dataset("mine", *tensors(), mean=0.5, std=2.0, classes=7)
    assert resolve_data(given) is resolve_data(lambda: given) is given
    assert "tensor" not in repr(given)


def test_bytes_are_normalized_as_torchvision_does_and_tokens_and_floats_are_not():
    x = torch.arange(256, dtype=torch.uint8).view(2, 1, 8, 16)
    tokens = Dataset("tokens", x, x.long(), x, x.long(), mean=None, std=1.0, classes=256)
    for dtype in (torch.float32, torch.float64):
        wanted = torchvision().transforms.Normalize([0.1307], [0.3081])(x.to(dtype) / 255)
        assert torch.equal(batch(x, dtype, 0.1307, 0.3081), wanted)
        floats = torch.tensor([[1.0, 3.0]])  # not divided by 255, and not changed
        assert (batch(floats, dtype, 1.0, 2.0).tolist(), floats.tolist()) == ([[0.0, 1.0]], [[1.0, 3.0]])
        read = batch(tokens.train_x, dtype, tokens.mean, tokens.std)
        assert (tokens.tokens, read.dtype, read.tolist()) == (True, torch.int64, x.tolist())


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 6), st.integers(1, 5), st.integers(0, 40), st.integers(0, 2**63 - 1), st.integers(0, 30))
def test_workers_together_take_the_batch_of_one_worker(workers: int, size: int, more: int, seed: int, at: int):
    examples = workers * size + more
    one = Batches(examples, 1, 0, workers * size, seed).at(at)
    parts = [Batches(examples, workers, worker, size, seed).at(at) for worker in range(workers)]
    assert np.concatenate(parts).tolist() == one.tolist()
    assert all(part.dtype == np.int64 and part.shape == (size,) for part in parts)


def test_an_epoch_takes_every_example_at_most_once_in_a_new_order():
    batches = Batches(103, 1, 0, 10, 5)
    assert batches.rounds == 10
    epochs = [np.concatenate([batches.at(10 * epoch + i) for i in range(10)]) for epoch in range(3)]
    assert all(len(set(epoch.tolist())) == 100 and 0 <= epoch.min() <= epoch.max() < 103 for epoch in epochs)
    assert epochs[0].tolist() != epochs[1].tolist() != epochs[2].tolist()
    assert set(epochs[0].tolist()) != set(epochs[1].tolist()), "another three are left out"
    batches.at(3)[:] = 0  # the caller may write to its batch
    assert batches.at(3).tolist() == epochs[0][30:40].tolist() != Batches(103, 1, 0, 10, 6).at(3).tolist()
    assert Batches(60_000, 4, 2, 4, 0).at(0).tolist() == [15998, 9568, 53042, 57692]  # pinned


def test_with_parts_a_worker_takes_its_own_examples_once_a_pass_and_each_counts_the_same():
    counts, sizes = np.zeros(60), np.repeat([0, 1, 2], [10, 30, 20])
    for worker, own in enumerate(np.split(np.arange(60), [10, 40])):
        batches = Batches(60, 3, worker, 4, 7, parts=sizes)
        for epoch in range(2):
            taken = [batches.at(epoch * batches.rounds + turn) for turn in range(batches.rounds)]
            assert np.array_equal(np.sort(np.concatenate(taken)), own)
            for turn, examples in enumerate(taken):
                counts[examples] += batches.share(turn) / len(examples)
        assert not np.array_equal(batches.at(0), batches.at(batches.rounds))  # another order in each epoch
    assert np.allclose(counts, counts[0])
    assert counts.sum() == pytest.approx(2 * 3 * batches.rounds)  # the mean of a round's shares is 1


def test_no_batch_of_an_evaluation_is_a_single_example():
    for examples, size, lengths in ((2000, 1000, [1000, 1000]), (2001, 1000, [1000, 1001]), (1002, 1000, [1000, 2]),
                                    (1, 1000, [1]), (3, 1, [3]), (4, 0, [2, 2])):  # fmt: skip
        slices = batch_slices(examples, size)
        assert [each.stop - each.start for each in slices] == lengths
        assert [place for each in slices for place in range(examples)[each]] == list(range(examples))


SHARED = np.random.default_rng(5)  # of this module, which a Dataset reads


class Nested:
    __slots__ = ("inner",)

    def __init__(self, generator) -> None:
        self.inner = {"in": [generator]}

    def __call__(self) -> float:
        return self.inner["in"][0].standard_normal()


class Lazy:
    generator = None

    def __call__(self) -> float:
        if self.generator is None:
            self.generator = np.random.default_rng()
        return self.generator.random()


def closing(generator):
    return lambda: float(torch.rand((), generator=generator, dtype=torch.float64))


DRAWS = {
    "numpy": lambda: np.random.default_rng(0).random, "state": lambda: np.random.RandomState(0).randn,
    "philox": lambda: functools.partial(np.random.Generator(np.random.Philox(0)).normal, 1.0),
    "python": lambda: random.Random(0).random, "torch": lambda: closing(torch.Generator().manual_seed(0)),
    "nested": lambda: Nested(np.random.default_rng(0)), "global": lambda: lambda: SHARED.random(), "lazy": Lazy,
    "all global ones": lambda: of_all_generators,
}  # fmt: skip


@pytest.mark.parametrize("make", [Items, Flow])
def test_a_batch_depends_on_seed_and_step_alone_whatever_reads_it_and_whatever_draws_in_it(make):
    before, batches = global_states(), Batches(20, 2, 1, 4, 3)
    for kind, draw in DRAWS.items():
        untried = content(dataset := Items(20, draw()))
        loaded(dataset)
        assert content(dataset) == untried or kind == "lazy", kind  # examples that are tried leave it as it is
        places, draws, labels = read = seen(loaded(make(20, draw())), range(5))
        assert len({each for batch in draws[:4] for each in batch}) == 16, kind
        assert labels == [[int(place) % 3 for place in each] for each in places]
        if make is Items:
            assert places == [batches.at(step).tolist() for step in range(5)]
        for begin, end in ((1, 2), (3, 5)):  # whatever was read before
            part = seen(loaded(make(20, draw())), range(begin, end))
            assert part == tuple(each[begin:end] for each in read), kind
        assert seen(loaded(make(20, draw())), range(5), seed=4)[1] != draws, kind
        if kind in ("nested", "lazy", "all global ones"):
            assert seen(loaded(make(20, draw()), 1 if make is Flow else 2), range(5)) == read, kind
    assert global_states() == before


def test_a_generator_of_a_collate_fn_is_seeded_too():
    generator = np.random.default_rng(0)

    def shaken(examples):
        x, y = default_collate(examples)
        return x + generator.random(), y

    assert seen(loaded(Items(), 2, collate_fn=shaken), range(4)) == seen(loaded(Items(), collate_fn=shaken), range(4))


def test_a_stream_is_taken_in_its_own_order_and_a_dataset_is_told_the_epoch():
    class Epochs(Items):
        def set_epoch(self, epoch: int) -> None:
            self.draw = lambda: epoch

    flow = Flow()
    assert seen(loaded(flow), range(4))[0] == [[4, 5, 6, 7], [12, 13, 14, 15]] * 2
    assert flow.epochs[-2:] == [0, 1]
    for processes in (0, 1):
        assert seen(loaded(Epochs(), processes), range(4))[1] == [[0] * 4] * 2 + [[1] * 4] * 2
    with pytest.raises(ValueError, match="ended before example 30 of 40"):
        seen(loaded(Flow(30, told=40)), range(5))


def test_a_dataset_travels_to_another_process_without_its_examples():
    first = cloudpickle.dumps(data := loaded(Items(2000)))
    assert data.train_x[torch.tensor([1999, 3])][:, 0].tolist() == [1999, 3]
    assert data.train_x[-3:][:, 0].tolist() == [1997, 1998, 1999]
    assert (data.train_x.shape, data.train_y.dtype, data.classes) == ((2000, 2), torch.int64, 2)
    assert abs(len(cloudpickle.dumps(data)) - len(first)) < 100
    assert (data.stored, small_digits().stored) == (False, True)


def test_each_argument_of_a_dataloader_is_taken_without_effect_or_refused():
    assert inspect.signature(DataLoader).parameters.keys() <= ARGUMENTS.keys()
    plain = seen(loaded(Items()), range(5))
    given = {"batch_size": 3, "shuffle": True, "drop_last": True, "generator": torch.Generator().manual_seed(9),
             "persistent_workers": True, "prefetch_factor": 3, "timeout": 60.0, "in_order": False,
             "pin_memory": False}  # fmt: skip
    assert seen(loaded(Items(), 1, **given), range(5)) == plain


class Filed(Items):
    """Examples of a file that each loading process opens by itself."""

    opened = None

    def __getitem__(self, place: int) -> tuple[torch.Tensor, int]:
        return torch.tensor([float(self.opened[place]), 0.0]), 0


def opening(number: int) -> None:
    dataset = get_worker_info().dataset
    getattr(dataset, "dataset", dataset).opened = range(100, 140)


def test_a_worker_init_fn_prepares_each_loading_process():
    for dataset, sampler, lowest in ((Filed(40), range(20, 40), 120), (Subset(Filed(40), range(20, 40)), None, 120)):
        read = seen(loaded(dataset, 2, worker_init_fn=opening, sampler=sampler), range(2))[0]
        assert all(lowest <= place < 140 for batch in read for place in batch)


def loaders() -> st.SearchStrategy[dict[str, object]]:
    places = st.lists(st.integers(0, 12), min_size=1, max_size=14)
    samplers = st.one_of(
        st.none(), places, places.map(SubsetRandomSampler),
        st.builds(WeightedRandomSampler, st.just([1.0] * 12), st.integers(1, 12), st.booleans()),
        st.builds(RandomSampler, st.just(range(12)), st.booleans(), st.integers(1, 14)),
        st.integers(1, 12).map(lambda count: SequentialSampler(range(count))),
    )  # fmt: skip
    some = st.fixed_dictionaries({"sampler": samplers, "batch_size": st.sampled_from([None, 1, 2, 5])}, optional={
        "num_workers": st.sampled_from([0] * 9 + [1]), "drop_last": st.booleans(), "collate_fn": st.just(list),
        "generator": st.just(torch.Generator())})  # fmt: skip
    return st.one_of(some, st.fixed_dictionaries({"batch_sampler": st.just([[0, 1], [2, 3]])}))


@settings(max_examples=50, deadline=None)
@given(loaders(), st.booleans())
def test_a_drawn_dataloader_gives_what_torch_reads_or_is_refused(arguments, train):
    """Of its collate_fn, which makes no pairs here, the error says so."""
    try:
        loader = DataLoader(Items(12), **arguments)
    except ValueError:  # torch refuses it
        return
    before = global_states()
    try:
        data = resolve_data(lambda: (loader, Items(12)) if train else (Items(12), loader))
    except ConfigError as error:
        problem = str(error)
        named = any(f" {name}=" in problem for name in arguments)
        assert named or "its sampler" in problem or "collate_fn" in arguments
        return
    read = (data.train_x if train else data.test_x)[:][:, 0].tolist()
    assert global_states() == before
    wanted = [int(place) for x, _ in loader for place in x[:, 0]]
    assert sorted(wanted) == read or (train and loader.drop_last and set(wanted) < set(read))
