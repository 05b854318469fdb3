"""Check that a run's policies, engine and cluster fit together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch

from pslab.config.cluster import ALLREDUCE, MODELLED, Cluster
from pslab.config.run import FIELDS, Run
from pslab.config.run import MODELLED as IN_VIRTUAL_TIME
from pslab.config.table import ROWS, find
from pslab.errors import ConfigError, nearest
from pslab.protocol.noting import NotingPolicy
from pslab.protocol.server import first_step
from pslab.protocol.traits import Lengths, traits_of
from pslab.tensors.compression import rule_of
from pslab.tensors.compression.uncompressed import Everything, Plain, dense_bytes
from pslab.tensors.update import methods, rate_state
from pslab.tensors.update.optimizers import resolve_optimizer
from pslab.tensors.update.part import Part

if TYPE_CHECKING:
    from pslab.tensors.compression.pieces import Compression

MOST_CHOSEN = 4096  # ranges; with more, an order's comparisons would take minutes in each iteration


Refusals = Iterator[tuple[str, str]]  # a field of Run, or "cluster.field", and the problem with the way out


class Combination:
    """The policies of a run, and what the checks read of them."""

    def __init__(self, run: Run, policies: Mapping[str, Any], cluster: Cluster) -> None:
        self.run, self.cluster, self.policies = run, cluster, policies
        self.sync, self.prune, self.quantize, self.rate, self.ranges, self.order = (
            policies[kind] for kind in ("sync", "prune", "quantize", "rate", "ranges", "order"))  # fmt: skip
        self.traits, self.rule = traits_of(self.sync), rule_of(self.prune)
        self.optimizer = resolve_optimizer(run.optimizer)
        self.by_range = getattr(self.prune, "pull", "") == "range"  # workers push the keys of one range after another
        self.needs = rate_state.needs(self.rate)
        # whether a worker may compute an iteration on weights that it fetched for an earlier one
        self.goes_on = self.traits.method == methods.REPLICA and bool(methods.memories(self.sync, 1, torch.float32))
        self.restarts = run.on_death == "restart" and run.engine not in IN_VIRTUAL_TIME

    def value(self, field: str) -> Any:
        """Return the value of a field of the run, or of ``"cluster.field"``."""
        owner, _, name = field.rpartition(".")
        value = getattr(self.cluster if owner else self.run, name)
        return dict(value) if owner and isinstance(value, Mapping) else value


def check_together(run: Run, policies: Mapping[str, Any], cluster: Cluster) -> None:
    """Refuse a run with fields that do not fit together.

    Raises:
        ConfigError: about the first field that does not fit.
    """
    c = Combination(run, policies, cluster)
    for check in CHECKS:
        for field, problem in check(c):
            raise ConfigError(field, c.value(field), problem)


def lengths(run: Run, passed: int) -> Lengths:
    """Return the run's length for each worker; `passed` is the number of batches in a pass over the data."""
    return Lengths(passed, None if run.pushes is None else max(1, run.pushes // run.workers))


def _able(kind: str, test: Callable[[Any], Any]) -> str:
    """Return the names of a kind's rows whose policies pass a test."""
    return f"{kind}: " + ", ".join(name for name, row in ROWS[kind].items() if test(row.load()))


def _with(case: str, problems: Mapping[str, tuple[object, str]], otherwise: str = "") -> Refusals:
    """Yield the refusals of a table: by field, whether it is wrong in this case, and the problem."""
    for field, (wrong, problem) in problems.items():
        if wrong:
            yield field, f"{case}{problem}{otherwise}"


def _rate(c: Combination) -> Refusals:
    if c.policies["schedule"].needs_budget and c.run.pushes is None:
        yield "schedule", "a decaying learning rate needs the run's length: set pushes"
    if c.needs not in rate_state.NEEDS:
        known = nearest(c.needs, filter(None, rate_state.NEEDS))
        yield "rate", f"has needs={c.needs!r}, which pslab cannot compute: {known}"
    if missing := [name for name in rate_state.READ.get(c.needs, ()) if not hasattr(c.rate, name)]:
        yield "rate", f"with needs={c.needs!r} a rate must have {', '.join(missing)}: add it"
    if c.run.push_weight is not None and not getattr(c.rate, "weighted", True):
        able = _able("rate", lambda rate: getattr(rate, "weighted", True))
        yield "push_weight", f"the rate {c.run.rate!r} does not read it: leave push_weight out, or use {able}"


def _quantize(c: Combination) -> Refusals:
    """Refuse a code that does not fit the pruning rule's residual, which stores unsent entries and rounding errors."""
    if isinstance(c.prune, Everything):
        return
    if c.quantize.every:
        yield "quantize", "changes all sent entries by the same amount: use prune='none', or quantize='efsign'"
    if c.quantize.residual and not c.rule.residual:
        problem = f"adds rounding errors to a residual, but prune={c.run.prune!r} drops unsent entries"
        yield "quantize", f"{problem}: use residual=off in both, or residual=on in both"


def _aggregate(c: Combination) -> Refusals:
    run, rule, quantize, traits = c.run, c.rule, c.quantize, c.traits
    if rule.changes_all and quantize.draws:
        problem = f"rounds at random, and prune={run.prune!r} would accumulate these errors in its residual"
        yield "quantize", f"{problem}: use quantize='none', or a code such as fp16"
    if rule.changes_all and run.pull != "whole":
        yield "pull", f"prune={run.prune!r} changes all weights in each step: use pull='whole'"
    if rule.own_momentum and run.pull == "changed" and run.engine == "timing":
        yield "pull", "engine='timing' cannot know which weights change: use pull='whole'"
    if (rule.rounds or quantize.combine) and getattr(c.sync, "by", "workers") == "steps":
        problem = "counts steps, but with this prune or quantize a step is not the mean of its pushes: use by=workers"
        yield "sync", problem
    if quantize.combine and traits.changes:
        yield "quantize", "would change every weight by the whole outer_learning_rate: use quantize='efsign'"
    if not rule.rounds:
        return
    if rule.alternates and traits.rotation.fragments > 1:
        problem = "sends its two factors alternately, which does not fit a policy that sends fragments in turn"
        yield "prune", f"{problem}: use another rule, such as static, or one fragment"
    if not traits.rounds:
        able = _able("sync", lambda sync: getattr(sync, "rounds", False))
        problem = f"needs a push of every worker in each step, which sync={run.sync!r} does not ensure"
        yield "prune", f"{problem}: use {able}, or another rule, such as static"
    if rule.own_momentum and (traits.changes or not c.optimizer.without_momentum):
        problem = "includes momentum: use optimizer='sgd', and a policy that pushes gradients, not changes of weights"
        yield "prune", problem
    here = run.on_death == "restart" and run.engine == "local" and run.device == "cpu"
    added = f"with prune={run.prune!r} the server adds up all pushes, "
    if rule.remembers and run.on_death != "stop" and not here:
        yield "on_death", f"{added}and would keep those of a dead worker: use on_death='stop'"
    for field in ("leave", "join"):
        if rule.remembers and getattr(c.cluster, field):
            yield f"cluster.{field}", f"{added}so no worker may leave or join: omit it"


def _downlink(c: Combination) -> Refusals:
    if c.run.downlink == "none":
        return
    yield from _with(f"with downlink={c.run.downlink!r} ", {
        "pull": (c.run.pull != "whole", "each pull must request all weights: use pull='whole'"),
        "prune": (c.rule.tells, "answers must have only weights, and this rule adds numbers: use one such as static"),
        "sync": (methods.has_rho(c.sync), "its rho is for the exact weights, not for rounded ones: use another"),
    })  # fmt: skip
    from pslab.tensors.compression.downlink import downlink_rules  # loaded only if needed

    made = downlink_rules(c.run.downlink)
    if c.run.engine == "timing" and made and not (_sends_known(made.prune) and _length_known(made.quantize)):
        yield "downlink", "engine='timing' needs known lengths of messages: use static, a code such as int8, or both"


def _virtual(c: Combination) -> Refusals:
    run = c.run
    if run.engine in IN_VIRTUAL_TIME and not c.cluster.modelled(run.workers):
        yield "cluster", f"virtual time needs {MODELLED}; calibrate(run) measures it here"
    if run.engine != "timing":
        if (row := find("model", run.model)) is not None and row.name == "sizes":
            problem = "has only shapes and cannot be trained: use engine='timing', throughput(run), or a model such as"
            yield "model", f"{problem} torchvision:resnet50"
        if c.cluster.wire_bytes is not None:
            problem = "is only for engine='timing': leave it out, or set quantize or downlink, as in quantize='fp16'"
            yield "cluster.wire_bytes", problem
        return
    if not c.by_range and not (_sends_known(c.prune) and run.pull in ("whole", "changed")):
        able = ", ".join(name for name, row in ROWS["prune"].items() if getattr(row.load(), "sends", None))
        problem = f"engine='timing' needs known lengths of messages: use none, {able}, with pull='whole' or 'changed'"
        yield "prune", problem
    if not _length_known(c.quantize):
        problem = "engine='timing' cannot know the length of this code, which depends on the gradient"
        yield "quantize", f"{problem}: use engine='virtual', or another code such as int8"
    sync = NotingPolicy(c.sync)
    first_step(sync, run.workers)
    if "loss" in sync.read:
        yield "sync", "reads losses, and engine='timing' computes none: use engine='virtual'"
    if run.target_accuracy is not None:
        yield "target_accuracy", "'timing' trains nothing: use engine='virtual'"


def _sends_known(rule: Any) -> bool:
    """Whether the number of entries in a push follows from the rule alone."""
    return isinstance(rule, Everything) or rule_of(rule).sends is not None


def _length_known(code: Any) -> bool:
    """Whether the length of a push follows from the number of its entries."""
    return type(code).__name__ != "Inceptionn"


def _ray(c: Combination) -> Refusals:
    run = c.run
    if run.engine != "ray":
        if run.ray is not None:
            yield "ray", f"is only for engine='ray', not {run.engine!r}: leave ray out"
        return
    yield from _with("", {
        "cluster": (c.cluster != Cluster(), "Ray emulates no cluster: use cluster='free', or engine='local'"),
        "ranges": (c.ranges.layered, "Ray cannot pull layers one by one: use ranges='whole', or engine='local'"),
        "lease_s": (run.lease_s != FIELDS["lease_s"].default, "Ray has its own rule for it: leave lease_s out"),
        "checkpoint_every": (run.checkpoint_every is not None, "Ray has no checkpoints: leave it out"),
    })  # fmt: skip


def _checkpoints(c: Combination) -> Refusals:
    run = c.run
    if run.checkpoint_every is None:
        return
    if run.engine in IN_VIRTUAL_TIME:
        problem = "runs in virtual time have no checkpoints, because a repeated run has equal results: leave it out"
        yield "checkpoint_every", problem
    if run.engine == "local" and run.on_death != "restart":
        problem = f"with on_death={run.on_death!r} no checkpoints are made: set on_death='restart', or leave it out"
        yield "checkpoint_every", problem


def _key_ranges(c: Combination) -> Refusals:
    if c.by_range and c.run.pull != "range":
        yield "pull", f"with prune={c.run.prune!r} workers must pull the keys that they push: set pull='range'"
    if c.run.pull == "range" and not c.by_range:
        problem = "workers must push the keys that they pull: set prune='range:300', or use pull='whole' or 'changed'"
        yield "pull", problem
    if c.by_range and c.prune.applies:
        yield from _own_writes(c, "prune", "local_apply=off")


def _keys(c: Combination) -> Refusals:
    if c.run.pull != "keys":
        return
    yield from _with("with pull='keys' ", {
        "prune": (not isinstance(c.prune, Everything), "all entries of a batch's keys are pushed: use prune='none'"),
        "quantize": (not isinstance(c.quantize, Plain), "values are pushed exactly: use quantize='none'"),
        "ranges": (c.ranges.layered, "the model is one layer with a weight for each key: use ranges='whole'"),
        "sync": (c.traits.reads_own, "a worker does not store its own pushes, which this policy needs: use rmw=off"),
        "rate": (c.needs in rate_state.AT_WORKER, "sums of all entries must be at the server: use constant"),
        "engine": (c.run.engine == "timing", "the keys follow from the data, and 'timing' reads none: use virtual"),
        "device": (c.run.device != "cpu", "sparse data run on the CPU only: use device='cpu'"),
        "on_death": (c.restarts, "a new process cannot know the dead worker's keys: use stop or continue"),
    })  # fmt: skip
    if c.goes_on:
        problem = "each batch needs weights of other keys: use a policy that fetches and pushes in the same steps"
        yield "sync", f"with pull='keys' {problem}"


def _placement(c: Combination) -> Refusals:
    """Refuse a placement of keys unless workers with fixed examples request keys from several servers."""
    for wrong, problem in (
        (c.run.pull != "keys", "places the keys that workers request: set pull='keys'"),
        (c.run.servers == 1, "needs several servers: set servers, as in servers=2"),
        (c.run.partition == "shuffled", "needs workers with fixed examples: set partition, as in 'multilevel'"),
    ):
        if wrong and c.run.placement != "even":
            yield "placement", f"{problem}, or placement='even'"


def _own_writes(c: Combination, field: str, instead: str) -> Refusals:
    """Refuse optimizers and rates with which a worker cannot compute the effect of its own pushes."""
    if not c.optimizer.plain_sgd:
        problem = f"a worker cannot compute the server's step with {c.run.optimizer!r}: use optimizer='sgd'"
        yield field, f"{problem}, or {instead}"
    if not getattr(c.rate, "predictable", False):
        problem = f"a worker cannot compute the rate {c.run.rate!r} of its push: use rate='constant', or {instead}"
        yield field, problem


def _optimizer(c: Combination) -> Refusals:
    if c.traits.reads_own:
        yield from _own_writes(c, "sync", "rmw=off")
    if c.rule.momentum and not c.optimizer.without_momentum:
        problem = f"prune={c.run.prune!r} has momentum at the workers, so the server must not add momentum"
        yield "optimizer", f"{problem}: use optimizer='sgd' or 'sgd:weight_decay=0.0001', or momentum=0 in the rule"


def _method(c: Combination) -> Refusals:
    method, constant = c.traits.method, find("rate", c.rate) is ROWS["rate"]["constant"]
    if method not in ("", *methods.METHODS):
        yield "sync", f"has method={method!r}, which pslab cannot compute: {nearest(method, methods.METHODS)}"
    what = "the policy pushes changes of the weights, not gradients"
    if method in methods.TRAINING:
        yield from _inner(c, what, constant)
    elif c.traits.changes:
        yield from _with(f"{what}, ", {
            "prune": (not isinstance(c.prune, Everything), "and needs all of them: use prune='none'"),
            "quantize": (not isinstance(c.quantize, Plain), "and they must be exact: use quantize='none'"),
            "optimizer": (not c.optimizer.plain_sgd, "to be applied unchanged: use optimizer='sgd'"),
            "rate": (not constant, "and no rate scales them: use rate='constant'"),
        })  # fmt: skip
    if c.run.servers > 1 and methods.has_rho(c.sync):
        yield "sync", "computes residuals of the whole model, which one server must store: use servers=1"
    if c.goes_on and c.by_range:
        yield "prune", "needs a push after every fetch, which this policy does not make: use prune='none'"
    if c.goes_on and c.restarts:
        problem = "a new process would lack the weights that the dead worker fetched earlier: use on_death='stop'"
        yield "on_death", problem


def _inner(c: Combination, what: str, constant: bool) -> Refusals:
    """Refuse fields that do not fit a policy whose workers make steps of their own optimizers."""
    if c.by_range or c.rule.momentum:
        yield "prune", f"{what}; momentum may not be added: use none, static, std or dynamic"
    if not constant:
        yield "rate", f"{what}, and outer_learning_rate scales them: use rate='constant'"
    if c.run.pull == "keys":
        yield "pull", "a worker's optimizer needs all weights: use pull='whole' or 'changed'"
    if (periods := getattr(c.sync, "each", ())) and len(periods) != c.run.workers:
        problem = f"has periods for {len(periods)} workers, and the run has {c.run.workers}: give one to each worker"
        yield "sync", problem
    if c.traits.method != methods.ELASTIC:
        return
    if c.sync.beta == c.run.workers:
        problem = "with beta=1 a single worker and the center would swap weights: use a smaller beta, or two workers"
        yield "sync", problem
    if not c.optimizer.plain_sgd:
        yield "optimizer", "the center must move by the pushes alone: use optimizer='sgd'"


def _layers(c: Combination) -> Refusals:
    if getattr(c.order, "credit", None) is not None and not hasattr(c.order, "admits"):
        problem = "has a credit and no admits(under_way_bytes, size_bytes), which allows another message"
        yield "order", f"{problem}: add this method, or remove the credit"
    if not c.ranges.layered:
        if not getattr(c.order, "in_turn", False):
            yield "order", "a worker has only one push and one pull to send: set ranges='layers', or leave order out"
        return
    if c.by_range:
        problem = "pushes ranges of keys that do not follow layers: use ranges='whole', or another rule, such as static"
        yield "prune", problem
    if c.traits.eager:
        problem = "requests the whole model when a worker starts to compute: use ranges='whole', or another policy"
        yield "sync", problem
    plain = not (c.traits.repeats or c.traits.overlap) and c.traits.rotation.fragments == 1
    if c.traits.accumulates and not (plain and c.run.engine == "timing"):
        more = " (or engine='timing')" if plain else ""
        able = _able("sync", lambda sync: not {"gradients_before", "sized", "eager"} & {*dir(sync)})
        problem = f"pushes after several gradients, so with ranges={c.run.ranges!r} no layer is ready early"
        yield "sync", f"{problem}: use ranges='whole'{more}, or {able}"
    if getattr(c.prune, "clip", None) is not None:
        problem = "clip needs the norm of the whole gradient, but layers are pushed one by one"
        yield "prune", f"{problem}: use clip=none, or ranges='whole'"


def _combined(c: Combination) -> Refusals:
    """Refuse rates that need a value for each push if the server combines the pushes of a step into one gradient."""
    by_rule = c.rule.combine is not None
    combines = by_rule or c.quantize.combine or c.traits.aggregate == "changes"
    if not combines or c.needs not in rate_state.PUSH_BY_PUSH:
        return
    step, field = first_step(c.sync, c.run.workers), "prune" if by_rule else "quantize"
    if step is not None and step.aggregate and len(step.pushes) > 1:
        able = _able("rate", lambda rate: rate_state.needs(rate) not in rate_state.PUSH_BY_PUSH)
        problem = f"needs the {c.needs} of each push, but {field}={c.value(field)!r} combines pushes at the server"
        yield "rate", f"{problem}: use {able}"


def _members(c: Combination) -> Refusals:
    run, cluster = c.run, c.cluster
    if run.dilation not in ("auto", 1) and run.engine != "local":
        yield "dilation", "is only for emulated time with engine='local': use 'auto' or 1"
    if run.dilation not in ("auto", 1) and not cluster.modelled(run.workers):
        problem = "the cluster models no compute time, which could be slowed down: set compute_s, or use 'auto' or 1"
        yield "dilation", problem
    for name in ("leave", "join", "bandwidth_at"):
        if run.engine == "local" and getattr(cluster, name):
            yield f"cluster.{name}", "is only for virtual time: use engine='virtual' or 'timing', or leave it out"
    hosts = -(-run.workers // cluster.per_host)
    if cluster.colocated and run.servers > hosts:
        problem = f"each server needs a worker on its machine: use at most {hosts} servers, or more workers"
        yield "cluster.colocated", problem
    kills = any(fault.what == "kill" for fault in cluster.faults)
    if run.on_death == "stop" and kills:
        yield "on_death", "a fault of the cluster kills a worker, which would end the run: set on_death='continue'"
    if cluster.restart_s and not (kills and run.on_death == "restart" and run.engine in IN_VIRTUAL_TIME):
        problem = "delays the worker that replaces a killed one in virtual time: add a fault of what='kill'"
        yield "cluster.restart_s", f"{problem} and set on_death='restart', or leave restart_s out"
    if not any(map(cluster.present, range(run.workers))):
        yield "cluster.join", "no worker is present at the start: remove at least one worker from join"


def _allreduce(c: Combination) -> Refusals:
    """Refuse fields with which a ring of workers cannot compute a sum."""
    if c.cluster.aggregate != ALLREDUCE:
        return

    def summable(made: Any) -> bool:
        return getattr(made, "summable", False)

    yield from _with("with aggregate='allreduce' ", {
        "engine": (c.run.engine not in IN_VIRTUAL_TIME, "only virtual time has it: use engine='virtual' or 'timing'"),
        "servers": (c.run.servers > 1, "there are no separate servers: use servers=1"),
        "sync": (not c.traits.rounds, "each step needs a gradient of every worker: use "
                                      + _able("sync", lambda sync: getattr(sync, "rounds", False))),
        "pull": (c.run.pull != "whole", "all workers get the whole sum: use pull='whole'"),
        "prune": (not summable(c.prune), "workers would select different entries, and a ring cannot add them: use "
                                         + _able("prune", summable)),
        "quantize": (not summable(c.quantize), "a ring cannot add numbers in this code: use "
                                               + _able("quantize", summable)),
        "downlink": (c.run.downlink != "none", "there are no answers to compress: use downlink='none'"),
    }, ", or aggregate='servers'")  # fmt: skip


CHECKS: tuple[Callable[[Combination], Refusals], ...] = (
    _rate, _quantize, _aggregate, _downlink, _virtual, _ray, _checkpoints, _key_ranges, _keys,
    _placement, _optimizer, _method, _layers, _combined, _members, _allreduce,
)  # fmt: skip


def check_order(run: Run, policies: Mapping[str, Any], parts: tuple[Part, ...], itemsize: int) -> None:
    """Refuse more ranges than an order can compare, and messages that are larger than its credit."""
    if len(parts) > MOST_CHOSEN and not getattr(policies["order"], "in_turn", False):
        problem = f"makes {len(parts)} ranges, but order={run.order!r} can compare at most {MOST_CHOSEN} at a time"
        raise ConfigError("ranges", run.ranges, f"{problem}: use larger slices, as in ranges='layers:40000'")
    credit = getattr(policies["order"], "credit", None)
    largest = max(dense_bytes(part.size, itemsize) for part in parts)
    if credit is not None and isinstance(policies["prune"], Everything) and not policies["order"].admits(0, largest):
        problem = f"a message of {largest} bytes would never be sent with a credit of {credit}: use a larger credit"
        raise ConfigError("order", run.order, f"{problem}, or smaller slices, such as ranges='layers:40000'")


def check_servers(run: Run, parts: tuple[Part, ...]) -> None:
    """Refuse more servers than the model has ranges or weights."""
    if run.servers > len(parts):
        problem = f"each server needs a range, and the model has {len(parts)}: use fewer servers, or ranges='whole'"
        raise ConfigError("servers", run.servers, problem)


def check_factored(run: Run, rules: Compression | None) -> None:
    """Refuse a rank with which every matrix would be sent uncompressed."""
    rule: Any = None if rules is None else rules.rule
    if rules is None or not hasattr(rule, "factored") or any(map(rule.factored, rules.pieces)):
        return
    shapes = [shape for at in rules.pieces if len(shape := rule.shape(at)) == 2]
    most = max(((rows * columns - 1) // (2 * (rows + columns)) for rows, columns in shapes), default=0)
    instead = f"use a rank of at most {most}, or prune='none'" if most else "use prune='none'"
    problem = f"factors of rank {rule.rank} save less than half of every matrix, so none would be compressed"
    raise ConfigError("prune", run.prune, f"{problem}: {instead}")
