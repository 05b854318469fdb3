"""What an iteration of a chain of layers takes: worked examples, and what must hold of any."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from chains import LAYERS, chains, example
from hypothesis import given, settings
from hypothesis import strategies as st

from pslab.config.spec import build
from pslab.config.table import ROWS
from pslab.errors import ConfigError
from pslab.lab.studies.chain import Chain, Trace, lower_bound_s, trace
from pslab.policies.orders import FIFO, FILO, Front, Needed


@pytest.mark.parametrize(
    ("name", "duplex", "piece", "fifo", "filo", "front"),
    [("E1", "half", None, 14, 13, 12), ("E1", "full", None, 12, 12, 11), ("E1", "full", 1, 10, 8, 8),
     ("E2", "half", None, 24, 22, 20), ("E2", "full", None, 22, 22, 21), ("E2", "full", 1, 17, 14, 14),
     ("E3", "full", None, 12, 12, 12)],
)  # fmt: skip
def test_the_examples(name: str, duplex: str, piece: int | None, fifo: int, filo: int, front: int):
    chain = example(name, duplex, piece)
    assert [trace(chain, order).iteration_s for order in (FIFO(), FILO(), Front())] == [fifo, filo, front]


@pytest.mark.parametrize(
    ("name", "duplex", "piece", "fifo", "front"),
    [("E1", "half", 1, 14, 12), ("E3", "half", None, 13, 12), ("E3", "full", 1, 9, 8)],
)
def test_more_of_them(name: str, duplex: str, piece: int | None, fifo: int, front: int):
    chain = example(name, duplex, piece)
    assert [trace(chain, order).iteration_s for order in (FIFO(), Front())] == [fifo, front]


def messages(found: Trace) -> list[tuple[str, float, float]]:
    """Pushes and pulls as they begin, layers counted from 1; instants are those of E1 after its first forward pass."""
    sent = [s for s in found.spans if s.what in ("push", "pull")]
    return [(f"{s.what}{s.layer + 1}", s.begin_s + 3, s.end_s + 3) for s in sent]


def test_who_uses_the_link_when_first_in_first_out():
    assert messages(trace(example("E1", "half"), FIFO())) == [
        ("push3", 4, 7), ("push2", 7, 8), ("push1", 8, 9), ("pull3", 9, 12), ("pull2", 12, 13), ("pull1", 13, 14)]


def test_who_uses_the_link_when_last_in_first_out():
    found = trace(example("E1", "half"), FILO())
    assert messages(found) == [
        ("push3", 4, 7), ("pull3", 7, 10), ("push1", 10, 11), ("pull1", 11, 12), ("push2", 12, 13), ("pull2", 13, 14)]
    assert [begin + 3 for begin, _ in found.of("forward").values()] == [12, 14, 15]


def test_who_uses_the_link_when_the_front_goes_first():
    found = trace(example("E1", "half"), Front())
    assert messages(found) == [
        ("push3", 4, 7), ("push1", 7, 8), ("pull1", 8, 9), ("push2", 9, 10), ("pull2", 10, 11), ("pull3", 11, 14)]
    assert [begin + 3 for begin, _ in found.of("forward").values()] == [9, 11, 14]
    assert [end + 3 for _, end in found.of("backward").values()] == [4, 5, 6]


def test_both_directions_at_once_in_pieces():
    found = trace(example("E1", "full", 1), Front())
    pushes, pulls = found.of("push"), found.of("pull")  # ranges 2, 3, 4 are the pieces of layer 3
    assert [pushes[r][0] + 3 for r in (2, 1, 0, 3, 4)] == [4, 5, 6, 7, 8]
    assert [pulls[r][0] + 3 for r in (2, 1, 0, 3, 4)] == [5, 6, 7, 8, 9]
    assert [begin + 3 for begin, _ in found.of("forward").values()] == [8, 9, 10]


def test_a_layer_is_cut_into_whole_pieces_and_a_rest():
    chain = Chain(forward_s=(1, 1), backward_s=(1, 1), sizes=(7, 3), byte_s=2.0, piece_bytes=3, overhead_s=0.5)
    assert chain.pieces == ((0, 3), (0, 3), (0, 1), (1, 3))
    assert chain.message_s == (2.0, 2.0, 1.0, 2.0)
    assert (chain.compute_s, chain.load_s) == (4, 7)


def test_what_a_message_costs_makes_small_pieces_dear():
    """Infinitely small pieces would be free without it."""
    times = {piece: trace(example("E2", "full", piece, overhead_s=0.5), Front()).iteration_s for piece in (1, 2, 3, 6)}
    assert min(times, key=times.__getitem__) == 2


def test_latency_is_paid_twice_and_keeps_no_link_busy():
    assert trace(example("E3", "full", None, latency_s=10.0), FIFO()).iteration_s == 12 + 20
    busy = trace(example("E1", "full", None, latency_s=10.0), FIFO())
    assert busy.iteration_s < 12 + 3 * 20


# --- credit -----------------------------------------------------------------------------------------------------------


def test_a_small_credit_waits_and_a_large_one_is_first_in_first_out():
    """A message's credit is back once its arrival was heard of: with 1 the link is idle meanwhile, with 3 never."""
    chain = example("E2", "full", 1, latency_s=1.0)
    found = [trace(chain, Front(credit=credit)).iteration_s for credit in (1, 2, 3, 4, 6, 100)]
    assert found == [29, 18, 16, 17, 19, 19]
    assert trace(chain, Front()).iteration_s == 16
    assert trace(chain, FIFO()).iteration_s == 19


