"""Who owes a report in a run, and who waits for whom; without processes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pslab.engines.local.liveness import Liveness
from pslab.engines.processes.pool import SERVER
from pslab.engines.processes.watch import COMPUTING, ENDING, SENDING, SERVING, STORING, WAITING, Watch
from pslab.errors import Stalled, WorkerDied, WorkerFailed

WAITS = {"doing": "waiting", "for": [1], "iteration": 3}
COMPUTES = {"doing": "computing", "for": [], "iteration": 2}
MOVES = {"doing": "transferring", "for": [], "iteration": 2}
DEAD = {"doing": "dead", "for": [], "iteration": None}


def liveness(*doings, on_death="continue", travelling=False, error=None, sending=(), stores=()):
    pool = SimpleNamespace(watch=Watch(), end_of=lambda number: error)
    found = Liveness(pool, len(doings), on_death, stores)
    owing = [worker for worker, does in enumerate(doings) if does is COMPUTES]
    found.progress({"pushes": 5, "workers": list(doings), "heard": [], "owing": owing, "sending": sending,
                    "travelling": travelling})  # fmt: skip
    return found


def test_who_computes_owes_a_message_and_who_waits_does_not():
    assert liveness(WAITS, COMPUTES).owed(False, set()) == {0: "", 1: COMPUTING, SERVER: SERVING}


def test_a_server_that_holds_weights_owes_signs_of_life_whatever_it_was_ordered():
    """Whoever cannot send to it, or waits for it, is not to be blamed."""
    found = liveness(WAITS, MOVES, sending=[1], stores=[2])
    assert found.owed(False, set()) == {0: "", 1: SENDING, 2: STORING, SERVER: SERVING}


def test_when_all_wait_and_nothing_is_under_way_none_can_go_on():
    assert liveness(WAITS, DEAD, WAITS, travelling=True).owed(False, set())[0] == ""
    stuck = liveness(WAITS, WAITS)
    assert stuck.owed(False, set()) == {0: WAITING, 1: WAITING, SERVER: SERVING}
    stuck.waits(0)
    with pytest.raises(Stalled, match=r"worker 0 has been waiting for worker 1 on clock 3 for \d.*; worker 1 has"):
        stuck.waits(1)


def test_after_the_end_each_worker_owes_its_last_report():
    assert liveness(WAITS, COMPUTES).owed(True, {0}) == {0: "", 1: ENDING, SERVER: ""}


def test_no_worker_is_blamed_by_what_a_silent_server_said_long_ago():
    old = liveness(WAITS, COMPUTES)
    old._reported_s -= 60
    assert old.owed(False, set()) == {0: "", 1: "", SERVER: SERVING}


@pytest.mark.parametrize("error", [WorkerDied("worker 1", None, "is gone (exit code 9)"),
                                   WorkerFailed("worker 1", 4, "Traceback:\nValueError: no")])  # fmt: skip
def test_a_loss_ends_the_run_or_says_how_it_came(error):
    with pytest.raises(type(error), match="in iteration 4"):
        liveness(COMPUTES, COMPUTES, on_death="stop", error=error).lose({"worker": 1, "iteration": 4})
    going = liveness(COMPUTES, COMPUTES, error=error)
    going.lose({"worker": 1, "iteration": 4})
    assert going.deaths[0]["how"] in ("is gone (exit code 9)", "ValueError: no")
    assert going.present == {0}
    with pytest.raises(type(error)):
        going.lose({"worker": 0, "iteration": 4})  # the last one


def test_where_no_push_comes_for_a_lease_it_is_told_who_waits_for_whom_once_in_each():
    going = liveness(WAITS, COMPUTES)
    body = {"workers": [WAITS, COMPUTES], "heard": [], "sending": [], "owing": [1], "travelling": False}
    assert "waits" not in going.progress({**body, "pushes": 5})
    going._moved_s -= 61
    waits = going.progress({**body, "pushes": 5})["waits"]
    assert waits.startswith("no push came for 60 s: worker 0 has been waiting for worker 1 on clock 3 for ")
    assert "waits" not in going.progress({**body, "pushes": 5})
    going._moved_s -= 61
    assert "waits" not in going.progress({**body, "pushes": 6})


def test_a_gradient_that_takes_far_longer_than_others_is_told_once_in_a_lease():
    going = liveness(COMPUTES, COMPUTES)
    body = {"heard": [], "sending": [], "owing": [0, 1], "travelling": False}
    going._since_s[1] -= 2  # the others' takes two seconds

    def push(count):
        does = {**COMPUTES, "iteration": count}
        return going.progress({**body, "pushes": count, "workers": [COMPUTES, does]})

    assert "waits" not in push(6)
    going._since_s[0], going._said_s[0] = going._since_s[0] - 61, going._said_s[0] - 61
    waits = push(7)["waits"]
    assert waits.startswith("worker 0 has been computing on clock 2 for 6")
    assert "worker 1" not in waits
    assert "; the others' last took up to" in waits
    assert "waits" not in push(8)


def test_a_loss_after_the_end_is_none():
    going = liveness(COMPUTES, on_death="stop")
    going._pool.end_of = None  # it is not asked for: the process may be another one, which prepares
    going.lose({"worker": 0, "over": True})
    assert (going.lost, going.deaths) == ({0}, [])


def test_who_was_given_up_when_the_run_was_over_is_no_loss_in_it():
    found = liveness(COMPUTES, COMPUTES, on_death="restart", error=WorkerDied("worker 1", None, "is gone"))
    found.lose({"worker": 1, "iteration": 3, "seconds": 0.5})
    assert [death["worker"] for death in found.deaths] == [1]
    found.lose({"worker": 1, "over": True})  # the server never heard that no process takes its place
    assert (found.deaths, found.lost) == ([], {1})


def test_workers_that_waited_at_different_times_are_not_stuck():
    found = liveness(WAITS, WAITS)
    found.waits(0)
    later = {**WAITS, "iteration": 4}
    found.progress({"pushes": 6, "workers": [later, later], "heard": [], "owing": [], "sending": (),
                    "travelling": False})  # fmt: skip
    found.waits(1)  # worker 0 has gone on since it was said of it
    with pytest.raises(Stalled):
        found.waits(0)
