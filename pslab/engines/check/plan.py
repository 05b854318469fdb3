"""check(policies): explore every order of events in a small cluster, under every policy and fault."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pslab.config.spec import import_named, resolve
from pslab.config.table import ROWS, find
from pslab.engines.check import invariants
from pslab.engines.check.parallel import Task, explore_all
from pslab.engines.check.result import Explored
from pslab.engines.check.worker import FAULTS
from pslab.errors import ConfigError, nearest
from pslab.protocol.traits import traits_of

CLUSTERS = ((1, 1), (2, 1), (3, 1), (2, 2))  # (workers, ranges)
#: Iterations per worker that can be explored within a minute for 1, 2, 3 and 4 pairs of a worker and a range: without
#: faults, with one kind of fault, with several.
ITERATIONS = ((3, 3, 3, 2), (3, 3, 2, 1), (3, 2, 1, 1))
#: ... of a policy that plans, which starts after some iterations: more of them on fewer clusters. 0: not explored.
PLANNED = ((5, 5, 3, 3), (4, 4, 0, 0), (4, 3, 0, 0))
#: ... of one whose workers pull and push at once.
EAGER = ((3, 3, 2, 1), (3, 3, 1, 0), (3, 1, 0, 0))
#: ... of one that decides for all ranges: its rounds have no bound.
WHOLE = ((3, 3, 3, 1), (3, 3, 1, 1), (3, 1, 0, 1))
#: ... of one that counts several gradients per push: its decisions are those of another policy, which is explored.
COUNTS = ((3, 3, 3, 1), (3, 3, 1, 1), (3, 1, 0, 0))
PLANS_AFTER = 2  # iterations of every worker
PLANS_MAX = 1000  # that one search may return
BOUND_MAX = 5  # iterations without faults that a bound may need
STATES_MAX = 3_000_000  # of one exploration: a few gigabytes
HEAD = f"{'policy':<16}{'W':>3}{'ranges':>8}{'iterations':>12}  {'faults':<11}{'states':>10}{'seconds':>9}  verdict"

OnExplored = Callable[[Explored], None]


@dataclass(frozen=True)
class Checked:
    """The explorations of a check, one per cluster and set of faults, in the order of the plan."""

    explored: tuple[Explored, ...]
    seconds: float

    @property
    def clean(self) -> bool:
        """Every exploration was completed, none broke a rule, and each policy's bound could have been broken."""
        return all(each.verdict == "clean" for each in self.explored)

    @property
    def states(self) -> int:
        """The states of all explorations."""
        return sum(each.states for each in self.explored)

    def __str__(self) -> str:
        return "\n".join([HEAD, *map(row, self.explored), *self.summary()])

    __repr__ = __str__

    def summary(self) -> list[str]:
        """Below the table: the total, and for each policy the shortest path to a broken rule."""
        lines = [f"{self.states:,} states in {self.seconds:.1f} s"]
        for policy in dict.fromkeys(each.policy for each in self.explored):
            own = [each for each in self.explored if each.policy == policy]
            broken = [(each, each.violation) for each in own if each.violation]
            if broken:
                each, shortest = min(broken, key=lambda one: len(one[1].path))
                many = f"{len(broken)} of {len(own)} explorations break a rule; the shortest path to it"
                lines += ["", f"{policy}: {many}, with {_cluster(each)}:", str(shortest)]
            if any(not each.complete for each in own):
                lines += ["", f"{policy}: unfinished, an exploration reached its limit of states: narrow or raise it"]
            if unvaried := sorted({name for each in own for name in each.unvaried}):
                names = " and ".join(unvaried)
                one = f"it reads {names} of its events, of which each exploration has one value"
                lines += ["", f"{policy}: {one}: what it decides by another one was not explored"]
            if not all(each.reached for each in own):
                most = max(each.iterations for each in own)
                far = f"in {most} iterations no worker gets beyond its bound or plan"
                how = "check it with a smaller one, or raise --iterations"
                lines += ["", f"{policy}: nothing was found, and nothing is shown: {far}; {how}"]
        return lines


def _cluster(each: Explored) -> str:
    ranges = f", {each.ranges} ranges" if each.ranges > 1 else ""
    ranges += f" on {each.servers} servers" if each.servers > 1 else ""
    return f"W = {each.workers}{ranges}, {_faults(each)}"


