"""pslab's compressors in torch's DistributedDataParallel: a communication hook in the place of its all-reduce.

    model = DistributedDataParallel(module)
    model.register_comm_hook(*pslab.ddp.hook(model, "static:1%", quantize="qsgd:4"))

Each process prunes and quantizes its gradient as a worker of a run does, with the same residual, pieces, chance and
frames. All gather the frames of all and take the mean of what these say: after `optimizer.step()` the weights are those
of a run with sync="bsp", one worker for each process, and the same optimizer at its server.

The frame is written once the last bucket is ready, since pruning goes by layers, which may lie in several buckets:
nothing is sent while backward computes.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from pslab.config.cluster import resolve_cluster
from pslab.config.run import Run
from pslab.config.spec import resolve
from pslab.config.table import KINDS
from pslab.engines.experiment.compatibility import check_factored, check_together
from pslab.engines.experiment.experiment import QUANTIZATION
from pslab.errors import ConfigError, FrameError
from pslab.protocol.messages import Push
from pslab.protocol.server import Step
from pslab.tensors import aggregates
from pslab.tensors.codec import Entries
from pslab.tensors.finite import NonFinite
from pslab.tensors.matrices.frames import frames_of
from pslab.tensors.pruning.pruner import KeptVector, Pruner, Setting, allocated, memories
from pslab.tensors.pruning.range_push import Ranges
from pslab.tensors.pruning.rules import rule_traits
from pslab.tensors.update.store import Gradient, Part
from pslab.tensors.workload.keyspace import Keyspace

NOTHING = 0  # the size of a frame that could not be written


class CompressionState:
    """What one process keeps from one gradient to the next: its residual, momentum and count of gradients.

    It belongs into a checkpoint beside the model: `state_dict()` and `load_state_dict()`, in each process its own.
    """

    def __init__(self, model: DistributedDataParallel, run: Run, epoch_iterations: float, group: Any) -> None:
        self.step = 0  #: gradients so far
        self.sent_bytes = 0  #: of this process's frames so far
        self._group, self._process = group, dist.get_rank(group)
        keyspace = Keyspace.of(model.module)
        prune, self._quantize = resolve("prune", run.prune), resolve("quantize", run.quantize)
        setting = Setting(run.seed, self._process, run.workers, epoch_iterations, skips=False)
        self._part = Part((slice(0, keyspace.size),))
        self._frames = frames = frames_of(self._quantize, prune, [self._part], keyspace, run.codec, run.seed)
        check_factored(run, frames)
        made = aggregates.at_server(prune, self._quantize, resolve("sync", run.sync), [self._part], keyspace,
                                    model.module, frames, run.seed)  # fmt: skip
        self._aggregate = made[0] if made else None  # what a server would have of all pushes is the same everywhere
        wanted = memories(prune, len(keyspace.layers), keyspace.size, keyspace.dtype, frames.feeds_back)
        wanted |= {QUANTIZATION: KeptVector(frames.kept, keyspace.dtype)} if frames.kept else {}
        self._kept = allocated(wanted, "cpu", None)
        self._pruner = Pruner.of(prune, keyspace, keyspace.dtype, "cpu", setting, self._kept)
        self._room = torch.empty(self._frames.largest(0), dtype=torch.uint8)
        self._gradient, self._mean = (torch.zeros(keyspace.size, dtype=keyspace.dtype) for _ in range(2))
        self._slots = {id(model.module.get_parameter(slot.name)): slice(slot.offset, slot.offset + slot.size)
                       for slot in keyspace.parameters}  # fmt: skip
        self._waiting: list[tuple[Any, torch.futures.Future[torch.Tensor]]] = []  # buckets, and who waits for them
        self._named = {name: run.plain().get(name, "none") for name in ("prune", "quantize", "seed", "codec", "dtype")}
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
            for each, known in self._waiting:
                for parameter, gradient in zip(each.parameters(), each.gradients(), strict=True):
                    gradient.copy_(self._mean[self._slots[id(parameter)]].view(gradient.shape))
                known.set_result(each.buffer())
        return future

    def _average(self) -> None:
        """The mean of all processes' gradients, as far as they are sent, or what a server would make of them."""
        entries, size, problem, kept = None, NOTHING, "", self._kept.get(QUANTIZATION, torch.empty(0)).numpy()
        try:
            indices, values = (found.numpy() for found in self._pruner.prune(self._gradient, self.step))
            entries = self._part.inside(*self._frames.sendable(indices, values, kept))
            size = self._frames.write(self._room.numpy().data, 0, entries, self._process, self.step, kept)
        except NonFinite as error:
            problem = str(error)
        gathered = self._gathered(size, problem)
        if self._frames.feeds_back:
            assert entries is not None
            assert self._pruner.residual is not None
            lost = torch.zeros_like(self._gradient)
            self._frames.add_lost(lost, gathered[self._process], 0, entries, self.step, kept=kept)
            self._pruner.residual.add_(lost)
        pushes: Sequence[Gradient] = [self._frames.read(frame, 0, self.step) for frame in gathered]
        if self._aggregate is not None:
            step = Step(0, tuple(Push(process, 0, self.step, 0) for process in range(len(pushes))), True, self.step)
            pushes = self._aggregate.adjust(step, pushes)
        self._mean.zero_()
        for push in pushes:
            assert isinstance(push, Entries)
            self._part.add(self._mean, push, 1.0)
        self._mean.div_(len(pushes))
        self.step, self.sent_bytes = self.step + 1, self.sent_bytes + size
        if self._aggregate is not None:
            self._frames.keep_stated(0, self.step, self._aggregate.stated(self.step), kept)

    def _gathered(self, size: int, problem: str) -> list[memoryview]:
        """The frames of all processes, in their order."""
        world = range(dist.get_world_size(self._group))
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in world]
        dist.all_gather(lengths, torch.tensor([size]), group=self._group)
        sizes, most = [int(each) for each in lengths], self._frames.largest(0)
        for process, each in enumerate(sizes):
            if not NOTHING <= each <= most:
                raise FrameError(f"process {process}, gradient {self.step}: a frame of {each} bytes; at most {most}")
        if NOTHING in sizes:
            bad = sizes.index(NOTHING)
            raise NonFinite(f"process {bad}, gradient {self.step}: {problem or 'it is not finite'}")
        frames = [torch.empty(max(sizes), dtype=torch.uint8) for _ in world]
        dist.all_gather(frames, self._room[: max(sizes)], group=self._group)
        return [frame.numpy().data[:taken] for frame, taken in zip(frames, sizes, strict=True)]

    def state_dict(self) -> dict[str, Any]:
        """Numbers, strings and tensors, for `torch.save`."""
        return {"of": dict(self._named), "step": self.step,
                "kept": {name: memory.clone() for name, memory in self._memories().items()}}  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave in this process, with the same rules.

        Raises:
            ConfigError: a state of other rules, another model or another process.
        """
        for name, own in self._named.items():
            if (given := state["of"].get(name)) != own:
                raise ConfigError(name, given, f"is of the state that is loaded; this hook has {own!r}: load its own")
        for name, memory in self._memories().items():
            memory.copy_(state["kept"][name])
        self.step = int(state["step"])

    def _memories(self) -> dict[str, torch.Tensor]:
        """All that is kept from one gradient to the next."""
        return self._kept | ({} if self._aggregate is None else {"aggregate": self._aggregate.memory})


def hook(
    model: DistributedDataParallel, prune: Any = "none", quantize: Any = "none", *, seed: int = 0, codec: str = "auto",
    epoch_iterations: float | None = None, process_group: Any = None,
) -> tuple[CompressionState, Any]:  # fmt: skip
    """The two arguments of `model.register_comm_hook`: a state, and the hook that sends gradients pruned and quantized.

    Gradients of float32 or float64 are compressed on the CPU, wherever the model is, and gathered over gloo. With
    `prune="dgc"` the momentum is the rule's: let the optimizer have none.

    Args:
        model: of which layers and parameters are pruned and quantized as those of a run's model are.
        prune, quantize, seed, codec: as the fields of `Run`.
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
    run = Run(workers=dist.get_world_size(group), prune=prune, quantize=quantize, seed=seed, codec=codec, dtype=dtype)
    policies = {kind: resolve(kind, getattr(run, kind)) for kind, each in KINDS.items() if each.methods}
    rule = policies["prune"]
    if isinstance(rule, Ranges):
        raise ConfigError("prune", prune, "a range is pulled after it is pushed, and here nothing is pulled")
    check_together(run, policies, resolve_cluster(run.cluster))
    if epoch_iterations is None and rule_traits(rule).at is not None and getattr(rule, "warm_up", True):
        problem = "warms up over epochs: say how many iterations one has (epoch_iterations=len(loader)), or warm_up=0"
        raise ConfigError("prune", prune, problem)
    return CompressionState(model, run, epoch_iterations or 1.0, group), CompressionState.exchange
