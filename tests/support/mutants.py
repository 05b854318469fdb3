"""Seeded bugs: edits of the real text of protocol/ and policies/, loaded as modules beside the real ones."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pslab
from pslab.config.spec import make, split
from pslab.config.table import ROWS
from pslab.engines.check.explorer import Machines, explore
from pslab.engines.check.result import Explored

SOURCE = Path(pslab.__file__).parent
#: in the order in which they import each other
MODULES = (
    *(f"protocol.{name}" for name in ("window", "messages", "traits", "scope", "requests", "server", "store",
                                      "worker")),
    *(f"policies.sync.{name}" for name in ("ssp", "bsp", "asp", "eager", "backup")),
    *(f"policies.methods.{name}" for name in ("local_sgd", "average", "downpour", "admm")),
    "policies.planning.zipline", "policies.sync.dssp", "policies.sync.elastic",
)  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One edit of one file: `old`, which must be there once, becomes `new`."""

    name: str
    file: str  #: as "protocol/server.py"
    old: str
    new: str
    says: str  #: a part of the violation's words
    policy: str = "ssp:1"
    faults: tuple[str, ...] = ()
    workers: int = 2
    ranges: int = 1
    iterations: int = 2
    layered: bool = False
    servers: int = 1


def load(mutant: Mutant) -> dict[str, ModuleType]:
    """The modules with the edit applied, by their names without `pslab.`."""
    path = SOURCE / mutant.file
    changed = mutant.file.removesuffix(".py").replace("/", ".")
    text = path.read_text()
    assert changed in MODULES, f"{mutant.name}: {mutant.file} is not one of {MODULES}"
    assert text.count(mutant.old) == 1, f"{mutant.name}: {mutant.old!r} is {text.count(mutant.old)} times in {path}"
    return modules({changed: text.replace(mutant.old, mutant.new)})


def modules(changed: dict[str, str]) -> dict[str, ModuleType]:
    """Fresh copies of the modules, some with another text; the real ones stay as they are."""
    before = {f"pslab.{name}": import_module(f"pslab.{name}") for name in MODULES}
    fresh: dict[str, ModuleType] = {}
    try:
        for name in MODULES:
            file = SOURCE / f"{name.replace('.', '/')}.py"
            module = fresh[name] = ModuleType(f"pslab.{name}")
            sys.modules[module.__name__] = module
            exec(compile(changed.get(name) or file.read_text(), str(file), "exec"), vars(module))
    finally:
        sys.modules.update(before)
    return fresh


def machines(fresh: dict[str, ModuleType]) -> Machines:
    """What the checker is to explore."""
    return Machines(*(fresh[f"protocol.{name}"] for name in ("messages", "server", "worker", "store")))


def explored(fresh: dict[str, ModuleType], mutant: Mutant) -> Explored:
    """What the checker finds of these modules on the mutant's cluster."""
    module, _, name = ROWS["sync"][split(mutant.policy)[0]].path.removeprefix("pslab.").partition(":")
    sync = make("sync", mutant.policy, getattr(fresh[module], name))
    return explore(sync, workers=mutant.workers, ranges=mutant.ranges, iterations=mutant.iterations,
                   faults=mutant.faults, layered=mutant.layered, servers=mutant.servers,
                   machines=machines(fresh))  # fmt: skip


WINDOW, MESSAGES = "protocol/window.py", "protocol/messages.py"
SERVER, WORKER, STORE = "protocol/server.py", "protocol/worker.py", "protocol/store.py"
BSP, SSP, ASP = "policies/sync/bsp.py", "policies/sync/ssp.py", "policies/sync/asp.py"
DSSP, ELASTIC = "policies/sync/dssp.py", "policies/sync/elastic.py"
EAGER, BACKUP = "policies/sync/eager.py", "policies/sync/backup.py"

