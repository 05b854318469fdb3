"""The encoding of a checkpoint as bytes: its facts as JSON, its tensors by name, and a checksum.

    checkpoint = magic (8 bytes), SHA-256 of the rest (32 bytes), torch.save of a dict with "facts" and the tensors

The checksum detects files that are incomplete or damaged. It is no protection against forged files. So the rest is read
by `torch.load(weights_only=True)`, after a check that its archive is no longer than it says, and names only tensors.
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

if TYPE_CHECKING:  # a process that only looks for checkpoints needs no torch
    import torch

MAGIC = b"pslabrn4"  # raise the number when the contents of checkpoints change
SUM_BYTES = 32
FACTS = "facts"  # a name that no tensor has
STORAGES = ("Float", "Double", "Half", "Long", "Int", "Short", "Char", "Byte", "Bool")
NAMED = {"torch._utils _rebuild_tensor_v2", "collections OrderedDict", *(f"torch {kind}Storage" for kind in STORAGES)}

Facts = Mapping[str, Any]  # plain values: numbers, strings, lists and dicts
Tensors = Mapping[str, "torch.Tensor"]


def pack(facts: Facts, tensors: Tensors) -> list[memoryview]:
    """Return the bytes of a checkpoint, as a list of consecutive pieces."""
    import torch

    whole = {name: view if view.untyped_storage().nbytes() == view.nbytes else view.clone()  # else all storage is saved
             for name, view in tensors.items()}  # fmt: skip
    content = io.BytesIO()
    torch.save({FACTS: json.dumps(facts), **whole}, content)
    written = content.getbuffer()
    return [memoryview(MAGIC + hashlib.sha256(written).digest()), written]


def unpack(checkpoint: bytes | bytearray) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Return the facts and the tensors of a checkpoint.

    Raises:
        CheckpointError: these are not bytes from `pack`. No code in them was executed, and reading them took little
            more memory than their length.
    """
    view, begin = memoryview(checkpoint), len(MAGIC) + SUM_BYTES
    if bytes(view[: len(MAGIC)]) != MAGIC:
        start = shortened(bytes(view[: len(MAGIC)]))
        raise CheckpointError(f"this is no checkpoint of this version of pslab: it begins with {start}, not {MAGIC!r}")
    content = view[begin:]
    if hashlib.sha256(content).digest() != bytes(view[len(MAGIC) : begin]):
        raise CheckpointError("the checksum differs: the checkpoint is incomplete or was changed")
    try:
        return _read(io.BytesIO(content), len(content))
    except CheckpointError:
        raise
    except Exception as error:  # torch, zipfile and pickletools can raise any exception
        raise CheckpointError(f"it cannot be read: {type(error).__name__}: {shortened(error, str)}") from error


def _read(file: io.BytesIO, size_bytes: int) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    import torch

    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        stored = all(entry.compress_type == zipfile.ZIP_STORED for entry in entries)
        if not stored or sum(entry.file_size for entry in entries) > size_bytes:
            raise CheckpointError("its archive claims more bytes than the file has: the file is damaged or forged")
        for name in [entry.filename for entry in entries if entry.filename.endswith(".pkl")]:
            named = {str(argument) for code, argument, _ in pickletools.genops(archive.read(name))
                     if code.name in ("GLOBAL", "STACK_GLOBAL", "INST")}  # fmt: skip
            if named - NAMED:
                raise CheckpointError(f"the file names {shortened(sorted(named - NAMED))}, and may name only tensors")
    file.seek(0)
    content = torch.load(file, map_location="cpu", weights_only=True)
    facts = json.loads(content.pop(FACTS))
    if not isinstance(facts, dict):
        raise CheckpointError("the checkpoint's facts must be a dict: the file is damaged or forged")
    for name, tensor in content.items():
        whole = isinstance(tensor, torch.Tensor) and tensor.is_contiguous() and tensor.nbytes <= size_bytes
        if not isinstance(name, str) or not whole:
            raise CheckpointError(f"the entry {shortened(name)} must be a contiguous tensor of the file's bytes")
    return facts, content
