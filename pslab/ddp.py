"""pslab's compressors in torch's DistributedDataParallel: a communication hook in the place of its all-reduce.

    model = DistributedDataParallel(module)
    model.register_comm_hook(*pslab.ddp.hook(model, "static:1%", quantize="qsgd:4"))

Each process prunes and quantizes its gradient as a worker of a run does, with the same residual, pieces, chance and
frames. All gather the frames of all and take the mean of the decoded gradients: after `optimizer.step()` the weights
equal the weights of a run with sync="bsp", one worker for each process, and the same optimizer at its server.

The frame is written once the last bucket is ready, since pruning goes by layers, which may lie in several buckets:
nothing is sent while backward computes.
"""

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from pslab.config.cluster import resolve_cluster
from pslab.config.run import Run
from pslab.config.spec import resolve
from pslab.config.table import KINDS
from pslab.engines.experiment.compatibility import check_factored, check_together
from pslab.errors import ConfigError, FrameError
from pslab.tensors.compression import compression, frame
from pslab.tensors.compression.pieces import Compression
from pslab.tensors.compression.sparse import Ranges
from pslab.tensors.compression.uncompressed import Plain
from pslab.tensors.finite import NonFinite
from pslab.tensors.update.part import Part
from pslab.tensors.workload.keyspace import Keyspace

NOTHING = 0  # the size of a frame that could not be written


