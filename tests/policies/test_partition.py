"""Partitions of a model into ranges."""

from __future__ import annotations

import pytest

from pslab.config.spec import build
from pslab.policies.partition import Cut, Layers, Whole, evenly, servers_of

MODEL = [slice(0, 10), slice(10, 14), slice(14, 15)]


def test_the_whole_model_is_one_range():
    assert Whole().cut(MODEL) == (Cut(0, 0, 15),)
    assert not Whole().layered


def test_each_layer_is_a_range():
    assert Layers().cut(MODEL) == (Cut(0, 0, 10), Cut(1, 10, 14), Cut(2, 14, 15))
    assert Layers().layered


@pytest.mark.parametrize("most", [1, 3, 4, 10, 99])
def test_slices_cover_their_layer_and_are_no_larger_than_wanted(most: int):
    cuts = Layers(most).cut(MODEL)
    assert [element for cut in cuts for element in range(cut.start, cut.stop)] == list(range(15))
    assert all(MODEL[cut.layer].start <= cut.start < cut.stop <= MODEL[cut.layer].stop for cut in cuts)
    assert all(cut.stop - cut.start <= most for cut in cuts)
    assert len(cuts) == sum(-(-(layer.stop - layer.start) // most) for layer in MODEL)


def test_layers_by_name():
    assert build("ranges", "layers:40000") == Layers(40000)


def test_one_range_is_cut_evenly_for_several_servers():
    (whole,) = Whole().cut(MODEL)
    assert evenly([whole], 4) == (Cut(0, 0, 4), Cut(0, 4, 8), Cut(0, 8, 12), Cut(0, 12, 15))
    assert evenly([whole], 1) == (whole,)
    assert len(evenly([whole], 20)) == 15  # as many as there are elements
    layers = Layers().cut(MODEL)
    assert evenly(layers, 2) == layers


def test_each_range_goes_to_the_server_that_has_least():
    assert servers_of([4, 4, 4, 3], 4) == (0, 1, 2, 3)
    assert servers_of([3, 5, 3, 4, 3], 2) == (1, 0, 0, 1, 1)  # 5 and 3; 4, 3 and 3
    assert servers_of([3, 5], 1) == (0, 0)
