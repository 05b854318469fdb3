"""Seeded bugs: edits of pslab's source, which the checker, or a campaign of random runs, finds."""

from __future__ import annotations

import inspect
from functools import reduce
from importlib import import_module
from types import FunctionType, ModuleType
from typing import Any

import pytest


class Bug:
    """One edit: `old`, which must be there once, becomes `new`.

    Args:
        where: a module, as "protocol.server", or one of its functions, as "policies.sync.ssp:SSP.step".
        says: a part of the words of who finds it: the checker, the judge, a replay, or the engine, which raises.
        run: the run that shows it: its number in a chaos campaign, or its name in `found`. None: the checker shows it.
        policy, cluster: what the checker explores.
    """

    def __init__(self, name: str, where: str, old: str, new: str, says: str, *, run: int | str | None = None,
                 policy: str = "ssp:1", **cluster: Any) -> None:  # fmt: skip
        self.name, self.where, self.old, self.new, self.says = name, where, old, new, says
        self.run, self.policy, self.cluster = run, policy, {"workers": 2, "iterations": 2, **cluster}

    def text(self) -> str:
        """The module's source with the bug."""
        module, _, name = self.where.partition(":")
        found = import_module(f"pslab.{module}")
        text = part = inspect.getsource(found)
        if name:
            part = inspect.getsource(reduce(inspect.getattr_static, name.split("."), found))
        times = part.count(self.old)
        assert times == text.count(part) == 1, f"{self.name}: {self.old!r} is {times} times in {self.where}"
        return text.replace(part, part.replace(self.old, self.new))

    def seed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let the bug be in this process until the test ends: functions and classes stay, and get other code."""
        module = import_module(f"pslab.{self.where.partition(':')[0]}")
        changed = ModuleType(module.__name__)
        exec(compile(self.text(), str(module.__file__), "exec"), vars(changed))
        _replace(module, changed, monkeypatch)


def _replace(owner: Any, changed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a module or class the code and the values of a changed copy of it."""
    fields = getattr(changed, "_fields", ()) != getattr(owner, "_fields", ())  # of a named tuple
    for name, new in vars(changed).items():
        old = vars(owner).get(name)
        function, other = map(_function, (old, new))
        if isinstance(old, type) and old is not new and new.__module__ == old.__module__ and not fields:
            _replace(old, new, monkeypatch)
        elif fields and name not in ("__dict__", "__weakref__", "__doc__"):
            monkeypatch.setattr(owner, name, new)
        elif function is not None and other is not None:
            if function.__code__ != other.__code__:
                monkeypatch.setattr(function, "__code__", other.__code__)
        elif not name.startswith("__") and (name not in vars(owner) or (isinstance(new, int | tuple) and new != old)):
            monkeypatch.setattr(owner, name, new, raising=False)


def _function(value: Any) -> FunctionType | None:
    """The function in a method, a property or a decorated function; None if there is none."""
    found = inspect.unwrap(getattr(value, "__func__", getattr(value, "fget", value)))
    return found if isinstance(found, FunctionType) else None


WINDOW = "protocol.window"
MESSAGES = "protocol.messages"
SERVER = "protocol.server"
WORKER = "protocol.worker"
STORE = "protocol.store"
BSP = "policies.sync.bsp"
SSP = "policies.sync.ssp"
ASP = "policies.sync.asp"
DSSP = "policies.sync.dssp"
ELASTIC = "policies.sync.elastic"
EAGER = "policies.sync.eager"
BACKUP = "policies.sync.backup"
DECOUPLED = "policies.methods.decoupled"
DRIVER = "engines.server.driver:ServerDriver"
ACCOUNTS = "engines.server.push_accounts:PushAccounts"
OWN_STORE = "engines.server.store:OwnStore"
LEDGER = "engines.server.ledger:Ledger"
DSSP_POLICY = "policies.sync.dssp:DSSP"
WORKER_DRIVER = "engines.worker.driver:WorkerDriver"
NODE = "engines.virtual.worker_node:WorkerNode"
SERVER_NODE = "engines.virtual.server_node:ServerNode"
SCHEDULER = "engines.virtual.scheduler:Scheduler"
SIMULATOR = "engines.virtual.simulator:Simulator"
TRAFFIC = "engines.emulation.traffic:Traffic"
TABLES = "lab.judge:tables_of"
FAULTS = "engines.emulation.faults:Faults"
TURNS = "engines.worker.range_schedule:RangeSchedule"

