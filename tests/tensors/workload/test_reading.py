"""Examples that are read when they are needed: the order of a run, whatever reads them; what is refused."""

from __future__ import annotations

import functools
import inspect
import random

import cloudpickle
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import digits, global_states
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
    get_worker_info,
)
from torch.utils.data import Dataset as TorchDataset

from pslab.config.content import content
from pslab.engines.worker.batches import reader_of
from pslab.errors import ConfigError
from pslab.tensors.workload.data import Batches, Dataset, batch_slices, resolve_data
from pslab.tensors.workload.reading import ARGUMENTS


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
    reader = reader_of(data, 2, 1, 4, seed)
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
     (lambda: loaded(TensorDataset(torch.ones(4, 2), torch.ones(4, 2) + 1j)), "real numbers, .*torch.complex64: give"),
     (lambda: resolve_data(lambda: (Items(), 3)), "torch's Datasets or DataLoaders, not tuple of 2"),
     (lambda: loaded(Broken(), 1), "cannot be read: OSError: no example 0$")],
    ids=["several", "endless", "broken", "empty", "list", "alone", "complex", "half", "in a loading process"],
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


# --- a user's DataLoader ----------------------------------------------------------------------------------------------


def test_each_argument_of_a_dataloader_is_taken_without_effect_or_refused():
    assert inspect.signature(DataLoader).parameters.keys() <= ARGUMENTS.keys()


class Rest(torch.utils.data.Sampler[int]):
    """The examples from `begin` on, of one kind in an epoch if the sampler is told which it is."""

    def __init__(self, begin: int, alternating: bool = False) -> None:
        self.begin = begin
        if alternating:
            self.set_epoch = functools.partial(setattr, self, "begin")

    def __iter__(self):
        return iter(range(self.begin, 20))


@pytest.mark.parametrize(
    ("sampler", "taken"),
    [(SubsetRandomSampler(range(12, 0, -1)), range(1, 13)), (SequentialSampler(range(9)), range(9)),
     (RandomSampler(range(12)), range(12)), (Rest(10), range(10, 20)),
     ([3, 19, 4, 5, 8, 9, 1, 0], [3, 19, 4, 5, 8, 9, 1, 0]), (torch.tensor([7, 2, 3, 1, 0, 5, 6, 4]), range(8))],
    ids=["subset", "sequential", "random", "own", "list", "tensor"],
)  # fmt: skip
def test_of_a_sampler_the_set_of_its_indices_is_taken(sampler, taken):
    before = global_states()
    data = resolve_data(lambda: (DataLoader(Items(), sampler=sampler), DataLoader(Items(), sampler=sampler)))
    steps = range(Batches(len(taken), 1, 0, 4, 3).rounds)
    read = [reader_of(data, 1, 0, 4, 3).at(step)[0][:, 0].tolist() for step in steps]
    left_out = len(taken) % 4
    assert len({place for batch in read for place in batch} & set(taken)) == len(taken) - left_out
    assert data.test_x[:][:, 0].tolist() == sorted(taken)
    assert global_states() == before


class Own(DataLoader):
    def __iter__(self):
        return iter([])


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [({"sampler": WeightedRandomSampler([1.0] * 20, 20, replacement=False)}, "sampler .WeightedRandomSampler. must"),
     ({"sampler": RandomSampler(range(20), replacement=True)}, "its sampler .RandomSampler. must give the same"),
     ({"sampler": RandomSampler(range(20), num_samples=7)}, "the same examples in each epoch"),
     ({"sampler": RandomSampler(range(20), num_samples=30)}, "each once"), ({"sampler": [1, 1]}, "each once"),
     ({"sampler": Rest(0, alternating=True)}, "its sampler .Rest. must"), ({"sampler": [5, 20]}, "from 0 to 19"),
     ({"sampler": iter(range(9))}, "its sampler"), ({"sampler": []}, "its sampler"),
     ({"sampler": BatchSampler(range(20), 4, False)}, "its sampler cannot be taken: TypeError"),
     ({"batch_sampler": BatchSampler(range(20), 4, False)}, "batch_sampler= of its DataLoader cannot be taken"),
     ({"batch_size": None}, "batch_size= of its DataLoader cannot be taken"),
     ({"num_workers": 1, "multiprocessing_context": "spawn"}, "multiprocessing_context= .* forked"),
     ({"drop_last": True, "batch_size": 8}, "test: drop_last= .* all test examples are evaluated"),
     ({"kind": Own}, "Own.__iter__ would not be called")],
)  # fmt: skip
def test_what_would_be_lost_of_a_dataloader_is_refused(arguments, problem):
    loader = {"kind": DataLoader, **arguments}
    with pytest.raises(ConfigError, match=problem):
        resolve_data(lambda: (Items(), loader.pop("kind")(Items(), **loader)))


