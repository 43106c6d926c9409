"""The shard: a plain tar file of documents beside an index that finds any of them in one read.

One document is `<key>.tokens.npy` (1-D uint16 or uint32), `<key>.sentences.npy` where sentence boundaries were kept
(1-D int32, start of each sentence in tokens), `<key>.json` where something is known of it. Tokens are stored clean: no
begin, end, cls or sep, which objectives add when a sample is loaded. Same documents, same bytes.
"""

from __future__ import annotations

import hashlib
import io
import json
import mmap
import os
import secrets
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np

from megaptm.data.manifest import (
    Manifest,
    ShardInfo,
    Split,
    index_name,
    np_name,
    read_manifest,
    replace_file,
    write_manifest,
)
from megaptm.errors import UserError

__all__ = ["Corpus", "Manifest", "Shard", "ShardInfo", "ShardWriter", "Split", "read_manifest", "write_manifest"]

Verify = Literal["none", "size", "hash"]
"""How much of a shard to check when it is opened: nothing, its size, its size and its sha256."""

# Columns of the index: where the raw tokens start in the tar and how many; the same for sentence starts (0, 0 if none).
TOKENS_AT, TOKENS, SENTENCES_AT, SENTENCES = range(4)


class ShardWriter:
    """Writes one shard and its index under a temporary name, and renames both when the block ends without an error.

    >>> with ShardWriter(folder / "train-000000.tar", dtype="uint16") as writer:
    ...     writer.add(0, tokens, sentences=[0, 17], meta={"source": "a.txt"}, text_bytes=93)
    >>> writer.close()          # the ShardInfo for `write_manifest`
    """

    def __init__(self, path: str | os.PathLike[str], dtype: Any = "uint16"):
        self.path = Path(path)
        self.dtype = np.dtype(np_name(dtype)).newbyteorder("<")
        self._index: list[tuple[int, int, int, int]] = []
        self._hash = hashlib.sha256()
        self._position = 0
        self.tokens = 0
        """Tokens added so far, to decide when the next shard begins."""
        self._text_bytes = 0
        self._info: ShardInfo | None = None
        # A name of its own for each attempt: a worker believed dead may still be writing the same shard.
        self._part = self.path.with_name(f".{self.path.name}.{os.getpid()}-{secrets.token_hex(4)}.part")
        self._file: BinaryIO = self._part.open("xb")

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
        sentences: Any = None,
        meta: Mapping[str, Any] | None = None,
        text_bytes: int = 0,
    ) -> None:
        """Append a document; `key` must be unique in the corpus, `text_bytes` is the size of its text in UTF-8."""
        ids = np.asarray(tokens)
        if ids.ndim != 1 or not len(ids):
            raise ValueError(f"document {key}: tokens must be a non-empty list of ids, not of shape {ids.shape}.")
        if ids.min() < 0 or ids.max() > np.iinfo(self.dtype).max:
            raise ValueError(f"document {key}: ids from {ids.min()} to {ids.max()} do not fit {self.dtype.name}.")
        name = f"{int(key):012d}"
        tokens_at = self._member(f"{name}.tokens.npy", _npy(ids.astype(self.dtype))) - ids.size * self.dtype.itemsize
        starts_at, count = 0, 0
        if sentences is not None:
            starts = np.asarray(sentences, dtype="<i4")
            if not len(starts) or starts[0] != 0 or (np.diff(starts) <= 0).any() or starts[-1] >= len(ids):
                raise ValueError(f"document {key}: sentence starts must rise from 0 and stay below {len(ids)}.")
            starts_at, count = self._member(f"{name}.sentences.npy", _npy(starts)) - starts.nbytes, len(starts)
        if meta is not None:
            self._member(f"{name}.json", json.dumps(meta, sort_keys=True, ensure_ascii=False).encode())
        self._index.append((tokens_at, len(ids), starts_at, count))
        self.tokens += len(ids)
        self._text_bytes += text_bytes

    def close(self) -> ShardInfo:
        """Finish the files and say what is in them; calling it again says it again."""
        if self._info is None:
            self._write(bytes(2 * tarfile.BLOCKSIZE))
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            rows = np.array(self._index, dtype="<i8").reshape(-1, 4)
            index = _npy(rows)
            # The index goes first: a tar in place always has one.
            replace_file(self.path.with_name(index_name(self.path.name)), index)
            self._part.replace(self.path)
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
        """Leave nothing behind."""
        self._file.close()
        self._part.unlink(missing_ok=True)

    def _member(self, name: str, content: bytes) -> int:
        """Append a file to the tar; returns the position just after its last byte."""
        header = tarfile.TarInfo(name)  # mtime, uid, gid 0 and no owner: the bytes depend on the content only
        header.size = len(content)
        self._write(header.tobuf(tarfile.USTAR_FORMAT))
        self._write(content)
        end = self._position
        self._write(bytes(-len(content) % tarfile.BLOCKSIZE))
        return end

    def _write(self, content: bytes) -> None:
        self._file.write(content)
        self._hash.update(content)
        self._position += len(content)