BUGS = [
    # --- window -------------------------------------------------------------------------------------------------------
    Bug("the low bound rises before the last worker has pushed", WINDOW,
        "iteration == self.base and count == self.members:", "iteration == self.base and count >= self.members - 1:",
        "its low bound is 1, the least clock 0"),
    Bug("the low bound never rises", WINDOW, "iteration == self.base and count == self.members:",
        "iteration == self.base and count > self.members:", "its low bound is 0, the least clock 1"),
    Bug("a worker that leaves is still a member", WINDOW, "self.members -= 1", "self.members -= 0",
        "it counts 2 members of 1", faults=("kill",)),
    Bug("the pushes of a worker that leaves still count", WINDOW, "            self._lower(iteration)",
        "            pass", "its low bound is 1, the least clock 0", faults=("kill",)),
    Bug("the low bound rises by at most one when a worker leaves", WINDOW, "while self.members", "if self.members",
        "its low bound is 1, the least clock 2", faults=("kill",)),
    Bug("a low bound that rose when a worker left is not reported", WINDOW, "return self.base > before", "return False",
        "without its own push of 0", policy="bsp", faults=("kill",)),
    Bug("a worker that rejoins is no member", WINDOW, "self.members += 1", "self.members += 0",
        "it counts 1 members of 2", faults=("rejoin",)),
    Bug("earlier pushes of a worker that rejoins do not count", WINDOW,
        "self.counts[iteration] = self.counts.get(iteration, 0) + 1", "pass",
        "it counts 0 pushes of iteration 0; 1 workers have pushed it", faults=("rejoin",)),
    # --- messages -----------------------------------------------------------------------------------------------------
    Bug("a departure's fields are in another order", MESSAGES, "worker: int\n    now: float\n    moved: bool",
        "worker: int\n    moved: bool\n    now: float", "without its own push of 0", policy="bsp", faults=("kill",)),
    Bug("a start's fields are in another order", MESSAGES, "    worker: int\n    iteration: int\n    steps: int = 0",
        "    iteration: int\n    worker: int\n    steps: int = 0", "has not asked for it"),
    # --- server -------------------------------------------------------------------------------------------------------
    Bug("a duplicate push is counted", SERVER,
        "if clock is None or iteration < (due := rotation.iteration(push.range, clock)):",
        "if clock is None or (due := iteration) < 0:", "a step is made of 1 other pushes", faults=("duplicate",)),
    Bug("a pull that overtook its push is answered at once", SERVER, "iteration > part.clocks[worker] and not",
        "iteration > part.clocks[worker] + 1 and not", "without its own push of 0", faults=("reorder",)),
    Bug("pushes are taken while weights are read", SERVER,
        "            part.deferred.append((message, now))\n            return []",
        "            return self._push(scope, part, message, now)", "while weights are being read"),
    Bug("pushes are taken while weights are read, and applied", SERVER,
        "scope.reading[index] = scope.reading.get(index, 0) + 1", "pass", "has no reply under way"),
    Bug("deferred pushes are forgotten", SERVER, "while taken < len(part.deferred) and not scope",
        "while taken < len(part.deferred) and scope", "waits forever"),
    Bug("one deferred push is taken, the others are forgotten", SERVER,
        "while taken < len(part.deferred) and not scope", "if taken < len(part.deferred) and not scope",
        "waits forever", policy="bsp", workers=3),
    Bug("an answered pull is kept", SERVER, "part.asked.pop(start.worker, None)", "part.asked.get(start.worker)",
        "waits forever"),
    Bug("a pull is answered twice", SERVER,
        "                effects.append(self._perform(scope, index, event, decision))\n",
        "                again = isinstance(decision, Start)\n"
        "                effects += [self._perform(scope, index, event, decision)] * (1 + again)\n"
        "                scope.reading[index] = scope.reading.get(index, 0) + again\n",
        "is started with iteration 1 after 1"),
    Bug("a reply reports the version before", SERVER, "goes_on else part.version, self",
        "goes_on else part.version - 1, self", "is sent version 0; the newest is 1"),
    Bug("a reply without weights names a version that the worker has not", SERVER, "pull.version if goes_on",
        "part.version if goes_on", "is sent version", policy="downpour:3,1"),
    Bug("a push is accepted when its first range has arrived", SERVER,
        "if arrived < len(self.traits.rotation.ranges(push.iteration, len(self.ranges))):", "if arrived < 1:",
        "are counted as accepted", ranges=2, iterations=1),
    Bug("a push counts once all fragments have it", SERVER,
        "if arrived < len(self.traits.rotation.ranges(push.iteration, len(self.ranges))):",
        "if arrived < len(self.ranges):", "are counted as accepted", policy="streaming:2,2", ranges=2, workers=1),
    Bug("clocks of fragments count iterations where weights are asked for", SERVER,
        "turn = self.traits.rotation.turn(pull.range, pull.iteration)", "turn = pull.iteration", "waits forever",
        policy="streaming:2,2", ranges=2, workers=1, iterations=4),
    Bug("a worker joins with a turn instead of an iteration", SERVER,
        "rotation.joined(index, max(part.window.base, part.left.get(worker, 0)))",
        "max(part.window.base, part.left.get(worker, 0))", "cannot join with clock 0", policy="streaming:2,2", ranges=2,
        faults=("rejoin",), iterations=4),
    Bug("the pull of a worker that left is kept", SERVER, "part.asked.pop(worker, None)", "part.asked.get(worker)",
        "holds a request of worker", faults=("kill",)),
    Bug("messages of a worker that left are accepted", SERVER, "if message.worker not in part.clocks:",
        "if message.worker < 0:", "KeyError", faults=("kill",)),
    Bug("a step makes no version", SERVER, "part.version += 1", "part.version += 0",
        "a step makes version 0 from version 0"),
    Bug("an applied push is still held", SERVER, "[waiting.pop(name)", "[waiting[name]", "applied pushes of worker"),
    Bug("a pull that overtook its push is never answered", SERVER, "pull.iteration) == clock + 1 and",
        "pull.iteration) == clock and", "waits forever", faults=("reorder",)),
    Bug("the policy does not learn that a worker left", SERVER, "self._decide(scope, Left(", "[] and (scope, Left(",
        "waits forever", faults=("kill",)),
    Bug("clocks do not advance", SERVER, "part.clocks[worker] = clock + 1", "part.clocks[worker] = clock",
        "it counts 1 pushes of iteration 0"),
    Bug("a worker that rejoins repeats its pushes", SERVER, "max(part.window.base, part.left.get(worker, 0))",
        "part.window.base", "joins with iteration 0, but has pushed iteration 0", faults=("rejoin",)),
    Bug("a worker that rejoins starts on each range at that range's own iteration", SERVER,
        "= turn = rotation.turn(index, iteration)", "= turn = max(part.window.base, part.left.get(worker, 0))",
        "applied pushes of worker", faults=("rejoin",), ranges=2, iterations=1),
    Bug("pushes are added where their mean was decided", SERVER, "aggregate = isinstance(decision, Aggregate)",
        "aggregate = False", "2 pushes are added; the policy decided to apply their mean", policy="bsp"),
    Bug("a push that is applied alone counts as a mean", SERVER, "aggregate = isinstance(decision, Aggregate)",
        "aggregate = True", "a push is applied as the mean of a step; the policy decided to apply it alone",
        policy="asp"),
    # --- store --------------------------------------------------------------------------------------------------------
    Bug("a reply is laid before the step that was ordered before it", STORE, "self.orders.pop(0)", "self.orders.pop()",
        "a reply needs version 1 of range 1; this store has version 0", policy="asp", ranges=2, iterations=1,
        servers=2),
    Bug("payloads are free before their step is done", STORE, "return Done(order, about, free=order.pushes)",
        "more = [push for each, *_ in self.orders if isinstance(each, Step) for push in each.pushes]\n"
        "            return Done(order, about, free=(*order.pushes, *more))", "is freed before it is applied",
        policy="asp", ranges=2, iterations=1, servers=2),
    Bug("what a step has read is never free", STORE, "return Done(order, about, free=order.pushes)",
        "return Done(order, about)", "waits forever", ranges=2, iterations=3, servers=2, workers=1),
    Bug("weights are never sent", STORE, "sends=not vain", "sends=False", "waits forever", ranges=2, servers=2,
        workers=1),
    Bug("weights are sent to a worker that has left", STORE, "queued.pull.worker == order.worker",
        "queued.pull.worker < 0", "is started after it left", faults=("kill",), ranges=2, iterations=1, servers=2),
    # --- worker -------------------------------------------------------------------------------------------------------
    Bug("a worker computes when the weights of one range have arrived", WORKER,
        "self._had(self._held_for, self.iteration)", "max(self._held_for) >= self.iteration",
        "without the weights of range", workers=1, ranges=2),
    Bug("a worker awaits fragments that are not in turn", WORKER,
        "if self._rotation.fragments == 1:\n            return min", "if True:\n            return min",
        "waits forever", policy="streaming:2,2", ranges=2, workers=1),
    Bug("a worker goes on without the weights of the fragment in turn", WORKER,
        "self._had(self._held_for, self.iteration)",
        "any(map(int.__ge__, self._held_for, self._turns(self.iteration)))", "without the weights of range",
        policy="streaming:2,2", ranges=2, workers=1),
    Bug("a worker that joins waits for the fragment in turn alone", WORKER,
        "[turns - 1 for turns in self._turns(iteration)]",
        "[self._rotation.turn(index, iteration - 1) for index in range(ranges)]", "it was computed on -1",
        policy="streaming:2,2", ranges=2, faults=("rejoin",), iterations=4),
    Bug("a worker pushes fragments that are not in turn", WORKER,
        "set(self._rotation.ranges(self.iteration, len(self.versions)))", "set(range(len(self.versions)))",
        "waits forever", policy="streaming:2,2", ranges=2, workers=1),
    Bug("a gradient is written into a buffer that is not free", WORKER, "self.iteration - self.buffers + 1)",
        "self.iteration - 2)", "into the buffer of 0, which is not acknowledged", faults=("lose", "reorder"),
        workers=1),
    Bug("late weights are accepted", WORKER, "if turn <= self._held_for[message.range]:", "if turn < 0:",
        "the push of iteration 2 by worker 0 names version 1", faults=("duplicate",), iterations=3, workers=1),
    Bug("a late acknowledgement is accepted", WORKER, "max(self._freed[message.range], turn + 1)", "turn + 1",
        "waits forever", faults=("duplicate",), workers=1, iterations=3),
    Bug("a worker that computes starts another computation", WORKER, "if self.computing or not self._may_compute():",
        "if not self._may_compute():", "computes iteration 0 before it has pushed all of 0", ranges=2, workers=1),
    Bug("a worker never finishes computing", WORKER,
        "            self.computing = False\n            self.iteration += 1", "            self.iteration += 1",
        "waits forever"),
    Bug("a worker pulls for the iteration that it has pushed", WORKER, "index, iteration + 1, version))]",
        "index, iteration, version))]", "waits forever"),
    Bug("a push names the version of another range", WORKER, "version = self.iteration, self.versions[index]",
        "version = self.iteration, self.versions[0]", "it was computed on", ranges=2, workers=1),
    Bug("a worker that rejoins waits for acknowledgements of its former life", WORKER,
        "self._freed, self.begin, self.steps = self._turns(iteration)",
        "self._freed, self.begin, self.steps = [0] * ranges", "waits forever", faults=("rejoin",)),
    Bug("a worker that rejoins believes to have the weights that it pulls", WORKER,
        "[turns - 1 for turns in self._turns(iteration)]", "self._turns(iteration)", "waits forever",
        faults=("rejoin",)),
    Bug("a layered worker continues without the weights of a range", WORKER,
        "return self._held_for[index] >= self.iteration", "return self._held_for[index] >= self.iteration - 1",
        "without the weights of range", ranges=2, workers=1, layered=True),
    Bug("a layered worker continues with the weights of one range", WORKER,
        "return self._held_for[index] >= self.iteration", "return max(self._held_for) >= self.iteration",
        "without the weights of range", ranges=2, workers=1, layered=True),
    Bug("a layered worker never has all weights", WORKER, "return self._held_for[index] >= self.iteration",
        "return self._held_for[index] >= 2 * self.iteration", "waits forever", workers=1, layered=True),
    Bug("a layered worker writes into a buffer that is not free", WORKER, "self.iteration - self.buffers + 1)",
        "self.iteration - self.buffers)", "into the buffer of 0, which is not acknowledged", faults=("lose", "reorder"),
        workers=1, layered=True),
    Bug("a worker that rejoins keeps the versions of its former life", WORKER,
        "self.versions, self._held_for = [0] * ranges, [turns - 1 for turns in self._turns(iteration)]",
        "self._held_for = [turns - 1 for turns in self._turns(iteration)]", "has state from before it left",
        faults=("rejoin",)),
    Bug("a worker that rejoins names weights that it has not", WORKER, "[Send(Pull(self.worker, index, iteration, 0))",
        "[Send(Pull(self.worker, index, iteration, iteration))", "names version 1; it has 0", faults=("rejoin",)),
    Bug("a request names the version that the push will make", WORKER, "index, iteration + 1, version))]",
        "index, iteration + 1, version + 1))]", "names version 1; it has 0"),
    Bug("an eager worker's request names the version that it asks for", WORKER,
        "self.iteration + 1, version) for index", "self.iteration + 1, version + 1) for index",
        "names version 2; it has 1", policy="eager", workers=1),
    # --- policies -----------------------------------------------------------------------------------------------------
    Bug("waiting workers are started one iteration early", SSP, "bound = clocks.base + staleness",
        "bound = clocks.base + staleness + 1", "bound 1 exceeded", faults=("kill",), workers=3),
    Bug("waiting workers are started one iteration late", SSP, "in waiting if iteration <= bound)",
        "in waiting if iteration < bound)", "waits forever"),
    Bug("workers that are started are still waiting", SSP,
        "tuple(entry for entry in waiting if entry[1] > bound), starts", "waiting, starts", "has not asked for it",
        iterations=3),
    Bug("no push starts the waiting workers", SSP, "if event.moved else (state, ())",
        "if event.worker < 0 else (state, ())", "waits forever"),
    Bug("workers are started before the push is applied", SSP, "(Apply(worker, iteration), *starts)",
        "(*starts, Apply(worker, iteration))", "while weights are being read"),
    Bug("no worker is started when another leaves", SSP,
        "return release(without(state, worker), clocks, self.staleness)", "return without(state, worker), ()",
        "waits forever", faults=("kill",)),
    Bug("a worker that left is still waiting", SSP, "return release(without(state, worker), clocks, self.staleness)",
        "return release(state, clocks, self.staleness)", "has not asked for it", faults=("kill",)),
    Bug("the window is shorter than the staleness", SSP, "return self.staleness + 1", "return self.staleness",
        "bound 0 exceeded"),
    Bug("staleness has no bound", SSP, "case Asked(worker, iteration) if iteration <= clocks.base + self.staleness:",
        "case Asked(worker, iteration):", "bound 1 exceeded"),
    Bug("a round is summed twice", BSP, "return ((), waiting), (*step", "return (pushes, waiting), (*step",
        "which is not held", policy="bsp"),
    Bug("the next round starts before the last one has ended", BSP, "if iteration <= clocks.base:",
        "if iteration <= clocks.base + 1:", "bound 0 exceeded", policy="bsp"),
    Bug("a round starts before the last one is applied", BSP, "(*step, *starts)", "(*starts, *step)",
        "while weights are being read", policy="bsp"),
    Bug("pushes of a worker that left are dropped", BSP, "            case Left(worker):\n                waiting =",
        "            case Left(worker):\n"
        "                pushes = without(pushes, worker)\n"
        "                waiting =", "is never applied", policy="bsp", faults=("kill",)),
    Bug("a push is never applied", ASP, "return None, (Apply(worker, iteration),)", "return None, ()",
        "without its own push of 0", policy="asp"),
    Bug("a policy counts its calls", ASP, "return None, (Apply(worker, iteration),)",
        "ASP.calls = getattr(ASP, 'calls', 0) + 1\n"
        "                return ASP.calls % 2, (Apply(worker, iteration),)",
        "decides differently when it is asked again", policy="asp"),
    Bug("weights that are read in place change", SSP, "        return self.staleness + 1",
        "        return self.staleness + 1\n\n    barrier = True", "the policy claims a barrier"),
    # --- policies that plan -------------------------------------------------------------------------------------------
    Bug("a grant ignores the bound", DSSP, "if self.capped:", "if not self.capped:", "bound 2 exceeded",
        policy="dssp:1,1", iterations=5),
    Bug("the bound allows one iteration more", DSSP, "self.low + self.extra + 1 - lead",
        "self.low + self.extra + 2 - lead", "bound 2 exceeded", policy="dssp:1,1,literal,cap=on", iterations=5),
    Bug("a grant is not used up", DSSP, "max(row.credit - 1, 0)", "row.credit", "bound 2 exceeded", policy="dssp:0,2",
        iterations=5),
    Bug("waiting workers are not released when another leaves", DSSP, "return self._released(others, now, clocks)",
        "return others, ()", "waits forever", policy="dssp:0,1", faults=("kill",)),
    Bug("workers that are started are still waiting in the table", DSSP, "credit=credit, waits=False,",
        "credit=credit,", "has not asked for it", policy="dssp:0,1", iterations=3),
    Bug("a duplicate pull counts as a new one", DSSP, "if row.clock == row.started:", "if row.clock < row.started:",
        "has not asked for it", policy="dssp:0,1", faults=("duplicate",), iterations=4),
    Bug("a plan is made without deciding Searched", DSSP, "waits=True), (searched,)", "waits=True), ()",
        "plans without deciding Searched", policy="dssp:0,1", iterations=4),
    Bug("a barrier waits for workers that left", ELASTIC, "state._replace(rows=others))\n",
        "state._replace(rows=others | {row}))\n", "waits forever", policy="elastic:1", faults=("kill",), iterations=3),
    Bug("a barrier does not end when the last missing worker leaves", ELASTIC,
        "                state, starts = _barrier(state)\n                return state, (*searched, *starts)",
        "                return state, searched", "waits forever", policy="elastic:1", faults=("kill",), iterations=3),
    Bug("a barrier ends when the first worker waits", ELASTIC, "if not all(row.waits for row in state.rows):",
        "if not any(row.waits for row in state.rows):", "has not asked for it", policy="elastic:1", iterations=3),
    Bug("a worker that joins during a barrier is held forever", ELASTIC, "if goes_on or iteration == row.started:",
        "if row.target is None and state.planned:\n"
        "                    return state, ()\n"
        "                if goes_on or iteration == row.started:", "waits forever", policy="elastic:1",
        faults=("rejoin",), iterations=3),
    # --- eager workers ------------------------------------------------------------------------------------------------
    Bug("an eager policy ignores all events", EAGER, "return self._bound.step(state, event, clocks)",
        "return state, ()", "waits forever", policy="eager"),
    Bug("an eager policy's window is too short", EAGER, "return self._bound.window", "return 1", "bound 0 exceeded",
        policy="eager:1"),
    Bug("an eager worker never pulls", WORKER, "return [*map(Send, pulls), Compute(self.iteration)]",
        "return [Compute(self.iteration)]", "waits forever", policy="eager"),
    Bug("an eager worker's push names its newest weights", WORKER, "Push(self.worker, index, iteration, used,",
        "Push(self.worker, index, iteration, version,", "it was computed on", policy="eager", workers=1),
    Bug("an eager worker does not push a gradient that waited for weights", WORKER, "if index in self._ready else []",
        "if index in self._ready and index else []", "as missing in its weights", policy="eager", workers=1,
        iterations=4),
    Bug("an eager worker writes into a buffer that is not free", WORKER, "buffers = EAGER_BUFFERS",
        "buffers = EAGER_BUFFERS + 1", "which is not acknowledged", policy="eager", workers=1, iterations=4,
        faults=("reorder", "lose")),
    Bug("a reply to an eager worker counts a push that its weights lack", SERVER,
        "own_pushes = part.clocks[start.worker] - sum", "own_pushes = part.clocks[start.worker] + 1 - sum",
        "of its pushes; its weights contain", policy="eager"),
    Bug("an eager worker counts its own pushes as staleness", WORKER,
        "others = (version - used) - (own_pushes - self.own[index])", "others = version - used", "it has observed",
        policy="eager", workers=1, iterations=3),
    Bug("an eager worker reports no staleness", WORKER, "self._ready.pop(index), others)", "self._ready.pop(index))",
        "it has observed", policy="eager"),
    Bug("an eager worker adds a push that its weights have", WORKER, "if push.iteration >= self.own[push.range])",
        "if push.iteration >= self.own[push.range] - 1)", "as missing in its weights", policy="eager", workers=1,
        iterations=3),
    Bug("an eager worker forgets a push that its weights lack", WORKER, "if push.iteration >= self.own[push.range])",
        "if push.iteration > self.own[push.range])", "as missing in its weights", policy="eager", workers=1,
        iterations=3),
    Bug("an eager worker takes its own pushes of the weights before", WORKER,
        "self.own = [version for version, _ in self._next], [own_pushes for _, own_pushes in self._next]",
        "self.own = [version for version, _ in self._next], self.own", "as missing in its weights", policy="eager",
        workers=1, iterations=3),
    # --- one decision for all ranges, and dropped pushes --------------------------------------------------------------
    Bug("a round waits for one worker too many", BACKUP, "len(pushes) < clocks.members - self.spare",
        "len(pushes) <= clocks.members - self.spare", "waits forever", policy="backup:0"),
    Bug("a late push is held instead of dropped", BACKUP, "return state, (Drop(worker, iteration),)",
        "return state, ()", "without its own push of 0", policy="backup:1"),
    Bug("a worker that left waits for the end of its round", BACKUP, "{worker}, without(waiting, worker)",
        "{worker}, waiting", "has not asked for it", policy="backup:0", faults=("kill",)),
    Bug("a round's pushes belong to the next one, too", BACKUP, "for worker, _ in waiting), (), ())",
        "for worker, _ in waiting), pushes, ())", "waits forever", policy="backup:0"),
    Bug("a worker goes on before its push is merged", DECOUPLED, "waiting if start[0] not in counted", "waiting",
        "without its own push of 0", policy="decoupled:1,quorum=2"),
    Bug("workers wait for each other on different fragments once another one has left", DECOUPLED, "stuck or len",
        "len", "waits forever", policy="decoupled:2,2,quorum=2", workers=3, ranges=2, faults=("kill",)),
    Bug("a push that waits for the next merge is stuck where a worker joins", DECOUPLED,
        "workers == clocks.members else 0", "clocks.members else 0", "waits forever", policy="decoupled:2,2,quorum=2",
        ranges=2, faults=("rejoin",), iterations=4),
    Bug("a merge waits for more workers than there are", DECOUPLED, "min(self.quorum, clocks.members)", "self.quorum",
        "waits forever", policy="decoupled:1,quorum=3"),
    Bug("what is merged is merged once more", DECOUPLED, "(Aggregate(tuple(sorted(pushes))),), ()",
        "(Aggregate(tuple(sorted(pushes))),), pushes", "which is not held", policy="decoupled:1,quorum=1"),
    Bug("a worker that left is released", DECOUPLED, "waiting = without(waiting, worker)", "pass",
        "has not asked for it", policy="decoupled:1,quorum=2", faults=("kill",)),
    Bug("the whole model's window counts nothing", SERVER, "moved = scope.complete.push(clock)", "moved = False",
        "the window of the whole model is wrong", policy="backup:1", ranges=2, iterations=1),
    Bug("the policy is handed a push that only one range has", SERVER, "            if not complete:\n",
        "            if complete is None:\n", "which is not held", policy="backup:1", ranges=2, iterations=1),
    Bug("a range takes pushes while another is read", SERVER, "        if scope.reading:\n            part",
        "        if index in scope.reading:\n            part", "while weights are being read", policy="backup:1",
        ranges=2, iterations=1),
    Bug("a worker that left is a member of the whole model's window", SERVER, "scope.complete.leave(complete)", "False",
        "the window of the whole model is wrong", policy="backup:1", ranges=2, iterations=1, faults=("kill",)),
    Bug("a worker that rejoins is no member of the whole model's window", SERVER,
        "                scope.complete.join(iteration)", "                pass",
        "the window of the whole model is wrong", policy="backup:1", ranges=2, iterations=1, faults=("rejoin",)),
    Bug("a dropped push is counted", SERVER, "self.accepted -= 1", "self.accepted -= 0", "are counted as accepted",
        policy="backup:1"),
    Bug("an incomplete push of a worker that leaves is kept", SERVER,
        "effects.append(Discard(index, part.held.pop((worker, complete))))", "pass", "is never applied",
        policy="backup:0", ranges=2, iterations=1, faults=("kill",)),
    Bug("a duplicate pull blocks its range", SERVER, "if parked is not None and not stale:", "if parked is not None:",
        "waits forever", policy="backup:0", workers=1, ranges=2, faults=("duplicate",)),
    # === found by a campaign ==========================================================================================
    # --- the server's driver ------------------------------------------------------------------------------------------
    Bug("a request is answered twice", f"{DRIVER}._pull", "pull.iteration <= self._answered.get(key, NOTHING)", "False",
        "the weights are not what a sequential replay", run=117),
    Bug("a duplicate push moves when the first one was taken", f"{DRIVER}._push",
        "if not (effects and type(effects[0]) is Refuse):", "if True:", "not dealt with as it arrived", run=129),
    Bug("no acknowledgement comes alone", f"{DRIVER}._acknowledge", "if late and", "if False and", "the run stalled",
        run=66),
    Bug("a worker that is back is not answered again", f"{DRIVER}.leave", "self._answered.pop((worker, index), None)",
        "pass", "the run stalled", run=39),
    Bug("a worker that left still computes", f"{DRIVER}.leave", "self.accounts.leave(worker)", "pass",
        "ProtocolError: bsp has a barrier, but applies", run="a worker that joins amid a layered round of a barrier"),
    Bug("the budget is passed by one", f"{DRIVER}._end_if_spent", "self.machine.spent(self._budget)",
        "self.machine.spent(self._budget and self._budget + 1)", "was accepted after the budget of", run=0),
    Bug("a push is applied before it was taken", f"{DRIVER}._applied", "accounts.applied_at(step, done_s)",
        "accounts.applied_at(step, (details.led_by or [done_s])[0] - 1e-3)",
        "s, before the message that led to it arrived, at", run=4),
    Bug("weights name the version after theirs", f"{DRIVER}._laid", "reply.version, answer",
        "reply.version + 1, answer", "was computed on version", run=4),
    Bug("weights are read twice", f"{OWN_STORE}.hand", "carry_out(order,",
        "carry_out(order._replace(pull=order.pull._replace(iteration=order.pull.iteration + 1))\n"
        "            if isinstance(order, Reply) else order,", "a sequential replay", run=1),
    Bug("acknowledgements are sent again and again", f"{DRIVER}._laid", "self._outbox.pop(addressed, ())",
        "self._outbox.get(addressed, ())", "'s apply of iteration", run=1),
    Bug("a worker joins with another iteration than is recorded", f"{DRIVER}.join", "joined(worker, iteration, now)",
        "joined(worker, iteration + 1, now)", "lets the worker join with", run=4),
    Bug("a dropped push is not acknowledged", f"{DRIVER}._perform",
        "self._hand(self._store_of(effect.range), effect, Details(times=self._times_of((effect.push,))))", "pass",
        "the run stalled", run=845),
    Bug("refused messages are not counted", f"{DRIVER}._perform", "self.refused += 1", "pass",
        "messages; the manifest counts", run=7),
    Bug("who has left is not discarded from the shard", f"{DRIVER}.leave",
        "self._perform(self.machine.leave(worker, now))", "self.machine.leave(worker, now)", "the run stalled", run=10),
    # --- accounts and ledger ----------------------------------------------------------------------------------------
    Bug("a push is complete when half of its ranges are", f"{ACCOUNTS}._complete",
        "or len(self._job.traits.rotation.ranges(push.iteration, self._ranges))", "or (self._ranges + 1) // 2",
        "the manifest counts", run=4),
    Bug("a push counts as one gradient", f"{ACCOUNTS}.count", "push.steps", "1", "the manifest counts", run=4),
    Bug("a dropped push counts twice", f"{ACCOUNTS}.discard", "self.dropped += 1", "self.dropped += 2",
        "the manifest counts", run=12),
    Bug("what workers compute on is of the version before", f"{ACCOUNTS}.replied", "computing[key] = reply.version",
        "computing[key[0], key[1] - 1] = reply.version", "ProtocolError: bsp has a barrier, but applies", run=23),
    Bug("staleness counts the own step", f"{LEDGER}.applied", "version - 1 - used", "version - used",
        "has a recorded staleness of", run=0),
    Bug("an arrival is of the wrong kind", f"{LEDGER}.arrived", "if type(message) is Push else PULLED",
        "if message.iteration % 7 else PULLED", "the policy applies no further push", run=0),
    Bug("bytes of an answer belong to the next push", f"{LEDGER}.answered", "weights.iteration - 1",
        "weights.iteration", "is followed by a pull", run=0),
    Bug("leaving is not recorded", f"{LEDGER}.left", "self._arrivals.append", "(lambda row: None)",
        "s, and the server was not notified", run=4),
    Bug("the bytes of a push are those of a request", f"{LEDGER}.applied",
        "job.payload_bytes(index, gradient.size_bytes)", "87", "took bytes that", run=1),
    # --- the worker's driver ------------------------------------------------------------------------------------------
    Bug("a frame is taken twice", f"{WORKER_DRIVER}.drop_if_repeated", "return known", "return False",
        "'s apply of iteration", run=21),
    Bug("a frame that came at once twice is taken twice", f"{WORKER_DRIVER}.drop_if_repeated", "last.iteration <= self",
        "last.iteration < self", "'s apply of iteration", run=21),
    Bug("a worker that is back knows what its former life got", f"{WORKER_DRIVER}.join", "self._here.clear()", "pass",
        "the run stalled", run="a worker that joins amid a layered round of a barrier"),
    Bug("computing lasts until all is encoded", f"{WORKER_DRIVER}.computed",
        "self._log.computed(iteration, self._burst_s, ends_s)", "self._log.computed(iteration, self._burst_s, now)",
        "computed iteration", run=26),
    Bug("several gradients take the time of one", f"{WORKER_DRIVER}.draw_compute_s", "self.gradients(iteration)", "1",
        "computed iteration", run=4),
    Bug("a push names the version before", f"{WORKER_DRIVER}._push", "iteration, version, PushInfo",
        "iteration, max(0, version - 1), PushInfo", "was computed on version", run=1),
    Bug("a request names the version before", f"{WORKER_DRIVER}._pull", "pull.version, wanted)",
        "max(0, pull.version - 1), wanted)", "the worker holds version", run=0),
    Bug("a push is recorded as sent when it was taken", f"{WORKER_DRIVER}._pushed",
        "self._sent_s.pop((index, iteration), taken_s)", "taken_s", "begins push of", run=0),
    Bug("weights are recorded for the iteration that they start", f"{WORKER_DRIVER}.installed", "weights.iteration - 1",
        "weights.iteration", "before it was computed", run=0),
    # --- virtual time -------------------------------------------------------------------------------------------------
    Bug("a gradient is computed before all weights are read", f"{NODE}.settled", "not self._unsettled and",
        "self._unsettled == min(1, len(self._job.parts) - 1) and", "a sequential replay", run=7),
    Bug("a stop stops nothing", f"{NODE}._until", "ends_s += self", "_ = self", "computed iteration", run=0),
    Bug("a kill kills nobody", f"{NODE}._ready", "self._simulator.faults.kills(self.worker, iteration)", "False",
        "before which a fault was to kill it", run=10),
    Bug("a forward pass does not wait", f"{NODE}._forward", "if at.forward else None",
        "if at.forward and at.layer else None", "cannot have a gradient of range", run=18),
    Bug("the dead go on", f"{SCHEDULER}.turn", "sequence >= self.life[worker]", "True", "is not computing range",
        run=98),
    Bug("nobody notices a death", f"{SIMULATOR}._dies",
        "self.scheduler.at(now + self._job.run.lease_s, LEAVES, worker, self._notice, worker)", "pass",
        "the run stalled", run=10),
    Bug("a death is not recorded", f"{SIMULATOR}._notice",
        '(self.lives if replaced else self.deaths).append({**death, "seconds": now})', "pass",
        "the server was notified", run=10),
    Bug("a kill is not recorded", f"{SIMULATOR}._dies", "self.faults.killed(worker, iteration, now)", "pass",
        "s, and no fault killed it", run=10),
    Bug("a worker that joins is not announced", f"{SIMULATOR}._joins", "self.driver.join(worker, now)",
        "self.driver.machine.join(worker)", "the policy starts it on version", run=4),
    Bug("what a dead worker is sent is computed on when it is back", f"{NODE}.settled", "if not self._present:",
        "if False:", "a sequential replay", run="a layered worker that is back after a death that nobody had noticed"),
    Bug("two frames at one instant are dealt with side by side", f"{SERVER_NODE}._take", "if self.free_s > now:",
        "if False:", "was applied before the last one",
        run="frames that come at the instant at which the server is free"),
    # --- links and faults ---------------------------------------------------------------------------------------------
    Bug("a late frame is overtaken by the next one", f"{TRAFFIC}.arrived",
        "max(at + fate.delay_s, self._due_s.get(stream, 0.0))", "at + fate.delay_s", "the run stalled", run=66),
    Bug("a duplicate does not arrive", f"{TRAFFIC}.arrived", "range(fate.copies)", "range(1)",
        "was duplicated, and came once", run=25),
    Bug("a dropped frame never arrives", f"{TRAFFIC}.arrived", "range(fate.copies)",
        "range(fate.copies if fate.delay_s < 0.05 else 0)", "the run stalled", run=24),
    Bug("a delay delays nothing", f"{FAULTS}.fate", "delay_s += fault.for_s", "pass", "'s frame of iteration", run=12),
    Bug("a worker that is back has no first range", f"{TURNS}.join", "if iteration or self._next:", "if iteration:",
        "range_schedule.py, line", run="a worker that is back before its first push, and pushes ranges"),
    Bug("a worker that is back asks for a part of the weights", f"{TURNS}.join", "self._joined = iteration", "pass",
        "range_schedule.py, line", run="a worker that is back before its first push, and pushes ranges"),
    Bug("stops and kills are not in the manifest", f"{SIMULATOR}.facts",
        "faults.rows + (frames.rows if frames is not faults else [])", "frames.rows * (frames is not faults)",
        "s, and no fault killed it", run="a worker that leaves as it is to, is back and is killed"),
    # --- policies -----------------------------------------------------------------------------------------------------
    Bug("a worker that waits at the bound is forgotten", f"{DSSP_POLICY}._released", "if row.waits and",
        "if False and row.waits and", "the run stalled", run=24),
    Bug("a grant has no end", f"{DSSP_POLICY}._asked", "max(row.credit - 1, 0)", "row.credit", "the run stalled",
        run=73),
    # --- records ------------------------------------------------------------------------------------------------------
    Bug("pushes are recorded in the reverse order", TABLES, '"pushes": typed(pushes),',
        '"pushes": typed(pushes)[::-1],', "; the table of pushes has worker",
        run="a worker that joins amid a layered round of a barrier"),
    Bug("arrivals are sorted by their worker", TABLES, '"arrivals": typed(arrivals),',
        '"arrivals": typed(arrivals).sort_values("worker"),', "arrivals is not in order of time",
        run="a worker that joins amid a layered round of a barrier"),
    Bug("phases have each other's names", TABLES, "dict(enumerate(PHASES))", "dict(enumerate(PHASES[::-1]))",
        "before it was computed", run="a worker that joins amid a layered round of a barrier"),
    Bug("instants are recorded in whole milliseconds", TABLES, '"pushes": typed(pushes),',
        '"pushes": typed(pushes).round({"seconds": 3}),', "before the message that led to it arrived",
        run="a worker that joins amid a layered round of a barrier"),
]  # fmt: skip
CHECKED, DRAWN = ([bug for bug in BUGS if (bug.run is not None) == drawn] for drawn in (False, True))
