"""Shard: a plain tar of documents, with an index that locates each of them in one read.

A document has the members `<key>.tokens.npy` (1-D uint16 or uint32), `<key>.<annotation>.npy` (int32, see
`ANNOTATIONS`), `<key>.<suffix>` for files that belong to it (`jpg`), and `<key>.json` for metadata. Tokens are stored
without special tokens, which objectives add when a sample is loaded. The same documents give the same bytes.

Types of token ids may store them elsewhere (`data.token_types`).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, TypeVar

import numpy as np

from megaptm.data.files import open_array
from megaptm.data.manifest import (
    ANNOTATIONS,
    SPANS,
    Manifest,
    Split,
    read_manifest,
    write_manifest,
)
from megaptm.data.outages import is_outage, retry_outages
from megaptm.data.remote import Mirror
from megaptm.data.shared_checks import ShareOfChecks
from megaptm.data.table import ShardInfo
from megaptm.data.token_types import find_shard_token_type
from megaptm.data.writer import ShardWriter
from megaptm.errors import UserError, is_resource_limit
from megaptm.plugins import load_class
from megaptm.storage import RemoteFileCache, is_remote, join_path, local_path, regular_file
from megaptm.storage.mounts import find_mount

__all__ = [
    "ANNOTATIONS",
    "Corpus",
    "Manifest",
    "Shard",
    "ShardInfo",
    "ShardWriter",
    "Split",
    "read_manifest",
    "write_manifest",
]

T = TypeVar("T")

Verify = Literal["none", "size", "hash"]
"""Check of a shard when it is opened: none, its size, or its size and its sha256."""

# Columns of the index for tokens: offset in the tar (for some types an id), and number of tokens. Two columns follow
# for each other field, in the order of the manifest's `fields`: offset of its data, and number of rows or bytes (0, 0
# if absent).
TOKENS_AT, TOKENS = range(2)

REMEDY = "copy the shard again or rebuild the corpus."
MAX_CHECKED_SHARDS = 10_000
"""Maximum number of shards whose sizes are compared when a corpus is opened: a second on a slow disk."""


class ShardFile:
    """Content of a shard, read from disk on demand.

    It is not memory-mapped, because the system kills the process if a mapped file is truncated or its disk fails.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with regular_file(path).open("rb") as file:
            self._descriptor = os.dup(file.fileno())
        self.size = os.fstat(self._descriptor).st_size

    def read(self, start: int, size: int) -> bytes:
        """Read bytes [start, start + size) of a shard; raise `UserError` if the file has been truncated."""
        try:
            content = os.pread(self._descriptor, size, start)
        except OSError:
            content = retry_outages(lambda: os.pread(self._descriptor, size, start), self.path)
        if len(content) < size:
            left = os.fstat(self._descriptor).st_size
            raise UserError(
                f"{self.path} was truncated while it was read: it had {self.size:,} bytes and has {left:,}; {REMEDY}"
            )
        return content

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)