class CompressionState:
    """The state of one process between gradients: its residual, momentum and count of gradients.

    It belongs into a checkpoint beside the model: `state_dict()` and `load_state_dict()`, in each process its own.
    """

    def __init__(self, model: DistributedDataParallel, run: Run, epoch_iterations: float, group: Any) -> None:
        self.step = 0  #: gradients so far
        self.sent_bytes = 0  #: of this process's frames so far
        self._group, self._process = group, dist.get_rank(group)
        keyspace = Keyspace.of(model.module)
        self._workers, self._epoch_iterations = run.workers, epoch_iterations
        self._part = Part((slice(0, keyspace.size),))
        rules = resolve("prune", run.prune), resolve("quantize", run.quantize)
        made = compression(*rules, [self._part], keyspace, run.seed)
        check_factored(run, made)
        self._made = made or Compression(Plain(), Plain(), [self._part], keyspace, run.seed)
        self._kept = {name: memory.zeros("cpu") for name, memory in self._made.memories.items()}
        # what a server would have of all pushes is the same everywhere
        self._kept["told"] = torch.zeros(self._made.served(0), dtype=keyspace.dtype)
        self._room = torch.empty(self._made.largest(0), dtype=torch.uint8)
        self._gradient, self._mean = (torch.zeros(keyspace.size, dtype=keyspace.dtype) for _ in range(2))
        self._slots = {id(model.module.get_parameter(slot.name)): slice(slot.offset, slot.offset + slot.size)
                       for slot in keyspace.parameters}  # fmt: skip
        self._waiting: list[tuple[Any, torch.futures.Future[torch.Tensor]]] = []  # buckets, and who waits for them
        self._named = {name: run.plain().get(name, "none") for name in ("prune", "quantize", "seed", "dtype")}
        self._named |= {"process": self._process, "entries": keyspace.size}

    def exchange(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]
        """The hook: a bucket's mean gradient, which is there once the last bucket of the gradient is.

        Raises:
            NonFinite: a process's gradient, or what it makes of its residual, is not finite. All processes raise it;
                the residuals of the others have changed, so training goes on from a checkpoint or not at all.
            FrameError: a frame, or its size, was changed on its way.
        """
        if bucket.index() == 0:
            self._waiting.clear()  # of a gradient that broke off
        for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
            self._gradient[self._slots[id(parameter)]].copy_(gradient.reshape(-1))
        devices = [bucket.buffer().device] if bucket.buffer().is_cuda else None
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=devices)
        self._waiting.append((bucket, future))
        if bucket.is_last():
            self._average()
            for call, known in self._waiting:
                for parameter, gradient in zip(call.parameters(), call.gradients(), strict=True):
                    gradient.copy_(self._mean[self._slots[id(parameter)]].view(gradient.shape))
                known.set_result(call.buffer())
        return future

    def _average(self) -> None:
        """Average the sent parts of all processes' gradients, as a server would."""
        size, problem, whose = NOTHING, "", {"worker": self._process, "step": self.step, "turn": self.step,
                                             "epoch": self.step / self._epoch_iterations}  # fmt: skip
        try:
            gradient = self._made.rule.before(self._gradient, self._workers)
            pieces, _ = self._made.push(0, gradient, self._kept, **whose)
            size = frame.write(self._room.numpy().data, pieces)
        except NonFinite as error:
            problem = str(error)
        pushes = [frame.read(parts) for parts in self._gathered(size, problem)]
        self._mean.zero_()
        if self._made.rule.combine is not None:
            self._part.add(self._mean, self._made.combined(0, pushes, self._kept["told"], **whose), 1.0)
        else:
            for push in pushes:
                self._part.add(self._mean, self._made.read(0, push, self._kept["told"], **whose), 1.0)
            self._mean.div_(len(pushes))
        self.step, self.sent_bytes = self.step + 1, self.sent_bytes + size

    def _gathered(self, size: int, problem: str) -> list[memoryview]:
        """The frames of all processes, in their order."""
        world = range(dist.get_world_size(self._group))
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in world]
        dist.all_gather(lengths, torch.tensor([size]), group=self._group)
        sizes, most = [int(length) for length in lengths], self._made.largest(0)
        for process, bytes_ in enumerate(sizes):
            if not NOTHING <= bytes_ <= most:
                raise FrameError(f"process {process}, gradient {self.step}: a frame of {bytes_} bytes; at most {most}")
        if NOTHING in sizes:
            bad = sizes.index(NOTHING)
            raise NonFinite(f"process {bad}, gradient {self.step}: {problem or 'it is not finite'}")
        frames = [torch.empty(max(sizes), dtype=torch.uint8) for _ in world]
        dist.all_gather(frames, self._room[: max(sizes)], group=self._group)
        return [frame.numpy().data[:taken] for frame, taken in zip(frames, sizes, strict=True)]

    def state_dict(self) -> dict[str, Any]:
        """Numbers, strings and tensors, for `torch.save`."""
        return {"of": dict(self._named), "step": self.step,
                "kept": {name: memory.clone() for name, memory in self._kept.items()}}  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave in this process, with the same rules.

        Raises:
            ConfigError: a state of other rules, another model or another process.
        """
        for name, ours in self._named.items():
            if (given := state["of"].get(name)) != ours:
                raise ConfigError(name, given, f"is of the state that is loaded; this hook has {ours!r}: load its own")
        for name, memory in self._kept.items():
            memory.copy_(state["kept"][name])
        self.step = int(state["step"])


def hook(
    model: DistributedDataParallel, prune: Any = "none", quantize: Any = "none", *, seed: int = 0,
    epoch_iterations: float | None = None, process_group: Any = None,
) -> tuple[CompressionState, Any]:  # fmt: skip
    """Return the two arguments of `model.register_comm_hook`: a state, and a hook that sends compressed gradients.

    Gradients of float32 or float64 are compressed on the CPU, wherever the model is, and gathered over gloo. With
    `prune="dgc"` the momentum is the rule's: let the optimizer have none.

    Args:
        model: its layers and parameters are pruned and quantized as in a run.
        prune, quantize, seed: as the fields of `Run`.
        epoch_iterations: of this process, for rules that warm up over some epochs.
        process_group: the processes that exchange; None: the model's.

    Raises:
        ConfigError: what Run refuses of these, rules that do not go together, a rule that warms up over epochs of
            unknown length, a model that is not distributed, a group without gloo.
    """
    if not isinstance(model, DistributedDataParallel):
        raise ConfigError("model", type(model).__name__, "wrap it first: DistributedDataParallel(model)")
    group = model.process_group if process_group is None else process_group
    if "gloo" not in (backend := dist.get_backend(group)):
        problem = "frames are gathered on the CPU: give process_group=torch.distributed.new_group(backend='gloo')"
        raise ConfigError("process_group", backend, problem)
    dtype = str(Keyspace.of(model.module).dtype).removeprefix("torch.")
    run = Run(workers=dist.get_world_size(group), prune=prune, quantize=quantize, seed=seed, dtype=dtype)
    policies = {kind: resolve(kind, getattr(run, kind)) for kind, family in KINDS.items() if family.methods}
    rule = policies["prune"]
    if isinstance(rule, Ranges):
        raise ConfigError("prune", prune, "a range is pulled after it is pushed, and here nothing is pulled")
    check_together(run, policies, resolve_cluster(run.cluster))
    if epoch_iterations is None and getattr(rule, "warm_up", False):
        problem = "warms up over epochs: say how many iterations one has (epoch_iterations=len(loader)), or warm_up=0"
        raise ConfigError("prune", prune, problem)
    return CompressionState(model, run, epoch_iterations or 1.0, group), CompressionState.exchange