def test_what_changes_no_example_is_accepted():
    plain = seen(loaded(Items()), range(5))
    given = {"batch_size": 3, "shuffle": True, "drop_last": True, "generator": torch.Generator().manual_seed(9),
             "num_workers": 1, "persistent_workers": True, "prefetch_factor": 3, "timeout": 60.0, "in_order": False,
             "pin_memory": False}  # fmt: skip
    assert seen(resolve_data(lambda: (DataLoader(Items(), **given), Items())), range(5)) == plain


class Filed(Items):
    """Examples of a file that each loading process opens by itself."""

    opened = None

    def __getitem__(self, place: int) -> tuple[torch.Tensor, int]:
        return torch.tensor([float(self.opened[place]), 0.0]), 0


def opening(number: int) -> None:
    get_worker_info().dataset.opened = range(100, 140)


def opening_part(number: int) -> None:
    get_worker_info().dataset.dataset.opened = range(100, 140)


@pytest.mark.parametrize(
    ("dataset", "sampler", "begin"),
    [(Filed(40), None, opening), (Filed(40), range(20, 40), opening),
     (Subset(Filed(40), range(20, 40)), None, opening_part)],
)  # fmt: skip
def test_a_worker_init_fn_prepares_each_loading_process(dataset, sampler, begin):
    def pair() -> tuple[DataLoader, TorchDataset]:
        return DataLoader(dataset, num_workers=2, worker_init_fn=begin, sampler=sampler), Items()

    read = seen(resolve_data(pair), range(2))[0]
    lowest = 100 if begin is opening and sampler is None else 120
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
        "num_workers": st.sampled_from([0, 0, 0, 1]), "drop_last": st.booleans(), "collate_fn": st.just(list),
        "generator": st.just(torch.Generator())})  # fmt: skip
    return st.one_of(some, st.fixed_dictionaries({"batch_sampler": st.just([[0, 1], [2, 3]])}))


@settings(max_examples=60, deadline=None)
@given(loaders(), st.booleans())
def test_a_drawn_dataloader_gives_what_torch_reads_or_is_refused(arguments, train):
    """Of its collate_fn, which makes no pairs here, the error says so."""
    try:
        loader = DataLoader(Items(12), **arguments)
    except ValueError:  # torch refuses it
        return
    try:
        data = resolve_data(lambda: (loader, Items(12)) if train else (Items(12), loader))
    except ConfigError as error:
        problem = str(error)
    else:
        problem = ""
    if problem:
        named = any(f" {name}=" in problem for name in arguments)
        assert named or "its sampler" in problem or "collate_fn" in arguments
        return
    read = (data.train_x if train else data.test_x)[:][:, 0].tolist()
    wanted = [int(place) for x, _ in loader for place in x[:, 0]]
    assert sorted(wanted) == read or (train and loader.drop_last and set(wanted) < set(read))


# --- generators of a Dataset ------------------------------------------------------------------------------------------

SHARED = np.random.default_rng(5)  # of this module, which a Dataset reads


class Drawing(Items):
    """Examples [place, what a function draws]."""

    def __init__(self, draw) -> None:
        super().__init__()
        self.draw = draw

    def __getitem__(self, place: int) -> tuple[torch.Tensor, int]:
        return torch.tensor([place, self.draw()], dtype=torch.float32), place % 3


