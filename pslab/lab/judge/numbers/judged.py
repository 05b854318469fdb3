"""All that is judged of a record's numbers, by the words of a verdict."""

from __future__ import annotations

from collections.abc import Callable

from pslab.lab.judge.numbers.given import Numbers
from pslab.lab.judge.numbers.learning import evaluations, losses
from pslab.lab.judge.numbers.times import computing, inside, joints, travelling
from pslab.lab.judge.numbers.traffic import bytes_down, bytes_up, network

NUMBERS_JUDGED: dict[str, Callable[[Numbers], list[str]]] = {
    "losses": losses,
    "bytes of pushes": bytes_up,
    "bytes of pulls": bytes_down,
    "bytes on the network": network,
    "times of computation": computing,
    "times on links": travelling,
    "no gap between phases": joints,
    "evaluations": evaluations,
    "instants inside the run": inside,
}