def _faults(each: Explored) -> str:
    names = "all" if set(each.faults) == set(FAULTS) else "+".join(each.faults) or "none"
    return names if each.faults_max == len(each.faults) else f"{each.faults_max} of {names}"


def row(each: Explored) -> str:
    """A line of the table."""
    policy = each.policy if len(each.policy) < 16 else each.policy[:14] + "…"
    ranges = f"{each.ranges} on {each.servers}" if each.servers > 1 else each.ranges
    return (f"{policy:<16}{each.workers:>3}{ranges:>8}{each.iterations:>12}  {_faults(each):<11}"
            f"{each.states:>10,}{each.seconds:>9.2f}  {each.verdict}")  # fmt: skip


def examples() -> list[str]:
    """Return every policy of the table, with small parameters or its example's."""
    return sorted(row.small or row.example or row.name for row in ROWS["sync"].values())


def resolve_sync(value: Any) -> Any:
    """The policy that a string or "package.module:name" (a class without parameters, or an object) names, or an object.

    Raises:
        ConfigError: unknown, or no policy.
    """
    if isinstance(value, str):
        head, _, rest = value.partition(":")
        if head.strip().lower() not in ROWS["sync"] and rest.replace(".", "_").isidentifier():
            found = import_named("sync", value)
            try:
                value = found() if isinstance(found, type) else found
            except TypeError as error:
                problem = f"cannot be made without parameters: {error}; name an object"
                raise ConfigError("sync", value, problem) from None
    return resolve("sync", value)


