"""What a record says of answers, where the same frames travel on another cluster."""

from __future__ import annotations

from tiny import tiny

from pslab.engines.experiment.wire import WHOLE, Wanted
from pslab.engines.virtual.replay import RecordedSizes
from pslab.engines.virtual.timing import job_without_tensors
from pslab.lab.runs.resolve import resolve
from pslab.protocol.messages import NO_WORKER, Pull
from pslab.protocol.server import Reply


def test_a_worker_that_got_no_answer_would_have_got_that_of_the_others_in_its_round():
    job = job_without_tensors(resolve(tiny(engine="timing", workers=2, cluster="lab")))
    answers = {(0, 0): 100.0, (1, 0): 0.0, (0, 1): 300.0, (1, 1): 0.0}
    sizes = RecordedSizes(job, {push: {"bytes_down": size} for push, size in answers.items()})
    laid = [sizes.lay(Reply(Pull(1, 0, iteration, 0, Wanted(0, 0)), 1, NO_WORKER)) for iteration in (1, 2, 3)]
    assert laid == [100, 300, WHOLE]
