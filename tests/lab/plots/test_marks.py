"""Marks behind labels, and the notes that explain them."""

from __future__ import annotations

from pathlib import Path

import handmade
import pytest

from pslab.config.run import Run
from pslab.lab.plots.labels import marks, notes_of


@pytest.mark.parametrize(("facts", "mark", "words"), [
    ({"emulation_ok": False}, "*", "too slow"), ({"disturbed": True}, "†", "disturbs"),
    ({"verdict": "invalid"}, "‡", "judged invalid"), ({"outcome": "diverged"}, "\u00a0✖1/1", "diverged"),
    ({"largest_weight": 7e28}, "§", "weights of a million and more"), ({"largest_weight": 3.5}, "", ""),
    ({"dilation": 2.5}, "", "emulated 2.5 times slower than shown"), ({"dilation": 1.0}, "", ""), ({}, "", ""),
])  # fmt: skip
def test_what_is_wrong_with_a_result_is_marked_and_explained(tmp_path: Path, facts: dict, mark: str, words: str):
    found = [handmade.curve(tmp_path, Run(pushes=8), [0.1, 0.9], **facts)]
    assert marks(found) == mark
    assert words in " ".join(notes_of(found))
    assert bool(notes_of(found)) == bool(words)


def test_a_range_of_dilations_is_one_note(tmp_path: Path):
    found = [handmade.curve(tmp_path, Run(pushes=8, seed=k), [0.1, 0.9], dilation=k) for k in (4, 1)]
    assert notes_of(found) == ["emulated 1–4 times slower than shown: seconds are the cluster's own"]