class Shard:
    """A shard mapped into memory: any document is a view, read from disk when it is looked at."""

    def __init__(self, content: mmap.mmap, index: np.ndarray, dtype: np.dtype):
        self.content = content
        self.index = index
        """int64 [documents, 4]; see `TOKENS_AT` and its neighbors."""
        self.dtype = dtype

    @classmethod
    def open(cls, folder: str | os.PathLike[str], info: ShardInfo, dtype: str, verify: Verify = "size") -> Shard:
        """Map the shard that the manifest calls `info`, after checking it as far as `verify` says."""
        check_shard(folder, info, verify)
        path = Path(folder) / info.name
        with path.open("rb") as file:
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return cls(content, open_index(folder, info), np.dtype(dtype).newbyteorder("<"))

    def __len__(self) -> int:
        return len(self.index)

    def tokens(self, document: int, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Token ids [start, stop) of a document, not copied, read-only."""
        at, count = self.index[document, TOKENS_AT : TOKENS + 1].tolist()
        stop = count if stop is None else min(stop, count)
        return np.frombuffer(self.content, self.dtype, stop - start, at + start * self.dtype.itemsize)

    def sentences(self, document: int) -> np.ndarray:
        """int32 [sentences]: where each sentence of a document starts; `[0]` when boundaries were not kept."""
        at, count = self.index[document, SENTENCES_AT:].tolist()
        return np.frombuffer(self.content, "<i4", count, at) if count else np.zeros(1, dtype="<i4")


def open_index(folder: str | os.PathLike[str], info: ShardInfo) -> np.ndarray:
    """int64 [documents, 4]: the index of a shard, mapped into memory."""
    path = Path(folder) / info.index_name
    try:
        return np.asarray(np.load(path, mmap_mode="r"))
    except (OSError, ValueError, EOFError):
        raise UserError(f"{path} is missing or damaged: copy the shard again or rebuild the corpus.") from None


def check_shard(folder: str | os.PathLike[str], info: ShardInfo, verify: Verify) -> None:
    """Raise a `UserError` naming the shard when it is missing, truncated, or (`hash`) differs by a single bit."""
    if verify == "none":
        return
    path = Path(folder) / info.name
    remedy = "copy the shard again or rebuild the corpus."
    for file in (path, path.with_name(info.index_name)):
        if not file.is_file():
            raise UserError(f"{file} is missing but the manifest names it: {remedy}")
    if (size := path.stat().st_size) != info.size:
        raise UserError(f"{path} has {size:,} bytes where the manifest says {info.size:,} (truncated?): {remedy}")
    if verify == "hash":
        for file, expected in ((path, info.sha256), (path.with_name(info.index_name), info.index_sha256)):
            with file.open("rb") as stream:
                if hashlib.file_digest(stream, "sha256").hexdigest() != expected:
                    raise UserError(f"{file} is damaged (its sha256 is not the manifest's): {remedy}")


@dataclass(frozen=True)
class Corpus:
    """A folder of shards with its manifest."""

    folder: Path
    manifest: Manifest

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> Corpus:
        return cls(Path(folder), read_manifest(folder))

    def split(self, name: str) -> Split:
        """The shards of `train` or `validation`; a split without a single document is the user's error."""
        split = self.manifest.splits.get(name)
        if split is None or not split.samples:
            raise UserError(
                f"{self.folder} has no documents in its split `{name}` (it has "
                f"{', '.join(n for n, s in self.manifest.splits.items() if s.samples) or 'none at all'}): "
                "build the corpus from more text."
            )
        return split

    def check(self, split: str, verify: Verify) -> None:
        """Check every shard of a split as far as `verify` says."""
        for info in self.split(split).shards:
            check_shard(self.folder, info, verify)

    def open_shard(self, info: ShardInfo, verify: Verify = "size") -> Shard:
        return Shard.open(self.folder, info, self.manifest.dtype, verify)

    def documents(self, split: str, verify: Verify = "size") -> Iterator[np.ndarray]:
        """The token ids of every document of a split, in the order they were written."""
        for info in self.split(split).shards:
            shard = self.open_shard(info, verify)
            yield from (shard.tokens(document) for document in range(len(shard)))


def _npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, version=(1, 0))
    return buffer.getvalue()
