"""Writer of shards. The same documents give the same bytes, and files are written atomically."""

from __future__ import annotations

import hashlib
import json
import os
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO

import numpy as np

from megaptm.data.files import npy_bytes, tar_header
from megaptm.data.manifest import ANNOTATIONS, SPANS
from megaptm.data.table import ShardInfo, index_name
from megaptm.data.token_types import ARRAYS
from megaptm.storage import AtomicFile, write_atomically

_JSON = json.JSONEncoder(sort_keys=True, ensure_ascii=False)


class ShardWriter:
    """Writer of one shard and its index. Both get their names when the block ends without an error.

        >>> with ShardWriter(folder / "train-000000.tar", dtype="uint16") as writer:
        ...     writer.add(0, tokens, {"sentences": [0, 17]}, meta={"source": "a.txt"}, text_bytes=93)
        >>> writer.close()          # the ShardInfo for `write_manifest`

    `fields` are those of the manifest: `tokens`, then annotations and blob suffixes.
    """

    def __init__(self, path: str | os.PathLike[str], dtype: Any = "uint16", fields: Sequence[str] = ("tokens",)):
        if not fields or fields[0] != "tokens" or len(set(fields)) < len(fields) or "json" in fields:
            raise ValueError(f"fields must be `tokens` and then other names, each once, not {fields}.")
        self.path = Path(path)
        self.dtype = ARRAYS.id_type(np.dtype(dtype).name)
        self.fields = tuple(fields)
        self._index: list[tuple[int, ...]] = []
        self._hash = hashlib.sha256()
        self._position = 0
        self.tokens = 0
        """Number of tokens added to the shard so far; the start of the next shard follows from it."""
        self._text_bytes = 0
        self._info: ShardInfo | None = None
        self._shard = AtomicFile(self.path)
        self._file: BinaryIO = self._shard.part.open("xb")

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def add(
        self,
        key: int | str,
        tokens: Any,
        annotations: Mapping[str, Any] = MappingProxyType({}),
        blobs: Mapping[str, bytes] = MappingProxyType({}),
        meta: Mapping[str, Any] | None = None,
        text_bytes: int = 0,
    ) -> None:
        """Append a document to the shard. `key` must be unique in the corpus; `text_bytes` is the size of its text in
        UTF-8."""
        if unknown := (annotations.keys() | blobs.keys()) - set(self.fields[1:]):
            raise ValueError(f"document {key}: {', '.join(sorted(unknown))} is not one of the fields {self.fields}.")
        ids = self._checked_ids(key, tokens)
        name = f"{int(key):012d}"
        columns = [self._append_ids(name, ids)]
        for field in self.fields[1:]:
            if field in annotations:
                starts = _checked_annotation(f"document {key}: {field}", field, annotations[field], len(ids))
                columns.append(self._append_array(f"{name}.{field}.npy", starts))
            elif field in blobs:
                size = len(blobs[field])
                columns.append((self._append_member(f"{name}.{field}", blobs[field]) - size, size))
            else:
                columns.append((0, 0))
        self._append_rest(name, ids, meta)
        self._index.append(tuple(number for pair in columns for number in pair))
        self.tokens += len(ids)
        self._text_bytes += text_bytes

    def _checked_ids(self, key: int | str, tokens: Any) -> np.ndarray:
        ids = np.asarray(tokens)
        if ids.ndim != 1 or not len(ids):
            raise ValueError(f"document {key}: tokens must be a non-empty list of ids, not of shape {ids.shape}.")
        if ids.min() < 0 or ids.max() > np.iinfo(self.dtype).max:
            raise ValueError(f"document {key}: ids from {ids.min()} to {ids.max()} do not fit {self.dtype.name}.")
        return ids.astype(self.dtype)

    def close(self) -> ShardInfo:
        """Finish the files of the shard and return their description. Further calls return the same."""
        if self._info is None:
            self._write_bytes(bytes(2 * tarfile.BLOCKSIZE))
            self._file.close()
            rows = np.array(self._index, dtype="<i8").reshape(-1, 2 * len(self.fields))
            index = npy_bytes(rows)
            # The index is renamed first, so that a tar always has an index.
            write_atomically(self.path.with_name(index_name(self.path.name)), index)
            self._shard.commit()
            self._info = ShardInfo(
                name=self.path.name,
                samples=len(rows),
                tokens=self.tokens,
                bytes=self._text_bytes,
                size=self._position,
                sha256=self._hash.hexdigest(),
                index_sha256=hashlib.sha256(index).hexdigest(),
            )
        return self._info

    def abort(self) -> None:
        """Remove the unfinished files of the shard."""
        self._file.close()
        self._shard.discard()

    def _append_ids(self, name: str, ids: np.ndarray) -> tuple[int, int]:
        """Store the ids of a document; return their columns of the index."""
        return self._append_array(f"{name}.tokens.npy", ids)

    def _append_rest(self, name: str, ids: np.ndarray, meta: Mapping[str, Any] | None) -> None:
        """Append those members of a document to the shard that the index does not locate, such as its metadata."""
        if meta is not None:
            self._append_member(f"{name}.json", _JSON.encode(meta).encode())

    def _append_array(self, name: str, array: np.ndarray) -> tuple[int, int]:
        """Append an array to the shard as a member; return the offset of its data and its number of rows."""
        return self._append_member(name, npy_bytes(array)) - array.nbytes, len(array)

    def _append_member(self, name: str, content: bytes) -> int:
        """Append a file to the shard's tar; return the offset after its last byte."""
        padding = bytes(-len(content) % tarfile.BLOCKSIZE)
        self._write_bytes(tar_header(name, len(content)) + content + padding)
        return self._position - len(padding)

    def _write_bytes(self, content: bytes) -> None:
        self._file.write(content)
        self._hash.update(content)
        self._position += len(content)


def _checked_annotation(label: str, name: str, values: Any, tokens: int) -> np.ndarray:
    """Return an annotation as int32 [n] or [n, columns]; raise ValueError unless positions are ascending and inside the
    document."""
    columns = ANNOTATIONS.get(name)
    if columns is None:
        raise ValueError(f"{label} is not one of the annotations {', '.join(ANNOTATIONS)}.")
    rows = np.asarray(values, dtype="<i4")
    if rows.shape != ((len(rows),) if columns == 1 else (len(rows), columns)):
        raise ValueError(f"{label} must have {columns} columns, not shape {rows.shape}.")
    starts = rows if columns == 1 else rows[:, 0]
    if name == "sentences" and (not len(starts) or starts[0] != 0):
        raise ValueError(f"{label} must ascend from 0 and stay below {tokens}.")
    min_step = 0 if name in (*SPANS, "turns") else 1
    if len(starts) and (starts[0] < 0 or starts[-1] >= tokens or (np.diff(starts) < min_step).any()):
        raise ValueError(f"{label} must ascend and stay below {tokens}.")
    return rows
