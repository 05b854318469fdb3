"""Checks of a run's policies against each other, its engine and its cluster."""

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

MOST_CHOSEN = 4096  # ranges: with more, what an order compares would take minutes in each iteration


def check_together(run: Run, policies: Mapping[str, Any], cluster: Cluster) -> None:
    """Refuse what cannot be run together.

    Raises:
        ConfigError: the first thing that does not fit.
    """
    if policies["schedule"].needs_budget and run.pushes is None:
        raise ConfigError("schedule", run.schedule, "a decaying learning rate needs a budget: set pushes")
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
    """Refuse fields that Ray does not support, and Ray's own options elsewhere."""
    if run.engine != "ray":
        if run.ray is not None:
            raise ConfigError("ray", dict(run.ray), f"is for engine='ray', and this is {run.engine!r}: leave it out")
        return
    emulated = "real hosts emulate no cluster: use cluster='free', or engine='local' or 'virtual'"
    problems = {
        "cluster": emulated * (cluster != Cluster()),
        "ranges": "layers are pulled one by one where memory is shared: use ranges='whole', or engine='local'"
                  * policies["ranges"].layered,
        "lease_s": "Ray notices by rules of its own that a process is gone: leave it out"
                   * (run.lease_s != FIELDS["lease_s"].default),
        "checkpoint_every": "runs on Ray have no checkpoints: leave it out, or use engine='local'"
                            * (run.checkpoint_every is not None),
    }  # fmt: skip
    for field, problem in problems.items():
        if problem:
            raise ConfigError(field, getattr(run, field), problem)


def _check_checkpoints(run: Run) -> None:
    """Refuse a period of checkpoints where none are made."""
    if run.checkpoint_every is None:
        return
    if run.engine in ("virtual", "timing"):
        problem = "in virtual time a run begins again, to the same bits: leave checkpoint_every out"
        raise ConfigError("checkpoint_every", run.checkpoint_every, problem)
    if run.engine == "local" and run.on_death != "restart":
        problem = f"with on_death={run.on_death!r} no checkpoint is made: set on_death='restart', or leave it out"
        raise ConfigError("checkpoint_every", run.checkpoint_every, problem)


