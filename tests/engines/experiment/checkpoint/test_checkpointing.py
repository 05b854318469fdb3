"""When a checkpoint is due, and what is asked of one before a run goes on from it."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny import tiny

from pslab.engines.experiment.checkpoint import checkpointing as module
from pslab.engines.experiment.checkpoint.checkpointing import PERIOD_S, SHARE, Checkpointing
from pslab.engines.experiment.checkpoint.file import pack
from pslab.engines.experiment.checkpoint.flatten import flatten
from pslab.engines.experiment.checkpoint.store import CheckpointStore
from pslab.engines.experiment.job import Job, SharedDataset
from pslab.engines.experiment.layout import Layout
from pslab.engines.experiment.shared_memory import Arena
from pslab.lab.runs.resolve import resolve


class Clock:
    """The machine's, which takes `cost_s` for each checkpoint."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cost_s: float = 0.0) -> None:
        self.now, self.cost_s = 0.0, cost_s
        monkeypatch.setattr(module.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(CheckpointStore, "write", self.write)

    def write(self, *given: Any) -> None:
        self.now += self.cost_s


def keeper(folder: Path | None, **fields: Any) -> tuple[Checkpointing, Arena, Layout, list[str]]:
    experiment = resolve(tiny(engine="virtual", cluster="lab", **fields))
    layout, arena, said = Layout.of(experiment), Arena(), list[str]()
    arena.reserve(layout.end)
    arena.tensor(layout.server, layout.size, layout.dtype).copy_(experiment.weights)
    job = Job.of(experiment, layout, SharedDataset("nothing", 0.0, 1.0, 1, ()))
    place = None if folder is None else CheckpointStore(folder)
    return Checkpointing(place, job, arena, said.append), arena, layout, said


def test_by_pushes_one_is_due_after_so_many(tmp_path, monkeypatch):
    Clock(monkeypatch)
    kept, *_ = keeper(tmp_path, checkpoint_every=10)
    assert [pushes for pushes in range(35) if kept.due(pushes) and not kept.keep(pushes, dict)] == [10, 20, 30]
    assert kept.facts()["checkpoints"] == 3


@pytest.mark.parametrize("cost_s", [0.001, 0.5, 4.0])
def test_without_a_number_they_take_at_most_their_share_of_the_time(tmp_path, monkeypatch, cost_s):
    clock = Clock(monkeypatch, cost_s)
    kept, *_ = keeper(tmp_path)
    first = None
    for second in range(4000):
        clock.now += 1.0
        if kept.due(second):
            kept.keep(second, dict)
            first = first or second
    assert first is not None
    assert first >= PERIOD_S - 1  # a short run has none
    # the cost of the first is not known before
    assert cost_s <= kept.facts()["checkpoints_s"] <= max(SHARE * clock.now, cost_s) + 1e-9
    assert kept.kept >= min(4000 * SHARE / cost_s, 4000 / PERIOD_S) * 0.8


def test_a_run_without_a_place_has_none():
    kept, _, _, said = keeper(None, checkpoint_every=1)
    assert not kept.due(100)
    assert kept.newest() is None
    kept.keep(100, dict)
    assert (kept.facts(), said) == ({}, [])


def test_what_lies_in_memory_comes_back_and_nothing_else(tmp_path):
    kept, arena, layout, said = keeper(tmp_path, sync="asp", prune="static:5%")
    weights = arena.tensor(layout.weights[1], layout.size, layout.dtype)
    weights.fill_(3.0)
    kept.keep(7, lambda: {"weights": weights, "n": 7})
    again, there, _, said = keeper(tmp_path, sync="asp", prune="static:5%")
    there.tensor(layout.up[0][0], 8, layout.dtype).fill_(9.0)  # left over from before
    state = again.newest()
    assert state is not None
    assert said[0].startswith("goes on after 7 pushes")
    assert state["weights"].tolist() == [3.0] * layout.size
    assert there.offset_of(state["weights"]) == layout.weights[1]
    assert there.tensor(layout.up[0][0], 8, layout.dtype).tolist() == [0.0] * 8
    server = (layout.server, layout.size, layout.dtype)
    assert there.tensor(*server).equal(arena.tensor(*server))


FACTS: dict[str, Any] = {"pushes": 1, "made": "", "turned_s": 0.0, "resumed": []}


@pytest.mark.one_of(3)
@pytest.mark.parametrize(
    ("facts", "state"),
    [({}, [{}, []]), ({**FACTS, "pushes": "x"}, [{}, []]), ({**FACTS, "resumed": 3}, [{}, []]), (FACTS, 7),
     (FACTS, [[], []]), (FACTS, [{}, [(10**9, np.zeros(8, np.uint8))]]), (FACTS, [{}, [(-8, np.zeros(8, np.uint8))]]),
     (FACTS, [{}, 3]),
     (FACTS, [{}, [(0, np.zeros(8))]]), (FACTS, [{}, [("x", np.zeros(8, np.uint8))]]), (FACTS, [{}, [(0, "x")]]),
     (FACTS, [{"n": "x"}, []])],
    ids=["no facts", "words", "no list", "number", "no state", "beyond", "before", "no memory", "floats", "no place",
         "text", "another type"],
)  # fmt: skip
def test_a_forged_state_is_passed_over_and_changes_nothing(tmp_path, facts, state):
    kept, arena, layout, said = keeper(tmp_path)
    before = bytes(arena.bytes(0, layout.end))
    CheckpointStore(tmp_path).write(pack(facts, flatten(state, {})))
    assert kept.newest(n=int) is None
    assert kept.resumed == []
    assert len(said) == 1
    assert "was passed over" in said[0]
    assert bytes(arena.bytes(0, len(before))) == before


def test_places_that_outlast_an_event_are_those_of_the_run_and_do_not_overlap():
    for fields in ({}, {"sync": "asp"}, {"sync": "eager", "prune": "dgc:5%"}, {"prune": "range:5", "pull": "range"}):
        experiment = resolve(tiny(engine="virtual", cluster="lab", **fields))
        layout = Layout.of(experiment)
        places = layout.live(experiment.sparse)
        assert all(a + size <= b for (a, size), (b, _) in pairwise(places))
        assert places[-1][0] + places[-1][1] <= layout.end
        assert {layout.server, *layout.weights, *layout.used} <= {at for at, _ in places}