def plan(
    name: str,
    sync: Any,
    *,
    workers: Sequence[int] | int | None = None,
    ranges: Sequence[int] | int | None = None,
    iterations: int | None = None,
    faults: Sequence[str] | str | None = None,
    faults_max: int | None = None,
    bound: int | None = None,
    states_max: int | None = STATES_MAX,
    layered: bool = False,
    servers: int | None = None,
) -> list[Task]:
    """The explorations of one policy; the parameters are `check`'s."""
    _positive("servers", servers)
    some, parts = _numbers("workers", workers), _numbers("ranges", ranges)
    fragments = traits_of(sync).rotation.fragments
    if uneven := [each for each in parts if each % fragments]:
        raise ConfigError("ranges", uneven[0], f"must be a multiple of the policy's {fragments} fragments")
    if servers is not None and servers > min(parts or [servers]):
        raise ConfigError("servers", servers, f"{min(parts)} ranges lie at no more than {min(parts)} servers")
    least = fragments * -(-(servers or 1) // fragments)
    narrowed = [(w, r) for r in parts or [least] for w in some or [2]] if some or parts else []
    clusters = CLUSTERS if least == 1 else [(1, least), (2, least)]
    _positive("iterations", iterations)
    _positive("states_max", states_max)
    _positive("faults_max", faults_max)
    if bound is not None and bound < 0:
        raise ConfigError("bound", bound, "must be 0 or more iterations ahead of the slowest")
    several_max = 2 if traits_of(sync).plans else len(FAULTS)
    tasks = [
        Task(name, sync, w, r, iterations or allowed, each,
             faults_max or (several_max if r == 1 else 2), states_max, bound, layered, servers or 1)
        for w, r in narrowed or clusters for each in _fault_sets(faults)
        if (allowed := iterations_for(sync, w, r, each, bound, servers or 1) or int(bool(narrowed)))
    ]  # fmt: skip
    if _plans(sync) ** (most := max((task.workers for task in tasks), default=0)) > PLANS_MAX:
        problem = f"may place barriers in {_plans(sync)} ways for each of {most} workers, too many to be explored"
        row = find("sync", sync)
        such = f", such as {row.small}" if row is not None and row.small else ""
        raise ConfigError("sync", name, f"{problem}: check a smaller plan, by the same rules{such}")
    return tasks


def _plans(sync: Any) -> int:
    """In how many ways a policy may plan one worker's barrier, and so how far ahead at least; 0: it plans none."""
    return len(sync.variants(1)) if traits_of(sync).plans else 0


def iterations_for(
    sync: Any, workers: int, ranges: int, faults: Sequence[str], bound: int | None = None, servers: int = 1
) -> int:
    """Iterations per worker: without faults at least as many as break a bound, the policy's or this one.

    0 where this is not explored by default.
    """
    traits = traits_of(sync)
    kinds = ((traits.plans, PLANNED), (traits.eager, EAGER), (traits.accumulates, COUNTS), (traits.whole, WHOLE),
             (True, ITERATIONS))  # fmt: skip
    table: Sequence[tuple[int, ...]] = next(table for holds, table in kinds if holds)
    by_size = (*table[min(len(faults), 2)], 1 if table is ITERATIONS else 0)
    fragments = traits.rotation.fragments  # ranges of one of them are under way at a time
    allowed = by_size[min(workers * ranges // fragments, len(by_size)) - 1] * fragments
    if len(faults) > 1 and workers * ranges > 3 and (servers > 1 or (traits.window or 0) > allowed):
        return 0  # so few iterations cannot fill the window: a policy without one is explored, with one server
    if faults or not allowed:
        return allowed
    if bound is not None:
        return max(allowed, bound + 1 + PLANS_AFTER * traits.plans)
    return max(allowed, min(traits.window or 0, BOUND_MAX))


def check(*policies: Any, processes: int | None = None, on_explored: OnExplored | None = None,
          **narrowed: Any) -> Checked:  # fmt: skip
    """Explore policies, given as strings or objects; without any, all policies of the table.

    Args:
        policies: "NAME:VALUE" of the table, "package.module:name", or an object with window, initial and step.
        processes: as many as there are cores by default.
        on_explored: called with each exploration as soon as it has ended; None: a line on stderr counts them.
        narrowed: `workers` and `ranges` (a number or several; by default one range with 1, 2 and 3 workers, and two
            ranges with 2), `iterations` (per worker), `faults` (that may happen, each at most once; by default none,
            each alone, and all are explored in turn), `faults_max` (in one run; by default all, two with two ranges),
            `bound` (iterations ahead of the slowest, instead of what the policy's window allows), `states_max` (of one
            exploration), `layered` (whether workers push and wait range by range), `servers` (at which as many
            ranges lie, by default with 1 and 2 workers).

    Raises:
        ConfigError: an unknown policy or fault, or a number below 1.
    """
    start_s = time.monotonic()
    _positive("processes", processes)
    tasks, reached = list[Task](), list[bool]()
    for given in policies or examples():
        sync = resolve_sync(given)
        own = plan(given if isinstance(given, str) else invariants.name(sync), sync, **narrowed)
        tasks += own
        reached += [any(map(_reaches, own))] * len(own)
    # the largest first, so that none starts last and runs alone
    order = sorted(range(len(tasks)), key=lambda index: tasks[index].weight, reverse=True)
    many = f"{len(tasks)} clusters, the largest first" if len(tasks) > 1 else "one cluster"
    print(f"explores {many}", file=sys.stderr, flush=True)
    done: dict[int, Explored] = {}
    for position, found in explore_all([tasks[index] for index in order], processes or os.cpu_count() or 1):
        done[order[position]] = replace(found, reached=reached[order[position]])
        if on_explored is not None:
            on_explored(done[order[position]])
        else:
            end = "\n" if len(done) == len(tasks) else ""
            print(f"\rexplored {len(done)} of {len(tasks)}", end=end, file=sys.stderr, flush=True)
    return Checked(tuple(each for _, each in sorted(done.items())), time.monotonic() - start_s)


def _reaches(task: Task) -> bool:
    """Whether a worker can get further ahead of another than the bound allows, if the policy let it, and to every
    barrier that may be planned."""
    planned = plans + PLANS_AFTER + 1 if (plans := _plans(task.sync)) else 0
    return task.iterations >= max(planned, (task.sync.window or 0) if task.bound is None else task.bound + 1)


def _numbers(name: str, value: Sequence[int] | int | None) -> list[int]:
    numbers = [] if value is None else [value] if isinstance(value, int) else list(value)
    for each in numbers:
        _positive(name, each)
    return numbers


def _positive(name: str, value: int | None) -> None:
    if value is not None and value < 1:
        raise ConfigError(name, value, "must be at least 1")


def _fault_sets(faults: Sequence[str] | str | None) -> list[tuple[str, ...]]:
    faults = [faults] if isinstance(faults, str) else faults
    if faults is None:
        return [(), *((fault,) for fault in FAULTS), FAULTS]
    for fault in faults:
        if fault not in FAULTS:
            raise ConfigError("faults", fault, nearest(fault, FAULTS))
    return [tuple(fault for fault in FAULTS if fault in faults)]