class Drawn(Drawing, IterableDataset):
    def __iter__(self):
        return (self[place] for place in range(len(self)))


class Nested:
    __slots__ = ("inner",)

    def __init__(self, generator) -> None:
        self.inner = {"in": [generator]}

    def __call__(self) -> float:
        return self.inner["in"][0].standard_normal()


def closing(generator):
    return lambda: float(torch.rand((), generator=generator, dtype=torch.float64))


class Lazy:
    generator = None

    def __call__(self) -> float:
        if self.generator is None:
            self.generator = np.random.default_rng()
        return self.generator.random()


OWN = {
    "numpy": lambda: np.random.default_rng(0).random, "state": lambda: np.random.RandomState(0).randn,
    "philox": lambda: functools.partial(np.random.Generator(np.random.Philox(0)).normal, 1.0),
    "python": lambda: random.Random(0).random, "torch": lambda: closing(torch.Generator().manual_seed(0)),
    "nested": lambda: Nested(np.random.default_rng(0)), "global": lambda: lambda: SHARED.random(), "lazy": Lazy,
}  # fmt: skip


@pytest.mark.parametrize("kind", OWN)
@pytest.mark.parametrize("make", [Drawing, Drawn])
def test_what_a_generator_of_a_dataset_draws_depends_on_the_example_alone(make, kind):
    def pair(processes: int) -> Dataset:
        return resolve_data(lambda: (DataLoader(make(OWN[kind]()), num_workers=processes), Items()))

    read = seen(pair(0), range(4))
    assert len({draw for batch in read[1] for draw in batch}) == 16
    assert seen(pair(1 if make is Drawn else 2), range(4)) == read
    assert seen(pair(0), range(2, 4))[1] == read[1][2:]
    assert seen(pair(0), range(4), seed=4)[1] != read[1]


def test_a_generator_of_a_collate_fn_does_so_too():
    generator = np.random.default_rng(0)

    def shaken(examples):
        x, y = default_collate(examples)
        return x + generator.random(), y

    def pair(processes: int) -> Dataset:
        return resolve_data(lambda: (DataLoader(Items(), collate_fn=shaken, num_workers=processes), Items()))

    assert seen(pair(2), range(4)) == seen(pair(0), range(4))


@pytest.mark.parametrize("kind", sorted({*OWN} - {"lazy"}))
def test_examples_that_are_tried_leave_a_dataset_as_it_is(kind):
    dataset = Drawing(OWN[kind]())
    before = content(dataset)
    loaded(dataset)
    assert content(dataset) == before


@pytest.mark.parametrize("draw", [lambda: np.random.default_rng().random(), random.SystemRandom(0).random])
def test_draws_that_no_seed_decides_are_refused(draw):
    with pytest.raises(ConfigError, match="an example is another one when it is read again"):
        loaded(Drawing(draw))


def test_a_dataset_is_told_the_epoch():
    class Epochs(Items):
        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

        def __getitem__(self, place: int) -> tuple[torch.Tensor, int]:
            return torch.tensor([place, self.epoch]), 0

    assert seen(loaded(Epochs()), range(4))[1] == [[0] * 4] * 2 + [[1] * 4] * 2
    assert seen(loaded(Epochs(), 1), range(4))[1] == [[0] * 4] * 2 + [[1] * 4] * 2


# --- batches ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("examples", "size", "lengths"),
    [(2000, 1000, [1000, 1000]), (1001, 1000, [1001]), (2001, 1000, [1000, 1001]), (1002, 1000, [1000, 2]),
     (1, 1000, [1]), (3, 1, [3]), (4, 0, [2, 2]), (999, 1000, [999])],
)  # fmt: skip
def test_no_batch_is_a_single_example(examples, size, lengths):
    slices = batch_slices(examples, size)
    assert [each.stop - each.start for each in slices] == lengths
    assert [place for each in slices for place in range(examples)[each]] == list(range(examples))
