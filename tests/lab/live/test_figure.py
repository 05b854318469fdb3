"""Curves of a live view: their looks are those of the other figures, and stay while runs come and go."""

from __future__ import annotations

from itertools import permutations
from typing import Any

from pslab.config.run import Run
from pslab.lab.live.figure import Session
from pslab.lab.live.state import Track
from pslab.lab.plots.theme import Look, looks

SYNCS = ("bsp", "ssp:3", "asp", "ssp:1")
PRUNES = ("none", "static:10%", "static:1%", "dgc:1%")


def tracks(**axes: Any) -> list[Track]:
    """A run for each value of one field."""
    ((field, values),) = axes.items()
    runs = [Run(**{field: value}) for value in values]
    return [Track(run, run.digest) for run in runs]


def drawn(session: Session, shown: list[Track]) -> list[Look]:
    return [named.look for named in session.names(shown)]


def test_runs_look_as_in_the_other_figures():
    for field, values in (("sync", SYNCS), ("prune", PRUNES)):
        assert drawn(Session(), tracks(**{field: values})) == looks([{field: value} for value in values])


def test_a_run_keeps_its_look_whatever_comes_and_goes():
    class Mine:
        pass

    every = [*tracks(sync=SYNCS), *tracks(prune=PRUNES[1:]), *tracks(sync=[Mine()]), *tracks(seed=[1, 2])]
    for first in (every[:1], every[:3], every[4:6]):
        session, known = Session(), {}
        for shown in (first, every, every[3:], every[::-1], [], every[:2], every[5:]):
            for track, look in zip(shown, drawn(session, shown), strict=True):
                assert known.setdefault(track.digest, look) == look


def test_a_policy_keeps_its_colour_when_a_pruning_joins_it():
    for first in permutations(SYNCS[:3], 2):
        session = Session()
        colours = [look.colour for look in drawn(session, tracks(sync=first))]
        for sync, colour in zip(first, colours, strict=True):
            pair = [Run(sync=sync, prune=prune) for prune in ("none", "static:1%")]
            assert [look.colour for look in drawn(session, [Track(run, run.digest) for run in pair])] == [colour] * 2
