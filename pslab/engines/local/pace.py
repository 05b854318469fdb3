"""Choose how much slower an emulated cluster runs on this machine, and check whether the machine was fast enough.

Gupta et al., "To Infinity and Beyond: Time-Warped Network Emulation" (NSDI 2006), run an emulated system k times slower
than in its own seconds, as if the machine were k times faster; k is the dilation. A run begins with the k that sufficed
for the last run of the same kind in this process. If k does not suffice, the run is repeated once with a larger k.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from pslab.engines.experiment.experiment import Experiment

KEPT_SHARE = 0.05  # the share of the workers' time that overruns and late messages may take
AIM_SHARE = 0.03  # the share that a repeated run aims at
DILATIONS = (1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 12.0, 16.0, 20.0, 24.0, 32.0, 40.0, 48.0, 64.0)
EMULATED = ("late_s_mean", "late_s_99th", "messages", "stalled_s")  # that only `emulation` reads

_kept_last: dict[str, float] = {}  # kind of run: the dilation that sufficed


def first_dilation(experiment: Experiment) -> float:
    """Return the first dilation of a run: `Run.dilation`, or what sufficed for the last run of its kind, or 1."""
    asked = experiment.run.dilation
    return asked if isinstance(asked, float) else _kept_last.get(_kind(experiment), 1.0)


def remember(experiment: Experiment, dilation: float) -> None:
    """Store the dilation that sufficed for a run, for the next run of the same kind."""
    _kept_last[_kind(experiment)] = dilation


def _kind(experiment: Experiment) -> str:
    """Return the fields on which the sufficient dilation depends, as text."""
    run = experiment.run
    return repr((run.model, run.batch_size, run.workers, run.servers, run.prune, run.quantize, experiment.cluster))


def emulation(
    experiment: Experiment, worked: Collection[Mapping[str, Any]], served: Mapping[str, Any]
) -> dict[str, float]:
    """Return how far this machine was too slow for the emulation, as shares of the workers' time.

    `worked` and `served` are the last reports of the workers and the server.
    """
    alive_s = sum(body["alive_s"] for body in worked) or 1.0
    ranges = len(experiment.traits.rotation.ranges(0, len(experiment.parts)))
    # ranges are under way at the same time, so an iteration waits for the lateness of one range only
    late_s = served["late_s_mean"] * served["messages"] / ranges
    if experiment.cluster.emulated:
        # without emulation these delays are part of the measured system
        late_s += served["stalled_s"] + sum(body["late_s"] for body in worked)
    return {
        "compute_overrun_share": sum(body["overrun_s"] for body in worked) / alive_s,
        "late_message_share": late_s / alive_s,
        "late_message_mean_s": served["late_s_mean"],
        "late_message_99th_s": served["late_s_99th"],
        "real_compute_share": sum(body["real_s"] for body in worked) / alive_s,
    }


def kept(emulation: Mapping[str, Any]) -> bool:
    """Whether the machine was fast enough for the emulation, so that the recorded seconds are valid."""
    return bool(emulation["compute_overrun_share"] + emulation["late_message_share"] <= KEPT_SHARE)


def larger(emulation: Mapping[str, Any]) -> float:
    """Return the dilation for a second attempt, after the one with these emulation facts was too slow."""
    computing = 1 / max(1 / DILATIONS[-1], 1 - emulation["compute_overrun_share"])  # as if workers only computed
    # at least twice: the second attempt is the last one, and costs a whole run
    factor = max(2.0, 1.2 * computing, emulation["late_message_share"] / AIM_SHARE)
    return next((k for k in DILATIONS if k >= emulation["dilation"] * factor), DILATIONS[-1])
