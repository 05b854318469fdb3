"""The judge finds bugs in runs: a run is made by code with a bug, and judged by the code without it."""

from __future__ import annotations

import pytest
from bugs import CHECKED, SERVER, SSP, Bug
from histories import assert_invalid, assert_valid, history

from pslab.lab.judge.verdict import judge

RUN = {"cluster": {"compute_s": 0.02, "latency_s": 0.0005, "slow": {0: 4.0}}, "workers": 2}
OWN = [
    Bug("a push is applied twice", SERVER, "tuple([held.pop(name) for name in names])",
        "2 * tuple([held[name] for name in names])", "is applied twice: as push 1 and as push 2", policy="asp"),
    Bug("every third push is dropped", SSP, "return state, (Apply(worker, iteration), *starts)",
        "return state, (*(() if iteration % 3 == 1 else (Apply(worker, iteration),)), *starts)",
        "was never applied: its next push"),
    Bug("pushes are counted twice", SERVER, "self.gradients += push.steps", "self.gradients += 2 * push.steps",
        "the run stopped at its budget of 24 pushes after 12", policy="asp"),
    Bug("workers are held too long", SSP, "iteration <= clocks.base + self.staleness:",
        "iteration < clocks.base + self.staleness:", "the policy starts it on version", policy="ssp:2"),
]  # fmt: skip
#: Of the checker's list: the policy, the budget that a run with the bug reaches, and words of the verdict.
LISTED = {
    "the low bound rises before the last worker has pushed": ("ssp:1", 24, "and a window of 2 allows 1"),
    "staleness has no bound": ("ssp:1", 5, "2 ahead, and a window of 2 allows 1"),
    "a reply reports the version before": ("ssp:1", 24, "lacks the worker's own push"),
    "a step makes no version": ("asp", 24, "is part of version 0; 1 was expected"),
    "a push is never applied": ("asp", 4, "which the table of pushes lacks"),
}
SEEDED = {bug.name: (bug, bug.policy, 24, bug.says) for bug in OWN} | {
    bug.name: (bug, *LISTED[bug.name]) for bug in CHECKED if bug.name in LISTED}  # fmt: skip


@pytest.mark.parametrize("name", [*(bug.name for bug in OWN), *LISTED])
def test_a_run_with_a_bug_is_invalid_and_one_without_is_valid(name: str):
    bug, sync, pushes, words = SEEDED[name]
    with pytest.MonkeyPatch.context() as patch:
        bug.seed(patch)
        made = history(sync, pushes=pushes, **RUN)
    assert_invalid(judge(*made), words)
    assert_valid(judge(*history(sync, pushes=pushes, **RUN)))
