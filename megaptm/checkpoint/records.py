"""Records of the files of a checkpoint: their hashes, and the locations of tensor pieces. No torch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from megaptm.checkpoint.boxes import Box, span_boxes
from megaptm.errors import UserError

ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "U8": 1, "BOOL": 1}
"""Bytes of an element by dtype, as safetensors names it."""


class NonFiniteError(UserError):
    """Raised if a checkpoint tensor to be saved or read contains NaN or infinity."""


@dataclass(frozen=True)
class StoredPiece:
    """Location of a tensor piece in a checkpoint file: fields of `TensorPiece`, with the offset in the file instead of
    the data."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: tuple[int, ...]
    block: tuple[int, ...]
    span: tuple[int, int] | None
    start: int
    """Offset in bytes of the piece's data in the file."""

    @property
    def count(self) -> int:
        """Number of elements of the stored piece of a tensor."""
        return self.span[1] - self.span[0] if self.span else math.prod(self.block)

    def boxes(self) -> Iterator[tuple[Box, int]]:
        """Yield the boxes of the full tensor that the piece consists of, with their byte offsets. Each is contiguous in
        the file."""
        start, itemsize = self.start, ITEM_BYTES[self.dtype]
        for box in span_boxes(self.block, *(self.span or (0, math.prod(self.block)))):
            yield box.shifted(self.offset), start
            start += box.volume * itemsize


@dataclass(frozen=True)
class FileRecord:
    """Description of a checkpoint file: locations of its tensor pieces, and its hash."""

    name: str
    size: int
    sha256: str
    tensors: tuple[StoredPiece, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
