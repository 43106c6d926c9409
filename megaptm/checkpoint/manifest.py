"""Schema of a checkpoint's manifest, which is untrusted input."""

from __future__ import annotations

import hashlib
import json
import math
import os
from typing import Annotated, Any

from pydantic import Field

from megaptm.checkpoint.tensors import DTYPES, FileRecord, StoredPiece
from megaptm.errors import UserError
from megaptm.storage import FileName, Record, validate

REMEDY = "restore it, or continue from another checkpoint"
MAX_DIMENSIONS = 8

Number = Annotated[int, Field(ge=0, lt=1 << 53)]
Numbers = Annotated[list[Number], Field(max_length=MAX_DIMENSIONS)]


class ManifestPiece(Record):
    """Location of a piece, see `StoredPiece`."""

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


def check_manifest(content: Any, path: str | os.PathLike[str], *, step: int) -> tuple[FileRecord, ...]:
    """Return the files of a manifest; raise `UserError` unless its step matches and every piece is inside its file."""
    manifest = validate(CheckpointManifest, content, path, remedy=REMEDY)
    if manifest.step != step:
        raise UserError(f"{path} is the manifest of step {manifest.step:,}, not of step {step:,}: {REMEDY}.")
    if len({file.name for file in manifest.files}) < len(manifest.files):
        raise UserError(f"{path} lists a file twice: {REMEDY}.")
    for file in manifest.files:
        for piece in file.tensors:
            if not _is_inside_file(piece, file.size):
                raise UserError(
                    f"{path}: the location of {piece.name} in {file.name} is outside the tensor or the file: {REMEDY}."
                )
    return tuple(
        FileRecord(file.name, file.size, file.sha256, tuple(_to_stored_piece(piece) for piece in file.tensors))
        for file in manifest.files
    )


def content_id(manifest: dict[str, Any]) -> str:
    """Return the sha256 over a manifest without its id."""
    without_id = {name: value for name, value in manifest.items() if name != "id"}
    return hashlib.sha256(json.dumps(without_id, sort_keys=True).encode()).hexdigest()


def _is_inside_file(piece: ManifestPiece, size: int) -> bool:
    """Whether the block is inside the tensor, the span inside the block, and the bytes inside the file."""
    if piece.dtype not in DTYPES or not len(piece.shape) == len(piece.offset) == len(piece.block):
        return False
    edges = zip(piece.offset, piece.block, piece.shape, strict=True)
    volume = math.prod(piece.block)
    first, last = piece.span or (0, volume)
    return (
        all(start + width <= length for start, width, length in edges)
        and first <= last <= volume
        and piece.start + (last - first) * DTYPES[piece.dtype].itemsize <= size
    )


def _to_stored_piece(piece: ManifestPiece) -> StoredPiece:
    return StoredPiece(
        name=piece.name,
        dtype=piece.dtype,
        shape=tuple(piece.shape),
        offset=tuple(piece.offset),
        block=tuple(piece.block),
        span=(piece.span[0], piece.span[1]) if piece.span else None,
        start=piece.start,
    )
