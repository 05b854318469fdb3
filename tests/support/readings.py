"""A user's data sets whose examples are read when they are needed, and what a worker reads of them."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, Sampler
from torch.utils.data import Dataset as TorchDataset

from pslab.engines.worker.batches import reader_of
from pslab.tensors.workload.data import Dataset, resolve_data


def of_all_generators() -> float:
    """A draw of each global generator, added up."""
    return random.random() + np.random.rand() + float(torch.rand(()))


class Items(TorchDataset):
    """Examples [number, what a function draws], with labels of three classes."""

    def __init__(self, count: int = 20, draw: Callable[[], float] = of_all_generators) -> None:
        self.count, self.draw = count, draw

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        return torch.tensor([number, self.draw()], dtype=torch.float32), number % 3


class Flow(Items, IterableDataset):
    """The same, without random access."""

    def __init__(self, count: int = 20, draw: Callable[[], float] = of_all_generators, told: int = 0) -> None:
        super().__init__(count, draw)
        self.told, self.epochs = told or count, []

    def __len__(self) -> int:
        return self.told

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)

    def __iter__(self):
        return (self[number] for number in range(self.count))


class Endless(IterableDataset):
    def __iter__(self):
        return iter(int, 1)


class Broken(Items):
    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        raise OSError(f"no example {number}")


class Rest(Sampler[int]):
    """The examples from `begin` on, of one kind in an epoch if the sampler is told which it is."""

    def __init__(self, begin: int, alternating: bool = False) -> None:
        self.begin = begin
        if alternating:
            self.set_epoch = functools.partial(setattr, self, "begin")

    def __iter__(self):
        return iter(range(self.begin, 20))


def loaded(items: TorchDataset, processes: int = 0, **more: object) -> Dataset:
    return resolve_data(lambda: (DataLoader(items, num_workers=processes, **more), Items()))


def seen(data: Dataset, steps: range, seed: int = 3) -> tuple[list[list[float]], list[list[float]], list[list[int]]]:
    """Numbers, draws and labels of worker 1's batches."""
    reader = reader_of(data, 2, 1, 4, seed)
    read = [reader.at(step) for step in steps]
    return [x[:, 0].tolist() for x, _ in read], [x[:, 1].tolist() for x, _ in read], [y.tolist() for _, y in read]
