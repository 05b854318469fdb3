"""The state of a run comes back from plain values as it was, and nothing in a file is executed."""

from __future__ import annotations

import json
import math
import random
from collections import deque
from typing import Any

import numpy as np
import pytest
import torch

from pslab.engines.experiment.checkpoint.flatten import flatten
from pslab.engines.experiment.checkpoint.graph import Graph
from pslab.engines.experiment.checkpoint.rebuild import rebuild
from pslab.engines.experiment.shared_memory import Arena
from pslab.engines.experiment.wire import Gradient
from pslab.errors import CheckpointError
from pslab.policies.sync.elastic import WorkerProgress
from pslab.protocol.messages import Push
from pslab.protocol.window import Window
from pslab.tensors.entries import Entries
from pslab.tensors.random_streams import numpy_generator
from pslab.tensors.workload.keyspace import KeyRange


def again(value: Any, **externals: Any) -> Any:
    """As it is after a file."""
    nodes, arrays = flatten(value, externals)
    return rebuild(Graph(json.loads(json.dumps(nodes)), arrays), externals)


@pytest.mark.parametrize(
    "value",
    [None, True, 3, 2**200, -0.0, 0.1 + 0.2, math.inf, "x", b"\0\xff", (), (1, (2, [3])), {"a": {(1, 2): 3.5}},
     {1, 2}, frozenset({(1, 2), (3, 4)}), deque([1, 2], 5), slice(1, None), Push(1, 2, 3, 4, Gradient(5, 6, 0.25), 7),
     frozenset({WorkerProgress(0, 1, pushed_s=0.5)}), {KeyRange(1, 5): 2}, {(Push, 0): 1}, torch.float32,
     np.float64(0.1)],
    ids=repr,
)  # fmt: skip
def test_a_value_comes_back_as_it_was(value: Any):
    found = again(value)
    assert type(found) is type(value)
    assert repr(found) == repr(value)


def test_not_a_number_stays_none():
    assert math.isnan(again(math.nan))


def test_an_object_that_two_others_hold_is_one_again():
    window = Window(3, 2)
    window.push(0)
    first, second = again([window, {"same": window}])
    assert first is second["same"]
    assert (first.counts, first.members, first.length) == ({0: 1}, 3, 2)


def test_circles_are_closed_again():
    circle: list[Any] = [1]
    circle.append((circle, {"self": circle}))
    found = again(circle)
    assert found[1][0] is found
    assert found[1][1]["self"] is found


def test_arrays_and_tensors_are_the_same_numbers_and_their_own():
    array, tensor = np.array([0.1, math.nan, -0.0]), torch.tensor([[1.5], [2.5]])
    entries = Entries(9, np.array([1, 2]), array[:2])
    found = again([array, tensor, entries, torch.tensor(3.0)])
    assert found[0].tobytes() == array.tobytes()
    assert found[1].equal(tensor)
    assert found[3].shape == ()
    assert (found[2].n, found[2].indices.tolist()) == (9, [1, 2])
    found[0][0] = found[1][0] = 7
    assert (array[0], tensor[0]) == (0.1, 1.5)


def test_a_random_stream_goes_on_where_it_was():
    stream = numpy_generator(1, "x")
    stream.standard_normal(7)
    copied = again(stream)
    assert copied.standard_normal(5).tolist() == stream.standard_normal(5).tolist()


def test_a_method_is_one_of_the_object_that_is_restored():
    window = Window(1, None)
    found, push = again([window, window.push])
    assert push(0)
    assert found.base == 1


def test_what_the_run_is_given_anew_is_only_named():
    job, stop = object(), threading_free
    found = again([job, stop, (job,)], job=job, stop=stop)
    assert (found[0], found[1], found[2][0]) == (job, stop, job)


def threading_free() -> None:
    """A callable."""


