"""Seeded bugs: edits of pslab's source, which the checker, or a campaign of random runs, finds."""

from __future__ import annotations

import inspect
from functools import partial
from importlib import import_module
from types import FunctionType, ModuleType
from typing import Any

import pytest


class Bug:
    """One edit: `old`, which is in the source of the module `where` once, becomes `new`.

    Args:
        says: a part of the words of who finds it: the checker, the judge, a replay, or the engine, which raises.
        run: the run that shows it: its number in a chaos campaign, or its name in `found`. None: the checker shows it.
        policy, faults, cluster: what the checker explores.
    """

    def __init__(self, where: str, name: str, old: str, new: str, says: str = "", *, run: int | str | None = None,
                 policy: str = "ssp:1", faults: str = "", **cluster: Any) -> None:  # fmt: skip
        self.where, self.name, self.old, self.new, self.run, self.policy = where, name, old, new, run, policy
        self.says = says or ("waits forever" if run is None else "the run stalled")
        self.cluster = {"workers": 2, "iterations": 2, "faults": tuple(faults.split()), **cluster}

    def text(self) -> str:
        """The module's source with the bug."""
        text = inspect.getsource(import_module(f"pslab.{self.where}"))
        times = text.count(self.old)
        assert times == 1, f"{self.name}: {self.old!r} is {times} times in {self.where}"
        return text.replace(self.old, self.new)

    def seed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let the bug be in this process until the test ends: functions and classes stay, and get other code."""
        module = import_module(f"pslab.{self.where}")
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


window = partial(Bug, "protocol.window")
messages = partial(Bug, "protocol.messages")
server = partial(Bug, "protocol.server")
store = partial(Bug, "protocol.store")
worker = partial(Bug, "protocol.worker")
bsp = partial(Bug, "policies.sync.bsp", policy="bsp")
ssp = partial(Bug, "policies.sync.ssp")
asp = partial(Bug, "policies.sync.asp", policy="asp")
dssp = partial(Bug, "policies.sync.dssp", policy="dssp:0,1")
elastic = partial(Bug, "policies.sync.elastic", policy="elastic:1")
eager = partial(Bug, "policies.sync.eager", policy="eager")
backup = partial(Bug, "policies.sync.backup", policy="backup:0")
decoupled = partial(Bug, "policies.methods.decoupled", policy="decoupled:2,2,quorum=2")
server_driver = partial(Bug, "engines.server.driver")
accounts = partial(Bug, "engines.server.push_accounts")
own_store = partial(Bug, "engines.server.store")
ledger = partial(Bug, "engines.server.ledger")
worker_driver = partial(Bug, "engines.worker.driver")
worker_node = partial(Bug, "engines.virtual.worker_node")
server_node = partial(Bug, "engines.virtual.server_node")
scheduler = partial(Bug, "engines.virtual.scheduler")
simulator = partial(Bug, "engines.virtual.simulator")
traffic = partial(Bug, "engines.emulation.traffic")
judge = partial(Bug, "lab.judge")
faults = partial(Bug, "engines.emulation.faults")
turns = partial(Bug, "engines.worker.range_schedule")

#: What the checker finds.
CHECKED = [
    window("the low bound rises before the last worker has pushed", "count == self.members",
        "count >= self.members - 1", "its low bound is 1, the least clock 0"),
    window("the low bound never rises", "and count ==", "and count >", "its low bound is 0, the least clock 1"),
    window("a worker that leaves is still a member", "self.members -= 1", "self.members -= 0",
        "it counts 2 members of 1", faults="kill"),
    window("the pushes of a worker that leaves still count", "self._lower(iteration)", "pass",
        "its low bound is 1, the least clock 0", faults="kill"),
    window("the low bound rises by at most one when a worker leaves", "while self.members", "if self.members",
        "its low bound is 1, the least clock 2", faults="kill"),
    window("a low bound that rose when a worker left is not reported", "self.base > before", "False",
        "without its own push of 0", policy="bsp", faults="kill"),
    window("a worker that rejoins is no member", "self.members += 1", "self.members += 0", "it counts 1 members of 2",
        faults="rejoin"),
    window("earlier pushes of a worker that rejoins do not count",
        "self.counts[iteration] = self.counts.get(iteration, 0) + 1", "pass",
        "it counts 0 pushes of iteration 0; 1 workers have pushed it", faults="rejoin"),
    messages("a departure's fields are in another order", "now: float\n    moved: bool\n\n",
        "moved: bool\n    now: float\n\n", "without its own push of 0", policy="bsp", faults="kill"),
    messages("a start's fields are in another order", "worker: int\n    iteration: int\n    steps",
        "iteration: int\n    worker: int\n    steps", "has not asked for it"),
    server("a duplicate push is counted", "iteration < (due := rotation.iteration(push.range, clock))",
        "(due := iteration) < 0", "a step is made of 1 other pushes", faults="duplicate"),
    server("a pull that overtook its push is answered at once", "[worker] and not", "[worker] + 1 and not",
        "without its own push of 0", faults="reorder"),
    server("pushes are taken while weights are read", "part.deferred.append((message, now))\n            return []",
        "return self._push(scope, part, message, now)", "while weights are being read"),
    server("pushes are taken while weights are read, and applied",
        "scope.reading[index] = scope.reading.get(index, 0) + 1", "pass", "has no reply under way"),
    server("deferred pushes are forgotten", "not scope.reading:", "scope.reading:"),
    server("one deferred push is taken, the others are forgotten", "while taken < len", "if taken < len", policy="bsp",
        workers=3),
    server("an answered pull is kept", "part.asked.pop(start.worker, None)", "part.asked.get(start.worker)"),
    server("a pull is answered twice", "effects.append(self._perform(scope, index, event, decision))",
        "again = isinstance(decision, Start)\n"
        "                effects += [self._perform(scope, index, event, decision)] * (1 + again)\n"
        "                scope.reading[index] = scope.reading.get(index, 0) + again",
        "is started with iteration 1 after 1"),
    server("a reply reports the version before", "else part.version,", "else part.version - 1,",
        "is sent version 0; the newest is 1"),
    server("a reply without weights names a version that the worker has not", "pull.version if", "part.version if",
        "is sent version", policy="downpour:3,1"),
    server("a push is accepted when its first range has arrived",
        "len(self.traits.rotation.ranges(push.iteration, len(self.ranges)))", "1", "are counted as accepted",
        iterations=1, ranges=2),
    server("a push counts once all fragments have it", "self.traits.rotation.ranges(push.iteration, len(self.ranges))",
        "self.ranges", "are counted as accepted", policy="streaming:2,2", workers=1, ranges=2),
    server("clocks of fragments count iterations where weights are asked for",
        "self.traits.rotation.turn(pull.range, pull.iteration)", "pull.iteration", policy="streaming:2,2", workers=1,
        iterations=4, ranges=2),
    server("a worker joins with a turn instead of an iteration",
        "rotation.joined(index, max(part.window.base, part.left.get(worker, 0)))",
        "max(part.window.base, part.left.get(worker, 0))", "cannot join with clock 0", policy="streaming:2,2",
        iterations=4, ranges=2, faults="rejoin"),
    server("the pull of a worker that left is kept", "part.asked.pop(worker, None)", "part.asked.get(worker)",
        "holds a request of worker", faults="kill"),
    server("messages of a worker that left are accepted", "not in part.clocks", "< 0", "KeyError", faults="kill"),
    server("a step makes no version", "part.version += 1", "part.version += 0",
        "a step makes version 0 from version 0"),
    server("an applied push is still held", "waiting.pop(name)", "waiting[name]", "applied pushes of worker"),
    server("a pull that overtook its push is never answered", "clock + 1 and not", "clock and not", faults="reorder"),
    server("the policy does not learn that a worker left", "+= self._decide", "+= [] and ", faults="kill"),
    server("clocks do not advance", "[worker] = clock + 1", "[worker] = clock", "it counts 1 pushes of iteration 0"),
    server("a worker that rejoins repeats its pushes", "max(part.window.base, part.left.get(worker, 0))",
        "part.window.base", "joins with iteration 0, but has pushed iteration 0", faults="rejoin"),
    server("a worker that rejoins starts on each range at that range's own iteration",
        "rotation.turn(index, iteration)", "max(part.window.base, part.left.get(worker, 0))",
        "applied pushes of worker", iterations=1, faults="rejoin", ranges=2),
    server("pushes are added where their mean was decided", "= isinstance(decision, Aggregate)", "= False",
        "2 pushes are added; the policy decided to apply their mean", policy="bsp"),
    server("a push that is applied alone counts as a mean", "= isinstance(decision, Aggregate)", "= True",
        "a push is applied as the mean of a step; the policy decided to apply it alone", policy="asp"),
    server("a reply to an eager worker counts a push that its weights lack", "[start.worker] -", "[start.worker] + 1 -",
        "of its pushes; its weights contain", policy="eager"),
    server("the whole model's window counts nothing", "scope.complete.push(clock)", "False",
        "the window of the whole model is wrong", policy="backup:1", iterations=1, ranges=2),
    server("the policy is handed a push that only one range has", "if not complete:", "if complete is None:",
        "which is not held", policy="backup:1", iterations=1, ranges=2),
    server("a range takes pushes while another is read", "now)\n        if scope.reading",
        "now)\n        if index in scope.reading", "while weights are being read", policy="backup:1", iterations=1,
        ranges=2),
    server("a worker that left is a member of the whole model's window", "scope.complete.leave(complete)", "False",
        "the window of the whole model is wrong", policy="backup:1", iterations=1, ranges=2, faults="kill"),
    server("a worker that rejoins is no member of the whole model's window", "scope.complete.join(iteration)", "pass",
        "the window of the whole model is wrong", policy="backup:1", iterations=1, ranges=2, faults="rejoin"),
    server("a dropped push is counted", "self.accepted -= 1", "self.accepted -= 0", "are counted as accepted",
        policy="backup:1"),
    server("an incomplete push of a worker that leaves is kept",
        "effects.append(Discard(index, part.held.pop((worker, complete))))", "pass", "is never applied",
        policy="backup:0", iterations=1, ranges=2, faults="kill"),
    server("a duplicate pull blocks its range", "None and not stale", "None", policy="backup:0", workers=1, ranges=2,
        faults="duplicate"),
    store("a reply is laid before the step that was ordered before it", "self.orders.pop(0)", "self.orders.pop()",
        "a reply needs version 1 of range 1; this store has version 0", policy="asp", iterations=1, ranges=2,
        servers=2),
    store("payloads are free before their step is done", "free=order.pushes", "free=(*order.pushes, *("
        "push for each, *_ in self.orders if isinstance(each, Step) for push in each.pushes))",
        "is freed before it is applied", policy="asp", iterations=1, ranges=2, servers=2),
    store("what a step has read is never free", ", free=order.pushes", "", workers=1, iterations=3, ranges=2,
        servers=2),
    store("weights are never sent", "sends=not vain", "sends=False", workers=1, ranges=2, servers=2),
    store("weights are sent to a worker that has left", "== order.worker", "< 0", "is started after it left",
        iterations=1, faults="kill", ranges=2, servers=2),
    worker("a worker computes when the weights of one range have arrived", "self._had(self._held_for, self.iteration)",
        "max(self._held_for) >= self.iteration", "without the weights of range", workers=1, ranges=2),
    worker("a worker awaits fragments that are not in turn", '"\n        if self._rotation.fragments == 1',
        '"\n        if True', policy="streaming:2,2", workers=1, ranges=2),
    worker("a worker goes on without the weights of the fragment in turn", "self._had(self._held_for, self.iteration)",
        "any(map(int.__ge__, self._held_for, self._turns(self.iteration)))", "without the weights of range",
        policy="streaming:2,2", workers=1, ranges=2),
    worker("a worker that joins waits for the fragment in turn alone", "turns - 1 for turns in self._turns(iteration)",
        "self._rotation.turn(index, iteration - 1) for index in range(ranges)", "it was computed on -1",
        policy="streaming:2,2", iterations=4, ranges=2, faults="rejoin"),
    worker("a worker pushes fragments that are not in turn", "self._rotation.ranges(self.iteration, len", "range(len",
        policy="streaming:2,2", workers=1, ranges=2),
    worker("a gradient is written into a buffer that is not free", "self.buffers + 1", "2",
        "into the buffer of 0, which is not acknowledged", workers=1, faults="lose reorder"),
    worker("late weights are accepted", "= self._held_for[message.range]", " 0",
        "the push of iteration 2 by worker 0 names version 1", workers=1, iterations=3, faults="duplicate"),
    worker("a late acknowledgement is accepted", "max(self._freed[message.range], turn + 1)", "turn + 1", workers=1,
        iterations=3, faults="duplicate"),
    worker("a worker that computes starts another computation", "self.computing or not", "not",
        "computes iteration 0 before it has pushed all of 0", workers=1, ranges=2),
    worker("a worker never finishes computing", "self.computing = False\n            self.iteration", "self.iteration"),
    worker("a worker pulls for the iteration that it has pushed", ", iteration + 1,", ", iteration,"),
    worker("a push names the version of another range", "index]\n        self._advance(", "0]\n        self._advance(",
        "it was computed on", workers=1, ranges=2),
    worker("a worker that rejoins waits for acknowledgements of its former life", "self._turns(iteration),",
        "[0] * ranges,", faults="rejoin"),
    worker("a worker that rejoins believes to have the weights that it pulls",
        "[turns - 1 for turns in self._turns(iteration)]", "self._turns(iteration)", faults="rejoin"),
    worker("a layered worker continues without the weights of a range", ">= self.iteration", ">= self.iteration - 1",
        "without the weights of range", workers=1, ranges=2, layered=True),
    worker("a layered worker continues with the weights of one range", "self._held_for[index] >=",
        "max(self._held_for) >=", "without the weights of range", workers=1, ranges=2, layered=True),
    worker("a layered worker never has all weights", ">= self.iteration", ">= 2 * self.iteration", workers=1,
        layered=True),
    worker("a layered worker writes into a buffer that is not free", "self.buffers + 1", "self.buffers",
        "into the buffer of 0, which is not acknowledged", workers=1, faults="lose reorder", layered=True),
    worker("a worker that rejoins keeps the versions of its former life",
        "self.versions, self._held_for = [0] * ranges,", "self._held_for =", "has state from before it left",
        faults="rejoin"),
    worker("a worker that rejoins names weights that it has not", "iteration, 0", "iteration, iteration",
        "names version 1; it has 0", faults="rejoin"),
    worker("a request names the version that the push will make", "version))]  # fmt:", "version + 1))]  # fmt:",
        "names version 1; it has 0"),
    worker("an eager worker's request names the version that it asks for", "version) for index",
        "version + 1) for index", "names version 2; it has 1", policy="eager", workers=1),
    worker("an eager worker never pulls", "*map(Send, pulls), Compute", "Compute", policy="eager"),
    worker("an eager worker's push names its newest weights", "iteration, used,", "iteration, version,",
        "it was computed on", policy="eager", workers=1),
    worker("an eager worker does not push a gradient that waited for weights", "self._ready else",
        "self._ready and index else", "as missing in its weights", policy="eager", workers=1, iterations=4),
    worker("an eager worker writes into a buffer that is not free", "= EAGER_BUFFERS", "= EAGER_BUFFERS + 1",
        "which is not acknowledged", policy="eager", workers=1, iterations=4, faults="reorder lose"),
    worker("an eager worker counts its own pushes as staleness", "(version - used) - (own_pushes - self.own[index])",
        "version - used", "it has observed", policy="eager", workers=1, iterations=3),
    worker("an eager worker reports no staleness", "(index), others", "(index)", "it has observed", policy="eager"),
    worker("an eager worker adds a push that its weights have", "[push.range]", "[push.range] - 1",
        "as missing in its weights", policy="eager", workers=1, iterations=3),
    worker("an eager worker forgets a push that its weights lack", "push.iteration >=", "push.iteration >",
        "as missing in its weights", policy="eager", workers=1, iterations=3),
    worker("an eager worker takes its own pushes of the weights before", "[own_pushes for _, own_pushes in self._next]",
        "self.own", "as missing in its weights", policy="eager", workers=1, iterations=3),
    ssp("waiting workers are started one iteration early", "+ staleness", "+ staleness + 1", "bound 1 exceeded",
        workers=3, faults="kill"),
    ssp("waiting workers are started one iteration late", "iteration <= bound", "iteration < bound"),
    ssp("workers that are started are still waiting", "tuple(entry for entry in waiting if entry[1] > bound)",
        "waiting", "has not asked for it", iterations=3),
    ssp("no push starts the waiting workers", "event.moved else", "event.worker < 0 else"),
    ssp("workers are started before the push is applied", "Apply(worker, iteration), *starts",
        "*starts, Apply(worker, iteration)", "while weights are being read"),
    ssp("no worker is started when another leaves", "release(without(state, worker), clocks, self.staleness)",
        "without(state, worker), ()", faults="kill"),
    ssp("a worker that left is still waiting", "without(state, worker)", "state", "has not asked for it",
        faults="kill"),
    ssp("the window is shorter than the staleness", "self.staleness + 1", "self.staleness", "bound 0 exceeded"),
    ssp("staleness has no bound", ") if iteration <= clocks.base + self.staleness", ")", "bound 1 exceeded"),
    ssp("weights that are read in place change", "def initial", "barrier = True\n\n    def initial",
        "the policy claims a barrier"),
    bsp("a round is summed twice", "(), waiting), (*", "pushes, waiting), (*", "which is not held"),
    bsp("the next round starts before the last one has ended", "clocks.base:", "clocks.base + 1:", "bound 0 exceeded"),
    bsp("a round starts before the last one is applied", "(*step, *starts)", "(*starts, *step)",
        "while weights are being read"),
    bsp("pushes of a worker that left are dropped", "waiting = without",
        "pushes = without(pushes, worker)\n                waiting = without", "is never applied", faults="kill"),
    asp("a push is never applied", "Apply(worker, iteration),", "", "without its own push of 0"),
    asp("a policy counts its calls", "return None, (Apply",
        "ASP.calls = getattr(ASP, 'calls', 0) + 1\n                return ASP.calls % 2, (Apply",
        "decides differently when it is asked again"),
    dssp("a grant ignores the bound", "if self.capped:", "if not self.capped:", "bound 2 exceeded", policy="dssp:1,1",
        iterations=5),
    dssp("the bound allows one iteration more", "self.extra + 1 -", "self.extra + 2 -", "bound 2 exceeded",
        policy="dssp:1,1,literal,cap=on", iterations=5),
    dssp("a grant is not used up", "max(row.credit - 1, 0)", "row.credit", "bound 2 exceeded", policy="dssp:0,2",
        iterations=5),
    dssp("waiting workers are not released when another leaves", "self._released(others, now, clocks)", "others, ()",
        faults="kill"),
    dssp("workers that are started are still waiting in the table", "waits=False, started_s", "started_s",
        "has not asked for it", iterations=3),
    dssp("a duplicate pull counts as a new one", "== row.started:  #", "< row.started:  #", "has not asked for it",
        iterations=4, faults="duplicate"),
    dssp("a plan is made without deciding Searched", "True), (searched,", "True), (", "plans without deciding Searched",
        iterations=4),
    elastic("a barrier waits for workers that left", "(rows=others)", "(rows=others | {row})", iterations=3,
        faults="kill"),
    elastic("a barrier does not end when the last missing worker leaves",
        "state, starts = _barrier(state)\n                return state, (*searched, *starts)", "return state, searched",
        iterations=3, faults="kill"),
    elastic("a barrier ends when the first worker waits", "if not all", "if not any", "has not asked for it",
        iterations=3),
    elastic("a worker that joins during a barrier is held forever", "if goes_on or",
        "if row.target is None and state.planned:\n                    return state, ()\n                if goes_on or",
        iterations=3, faults="rejoin"),
    eager("an eager policy ignores all events", "self._bound.step(state, event, clocks)", "state, ()"),
    eager("an eager policy's window is too short", "self._bound.window", "1", "bound 0 exceeded", policy="eager:1"),
    backup("a round waits for one worker too many", "or len(pushes) <", "or len(pushes) <="),
    backup("a late push is held instead of dropped", "Drop(worker, iteration),", "", "without its own push of 0",
        policy="backup:1"),
    backup("a worker that left waits for the end of its round", "without(waiting, worker)", "waiting",
        "has not asked for it", faults="kill"),
    backup("a round's pushes belong to the next one, too", "in waiting), (), (", "in waiting), pushes, ("),
    decoupled("a worker goes on before its push is merged", "waiting if start[0] not in counted", "waiting",
        "without its own push of 0", policy="decoupled:1,quorum=2"),
    decoupled("workers wait for each other on different fragments once another one has left", "stuck or len", "len",
        workers=3, ranges=2, faults="kill"),
    decoupled("a push that waits for the next merge is stuck where a worker joins", "workers == clocks.members",
        "clocks.members", iterations=4, ranges=2, faults="rejoin"),
    decoupled("a merge waits for more workers than there are", "min(self.quorum, clocks.members)", "self.quorum",
        policy="decoupled:1,quorum=3"),
    decoupled("what is merged is merged once more", "(pushes))),), ()", "(pushes))),), pushes", "which is not held",
        policy="decoupled:1,quorum=1"),
    decoupled("a worker that left is released", "waiting = without(waiting, worker)", "pass", "has not asked for it",
        policy="decoupled:1,quorum=2", faults="kill"),
]  # fmt: skip
#: What a campaign of random runs finds.
DRAWN = [
    server_driver("a request is answered twice", "pull.iteration <= self._answered.get(key, NOTHING)", "False",
        "the weights are not what a sequential replay", run=117),
    server_driver("a duplicate push moves when the first one was taken",
        "not (effects and type(effects[0]) is Refuse):\n            #", "True:\n            #",
        "not dealt with as it arrived", run=129),
    server_driver("no acknowledgement comes alone", "late and worker in", "False and worker in", run=66),
    server_driver("a worker that is back is not answered again",
        "\n                self._answered.pop((worker, index), None)", "\n                pass", run=39),
    server_driver("a worker that left still computes", "self.accounts.leave(worker)", "pass",
        "ProtocolError: bsp has a barrier, but applies", run="joins amid a layered round"),
    server_driver("the budget is passed by one", "(self._budget) and", "(self._budget and self._budget + 1) and",
        "was accepted after the budget of", run=0),
    server_driver("a push is applied before it was taken", "(step, done_s)",
        "(step, (details.led_by or [done_s])[0] - 1e-3)", "s, before the message that led to it arrived, at", run=4),
    server_driver("weights name the version after theirs", "reply.version,", "reply.version + 1,",
        "was computed on version", run=4),
    server_driver("acknowledgements are sent again and again", "*self._outbox.pop", "*self._outbox.get",
        "'s apply of iteration", run=1),
    server_driver("a worker joins with another iteration than is recorded", "worker, iteration,",
        "worker, iteration + 1,", "lets the worker join with", run=4),
    server_driver("a dropped push is not acknowledged",
        "self._hand(self._store_of(effect.range), effect, Details(times=self._times_of((effect.push,))))", "pass",
        run=845),
    server_driver("refused messages are not counted", ":\n                self.refused += 1", ":\n                pass",
        "messages; the manifest counts", run=7),
    server_driver("who has left is not discarded from the shard", "self._perform(self.machine.leave(worker, now))",
        "self.machine.leave(worker, now)", run=10),
    own_store("weights are read twice", "order, details, 0,", "order if type(order) is not Reply else order._replace("
        "pull=order.pull._replace(iteration=order.pull.iteration + 1)), details, 0,", "a sequential replay", run=1),
    accounts("a push is complete when half of its ranges are",
        "len(self._job.traits.rotation.ranges(push.iteration, self._ranges))", "(self._ranges + 1) // 2",
        "the manifest counts", run=4),
    accounts("a push counts as one gradient", "push.steps", "1", "the manifest counts", run=4),
    accounts("a dropped push counts twice", "self.dropped += 1", "self.dropped += 2", "the manifest counts", run=12),
    accounts("what workers compute on is of the version before", "computing[key] =", "computing[key[0], key[1] - 1] =",
        "ProtocolError: bsp has a barrier, but applies", run=23),
    ledger("staleness counts the own step", "version - 1 - used", "version - used", "has a recorded staleness of",
        run=0),
    ledger("an arrival is of the wrong kind", "type(message) is Push", "message.iteration % 7",
        "the policy applies no further push", run=0),
    ledger("bytes of an answer belong to the next push", "weights.iteration - 1", "weights.iteration",
        "is followed by a pull", run=0),
    ledger("leaving is not recorded", "self._arrivals.append((LEFT", "(lambda row: None)((LEFT",
        "s, and the server was not notified", run=4),
    ledger("the bytes of a push are those of a request", "job.payload_bytes(index, gradient.size_bytes)", "87",
        "took bytes that", run=1),
    worker_driver("a frame is taken twice", "return known", "return False", "'s apply of iteration", run=21),
    worker_driver("a frame that came at once twice is taken twice", "last.iteration <=", "last.iteration <",
        "'s apply of iteration", run=21),
    worker_driver("a worker that is back knows what its former life got", "self._here.clear()", "pass",
        run="joins amid a layered round"),
    worker_driver("computing lasts until all is encoded", "self._burst_s, ends_s", "self._burst_s, now",
        "computed iteration", run=26),
    worker_driver("several gradients take the time of one", "self.gradients(iteration)", "1", "computed iteration",
        run=4),
    worker_driver("a push names the version before", "version, PushInfo", "max(0, version - 1), PushInfo",
        "was computed on version", run=1),
    worker_driver("a request names the version before", "pull.version,", "max(0, pull.version - 1),",
        "the worker holds version", run=0),
    worker_driver("a push is recorded as sent when it was taken", "self._sent_s.pop((index, iteration), taken_s)",
        "taken_s", "begins push of", run=0),
    worker_driver("weights are recorded for the iteration that they start", "weights.iteration - 1",
        "weights.iteration", "before it was computed", run=0),
    worker_node("a gradient is computed before all weights are read", "not self._unsettled",
        "self._unsettled == min(1, len(self._job.parts) - 1)", "a sequential replay", run=7),
    worker_node("a stop stops nothing", "\n        ends_s +=", "\n        _ =", "computed iteration", run=0),
    worker_node("a kill kills nobody", "self._simulator.faults.kills(self.worker, iteration)", "False",
        "before which a fault was to kill it", run=10),
    worker_node("a forward pass does not wait", "else None", "and at.layer else None",
        "cannot have a gradient of range", run=18),
    worker_node("what a dead worker is sent is computed on when it is back", "not self._present:", "False:",
        "a sequential replay", run="back after a death unnoticed"),
    scheduler("the dead go on", "sequence >= self.life[worker]", "True", "is not computing range", run=98),
    simulator("nobody notices a death",
        "self.scheduler.at(now + self._job.run.lease_s, LEAVES, worker, self._notice, worker)", "pass", run=10),
    simulator("a death is not recorded", '(self.lives if replaced else self.deaths).append({**death, "seconds": now})',
        "pass", "the server was notified", run=10),
    simulator("a kill is not recorded", "self.faults.killed(worker, iteration, now)", "pass",
        "s, and no fault killed it", run=10),
    simulator("a worker that joins is not announced", "self.driver.join(worker, now)",
        "self.driver.machine.join(worker)", "the policy starts it on version", run=4),
    simulator("stops and kills are not in the manifest", "faults.rows + (frames.rows if frames is not faults else [])",
        "frames.rows * (frames is not faults)", "s, and no fault killed it", run="leaves, is back, is killed"),
    server_node("two frames at one instant are dealt with side by side", "self.free_s > now:", "False:",
        "was applied before the last one", run="frames as the server is free"),
    traffic("a late frame is overtaken by the next one", "max(at + fate.delay_s, self._due_s.get(stream, 0.0))",
        "at + fate.delay_s", run=66),
    traffic("a duplicate does not arrive", "range(fate.copies)", "range(1)", "was duplicated, and came once", run=25),
    traffic("a dropped frame never arrives", "range(fate.copies)", "range(fate.copies if fate.delay_s < 0.05 else 0)",
        run=24),
    faults("a delay delays nothing", "delay_s += fault.for_s", "pass", "'s frame of iteration", run=12),
    turns("a worker that is back has no first range", "iteration or self._next", "iteration", "range_schedule.py, line",
        run="back before its first push"),
    turns("a worker that is back asks for a part of the weights", "self._joined = iteration", "pass",
        "range_schedule.py, line", run="back before its first push"),
    dssp("a worker that waits at the bound is forgotten", "state if row.waits", "state if False and row.waits", run=24),
    judge("pushes are recorded in the reverse order", "typed(pushes),", "typed(pushes)[::-1],",
        "; the table of pushes has worker", run="joins amid a layered round"),
    judge("arrivals are sorted by their worker", "typed(arrivals),", 'typed(arrivals).sort_values("worker"),',
        "arrivals is not in order of time", run="joins amid a layered round"),
    judge("phases have each other's names", "enumerate(PHASES)", "enumerate(PHASES[::-1])", "before it was computed",
        run="joins amid a layered round"),
    judge("instants are recorded in whole milliseconds", "typed(pushes),", 'typed(pushes).round({"seconds": 3}),',
        "before the message that led to it arrived", run="joins amid a layered round"),
]  # fmt: skip
