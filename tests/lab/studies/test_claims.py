"""A claim holds, does not, or is not judged; what does not hold is loud, and is no figure's title."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import handmade
import numpy as np
import pytest

from pslab.config.run import Run
from pslab.lab.records import journal
from pslab.lab.studies.claims import claim

TEXT = "it takes {value:.2f} of the time"


@pytest.mark.parametrize(("value", "bounds", "words"), [
    (0.514, {"at_most": 0.6}, ""),
    (0.7, {"at_most": 0.6}, "0.7 is not at most 0.6"), (0.5, {"at_least": 0.6}, "0.5 is not at least 0.6"),
    (0.7, {"at_least": 0.1, "at_most": 0.6}, "0.7 is not at least 0.1 and at most 0.6"),
    (math.nan, {"at_most": 0.6}, "nan is not at most 0.6"), (math.inf, {"at_most": 0.6}, "inf is not"),
])  # fmt: skip
def test_a_claim_that_holds_is_a_title_and_one_that_does_not_is_loud(value, bounds, words, capsys):
    made = claim(TEXT, value, **bounds)
    assert (made.holds, made.title) == ((False, None) if words else (True, "it takes 0.51 of the time"))
    assert repr(made).startswith(f"{'✗' if words else '✓'} it takes")
    assert words in (said := capsys.readouterr().err)
    assert bool(said) == bool(words)


def test_other_parameters_and_broken_emulations_are_not_judged(capsys: pytest.CaptureFixture):
    good = handmade.curve(None, Run(pushes=4), [0.1, 0.2])
    bad = handmade.curve(None, Run(pushes=4, seed=1), [0.1, 0.2], emulation_ok=False)
    others, slow = claim(TEXT, 9.0, at_most=1, given=False), claim(TEXT, 9.0, at_most=1, results=[good, bad])
    assert (others.holds, slow.holds, others.title) == (None, None, None)
    assert repr(slow).startswith("not judged (the machine did not keep up")
    assert capsys.readouterr().err == ""
    assert claim(TEXT, 9.0, at_most=1, results=[good]).holds is False


def test_a_title_says_how_many_seeds_it_rests_on_and_which_runs_diverged():
    bsp = [handmade.curve(None, Run(pushes=4, seed=seed), [0.1, 0.2]) for seed in range(3)]
    asp = handmade.curve(None, Run(pushes=4, sync="asp"), [0.1], outcome="diverged")
    said = {1: bsp[:1], 3: [*bsp, bsp[0]], 4: [*bsp, asp]}
    titles = [claim(TEXT, 0.5, at_most=1, results=results).title for results in said.values()]
    assert titles == [f"it takes 0.50 of the time ({words})"
                      for words in ("one seed", "3 seeds", "1–3 seeds, 1 of 4 runs diverged")]  # fmt: skip
    every = claim("every seed arrives", 0.5, at_most=1, results=bsp[:1])
    assert every.title == "every seed arrives (there is one seed)"


@pytest.mark.parametrize("number", [float, np.float64])
def test_the_batch_reads_claims_from_the_journal(number: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(journal.JOURNAL, str(tmp_path / "journal"))
    claim("A {value:g}", number(2), at_most=number(1))
    assert journal.entries(tmp_path / "journal") == [
        {"claim": {"text": "A 2", "value": 2.0, "bounds": "at most 1", "holds": False, "why": ""}}]  # fmt: skip
