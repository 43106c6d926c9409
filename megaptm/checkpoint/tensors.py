"""Tensors of a checkpoint in safetensors files, stored in pieces. Reading does not depend on which rank wrote which
piece.

The format (a length, a JSON header and raw data) is written directly. So a file is hashed while it is written, and
tensors are not copied. Files are read with plain reads, so that a truncated file raises an error; with a memory map it
would kill the process.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from megaptm.checkpoint.boxes import Box
from megaptm.checkpoint.files import DamagedError, HashedWriter, RetriedFile
from megaptm.checkpoint.records import FileRecord, NonFiniteError, StoredPiece
from megaptm.errors import UserError

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}

# Shorter runs are read together with the gap between them, because disks and networks fetch about this much anyway.
RUN_BYTES = 256 << 10
# Maximum bytes of a read that is partly discarded.
GROUP_BYTES = 32 << 20
MAX_OPEN_FILES = 64


@dataclass(frozen=True)
class TensorPiece:
    """Piece of a checkpoint tensor that one rank holds: a block, or a flat range of a block."""

    name: str
    """Name of the tensor in checkpoints: `weight/decoder.3.attention.qkv.weight`, `exp_avg/...`."""
    shape: tuple[int, ...]
    """Shape of the full tensor that the piece belongs to."""
    offset: tuple[int, ...]
    """Offset of the piece's block in the full tensor."""
    block: tuple[int, ...]
    """Shape of the piece's block."""
    data: Tensor
    """Elements of the piece's block; with `span`, only those elements of the row-major block, flat."""
    span: tuple[int, int] | None = None
    """Range [first, end) of elements of the block. The distributed optimizer gives each data rank such a flat range."""

    def __post_init__(self) -> None:
        assert len(self.shape) == len(self.offset) == len(self.block), self.name
        ends = (start + size for start, size in zip(self.offset, self.block, strict=True))
        assert all(end <= size for end, size in zip(ends, self.shape, strict=True)), self.name
        if self.span is None:
            assert tuple(self.data.shape) == tuple(self.block), self.name
        else:
            start, stop = self.span
            assert 0 <= start <= stop <= math.prod(self.block), self.name
            assert tuple(self.data.shape) == (stop - start,), self.name


def write_pieces(path: Path, pieces: Iterable[TensorPiece]) -> FileRecord:
    """Write tensor pieces to one safetensors file and sync it to disk. Pieces may be on any device; the file is hashed
    while it is written.

    Raises `NonFiniteError` for NaN or infinity, because training could not continue from such a checkpoint.
    """
    # Wide types first, as safetensors requires, so that each tensor is aligned.
    ordered = sorted(pieces, key=lambda piece: -piece.data.dtype.itemsize)
    header, stored = _make_header(ordered)
    with HashedWriter(path) as file:
        file.write(header)
        for piece in ordered:
            data = piece.data.detach().cpu().contiguous()
            if num_nonfinite := _count_nonfinite(data):
                raise NonFiniteError(
                    f"{piece.name} has NaN or infinity in {num_nonfinite} of {data.numel()} elements, so no checkpoint "
                    "was saved: lower optimizer.lr, and continue from an earlier checkpoint."
                )
            file.write(_memory_of(data))
        digest = file.finish()
    return FileRecord(name=path.name, size=file.size, sha256=digest, tensors=tuple(stored))


def _count_nonfinite(data: Tensor) -> int:
    """Return the number of NaN or infinite elements of a tensor."""
    # A sum needs one pass and no memory. If it is finite, all terms are; otherwise the elements are counted.
    if not data.is_floating_point() or math.isfinite(data.sum().item()):
        return 0
    return data.numel() - int(data.isfinite().sum())


