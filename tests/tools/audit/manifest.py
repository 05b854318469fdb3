"""Rules for a manifest: a run's end, emulation and processes agree with its fields, its tables and each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from pslab.engines.emulation.faults import KILL
from pslab.engines.local.pace import DILATIONS, kept
from tools.audit.reading import REPORTED, SLACK_S, Reading

SHARES = ("dilation", "compute_overrun_share", "late_message_share")  # what says whether an emulation was kept


def names(r: Reading) -> list[str]:
    """The manifest names workers of the run, and iterations up to one after the last that arrived."""
    last = int(r.arrivals.iteration.max(initial=0)) + 1
    bodies = [*r.all("deaths"), *r.all("lives"), *filter(None, [r.facts.get("diverged")])]
    named = [(body["worker"], body.get("iteration")) for body in bodies]
    named += [(worker, None) for worker in (*r.all("phases_lost"), *(row[2] for row in r.all("faulted")))]
    return [f"the manifest names worker {worker}, iteration {at}: there are the workers 0 to {r.run.workers - 1}, and "
            f"none came beyond iteration {last}" for worker, at in named
            if worker >= r.run.workers or (at is not None and not at <= last)][:REPORTED]  # fmt: skip


def divergence(r: Reading) -> list[str]:
    """A run diverges by one gradient, which no worker has pushed, and which is counted as refused."""
    at, outcome, a = r.facts.get("diverged"), r.facts["outcome"], r.arrivals
    if (at is None) == (outcome == "diverged"):
        return [f"the run ended by {outcome!r}, and the manifest's gradient that is not finite is {at}"]
    if at is None:
        return []
    if not r.facts.get("refused"):
        return ["a gradient was not finite, and the manifest counts no refused message"]
    same = (a.kind == "push") & (a.worker == at["worker"]) & (a.iteration == at["iteration"])
    if np.unique(a.range[same]).size < len(r.exchanged(at["iteration"])):  # layer by layer, some may have come before
        return []
    return [f"worker {at['worker']}'s gradient of iteration {at['iteration']} was not finite, and was pushed"]


def emulation(r: Reading) -> list[str]:
    """`emulation_ok` follows from the measured shares, and the run took its dilated time by the clock."""
    facts, dilation = r.facts, r.facts.get("dilation", 1.0)
    emulations = [facts[name] for name in ("repeated_after", "emulation") if name in facts]  # the run's is the last
    if r.modelled:
        slow = dilation != 1 or emulations or not facts.get("emulation_ok", True)
        return ["nothing is emulated in virtual time, and the manifest has an emulation"] if slow else []
    for shares in emulations:
        if missing := [name for name in SHARES if name not in shares]:
            return [f"the manifest's emulation has no {', '.join(missing)}"]
    found = list[str]()
    if (own := facts.get("emulation")) is not None:
        if facts.get("emulation_ok") != kept(own):
            found.append(f"emulation_ok is {facts.get('emulation_ok')}; overruns and late messages take "
                         f"{own['compute_overrun_share'] + own['late_message_share']:.3g} of the time")  # fmt: skip
        if own["dilation"] != dilation:
            found.append(f"the manifest has a dilation of {dilation:g}; its emulation has one of {own['dilation']:g}")
    before = facts.get("repeated_after")
    if before is not None and (kept(before) or before["dilation"] > dilation):
        found.append(f"the run was repeated at a dilation of {dilation:g} after one of {before['dilation']:g}, "
                     f"which was {'' if kept(before) else 'not '}kept")  # fmt: skip
    wanted, auto = r.run.dilation, r.run.dilation == "auto"
    able = r.cluster.modelled(r.run.workers)
    if "dilation" in facts and (dilation not in (DILATIONS if able else (1.0,)) if auto else dilation != wanted):
        found.append(f"the manifest has a dilation of {dilation:g}, and the run has dilation={wanted!r}")
    clock_s = facts.get("wall_s", np.inf) - facts.get("preparation_s", 0.0)
    if not facts.get("resumed") and facts["seconds"] * dilation > clock_s + SLACK_S:
        found.append(f"{facts['seconds']:.6g} s at a dilation of {dilation:g} took {clock_s:.6g} s by the clock")
    return found


def processes(r: Reading) -> list[str]:
    """Processes end, and are followed by others, where the run allows it; each that follows shows in what arrived.

    Only where a worker had several processes, or one that ended, may its phases be incomplete.
    """
    run, lives, deaths, rewinds, resumed = r.run, *map(r.all, ("lives", "deaths", "rewinds", "resumed"))
    found, ended = list[str](), {fault[2] for fault in r.all("faulted") if fault[0] == KILL}
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
    if not r.modelled:
        found += [words for life in lives if life.get("joined") is not None or life is last[life["worker"]]
                  if (words := _unseen(r, life, rewinds))][:REPORTED]  # fmt: skip
    named = ended | {body["worker"] for body in (*lives, *deaths)} | set(r.all("ended_late"))
    if not r.interrupted:
        found += [f"phases of worker {worker} are said to be lost; none of its processes has ended"
                  for worker in sorted(set(r.all("phases_lost")) - named)][:REPORTED]  # fmt: skip
    return found


def _unseen(r: Reading, life: Mapping[str, Any], rewinds: list[Any]) -> str:
    """In words, how the arrivals contradict that a worker's process ended, and that another one asked for weights."""
    a, worker, joined, at_s = r.arrivals, life["worker"], life.get("joined"), life["seconds"]
    if any(life["seconds"] > rewind["to_seconds"] for rewind in rewinds):  # the tables have begun again before it
        return ""
    own = (a.worker == worker) & (a.kind != "leave") & (a.kind != "join")
    later = np.flatnonzero(own & (a.seconds > at_s + SLACK_S)).tolist()
    if joined is None:
        return (f"worker {worker}'s process ended at {at_s:.6g} s, and none followed; {a.name(later[0])} came at "
                f"{a.seconds[later[0]]:.6g} s") if later else ""  # fmt: skip
    # an emulated link brings later what the process had sent: pushes, of a buffer each, and requests beyond them
    ahead = 0 if r.cluster.free else r.traits.buffers - 1
    for row in later:
        asks = a.kind[row] == "pull"
        sent = ahead > 0 and 0 <= a.iteration[row] - life["iteration"] < ahead + asks
        if asks and a.iteration[row] == joined and (a.version[row] == 0 or (sent and not r.traits.eager)):
            return ""
        if not sent:
            return (f"worker {worker}'s process ended at {at_s:.6g} s, and the next one was to ask for iteration "
                    f"{joined}, holding no weights; {a.name(row)} came")  # fmt: skip
    return ""


