"""What the protocol costs by the number of workers: which measurements there are. How long they take is not tested."""

from __future__ import annotations

import pytest
from tiny import tiny

from tools.bench.sections import virtual


def test_each_policy_and_the_window_are_measured_from_few_workers_to_many():
    rows = virtual._messages(8, 1)
    names = {row.name.partition(",")[0] for row in rows}
    assert names == {"a push in the window", *(f"a message under {each}" for each in ("bsp", "ssp:3", "asp"))}
    for name in names:
        own = [row for row in rows if row.name.startswith(f"{name},")]
        assert [row.name.partition("W=")[2] for row in own] == ["4", "16", "64", "256", "1024"]
        assert own[0].ratio == 1.0
        assert all(row.value > 0 and row.unit == "us" for row in own)
        assert all(("scan of all clocks" in row.note) == ("window" in name) for row in own)


def test_checkpoints_are_measured_at_the_period_that_is_the_default(monkeypatch: pytest.MonkeyPatch):
    for spent_s, percent in ((0.05, 0.5), (0.1, 1.0), (30.0, 2.0)):
        monkeypatch.setattr(virtual, "checkpoint_s", lambda run, spent_s=spent_s: spent_s)
        rows = virtual._checkpoints(80, 1)
        assert [round(row.value, 9) for row in rows] == [percent, percent]
        assert [round(row.ratio, 9) for row in rows] == [percent / 2, percent / 2]


def test_a_checkpoint_takes_time_and_leaves_nothing():
    run = tiny(engine="virtual", cluster="lab", pushes=40, checkpoint_every=10)
    assert virtual.checkpoint_s(run) > 0
