"""Messages as records of bytes."""

from __future__ import annotations

import struct

import pytest

from pslab.engines.experiment.wire import (
    REQUEST_BYTES,
    WHOLE,
    Answer,
    Blocked,
    Carried,
    ComputedOn,
    Diverged,
    Go,
    Ordered,
    PushInfo,
    Stop,
    Taken,
    Wanted,
    pack,
    unpack,
)
from pslab.protocol.messages import Ack, Pull, Push, Weights

EVERY_KIND = {
    Push(3, 2, 2**40, 7, PushInfo(WHOLE, 5, float("inf"), 0.1), 4, 2**40): 71,
    Pull(1, 70_000, 4, 9, Wanted(10, 30, 0.2)): 55,
    Weights(1, 0, 4, 9, Answer(2**33, -1, 0.1, 0.2, 0.3, 0.4, 0.5), 6, 2**40, 2**41, 2**40): 105,
    Ack(65_535, 2, 8, Taken(0.1, 0.2)): 31,
    Go(12.5): 25,
    Stop(3): 3,
    Diverged(2, 2**40): 11,
    Blocked(2, 9): 7,
    Ordered(1, 70_000, 2**40, True, 0.1): 23,
    ComputedOn(2**40): 9,
    Carried(WHOLE, 0.1, 0.2): 25,
}


def test_a_frame_of_every_kind_of_message_is_unpacked_as_it_was_packed():
    assert list(unpack(pack(EVERY_KIND))) == list(EVERY_KIND)


@pytest.mark.parametrize(("message", "size_bytes"), EVERY_KIND.items())
def test_a_record_has_the_length_of_its_kind(message, size_bytes):
    assert len(pack([message])) == size_bytes


def test_an_emulated_request_costs_87_bytes_however_long_its_record_is():
    """The figure of the record that requests had when emulated times were first recorded."""
    assert REQUEST_BYTES == 87


@pytest.mark.parametrize("frame", [pack([Stop(1)])[:1], pack(EVERY_KIND)[:-1], bytes([11]), bytes([255, 0, 0])])
def test_half_a_record_or_an_unknown_kind_is_refused(frame):
    with pytest.raises(struct.error):
        list(unpack(frame))