def moves(r: Reading) -> list[str]:
    """Workers leave and join when the cluster says so, or die, or where a new process takes their place."""
    arrivals, cluster, phases, found = r.arrivals, r.cluster, r.phases, list[str]()
    died = [(int(death["worker"]), float(death["seconds"])) for death in r.facts["deaths"]]
    due = {"leave": [*cluster.leave.items(), *died, *r.replaced], "join": [*cluster.join.items(), *r.replaced]}
    rows = np.flatnonzero((arrivals.kind == "leave") | (arrivals.kind == "join"))
    for row in rows.tolist():
        name, at_s = (arrivals.kind[row], int(arrivals.worker[row])), arrivals.seconds[row]
        planned = min((at for worker, at in due[name[0]] if worker == name[1]), default=None)
        if planned is None or at_s < planned - SLACK_S:
            due_s = f"never {name[0]}s" if planned is None else f"{name[0]}s at {planned:.6g} s"
            found.append(f"at {at_s:.6g} s the server was notified {arrivals.name(row)}; by the record it {due_s}")
        else:
            due[name[0]].remove((name[1], planned))  # once each
    left = set(arrivals.worker[arrivals.kind == "leave"].tolist())
    found += [f"worker {worker} died at {at:.6g} s, and the server was not notified"
              for worker, at in died if worker not in left]  # fmt: skip
    last_s = phases.begin_s[phases.phase == "push"].max(initial=-np.inf)  # sent then, dealt with later
    left |= {fault[2] for fault in r.all("faulted") if fault[0] == KILL}  # the dead do not take their leave
    return found + [f"worker {worker} leaves at {at:.6g} s, and the server was not notified"
                    for worker, at in cluster.leave.items() if at < last_s and worker not in left]  # fmt: skip
