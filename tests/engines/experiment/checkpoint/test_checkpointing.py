"""When a checkpoint on disk is due, and from which one a run goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from pslab.engines.experiment.checkpoint.checkpointing import PERIOD_S, SHARE, Checkpointing
from pslab.engines.experiment.checkpoint.store import CheckpointStore
from pslab.errors import CheckpointError

STATE: Any = {"n": 7}, {"w": torch.ones(3)}


class Clock:
    """A clock that stands still but for what it is told."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def keeper(folder: Path | None, every: int | None = None) -> tuple[Checkpointing, Clock, list[str]]:
    clock, said = Clock(), list[str]()
    place = None if folder is None else CheckpointStore(folder)
    return Checkpointing(place, every, said.append, clock), clock, said


def test_by_pushes_one_is_due_after_so_many(tmp_path):
    kept, _, _ = keeper(tmp_path, 10)
    written = [pushes for pushes in range(35) if kept.due(pushes) and not kept.write(pushes, lambda: STATE)]
    assert written == [10, 20, 30]
    assert kept.facts()["checkpoints"] == 3


@pytest.mark.parametrize("cost_s", [0.001, 0.5, 4.0])
def test_without_a_number_they_take_at_most_their_share_of_the_time(tmp_path, cost_s):
    kept, clock, _ = keeper(tmp_path)
    first = None

    def state() -> Any:
        clock.now += cost_s
        return STATE

    for second in range(2000):
        clock.now += 1.0
        if kept.due(second):
            kept.write(second, state)
            first = first or second
    assert first is not None
    assert first >= PERIOD_S - 1  # a short run has none
    facts = kept.facts()
    assert cost_s <= facts["checkpoints_s"] <= max(SHARE * clock.now, cost_s) + 1e-9  # the first one's cost is unknown
    assert facts["checkpoints"] >= min(2000 * SHARE / cost_s, 2000 / PERIOD_S) * 0.8


def test_a_run_without_a_place_has_none():
    kept, _, said = keeper(None, 1)
    kept.write(100, lambda: pytest.fail("nothing asks for a state"))
    assert (kept.due(100), kept.newest(lambda *state: state), kept.facts(), said) == (False, None, {}, [])


@pytest.mark.parametrize("error", [CheckpointError("x"), KeyError("x"), TypeError("x"), ValueError(), RuntimeError()])
def test_a_state_that_its_reader_refuses_is_passed_over_for_the_one_before(tmp_path, error):
    kept, _, _ = keeper(tmp_path, 1)
    for pushes in (1, 2):
        kept.write(pushes, lambda: STATE)

    def read(facts: Any, tensors: Any) -> tuple[int, list[float]]:
        if facts["pushes"] == 2:
            raise error
        return facts["n"], tensors["w"].tolist()

    again, _, said = keeper(tmp_path, 1)
    assert again.newest(read) == (7, [1.0] * 3)
    assert [words.split(":")[0].split(",")[0] for words in said] == ["checkpoint 2 was passed over",
                                                                     "goes on after 1 pushes"]  # fmt: skip
    assert [each["pushes"] for each in again.facts()["resumed"]] == [1]
    assert not again.due(1)
    assert again.due(2)


def test_facts_that_no_run_writes_are_passed_over(tmp_path):
    for facts in ({}, {"pushes": "x", "made": "", "resumed": []}, {"pushes": 1, "made": "", "resumed": 3}):
        CheckpointStore(tmp_path).write(facts, {})
        kept, _, said = keeper(tmp_path, 1)
        assert kept.newest(lambda *state: state) is None
        assert kept.facts() == {}
        assert all("was passed over" in words for words in said)


def test_a_checkpoint_that_cannot_be_written_ends_them_and_not_the_run(tmp_path):
    (tmp_path / "file").touch()
    kept, _, said = keeper(tmp_path / "file", 1)
    kept.write(1, lambda: STATE)
    assert (kept.due(100), kept.facts()) == (False, {})
    assert said[0].startswith("no more checkpoints: they cannot be written to ")
