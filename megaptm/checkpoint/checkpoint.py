"""Committed checkpoint: the trainer's state, and the indexes and tensor files."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megaptm.checkpoint.files import DamagedError, RetriedFile, StorageError
from megaptm.checkpoint.manifest import IndexEntry, parse_index, refuse_duplicate_files
from megaptm.checkpoint.records import FileRecord
from megaptm.errors import UserError

if TYPE_CHECKING:
    from megaptm.checkpoint.tensors import TensorReader

VERIFYING_THREADS = 4


@dataclass(frozen=True)
class Checkpoint:
    """Committed checkpoint: `state` is the trainer's state, `reader` reads the tensors."""

    step: int
    folder: Path
    state: dict[str, Any]
    indexes: tuple[IndexEntry, ...]
    _files: dict[int, tuple[FileRecord, ...]] = field(default_factory=dict, repr=False, compare=False)
    """Files of the checkpoint, from the indexes that were read so far."""

    @property
    def reader(self) -> TensorReader:
        from megaptm.checkpoint.tensors import IndexedReader  # imports torch

        indexes = [(entry.tensors, partial(self.read_index, number)) for number, entry in enumerate(self.indexes)]
        return IndexedReader(self.folder, indexes)

    @property
    def size(self) -> int:
        """Bytes of all tensor files of the checkpoint."""
        return sum(entry.num_bytes for entry in self.indexes)

    @property
    def files(self) -> list[FileRecord]:
        """Return all files of the checkpoint, from all indexes. Ranks read only the indexes that they need."""
        files = [file for number in range(len(self.indexes)) for file in self.read_index(number)]
        try:
            refuse_duplicate_files((file.name for file in files), self.folder)
        except UserError as error:
            raise DamagedError(str(error)) from None
        return files

    def read_index(self, number: int) -> tuple[FileRecord, ...]:
        """Return the files that an index of the checkpoint lists. Raises `DamagedError` if the index does not match the
        manifest."""
        if number not in self._files:
            entry = self.indexes[number]
            path = self.folder / entry.name
            try:
                with RetriedFile(path) as file:
                    if (size := file.size()) != entry.size:
                        raise DamagedError(f"{path} has {size:,} bytes, expected {entry.size:,}")
                    content = bytearray(size)
                    file.read_into(memoryview(content), 0)
                self._files[number] = parse_index(bytes(content), path, entry)
            except FileNotFoundError:
                raise DamagedError(f"{path} is missing") from None
            except StorageError:
                raise
            except UserError as error:
                raise DamagedError(str(error)) from None
        return self._files[number]

    def verify(self, *, part: int = 0, parts: int = 1) -> None:
        """Compare size and hash of the checkpoint's files with their indexes, and the indexes with the manifest. Each
        rank may check a part."""
        num_files = sum(entry.num_files for entry in self.indexes)
        first, stop = num_files * part // parts, num_files * (part + 1) // parts
        files: list[FileRecord] = []
        start = 0
        for number, entry in enumerate(self.indexes):
            end = start + entry.num_files
            if start < stop and first < end:
                files += self.read_index(number)[max(0, first - start) : stop - start]
            start = end
        with ThreadPoolExecutor(VERIFYING_THREADS) as threads:
            list(threads.map(self.verify_file, files))

    def verify_file(self, file: FileRecord, *, hashed: bool = True) -> None:
        """Compare the size of one checkpoint file and, if `hashed`, its hash with its index.

        Raises `DamagedError` if they differ, and `UnreadableError` if the file cannot be read.
        """
        path = self.folder / file.name
        try:
            with RetriedFile(path) as stored:
                if (size := stored.size()) != file.size:
                    raise DamagedError(f"{path} has {size:,} bytes, expected {file.size:,}")
                if hashed and stored.sha256() != file.sha256:
                    raise DamagedError(f"{path} is damaged: its sha256 differs from its index")
        except FileNotFoundError:
            raise DamagedError(f"{path} is missing") from None