def _make_header(pieces: Sequence[TensorPiece]) -> tuple[bytes, list[StoredPiece]]:
    """Return the header of a safetensors file, and the location of each piece in the file."""
    entries: dict[str, Any] = {}
    locations: dict[str, Any] = {}
    end = 0
    starts = []
    for piece in pieces:
        key, count = piece.name, 1
        while key in entries:
            key, count = f"{piece.name}#{count}", count + 1
        starts.append(end)
        end += piece.data.numel() * piece.data.dtype.itemsize
        dtype = DTYPE_NAMES[piece.data.dtype]
        entries[key] = {"dtype": dtype, "shape": list(piece.data.shape), "data_offsets": [starts[-1], end]}
        location = {"name": piece.name, "shape": piece.shape, "offset": piece.offset, "block": piece.block}
        locations[key] = location | {"span": piece.span}
    metadata = {"format": "pt", "megaptm": json.dumps(locations)}
    text = json.dumps({"__metadata__": metadata, **entries}).encode()
    text += b" " * (-len(text) % 8)
    base = 8 + len(text)
    stored = [
        StoredPiece(dtype=DTYPE_NAMES[piece.data.dtype], start=base + start, **location)
        for piece, start, location in zip(pieces, starts, locations.values(), strict=True)
    ]
    return len(text).to_bytes(8, "little") + text, stored


