"""Which processes owe a report in a run, and which worker waits for which; without processes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pslab.engines.local.liveness import Liveness
from pslab.engines.processes.pool import SERVER
from pslab.engines.processes.watch import COMPUTING, SERVING, STORING, WAITING, Watch
from pslab.errors import RunError, Stalled, WorkerDied, WorkerFailed

WAITS = {"doing": "waiting", "for": [1], "iteration": 3}
COMPUTES = {"doing": "computing", "for": [], "iteration": 2}
MOVES = {"doing": "transferring", "for": [], "iteration": 2}
DEAD = {"doing": "dead", "for": [], "iteration": None}
GONE = WorkerDied("worker 1", None, "is gone (exit code 9)")
LEASE_S = 60.0


class Seen:
    """The workers of a run as a server reports them, at instants that a test chooses."""

    def __init__(self, *doings: dict[str, Any], on_death: str = "continue", error: RunError | None = GONE,
                 stores: tuple[int, ...] = (), **more: Any) -> None:  # fmt: skip
        self.now_s, pool = 0.0, SimpleNamespace(watch=Watch(LEASE_S), end_of=lambda number: error)
        self.liveness = Liveness(pool, len(doings), on_death, stores, lambda: self.now_s)  # type: ignore[arg-type]
        self.report(5, *doings, **more)

    def report(self, pushes: int, *doings: dict[str, Any], after_s: float = 0.0, **more: Any) -> str:
        """The server reports after so many seconds; what is said of waits then."""
        self.now_s += after_s
        owing = [worker for worker, does in enumerate(doings) if does["doing"] == "computing"]
        body = {"pushes": pushes, "workers": list(doings), "heard": [], "owing": owing, "travelling": False,
                **more}  # fmt: skip
        return str(self.liveness.progress(body).get("waits", ""))

    def owed(self, served: bool = False, worked: tuple[int, ...] = ()) -> dict[int, str]:
        return self.liveness.owed(served, set(worked))


@pytest.mark.parametrize(("doings", "more", "owed"), [
    ((WAITS, COMPUTES), {}, {0: "", 1: COMPUTING, SERVER: SERVING}),
    ((WAITS, MOVES), {"stores": (2,)}, {0: "", 1: "", 2: STORING, SERVER: SERVING}),
    ((WAITS, DEAD, WAITS), {"travelling": True}, {0: "", 1: "", 2: "", SERVER: SERVING}),
    ((WAITS, WAITS), {}, {0: WAITING, 1: WAITING, SERVER: SERVING}),
], ids=["computes", "a server stores whatever it was ordered", "under way", "none can go on"])  # fmt: skip
def test_a_process_owes_what_it_does(doings: tuple[dict[str, Any], ...], more: dict[str, Any], owed: dict[int, str]):
    assert Seen(*doings, **more).owed() == owed


def test_when_all_workers_have_waited_for_a_lease_the_error_says_for_which():
    seen = Seen(WAITS, WAITS)
    seen.liveness.waits(0)
    with pytest.raises(Stalled, match=r"worker 0 has been waiting for worker 1 on clock 3 for \d.*; worker 1 has"):
        seen.liveness.waits(1)


@pytest.mark.parametrize(("error", "how"), [(GONE, "is gone (exit code 9)"),
                                            (WorkerFailed("worker 1", 4, "Traceback:\nValueError: no"),
                                             "ValueError: no")])  # fmt: skip
def test_a_loss_ends_the_run_or_says_how_it_came(error: RunError, how: str):
    loss = {"worker": 1, "iteration": 4}
    with pytest.raises(type(error), match="in iteration 4"):
        Seen(COMPUTES, COMPUTES, on_death="stop", error=error).liveness.lose(loss)
    going = Seen(COMPUTES, COMPUTES, error=error).liveness
    going.lose(loss)
    assert (going.deaths, going.present) == ([{**loss, "how": how}], {0})
    with pytest.raises(type(error)):
        going.lose({"worker": 0, "iteration": 4})  # the last one


def test_a_loss_after_the_end_is_none():
    """Also of a worker that was given up in the run: the server never heard that no process takes its place."""
    ended = Seen(COMPUTES, COMPUTES, on_death="restart").liveness
    ended.lose({"worker": 1, "iteration": 3, "seconds": 0.5})
    for worker in range(2):
        ended.lose({"worker": worker, "over": True})
    assert (ended.lost, ended.deaths, ended.late) == ({0, 1}, [], {0, 1})


def test_where_no_push_comes_for_a_lease_it_is_said_once_in_each_which_worker_waits_for_which():
    seen = Seen(WAITS, COMPUTES)
    assert not seen.report(5, WAITS, COMPUTES)
    waits = seen.report(5, WAITS, COMPUTES, after_s=61.0)
    assert waits.startswith("no push came for 60 s: worker 0 has been waiting for worker 1 on clock 3 for ")
    assert not seen.report(5, WAITS, COMPUTES)
    assert not seen.report(6, WAITS, COMPUTES, after_s=61.0)


def test_a_gradient_that_takes_far_longer_than_others_is_named_once_in_a_lease():
    seen = Seen(COMPUTES, COMPUTES)
    found = [seen.report(6 + step, COMPUTES, {**COMPUTES, "iteration": 3 + step}, after_s=2.0) for step in range(70)]
    first, second = filter(None, found)
    assert first.startswith("worker 0 has been computing on clock 2 for 6")
    assert second.startswith("worker 0 has been computing on clock 2 for 12")
    assert "worker 1" not in first
    assert first.endswith("; the others' last took up to 2.0 s")
