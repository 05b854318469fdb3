"""The downlink: the reply to a pull is the compressed difference between the weights and the worker's copy.

    server   w, and a copy h of each worker's weights     sent C(w - h);   h = h + the decoded frame
    worker   h                                                             the same

The code's error stays in w - h and is part of the next reply, under any policy. The weights w themselves are exact:
they are never rounded. In rounds all workers have the same copy, so the server stores one h and sends all workers the
same frame. Otherwise it stores an h for each worker, as large as the weights. A worker that has not received the last
reply gets its complete copy.

Source: Tang et al. (ICML 2019), whose server also compresses its own steps
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pslab.config.spec import build, split
from pslab.config.table import ROWS
from pslab.errors import ConfigError, nearest
from pslab.protocol.rotation import ALL, Rotation
from pslab.protocol.server import Reply
from pslab.tensors.compression import compression, frame
from pslab.tensors.compression.pieces import Compression
from pslab.tensors.compression.uncompressed import Everything, Plain
from pslab.tensors.finite import NonFinite
from pslab.tensors.update.part import Part
from pslab.tensors.update.states import State, fitting, table

EVERYONE = -1  # the worker's number for random roundings, if all workers get the same frame
UNKNOWN = -1  # the version of a worker that has left
NONE = torch.empty(0)


@dataclass(frozen=True)
class DownlinkRules:
    """The rules of the downlink: the entries of a difference that are sent, and the code of their values."""

    prune: Any
    quantize: Any

    def compression(self, setup: Any) -> Compression:
        """Return the compression of a run's ranges, without a residual: a code's error stays in w - h."""
        made = compression(self.prune, self.quantize, setup.parts, setup.keyspace, setup.run.seed)
        assert made is not None
        made.forget()
        return made


def downlink_rules(text: str) -> DownlinkRules | None:
    """Return the rules in a Run's `downlink`: "static:1%", "int8", or both: "static:1%+int8"; None for "none".

    Raises:
        ConfigError: an unknown name; two rules of one kind; a rule that needs a worker's state, which a reply lacks.
    """
    if text == "none":
        return None
    chosen = dict[str, Any]()  # by kind
    for part in text.split("+"):
        name = split(part)[0]
        kind = next((kind for kind in ("prune", "quantize") if name in ROWS[kind] and name != "none"), None)
        if kind is None:
            names = [name for kind in ("prune", "quantize") for name in ROWS[kind] if name != "none"]
            raise ConfigError("downlink", text, f"unknown name {name!r}; {nearest(name, names)}")
        if kind in chosen:
            raise ConfigError("downlink", text, "has two rules of one kind: use at most one pruning rule and one "
                              "quantization rule, as in 'static:1%+int8'")  # fmt: skip
        chosen[kind] = build(kind, part, "downlink")
    rules = DownlinkRules(chosen.get("prune", Everything()), chosen.get("quantize", Plain()))
    for rule in (rules.prune, rules.quantize):
        keeps = rule.vectors or rule.rounds or rule.every or getattr(rule, "warm_up", 0) or hasattr(rule, "pull")
        if keeps or getattr(rule, "mode", "") in ("frozen", "literal", "ratchet", "decay") or rule.combine:
            able = "static, std, dynamic, threshold, adaq and most quantization rules, as in 'static:1%' or 'int8'"
            raise ConfigError("downlink", text, f"needs a worker's state or rounds, which replies lack: use {able}")
        if rule.draws and not rule.residual:
            problem = "rounds at random, and the errors, which stay for the next reply, would grow without bound"
            raise ConfigError("downlink", text, f"{problem}: use residual=on, as in 'qsgd:4,residual=on', or 'int8'")
    return rules


class HeldWeights:
    """The server's record of each worker's copy of the weights.

    Args:
        weights: [size], the initial weights, which all workers have.
        workers: the number of workers with separate copies; 0: all have the same copy.
        rotation: which ranges an iteration exchanges.
    """

    def __init__(
        self, made: Compression, parts: Sequence[Part], weights: torch.Tensor, workers: int, rotation: Rotation = ALL
    ) -> None:
        self._made, self._parts, self._rotation = made, parts, rotation
        self._shared, self.held = not workers, [weights.clone() for _ in range(workers or 1)]
        # (worker, range): the turn and the version of its last reply
        self._laid: dict[tuple[int, int], tuple[int, int]] = {}
        # by range, if all workers have the same copy: the last frame's first and last version, and the frame
        self._last: list[tuple[int, int, bytes | None]] = [(UNKNOWN, 0, None)] * len(parts)

    def leave(self, worker: int) -> None:
        """Forget the copy of a worker that has left."""
        self._laid |= dict.fromkeys(((worker, index) for index in range(len(self._parts))), (UNKNOWN, UNKNOWN))

    def state(self) -> State:
        """Return the workers' copies and the versions of their last replies. The last frames are not saved: a worker
        that has not received its frame gets its complete copy."""
        laid = table((*key, *answer) for key, answer in self._laid.items())
        last = table((since, version) for since, version, _ in self._last)
        return {"laid": laid, "last": last, **{f"held {number}": weights for number, weights in enumerate(self.held)}}

    def restore(self, state: State) -> None:
        """Restore a saved state; KeyError or ValueError if it belongs to another run."""
        for number, weights in enumerate(self.held):
            weights.copy_(fitting(state[f"held {number}"], weights))
        self._laid = {(worker, index): (turn, version) for worker, index, turn, version in state["laid"].tolist()}
        last = fitting(state["last"], table((since, version) for since, version, _ in self._last))
        self._last = [(since, version, None) for since, version in last.tolist()]

    def lay(self, reply: Reply, weights: torch.Tensor, buffer: memoryview) -> int:
        """Write a reply's frame to `buffer` and return its length in bytes.

        Return 0 if the reply is empty, or if the worker must get its complete copy (`of`) instead of a frame.
        """
        (worker, index, iteration, before, *_), key = reply.pull, (reply.pull.worker, reply.pull.range)
        turn = self._rotation.turn(index, iteration)
        known = self._laid.get(key, (0, 0)) == (turn - 1, before)  # the worker has the last reply that was made for it
        self._laid[key] = turn, reply.version
        if reply.empty:  # the worker continues with its copy
            return 0
        if not self._shared:
            size = self._difference(index, weights, self.held[worker], buffer, worker, iteration) if known else 0
            if not size:
                self._put(index, weights, self.held[worker])
            return size
        if self._last[index][1] != reply.version:  # the first reply of a round makes the frame
            size = self._difference(index, weights, self.held[0], buffer, EVERYONE, iteration)
            if not size:
                self._put(index, weights, self.held[0])
            self._last[index] = self._last[index][1], reply.version, bytes(buffer[:size]) if size else None
        since, _, length = self._last[index]
        if length is None or not known or since != before:
            return 0
        buffer[: len(length)] = length
        return len(length)

    def of(self, worker: int) -> torch.Tensor:
        """Return a worker's copy of the weights: [size]."""
        return self.held[0 if self._shared else worker]

    def _put(self, index: int, weights: torch.Tensor, copy: torch.Tensor) -> None:
        for there, here in zip(self._parts[index].views(copy), self._parts[index].views(weights), strict=True):
            there.copy_(here)

    def _difference(
        self, index: int, weights: torch.Tensor, copy: torch.Tensor, buffer: memoryview, whose: int, iteration: int
    ) -> int:
        """Write a frame, add its decoded values to the copy, and return its length; 0 if a difference is not finite."""
        difference = torch.zeros_like(weights)
        for s in self._parts[index].slices:
            torch.sub(weights[s], copy[s], out=difference[s])
        try:
            pieces, _ = self._made.push(index, difference, {}, worker=whose, step=iteration)
        except NonFinite:
            return 0
        size = frame.write(buffer, pieces)
        self._parts[index].add(copy, self._made.read(index, frame.read(buffer[:size]), NONE, step=iteration), 1.0)
        return size
