"""Schema of a checkpoint's manifest and indexes, which are untrusted input.

The manifest stays small for any number of ranks. It has an entry per index, and an index lists the files of some ranks.
A reader of a tensor opens the indexes whose entries name that tensor.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field

from megaptm.checkpoint.records import ITEM_BYTES, FileRecord, StoredPiece
from megaptm.errors import UserError
from megaptm.storage import FileName, Record, parse_json, validate

REMEDY = "restore it, or continue from another checkpoint"
MAX_DIMENSIONS = 8
MAX_INDEX_BYTES = 1 << 30
"""Maximum bytes of an index, which is read at once. The index of 128 ranks takes a few megabytes."""

Number = Annotated[int, Field(ge=0, lt=1 << 53)]
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Numbers = Annotated[list[Number], Field(max_length=MAX_DIMENSIONS)]


class ManifestPiece(Record):
    """Location of a tensor piece in a checkpoint index, see `StoredPiece`."""

    name: str
    dtype: str
    shape: Numbers
    offset: Numbers
    block: Numbers
    span: Annotated[list[Number], Field(min_length=2, max_length=2)] | None
    start: Number


class ManifestFile(Record):
    """File in a checkpoint index, see `FileRecord`."""

    name: FileName
    size: Number
    sha256: Sha256
    tensors: list[ManifestPiece]


class CheckpointIndex(Record):
    """Schema of a checkpoint index."""

    files: list[ManifestFile]


class IndexEntry(Record):
    """Entry of a checkpoint's manifest that describes an index."""

    name: FileName
    size: Annotated[int, Field(ge=0, le=MAX_INDEX_BYTES)]
    sha256: Sha256
    num_files: Annotated[int, Field(ge=1, lt=1 << 32)]
    """Number of files in the checkpoint index."""
    num_bytes: Number
    """Bytes of all files in the checkpoint index."""
    tensors: tuple[str, ...] = Field(strict=False)
    """Names of the tensors that have a piece in a file of the index."""

    @classmethod
    def from_content(cls, name: str, content: bytes, files: Sequence[Mapping[str, Any]]) -> IndexEntry:
        """Return the entry of a checkpoint index with this content, whose parsed files are `files`."""
        return cls(
            name=name,
            size=len(content),
            sha256=hashlib.sha256(content).hexdigest(),
            num_files=len(files),
            num_bytes=sum(file["size"] for file in files),
            tensors=tuple(dict.fromkeys(piece["name"] for file in files for piece in file["tensors"])),
        )


class CheckpointManifest(Record):
    """Schema of a checkpoint's manifest."""

    step: Number
    state: dict[str, Any]
    indexes: Annotated[list[IndexEntry], Field(min_length=1)]


def check_manifest(content: Any, path: str | os.PathLike[str], *, step: int) -> tuple[IndexEntry, ...]:
    """Return the entries of a manifest's indexes; raise `UserError` if its step is another one."""
    manifest = validate(CheckpointManifest, content, path, remedy=REMEDY)
    if manifest.step != step:
        raise UserError(f"{path} is the manifest of step {manifest.step:,}, not of step {step:,}: {REMEDY}.")
    if len({index.name for index in manifest.indexes}) < len(manifest.indexes):
        raise UserError(f"{path} lists an index twice: {REMEDY}.")
    return tuple(manifest.indexes)


def parse_index(content: bytes, path: str | os.PathLike[str], entry: IndexEntry) -> tuple[FileRecord, ...]:
    """Return the files of a checkpoint index. Raise `UserError` if it is not the index of the entry, or a piece is not
    inside its file."""
    if len(content) != entry.size or hashlib.sha256(content).hexdigest() != entry.sha256:
        raise UserError(f"{path} is damaged: its sha256 differs from the manifest's")
    files = validate(CheckpointIndex, parse_json(content, path, remedy=REMEDY), path, remedy=REMEDY).files
    refuse_duplicate_files((file.name for file in files), path)
    for file in files:
        for piece in file.tensors:
            if not _is_inside_file(piece, file.size):
                raise UserError(
                    f"{path}: the location of {piece.name} in {file.name} is outside the tensor or the file: {REMEDY}."
                )
    tensors = {piece.name for file in files for piece in file.tensors}
    expected = (entry.num_files, entry.num_bytes, {*entry.tensors})
    if (len(files), sum(file.size for file in files), tensors) != expected:
        raise UserError(f"{path} has other files or tensors than the manifest says: {REMEDY}.")
    return tuple(
        FileRecord(file.name, file.size, file.sha256, tuple(_to_stored_piece(piece) for piece in file.tensors))
        for file in files
    )


def refuse_duplicate_files(names: Iterable[str], path: str | os.PathLike[str]) -> None:
    """Raise `UserError` if checkpoint indexes list a file twice."""
    listed: set[str] = set()
    for name in names:
        if name in listed:
            raise UserError(f"{path} lists a file twice: {REMEDY}.")
        listed.add(name)


def content_id(manifest: dict[str, Any]) -> str:
    """Return the sha256 of a checkpoint's manifest without its id."""
    without_id = {name: value for name, value in manifest.items() if name != "id"}
    return hashlib.sha256(json.dumps(without_id, sort_keys=True).encode()).hexdigest()


def _is_inside_file(piece: ManifestPiece, size: int) -> bool:
    """Whether a stored piece is consistent: its block inside the tensor, its span inside the block, its bytes inside
    the file."""
    if piece.dtype not in ITEM_BYTES or not len(piece.shape) == len(piece.offset) == len(piece.block):
        return False
    edges = zip(piece.offset, piece.block, piece.shape, strict=True)
    volume = math.prod(piece.block)
    first, last = piece.span or (0, volume)
    return (
        all(start + width <= length for start, width, length in edges)
        and first <= last <= volume
        and piece.start + (last - first) * ITEM_BYTES[piece.dtype] <= size
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
