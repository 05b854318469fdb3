"""Choose small clusters and faults for each policy, explore every order of events in them, and report the results."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pslab.config.available import cores
from pslab.config.spec import import_named, resolve
from pslab.config.table import ROWS, find
from pslab.engines.check import invariants
from pslab.engines.check.parallel import Task, explore_all
from pslab.engines.check.result import Explored
from pslab.engines.check.worker import FAULTS
from pslab.errors import ConfigError, nearest
from pslab.protocol.traits import traits_of

CLUSTERS = ((1, 1), (2, 1), (3, 1), (2, 2))  # (workers, ranges)
#: Iterations per worker that can be explored within a minute. Columns: workers × ranges = 1, 2, 3 and 4. Rows: without
#: faults, with one kind of fault, with several kinds.
ITERATIONS = ((3, 3, 3, 2), (3, 3, 2, 1), (3, 2, 1, 1))
#: The same for a policy that plans, which needs more iterations. 0: such a cluster is not explored.
PLANNED = ((5, 5, 3, 3), (4, 4, 0, 0), (4, 3, 0, 0))
#: The same for an eager policy.
EAGER = ((3, 3, 2, 1), (3, 3, 1, 0), (3, 1, 0, 0))
#: The same for a policy that decides for all ranges together.
WHOLE = ((3, 3, 3, 1), (3, 3, 1, 1), (3, 1, 0, 1))
#: The same for a policy whose pushes contain several gradients. Few suffice: it decides as other policies do.
COUNTS = ((3, 3, 3, 1), (3, 3, 1, 1), (3, 1, 0, 0))
PLANS_AFTER = 2  # iterations of every worker before the first plan
PLANS_MAX = 1000  # plans that one search may return
BOUND_MAX = 5  # without faults, iterations are raised to the window's length, but not above this
STATES_MAX = 3_000_000  # states in one exploration: a few gigabytes
HEAD = f"{'policy':<16}{'W':>3}{'ranges':>8}{'iterations':>12}  {'faults':<11}{'states':>10}{'seconds':>9}  verdict"

OnExplored = Callable[[Explored], None]


@dataclass(frozen=True)
class Checked:
    """The results of a check: one exploration for each policy, cluster and set of faults, in the order of the plan."""

    explored: tuple[Explored, ...]
    seconds: float

    @property
    def clean(self) -> bool:
        """Whether every exploration has the verdict "clean"."""
        return all(explored.verdict == "clean" for explored in self.explored)

    @property
    def states(self) -> int:
        """The total number of states in all explorations."""
        return sum(explored.states for explored in self.explored)

    def __str__(self) -> str:
        return "\n".join([HEAD, *map(row, self.explored), *self.summary()])

    __repr__ = __str__

    def summary(self) -> list[str]:
        """Return the lines below the table: the totals, and for each policy the shortest path to a broken rule."""
        lines = [f"{self.states:,} states in {self.seconds:.1f} s"]
        for policy in dict.fromkeys(explored.policy for explored in self.explored):
            rows = [explored for explored in self.explored if explored.policy == policy]
            broken = [(explored, explored.violation) for explored in rows if explored.violation]
            if broken:
                explored, shortest = min(broken, key=lambda one: len(one[1].path))
                many = f"{len(broken)} of {len(rows)} explorations break a rule; the shortest path to it"
                ranges = f", {explored.ranges} ranges" if explored.ranges > 1 else ""
                ranges += f" on {explored.servers} servers" if explored.servers > 1 else ""
                cluster = f"W = {explored.workers}{ranges}, {_faults(explored)}"
                lines += ["", f"{policy}: {many}, with {cluster}:", str(shortest)]
            if any(not explored.complete for explored in rows):
                how = "check fewer workers or iterations, or raise --states-max"
                lines += ["", f"{policy}: unfinished: an exploration reached its limit of states; {how}"]
            if unvaried := sorted({name for explored in rows for name in explored.unvaried}):
                names = " and ".join(unvaried)
                one = f"it reads {names} of its events, but each exploration has only one value of that"
                lines += ["", f"{policy}: {one}: its decisions for other values were not explored"]
            if not all(explored.reached for explored in rows):
                most = max(explored.iterations for explored in rows)
                far = f"in {most} iterations no worker gets beyond its bound or plan"
                how = "check the policy with a smaller bound or plan, or raise --iterations"
                lines += ["", f"{policy}: no broken rule was found, but this proves nothing: {far}; {how}"]
        return lines


def _faults(explored: Explored) -> str:
    names = "all" if set(explored.faults) == set(FAULTS) else "+".join(explored.faults) or "none"
    return names if explored.faults_max == len(explored.faults) else f"{explored.faults_max} of {names}"


def row(explored: Explored) -> str:
    """Return an exploration's line of the table."""
    policy = explored.policy if len(explored.policy) < 16 else explored.policy[:14] + "…"
    ranges = f"{explored.ranges} on {explored.servers}" if explored.servers > 1 else explored.ranges
    return (f"{policy:<16}{explored.workers:>3}{ranges:>8}{explored.iterations:>12}  {_faults(explored):<11}"
            f"{explored.states:>10,}{explored.seconds:>9.2f}  {explored.verdict}")  # fmt: skip


