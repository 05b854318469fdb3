"""The downlink: an answer to a pull is the compressed difference between the weights and the worker's copy.

    server   w, and a copy h of each worker's weights     sent C(w - h);   h = h + the decoded frame
    worker   h                                                             the same

What the code loses stays in w - h and is part of the next answer, under any policy, and w itself is exact: weights are
never rounded. In rounds all workers hold the same, and one h and one frame serve them; otherwise h is of each worker,
and takes the memory of the weights so many times. A worker of which it is not known what it holds gets all weights.

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

EVERYONE = -1  # whose stream of roundings it is where all workers get the same
UNKNOWN = -1  # the version that a worker holds which has left
NONE = torch.empty(0)


@dataclass(frozen=True)
class DownlinkRules:
    """The rules of the downlink: the entries of a difference that are sent, and the code of their values."""

    prune: Any
    quantize: Any

    def compression(self, setup: Any) -> Compression:
        """Return the rules on the ranges: a code's error stays in the difference, so that no residual is kept."""
        made = compression(self.prune, self.quantize, setup.parts, setup.keyspace, setup.run.seed)
        assert made is not None
        made.forget()
        return made


def downlink_rules(text: str) -> DownlinkRules | None:
    """The rules that a Run's `downlink` names: "static:1%", "int8", or both: "static:1%+int8"; None of "none".

    Raises:
        ConfigError: an unknown name; two rules of one kind; a rule that needs what an answer does not have.
    """
    if text == "none":
        return None
    found = dict[str, Any]()  # by kind
    for part in text.split("+"):
        name = split(part)[0]
        kind = next((kind for kind in ("prune", "quantize") if name in ROWS[kind] and name != "none"), None)
        if kind is None:
            names = [name for kind in ("prune", "quantize") for name in ROWS[kind] if name != "none"]
            raise ConfigError("downlink", text, f"unknown name {name!r}; {nearest(name, names)}")
        if kind in found:
            raise ConfigError("downlink", text, "has two rules of one kind: use one that says which entries are sent, "
                              "and one that says how, as in 'static:1%+int8'")  # fmt: skip
        found[kind] = build(kind, part, "downlink")
    rules = DownlinkRules(found.get("prune", Everything()), found.get("quantize", Plain()))
    for rule in (rules.prune, rules.quantize):
        keeps = rule.kept or rule.rounds or rule.every or getattr(rule, "warm_up", 0) or hasattr(rule, "pull")
        if keeps or getattr(rule, "mode", "") in ("frozen", "literal", "ratchet", "decay") or rule.combine:
            able = "static, std, dynamic, threshold, adaq and most quantization rules, as in 'static:1%' or 'int8'"
            raise ConfigError("downlink", text, f"needs what a worker has and an answer to a pull has not: use {able}")
        if rule.draws and not rule.residual:
            problem = "draws its roundings, whose errors, which all stay for the next answer, would grow for ever"
            raise ConfigError("downlink", text, f"{problem}: use residual=on, as in 'qsgd:4,residual=on', or 'int8'")
    return rules


class HeldWeights:
    """The copies of the weights that workers hold, as a server knows them.

    Args:
        weights: [size], the first ones, which all workers hold.
        workers: with a vector each; 0: all of them hold the same.
        rotation: which ranges an iteration exchanges.
    """

    def __init__(
        self, made: Compression, parts: Sequence[Part], weights: torch.Tensor, workers: int, rotation: Rotation = ALL
    ) -> None:
        self._made, self._parts, self._rotation = made, parts, rotation
        self._shared, self.held = not workers, [weights.clone() for _ in range(workers or 1)]
        # of (worker, range) the turn and the version of its last answer
        self._laid: dict[tuple[int, int], tuple[int, int]] = {}
        # of each range where all hold the same: from which version to which one the last frame leads, and the frame
        self._last: list[tuple[int, int, bytes | None]] = [(UNKNOWN, 0, None)] * len(parts)

    def leave(self, worker: int) -> None:
        """Forget the copy of a worker that has left."""
        self._laid |= dict.fromkeys(((worker, index) for index in range(len(self._parts))), (UNKNOWN, UNKNOWN))

    def state(self) -> State:
        """Return what workers hold, and which answers they have had. The last frames are no part of it: a worker that
        lacks one gets all that it holds."""
        laid = table((*key, *answer) for key, answer in self._laid.items())
        last = table((since, version) for since, version, _ in self._last)
        return {"laid": laid, "last": last, **{f"held {number}": each for number, each in enumerate(self.held)}}

    def restore(self, state: State) -> None:
        """Restore a saved state; KeyError or ValueError if it belongs to another run."""
        for number, held in enumerate(self.held):
            held.copy_(fitting(state[f"held {number}"], held))
        self._laid = {(worker, index): (turn, version) for worker, index, turn, version in state["laid"].tolist()}
        last = fitting(state["last"], table((since, version) for since, version, _ in self._last))
        self._last = [(since, version, None) for since, version in last.tolist()]

    def lay(self, reply: Reply, weights: torch.Tensor, place: memoryview) -> int:
        """Lay the frame of an answer ready: its length; 0 if the worker is to get all that `held` has."""
        (worker, index, iteration, before, *_), key = reply.pull, (reply.pull.worker, reply.pull.range)
        turn = self._rotation.turn(index, iteration)
        known = self._laid.get(key, (0, 0)) == (turn - 1, before)  # it has its last answer, and nothing since
        self._laid[key] = turn, reply.version
        if reply.empty:  # it goes on with what it holds
            return 0
        if not self._shared:
            size = self._difference(index, weights, self.held[worker], place, worker, iteration) if known else 0
            if not size:
                self._put(index, weights, self.held[worker])
            return size
        if self._last[index][1] != reply.version:  # the first of a round
            size = self._difference(index, weights, self.held[0], place, EVERYONE, iteration)
            if not size:
                self._put(index, weights, self.held[0])
            self._last[index] = self._last[index][1], reply.version, bytes(place[:size]) if size else None
        since, _, found = self._last[index]
        if found is None or not known or since != before:
            return 0
        place[: len(found)] = found
        return len(found)

    def of(self, worker: int) -> torch.Tensor:
        """The copy of the weights that a worker holds: [size]."""
        return self.held[0 if self._shared else worker]

    def _put(self, index: int, weights: torch.Tensor, held: torch.Tensor) -> None:
        for there, here in zip(self._parts[index].views(held), self._parts[index].views(weights), strict=True):
            there.copy_(here)

    def _difference(
        self, index: int, weights: torch.Tensor, held: torch.Tensor, place: memoryview, whose: int, iteration: int
    ) -> int:
        """Lay a frame ready, and add its decoded values to the held weights; 0 if it is not finite."""
        difference = torch.zeros_like(weights)
        for s in self._parts[index].slices:
            torch.sub(weights[s], held[s], out=difference[s])
        try:
            pieces, _ = self._made.push(index, difference, {}, worker=whose, step=iteration)
        except NonFinite:
            return 0
        size = frame.write(place, pieces)
        self._parts[index].add(held, self._made.read(index, frame.read(place[:size]), NONE, step=iteration), 1.0)
        return size