class Shard:
    """Shard whose documents are read from disk on demand."""

    ids_in_index: ClassVar[bool] = False
    """Whether the index holds the token ids, and points to one file of the tar per document. It may omit files."""

    def __init__(self, path: Path, content: ShardFile, index: np.ndarray, dtype: np.dtype, fields: Sequence[str]):
        self.path = path
        self.content = content
        self.index = index
        """Index of the shard, int64 [documents, 2 * fields]: start and length of each field (see `TOKENS_AT`)."""
        self.dtype = dtype
        self.fields = tuple(fields)
        self.vocabulary: int | None = None
        """Vocabulary size. If set, each read raises `UserError` for an id outside of it, which takes a sixth of a
        loader's time."""

    @classmethod
    def open(
        cls,
        folder: str | os.PathLike[str],
        info: ShardInfo,
        dtype: str,
        fields: Sequence[str] = ("tokens",),
        verify: Verify = "size",
    ) -> Shard:
        """Open a shard of a corpus after the check `verify`. Temporary outages of its disk are retried."""
        return retry_outages(lambda: cls._open(folder, info, dtype, fields, verify), Path(folder) / info.name)

    @classmethod
    def _open(
        cls, folder: str | os.PathLike[str], info: ShardInfo, dtype: str, fields: Sequence[str], verify: Verify
    ) -> Shard:
        check_shard(folder, info, verify)
        path = Path(folder) / info.name
        try:
            content = ShardFile(path)
        except OSError as error:
            if is_outage(error) or is_resource_limit(error):
                raise
            raise UserError(f"{path} is missing or empty: {REMEDY}") from None
        if not content.size:
            raise UserError(f"{path} is missing or empty: {REMEDY}")
        index = _open_index(folder, info, fields, dtype)
        kind = find_shard_token_type(dtype)
        shard: Shard = load_class(kind, "shard")(path, content, index, kind.id_type(dtype), fields)
        if not shard._index_is_valid():
            raise UserError(f"{path} does not match its index: {REMEDY}")
        return shard

    def _index_is_valid(self) -> bool:
        """Whether all offsets in the index of a shard are inside the file."""
        at, count = self.index[:, 0::2], self.index[:, 1::2]
        rows = np.array([self.dtype.itemsize, *(4 * ANNOTATIONS.get(name, 0) or 1 for name in self.fields[1:])])
        # Written as a division, because at + count * bytes may overflow.
        inside = (at >= 0) & (at <= self.content.size) & (count >= 0) & (count <= (self.content.size - at) // rows)
        return bool(inside.all())

    def __len__(self) -> int:
        return len(self.index)

    def tokens(self, document: int, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Return token ids [start, stop) of a document of the shard, read-only."""
        at, count = self.index[document, TOKENS_AT : TOKENS + 1].tolist()
        stop = count if stop is None else min(stop, count)
        if not 0 <= start <= stop:
            raise self._damaged_error("sentences")
        size = self.dtype.itemsize
        tokens = np.frombuffer(self.content.read(at + start * size, (stop - start) * size), self.dtype)
        if self.vocabulary is not None:
            self._refuse_unknown_ids(self.vocabulary, tokens)
        return tokens

    def check_ids(self, vocabulary: int) -> None:
        """Check the ids of all tokens of a shard once, if its hash was verified, so that later reads need no check."""
        for document in range(len(self)):
            self._refuse_unknown_ids(vocabulary, self.tokens(document))

    def _refuse_unknown_ids(self, vocabulary: int, tokens: np.ndarray) -> None:
        """Raise `UserError` if a shard has an id outside of the vocabulary. A model would read outside of its embedding
        table, which is undefined or ends the process with a CUDA error."""
        if (largest := int(tokens.max(initial=0))) >= vocabulary:
            raise UserError(f"{self.path} has token id {largest:,}, but its tokenizer has {vocabulary:,} ids: {REMEDY}")

    def annotation(self, name: str, document: int) -> np.ndarray:
        """Return an annotation of a document of the shard: int32 [n] or [n, columns], see `ANNOTATIONS`. It has no rows
        if the document has none."""
        columns = ANNOTATIONS[name]
        at, rows = self._locate_field(name, document)
        numbers = np.frombuffer(self.content.read(at, 4 * rows * columns), "<i4")
        return numbers if columns == 1 else numbers.reshape(rows, columns)

    def blob(self, name: str, document: int) -> bytes:
        """Return a file of a document of the shard, the bytes of member `<key>.<name>`; empty if there is none."""
        at, size = self._locate_field(name, document)
        return self.content.read(at, size)

    def sentences(self, document: int) -> np.ndarray:
        """Return the start of each sentence of a document of the shard, int32 [sentences]; `[0]` if they are not
        stored."""
        starts = self.annotation("sentences", document)
        return starts if len(starts) else np.zeros(1, dtype="<i4")

    def annotation_within(self, name: str, document: int, start: int, stop: int) -> np.ndarray:
        """Return the rows of an annotation within [start, stop) of a document, relative to `start`; see
        `DocumentSlice`."""
        rows = self.annotation(name, document)
        starts = rows if rows.ndim == 1 else rows[:, 0]
        first, last = np.searchsorted(starts, (start, stop))
        if name == "turns" and first and (first == last or starts[first] > start):
            first -= 1  # include the turn that started earlier
        within = rows[first:last].copy()
        if name in SPANS:
            within = within[within[:, 1] <= stop]
            within[:, 1] -= start
        at = within if rows.ndim == 1 else within[:, 0]
        at -= start
        if name == "turns":
            np.maximum(at, 0, out=at)
        if len(at) and (at[0] < 0 or at[-1] >= stop - start or (np.diff(at) < (name not in SPANS)).any()):
            raise self._damaged_error(name)
        return within

    def _damaged_error(self, name: str) -> UserError:
        """Return the error for an offset outside of a document: the shard has the recorded hash, but its writer was
        wrong."""
        return UserError(f"{self.path} has {name} at positions outside of their document: {REMEDY}")

    def _locate_field(self, name: str, document: int) -> tuple[int, int]:
        """Return the offset of a document's field in the shard, and its number of rows or bytes."""
        if name not in self.fields:
            return 0, 0
        column = 2 * self.fields.index(name)
        at, count = self.index[document, column : column + 2].tolist()
        return at, count


def _open_index(folder: str | os.PathLike[str], info: ShardInfo, fields: Sequence[str], dtype: str) -> np.ndarray:
    """Return the memory-mapped index of a shard, int64 [documents, 2 * fields]; ids follow for some types."""
    path = Path(folder) / info.index_name
    columns = 2 * len(fields) + find_shard_token_type(dtype).num_columns(dtype)
    try:
        index = np.asarray(open_array(path, np.dtype("<i8"), (columns,)))
    except (OSError, ValueError) as error:
        if is_outage(error) or (isinstance(error, OSError) and is_resource_limit(error)):
            raise
        raise UserError(f"{path} is missing or damaged: {REMEDY}") from None
    if len(index) != info.samples:
        raise UserError(f"{path} has {len(index):,} documents where the manifest says {info.samples:,}: {REMEDY}")
    tokens = index[:, TOKENS]
    if (tokens < 1).any() or (tokens > info.tokens).any() or int(tokens.sum()) != info.tokens:
        raise UserError(f"{path} has {int(tokens.sum()):,} tokens where the manifest says {info.tokens:,}: {REMEDY}")
    return index


def check_shard(folder: str | os.PathLike[str], info: ShardInfo, verify: Verify) -> None:
    """Raise `UserError` if a shard is missing, truncated, or (`hash`) has a different hash."""
    if verify == "none":
        return
    files = {name: Path(folder) / name for name in info.hashes}
    sizes = {name: file.stat().st_size for name, file in files.items() if file.is_file()}
    if problem := describe_size_mismatch(str(folder), info, sizes):
        raise UserError(problem)
    for name, expected in info.hashes.items() if verify == "hash" else ():
        with files[name].open("rb") as stream:
            if hashlib.file_digest(stream, "sha256").hexdigest() != expected:
                raise UserError(damaged_message(str(files[name])))


def describe_size_mismatch(location: str, info: ShardInfo, sizes: Mapping[str, int]) -> str | None:
    """Return an error message for the files of a shard with these sizes, or None."""
    for name in info.hashes:
        if name not in sizes:
            return f"{location}/{name} is missing but the manifest names it: {REMEDY}"
    if (size := sizes[info.name]) != info.size:
        return f"{location}/{info.name} has {size:,} bytes where the manifest says {info.size:,} (truncated?): {REMEDY}"
    return None


def damaged_message(file: str) -> str:
    """Return the error message for a corpus file with a wrong hash."""
    return f"{file} is damaged (its sha256 differs from the manifest): {REMEDY}"


@dataclass(frozen=True)
class Corpus:
    """Corpus: shards with their manifest, in a folder. For a URL, or for shards at URLs, the folder is a local
    mirror."""

    folder: Path
    manifest: Manifest
    mirror: Mirror | None = None
    share: ShareOfChecks | None = None
    """Part of the checks that this process does; None: all, because it is alone."""

    @classmethod
    def open(cls, location: str | os.PathLike[str], cache: RemoteFileCache | None = None) -> Corpus:
        """Open the corpus in a folder, or at a URL whose shards are stored in `cache` (by default that of
        `default_cache_folder`).

        Raises `UserError` if there is no corpus, or its manifest is damaged. Shards are opened later.
        """
        if is_remote(location):
            mirror = Mirror.open(str(location), cache or RemoteFileCache())
            return cls(mirror.folder, read_manifest(mirror.folder), mirror)
        folder = local_path(location)
        if (manifest := read_manifest(folder)).addresses:
            mirror = Mirror.open(str(folder), cache or RemoteFileCache())
            return cls(mirror.folder, manifest, mirror)
        return cls(folder, manifest)

    @property
    def name(self) -> str:
        """Return the folder or URL of the corpus, as the user wrote it."""
        return self.mirror.url if self.mirror else str(self.folder)

    def url_of(self, name: str) -> str:
        """Return the path or URL of a file of the corpus."""
        return self.mirror.url_of(name) if self.mirror else join_path(self.folder, name)

    def split(self, name: str) -> Split:
        """Return a split of the corpus, `train` or `validation`. Raises `UserError` for a split without documents."""
        split = self.manifest.splits.get(name)
        if split is None or not split.samples:
            share = "larger" if name == "validation" else "smaller"
            raise UserError(
                f"{self.name} has no documents in its split `{name}` (it has "
                f"{', '.join(n for n, s in self.manifest.splits.items() if s.samples) or 'none at all'}): "
                f"build the corpus with a {share} validation=SHARE, or from more text."
            )
        return split

    def check(self, split: str, verify: Verify) -> None:
        """Check every shard of a split of the corpus, or this process's share of them. Many shards, or remote ones, are
        checked when they are first opened instead."""
        if self.mirror or len(self.split(split).shards) > MAX_CHECKED_SHARDS:
            return
        share, is_shared = self.share, find_mount(self.folder).is_shared
        first, step = (share.rank, share.ranks) if share is not None and is_shared else (0, 1)
        for info in self.split(split).shards[first::step]:
            check_shard(self.folder, info, verify)

    def open_shard(self, info: ShardInfo, verify: Verify = "size") -> Shard:
        """Open a shard of the corpus; fetch it first if it is remote, and again if the cached copy is damaged."""
        if self.mirror is None:
            return self._open(info, verify)
        fetched = self.mirror.fetch(info)
        try:
            return self._open(info, "size" if fetched else verify)
        except UserError:  # damaged in the cache, or evicted by another process
            self.mirror.discard(info)
            self.mirror.fetch(info)
            return self._open(info, "size")

    def _open(self, info: ShardInfo, verify: Verify) -> Shard:
        return Shard.open(self.folder, info, self.manifest.dtype, self.manifest.fields, verify)

    def indexes(self, infos: Sequence[ShardInfo]) -> Iterator[np.ndarray]:
        """Yield the index of each shard of a split, int64 [documents, columns], without fetching the shards."""
        if self.mirror:
            self.mirror.fetch_many(infos, wait=True, only_index=True)
        for info in infos:
            if self.mirror:
                self.mirror.fetch_index(info)  # has no effect unless the cache is too small for all indexes
            yield _open_index(self.folder, info, self.manifest.fields, self.manifest.dtype)

    def fetch(self, infos: Sequence[ShardInfo], *, wait: bool) -> None:
        """Fetch remote shards of the corpus that will be opened, in parallel. Has no effect for local ones."""
        if self.mirror:
            self.mirror.fetch_many(infos, wait=wait)

    def documents(self, split: str, verify: Verify = "size") -> Iterator[np.ndarray]:
        """Yield the token ids of every document of a split of the corpus, in file order."""
        for info in self.split(split).shards:
            shard = self.open_shard(info, verify)
            yield from (shard.tokens(document) for document in range(len(shard)))
