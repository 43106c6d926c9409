"""Table of a split's shards, `train.shards.npy`, with rows of fixed width, so that a million shards open instantly."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import numpy as np

from megaptm.data.files import open_array
from megaptm.data.outages import retry_outages
from megaptm.errors import UserError, is_resource_limit
from megaptm.storage import hash_regular_file

ROW = np.dtype(
    [
        ("number", "<i8"),
        ("samples", "<i8"),
        ("tokens", "<i8"),
        ("bytes", "<i8"),
        ("size", "<i8"),
        ("sha256", "u1", (32,)),
        ("index_sha256", "u1", (32,)),
    ]
)
"""Columns of the shard table: the number in the shard's name, and the other values of `ShardInfo`."""
MAX_COUNT = 1 << 40
"""Exclusive upper bound of the documents, tokens and bytes of a shard."""


@dataclass(frozen=True, kw_only=True)
class ShardInfo:
    """Description of one shard of a corpus."""

    name: str
    """File name of the shard in the corpus folder, `train-000000.tar`. Its index is `train-000000.index.npy`."""
    samples: int
    tokens: int
    bytes: int
    """UTF-8 bytes of the shard's text."""
    size: int
    """Bytes of the shard's tar file."""
    sha256: str
    index_sha256: str

    @property
    def index_name(self) -> str:
        return index_name(self.name)

    @property
    def hashes(self) -> dict[str, str]:
        """Return the hashes of a shard: file -> sha256, of the tar and its index."""
        return {self.name: self.sha256, self.index_name: self.index_sha256}


class ShardTable(Sequence[ShardInfo]):
    """Table of a split's shards, memory-mapped. Pickling stores the path instead of the rows."""

    def __init__(self, path: Path, split: str):
        self.path = path
        self.split = split
        self.rows = _open_rows(path)
        """Rows of the shard table, `ROW` [shards]."""

    @classmethod
    def open(cls, folder: Path, split: str, sha256: str) -> ShardTable:
        """Open the table of a split, after checking its hash and the plausibility of its numbers."""
        path = folder / table_name(split)
        try:
            is_unchanged = retry_outages(lambda: hash_regular_file(path), path) == sha256
        except FileNotFoundError:
            raise UserError(
                f"{path} is missing but the manifest names it: copy it again or rebuild the corpus."
            ) from None
        except OSError as error:
            if is_resource_limit(error):
                raise
            raise UserError(f"{path} cannot be read ({error.strerror}): copy it again or rebuild the corpus.") from None
        if not is_unchanged:
            raise UserError(
                f"{path} is damaged (its sha256 differs from the manifest): copy it again or rebuild the corpus."
            )
        table = cls(path, split)
        if not _is_sound(table.rows):
            raise UserError(
                f"{path} has implausible numbers of documents, tokens or bytes: copy it again or rebuild the corpus."
            )
        return table

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, at: int) -> ShardInfo: ...
    @overload
    def __getitem__(self, at: slice) -> list[ShardInfo]: ...
    def __getitem__(self, at: int | slice) -> ShardInfo | list[ShardInfo]:
        if isinstance(at, slice):
            return [self._shard_info(row) for row in self.rows[at]]
        return self._shard_info(self.rows[at])

    def __iter__(self) -> Iterator[ShardInfo]:
        return (self._shard_info(row) for row in self.rows)

    def __reduce__(self) -> tuple[Any, ...]:
        return ShardTable, (self.path, self.split)

    def _shard_info(self, row: np.void) -> ShardInfo:
        return ShardInfo(
            name=shard_name(self.split, int(row["number"])),
            **{column: int(row[column]) for column in ("samples", "tokens", "bytes", "size")},
            sha256=row["sha256"].tobytes().hex(),
            index_sha256=row["index_sha256"].tobytes().hex(),
        )


def shard_rows(split: str, shards: Sequence[ShardInfo]) -> np.ndarray:
    """Return the rows of the shard table for these shards: `ROW` [shards]."""
    rows = np.zeros(len(shards), dtype=ROW)
    for row, info in zip(rows, shards, strict=True):
        row["number"] = number = int(info.name.removesuffix(".tar").rpartition("-")[2])
        assert info.name == shard_name(split, number), f"{info.name} is not the name of a shard of {split}"
        for column in ("samples", "tokens", "bytes", "size"):
            row[column] = getattr(info, column)
        for column in ("sha256", "index_sha256"):
            row[column] = np.frombuffer(bytes.fromhex(getattr(info, column)), dtype="u1")
    return rows


def shard_name(split: str, number: int) -> str:
    """Return the file name of a shard: `train-000000.tar`."""
    return f"{split}-{number:06d}.tar"


def index_name(shard_name: str) -> str:
    """Return the name of a shard's index: `train-000000.tar` -> `train-000000.index.npy`."""
    return shard_name.removesuffix(".tar") + ".index.npy"


def table_name(split: str) -> str:
    """Return the name of a split's table: `train` -> `train.shards.npy`."""
    return f"{split}.shards.npy"


def _open_rows(path: Path) -> np.ndarray:
    try:
        return open_array(path, ROW)
    except (OSError, ValueError):
        raise UserError(f"{path} is not a table of shards: rebuild the corpus with this version of megaptm.") from None


def _is_sound(rows: np.ndarray) -> bool:
    """Whether the numbers of a shard table are valid: small enough that sums cannot overflow, and each shard number
    unique."""
    counts = all(
        ((rows[name] >= 0) & (rows[name] < MAX_COUNT)).all() for name in ("samples", "tokens", "bytes", "size")
    )
    numbers = rows["number"]
    return counts and bool((numbers >= 0).all()) and len(np.unique(numbers)) == len(numbers)
