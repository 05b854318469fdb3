"""Check that a run's policies, engine and cluster fit together."""

from __future__ import annotations

from collections.abc import Mapping
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


def check_together(run: Run, policies: Mapping[str, Any], cluster: Cluster) -> None:
    """Refuse a run with fields that do not fit together.

    Raises:
        ConfigError: about the first field that does not fit.
    """
    if policies["schedule"].needs_budget and run.pushes is None:
        raise ConfigError("schedule", run.schedule, "a decaying learning rate needs the run's length: set pushes")
    _check_rate(run, policies["rate"])
    _check_quantize(run, policies["prune"], policies["quantize"])
    _check_aggregate(run, policies, cluster)
    _check_downlink(run, policies)
    _check_virtual(run, policies, cluster)
    _check_dilation(run, cluster)
    _check_ray(run, policies, cluster)
    _check_checkpoints(run)
    _check_key_ranges(run, policies)
    _check_keys(run, policies)
    _check_placement(run)
    if traits_of(policies["sync"]).reads_own:
        _check_own_writes(run, policies, "sync", "rmw=off")
    _check_momentum(run, policies["prune"])
    _check_method(run, policies)
    _check_layers(run, policies)
    _check_combined(run, policies)
    _check_members(run, cluster)
    _check_allreduce(run, policies, cluster)


def _check_ray(run: Run, policies: Mapping[str, Any], cluster: Cluster) -> None:
    if run.engine != "ray":
        if run.ray is not None:
            raise ConfigError("ray", dict(run.ray), f"is only for engine='ray', not {run.engine!r}: leave ray out")
        return
    emulated = "Ray runs on real hosts and emulates no cluster: use cluster='free', or engine='local' or 'virtual'"
    problems = {
        "cluster": emulated * (cluster != Cluster()),
        "ranges": "Ray cannot pull layers one by one: use ranges='whole', or engine='local'"
                  * policies["ranges"].layered,
        "lease_s": "Ray has its own rule for when a process is dead: leave lease_s out"
                   * (run.lease_s != FIELDS["lease_s"].default),
        "checkpoint_every": "runs on Ray have no checkpoints: leave checkpoint_every out, or use engine='local'"
                            * (run.checkpoint_every is not None),
    }  # fmt: skip
    for field, problem in problems.items():
        if problem:
            raise ConfigError(field, getattr(run, field), problem)


def _check_checkpoints(run: Run) -> None:
    if run.checkpoint_every is None:
        return
    if run.engine in ("virtual", "timing"):
        problem = "runs in virtual time have no checkpoints, because a repeated run has equal results: leave it out"
        raise ConfigError("checkpoint_every", run.checkpoint_every, problem)
    if run.engine == "local" and run.on_death != "restart":
        problem = f"with on_death={run.on_death!r} no checkpoints are made: set on_death='restart', or leave it out"
        raise ConfigError("checkpoint_every", run.checkpoint_every, problem)


