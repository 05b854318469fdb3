"""The worker's driver with instants by hand: what it sends, what is to be computed, and the phases that it logs."""

from __future__ import annotations

from typing import Any

from tiny import tiny

from pslab.engines.experiment.wire import WHOLE, Answer, Frame, PushInfo, Taken, Wanted
from pslab.engines.virtual.timing import job_without_tensors
from pslab.engines.worker.driver import WorkerDriver
from pslab.engines.worker.phases import PHASES
from pslab.lab.runs.resolve import resolve
from pslab.protocol.messages import Ack, Pull, Push, Weights


class Setup:
    def __init__(self, **fields: Any) -> None:
        self.job = job_without_tensors(resolve(tiny(engine="timing", workers=2, cluster={"compute_s": 1.0}, **fields)))
        self.sent: list[tuple[float, Frame]] = []
        self.rows: list[tuple[float, ...]] = []
        self.driver = WorkerDriver(self.job, 1, lambda frame, now: self.sent.append((now, frame)), self.rows)

    def logged(self) -> list[tuple[Any, ...]]:
        """(phase, iteration, begin, end) of what was logged since the last call."""
        found = [(PHASES[int(phase)], iteration, begin, end) for _, iteration, phase, begin, end, *_ in self.rows]
        self.rows.clear()
        return found

    def gradients(self, *ranges: int) -> list[PushInfo]:
        return [PushInfo(WHOLE, self.job.parts[index].size, 0.5) for index in ranges]


def weights(iteration: int, index: int = 0) -> Weights:
    return Weights(1, index, iteration, iteration, Answer(WHOLE, 0, 2.0, 2.5, 2.25, 3.0, 3.5))


def test_an_iteration_is_pushed_pulled_and_logged():
    setup = Setup(sync="asp")
    driver = setup.driver
    assert driver.start(0.0) == 0
    driver.begin(0.0)
    assert driver.computed([0], setup.gradients(0), 1.0, 1.0, 1.0) is None
    assert setup.sent == [
        (1.0, [Push(1, 0, 0, 0, PushInfo(WHOLE, 1930, 0.5, 1.0)), Pull(1, 0, 1, 0, Wanted(0, 0, 1.0))])
    ]
    assert setup.logged() == [("compute", 0, 0.0, 1.0), ("select", 0, 1.0, 1.0)]
    driver.arrived(weights(1), 4.0)
    assert driver.installed(weights(1), 4.0, 4.5) == 1
    assert setup.logged() == [("push", 0, 1.0, 2.0), ("apply", 0, 2.0, 2.5), ("wait", 0, 2.5, 3.0),
                              ("serve", 0, 3.0, 3.5), ("pull", 0, 3.5, 4.0), ("decode", 0, 4.0, 4.5)]  # fmt: skip


def test_weights_that_come_twice_start_nothing():
    setup = Setup(sync="asp")
    setup.driver.start(0.0)
    setup.driver.computed([0], setup.gradients(0), 1.0, 1.0, 1.0)
    assert [setup.driver.installed(weights(1), 4.0, 4.0) for _ in range(2)] == [1, None]


def test_an_eager_worker_asks_as_it_begins_and_its_push_waits_for_weights():
    setup = Setup(sync="eager")
    driver = setup.driver
    assert driver.start(0.0) == 0
    assert setup.sent.pop() == (0.0, [Pull(1, 0, 1, 0, Wanted(0, 0, 0.0))])
    assert driver.computed([0], setup.gradients(0), 1.0, 1.0, 1.0) is None
    assert setup.sent == []
    assert driver.installed(weights(1), 4.0, None) == 1  # decoded when the next iteration begins
    ((sent_s, (push, pull)),) = setup.sent
    assert (sent_s, push.iteration, push.payload.sent_s, pull.iteration) == (4.0, 0, 4.0, 2)
    setup.logged()
    assert driver.acknowledged(Ack(1, 0, 0, Taken(5.0, 6.0)), 7.0) is None
    assert setup.logged() == [("push", 0, 4.0, 5.0), ("apply", 0, 5.0, 6.0)]


