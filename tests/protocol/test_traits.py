"""The traits of the policies, and of one that declares none."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ownpolicies import NeverWaits

from pslab.config.spec import build
from pslab.config.table import ROWS
from pslab.protocol.rotation import Rotation
from pslab.protocol.traits import Traits, always, never, one_each, traits_of

EXPECTED = {
    "bsp": Traits(1, barrier=True, rounds=True),
    "ssp": Traits(4),
    "asp": Traits(),
    "backup": Traits(whole=True),
    "dssp": Traits(16, whole=True, plans=True),
    "elastic": Traits(whole=True, plans=True),
    "eager": Traits(eager=True, reads_own=True),
    "local": Traits(1, rounds=True, method="average"),  # and it accumulates gradients
    "diloco": Traits(1, rounds=True, method="inner", changes=True),
    "streaming": Traits(1, rounds=True, method="inner", changes=True, rotation=Rotation(2), overlap=5),
    "decoupled": Traits(method="inner", changes=True, aggregate="changes", counted=True, rotation=Rotation(2),
                        overlap=2),
    "adiloco": Traits(method="inner", changes=True, counted=True),
    "easgd": Traits(1, rounds=True, method="elastic", changes=True),
    "average": Traits(1, rounds=True),  # until it is sized
    "downpour": Traits(method="replica"),
    "admm": Traits(1, rounds=True, method="consensus", changes=True, repeats=True),
}  # fmt: skip


@pytest.mark.parametrize("name", EXPECTED)
def test_traits_of_the_policies(name):
    found = traits_of(build("sync", ROWS["sync"][name].example or name))
    assert replace(found, gradients_before=one_each, pushes=always, fetches=always, averages=never) == EXPECTED[name]
    several = "local", "diloco", "streaming", "decoupled", "adiloco", "easgd", "downpour", "admm"
    assert found.accumulates is (name in several)


def test_defaults_and_options():
    assert traits_of(NeverWaits(3)) == Traits(3, gradients_before=one_each)
    assert not traits_of(build("sync", "eager:rmw=off")).reads_own
    assert [Traits().gradients(t) for t in range(3)] == [1, 1, 1]
