"""Schema of a checkpoint's manifest, which is untrusted input."""

from __future__ import annotations

import hashlib
import json
import math
import os
from typing import Annotated, Any

from pydantic import Field

from megaptm.checkpoint.tensors import DTYPES, FileRecord, Stored
from megaptm.errors import UserError
from megaptm.storage import FileName, Record, validate

REMEDY = "restore it, or continue from another checkpoint"
MOST_DIMENSIONS = 8

Number = Annotated[int, Field(ge=0, lt=1 << 53)]
Numbers = Annotated[list[Number], Field(max_length=MOST_DIMENSIONS)]


class ManifestPiece(Record):
    """Location of a piece, see `Stored`."""

    name: str
    dtype: str
    shape: Numbers
    offset: Numbers
    block: Numbers
    span: Annotated[list[Number], Field(min_length=2, max_length=2)] | None
    start: Number


class ManifestFile(Record):
    """File, see `FileRecord`."""

    name: FileName
    size: Number
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    tensors: list[ManifestPiece]


class CheckpointManifest(Record):
    """Schema of the manifest."""

    step: Number
    state: dict[str, Any]
    files: list[ManifestFile]


def check_manifest(content: Any, place: str | os.PathLike[str], *, step: int) -> tuple[FileRecord, ...]:
    """Return the files of a manifest; raise `UserError` unless its step matches and every piece is inside its file."""
    written = validate(CheckpointManifest, content, place, remedy=REMEDY)
    if written.step != step:
        raise UserError(f"{place} is of step {written.step:,}, its folder of step {step:,}: {REMEDY}.")
    if len({file.name for file in written.files}) < len(written.files):
        raise UserError(f"{place} names a file twice: {REMEDY}.")
    for file in written.files:
        for piece in file.tensors:
            if not _fits(piece, file.size):
                raise UserError(f"{place}: {piece.name} cannot lie in {file.name} as it says: {REMEDY}.")
    return tuple(
        FileRecord(file.name, file.size, file.sha256, tuple(_stored(piece) for piece in file.tensors))
        for file in written.files
    )


def content_id(manifest: dict[str, Any]) -> str:
    """Return the sha256 over a manifest without its id."""
    rest = {name: value for name, value in manifest.items() if name != "id"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def _fits(piece: ManifestPiece, size: int) -> bool:
    """Whether the block is inside the tensor, the span inside the block, and the bytes inside the file."""
    if piece.dtype not in DTYPES or not len(piece.shape) == len(piece.offset) == len(piece.block):
        return False
    edges = zip(piece.offset, piece.block, piece.shape, strict=True)
    volume = math.prod(piece.block)
    first, last = piece.span or (0, volume)
    return (
        all(at + of <= whole for at, of, whole in edges)
        and first <= last <= volume
        and piece.start + (last - first) * DTYPES[piece.dtype].itemsize <= size
    )


def _stored(piece: ManifestPiece) -> Stored:
    return Stored(
        name=piece.name,
        dtype=piece.dtype,
        shape=tuple(piece.shape),
        offset=tuple(piece.offset),
        block=tuple(piece.block),
        span=(piece.span[0], piece.span[1]) if piece.span else None,
        start=piece.start,
    )