def lengths(run: Run, passed: int) -> Lengths:
    """How long a run is for each worker, if its pass over the data has so many batches."""
    return Lengths(passed, None if run.pushes is None else max(1, run.pushes // run.workers))


def _check_rate(run: Run, rate: Any) -> None:
    if (needed := rate_state.needs(rate)) not in rate_state.NEEDS:
        problem = f"needs {needed!r}, which nothing computes; {nearest(needed, filter(None, rate_state.NEEDS))}"
        raise ConfigError("rate", run.rate, problem)
    if missing := [name for name in rate_state.READ.get(needed, ()) if not hasattr(rate, name)]:
        raise ConfigError("rate", run.rate, f"has no {', '.join(missing)}, which needs={needed!r} reads: add it")
    if run.push_weight is not None and not getattr(rate, "weighted", True):
        users = ", ".join(name for name, row in ROWS["rate"].items() if getattr(row.load(), "weighted", True))
        problem = f"the rate {run.rate!r} does not read it; leave it None, or use rate: {users}"
        raise ConfigError("push_weight", run.push_weight, problem)


def _check_quantize(run: Run, prune: Any, quantize: Any) -> None:
    """Refuse two residuals: one holds unsent entries and the errors of codes."""
    if isinstance(prune, Everything):
        return
    if quantize.every:
        problem = "moves each entry that is sent by the same, however small: use prune='none', or efsign instead"
        raise ConfigError("quantize", run.quantize, problem)
    if quantize.residual and not rule_of(prune).residual:
        problem = f"keeps what its code loses, and prune={run.prune!r} drops what it does not send"
        raise ConfigError("quantize", run.quantize, f"{problem}: use residual=off in both, or residual=on in both")


def _check_aggregate(run: Run, policies: Mapping[str, Any], cluster: Cluster) -> None:
    """Refuse server state per worker unless each step has a push of every worker."""
    rule, quantize, traits = rule_of(policies["prune"]), policies["quantize"], traits_of(policies["sync"])
    if rule.changes_all and quantize.draws:
        problem = f"draws its roundings, whose errors prune={run.prune!r} would add up in its residual"
        raise ConfigError("quantize", run.quantize, f"{problem}: use none, or a rule such as fp16 or int8")
    if rule.changes_all and run.pull != "whole":
        raise ConfigError("pull", run.pull, f"prune={run.prune!r} changes all weights in each step: use pull='whole'")
    if rule.own_momentum and run.pull == "changed" and run.engine == "timing":
        raise ConfigError("pull", run.pull, "without tensors nobody knows which weights a step changes: use whole")
    if (rule.rounds or quantize.combine) and getattr(policies["sync"], "by", "workers") == "steps":
        problem = "counts pushes by their steps, and here the server makes more of them than a mean: use by=workers"
        raise ConfigError("sync", run.sync, problem)
    if quantize.combine and traits.changes:
        problem = "moves every weight by the whole outer_learning_rate, however little it has changed: use efsign"
        raise ConfigError("quantize", run.quantize, problem)
    if not rule.rounds:
        return
    if rule.alternates and traits.rotation.fragments > 1:
        problem = "sends its two factors in turn, as fragments are sent in turn"
        raise ConfigError("prune", run.prune, f"{problem}: use a rule that sends both at once, or one fragment")
    if not traits.rounds:
        able = ", ".join(name for name, row in ROWS["sync"].items() if getattr(row.load(), "rounds", False))
        problem = "needs a push of every worker in each step, and this policy's steps are no rounds"
        raise ConfigError("prune", run.prune, f"{problem}: use sync: {able}, or another rule, such as static")
    if rule.own_momentum and (traits.changes or not resolve_optimizer(run.optimizer).without_momentum):
        problem = "has a momentum of its own: use optimizer='sgd', and no policy that pushes changes of the weights"
        raise ConfigError("prune", run.prune, problem)
    here = run.on_death == "restart" and run.engine == "local" and run.device == "cpu"
    if rule.remembers and run.on_death != "stop" and not here:
        problem = f"prune={run.prune!r} keeps at the server what a dead worker has sent, and its successor forgets it"
        raise ConfigError("on_death", run.on_death, f"{problem}: use stop")
    for field in ("leave", "join"):
        if rule.remembers and (given := getattr(cluster, field)):
            problem = f"prune={run.prune!r} keeps at the server what each worker has sent: let all of them stay"
            raise ConfigError(f"cluster.{field}", dict(given), problem)


def _check_combined(run: Run, policies: Mapping[str, Any]) -> None:
    """Refuse rates that read whose push a gradient is, where the server makes one gradient of a step's pushes."""
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
        problem = f"needs the {needed} of each push, and with {field}={getattr(run, field)!r} the server makes one "
        raise ConfigError("rate", run.rate, f"{problem}gradient of all pushes of a step: use {able}")


def _check_downlink(run: Run, policies: Mapping[str, Any]) -> None:
    """Refuse a downlink where an answer is not the difference of all weights."""
    if run.downlink == "none":
        return
    problems = {
        "pull": "a pull is of all weights: use whole" * (run.pull != "whole"),
        "prune": "its answers have more than weights: use another rule" * rule_of(policies["prune"]).tells,
        "sync": "what its server says beside the weights is about these as they are: use another policy"
                * methods.has_rho(policies["sync"]),
    }  # fmt: skip
    for field, problem in problems.items():
        if problem:
            raise ConfigError(field, getattr(run, field), f"with downlink={run.downlink!r} {problem}")
    from pslab.tensors.compression.downlink import downlink_rules  # loaded by runs that have one

    made = downlink_rules(run.downlink)
    if run.engine == "timing" and made and not (_sends_known(made.prune) and _length_known(made.quantize)):
        problem = "without tensors it must be known how much is sent: use static, a code such as int8, or both"
        raise ConfigError("downlink", run.downlink, problem)


def _check_virtual(run: Run, policies: Mapping[str, Any], cluster: Cluster) -> None:
    rule, quantize = policies["prune"], policies["quantize"]
    if run.engine in IN_VIRTUAL_TIME and not cluster.modelled(run.workers):
        raise ConfigError("cluster", run.cluster, f"virtual time needs {MODELLED}; calibrate(run) measures it here")
    if run.engine != "timing":
        if (row := find("model", run.model)) is not None and row.name == "sizes":
            problem = "has shapes and no operations, so that nothing can be trained: use engine='timing' or"
            raise ConfigError("model", run.model, f"{problem} throughput(run), or a model as torchvision:resnet50")
        if cluster.wire_bytes is not None:
            problem = "numbers travel as the dtype has them: use engine='timing', or quantize and downlink, as fp16"
            raise ConfigError("cluster.wire_bytes", cluster.wire_bytes, problem)
        return
    if not _in_ranges(rule) and not (_sends_known(rule) and run.pull in ("whole", "changed")):
        able = ", ".join(name for name, row in ROWS["prune"].items() if getattr(row.load(), "sends", None))
        problem = f"without tensors it must be known how much is sent: use none, {able}, with pull='whole' or 'changed'"
        raise ConfigError("prune", run.prune, problem)
    if not _length_known(quantize):
        problem = "without tensors it must be known how much is sent, and how long this code is depends on the gradient"
        raise ConfigError("quantize", run.quantize, f"{problem}: use engine='virtual', or another rule such as int8")
    sync = NotingPolicy(policies["sync"])
    first_step(sync, run.workers)
    if "loss" in sync.read:
        raise ConfigError("sync", run.sync, "reads the losses of pushes, and without tensors nobody knows them: "
                          "use engine='virtual'")  # fmt: skip
    if run.target_accuracy is not None:
        raise ConfigError("target_accuracy", run.target_accuracy, "without tensors nothing is evaluated")


def _in_ranges(rule: Any) -> bool:
    """Whether workers push ranges of keys in turn."""
    return getattr(rule, "pull", "") == "range"


def _sends_known(rule: Any) -> bool:
    """Whether the number of entries in a push follows from the rule alone."""
    return isinstance(rule, Everything) or rule_of(rule).sends is not None


def _length_known(code: Any) -> bool:
    """Whether the length of a push follows from the number of its entries."""
    return type(code).__name__ != "Inceptionn"


def _check_dilation(run: Run, cluster: Cluster) -> None:
    """Refuse a dilation where nothing is emulated in real time."""
    if run.dilation in ("auto", 1):
        return
    if run.engine != "local":
        raise ConfigError("dilation", run.dilation, "is for emulated time, of engine='local': use 'auto' or 1")
    if not cluster.modelled(run.workers):
        problem = "workers that compute as fast as this machine do so in real time: set compute_s, or use 'auto' or 1"
        raise ConfigError("dilation", run.dilation, problem)


def _check_key_ranges(run: Run, policies: Mapping[str, Any]) -> None:
    """Refuse ranges of keys that are pushed and not pulled, or the other way round."""
    rule = policies["prune"]
    if _in_ranges(rule) and run.pull != "range":
        raise ConfigError("pull", run.pull, "ranges are pushed: set pull='range', so that the same keys are pulled")
    if run.pull == "range" and not _in_ranges(rule):
        problem = "the keys that were pushed are pulled: set prune='range:300', say, or use whole or changed"
        raise ConfigError("pull", run.pull, problem)
    if _in_ranges(rule) and rule.applies:
        _check_own_writes(run, policies, "prune", "local_apply=off")


def _check_keys(run: Run, policies: Mapping[str, Any]) -> None:
    """Refuse fields that need more weights than a batch's keys have."""
    if run.pull != "keys":
        return
    traits = traits_of(policies["sync"])
    problems = {
        "prune": "the entries of the batch's keys are pushed, all of them: use none" * (
            not isinstance(policies["prune"], Everything)),
        "quantize": "the values of the batch's keys are pushed as they are: use none" * (
            not isinstance(policies["quantize"], Plain)),
        "ranges": "a model with a weight for each key has one layer: use whole" * policies["ranges"].layered,
        "sync": "a worker reads its own pushes, of which it has kept none: use rmw=off" * traits.reads_own
                or "a worker goes on with weights of other keys: push after each fetch, and fetch after each push"
                * _goes_on(policies["sync"]),
        "rate": "keeps sums of all entries at each worker: use one that keeps them at the server" * (
            rate_state.needs(policies["rate"]) in rate_state.AT_WORKER),
        "engine": "without tensors nobody knows the keys: use virtual or local" * (run.engine == "timing"),
        "device": "sparse rows are for the CPU: use cpu" * (run.device != "cpu"),
        "on_death": "nobody knows what a dead worker would have asked for: use stop or continue" * (
            run.on_death == "restart" and run.engine not in IN_VIRTUAL_TIME),
    }  # fmt: skip
    for field, problem in problems.items():
        if problem:
            raise ConfigError(field, getattr(run, field), f"with pull='keys' {problem}")


def _check_placement(run: Run) -> None:
    """Refuse a placement of keys unless workers ask for keys."""
    if run.placement == "even":
        return
    problems = {
        "is about the keys that workers ask for: set pull='keys'": run.pull != "keys",
        "leaves no choice with one server: use servers=2, say": run.servers == 1,
        "needs workers that use the same keys all along: set partition='multilevel', say": run.partition == "shuffled",
    }
    for problem, found in problems.items():
        if found:
            raise ConfigError("placement", run.placement, f"{problem}, or placement='even'")


def check_order(run: Run, policies: Mapping[str, Any], parts: tuple[Part, ...], itemsize: int) -> None:
    """Refuse more ranges than an order can choose among, and messages that are larger than its credit."""
    if len(parts) > MOST_CHOSEN and not getattr(policies["order"], "in_turn", False):
        problem = (f"cuts the model into {len(parts)} ranges; order={run.order!r} compares all that wait before "
                   f"each message, which is bearable with up to {MOST_CHOSEN} ranges")  # fmt: skip
        raise ConfigError("ranges", run.ranges, f"{problem}: use larger slices, such as layers:40000")
    credit = getattr(policies["order"], "credit", None)
    largest = max(dense_bytes(part.size, itemsize) for part in parts)
    if credit is not None and isinstance(policies["prune"], Everything) and not policies["order"].admits(0, largest):
        problem = f"a message of {largest} bytes would never go on a credit of {credit}: use a larger credit"
        raise ConfigError("order", run.order, f"{problem}, or smaller slices, such as ranges='layers:40000'")


def check_servers(run: Run, parts: tuple[Part, ...]) -> None:
    """Refuse more servers than the model has ranges or weights."""
    if run.servers > len(parts):
        problem = f"the model has {len(parts)} ranges, and each server needs one: use fewer servers, or ranges='whole'"
        raise ConfigError("servers", run.servers, problem)


def check_factored(run: Run, rules: Compression | None) -> None:
    """Refuse a rank at which every matrix is sent unchanged."""
    rule: Any = None if rules is None else rules.rule
    if rules is None or not hasattr(rule, "factored") or any(map(rule.factored, rules.pieces)):
        return
    shapes = [shape for at in rules.pieces if len(shape := rule.shape(at)) == 2]
    most = max(((rows * columns - 1) // (2 * (rows + columns)) for rows, columns in shapes), default=0)
    instead = f"use a rank of at most {most}, or prune='none'" if most else "use prune='none'"
    problem = f"factors of rank {rule.rank} would save less than half of any matrix, so that nothing is compressed"
    raise ConfigError("prune", run.prune, f"{problem}: {instead}")


def _check_own_writes(run: Run, policies: Mapping[str, Any], field: str, instead: str) -> None:
    """Refuse rules and rates with which a worker cannot know the effect of its own pushes."""
    if not resolve_optimizer(run.optimizer).plain_sgd:
        problem = f"a worker cannot foresee the step of {run.optimizer!r}: use optimizer='sgd', or {instead}"
        raise ConfigError(field, getattr(run, field), problem)
    if not getattr(policies["rate"], "predictable", False):
        problem = f"a worker cannot foresee the rate {run.rate!r}: use another, or {instead}"
        raise ConfigError(field, getattr(run, field), problem)


def _check_momentum(run: Run, rule: Any) -> None:
    """Refuse momentum at the worker and at the server together."""
    if rule_of(rule).momentum and not resolve_optimizer(run.optimizer).without_momentum:
        problem = f"prune={run.prune!r} keeps momentum at the worker, and the server takes plain steps by the mean"
        advice = "use optimizer='sgd' or 'sgd:weight_decay=0.0001', or momentum=0 in the rule"
        raise ConfigError("optimizer", run.optimizer, f"{problem}: {advice}")


def _check_method(run: Run, policies: Mapping[str, Any]) -> None:
    """Refuse fields that a method with several gradients per push leaves no choice of."""
    traits, sync = traits_of(policies["sync"]), policies["sync"]
    if traits.method not in ("", *methods.METHODS):
        problem = f"has the method {traits.method!r}, which nothing computes; {nearest(traits.method, methods.METHODS)}"
        raise ConfigError("sync", run.sync, problem)
    if traits.method in methods.TRAINING:
        _check_inner(run, policies)
    elif traits.changes:
        what = "pushes changes of the weights, not gradients"
        if not isinstance(policies["prune"], Everything):
            raise ConfigError("prune", run.prune, f"the policy {what}, none of which is to be left out: use none")
        if not isinstance(policies["quantize"], Plain):
            raise ConfigError("quantize", run.quantize, f"the policy {what}, which are to be exact: use none")
        if not resolve_optimizer(run.optimizer).plain_sgd:
            raise ConfigError("optimizer", run.optimizer, f"the policy {what}: use sgd")
        if find("rate", policies["rate"]) is not ROWS["rate"]["constant"]:
            raise ConfigError("rate", run.rate, f"the policy {what}, which no rate scales: use constant")
    if run.servers > 1 and methods.has_rho(sync):
        problem = "judges its residuals over the whole model, which one server must have: use servers=1"
        raise ConfigError("sync", run.sync, problem)
    if _goes_on(sync):
        if _in_ranges(policies["prune"]):
            problem = "pushes ranges of keys in turn, and the policy not after every fetch: use another rule, or none"
            raise ConfigError("prune", run.prune, problem)
        if run.on_death == "restart" and run.engine not in IN_VIRTUAL_TIME:
            problem = "a worker goes on with weights that it fetched earlier, which would be lost: use stop"
            raise ConfigError("on_death", run.on_death, problem)


def _check_inner(run: Run, policies: Mapping[str, Any]) -> None:
    """Refuse fields that do not fit pushes which are steps of the workers' own optimizers."""
    rule, what = policies["prune"], "the policy pushes changes of the weights, not gradients"
    if _in_ranges(rule) or rule_of(rule).momentum:
        raise ConfigError("prune", run.prune, f"{what}, whose momentum is the server's: use none, static, std, dynamic")
    if find("rate", policies["rate"]) is not ROWS["rate"]["constant"]:
        raise ConfigError("rate", run.rate, f"{what}, which outer_learning_rate scales: use constant")
    if run.pull == "keys":
        raise ConfigError("pull", run.pull, "a worker's own optimizer has a state of all weights: use whole or changed")
    if (each := getattr(policies["sync"], "each", ())) and len(each) != run.workers:
        problem = f"gives periods to {len(each)} workers, and the run has {run.workers}: give one to each"
        raise ConfigError("sync", run.sync, problem)
    if traits_of(policies["sync"]).method != methods.ELASTIC:
        return
    if policies["sync"].beta == run.workers:
        problem = "a worker's weights and those of the center would change places: use two workers, or beta below 1"
        raise ConfigError("sync", run.sync, problem)
    if not resolve_optimizer(run.optimizer).plain_sgd:
        raise ConfigError("optimizer", run.optimizer, "the center moves by the workers' forces alone: use sgd")


def _goes_on(sync: Any) -> bool:
    """Whether a worker may go on with weights that it fetched earlier."""
    return traits_of(sync).method == methods.REPLICA and bool(methods.memories(sync, 1, torch.float32))


def _check_layers(run: Run, policies: Mapping[str, Any]) -> None:
    """Refuse fields that do not fit a layered run, and fields that need one."""
    order = policies["order"]
    if getattr(order, "credit", None) is not None and not hasattr(order, "admits"):
        problem = "has a credit and no admits(under_way_bytes, size_bytes), which says when another message may go"
        raise ConfigError("order", run.order, f"{problem}: add it, or take the credit away")
    if not policies["ranges"].layered:
        if not getattr(order, "in_turn", False):
            problem = "a worker with one push and one pull has nothing to choose among: set ranges='layers'"
            raise ConfigError("order", run.order, problem)
        return
    traits = traits_of(policies["sync"])
    if _in_ranges(policies["prune"]):
        problem = "pushes ranges of keys in turn, whatever their layers: use ranges='whole', or another rule"
        raise ConfigError("prune", run.prune, problem)
    if traits.eager:
        problem = "asks for the whole model as a worker starts to compute: use ranges='whole', or another policy"
        raise ConfigError("sync", run.sync, problem)
    if traits.accumulates:
        problem = "pushes after several gradients, and no layer is ready earlier: use ranges='whole'"
        raise ConfigError("sync", run.sync, problem)
    if getattr(policies["prune"], "clip", None) is not None:
        problem = "clip needs the norm of the whole gradient, which is unknown while layers travel one by one"
        raise ConfigError("prune", run.prune, f"{problem}: use clip=none, or ranges='whole'")


def _check_allreduce(run: Run, policies: Mapping[str, Any], cluster: Cluster) -> None:
    """Refuse what a ring of workers cannot add up."""
    if cluster.aggregate != ALLREDUCE:
        return

    def summable(made: Any) -> bool:
        return getattr(made, "summable", False)

    tests = {"sync": lambda made: getattr(made, "rounds", False), "prune": summable, "quantize": summable}
    able = {kind: ", ".join(name for name, row in ROWS[kind].items() if test(row.load()))
            for kind, test in tests.items()}
    problems = {
        "engine": "real processes exchange with servers: use engine='virtual' or 'timing'"
                  * (run.engine not in IN_VIRTUAL_TIME),
        "servers": "there are none: use servers=1" * (run.servers > 1),
        "sync": f"a sum has a gradient of every worker: use {able['sync']}"
                * (not traits_of(policies["sync"]).rounds),
        "pull": "all workers get the whole sum: use whole" * (run.pull != "whole"),
        "prune": f"workers choose other entries than each other, which cannot be added up: use {able['prune']}"
                 * (not summable(policies["prune"])),
        "quantize": f"sums of these codes are no such codes: use {able['quantize']}"
                    * (not summable(policies["quantize"])),
        "downlink": "the sum is as long as a push: use none" * (run.downlink != "none"),
    }  # fmt: skip
    for field, problem in problems.items():
        if problem:
            words = f"with aggregate='allreduce' {problem}, or aggregate='servers'"
            raise ConfigError(field, getattr(run, field), words)


def _check_members(run: Run, cluster: Cluster) -> None:
    for name in ("leave", "join", "bandwidth_at"):
        if run.engine == "local" and (given := getattr(cluster, name)):
            problem = "is for virtual time: use engine='virtual' or 'timing'"
            raise ConfigError(f"cluster.{name}", dict(given), problem)
    if cluster.colocated and run.servers > run.workers:
        problem = f"server {run.workers} of {run.servers} has no worker to stand beside: use as many workers as servers"
        raise ConfigError("cluster.colocated", True, problem)
    for fault in cluster.faults:
        if fault.what == "kill" and run.on_death == "stop":
            problem = "a fault kills a worker, which would end the run: set on_death='continue'"
            raise ConfigError("on_death", run.on_death, problem)
    if not any(map(cluster.present, range(run.workers))):
        raise ConfigError("cluster.join", dict(cluster.join), "no worker is present when the run starts")
