"""A worker that is killed at any moment of its exchange: the others go on, and the weights are what was applied."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from ownpolicies import Largest
from sabotage import Sabotaged, dying
from tiny import tiny
from tools.chaos.replay import pushes_of, replay

from pslab.engines.execute import execute
from pslab.lab.judge import tables_of
from pslab.lab.runs.resolve import resolve

pytestmark = pytest.mark.usefixtures("small_pool")
LINE, DRIVER = "pslab.engines.local.lines.stream:Stream", "pslab.engines.worker.driver:WorkerDriver"
MOMENTS: dict[str, tuple[Any, ...]] = {
    "before it sends": (f"{LINE}.send", 5),
    "in half a frame": ("os:writev", 5, "half"),
    "after it has sent": (f"{LINE}.send", 5, "after"),
    "before it reads that its push was taken": (f"{DRIVER}.acknowledged", 5),
    "after it has read that": (f"{DRIVER}.acknowledged", 5, "after"),
    "before its weights are in their place": (f"{DRIVER}.arrived", 5),
    "after they are": (f"{DRIVER}.installed", 5, "after"),
}
SYNCS = ("bsp", "ssp:1", "asp", "backup:1")
LINKS = {"compute_s": 2e-3, "latency_s": 1e-3, "bandwidth_bit_s": 1e8}
CASES = [(moment, sync, cluster) for moment in MOMENTS for sync in SYNCS for cluster in ("free", "links")]
FEW = [("in half a frame", "asp", "free")]


@pytest.mark.parametrize(
    ("moment", "sync", "cluster"),
    [pytest.param(*case, marks=[pytest.mark.slow] * (case not in FEW)) for case in CASES],
)
def test_the_weights_are_what_was_applied_wherever_a_worker_was_killed(
    tmp_path: Path, moment: str, sync: str, cluster: str
):
    model = partial(Sabotaged, tmp_path / "marker", partial(dying, *MOMENTS[moment]))
    fields = {"cluster": LINKS} if cluster == "links" else {}
    prune = "none" if sync.startswith("backup") else Largest()  # it drops pushes, of which the table says nothing
    wanted = tiny(model=model, sync=sync, prune=prune, workers=3, pushes=90, on_death="continue", **fields)
    experiment = resolve(wanted)
    outcome = execute(experiment, lambda news: None)
    facts = tables_of(wanted, outcome)[2]
    assert [(death["worker"], death["how"]) for death in facts["deaths"]] == [(1, "is gone (killed by SIGKILL)")]
    assert facts["outcome"] == "budget"
    assert (facts["verdict"], facts.get("violations")) == ("valid", None)
    pushes = pushes_of(outcome)
    assert not pushes.duplicated(["worker", "iteration", "range"]).any()
    assert torch.equal(replay(experiment, pushes), torch.from_numpy(outcome.weights))