def examples() -> list[str]:
    """Return every policy of the table as text, with parameters that are small enough for the checker."""
    return sorted(row.small or row.example or row.name for row in ROWS["sync"].values())


def resolve_sync(value: Any) -> Any:
    """Return the policy object for a value: a policy, text as in `Run.sync`, or "package.module:name".

    The last form names an object, or a class that is created without parameters.

    Raises:
        ConfigError: the name is unknown, or the object is not a policy.
    """
    if isinstance(value, str):
        head, _, rest = value.partition(":")
        if head.strip().lower() not in ROWS["sync"] and rest.replace(".", "_").isidentifier():
            imported = import_named("sync", value)
            try:
                value = imported() if isinstance(imported, type) else imported
            except TypeError as error:
                problem = f"this class needs parameters ({error}): name an instance of it in the module instead"
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
    """Return the explorations of the policy `sync`, shown as `name`; `check` explains the other parameters."""
    _positive("servers", servers)
    some, parts = _numbers("workers", workers), _numbers("ranges", ranges)
    fragments = traits_of(sync).rotation.fragments
    if uneven := [number for number in parts if number % fragments]:
        problem = f"must be a multiple of the policy's {fragments} fragments: use ranges={fragments}"
        raise ConfigError("ranges", uneven[0], problem)
    if servers is not None and servers > min(parts or [servers]):
        problem = f"each server needs a range: use at most {min(parts)} servers, or more ranges"
        raise ConfigError("servers", servers, problem)
    least = fragments * -(-(servers or 1) // fragments)
    narrowed = [(w, r) for r in parts or [least] for w in some or [2]] if some or parts else []
    clusters = CLUSTERS if least == 1 else [(1, least), (2, least)]
    _positive("iterations", iterations)
    _positive("states_max", states_max)
    _positive("faults_max", faults_max)
    if bound is not None and bound < 0:
        raise ConfigError("bound", bound, "must be 0 or more iterations ahead of the slowest worker")
    several_max = 2 if traits_of(sync).plans else len(FAULTS)
    tasks = [
        Task(name, sync, w, r, iterations or allowed, fault_set,
             faults_max or (several_max if r == 1 else 2), states_max, bound, layered, servers or 1)
        for w, r in narrowed or clusters for fault_set in _fault_sets(faults)
        if (allowed := iterations_for(sync, w, r, fault_set, bound, servers or 1) or int(bool(narrowed)))
    ]  # fmt: skip
    if _plans(sync) ** (most := max((task.workers for task in tasks), default=0)) > PLANS_MAX:
        problem = f"may place barriers in {_plans(sync)} ways for each of {most} workers, which is too many to explore"
        row = find("sync", sync)
        such = f", such as {row.small}" if row is not None and row.small else ""
        raise ConfigError("sync", name, f"{problem}: check the policy with a smaller plan{such}")
    return tasks


def _plans(sync: Any) -> int:
    """Return the number of possible plans for one worker's barrier; 0 if the policy does not plan."""
    return len(sync.variants(1)) if traits_of(sync).plans else 0


def iterations_for(
    sync: Any, workers: int, ranges: int, faults: Sequence[str], bound: int | None = None, servers: int = 1
) -> int:
    """Return the number of iterations per worker; 0 if such a cluster is not explored by default.

    Without faults the number suffices to exceed `bound`, or by default the policy's bound if that is below BOUND_MAX.
    """
    traits = traits_of(sync)
    kinds = ((traits.plans, PLANNED), (traits.eager, EAGER), (traits.accumulates, COUNTS), (traits.whole, WHOLE),
             (True, ITERATIONS))  # fmt: skip
    table: Sequence[tuple[int, ...]] = next(table for holds, table in kinds if holds)
    by_size = (*table[min(len(faults), 2)], 1 if table is ITERATIONS else 0)
    fragments = traits.rotation.fragments  # only one fragment's ranges are under way at a time
    allowed = by_size[min(workers * ranges // fragments, len(by_size)) - 1] * fragments
    if len(faults) > 1 and workers * ranges > 3 and (servers > 1 or (traits.window or 0) > allowed):
        return 0  # too few iterations to fill the window: a smaller cluster shows the same
    if faults or not allowed:
        return allowed
    if bound is not None:
        return max(allowed, bound + 1 + PLANS_AFTER * traits.plans)
    return max(allowed, min(traits.window or 0, BOUND_MAX))


def check(*policies: Any, processes: int | None = None, on_explored: OnExplored | None = None,
          **narrowed: Any) -> Checked:  # fmt: skip
    """Explore the given policies, or all policies of the table if none is given; return the results.

    Args:
        policies: "NAME:VALUE" of the table, "package.module:name", or an object with window, initial and step.
        processes: the number of processes; by default one for each core.
        on_explored: is called with each exploration as soon as it has ended. By default a line on stderr counts them.
        narrowed: parameters that limit the explorations:

            - `workers`, `ranges`: a number or several. The default is one range with 1, 2 and 3 workers, and two
              ranges with 2 workers.
            - `iterations`: the number per worker.
            - `faults`: names of the faults that may happen, each at most once in a run. By default a cluster is
              explored without faults, with each fault alone, and with all faults.
            - `faults_max`: the most faults in one run. By default there is no limit, but with several ranges, or a
              policy that plans, it is 2.
            - `bound`: iterations ahead of the slowest worker, instead of the bound of the policy's window.
            - `states_max`: the most states in one exploration.
            - `layered`: whether workers push and wait range by range.
            - `servers`: the number of servers, by default 1. Several servers have a range each, and by default 1 and
              2 workers.

    Raises:
        ConfigError: a policy or fault is unknown, or a number is out of range.
    """
    start_s = time.monotonic()
    _positive("processes", processes)
    tasks, reached = list[Task](), list[bool]()
    for given in policies or examples():
        sync = resolve_sync(given)
        tasks_of = plan(given if isinstance(given, str) else invariants.name(sync), sync, **narrowed)
        tasks += tasks_of
        reached += [any(map(_reaches, tasks_of))] * len(tasks_of)
    # the largest first, so that none starts last and runs alone
    order = sorted(range(len(tasks)), key=lambda index: tasks[index].weight, reverse=True)
    many = f"{len(tasks)} clusters, the largest first" if len(tasks) > 1 else "one cluster"
    print(f"explores {many}", file=sys.stderr, flush=True)
    done: dict[int, Explored] = {}
    for position, explored in explore_all([tasks[index] for index in order], processes or cores()):
        done[order[position]] = replace(explored, reached=reached[order[position]])
        if on_explored is not None:
            on_explored(done[order[position]])
        else:
            end = "\n" if len(done) == len(tasks) else ""
            print(f"\rexplored {len(done)} of {len(tasks)}", end=end, file=sys.stderr, flush=True)
    return Checked(tuple(verdict for _, verdict in sorted(done.items())), time.monotonic() - start_s)


def _reaches(task: Task) -> bool:
    # enough iterations to exceed the bound, if the policy allowed it, and to come to every barrier that may be planned
    planned = plans + PLANS_AFTER + 1 if (plans := _plans(task.sync)) else 0
    return task.iterations >= max(planned, (task.sync.window or 0) if task.bound is None else task.bound + 1)


def _numbers(name: str, value: Sequence[int] | int | None) -> list[int]:
    numbers = [] if value is None else [value] if isinstance(value, int) else list(value)
    for number in numbers:
        _positive(name, number)
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
