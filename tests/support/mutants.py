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
    *(f"protocol.{name}" for name in ("window", "messages", "traits", "scope", "requests", "server", "worker")),
    *(f"policies.sync.{name}" for name in ("ssp", "bsp", "asp", "eager", "local_sgd", "backup")),
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
    return Machines(fresh["protocol.messages"], fresh["protocol.server"], fresh["protocol.worker"])


def explored(fresh: dict[str, ModuleType], mutant: Mutant) -> Explored:
    """What the checker finds of these modules on the mutant's cluster."""
    module, _, name = ROWS["sync"][split(mutant.policy)[0]].path.removeprefix("pslab.").partition(":")
    sync = make("sync", mutant.policy, getattr(fresh[module], name))
    return explore(sync, workers=mutant.workers, ranges=mutant.ranges, iterations=mutant.iterations,
                   faults=mutant.faults, layered=mutant.layered, machines=machines(fresh))  # fmt: skip


WINDOW, MESSAGES = "protocol/window.py", "protocol/messages.py"
SERVER, WORKER = "protocol/server.py", "protocol/worker.py"
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
    Mutant("who leaves is still a member", WINDOW,
           "self.members -= 1", "self.members -= 0", "it counts 2 members of 1", faults=("kill",)),
    Mutant("the pushes of who leaves still count", WINDOW,
           "            self._lower(iteration)", "            pass",
           "its low bound is 1, the least clock 0", faults=("kill",)),
    Mutant("the low bound rises by one at most when somebody leaves", WINDOW,
           "while self.members", "if self.members",
           "its low bound is 1, the least clock 2", faults=("kill",)),
    Mutant("nobody is told that the low bound rose when somebody left", WINDOW,
           "return self.base > before", "return False", "without its own push of 0", policy="bsp", faults=("kill",)),
    Mutant("who is back is no member", WINDOW,
           "self.members += 1", "self.members += 0", "it counts 1 members of 2", faults=("rejoin",)),
    Mutant("what who is back pushed before does not count", WINDOW,
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
    Mutant("a push that comes twice is counted twice", SERVER,
           "if clock is None or iteration < clock:", "if clock is None:", "the window of range 0 is wrong",
           faults=("duplicate",)),
    Mutant("a pull that overtook its push is answered at once", SERVER,
           "iteration > part.clocks[worker] and not", "iteration > part.clocks[worker] + 1 and not",
           "without its own push of 0", faults=("reorder",)),
    Mutant("pushes are taken while weights are read", SERVER,
           "            part.deferred.append((message, now))\n            return []",
           "            return self._push(scope, part, message, now)", "while weights are being read"),
    Mutant("pushes are taken while weights are read, and applied", SERVER,
           "scope.reading.append(index)", "pass", "is not answering a pull"),
    Mutant("deferred pushes are forgotten", SERVER,
           "while part.deferred and not scope", "while part.deferred and scope", "waits for ever"),
    Mutant("one deferred push is taken, the others are forgotten", SERVER,
           "while part.deferred and not scope", "if part.deferred and not scope",
           "waits for ever", policy="bsp", workers=3),
    Mutant("a pull that was answered stays", SERVER,
           "part.asked.pop(start.worker, None)", "part.asked.get(start.worker)", "waits for ever"),
    Mutant("a pull is answered twice", SERVER,
           "                effects.append(self._perform(scope, index, event, decision))\n",
           "                again = isinstance(decision, Start)\n"
           "                effects += [self._perform(scope, index, event, decision)] * (1 + again)\n"
           "                scope.reading += [index] * again\n",
           "is started with iteration 1 after 1"),
    Mutant("a pull is told the version before", SERVER,
           "Reply(pull, part.version, released_by, own)", "Reply(pull, part.version - 1, released_by, own)",
           "is told version 0 of weights that are 1"),
    Mutant("a push is accepted with its first range", SERVER,
           "if arrived < len(self.ranges):", "if arrived < 1:", "are counted as accepted", ranges=2, iterations=1),
    Mutant("who is gone leaves its pull behind", SERVER,
           "part.asked.pop(worker, None)", "part.asked.get(worker)", "holds a request of worker",
           faults=("kill",)),
    Mutant("messages of who is gone are taken", SERVER,
           "if message.worker not in part.clocks:", "if message.worker < 0:", "KeyError", faults=("kill",)),
    Mutant("a step makes no version", SERVER,
           "part.version += 1", "part.version += 0", "a step makes version 0 of version 0"),
    Mutant("a push that is applied stays held", SERVER,
           "part.held.pop(name)", "part.held[name]", "as the applied pushes of worker"),
    Mutant("a pull that waited for its push waits on", SERVER,
           "pull.iteration == clock + 1 and", "pull.iteration == clock and", "waits for ever", faults=("reorder",)),
    Mutant("the policy is not told who left", SERVER,
           "self._decide(scope, Left(", "[] and (scope, Left(", "no worker asked for",
           faults=("kill",)),
    Mutant("clocks stand still", SERVER,
           "part.clocks[worker] = clock + 1", "part.clocks[worker] = clock", "it counts 1 pushes of iteration 0"),
    Mutant("who is back pushes again what it has pushed", SERVER,
           "max(max(part.window.base, part.left.get(worker, 0)) for part in self.ranges)",
           "max(part.window.base for part in self.ranges)", "joins with iteration 0, but has pushed iteration 0",
           faults=("rejoin",)),
    Mutant("who is back begins on every range where that range is", SERVER,
           "            part.window.join(iteration)\n            part.clocks[worker] = iteration",
           "            own = max(part.window.base, part.left.get(worker, 0))\n"
           "            part.window.join(own)\n            part.clocks[worker] = own",
           "as the applied pushes of worker", faults=("rejoin",), ranges=2, iterations=1),
    # --- worker ---------------------------------------------------------------------------------------------------
    Mutant("one range's weights are enough to compute", WORKER,
           "min(self._held_for) >= self.iteration", "max(self._held_for) >= self.iteration",
           "without the weights of range", workers=1, ranges=2),
    Mutant("a gradient is written into a buffer that is not free", WORKER,
           "and min(self._acked) >= self.iteration - self.buffers", "and min(self._acked) >= self.iteration - 3",
           "into the buffer of 0, which is not acknowledged", faults=("lose", "reorder"), workers=1),
    Mutant("weights that come late are taken", WORKER,
           "if message.iteration <= self._held_for[message.range]:", "if message.iteration < 0:",
           "the push of iteration 2 by worker 0 says version 1", faults=("duplicate",), iterations=3, workers=1),
    Mutant("an acknowledgement that comes late is taken", WORKER,
           "max(self._acked[message.range], message.iteration)", "message.iteration", "waits for ever",
           faults=("duplicate",), workers=1, iterations=3),
    Mutant("a worker that computes begins to compute", WORKER,
           "if self.computing or not self._may_compute():", "if not self._may_compute():",
           "computes iteration 0 before it has pushed all of 0", ranges=2, workers=1),
    Mutant("a worker is never done with computing", WORKER,
           "            self.computing = False\n            self.iteration += 1", "            self.iteration += 1",
           "waits for ever"),
    Mutant("a worker asks for the iteration that it has pushed", WORKER,
           "index, iteration + 1, version))]", "index, iteration, version))]",
           "waits for ever"),
    Mutant("a push names the version of another range", WORKER,
           "version = self.iteration, self.versions[index]", "version = self.iteration, self.versions[0]",
           "it was computed on", ranges=2, workers=1),
    Mutant("who is back waits for the acknowledgements of its former life", WORKER,
           "self._acked = [iteration - 1] * ranges", "self._acked = [-1] * ranges", "waits for ever",
           faults=("rejoin",)),
    Mutant("who is back has the weights that it asks for", WORKER,
           "[iteration - 1] * ranges\n        self._acked", "[iteration] * ranges\n        self._acked",
           "waits for ever", faults=("rejoin",)),
    Mutant("a layered worker goes on without the weights of a range", WORKER,
           "return self._held_for[index] >= self.iteration", "return self._held_for[index] >= self.iteration - 1",
           "without the weights of range", ranges=2, workers=1, layered=True),
    Mutant("a layered worker goes on with the weights of one range", WORKER,
           "return self._held_for[index] >= self.iteration", "return max(self._held_for) >= self.iteration",
           "without the weights of range", ranges=2, workers=1, layered=True),
    Mutant("a layered worker never has all weights", WORKER,
           "return self._held_for[index] >= self.iteration", "return self._held_for[index] >= 2 * self.iteration",
           "waits for ever", workers=1, layered=True),
    Mutant("a layered worker writes into a buffer that is not free", WORKER,
           "        return min(self._acked) >= self.iteration - self.buffers",
           "        return min(self._acked) >= self.iteration - self.buffers - 1",
           "into the buffer of 0, which is not acknowledged", faults=("lose", "reorder"), workers=1, layered=True),
    # --- policies -------------------------------------------------------------------------------------------------
    Mutant("those who wait are started one iteration early", SSP,
           "bound = clocks.base + staleness", "bound = clocks.base + staleness + 1", "bound 1 exceeded",
           faults=("kill",), workers=3),
    Mutant("those who wait are started one iteration late", SSP,
           "in waiting if iteration <= bound)", "in waiting if iteration < bound)", "waits for ever"),
    Mutant("those who are started wait on", SSP,
           "tuple(entry for entry in waiting if entry[1] > bound), starts", "waiting, starts", "no worker asked for",
           iterations=3),
    Mutant("those who wait are started by no push", SSP,
           "if event.moved else (state, ())", "if event.worker < 0 else (state, ())", "waits for ever"),
    Mutant("workers are started before the push is applied", SSP,
           "(Apply(worker, iteration), *starts)", "(*starts, Apply(worker, iteration))",
           "while weights are being read"),
    Mutant("nobody is started when somebody leaves", SSP,
           "return release(tuple(entry for entry in state if entry[0] != gone), clocks, self.staleness)",
           "return tuple(entry for entry in state if entry[0] != gone), ()", "waits for ever", faults=("kill",)),
    Mutant("who is gone still waits", SSP,
           "return release(tuple(entry for entry in state if entry[0] != gone), clocks, self.staleness)",
           "return release(state, clocks, self.staleness)", "no worker asked for", faults=("kill",)),
    Mutant("the window that is claimed is shorter than the staleness", SSP,
           "return self.staleness + 1", "return self.staleness", "bound 0 exceeded"),
    Mutant("staleness has no bound", SSP,
           "case Asked(worker, iteration) if iteration <= clocks.base + self.staleness:",
           "case Asked(worker, iteration):", "bound 1 exceeded"),
    Mutant("a round is summed twice", BSP,
           "return ((), waiting), (*whole", "return (pushes, waiting), (*whole", "which is not held",
           policy="bsp"),
    Mutant("the next round begins before the last one has ended", BSP,
           "if iteration <= clocks.base:", "if iteration <= clocks.base + 1:", "bound 0 exceeded", policy="bsp"),
    Mutant("a round begins before the last one is applied", BSP,
           "(*whole, *starts)", "(*starts, *whole)",
           "while weights are being read", policy="bsp"),
    Mutant("pushes of who is gone are dropped", BSP,
           "            case Left(gone):\n                waiting =",
           "            case Left(gone):\n                pushes = tuple(each for each in pushes if each[0] != gone)\n"
           "                waiting =", "is never applied", policy="bsp", faults=("kill",)),
    Mutant("a push is never applied", ASP,
           "return None, (Apply(worker, iteration),)", "return None, ()", "without its own push of 0", policy="asp"),
    Mutant("weights are read in place, and change", SSP,
           "        return self.staleness + 1", "        return self.staleness + 1\n\n    barrier = True",
           "the policy claims a barrier"),
    # --- policies that plan ---------------------------------------------------------------------------------------
    Mutant("a grant knows no bound", DSSP,
           "if self.capped:", "if not self.capped:", "bound 2 exceeded", policy="dssp:1,1", iterations=5),
    Mutant("the bound allows one iteration more", DSSP,
           "self.low + self.extra + 1 - lead", "self.low + self.extra + 2 - lead", "bound 2 exceeded",
           policy="dssp:1,1,literal,cap=on", iterations=5),
    Mutant("a grant is not used up", DSSP,
           "max(row.credit - 1, 0)", "row.credit", "bound 2 exceeded", policy="dssp:0,2", iterations=5),
    Mutant("those who wait are not looked for when somebody leaves", DSSP,
           "return self._released(others, now, clocks)", "return others, ()", "waits for ever",
           policy="dssp:0,1", faults=("kill",)),
    Mutant("those who are started wait on, as the table has it", DSSP,
           "credit=credit, waits=False,", "credit=credit,", "no worker asked for", policy="dssp:0,1", iterations=3),
    Mutant("who asks once more is taken for somebody who waits", DSSP,
           "if row.clock == row.started:", "if row.clock < row.started:", "no worker asked for", policy="dssp:0,1",
           faults=("duplicate",), iterations=4),
    Mutant("a plan is made, and the search is not told", DSSP,
           "waits=True), (searched,)", "waits=True), ()", "does not say that it has Searched", policy="dssp:0,1",
           iterations=4),
    Mutant("a barrier waits for those who are gone", ELASTIC,
           "state._replace(rows=others))\n", "state._replace(rows=others | {row}))\n", "waits for ever",
           policy="elastic:1", faults=("kill",), iterations=3),
    Mutant("a barrier does not fall when the last one that was awaited leaves", ELASTIC,
           "                state, starts = _barrier(state)\n                return state, (*searched, *starts)",
           "                return state, searched", "waits for ever", policy="elastic:1", faults=("kill",),
           iterations=3),
    Mutant("a barrier falls when the first one waits", ELASTIC,
           "if not all(row.waits for row in state.rows):", "if not any(row.waits for row in state.rows):",
           "no worker asked for", policy="elastic:1", iterations=3),
    Mutant("who joins while a barrier is awaited is held for ever", ELASTIC,
           "if goes_on or iteration == row.started:", "if row.target is None and state.planned:\n"
           "                    return state, ()\n                if goes_on or iteration == row.started:",
           "waits for ever", policy="elastic:1", faults=("rejoin",), iterations=3),
    # --- eager workers ----------------------------------------------------------------------------------------------
    Mutant("an eager policy hears of nothing", EAGER,
           "return self._gate.step(state, event, clocks)", "return state, ()", "waits for ever", policy="eager"),
    Mutant("an eager policy's window is too short", EAGER,
           "return self._gate.window", "return 1", "bound 0 exceeded", policy="eager:1"),
    Mutant("an eager worker asks for nothing", WORKER,
           "return [*map(Send, pulls), Compute(self.iteration)]", "return [Compute(self.iteration)]", "waits for ever",
           policy="eager"),
    Mutant("an eager worker's push names the weights that came last", WORKER,
           "Push(self.worker, index, iteration, used,", "Push(self.worker, index, iteration, version,",
           "it was computed on", policy="eager", workers=1),
    Mutant("an eager worker does not push what waited for its weights", WORKER,
           "if index in self._ready else []", "if index in self._ready and index else []",
           "waits for ever", policy="eager", workers=1, iterations=4),
    Mutant("an eager worker writes into a buffer that is not free", WORKER,
           "buffers = EAGER_BUFFERS", "buffers = EAGER_BUFFERS + 1", "which is not acknowledged", policy="eager",
           workers=1, iterations=4, faults=("reorder", "lose")),
    Mutant("an eager worker is told of a push that is not in its weights", SERVER,
           "own = part.clocks[start.worker] - sum(", "own = part.clocks[start.worker] + 1 - sum(",
           "of its pushes are in its weights", policy="eager"),
    # --- one decision for all ranges, and dropped pushes --------------------------------------------------------------
    Mutant("a round waits for one too many", BACKUP,
           "len(pushes) < clocks.members - self.spare", "len(pushes) <= clocks.members - self.spare",
           "waits for ever", policy="backup:0"),
    Mutant("what comes too late is held", BACKUP,
           "return state, (Drop(worker, iteration),)", "return state, ()", "without its own push of 0",
           policy="backup:1"),
    Mutant("who has left waits for the round's end", BACKUP,
           "tuple(entry for entry in waiting if entry[0] != gone)", "waiting", "no worker asked for",
           policy="backup:0", faults=("kill",)),
    Mutant("a round's pushes are those of the next one too", BACKUP,
           "for worker, _ in waiting), (), ())", "for worker, _ in waiting), pushes, ())", "waits for ever",
           policy="backup:0"),
    Mutant("the whole model's window counts nothing", SERVER,
           "moved = scope.complete.push(iteration)", "moved = False", "the window of the whole model is wrong",
           policy="backup:1", ranges=2, iterations=1),
    Mutant("the policy hears of a push that only one range has", SERVER,
           "            if not complete:\n", "            if complete is None:\n", "which is not held",
           policy="backup:1", ranges=2, iterations=1),
    Mutant("a range takes pushes while another is read", SERVER,
           "        if scope.reading:\n            part", "        if index in scope.reading:\n            part",
           "while weights are being read", policy="backup:1", ranges=2, iterations=1),
    Mutant("who is gone is a member of the whole model", SERVER,
           "scope.complete.leave(complete)", "False", "the window of the whole model is wrong",
           policy="backup:1", ranges=2, iterations=1, faults=("kill",)),
    Mutant("who is back is no member of the whole model", SERVER,
           "                scope.complete.join(iteration)", "                pass",
           "the window of the whole model is wrong", policy="backup:1", ranges=2, iterations=1, faults=("rejoin",)),
    Mutant("what was dropped is counted", SERVER,
           "self._accept(decision.iteration, -1)", "self._accept(decision.iteration, 0)", "are counted as accepted",
           policy="backup:1"),
    Mutant("what who leaves has pushed in part stays", SERVER,
           "effects.append(Discard(index, part.held.pop((worker, complete))))", "pass", "is never applied",
           policy="backup:0", ranges=2, iterations=1, faults=("kill",)),
    Mutant("a request that comes again blocks its range", SERVER,
           "if parked is not None and not stale:", "if parked is not None:",
           "waits for ever", policy="backup:0", workers=1, ranges=2, faults=("duplicate",)),
]  # fmt: skip
