"""Seeded bugs of drivers, accounts, links and faults: edits of one function's text, in the process that runs it."""

from __future__ import annotations

import importlib
import inspect
import textwrap
from dataclasses import dataclass
from typing import Any

import pytest
from found import COMMON, FOUND
from tools.chaos.campaign import campaign, performed

from pslab.config.run import Run

SEED, RUNS = 0, 1000  # of the campaign that looks for them, until it has found one


@dataclass(frozen=True)
class Bug:
    """One edit of one function: `old`, which must be there once, becomes `new`."""

    name: str
    where: str  #: as "engines.server.driver:ServerDriver.leave"
    old: str
    new: str
    says: str  #: a part of what is found, and by whom: the judge, a replay, or the engine, which raises
    slow: bool = False  #: whether a campaign has to look for it: no run of those that once found something shows it


def seed(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the bug be in this process until the test ends."""
    path, _, name = bug.where.partition(":")
    module = importlib.import_module(f"pslab.{path}")
    owner_name, _, attribute = name.rpartition(".")
    owner: Any = getattr(module, owner_name) if owner_name else module
    text = textwrap.dedent(inspect.getsource(inspect.getattr_static(owner, attribute)))
    assert text.count(bug.old) == 1, f"{bug.name}: {bug.old!r} is {text.count(bug.old)} times in {bug.where}"
    scope = dict(vars(module))
    changed = text.replace(bug.old, bug.new).replace("super()", f"super({owner_name}, self)")
    exec(compile(f"from __future__ import annotations\n{changed}", bug.where, "exec"), scope)
    monkeypatch.setattr(owner, attribute, scope[attribute])


def found_by_chaos(runs: int = RUNS) -> tuple[int, str]:
    """The number of the first run of the campaign with a violation, and its words; -1 and "" if there is none.

    Before it come the runs in which earlier campaigns have found something; they have numbers below 0.
    """
    for number, fields in enumerate(FOUND.values(), start=-99):
        if words := performed(Run.of({**COMMON, **fields}))[1]:
            return number, "; ".join(words)
    for number, (_, words, _) in enumerate(campaign(SEED, range(runs), "virtual")):
        if words:
            return number, "; ".join(words)
    return -1, ""


DRIVER, ACCOUNTS = "engines.server.driver:ServerDriver", "engines.server.push_accounts:PushAccounts"
STORE = "engines.server.store:OwnStore"
LEDGER, DSSP = "engines.server.ledger:Ledger", "policies.sync.dssp:DSSP"
WORKER, NODE = "engines.worker.driver:WorkerDriver", "engines.virtual.worker_node:WorkerNode"
SERVER_NODE, SCHEDULER = "engines.virtual.server_node:ServerNode", "engines.virtual.scheduler:Scheduler"
SIMULATOR, TRAFFIC = "engines.virtual.simulator:Simulator", "engines.emulation.traffic:Traffic"
TABLES = "lab.judge.tables:tables_of"
FAULTS, TURNS = "engines.emulation.faults:Faults", "engines.worker.range_schedule:RangeSchedule"

BUGS = [
    # --- the server's driver --------------------------------------------------------------------------------------
    Bug("a request is answered twice", f"{DRIVER}._pull",
        "pull.iteration <= self._answered.get(key, NOTHING)",
        "False",
        "the weights are not what a sequential replay", slow=True),
    Bug("a duplicate push moves when the first one was taken", f"{DRIVER}._push",
        "if not (effects and type(effects[0]) is Refuse):",
        "if True:",
        "'s push of iteration", slow=True),
    Bug("no acknowledgement comes alone", f"{DRIVER}._acknowledge",
        "if late and",
        "if False and",
        "the run stalled", slow=True),
    Bug("a worker that is back is not answered again", f"{DRIVER}.leave",
        "self._answered.pop((worker, index), None)",
        "pass",
        "the run stalled"),
    Bug("a worker that left still computes", f"{DRIVER}.leave",
        "self.accounts.leave(worker)",
        "pass",
        "ProtocolError: bsp has a barrier, but applies"),
    Bug("the budget is passed by one", f"{DRIVER}._end_if_spent",
        "self.machine.spent(self._budget)",
        "self.machine.spent(self._budget and self._budget + 1)",
        "was accepted after the budget of"),
    Bug("a push is applied before it was taken", f"{DRIVER}._applied",
        "accounts.applied_at(step, done_s)",
        "accounts.applied_at(step, (work.led_by or [done_s])[0] - 1e-3)",
        ") was applied at"),
    Bug("weights name the version after theirs", f"{DRIVER}._laid",
        "reply.version, answer",
        "reply.version + 1, answer",
        "which is from the future: the push itself made ver"),
    Bug("weights are read twice", f"{STORE}.hand",
        "carry_out(order,",
        "carry_out(order._replace(pull=order.pull._replace(iteration=order.pull.iteration + 1))\n"
        "            if isinstance(order, Reply) else order,",
        "a sequential replay"),
    Bug("acknowledgements are sent again and again", f"{DRIVER}._laid",
        "self._outbox.pop(place, ())",
        "self._outbox.get(place, ())",
        "'s apply of iteration"),
    Bug("a worker joins with another iteration than is recorded", f"{DRIVER}.join",
        "joined(worker, iteration, now)",
        "joined(worker, iteration + 1, now)",
        "joins with iteration"),
    Bug("a dropped push is not acknowledged", f"{DRIVER}._perform",
        "self._hand(self._store_of(effect.range), effect, Work(dealt=self._dealt_with((effect.push,))))",
        "pass",
        "the run stalled", slow=True),
    Bug("refused messages are not counted", f"{DRIVER}._perform",
        "self.refused += 1",
        "pass",
        "is refused: duplicate push", slow=True),
    Bug("who has left is not discarded from the shard", f"{DRIVER}.leave",
        "self._perform(self.machine.leave(worker, now))",
        "self.machine.leave(worker, now)",
        "the run stalled"),
    # --- accounts and ledger -----------------------------------------------------------------------------------------
    Bug("a push is complete when half of its ranges are", f"{ACCOUNTS}._complete",
        "self._missing.pop(name, self._ranges) - 1",
        "self._missing.pop(name, (self._ranges + 1) // 2) - 1",
        "the manifest counts", slow=True),
    Bug("a push counts as one gradient", f"{ACCOUNTS}.counted",
        "traits.gradients(push.iteration)",
        "1",
        "the manifest counts", slow=True),
    Bug("a dropped push counts twice", f"{ACCOUNTS}.discard",
        "self.dropped += 1",
        "self.dropped += 2",
        "the manifest counts"),
    Bug("what workers compute on is of the version before", f"{ACCOUNTS}.replied",
        "pull.iteration] = reply.version",
        "pull.iteration - 1] = reply.version",
        "ProtocolError: bsp has a barrier, but applies"),
    Bug("staleness counts the own step", f"{LEDGER}.applied",
        "version - 1 - used",
        "version - used",
        ") has a recorded staleness of"),
    Bug("an arrival is of the wrong kind", f"{LEDGER}.arrived",
        "if type(message) is Push else PULLED",
        "if message.iteration % 7 else PULLED",
        "'s push of iteration"),
    Bug("bytes of an answer belong to the next push", f"{LEDGER}.answered",
        "weights.iteration - 1",
        "weights.iteration",
        "the pull after push"),
    Bug("leaving is not recorded", f"{LEDGER}.left",
        "self._arrivals.append",
        "(lambda row: None)",
        "s, and the server never heard of it"),
    Bug("the bytes of a push are those of a request", f"{LEDGER}.applied",
        "job.payload_bytes(index, gradient.size_bytes)",
        "87",
        "bytes with"),
    # --- the worker's driver --------------------------------------------------------------------------------------
    Bug("a frame is taken twice", f"{WORKER}.repeated",
        "return known",
        "return False",
        "'s apply of iteration", slow=True),
    Bug("a frame that came at once twice is taken twice", f"{WORKER}.repeated",
        "last.iteration <= self",
        "last.iteration < self",
        "'s apply of iteration", slow=True),
    Bug("a worker that is back knows what its former life got", f"{WORKER}.join",
        "self._here.clear()",
        "pass",
        "the run stalled"),
    Bug("computing lasts until all is encoded", f"{WORKER}.computed",
        "self._log.computed(iteration, self._burst_s, ends_s)",
        "self._log.computed(iteration, self._burst_s, now)",
        "computed iteration", slow=True),
    Bug("several gradients take the time of one", f"{WORKER}.modelled_s",
        "self._job.traits.gradients(iteration)",
        "1",
        "computed iteration", slow=True),
    Bug("a push names the version before", f"{WORKER}._push",
        "iteration, version, Gradient",
        "iteration, max(0, version - 1), Gradient",
        "was computed on version"),
    Bug("a request names the version before", f"{WORKER}._pull",
        "pull.version, wanted)",
        "max(0, pull.version - 1), wanted)",
        "as its push and its request for the next one say"),
    Bug("a push is recorded as sent when it was taken", f"{WORKER}._pushed",
        "self._sent_s.pop((index, iteration), taken_s)",
        "taken_s",
        "was on its way for 0 s; the cluster's links take"),
    Bug("weights are recorded for the iteration that they start", f"{WORKER}.installed",
        "weights.iteration - 1",
        "weights.iteration",
        "s, before it was computed, at"),
    # --- virtual time ---------------------------------------------------------------------------------------------
    Bug("a gradient is computed before all weights are read", f"{NODE}.settled",
        "self._settled == len(self._job.parts)",
        "self._settled == max(1, len(self._job.parts) - 1)",
        "a sequential replay"),
    Bug("a stop stops nothing", f"{NODE}._until",
        "ends_s += self",
        "_ = self",
        "computed iteration"),
    Bug("a kill kills nobody", f"{NODE}._ready",
        "self._simulator.faults.kills(self.worker, iteration)",
        "False",
        "before which a fault was to kill it"),
    Bug("a forward pass does not wait", f"{NODE}._forward",
        "if at.forward else None",
        "if at.forward and at.layer else None",
        "cannot have gone backward through range"),
    Bug("the dead go on", f"{SCHEDULER}.turn",
        "sequence >= self.life[worker]",
        "True",
        "is not computing range"),
    Bug("nobody notices a death", f"{SIMULATOR}._dies",
        "self.scheduler.at(now + self._job.run.lease_s, LEAVES, worker, self._notice, worker)",
        "pass",
        "the run stalled", slow=True),
    Bug("a death is not recorded", f"{SIMULATOR}._notice",
        "(self.lives if replaced else self.deaths).append({**death, \"seconds\": now})",
        "pass",
        "the server heard at"),
    Bug("a kill is not recorded", f"{SIMULATOR}._dies",
        "self.faults.killed(worker, iteration, now)",
        "pass",
        "s, and no fault killed it"),
    Bug("a worker that joins is not announced", f"{SIMULATOR}._joins",
        "self.driver.join(worker, now)",
        "self.driver.machine.join(worker)",
        "is refused: unknown worker"),
    Bug("what a dead worker is sent is computed on when it is back", f"{NODE}.settled",
        "if not self._present:",
        "if False:",
        "a sequential replay"),
    Bug("two frames at one instant are dealt with side by side", f"{SERVER_NODE}._take",
        "if self.free_s > now:",
        "if False:",
        "which was applied at"),
    # --- links and faults -----------------------------------------------------------------------------------------
    Bug("a late frame is overtaken by the next one", f"{TRAFFIC}.arrived",
        "max(at + fate.delay_s, self._due_s.get(stream, 0.0))",
        "at + fate.delay_s",
        "the run stalled", slow=True),
    Bug("a duplicate does not arrive", f"{TRAFFIC}.arrived",
        "range(fate.copies)",
        "range(1)",
        "was duplicated, and came once", slow=True),
    Bug("a dropped frame never arrives", f"{TRAFFIC}.arrived",
        "range(fate.copies)",
        "range(fate.copies if fate.delay_s < 0.05 else 0)",
        "the run stalled"),
    Bug("a delay delays nothing", f"{FAULTS}.fate",
        "delay_s += fault.for_s",
        "pass",
        "'s frame of iteration", slow=True),
    Bug("a worker that is back has no first range", f"{TURNS}.join",
        "if iteration or self._next:",
        "if iteration:",
        "range_schedule.py, line"),
    Bug("a worker that is back asks for a part of the weights", f"{TURNS}.join",
        "self._joined = iteration",
        "pass",
        "range_schedule.py, line"),
    Bug("stops and kills are not in the manifest", f"{SIMULATOR}.facts",
        "faults.rows + (frames.rows if frames is not faults else [])",
        "frames.rows * (frames is not faults)",
        "s, and no fault killed it"),
    # --- policies -------------------------------------------------------------------------------------------------
    Bug("a worker that waits at the bound is forgotten", f"{DSSP}._released",
        "if row.waits and",
        "if False and row.waits and",
        "the run stalled", slow=True),
    Bug("a grant has no end", f"{DSSP}._asked",
        "max(row.credit - 1, 0)",
        "row.credit",
        "the run stalled", slow=True),
    # --- records --------------------------------------------------------------------------------------------------
    Bug("pushes are recorded in the reverse order", TABLES,
        "\"pushes\": typed(pushes),",
        "\"pushes\": typed(pushes)[::-1],",
        "was expected: one is missing or repeated"),
    Bug("arrivals are sorted by their worker", TABLES,
        "\"arrivals\": typed(arrivals),",
        "\"arrivals\": typed(arrivals).sort_values(\"worker\"),",
        "s, before earlier arrivals"),
    Bug("phases have each other's names", TABLES,
        "dict(enumerate(PHASES))",
        "dict(enumerate(PHASES[::-1]))",
        "s, before it was computed, at"),
    Bug("instants are recorded in whole milliseconds", TABLES,
        "\"pushes\": typed(pushes),",
        "\"pushes\": typed(pushes).round({\"seconds\": 3}),",
        "s: the worker had started before, at"),
]  # fmt: skip
