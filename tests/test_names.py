"""What `pslab.` offers, and that a class has a name of its own."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

import pslab

#: Classes that share a name, and why they keep it.
SHARED = {
    "Dense": "a pruning rule that users name, and the layout of a payload",
    "Front": "a request order that users name, and the browser's part of a view",
    "Linear": "a schedule that users name, and torch's word for the model that has this one",
    "Steps": "a schedule that users name, and a method's steps of plain SGD",
    "Host": "a machine: one that virtual time has, and one that was measured",
    "Memory": "the memory of a process, and what a pruning rule keeps",
    "Parcel": "bytes on the way, on real streams and on emulated links",
    "Reach": "where a process can be reached, as a protocol and as it is on this machine",
    "Store": "where a server's weights are: the protocol and the tensors that obey it",
}


def test_tab_offers_what_a_person_uses_and_nothing_else():
    assert dir(pslab) == sorted(pslab.__all__)


@pytest.mark.parametrize("name", pslab.__all__)
def test_what_is_offered_is_there_and_says_what_it_is(name: str):
    assert getattr(pslab, name).__doc__


def test_other_names_are_refused():
    with pytest.raises(AttributeError, match="no attribute 'sweeep'"):
        _ = pslab.sweeep


def test_a_name_of_a_class_has_one_meaning():
    texts = [file.read_text() for file in Path(pslab.__file__).parent.rglob("*.py")]
    counts = Counter(name for text in texts for name in {*re.findall(r"(?m)^class (\w+)", text)})
    assert {name for name, count in counts.items() if count > 1} <= {*SHARED}
