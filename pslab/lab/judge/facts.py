"""What a manifest says of a run's end, its emulation and its processes: against its run, its tables and itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pslab.config.cluster import Cluster
from pslab.config.fleet import Fleet
from pslab.config.run import Run
from pslab.engines.emulation.faults import KILL
from pslab.engines.local.pace import DILATIONS, kept
from pslab.lab.judge.arrivals import Arrivals
from pslab.lab.judge.report import REPORTED, SLACK_S

SHARES = ("dilation", "compute_overrun_share", "late_message_share")  # what says whether an emulation was kept


@dataclass(frozen=True)
class Facts:
    """A manifest, beside what it must agree with."""

    run: Run
    cluster: Cluster
    said: Mapping[str, Any]
    arrivals: Arrivals

    def all(self, name: str) -> list[Any]:
        """A fact that is a list; an empty one if the manifest does not have it."""
        return list(self.said.get(name, ()))

    @property
    def emulations(self) -> list[Mapping[str, Any]]:
        """What was measured of the emulation: of an attempt that was not kept, then of the run."""
        return [self.said[name] for name in ("repeated_after", "emulation") if name in self.said]


def names(f: Facts) -> list[str]:
    """Workers and iterations that are named are those of the run: one iteration follows the last that arrived."""
    last = int(f.arrivals.iteration.max(initial=0)) + 1
    bodies = [*f.all("deaths"), *f.all("lives"), *filter(None, [f.said.get("diverged")])]
    named = [(body["worker"], body.get("iteration")) for body in bodies]
    named += [(worker, None) for worker in (*f.all("phases_lost"), *(row[0] for row in f.all("skips")),
                                            *(row[2] for row in f.all("faulted")))]  # fmt: skip
    return [f"the manifest names worker {worker}, iteration {at}: there are the workers 0 to {f.run.workers - 1}, and "
            f"none came beyond iteration {last}" for worker, at in named
            if worker >= f.run.workers or (at is not None and not at <= last)][:REPORTED]  # fmt: skip


def divergence(f: Facts) -> list[str]:
    """A run diverges by one gradient, which no worker has pushed, and which counts as refused."""
    at, outcome, a = f.said.get("diverged"), f.said["outcome"], f.arrivals
    if (at is None) == (outcome == "diverged"):
        return [f"the run ended by {outcome!r}, and the manifest says of a gradient that is not finite: {at}"]
    if at is None:
        return []
    if not f.said.get("refused"):
        return ["a gradient was not finite, and the manifest counts nothing as refused"]
    same = (a.kind == "push") & (a.worker == at["worker"]) & (a.iteration == at["iteration"])
    if np.unique(a.range[same]).size < a.ranges:  # layer by layer, some may have come before
        return []
    return [f"worker {at['worker']}'s gradient of iteration {at['iteration']} was not finite, and was pushed"]


def emulation(f: Facts) -> list[str]:
    """The word on the emulation follows from its shares; seconds of the cluster take their dilation on the clock."""
    said, dilation = f.said, f.said.get("dilation", 1.0)
    if f.run.engine != "local":
        slow = dilation != 1 or f.emulations or not said.get("emulation_ok", True)
        return ["nothing is emulated in virtual time, and the manifest says that something was"] if slow else []
    for shares in f.emulations:
        if missing := [name for name in SHARES if name not in shares]:
            return [f"the manifest does not say of the emulation its {', '.join(missing)}"]
    found = list[str]()
    if (own := said.get("emulation")) is not None:
        if said.get("emulation_ok") != kept(own):
            found.append(f"emulation_ok is {said.get('emulation_ok')}; overruns and late messages take "
                         f"{own['compute_overrun_share'] + own['late_message_share']:.3g} of the time")  # fmt: skip
        if own["dilation"] != dilation:
            found.append(f"the manifest has a dilation of {dilation:g}; its emulation has one of {own['dilation']:g}")
    before = said.get("repeated_after")
    if before is not None and (kept(before) or before["dilation"] > dilation):
        found.append(f"the run was repeated at a dilation of {dilation:g} after one of {before['dilation']:g}, "
                     f"which was {'' if kept(before) else 'not '}kept")  # fmt: skip
    wanted, auto = f.run.dilation, f.run.dilation == "auto"
    able = f.cluster.modelled(f.run.workers)
    if "dilation" in said and (dilation not in (DILATIONS if able else (1.0,)) if auto else dilation != wanted):
        found.append(f"the manifest has a dilation of {dilation:g}, and the run has dilation={wanted!r}")
    clock_s = said.get("wall_s", np.inf) - said.get("preparation_s", 0.0)
    if not said.get("resumed") and said["seconds"] * dilation > clock_s + SLACK_S:
        found.append(f"{said['seconds']:.6g} s at a dilation of {dilation:g} took {clock_s:.6g} s by the clock")
    return found


def clocks(f: Facts) -> list[str]:
    """A fleet's processes say how well they know the server's clock; those of one machine have nothing to say."""
    away = f.run.engine == "local" and Fleet.of(f.run.fleet).place != "local"
    if "clock_bound_s" in f.said and not away:
        return ["the manifest says how far clocks are apart; all processes were on one machine"]
    if "clock_bound_s" not in f.said and away:
        return [f"the manifest does not say how far the clocks of fleet={f.run.fleet!r} are apart"]
    return []


def processes(f: Facts) -> list[str]:
    """Processes end, and are followed by others, where the run allows it; each that follows shows in what arrived.

    Only where a worker had several processes, or one that ended, may its phases be incomplete.
    """
    run, lives, deaths, rewinds, resumed = f.run, *map(f.all, ("lives", "deaths", "rewinds", "resumed"))
    found, ended = list[str](), {fault[2] for fault in f.all("faulted") if fault[0] == KILL}
    if deaths and run.on_death == "stop":
        found.append(f"worker {deaths[0]['worker']} died, and on_death='stop' ends a run then")
    if (lives or rewinds) and run.on_death != "restart" and not resumed:
        found.append(f"processes were replaced, and the run has on_death={run.on_death!r}")
    begun = Counter((life["seconds"], life["how"]) for life in lives)
    for rewind in rewinds:
        if rewind["seconds"] < rewind["to_seconds"] or rewind["pushes"] < rewind["to_pushes"]:
            found.append(f"the run began again at {rewind['to_seconds']:.6g} s, after what had happened until "
                         f"{rewind['seconds']:.6g} s")  # fmt: skip
        elif not begun[rewind["to_seconds"], rewind["how"]]:
            found.append(f"the run began again at {rewind['to_seconds']:.6g} s ({rewind['how']}), and no worker did")
    last = {life["worker"]: life for life in lives}  # one that ended before it was ready joins nothing
    if run.engine == "local":
        found += [words for life in lives if life.get("joined") is not None or life is last[life["worker"]]
                  if (words := _unseen(f, life, rewinds))][:REPORTED]  # fmt: skip
    named = ended | {body["worker"] for body in (*lives, *deaths)} | set(f.all("ended_late"))
    if f.said["outcome"] != "interrupted":
        found += [f"phases of worker {worker} are said to be lost; none of its processes has ended"
                  for worker in sorted(set(f.all("phases_lost")) - named)][:REPORTED]  # fmt: skip
    return found


def _unseen(f: Facts, life: Mapping[str, Any], rewinds: list[Any]) -> str:
    """In words, why nothing of this shows: that a worker's process ended, and another one asked for weights."""
    a, worker, joined, at_s = f.arrivals, life["worker"], life.get("joined"), life["seconds"]
    if any(life["seconds"] > rewind["to_seconds"] for rewind in rewinds):  # the tables have begun again before it
        return ""
    later = np.flatnonzero((a.worker == worker) & (a.seconds > at_s + SLACK_S))
    if joined is None:
        moved = later[(a.kind[later] != "leave") & (a.kind[later] != "join")]
        return (f"worker {worker}'s process ended at {at_s:.6g} s, and none followed; {a.name(moved[0])} came at "
                f"{a.seconds[moved[0]]:.6g} s") if moved.size else ""  # fmt: skip
    first = next((row for row in later.tolist() if a.kind[row] not in ("leave", "join")), None)
    if first is None or (a.kind[first] == "pull" and a.iteration[first] == joined and a.version[first] == 0):
        return ""
    return (f"worker {worker}'s process ended at {at_s:.6g} s, and the next one was to ask for iteration {joined}, "
            f"holding no weights; {a.name(first)} came")  # fmt: skip


FACTS_JUDGED: dict[str, Callable[[Facts], list[str]]] = {
    "the gradient that was not finite": divergence,
    "how the emulation was kept": emulation,
    "clocks": clocks,
    "ends of processes": processes,
}