def test_a_credit_of_one_piece_is_a_link_that_picks_when_it_is_idle():
    chain = example("E2", "full", 1)
    assert trace(chain, Front(credit=1)).spans == trace(chain, Front()).spans


def test_a_piece_that_would_never_go_is_refused():
    with pytest.raises(ConfigError, match="3 bytes never goes on a credit of 2"):
        trace(example("E1", "full"), Front(credit=2))
    overdrawn = trace(example("E1", "full"), Front(credit=2, greedy=True))
    assert overdrawn.iteration_s == trace(example("E1", "full"), Front()).iteration_s


# --- any chain --------------------------------------------------------------------------------------------------------

@given(chains(), st.sampled_from(sorted(ROWS["order"])))
@settings(max_examples=200, deadline=None)
def test_no_order_beats_the_bound_and_all_send_everything_once(chain: Chain, name: str):
    found = trace(chain, build("order", name))
    assert found.iteration_s >= lower_bound_s(chain) - 1e-9
    assert lower_bound_s(chain) >= max(chain.compute_s, chain.load_s)
    ranges = list(range(len(chain.pieces)))
    for what in ("push", "pull"):
        assert sorted(s.range for s in found.spans if s.what == what) == ranges
    pushes, pulls = found.of("push"), found.of("pull")
    for index, (place, _) in enumerate(chain.pieces):
        assert pushes[index][0] >= found.of("backward")[place][1] - 1e-9
        assert pulls[index][0] >= pushes[index][1] + chain.latency_s - 1e-9
        assert found.of("forward")[place][0] >= pulls[index][1] + chain.latency_s - 1e-9


@given(chains(), st.sampled_from(sorted(ROWS["order"])))
@settings(max_examples=100, deadline=None)
def test_a_direction_sends_one_message_at_a_time(chain: Chain, name: str):
    sent = [s for s in trace(chain, build("order", name)).spans if s.what in ("push", "pull")]
    for kinds in [("push", "pull")] if chain.duplex == "half" else [("push",), ("pull",)]:
        mine = sorted((s.begin_s, s.end_s) for s in sent if s.what in kinds)
        assert all(first[1] <= second[0] + 1e-9 for first, second in pairwise(mine))


def test_the_bound_is_reached_where_the_front_goes_first():
    assert lower_bound_s(example("E1", "half")) == 12
    assert lower_bound_s(example("E2", "full", 1)) == 14
    assert lower_bound_s(example("E3", "full", 1)) == 8


def test_with_one_worker_every_push_raises_a_low_bound():
    """So the smallest layer goes, as at the front; of several equal workers none does, and the oldest goes."""
    alone, many = example("E1", "half"), example("E1", "half", workers=4)
    first, second = (messages(trace(chain, Needed())) for chain in (alone, many))
    assert [what for what, *_ in first][:3] == ["push3", "push1", "pull1"]
    assert [what for what, *_ in second][:3] == ["push3", "pull3", "push2"]


@pytest.mark.parametrize(
    ("change", "message"),
    [({"sizes": (1,)}, "an entry for each layer"), ({"sizes": (0, 1)}, "at least 1"), ({"duplex": "both"}, "allowed"),
     ({"piece_bytes": 0}, "above 0"), ({"byte_s": 0.0}, "above 0"), ({"latency_s": -1.0}, "negative")],
)  # fmt: skip
def test_chains_that_cannot_be_are_refused(change: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        Chain(**{**LAYERS["E3"], **change})