def test_a_tensor_in_shared_memory_is_a_place_there():
    here, there = Arena(), Arena()
    for arena in (here, there):
        arena.reserve(256)
    tensor = here.tensor(64, 6, torch.float32).view(2, 3)
    nodes, arrays = flatten({"w": tensor}, {}, here)
    assert arrays == []
    found = rebuild(Graph(nodes, arrays), {}, there)["w"]
    found.fill_(2)
    assert there.tensor(64, 6, torch.float32).tolist() == [2] * 6
    assert found.shape == (2, 3)
    with pytest.raises(CheckpointError, match="beyond its end"):
        rebuild(Graph([["memory", 64, [2, 300], "float32"]], []), {}, there)


class Strange:
    """Of no room that pslab knows."""


@pytest.mark.parametrize(
    ("value", "words"),
    [({"a": [1, (Strange(),)]}, r"\['a'\]\[1\]\[0\] is a .*:Strange"), ([lambda: 1], r"\[0\] is a builtins:func"),
     (np.array([Strange()]), "array of object"), (torch.ones(4)[1:], "part of another one"),
     (np.random.Generator(np.random.MT19937(0)), "MT19937"), (torch.ones(2, 2).T, "not contiguous"),
     ([Window], "is the class pslab.protocol.window:Window")],
    ids=["object", "function", "array of objects", "view", "generator", "transposed", "class"],
)  # fmt: skip
def test_what_cannot_be_saved_is_named_with_the_way_to_it(value: Any, words: str):
    with pytest.raises(CheckpointError, match=words):
        flatten(value, {})


def test_a_users_own_module_may_have_classes_of_states():
    nodes, arrays = flatten(Strange(), {}, None, {Strange.__module__: globals()})
    with pytest.raises(CheckpointError, match="no class of a state"):
        rebuild(Graph(nodes, arrays), {})


@pytest.mark.parametrize(
    "nodes",
    [[], [["is", [0]]], [["object", "os:system"]], [["object", "subprocess:Popen"]], [["nonsense"]],
     [["object", "pslab.engines.experiment.shared_memory:Arena", "_descriptor", 0]], [["external", "x"]],
     [["array", 3]],
     [["external", "job"], ["method", [0], "upper"]], [["list", [-1]]], [["list", [0, 1]]], [["tuple", [0]]],
     [["object", "pslab.protocol.window:Window"], ["method", [0], "__init__"]], [["dtype", "load"]],
     [["class", "pslab.protocol.window:Window"]], [["class", "builtins:tuple"]],
      [["dict", 1]],
     [["dict", [1], 1], ["list"]], [["named", "pslab.protocol.messages:Push", 1]], [["list"], ["method", [0], "pop"]],
     [["object", "pslab.protocol.window:Window", "unknown", 1]], [["memory", 0, [8], "float32"]], [[]], ["x"], [7],
     [["object", "pslab.engines.virtual.engine:os.system"]], [["enum", "pslab.protocol.window:Window", "x"]]],
    ids=str,
)  # fmt: skip
def test_a_hostile_graph_is_refused(nodes: list[Any]):
    with pytest.raises(CheckpointError):
        rebuild(Graph(nodes, []), {"job": "text"})


def test_a_damaged_graph_is_a_value_or_one_error():
    """A thousand random changes of a real one."""
    window = Window(3, None)
    window.push(0)
    state = {"window": window, "rows": [Push(1, 2, 3, 4, Gradient(5, 6, 0.5)), frozenset({(1, 2)})], "w": torch.ones(3)}
    nodes, arrays = flatten(state, {})
    text, chance, refused = json.dumps(nodes), random.Random(0), 0
    for _ in range(1000):
        changed = bytearray(text.encode())
        for _ in range(chance.randrange(1, 4)):
            changed[chance.randrange(len(changed))] = chance.choice(b'0123456789[]",a')
        try:
            found = json.loads(changed)
        except ValueError:
            continue
        try:
            rebuild(Graph(found, arrays), {})
        except CheckpointError:
            refused += 1
    assert refused > 100