MUTANTS = [
    # --- window ---------------------------------------------------------------------------------------------------
    Mutant("the low bound rises before the last worker has pushed", WINDOW,
           "iteration == self.base and count == self.members:", "iteration == self.base and count >= self.members - 1:",
           "its low bound is 1, the least clock 0"),
    Mutant("the low bound never rises", WINDOW,
           "iteration == self.base and count == self.members:", "iteration == self.base and count > self.members:",
           "its low bound is 0, the least clock 1"),
    Mutant("a worker that leaves is still a member", WINDOW,
           "self.members -= 1", "self.members -= 0", "it counts 2 members of 1", faults=("kill",)),
    Mutant("the pushes of a worker that leaves still count", WINDOW,
           "            self._lower(iteration)", "            pass",
           "its low bound is 1, the least clock 0", faults=("kill",)),
    Mutant("the low bound rises by at most one when a worker leaves", WINDOW,
           "while self.members", "if self.members",
           "its low bound is 1, the least clock 2", faults=("kill",)),
    Mutant("a low bound that rose when a worker left is not reported", WINDOW,
           "return self.base > before", "return False", "without its own push of 0", policy="bsp", faults=("kill",)),
    Mutant("a worker that rejoins is no member", WINDOW,
           "self.members += 1", "self.members += 0", "it counts 1 members of 2", faults=("rejoin",)),
    Mutant("earlier pushes of a worker that rejoins do not count", WINDOW,
           "self.counts[iteration] = self.counts.get(iteration, 0) + 1", "pass",
           "it counts 0 pushes of iteration 0; 1 workers have pushed it", faults=("rejoin",)),
    # --- messages -------------------------------------------------------------------------------------------------
    Mutant("a departure's fields are in another order", MESSAGES,
           "worker: int\n    now: float\n    moved: bool", "worker: int\n    moved: bool\n    now: float",
           "without its own push of 0", policy="bsp", faults=("kill",)),
    Mutant("a start's fields are in another order", MESSAGES,
           '"""Answer this worker\'s pull: it may start `iteration`."""\n\n    worker: int\n    iteration: int',
           '"""Answer this worker\'s pull: it may start `iteration`."""\n\n    iteration: int\n    worker: int',
           "no worker asked for"),
    # --- server ---------------------------------------------------------------------------------------------------
    Mutant("a duplicate push is counted", SERVER,
           "if clock is None or iteration < clock:", "if clock is None:", "the window of range 0 is wrong",
           faults=("duplicate",)),
    Mutant("a pull that overtook its push is answered at once", SERVER,
           "iteration > part.clocks[worker] and not", "iteration > part.clocks[worker] + 1 and not",
           "without its own push of 0", faults=("reorder",)),
    Mutant("pushes are taken while weights are read", SERVER,
           "            part.deferred.append((message, now))\n            return []",
           "            return self._push(scope, part, message, now)", "while weights are being read"),
    Mutant("pushes are taken while weights are read, and applied", SERVER,
           "scope.reading[index] = scope.reading.get(index, 0) + 1", "pass", "is not answering a pull"),
    Mutant("deferred pushes are forgotten", SERVER,
           "while taken < len(part.deferred) and not scope", "while taken < len(part.deferred) and scope",
           "waits forever"),
    Mutant("one deferred push is taken, the others are forgotten", SERVER,
           "while taken < len(part.deferred) and not scope", "if taken < len(part.deferred) and not scope",
           "waits forever", policy="bsp", workers=3),
    Mutant("an answered pull is kept", SERVER,
           "part.asked.pop(start.worker, None)", "part.asked.get(start.worker)", "waits forever"),
    Mutant("a pull is answered twice", SERVER,
           "                effects.append(self._perform(scope, index, event, decision))\n",
           "                again = isinstance(decision, Start)\n"
           "                effects += [self._perform(scope, index, event, decision)] * (1 + again)\n"
           "                scope.reading[index] = scope.reading.get(index, 0) + again\n",
           "is started with iteration 1 after 1"),
    Mutant("a reply reports the version before", SERVER,
           "goes_on else part.version, released_by", "goes_on else part.version - 1, released_by",
           "is sent version 0; the newest is 1"),
    Mutant("a reply without weights names a version that the worker has not", SERVER,
           "pull.version if goes_on", "part.version if goes_on", "is sent version", policy="downpour:3,1"),
    Mutant("a push is accepted when its first range has arrived", SERVER,
           "if arrived < len(self.ranges):", "if arrived < 1:", "are counted as accepted", ranges=2, iterations=1),
    Mutant("the pull of a worker that left is kept", SERVER,
           "part.asked.pop(worker, None)", "part.asked.get(worker)", "holds a request of worker",
           faults=("kill",)),
    Mutant("messages of a worker that left are accepted", SERVER,
           "if message.worker not in part.clocks:", "if message.worker < 0:", "KeyError", faults=("kill",)),
    Mutant("a step makes no version", SERVER,
           "part.version += 1", "part.version += 0", "a step makes version 0 from version 0"),
    Mutant("an applied push is still held", SERVER,
           "[held.pop(name)", "[held[name]", "applied pushes of worker"),
    Mutant("a pull that overtook its push is never answered", SERVER,
           "pull.iteration == clock + 1 and", "pull.iteration == clock and", "waits forever", faults=("reorder",)),
    Mutant("the policy does not learn that a worker left", SERVER,
           "self._decide(scope, Left(", "[] and (scope, Left(", "no worker asked for",
           faults=("kill",)),
    Mutant("clocks do not advance", SERVER,
           "part.clocks[worker] = clock + 1", "part.clocks[worker] = clock", "it counts 1 pushes of iteration 0"),
    Mutant("a worker that rejoins repeats its pushes", SERVER,
           "max(max(part.window.base, part.left.get(worker, 0)) for part in self.ranges)",
           "max(part.window.base for part in self.ranges)", "joins with iteration 0, but has pushed iteration 0",
           faults=("rejoin",)),
    Mutant("a worker that rejoins starts on each range at that range's own iteration", SERVER,
           "            part.window.join(iteration)\n            part.clocks[worker] = iteration",
           "            own = max(part.window.base, part.left.get(worker, 0))\n"
           "            part.window.join(own)\n            part.clocks[worker] = own",
           "applied pushes of worker", faults=("rejoin",), ranges=2, iterations=1),
    Mutant("pushes are added where their mean was decided", SERVER,
           "aggregate = isinstance(decision, Aggregate)", "aggregate = False",
           "2 pushes are added; the policy decided to apply their mean", policy="bsp"),
    Mutant("a push that is applied alone counts as a mean", SERVER,
           "aggregate = isinstance(decision, Aggregate)", "aggregate = True",
           "a push is applied as the mean of a step; the policy decided to apply it alone", policy="asp"),
    # --- store ----------------------------------------------------------------------------------------------------
    Mutant("a reply is laid before the step that was ordered before it", STORE,
           "self.orders.pop(0)", "self.orders.pop()", "a reply on version 1 of range 1 is done where version 0 is",
           policy="asp", ranges=2, iterations=1, servers=2),
    Mutant("payloads are free before their step is done", STORE,
           "return Done(order, about, free=order.pushes)",
           "more = [push for each, *_ in self.orders if isinstance(each, Step) for push in each.pushes]\n"
           "            return Done(order, about, free=(*order.pushes, *more))",
           "is freed before it is applied", policy="asp", ranges=2, iterations=1, servers=2),
    Mutant("what a step has read is never free", STORE,
           "return Done(order, about, free=order.pushes)", "return Done(order, about)", "waits forever",
           ranges=2, iterations=3, servers=2, workers=1),
    Mutant("weights are never sent", STORE,
           "sends=not vain", "sends=False", "waits forever", ranges=2, servers=2, workers=1),
    Mutant("weights are sent to a worker that has left", STORE,
           "each.pull.worker == order.worker", "each.pull.worker < 0", "is started, which has left",
           faults=("kill",), ranges=2, iterations=1, servers=2),
    # --- worker ---------------------------------------------------------------------------------------------------
    Mutant("a worker computes when the weights of one range have arrived", WORKER,
           "min(self._held_for) >= self.iteration", "max(self._held_for) >= self.iteration",
           "without the weights of range", workers=1, ranges=2),
    Mutant("a gradient is written into a buffer that is not free", WORKER,
           "and min(self._acked) >= self.iteration - self.buffers", "and min(self._acked) >= self.iteration - 3",
           "into the buffer of 0, which is not acknowledged", faults=("lose", "reorder"), workers=1),
    Mutant("late weights are accepted", WORKER,
           "if message.iteration <= self._held_for[message.range]:", "if message.iteration < 0:",
           "the push of iteration 2 by worker 0 names version 1", faults=("duplicate",), iterations=3, workers=1),
    Mutant("a late acknowledgement is accepted", WORKER,
           "max(self._acked[message.range], message.iteration)", "message.iteration", "waits forever",
           faults=("duplicate",), workers=1, iterations=3),
    Mutant("a worker that computes starts another computation", WORKER,
           "if self.computing or not self._may_compute():", "if not self._may_compute():",
           "computes iteration 0 before it has pushed all of 0", ranges=2, workers=1),
    Mutant("a worker never finishes computing", WORKER,
           "            self.computing = False\n            self.iteration += 1", "            self.iteration += 1",
           "waits forever"),
    Mutant("a worker pulls for the iteration that it has pushed", WORKER,
           "index, iteration + 1, version))]", "index, iteration, version))]",
           "waits forever"),
    Mutant("a push names the version of another range", WORKER,
           "version = self.iteration, self.versions[index]", "version = self.iteration, self.versions[0]",
           "it was computed on", ranges=2, workers=1),
    Mutant("a worker that rejoins waits for acknowledgements of its former life", WORKER,
           "self._acked = [iteration - 1] * ranges", "self._acked = [-1] * ranges", "waits forever",
           faults=("rejoin",)),
    Mutant("a worker that rejoins believes to have the weights that it pulls", WORKER,
           "[iteration - 1] * ranges\n        self._acked", "[iteration] * ranges\n        self._acked",
           "waits forever", faults=("rejoin",)),
    Mutant("a layered worker continues without the weights of a range", WORKER,
           "return self._held_for[index] >= self.iteration", "return self._held_for[index] >= self.iteration - 1",
           "without the weights of range", ranges=2, workers=1, layered=True),
    Mutant("a layered worker continues with the weights of one range", WORKER,
           "return self._held_for[index] >= self.iteration", "return max(self._held_for) >= self.iteration",
           "without the weights of range", ranges=2, workers=1, layered=True),
    Mutant("a layered worker never has all weights", WORKER,
           "return self._held_for[index] >= self.iteration", "return self._held_for[index] >= 2 * self.iteration",
           "waits forever", workers=1, layered=True),
    Mutant("a layered worker writes into a buffer that is not free", WORKER,
           "        return min(self._acked) >= self.iteration - self.buffers",
           "        return min(self._acked) >= self.iteration - self.buffers - 1",
           "into the buffer of 0, which is not acknowledged", faults=("lose", "reorder"), workers=1, layered=True),
    Mutant("a worker that rejoins keeps the versions of its former life", WORKER,
           "self.versions, self._held_for = [0] * ranges, [iteration - 1] * ranges",
           "self._held_for = [iteration - 1] * ranges", "has kept something of its former life", faults=("rejoin",)),
    Mutant("a worker that rejoins names weights that it has not", WORKER,
           "[Send(Pull(self.worker, index, iteration, 0))", "[Send(Pull(self.worker, index, iteration, iteration))",
           "names version 1; it has 0", faults=("rejoin",)),
    Mutant("a request names the version that the push will make", WORKER,
           "index, iteration + 1, version))]", "index, iteration + 1, version + 1))]", "names version 1; it has 0"),
    Mutant("an eager worker's request names the version that it asks for", WORKER,
           "self.iteration + 1, version) for index", "self.iteration + 1, version + 1) for index",
           "names version 2; it has 1", policy="eager", workers=1),
    # --- policies -------------------------------------------------------------------------------------------------
    Mutant("waiting workers are started one iteration early", SSP,
           "bound = clocks.base + staleness", "bound = clocks.base + staleness + 1", "bound 1 exceeded",
           faults=("kill",), workers=3),
    Mutant("waiting workers are started one iteration late", SSP,
           "in waiting if iteration <= bound)", "in waiting if iteration < bound)", "waits forever"),
    Mutant("workers that are started are still waiting", SSP,
           "tuple(entry for entry in waiting if entry[1] > bound), starts", "waiting, starts", "no worker asked for",
           iterations=3),
    Mutant("no push starts the waiting workers", SSP,
           "if event.moved else (state, ())", "if event.worker < 0 else (state, ())", "waits forever"),
    Mutant("workers are started before the push is applied", SSP,
           "(Apply(worker, iteration), *starts)", "(*starts, Apply(worker, iteration))",
           "while weights are being read"),
    Mutant("no worker is started when another leaves", SSP,
           "return release(without(state, worker), clocks, self.staleness)",
           "return without(state, worker), ()", "waits forever", faults=("kill",)),
    Mutant("a worker that left is still waiting", SSP,
           "return release(without(state, worker), clocks, self.staleness)",
           "return release(state, clocks, self.staleness)", "no worker asked for", faults=("kill",)),
    Mutant("the window is shorter than the staleness", SSP,
           "return self.staleness + 1", "return self.staleness", "bound 0 exceeded"),
    Mutant("staleness has no bound", SSP,
           "case Asked(worker, iteration) if iteration <= clocks.base + self.staleness:",
           "case Asked(worker, iteration):", "bound 1 exceeded"),
    Mutant("a round is summed twice", BSP,
           "return ((), waiting), (*step", "return (pushes, waiting), (*step", "which is not held",
           policy="bsp"),
    Mutant("the next round starts before the last one has ended", BSP,
           "if iteration <= clocks.base:", "if iteration <= clocks.base + 1:", "bound 0 exceeded", policy="bsp"),
    Mutant("a round starts before the last one is applied", BSP,
           "(*step, *starts)", "(*starts, *step)",
           "while weights are being read", policy="bsp"),
    Mutant("pushes of a worker that left are dropped", BSP,
           "            case Left(worker):\n                waiting =",
           "            case Left(worker):\n                pushes = without(pushes, worker)\n"
           "                waiting =", "is never applied", policy="bsp", faults=("kill",)),
    Mutant("a push is never applied", ASP,
           "return None, (Apply(worker, iteration),)", "return None, ()", "without its own push of 0", policy="asp"),
    Mutant("a policy counts its calls", ASP,
           "return None, (Apply(worker, iteration),)",
           "ASP.calls = getattr(ASP, 'calls', 0) + 1\n"
           "                return ASP.calls % 2, (Apply(worker, iteration),)",
           "decides differently when it is asked again", policy="asp"),
    Mutant("weights that are read in place change", SSP,
           "        return self.staleness + 1", "        return self.staleness + 1\n\n    barrier = True",
           "the policy claims a barrier"),
    # --- policies that plan ---------------------------------------------------------------------------------------
    Mutant("a grant ignores the bound", DSSP,
           "if self.capped:", "if not self.capped:", "bound 2 exceeded", policy="dssp:1,1", iterations=5),
    Mutant("the bound allows one iteration more", DSSP,
           "self.low + self.extra + 1 - lead", "self.low + self.extra + 2 - lead", "bound 2 exceeded",
           policy="dssp:1,1,literal,cap=on", iterations=5),
    Mutant("a grant is not used up", DSSP,
           "max(row.credit - 1, 0)", "row.credit", "bound 2 exceeded", policy="dssp:0,2", iterations=5),
    Mutant("waiting workers are not released when another leaves", DSSP,
           "return self._released(others, now, clocks)", "return others, ()", "waits forever",
           policy="dssp:0,1", faults=("kill",)),
    Mutant("workers that are started are still waiting in the table", DSSP,
           "credit=credit, waits=False,", "credit=credit,", "no worker asked for", policy="dssp:0,1", iterations=3),
    Mutant("a duplicate pull counts as a new one", DSSP,
           "if row.clock == row.started:", "if row.clock < row.started:", "no worker asked for", policy="dssp:0,1",
           faults=("duplicate",), iterations=4),
    Mutant("a plan is made without deciding Searched", DSSP,
           "waits=True), (searched,)", "waits=True), ()", "plans without deciding Searched", policy="dssp:0,1",
           iterations=4),
    Mutant("a barrier waits for workers that left", ELASTIC,
           "state._replace(rows=others))\n", "state._replace(rows=others | {row}))\n", "waits forever",
           policy="elastic:1", faults=("kill",), iterations=3),
    Mutant("a barrier does not end when the last missing worker leaves", ELASTIC,
           "                state, starts = _barrier(state)\n                return state, (*searched, *starts)",
           "                return state, searched", "waits forever", policy="elastic:1", faults=("kill",),
           iterations=3),
    Mutant("a barrier ends when the first worker waits", ELASTIC,
           "if not all(row.waits for row in state.rows):", "if not any(row.waits for row in state.rows):",
           "no worker asked for", policy="elastic:1", iterations=3),
    Mutant("a worker that joins during a barrier is held forever", ELASTIC,
           "if goes_on or iteration == row.started:", "if row.target is None and state.planned:\n"
           "                    return state, ()\n                if goes_on or iteration == row.started:",
           "waits forever", policy="elastic:1", faults=("rejoin",), iterations=3),
    # --- eager workers ----------------------------------------------------------------------------------------------
    Mutant("an eager policy ignores all events", EAGER,
           "return self._bound.step(state, event, clocks)", "return state, ()", "waits forever", policy="eager"),
    Mutant("an eager policy's window is too short", EAGER,
           "return self._bound.window", "return 1", "bound 0 exceeded", policy="eager:1"),
    Mutant("an eager worker never pulls", WORKER,
           "return [*map(Send, pulls), Compute(self.iteration)]", "return [Compute(self.iteration)]", "waits forever",
           policy="eager"),
    Mutant("an eager worker's push names its newest weights", WORKER,
           "Push(self.worker, index, iteration, used,", "Push(self.worker, index, iteration, version,",
           "it was computed on", policy="eager", workers=1),
    Mutant("an eager worker does not push a gradient that waited for weights", WORKER,
           "if index in self._ready else []", "if index in self._ready and index else []",
           "as missing in its weights", policy="eager", workers=1, iterations=4),
    Mutant("an eager worker writes into a buffer that is not free", WORKER,
           "buffers = EAGER_BUFFERS", "buffers = EAGER_BUFFERS + 1", "which is not acknowledged", policy="eager",
           workers=1, iterations=4, faults=("reorder", "lose")),
    Mutant("a reply to an eager worker counts a push that its weights lack", SERVER,
           "own = part.clocks[start.worker] - sum", "own = part.clocks[start.worker] + 1 - sum",
           "of its pushes; its weights contain", policy="eager"),
    Mutant("an eager worker counts its own pushes as staleness", WORKER,
           "others = (version - used) - (own - self.own[index])", "others = version - used",
           "it has observed", policy="eager", workers=1, iterations=3),
    Mutant("an eager worker reports no staleness", WORKER,
           "self._ready.pop(index), others)", "self._ready.pop(index))", "it has observed", policy="eager"),
    Mutant("an eager worker adds a push that its weights have", WORKER,
           "if push.iteration >= self.own[push.range])", "if push.iteration >= self.own[push.range] - 1)",
           "as missing in its weights", policy="eager", workers=1, iterations=3),
    Mutant("an eager worker forgets a push that its weights lack", WORKER,
           "if push.iteration >= self.own[push.range])", "if push.iteration > self.own[push.range])",
           "as missing in its weights", policy="eager", workers=1, iterations=3),
    Mutant("an eager worker takes its own pushes of the weights before", WORKER,
           "self.own = [version for version, _ in self._next], [own for _, own in self._next]",
           "self.own = [version for version, _ in self._next], self.own",
           "as missing in its weights", policy="eager", workers=1, iterations=3),
    # --- one decision for all ranges, and dropped pushes --------------------------------------------------------------
    Mutant("a round waits for one worker too many", BACKUP,
           "len(pushes) < clocks.members - self.spare", "len(pushes) <= clocks.members - self.spare",
           "waits forever", policy="backup:0"),
    Mutant("a late push is held instead of dropped", BACKUP,
           "return state, (Drop(worker, iteration),)", "return state, ()", "without its own push of 0",
           policy="backup:1"),
    Mutant("a worker that left waits for the end of its round", BACKUP,
           "{worker}, without(waiting, worker)", "{worker}, waiting", "no worker asked for",
           policy="backup:0", faults=("kill",)),
    Mutant("a round's pushes belong to the next one, too", BACKUP,
           "for worker, _ in waiting), (), ())", "for worker, _ in waiting), pushes, ())", "waits forever",
           policy="backup:0"),
    Mutant("the whole model's window counts nothing", SERVER,
           "moved = scope.complete.push(iteration)", "moved = False", "the window of the whole model is wrong",
           policy="backup:1", ranges=2, iterations=1),
    Mutant("the policy is handed a push that only one range has", SERVER,
           "            if not complete:\n", "            if complete is None:\n", "which is not held",
           policy="backup:1", ranges=2, iterations=1),
    Mutant("a range takes pushes while another is read", SERVER,
           "        if scope.reading:\n            part", "        if index in scope.reading:\n            part",
           "while weights are being read", policy="backup:1", ranges=2, iterations=1),
    Mutant("a worker that left is a member of the whole model's window", SERVER,
           "scope.complete.leave(complete)", "False", "the window of the whole model is wrong",
           policy="backup:1", ranges=2, iterations=1, faults=("kill",)),
    Mutant("a worker that rejoins is no member of the whole model's window", SERVER,
           "                scope.complete.join(iteration)", "                pass",
           "the window of the whole model is wrong", policy="backup:1", ranges=2, iterations=1, faults=("rejoin",)),
    Mutant("a dropped push is counted", SERVER,
           "self._accept(decision.iteration, -1)", "self._accept(decision.iteration, 0)", "are counted as accepted",
           policy="backup:1"),
    Mutant("an incomplete push of a worker that leaves is kept", SERVER,
           "effects.append(Discard(index, part.held.pop((worker, complete))))", "pass", "is never applied",
           policy="backup:0", ranges=2, iterations=1, faults=("kill",)),
    Mutant("a duplicate pull blocks its range", SERVER,
           "if parked is not None and not stale:", "if parked is not None:",
           "waits forever", policy="backup:0", workers=1, ranges=2, faults=("duplicate",)),
]  # fmt: skip
