"""Examples that are read when they are needed: the order of a run, whatever reads them; what is refused."""

from __future__ import annotations

import random

import cloudpickle
import numpy as np
import pytest
import torch
from tiny import digits, global_states
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data import Dataset as TorchDataset

from pslab.engines.worker.batches import Reader
from pslab.errors import ConfigError
from pslab.tensors.workload.data import Batches, Dataset, resolve_data


class Items(TorchDataset):
    """Examples [place, what was drawn], with labels of three classes."""

    def __init__(self, count: int = 20) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, place: int) -> tuple[torch.Tensor, int]:
        return torch.tensor([place, random.random() + np.random.rand() + float(torch.rand(()))]), place % 3


class Flow(IterableDataset):
    """The same, without random access."""

    def __init__(self, count: int = 20, told: int | None = None) -> None:
        self.items, self.told, self.epochs = Items(count), told, []

    def __len__(self) -> int:
        return self.told or len(self.items)

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)

    def __iter__(self):
        return (self.items[place] for place in range(len(self.items)))


def loaded(items: TorchDataset, processes: int = 0) -> Dataset:
    return resolve_data(lambda: (DataLoader(items, num_workers=processes), items))


def seen(data: Dataset, steps: range, seed: int = 3) -> tuple[list[list[float]], list[list[float]], list[list[int]]]:
    """Places, draws and labels of worker 1's batches."""
    reader = Reader(data, 2, 1, 4, seed)
    found = [reader.at(step) for step in steps]
    return [x[:, 0].tolist() for x, _ in found], [x[:, 1].tolist() for x, _ in found], [y.tolist() for _, y in found]


def test_the_order_is_that_of_the_named_stream_and_labels_belong_to_their_inputs():
    batches = Batches(20, 2, 1, 4, 3)
    places, draws, labels = seen(loaded(Items()), range(5))
    assert places == [batches.at(step).tolist() for step in range(5)]
    assert labels == [[int(place) % 3 for place in each] for each in places]
    assert len({draw for each in draws for draw in each}) == 20


@pytest.mark.parametrize("make", [Items, Flow])
def test_what_is_read_and_drawn_does_not_depend_on_the_number_of_loading_processes(make):
    assert seen(loaded(make(), 1 if make is Flow else 2), range(5)) == seen(loaded(make()), range(5))


@pytest.mark.parametrize("make", [Items, Flow])
def test_a_batch_is_the_same_whatever_was_read_before(make):
    data = loaded(make())
    whole = seen(data, range(5))
    for begin in (1, 3):
        assert [part[0] for part in seen(data, range(begin, begin + 1))] == [part[begin] for part in whole]
    assert seen(data, range(5), seed=4)[1] != whole[1]


def test_a_stream_is_taken_in_its_own_order_epoch_by_epoch():
    flow = Flow(20)
    assert seen(loaded(flow), range(4))[0] == [[4, 5, 6, 7], [12, 13, 14, 15]] * 2
    assert flow.epochs[-2:] == [0, 1]


def test_reading_changes_no_global_generator():
    before = global_states()
    seen(loaded(Items()), range(2))
    assert global_states() == before


def test_a_dataset_travels_to_another_process_without_its_examples():
    first = cloudpickle.dumps(data := loaded(Items(2000)))
    assert data.train_x[torch.tensor([1999, 3])][:, 0].tolist() == [1999, 3]
    assert data.train_x[-3:][:, 0].tolist() == [1997, 1998, 1999]
    assert (data.train_x.shape, data.train_y.dtype, data.classes) == ((2000, 2), torch.int64, 2)
    assert abs(len(cloudpickle.dumps(data)) - len(first)) < 100
    assert not data.stored
    assert digits().stored


def test_bytes_are_normalized_as_those_in_memory():
    class Bytes(Items):
        def __getitem__(self, place: int) -> tuple[torch.Tensor, float]:
            return torch.full((2,), place, dtype=torch.uint8), place / 2

    held = resolve_data(lambda: (x := torch.arange(20, dtype=torch.uint8)[:, None].expand(20, 2), x[:, 0] / 2) * 2)
    read = loaded(Bytes())
    assert (read.mean, read.std, read.classes) == (held.mean, held.std, 0)
    assert read.train_y.dtype == torch.float64


class Broken(Items):
    def __getitem__(self, place: int) -> tuple[torch.Tensor, int]:
        raise OSError(f"no example {place}")


@pytest.mark.parametrize(
    ("make", "problem"),
    [(lambda: loaded(Flow(), 2), "gives each of several loading processes all its examples: use num_workers=1"),
     (lambda: loaded(Endless()), "has no length, so that no epoch would end: define __len__"),
     (lambda: loaded(Broken()), "cannot be read: OSError: no example 0"),
     (lambda: loaded(Items(0)), "cannot be read|must be"),
     (lambda: loaded([torch.zeros(2)] * 4), "must be an example|must return"),
     (lambda: resolve_data(lambda: (Alone(), Alone())), r"an example must be \(input, target\)"),
     (lambda: resolve_data(lambda: (Items(), 3)), "torch's Datasets or DataLoaders, not tuple of 2")],
    ids=["several", "endless", "broken", "empty", "list", "alone", "half"],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_with_the_reason(make, problem):
    with pytest.raises(ConfigError, match=problem) as error:
        make()
    assert error.value.field == "data"


class Endless(IterableDataset):
    def __iter__(self):
        return iter(int, 1)


class Alone(Items):
    def __getitem__(self, place: int) -> torch.Tensor:
        return torch.zeros(3)


def test_a_stream_that_is_shorter_than_it_says_is_an_error():
    with pytest.raises(ValueError, match="ended before example 30 of 40"):
        seen(loaded(Flow(30, told=40)), range(5))
