"""Partitions of rows and keys: vectors, conservation, balance, and the traffic that follows."""

from __future__ import annotations

import itertools
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pslab.errors import ConfigError
from pslab.tensors.compression import frame
from pslab.tensors.datasets.planted import Planted
from pslab.tensors.entries import Entries, as_held, by_key, renumbered
from pslab.tensors.partitioning import multilevel, placement, traffic
from pslab.tensors.partitioning.partition import RULES, Problem, capacity, moved, partition
from pslab.tensors.sparse import rows_of

A, B, C, D = range(4)
FOUR = rows_of("four", 4, [(np.array(keys), np.ones(len(keys))) for keys in ([A, B], [C, D], [A, B], [C])],
               np.zeros(4), np.zeros(4, bool))  # fmt: skip
ONES = np.ones(4, np.int64)


@pytest.fixture(scope="module")
def planted():
    return Planted(rows=600, keys=1200, per_row=10, communities=8, noise=0.1).load()


def test_batches_ask_for_the_keys_that_they_hold_but_those_that_their_worker_owns():
    for parts, spread in (([0, 0, 1, 1], [2, 2, 2, 1]), ([1, 0, 1, 0], [1, 1, 1, 1])):
        found = traffic.spread(FOUR, np.array(parts), 2)
        assert (found.tolist(), traffic.remote(found)) == (spread, sum(spread) - 4)
    for parts, asked in ((((0, 1), (2, 3)), 7), (((1, 3), (0, 2)), 4)):
        assert sum(traffic.of_batches(FOUR, [[row] for row in own]) for own in parts) == 7
        assert sum(traffic.of_batches(FOUR, [own]) for own in parts) == asked
    assert traffic.of_batches(FOUR, [[0, 1]], owner=np.array([0, 1, 0, 1]), worker=0) == 2


