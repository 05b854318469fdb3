"""Examples that are read when they are needed: the order of a run, whatever reads them and whatever draws in them."""

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
from readings import Flow, Items, loaded, of_all_generators, seen
from tiny import digits, global_states
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
from pslab.tensors.workload.data import Batches, resolve_data
from pslab.tensors.workload.reading import ARGUMENTS

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
    assert (data.stored, digits().stored) == (False, True)


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
