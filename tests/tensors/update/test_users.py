"""Means over the workers that hold a weight."""

from __future__ import annotations

import numpy as np
import torch

from pslab.protocol.messages import Push
from pslab.protocol.server import Step
from pslab.tensors.codec import Entries
from pslab.tensors.update.methods import Users
from pslab.tensors.update.optimizers import resolve_optimizer
from pslab.tensors.update.store import Part, Store
from pslab.tensors.update.vectors import mean_over_users

ONE, OTHER = Entries(3, np.array([0, 1]), np.array([1.0, 2.0])), Entries(3, np.array([0]), np.array([3.0]))


PARTS = (Part((slice(0, 3),)),)


def test_a_key_of_one_worker_is_not_halved():
    found, users = mean_over_users([ONE, OTHER])
    assert found.indices.tolist() == [0, 1]
    assert found.values.tolist() == [2, 2]
    assert users.tolist() == [2, 1]


def test_dense_vectors_are_held_by_all():
    found, users = mean_over_users([torch.tensor([1.0, 2.0]), torch.tensor([3.0, 0.0])])
    assert found.tolist() == [2, 1]
    assert users.tolist() == [2, 2]


def test_a_dense_vector_among_others_holds_all():
    found, users = mean_over_users([torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64), OTHER])
    assert found.tolist() == [2, 2, 3]
    assert users.tolist() == [2, 1, 1]


def test_the_server_averages_over_users_what_it_would_average_over_all():
    step = Step(0, (Push(0, 0, 0, 0), Push(1, 0, 0, 0)), True, 1)
    for gradients, expected in ((Users(PARTS).adjust(step, [ONE, OTHER]), [-2, -2, 0]), ([ONE, OTHER], [-2, -1, 0])):
        weights = torch.zeros(3, dtype=torch.float64)
        Store(weights, PARTS, resolve_optimizer("sgd")).step(0, gradients, 1.0)
        assert weights.tolist() == expected

