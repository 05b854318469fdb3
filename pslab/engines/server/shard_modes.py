"""Choose the class of the weights at a server by the mode of a run; a server imports the code of this mode only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pslab.engines.server.shard import TensorShard

if TYPE_CHECKING:
    from pslab.engines.experiment.job import Job
    from pslab.engines.experiment.shared_memory import Arena


def shard_of(job: Job, arena: Arena) -> TensorShard:
    """Return the weights at a server, of the class that suits the run's pushes and replies."""
    if job.keyed:
        from pslab.engines.server.keyed_shard import KeyedShard

        return KeyedShard(job, arena)
    tells = job.compression is not None and job.compression.rule.tells
    if not (job.sends_frames or job.run.pull != "whole" or job.downlink is not None):
        return TensorShard(job, arena)
    from pslab.engines.server.framed_shard import AnsweringShard, DownlinkShard, FramedShard

    if job.downlink is not None:
        return DownlinkShard(job, arena)
    return (AnsweringShard if tells or job.run.pull != "whole" else FramedShard)(job, arena)