def test_bytes_are_those_of_frames():
    assert traffic.push_bytes(np.array([0, 1, 2, 130, 999]), 1000) == 24 + (8 + 6 + 2) + 20
    assert traffic.push_bytes(np.empty(0, np.int64), 64) == traffic.request_bytes(np.empty(0, np.int64), 64) == 0
    for keys, count in ((np.array([3, 77, 78]), 300), (np.arange(50), 50), (np.arange(0, 64, 2), 64),
                        (np.array([499]), 500)):  # fmt: skip
        entries = Entries(count, keys, np.ones(len(keys), np.float32))
        assert traffic.push_bytes(keys, count) == frame.length([frame.parts_of(entries)])
        assert -(-traffic.request_bytes(keys, count) // 8) * 8 == traffic.push_bytes(keys, count) - 4 * len(keys)
        assert traffic.reply_bytes(keys) == 24 + 4 * len(keys)


def test_rows_move_where_there_is_room_and_traffic_to_save():
    assert partition(FOUR, 2, "parsa").tolist() == [1, 0, 1, 0]  # the row that adds the fewest keys
    for most, parts in ((2, [0, 0, 1, 1]), (3, [1, 0, 1, 0])):
        assert moved(Problem(FOUR, ONES, 2, 0.0, most, 0), np.array([0, 0, 1, 1]), np.arange(4)).tolist() == parts
    assert capacity(np.full(10, 3), 4, 0.03) == 8  # of 30: 7.5, so 8, and 3 % more is 8.24


@pytest.mark.parametrize("rule", RULES)
def test_every_row_and_every_key_has_one_place_loads_are_balanced_and_a_seed_repeats_it(planted, rule):
    for workers, balance in ((1, "rows"), (7, "rows"), (5, "entries")):
        parts, again = (partition(planted, workers, rule, balance=balance, epsilon=0.05, seed=5) for _ in range(2))
        assert parts.tolist() == again.tolist()
        weights = np.ones(len(planted), np.int64) if balance == "rows" else planted.entries_of
        load = np.bincount(parts, weights, minlength=workers)
        assert load.sum() == weights.sum()
        assert load.max() <= capacity(weights, workers, 0.05)
    owner = placement.place(traffic.used(planted, parts, 5), planted.key_count, 4)
    assert (len(owner), set(owner.tolist())) == (planted.key_count, set(range(4)))
    weights, places = np.arange(planted.key_count), renumbered(owner)
    held = as_held(weights, places)
    assert np.array_equal(owner[held], np.sort(owner))
    assert np.array_equal(by_key(held, places), weights)


def test_each_step_from_random_to_multilevel_saves_traffic(planted):
    remote = {rule: traffic.remote(traffic.spread(planted, partition(planted, 8, rule, balance="rows"), 8))
              for rule in RULES}  # fmt: skip
    assert remote["multilevel"] < remote["two-step"] < remote["random"]
    assert remote["parsa"] < remote["random"]
    assert remote["multilevel"] < remote["random"] / 4


def test_what_cannot_be_is_refused_with_what_can():
    for fields, words in (({"rule": "multilvel"}, "did you mean 'multilevel'"), ({"workers": 0}, "from 1 to the"),
                         ({"workers": 5}, "from 1 to the number of rows, 4"), ({"balance": "row"}, "rows"),
                         ({"epsilon": -1}, "from 0 to 1")):  # fmt: skip
        with pytest.raises(ConfigError, match=words):
            partition(FOUR, **{"workers": 2, **fields})
    with pytest.raises(ConfigError, match="a row has 9 entries"):
        capacity(np.array([9, 1]), 4, 0.5)


def lists(each):
    return np.cumsum([0, *map(len, each)]), np.array([item for one in each for item in one], np.int64)


def cut_of(pins, side):
    return sum(len(set(side[pins[1][a:b]])) == 2 for a, b in pairwise(pins[0]))


def test_refinement_counts_what_it_cuts_and_never_cuts_more():
    chance = np.random.default_rng(0)
    for _ in range(30):
        size = int(chance.integers(4, 40))
        pins = lists([chance.choice(size, int(chance.integers(2, min(size, 7))), replace=False) for _ in range(60)])
        nets, weights = multilevel.transposed(pins, size), chance.integers(1, 4, size)
        side = chance.integers(0, 2, size)
        before = cut_of(pins, side)
        limits = np.bincount(side, weights, minlength=2).astype(np.int64)
        found = multilevel.refined(nets, pins, weights, side, limits)
        assert found == cut_of(pins, side) <= before
        assert (np.bincount(side, weights, minlength=2) <= limits).all()


def test_nets_are_contracted_and_vertices_matched_with_those_that_share_most():
    found = multilevel.contracted(lists([[0, 1], [0, 2], [2, 3], [1, 2, 3]]), np.array([0, 0, 1, -1]), 2)
    assert [found[1][a:b].tolist() for a, b in pairwise(found[0])] == [[0, 1], [0, 1]]
    pins = lists([[0, 1], [0, 1], [2, 3], [1, 2, 3]])
    pairs = multilevel.matched(multilevel.transposed(pins, 4), pins, ONES, np.array([0, 2, 1, 3]), 2)
    assert pairs.tolist() == [0, 0, 1, 1]


USES = (np.array([0, 3, 5, 6]), np.array([A, B, C, B, C, C]))  # of three workers


def test_parsas_owner_has_the_smallest_share_so_far_and_a_key_whose_users_have_no_server_goes_to_any():
    owner = placement.parsa(USES, 3)
    assert owner.tolist() == [0, 0, 1]
    assert placement.traffic_of(USES, owner).tolist() == [2, 3, 1]
    uses = np.array([0, 2, 3, 4]), np.array([A, B, B, C])  # C of worker 2 alone
    assert placement.parsa(uses, 3, 2).tolist() == [0, 0, 1]
    assert placement.parsa(uses, 3, 3).tolist() == placement.parsa(uses, 3).tolist() == [0, 0, 2]


def test_keys_that_nobody_uses_even_out_what_servers_hold():
    for held, more, found in (([1, 1, 1], 5, [2, 2, 1]), ([9, 1, 3], 4, [0, 3, 1]), ([9, 1, 3], 2, [0, 2, 0]),
                              ([9, 1, 3], 0, [0, 0, 0]), ([2, 2, 7], 12, [6, 6, 0])):  # fmt: skip
        assert placement.filled(np.array(held), more).tolist() == found
    used = 5 * np.arange(40)
    owner = placement.place((np.array([0, 30, 40]), used), 1000, 2)
    assert np.bincount(owner).tolist() == [500, 500]
    alone = placement.place((np.array([0, 30, 40]), np.arange(40)), 40, 2)
    assert owner[used].tolist() == alone.tolist()


def test_what_each_server_exchanges_follows_from_the_keys_that_it_has():
    """Keys 1 and 2 of the first server's four, all of the second's two, none of the third's."""
    found = traffic.exchanged(np.array([1, 2, 4, 5]), np.array([0, 4, 6, 9]))
    assert found.tolist() == [[24 + 16 + 8, 24 + 9, 24 + 8], [24 + 16 + 8, 24 + 9, 24 + 8], [0, 0, 0]]


@pytest.mark.parametrize("rule", ["two-step", "multilevel"])
@settings(max_examples=60, deadline=None)
@given(st.lists(st.sets(st.integers(0, 10), min_size=1), min_size=2, max_size=6), st.integers(1, 4),
       st.sampled_from([0.0, 0.03, 0.2]))  # fmt: skip
def test_no_worker_holds_more_than_its_capacity_wherever_that_can_be(rule, keys, most_workers, epsilon):
    """A handful of rows, of which some leave no choice but one."""
    pairs = [(np.array(sorted(each)), np.ones(len(each))) for each in keys]
    rows, workers = (
        rows_of("few", 11, pairs, np.zeros(len(keys)), np.zeros(len(keys), bool)),
        min(most_workers, len(keys)),
    )
    weights = rows.entries_of
    try:
        most = capacity(weights, workers, epsilon)
    except ConfigError:
        return
    each = itertools.product(range(workers), repeat=len(rows))
    if any(np.bincount(parts, weights, minlength=workers).max() <= most for parts in each):
        parts = partition(rows, workers, rule, epsilon=epsilon)
        assert np.bincount(parts, weights, minlength=workers).max() <= most
    else:
        with pytest.raises(ConfigError, match=f"at most {most} per worker was found: set a larger eps"):
            partition(rows, workers, rule, epsilon=epsilon)
