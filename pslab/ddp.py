"""pslab's compressors in torch's DistributedDataParallel: a communication hook that replaces its all-reduce.

    model = DistributedDataParallel(module)
    model.register_comm_hook(*pslab.ddp.hook(model, "static:1%", quantize="qsgd:4"))

Each process prunes and quantizes its gradient as a worker of a run does, with the same residual, pieces, random draws
and frames. Every process gathers all frames and takes the mean of the decoded gradients: after `optimizer.step()` the
weights equal the weights of a run with sync="bsp", one worker for each process, and the same optimizer at its server.

The frame is written once the last bucket is ready, because pruning works layer by layer and a layer may be spread over
several buckets: nothing is sent during the backward pass.
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

NOTHING = 0  # size of a frame that a process announces if its gradient is not finite


class CompressionState:
    """The compression state of one process: its residual, its momentum and its number of gradients so far.

    Save this state in checkpoints beside the model, separately for each process: see `state_dict()`.
    """

    def __init__(self, model: DistributedDataParallel, run: Run, epoch_iterations: float, group: Any) -> None:
        self.step = 0  #: number of gradients so far
        self.sent_bytes = 0  #: bytes of this process's frames so far
        self._group, self._process = group, dist.get_rank(group)
        keyspace = Keyspace.of(model.module)
        self._workers, self._epoch_iterations = run.workers, epoch_iterations
        self._part = Part((slice(0, keyspace.size),))
        rules = resolve("prune", run.prune), resolve("quantize", run.quantize)
        made = compression(*rules, [self._part], keyspace, run.seed)
        check_factored(run, made)
        self._made = made or Compression(Plain(), Plain(), [self._part], keyspace, run.seed)
        self._kept = {name: memory.zeros("cpu") for name, memory in self._made.memories.items()}
        # a server's state follows from all frames, so every process computes the same one
        self._kept["told"] = torch.zeros(self._made.served(0), dtype=keyspace.dtype)
        self._room = torch.empty(self._made.largest(0), dtype=torch.uint8)
        self._gradient, self._mean = (torch.zeros(keyspace.size, dtype=keyspace.dtype) for _ in range(2))
        self._slots = {id(model.module.get_parameter(slot.name)): slice(slot.offset, slot.offset + slot.size)
                       for slot in keyspace.parameters}  # fmt: skip
        self._waiting: list[tuple[Any, torch.futures.Future[torch.Tensor]]] = []  # buckets with their futures
        self._named = {name: run.plain().get(name, "none") for name in ("prune", "quantize", "seed", "dtype")}
        self._named |= {"process": self._process, "entries": keyspace.size}

    def exchange(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]
        """Return a future of the bucket's mean gradient; the last bucket's call exchanges the gradients (the hook).

        Raises:
            NonFinite: a process's gradient, or its sum with the residual, is not finite. All processes raise this
                error. The residuals of the other processes have changed: training can continue only from a checkpoint.
            FrameError: a frame, or its size, was changed in transit.
        """
        if bucket.index() == 0:
            self._waiting.clear()  # buckets of an earlier gradient whose exchange failed
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
        """Exchange frames with all processes, and compute the mean of the decoded gradients, as a server would."""
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
        """Send this process's frame, the first `size` bytes of the buffer, to all; return all frames, by rank.

        If this process cannot send its gradient, `size` is NOTHING, and `problem` has the reason.

        Raises:
            NonFinite: a process, perhaps another one, cannot send its gradient.
            FrameError: a process announces more bytes than a frame can have.
        """
        world = range(dist.get_world_size(self._group))
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in world]
        dist.all_gather(lengths, torch.tensor([size]), group=self._group)
        sizes, most = [int(length) for length in lengths], self._made.largest(0)
        for process, bytes_ in enumerate(sizes):
            if not NOTHING <= bytes_ <= most:
                wrong = f"a frame of {bytes_} bytes, but at most {most} are possible: give all processes the same rules"
                raise FrameError(f"process {process}, gradient {self.step}: {wrong}")
        if NOTHING in sizes:
            bad = sizes.index(NOTHING)
            wrong = f"{problem or 'its gradient is not finite'}: load a checkpoint and lower the learning rate"
            raise NonFinite(f"process {bad}, gradient {self.step}: {wrong}")
        frames = [torch.empty(max(sizes), dtype=torch.uint8) for _ in world]
        dist.all_gather(frames, self._room[: max(sizes)], group=self._group)
        return [frame.numpy().data[:taken] for frame, taken in zip(frames, sizes, strict=True)]

    def state_dict(self) -> dict[str, Any]:
        """Return this process's state as numbers, strings and tensors, for `torch.save`."""
        return {"of": dict(self._named), "step": self.step,
                "kept": {name: memory.clone() for name, memory in self._kept.items()}}  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state_dict` returned at this rank, for the same model and rules.

        Raises:
            ConfigError: the state is from other rules, another model or another process.
        """
        for name, ours in self._named.items():
            if (given := state["of"].get(name)) != ours:
                problem = f"is in the loaded state, but this hook has {ours!r}: load the state that this process saved"
                raise ConfigError(name, given, problem)
        for name, memory in self._kept.items():
            memory.copy_(state["kept"][name])
        self.step = int(state["step"])


def hook(
    model: DistributedDataParallel, prune: Any = "none", quantize: Any = "none", *, seed: int = 0,
    epoch_iterations: float | None = None, process_group: Any = None,
) -> tuple[CompressionState, Any]:  # fmt: skip
    """Return the two arguments of `model.register_comm_hook`: a state, and a hook that sends compressed gradients.

    Gradients of float32 or float64 are compressed on the CPU, wherever the model is, and gathered over gloo. With
    `prune="dgc"` the rule applies the momentum: use an optimizer without momentum.

    Args:
        model: the wrapped model, whose layers are pruned and quantized as in a run.
        prune, quantize, seed: as the fields of `Run`.
        epoch_iterations: iterations of this process in an epoch, for rules that warm up over epochs.
        process_group: the processes that exchange gradients; None: the model's group.

    Raises:
        ConfigError: a value that Run refuses, rules that cannot be combined, a rule that warms up over epochs of
            unknown length, a model that is not wrapped, or a group without gloo.
    """
    if not isinstance(model, DistributedDataParallel):
        raise ConfigError("model", type(model).__name__, "must be wrapped: pass DistributedDataParallel(model)")
    group = model.process_group if process_group is None else process_group
    if "gloo" not in (backend := dist.get_backend(group)):
        problem = "frames are gathered on the CPU: give process_group=torch.distributed.new_group(backend='gloo')"
        raise ConfigError("process_group", backend, problem)
    dtype = str(Keyspace.of(model.module).dtype).removeprefix("torch.")
    run = Run(workers=dist.get_world_size(group), prune=prune, quantize=quantize, seed=seed, dtype=dtype)
    policies = {kind: resolve(kind, getattr(run, kind)) for kind, family in KINDS.items() if family.methods}
    rule = policies["prune"]
    if isinstance(rule, Ranges):
        problem = "needs pulls, and DDP has none: choose a rule that sends entries, such as 'static:1%'"
        raise ConfigError("prune", prune, problem)
    check_together(run, policies, resolve_cluster(run.cluster))
    if epoch_iterations is None and getattr(rule, "warm_up", False):
        problem = "warms up over epochs: give their length in iterations (epoch_iterations=len(loader)), or warm_up=0"
        raise ConfigError("prune", prune, problem)
    return CompressionState(model, run, epoch_iterations or 1.0, group), CompressionState.exchange
