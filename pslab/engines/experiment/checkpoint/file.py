"""A checkpoint as bytes: its facts, as JSON, and its tensors by name, with a sum over all of them.

    checkpoint = magic (8 bytes) SHA-256 of what follows (32 bytes) torch.save of a dict: "facts", and the tensors

The sum finds bytes that were torn or changed by chance. A forged checkpoint has a forged sum: so the rest is read by
`torch.load(weights_only=True)`, and only if its archive is as long as it says and its pickle names nothing but tensors.
"""

from __future__ import annotations

import hashlib
import io
import json
import pickletools
import zipfile
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pslab.errors import CheckpointError, shortened

if TYPE_CHECKING:  # whoever asks where checkpoints lie needs no torch
    import torch

MAGIC = b"pslabrn4"  # raise its number when a checkpoint means something else than before
SUM_BYTES = 32
FACTS = "facts"  # no tensor has this name
STORAGES = ("Float", "Double", "Half", "Long", "Int", "Short", "Char", "Byte", "Bool")
NAMED = {"torch._utils _rebuild_tensor_v2", "collections OrderedDict", *(f"torch {kind}Storage" for kind in STORAGES)}

Facts = Mapping[str, Any]  # plain values: numbers, words, lists and dicts of them
Tensors = Mapping[str, "torch.Tensor"]


def pack(facts: Facts, tensors: Tensors) -> list[memoryview]:
    """Return a checkpoint, in pieces that follow each other."""
    import torch

    whole = {name: each if each.untyped_storage().nbytes() == each.nbytes else each.clone()  # a view would bring all
             for name, each in tensors.items()}  # fmt: skip
    content = io.BytesIO()
    torch.save({FACTS: json.dumps(facts), **whole}, content)
    written = content.getbuffer()
    return [memoryview(MAGIC + hashlib.sha256(written).digest()), written]


def unpack(checkpoint: bytes | bytearray) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Return the facts and the tensors of a checkpoint.

    Raises:
        CheckpointError: these are not bytes that `pack` has made; no code of theirs was executed, and reading them took
            hardly more memory than they are long.
    """
    view, begin = memoryview(checkpoint), len(MAGIC) + SUM_BYTES
    if bytes(view[: len(MAGIC)]) != MAGIC:
        start = shortened(bytes(view[: len(MAGIC)]))
        raise CheckpointError(f"this is no checkpoint of this version of pslab: it begins with {start}, not {MAGIC!r}")
    content = view[begin:]
    if hashlib.sha256(content).digest() != bytes(view[len(MAGIC) : begin]):
        raise CheckpointError("it is incomplete or was changed: its sum is another one")
    try:
        return _read(io.BytesIO(content), len(content))
    except CheckpointError:
        raise
    except Exception as error:  # torch, zipfile and pickletools raise what they like for bytes that are not theirs
        raise CheckpointError(f"it cannot be read: {type(error).__name__}: {shortened(error, str)}") from error


def _read(file: io.BytesIO, size_bytes: int) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    import torch

    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        stored = all(each.compress_type == zipfile.ZIP_STORED for each in entries)
        if not stored or sum(each.file_size for each in entries) > size_bytes:
            raise CheckpointError("its entries would be larger than it is")
        for name in [each.filename for each in entries if each.filename.endswith(".pkl")]:
            named = {str(argument) for code, argument, _ in pickletools.genops(archive.read(name))
                     if code.name in ("GLOBAL", "STACK_GLOBAL", "INST")}  # fmt: skip
            if named - NAMED:
                raise CheckpointError(f"it names {shortened(sorted(named - NAMED))}; a checkpoint has tensors alone")
    file.seek(0)
    found = torch.load(file, map_location="cpu", weights_only=True)
    facts = json.loads(found.pop(FACTS))
    if not isinstance(facts, dict):
        raise CheckpointError("its facts are no dict")
    for name, tensor in found.items():
        whole = isinstance(tensor, torch.Tensor) and tensor.is_contiguous() and tensor.nbytes <= size_bytes
        if not isinstance(name, str) or not whole:
            raise CheckpointError(f"{shortened(name)} is no tensor that lies whole in it")
    return facts, found