def test_a_layered_worker_computes_at_once_and_misses_the_weights_of_layers():
    setup = Setup(sync="asp", ranges="layers")
    driver = setup.driver
    assert driver.start(0.0) == 0
    driver.begin(0.0)
    assert driver.computed([1], setup.gradients(1), 0.75, 0.75, 0.75) is None
    assert setup.logged() == []  # of a dense gradient, at the end of the iteration
    assert driver.computed([0], setup.gradients(0), 1.0, 1.0, 1.0) == 1
    assert setup.logged() == [("compute", 0, 0.0, 1.0), ("select", 0, 1.0, 1.0)]
    assert [driver.missing(layer) for layer in (0, 1)] == [0, 1]
    assert driver.installed(weights(1, 0), 4.0, 4.0) is None
    assert [driver.missing(layer) for layer in (0, 1)] == [None, 1]
    driver.begin(4.0)
    setup.logged()
    driver.stall(1, 4.0)
    driver.stall(1, 4.25)
    assert setup.logged() == [("compute", 1, 4.0, 4.25)]


def test_a_worker_that_joins_forgets_its_pushes_and_asks_for_weights():
    setup = Setup(sync="asp")
    setup.driver.start(0.0)
    setup.driver.computed([0], setup.gradients(0), 1.0, 1.0, 1.0)
    assert setup.driver.join(5, 9.0) is None
    assert setup.sent[-1] == (9.0, [Pull(1, 0, 5, 0, Wanted(0, 0, 9.0))])
    assert setup.driver.installed(weights(5), 9.5, 9.5) == 5


def test_a_successor_goes_on_with_an_iteration_whose_weights_others_have_asked_for():
    setup, undisturbed = Setup(sync="asp", seed=3), Setup(sync="asp", seed=3)
    setup.driver.resume(2)
    assert setup.sent == []
    assert setup.driver.installed(weights(2), 4.0, 4.0) == 2
    assert setup.driver.draw_compute_s(2) == [undisturbed.driver.draw_compute_s(n) for n in range(3)][-1]


def test_a_frame_that_is_here_was_here_before_even_if_both_are_read_at_once():
    driver = Setup(sync="eager").driver
    alone: Frame = [Ack(1, 0, 2, Taken(1.0, 1.5))]
    brought: Frame = [Ack(1, 0, 3, Taken(2.0, 2.5)), weights(5)]
    assert [driver.drop_if_repeated(frame) for frame in (alone, alone, brought, brought)] == [False, True, False, True]
    assert driver.refused == 2
    driver.join(5, 9.0)
    assert not driver.drop_if_repeated(brought)  # of a new life


def test_a_successor_draws_the_compute_times_that_its_predecessor_would_have_drawn():
    first, second = (WorkerDriver(spread(sync="bsp"), 1, lambda frame, now: None, []) for _ in range(2))
    times = [first.draw_compute_s(iteration) for iteration in range(5)]
    second.resume(3)
    assert [second.draw_compute_s(iteration) for iteration in (3, 4)] == times[3:]
    assert len(set(times)) == 5


def spread(**fields: Any) -> Any:
    cluster = {"compute_s": 1.0, "compute_sigma": 0.5}
    return job_without_tensors(resolve(tiny(engine="timing", workers=2, cluster=cluster, **fields)))


def test_an_eager_worker_adds_its_own_pushes_with_the_rates_of_their_steps():
    setup = Setup(sync="eager:3", schedule="linear", push_weight=1.0)
    setup.driver.start(0.0)
    for iteration in range(2):
        setup.driver.computed([0], setup.gradients(0), 1.0, 1.0, 1.0)
        lacks = weights(iteration + 1)._replace(version=0, own=0)  # both of them
        setup.driver.installed(lacks, 4.0, None)
        setup.driver.acknowledged(Ack(1, 0, iteration, Taken(5.0, 6.0)), 7.0)
    found = [(write.iteration, write.rate) for write in setup.driver.take_basis(2).writes]
    assert found == [(n, setup.job.learning_rate(n)) for n in range(2)]
    assert found[0][1] > found[1][1]