def lengths(run: Run, passed: int) -> Lengths:
    """Return the run's length for each worker; `passed` is the number of batches in a pass over the data."""
    return Lengths(passed, None if run.pushes is None else max(1, run.pushes // run.workers))


def _check_rate(run: Run, rate: Any) -> None:
    if (needed := rate_state.needs(rate)) not in rate_state.NEEDS:
        known = nearest(needed, filter(None, rate_state.NEEDS))
        raise ConfigError("rate", run.rate, f"has needs={needed!r}, which pslab cannot compute: {known}")
    if missing := [name for name in rate_state.READ.get(needed, ()) if not hasattr(rate, name)]:
        raise ConfigError("rate", run.rate, f"with needs={needed!r} a rate must have {', '.join(missing)}: add it")
    if run.push_weight is not None and not getattr(rate, "weighted", True):
        users = ", ".join(name for name, row in ROWS["rate"].items() if getattr(row.load(), "weighted", True))
        problem = f"the rate {run.rate!r} does not read it: leave push_weight out, or use rate: {users}"
        raise ConfigError("push_weight", run.push_weight, problem)


def _check_quantize(run: Run, prune: Any, quantize: Any) -> None:
    """Refuse a code that does not fit the pruning rule's residual, which stores unsent entries and rounding errors."""
    if isinstance(prune, Everything):
        return
    if quantize.every:
        problem = "changes all sent entries by the same amount: use prune='none', or quantize='efsign'"
        raise ConfigError("quantize", run.quantize, problem)
    if quantize.residual and not rule_of(prune).residual:
        problem = f"adds rounding errors to a residual, but prune={run.prune!r} drops unsent entries"
        raise ConfigError("quantize", run.quantize, f"{problem}: use residual=off in both, or residual=on in both")


def _check_aggregate(run: Run, policies: Mapping[str, Any], cluster: Cluster) -> None:
    rule, quantize, traits = rule_of(policies["prune"]), policies["quantize"], traits_of(policies["sync"])
    if rule.changes_all and quantize.draws:
        problem = f"rounds at random, and prune={run.prune!r} would accumulate these errors in its residual"
        raise ConfigError("quantize", run.quantize, f"{problem}: use quantize='none', or a code such as fp16")
    if rule.changes_all and run.pull != "whole":
        raise ConfigError("pull", run.pull, f"prune={run.prune!r} changes all weights in each step: use pull='whole'")
    if rule.own_momentum and run.pull == "changed" and run.engine == "timing":
        raise ConfigError("pull", run.pull, "engine='timing' cannot know which weights change: use pull='whole'")
    if (rule.rounds or quantize.combine) and getattr(policies["sync"], "by", "workers") == "steps":
        problem = "counts steps, but with this prune or quantize a step is not the mean of its pushes: use by=workers"
        raise ConfigError("sync", run.sync, problem)
    if quantize.combine and traits.changes:
        problem = "would change every weight by the whole outer_learning_rate: use quantize='efsign'"
        raise ConfigError("quantize", run.quantize, problem)
    if not rule.rounds:
        return
    if rule.alternates and traits.rotation.fragments > 1:
        problem = "sends its two factors alternately, which does not fit a policy that sends fragments in turn"
        raise ConfigError("prune", run.prune, f"{problem}: use another rule, such as static, or one fragment")
    if not traits.rounds:
        able = ", ".join(name for name, row in ROWS["sync"].items() if getattr(row.load(), "rounds", False))
        problem = f"needs a push of every worker in each step, which sync={run.sync!r} does not ensure"
        raise ConfigError("prune", run.prune, f"{problem}: use sync: {able}, or another rule, such as static")
    if rule.own_momentum and (traits.changes or not resolve_optimizer(run.optimizer).without_momentum):
        problem = "includes momentum: use optimizer='sgd', and a policy that pushes gradients, not changes of weights"
        raise ConfigError("prune", run.prune, problem)
    here = run.on_death == "restart" and run.engine == "local" and run.device == "cpu"
    if rule.remembers and run.on_death != "stop" and not here:
        problem = f"with prune={run.prune!r} the server adds up all pushes, and would keep those of a dead worker"
        raise ConfigError("on_death", run.on_death, f"{problem}: use on_death='stop'")
    for field in ("leave", "join"):
        if rule.remembers and (given := getattr(cluster, field)):
            problem = f"with prune={run.prune!r} the server adds up all pushes, so no worker may leave or join: omit it"
            raise ConfigError(f"cluster.{field}", dict(given), problem)


def _check_combined(run: Run, policies: Mapping[str, Any]) -> None:
    """Refuse rates that need a value for each push if the server combines the pushes of a step into one gradient."""
    by_rule = rule_of(policies["prune"]).combine is not None
    changes = traits_of(policies["sync"]).aggregate == "changes"
    if not (by_rule or policies["quantize"].combine or changes):
        return
    if (needed := rate_state.needs(policies["rate"])) not in rate_state.PUSH_BY_PUSH:
        return
    step = first_step(policies["sync"], run.workers)
    field = "prune" if by_rule else "quantize"
    if step is not None and step.aggregate and len(step.pushes) > 1:
        able = ", ".join(name for name, row in ROWS["rate"].items()
                         if rate_state.needs(row.load()) not in rate_state.PUSH_BY_PUSH)  # fmt: skip
        problem = f"needs the {needed} of each push, but {field}={getattr(run, field)!r} combines pushes at the server"
        raise ConfigError("rate", run.rate, f"{problem}: use rate: {able}")


def _check_downlink(run: Run, policies: Mapping[str, Any]) -> None:
    if run.downlink == "none":
        return
    problems = {
        "pull": "each pull must request all weights: use pull='whole'" * (run.pull != "whole"),
        "prune": "answers must have only weights, and this rule adds numbers: use another, such as static"
                 * rule_of(policies["prune"]).tells,
        "sync": "workers would get rounded weights, but this policy's rho is for the exact weights: use another policy"
                * methods.has_rho(policies["sync"]),
    }  # fmt: skip
    for field, problem in problems.items():
        if problem:
            raise ConfigError(field, getattr(run, field), f"with downlink={run.downlink!r} {problem}")
    from pslab.tensors.compression.downlink import downlink_rules  # loaded only if needed

    made = downlink_rules(run.downlink)
    if run.engine == "timing" and made and not (_sends_known(made.prune) and _length_known(made.quantize)):
        problem = "engine='timing' needs known lengths of messages: use static, a code such as int8, or both"
        raise ConfigError("downlink", run.downlink, problem)


def _check_virtual(run: Run, policies: Mapping[str, Any], cluster: Cluster) -> None:
    rule, quantize = policies["prune"], policies["quantize"]
    if run.engine in IN_VIRTUAL_TIME and not cluster.modelled(run.workers):
        raise ConfigError("cluster", run.cluster, f"virtual time needs {MODELLED}; calibrate(run) measures it here")
    if run.engine != "timing":
        if (row := find("model", run.model)) is not None and row.name == "sizes":
            problem = "has only shapes and cannot be trained: use engine='timing', throughput(run), or a model such as"
            raise ConfigError("model", run.model, f"{problem} torchvision:resnet50")
        if cluster.wire_bytes is not None:
            problem = "is only for engine='timing': leave it out, or set quantize or downlink, as in quantize='fp16'"
            raise ConfigError("cluster.wire_bytes", cluster.wire_bytes, problem)
        return
    if not _in_ranges(rule) and not (_sends_known(rule) and run.pull in ("whole", "changed")):
        able = ", ".join(name for name, row in ROWS["prune"].items() if getattr(row.load(), "sends", None))
        problem = f"engine='timing' needs known lengths of messages: use none, {able}, with pull='whole' or 'changed'"
        raise ConfigError("prune", run.prune, problem)
    if not _length_known(quantize):
        problem = "engine='timing' cannot know the length of this code, which depends on the gradient"
        raise ConfigError("quantize", run.quantize, f"{problem}: use engine='virtual', or another code such as int8")
    sync = NotingPolicy(policies["sync"])
    first_step(sync, run.workers)
    if "loss" in sync.read:
        raise ConfigError("sync", run.sync, "reads losses, and engine='timing' computes none: use engine='virtual'")
    if run.target_accuracy is not None:
        raise ConfigError("target_accuracy", run.target_accuracy, "'timing' trains nothing: use engine='virtual'")


def _in_ranges(rule: Any) -> bool:
    """Whether workers push the model's keys range by range, a range in each iteration."""
    return getattr(rule, "pull", "") == "range"


def _sends_known(rule: Any) -> bool:
    """Whether the number of entries in a push follows from the rule alone."""
    return isinstance(rule, Everything) or rule_of(rule).sends is not None


def _length_known(code: Any) -> bool:
    """Whether the length of a push follows from the number of its entries."""
    return type(code).__name__ != "Inceptionn"


def _check_dilation(run: Run, cluster: Cluster) -> None:
    if run.dilation in ("auto", 1):
        return
    if run.engine != "local":
        raise ConfigError("dilation", run.dilation, "is only for emulated time with engine='local': use 'auto' or 1")
    if not cluster.modelled(run.workers):
        problem = "the cluster models no compute time, which could be slowed down: set compute_s, or use 'auto' or 1"
        raise ConfigError("dilation", run.dilation, problem)


def _check_key_ranges(run: Run, policies: Mapping[str, Any]) -> None:
    rule = policies["prune"]
    if _in_ranges(rule) and run.pull != "range":
        problem = f"with prune={run.prune!r} workers must pull the keys that they push: set pull='range'"
        raise ConfigError("pull", run.pull, problem)
    if run.pull == "range" and not _in_ranges(rule):
        problem = "workers must push the keys that they pull: set prune='range:300', or use pull='whole' or 'changed'"
        raise ConfigError("pull", run.pull, problem)
    if _in_ranges(rule) and rule.applies:
        _check_own_writes(run, policies, "prune", "local_apply=off")


def _check_keys(run: Run, policies: Mapping[str, Any]) -> None:
    if run.pull != "keys":
        return
    traits = traits_of(policies["sync"])
    problems = {
        "prune": "all entries of a batch's keys are pushed: use prune='none'" * (
            not isinstance(policies["prune"], Everything)),
        "quantize": "the values of a batch's keys are pushed exactly: use quantize='none'" * (
            not isinstance(policies["quantize"], Plain)),
        "ranges": "the model is one layer with a weight for each key: use ranges='whole'" * policies["ranges"].layered,
        "sync": "a worker does not store its own pushes, which this policy needs: use rmw=off" * traits.reads_own
                or "each batch needs weights of other keys: use a policy that fetches and pushes in the same steps"
                * _goes_on(policies["sync"]),
        "rate": "a worker cannot store sums of all entries: use a rate with its sums at the server, or constant" * (
            rate_state.needs(policies["rate"]) in rate_state.AT_WORKER),
        "engine": "the keys follow from the data, and 'timing' reads none: use virtual or local"
                  * (run.engine == "timing"),
        "device": "sparse data run on the CPU only: use device='cpu'" * (run.device != "cpu"),
        "on_death": "a new process cannot know which keys the dead worker requested: use stop or continue" * (
            run.on_death == "restart" and run.engine not in IN_VIRTUAL_TIME),
    }  # fmt: skip
    for field, problem in problems.items():
        if problem:
            raise ConfigError(field, getattr(run, field), f"with pull='keys' {problem}")


def _check_placement(run: Run) -> None:
    """Refuse a placement of keys unless workers with fixed examples request keys from several servers."""
    if run.placement == "even":
        return
    problems = {
        "places the keys that workers request: set pull='keys'": run.pull != "keys",
        "needs several servers: set servers, as in servers=2": run.servers == 1,
        "needs workers with fixed examples: set partition, as in 'multilevel'": run.partition == "shuffled",
    }
    for problem, wrong in problems.items():
        if wrong:
            raise ConfigError("placement", run.placement, f"{problem}, or placement='even'")


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


def _check_own_writes(run: Run, policies: Mapping[str, Any], field: str, instead: str) -> None:
    """Refuse optimizers and rates with which a worker cannot compute the effect of its own pushes."""
    if not resolve_optimizer(run.optimizer).plain_sgd:
        problem = f"a worker cannot compute the server's step with {run.optimizer!r}: use optimizer='sgd', or {instead}"
        raise ConfigError(field, getattr(run, field), problem)
    if not getattr(policies["rate"], "predictable", False):
        problem = f"a worker cannot compute the rate {run.rate!r} of its push: use rate='constant', or {instead}"
        raise ConfigError(field, getattr(run, field), problem)


def _check_momentum(run: Run, rule: Any) -> None:
    if rule_of(rule).momentum and not resolve_optimizer(run.optimizer).without_momentum:
        problem = f"prune={run.prune!r} has momentum at the workers, so the server must not add momentum"
        advice = "use optimizer='sgd' or 'sgd:weight_decay=0.0001', or momentum=0 in the rule"
        raise ConfigError("optimizer", run.optimizer, f"{problem}: {advice}")


def _check_method(run: Run, policies: Mapping[str, Any]) -> None:
    traits, sync = traits_of(policies["sync"]), policies["sync"]
    if traits.method not in ("", *methods.METHODS):
        known = nearest(traits.method, methods.METHODS)
        raise ConfigError("sync", run.sync, f"has method={traits.method!r}, which pslab cannot compute: {known}")
    if traits.method in methods.TRAINING:
        _check_inner(run, policies)
    elif traits.changes:
        what = "the policy pushes changes of the weights, not gradients"
        if not isinstance(policies["prune"], Everything):
            raise ConfigError("prune", run.prune, f"{what}, and needs all of them: use prune='none'")
        if not isinstance(policies["quantize"], Plain):
            raise ConfigError("quantize", run.quantize, f"{what}, and they must be exact: use quantize='none'")
        if not resolve_optimizer(run.optimizer).plain_sgd:
            raise ConfigError("optimizer", run.optimizer, f"{what}, to be applied unchanged: use optimizer='sgd'")
        if find("rate", policies["rate"]) is not ROWS["rate"]["constant"]:
            raise ConfigError("rate", run.rate, f"{what}, and no rate scales them: use rate='constant'")
    if run.servers > 1 and methods.has_rho(sync):
        problem = "computes residuals of the whole model, which one server must store: use servers=1"
        raise ConfigError("sync", run.sync, problem)
    if _goes_on(sync):
        if _in_ranges(policies["prune"]):
            problem = "needs a push after every fetch, which this policy does not make: use prune='none'"
            raise ConfigError("prune", run.prune, problem)
        if run.on_death == "restart" and run.engine not in IN_VIRTUAL_TIME:
            problem = "a new process would lack the weights that the dead worker fetched earlier: use on_death='stop'"
            raise ConfigError("on_death", run.on_death, problem)


def _check_inner(run: Run, policies: Mapping[str, Any]) -> None:
    """Refuse fields that do not fit a policy whose workers make steps of their own optimizers."""
    rule, what = policies["prune"], "the policy pushes changes of the weights, not gradients"
    if _in_ranges(rule) or rule_of(rule).momentum:
        raise ConfigError("prune", run.prune, f"{what}; momentum may not be added: use none, static, std or dynamic")
    if find("rate", policies["rate"]) is not ROWS["rate"]["constant"]:
        raise ConfigError("rate", run.rate, f"{what}, and outer_learning_rate scales them: use rate='constant'")
    if run.pull == "keys":
        raise ConfigError("pull", run.pull, "a worker's optimizer needs all weights: use pull='whole' or 'changed'")
    if (periods := getattr(policies["sync"], "each", ())) and len(periods) != run.workers:
        problem = f"has periods for {len(periods)} workers, and the run has {run.workers}: give one to each worker"
        raise ConfigError("sync", run.sync, problem)
    if traits_of(policies["sync"]).method != methods.ELASTIC:
        return
    if policies["sync"].beta == run.workers:
        problem = "with beta=1 a single worker and the center would swap weights: use a smaller beta, or two workers"
        raise ConfigError("sync", run.sync, problem)
    if not resolve_optimizer(run.optimizer).plain_sgd:
        raise ConfigError("optimizer", run.optimizer, "the center must move by the pushes alone: use optimizer='sgd'")


def _goes_on(sync: Any) -> bool:
    """Whether a worker may compute an iteration on weights that it fetched for an earlier one."""
    return traits_of(sync).method == methods.REPLICA and bool(methods.memories(sync, 1, torch.float32))


def _check_layers(run: Run, policies: Mapping[str, Any]) -> None:
    order = policies["order"]
    if getattr(order, "credit", None) is not None and not hasattr(order, "admits"):
        problem = "has a credit and no admits(under_way_bytes, size_bytes), which allows another message"
        raise ConfigError("order", run.order, f"{problem}: add this method, or remove the credit")
    if not policies["ranges"].layered:
        if not getattr(order, "in_turn", False):
            problem = "a worker has only one push and one pull to send: set ranges='layers', or leave order out"
            raise ConfigError("order", run.order, problem)
        return
    traits = traits_of(policies["sync"])
    if _in_ranges(policies["prune"]):
        problem = "pushes ranges of keys that do not follow layers: use ranges='whole', or another rule, such as static"
        raise ConfigError("prune", run.prune, problem)
    if traits.eager:
        problem = "requests the whole model when a worker starts to compute: use ranges='whole', or another policy"
        raise ConfigError("sync", run.sync, problem)
    if traits.accumulates:
        problem = "pushes after several gradients, so no layer is ready early: use ranges='whole'"
        raise ConfigError("sync", run.sync, problem)
    if getattr(policies["prune"], "clip", None) is not None:
        problem = "clip needs the norm of the whole gradient, but layers are pushed one by one"
        raise ConfigError("prune", run.prune, f"{problem}: use clip=none, or ranges='whole'")


def _check_allreduce(run: Run, policies: Mapping[str, Any], cluster: Cluster) -> None:
    """Refuse fields with which a ring of workers cannot compute a sum."""
    if cluster.aggregate != ALLREDUCE:
        return

    def summable(made: Any) -> bool:
        return getattr(made, "summable", False)

    tests = {"sync": lambda made: getattr(made, "rounds", False), "prune": summable, "quantize": summable}
    able = {
        kind: ", ".join(name for name, row in ROWS[kind].items() if test(row.load())) for kind, test in tests.items()
    }
    problems = {
        "engine": "only virtual time has a ring: use engine='virtual' or 'timing'"
                  * (run.engine not in IN_VIRTUAL_TIME),
        "servers": "there are no separate servers: use servers=1" * (run.servers > 1),
        "sync": f"each step needs a gradient of every worker: use sync: {able['sync']}"
                * (not traits_of(policies["sync"]).rounds),
        "pull": "all workers get the whole sum: use pull='whole'" * (run.pull != "whole"),
        "prune": f"workers would select different entries, and a ring cannot add them: use prune: {able['prune']}"
                 * (not summable(policies["prune"])),
        "quantize": f"a ring cannot add numbers in this code: use quantize: {able['quantize']}"
                    * (not summable(policies["quantize"])),
        "downlink": "there are no answers to compress: use downlink='none'" * (run.downlink != "none"),
    }  # fmt: skip
    for field, problem in problems.items():
        if problem:
            words = f"with aggregate='allreduce' {problem}, or aggregate='servers'"
            raise ConfigError(field, getattr(run, field), words)


def _check_members(run: Run, cluster: Cluster) -> None:
    for name in ("leave", "join", "bandwidth_at"):
        if run.engine == "local" and (given := getattr(cluster, name)):
            problem = "is only for virtual time: use engine='virtual' or 'timing', or leave it out"
            raise ConfigError(f"cluster.{name}", dict(given), problem)
    if cluster.colocated and run.servers > run.workers:
        problem = f"each server needs a worker on its machine: use at most {run.workers} servers, or more workers"
        raise ConfigError("cluster.colocated", True, problem)
    for fault in cluster.faults:
        if fault.what == "kill" and run.on_death == "stop":
            problem = "a fault of the cluster kills a worker, which would end the run: set on_death='continue'"
            raise ConfigError("on_death", run.on_death, problem)
    if not any(map(cluster.present, range(run.workers))):
        problem = "no worker is present at the start: remove at least one worker from join"
        raise ConfigError("cluster.join", dict(cluster.join), problem)