class TensorReader:
    """Reader of checkpoint tensors: reads any block from the pieces that overlap it, whatever layout wrote them. Not
    thread-safe.

    Raises `UserError` with the tensor and the folder if files disagree on a shape, lack the requested elements, or
    contain NaN or infinity. Such values are never written; those of a teacher would otherwise be reported as a
    student's loss.
    """

    def __init__(self, folder: Path, files: Iterable[FileRecord] = ()) -> None:
        self.folder = folder
        self._pieces: dict[str, list[tuple[str, StoredPiece]]] = {}
        self._open: dict[str, RetriedFile] = {}
        self._add_files(files)

    def _add_files(self, files: Iterable[FileRecord]) -> None:
        for file in files:
            for stored in file.tensors:
                same = self._pieces.setdefault(stored.name, [])
                if same and (same[0][1].shape, same[0][1].dtype) != (stored.shape, stored.dtype):
                    raise UserError(
                        f"{self.folder}: {stored.name} has another shape or dtype in {file.name} than in {same[0][0]}: "
                        "take another checkpoint."
                    )
                same.append((file.name, stored))

    def names(self) -> list[str]:
        return list(self._pieces)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._find_pieces(name)[0][1].shape

    def dtype(self, name: str) -> torch.dtype:
        return DTYPES[self._find_pieces(name)[0][1].dtype]

    def read(self, name: str, offset: tuple[int, ...] | None = None, block: tuple[int, ...] | None = None) -> Tensor:
        """Read the block of a checkpoint tensor with this shape at this offset, by default the full tensor. Returns a
        new CPU tensor in the dtype of the file."""
        pieces, shape, dtype = self._find_pieces(name), self.shape(name), self.dtype(name)
        start = offset if offset is not None else (0,) * len(shape)
        size = block if block is not None else tuple(length - at for length, at in zip(shape, start, strict=True))
        requested = Box(tuple(start), tuple(size))
        if len(size) != len(shape) or any(
            at < 0 or at + width > length for at, width, length in zip(start, size, shape, strict=True)
        ):
            raise UserError(f"{self.folder}: {name} has shape {shape}, so it has no block of {size} at {start}.")
        num_stored = sum(stored.count for _, stored in pieces)
        if requested.volume > num_stored:  # checked before memory is allocated
            raise UserError(
                f"{self.folder}: its files contain only {num_stored:,} elements of {name}, whose shape is {shape}: "
                "take another checkpoint."
            )
        out = torch.empty(size, dtype=dtype)
        missing = [requested] if requested.volume else []
        for file, stored in pieces:
            for box, position in stored.boxes():
                missing = list(self._fill_boxes(out, requested, missing, file, box, position))
            if not missing:
                break
        if missing:
            first = missing[0]
            raise UserError(
                f"{self.folder}: no file contains the block of {first.shape} at {first.offset} of {name}, whose shape "
                f"is {shape}: take another checkpoint."
            )
        if num_nonfinite := _count_nonfinite(out):
            raise NonFiniteError(
                f"{self.folder}: {name} has NaN or infinity in {num_nonfinite} of {out.numel()} elements: take another "
                "checkpoint."
            )
        return out

    def _fill_boxes(
        self, out: Tensor, out_box: Box, missing: list[Box], file: str, box: Box, position: int
    ) -> Iterator[Box]:
        """Copy the part of `missing` that a stored box contains to `out`, which holds `out_box`; yield the boxes still
        missing."""
        for gap in missing:
            common = gap.intersect(box)
            if common is None:
                yield gap
                continue
            self._copy_part(out[common.slices_in(out_box)], file, common.slices_in(box), box.shape, position)
            yield from gap.subtract(common)

    def _copy_part(
        self, out: Tensor, file: str, part: tuple[slice, ...], shape: tuple[int, ...], position: int
    ) -> None:
        """Copy `part` of the row-major array of `shape`, stored at this byte offset, to `out`."""
        if not shape:
            out.copy_(self._read_elements(file, position, (), out.dtype))
            return
        rows, inner = part[0], shape[1:]
        row_bytes = math.prod(inner) * out.dtype.itemsize
        if all(selected == slice(0, size) for selected, size in zip(part[1:], inner, strict=True)):
            if out.is_contiguous():
                self._read_into(file, position + rows.start * row_bytes, out)
            else:
                out.copy_(self._read_elements(file, position + rows.start * row_bytes, tuple(out.shape), out.dtype))
        elif out[0].numel() * out.dtype.itemsize >= RUN_BYTES or row_bytes > GROUP_BYTES:
            for target, row in zip(out, range(rows.start, rows.stop), strict=True):
                self._copy_part(target, file, part[1:], inner, position + row * row_bytes)
        else:
            group = max(1, GROUP_BYTES // row_bytes)
            for first in range(0, len(out), group):
                target = out[first : first + group]
                at = position + (rows.start + first) * row_bytes
                target.copy_(self._read_elements(file, at, (len(target), *inner), out.dtype)[(slice(None), *part[1:])])

    def _read_elements(self, file: str, position: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return self._read_into(file, position, torch.empty(shape, dtype=dtype))

    def _read_into(self, file: str, position: int, out: Tensor) -> Tensor:
        target = _memory_of(out)
        try:
            count = self._open_file(file).read_into(target, position)
        except FileNotFoundError:
            raise DamagedError(f"{self.folder / file} is missing") from None
        if count < len(target):
            raise DamagedError(f"{self.folder / file} is truncated at byte {position + count}")
        return out

    def _open_file(self, name: str) -> RetriedFile:
        if name not in self._open:
            if len(self._open) >= MAX_OPEN_FILES:
                self._open.pop(next(iter(self._open))).close()
            self._open[name] = RetriedFile(self.folder / name)
        return self._open[name]

    def _find_pieces(self, name: str) -> list[tuple[str, StoredPiece]]:
        if name not in self._pieces:
            raise UserError(f"{self.folder} has no tensor {name}: take a checkpoint of the same model.")
        return self._pieces[name]


class IndexedReader(TensorReader):
    """Reader of checkpoint tensors that reads an index only when a tensor with pieces in its files is first read."""

    def __init__(
        self, folder: Path, indexes: Sequence[tuple[Sequence[str], Callable[[], Iterable[FileRecord]]]]
    ) -> None:
        """`indexes`: for each index, the names of its tensors, and a function that reads its files."""
        super().__init__(folder)
        self._indexes = [read for _, read in indexes]
        self._indexes_of: dict[str, list[int]] = {}
        """Checkpoint indexes that list pieces of a tensor, by tensor."""
        for number, (names, _) in enumerate(indexes):
            for name in names:
                self._indexes_of.setdefault(name, []).append(number)
        self._read_indexes: set[int] = set()

    def names(self) -> list[str]:
        return list(self._indexes_of)

    def _find_pieces(self, name: str) -> list[tuple[str, StoredPiece]]:
        for number in self._indexes_of.get(name, ()):
            if number not in self._read_indexes:
                self._add_files(self._indexes[number]())
                self._read_indexes.add(number)
        return super()._find_pieces(name)


def _memory_of(tensor: Tensor) -> memoryview:
    """Return the memory of a contiguous CPU tensor as bytes."""
    # Not `view(-1)`: a single element keeps its arbitrary stride, and then cannot be viewed as bytes.
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy().data
