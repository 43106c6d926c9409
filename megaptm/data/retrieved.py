"""Similar documents (UNIMO, arXiv:2012.15409, section 2.1): the file that lists them, and reading them.

The safetensors file is written by `megaptm corpus retrieve`. For each split and kind, `<split>.<kind>` is int32
[documents of the split, maximum]: indexes of similar documents in the same split of a corpus, the most similar first,
padded with -1. Documents are indexed across all shards of a split. The metadata contain the corpora and the maximum
length of texts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save

from megaptm.data.manifest import NoCorpusError
from megaptm.data.order import OpenShards
from megaptm.data.shards import Corpus, Verify
from megaptm.errors import UserError
from megaptm.objectives.named_file import read_named_file
from megaptm.objectives.objective import RETRIEVED, DocumentSlice, Neighbors
from megaptm.storage import AtomicFile, Cache

METADATA = "retrieved"
REMEDY = "make it with `megaptm corpus retrieve`"
OPEN = 64
"""Maximum number of open shards. Retrieved documents are scattered over a split."""


@dataclass(frozen=True)
class RetrievedFrom:
    """Corpus from which documents were retrieved."""

    id: str
    """Id of its manifest."""
    place: str
    """Folder or URL."""


@dataclass(frozen=True)
class RetrievedHeader:
    """Metadata of a file."""

    corpus: str
    """Id of the corpus whose documents were the queries."""
    longest: int
    """Maximum tokens of a retrieved text that were compared and are read."""
    sources: Mapping[str, RetrievedFrom]
    """Kind -> corpus of the retrieved documents."""


class RetrievedTable:
    """File of similar documents. Its rows are read on demand."""

    def __init__(self, path: Path) -> None:
        """Open a file. Raises `ValueError`, `OSError` or `safetensors.SafetensorError` if it is invalid."""
        self._file: Any = safe_open(path, framework="numpy").__enter__()
        self.header = _header((self._file.metadata() or {}).get(METADATA, ""))
        self._slices = {name: self._file.get_slice(name) for name in self._file.keys()}  # noqa: SIM118  # a file, which is no mapping
        for name, rows in self._slices.items():
            if rows.get_dtype() != "I32" or len(rows.get_shape()) != 2:
                raise ValueError(f"{name} is no table of documents")

    def documents(self, split: str, kind: str) -> int | None:
        """Return the number of documents of a split in the table of a kind; None without such a table."""
        rows = self._slices.get(f"{split}.{kind}")
        return None if rows is None else int(rows.get_shape()[0])

    def like(self, split: str, kind: str, document: int) -> np.ndarray:
        """Return int32 [n]: documents similar to `document`."""
        [row] = self._slices[f"{split}.{kind}"][document : document + 1]
        return row[row >= 0]


def _header(said: str) -> RetrievedHeader:
    known: Any = json.loads(said) if said else None
    try:
        sources = {kind: RetrievedFrom(str(one["id"]), str(one["place"])) for kind, one in known["sources"].items()}
        header = RetrievedHeader(str(known["corpus"]), int(known["longest"]), sources)
    except (TypeError, KeyError, AttributeError, ValueError, OverflowError):  # OverflowError for infinity
        raise ValueError("it says nothing of corpora") from None
    if not {*sources} <= {*RETRIEVED} or header.longest < 1:
        raise ValueError("what it says of corpora is nothing that a file of this kind has")
    return header


@lru_cache(maxsize=4)
def retrieved_named(name: str) -> RetrievedTable:
    """Return the table in a file. Cached."""
    return read_named_file("retrieved", name, RetrievedTable, kind="file of retrieved documents", remedy=REMEDY)


def write_retrieved(tables: Mapping[str, np.ndarray], header: RetrievedHeader, path: Path) -> None:
    """Write a file of tables `<split>.<kind>`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with AtomicFile(path) as unfinished:
        unfinished.write_bytes(save(dict(tables), {METADATA: json.dumps(asdict(header))}))


class RetrievedDocuments:
    """Similar documents for a split of a corpus, as a task requests them."""

    def __init__(
        self,
        wanted: Neighbors,
        corpus: Corpus,
        split: str,
        *,
        blobs: tuple[str, ...],
        verify: Verify,
        cache: Cache | None,
        opened: Mapping[str, Corpus],
    ) -> None:
        """`opened`: id -> corpus that is already open. Other corpora are opened from the location in the file."""
        self.file, self.split, self.blobs = wanted.file, split, blobs
        header = self.table.header
        if header.corpus != corpus.manifest.id:
            raise UserError(
                f"retrieved: {self.file} is of another corpus than {corpus.name}, or that was built again since: make "
                f"it with `megaptm corpus retrieve {corpus.name} --out FILE`, or name the task's corpus (`corpora`)."
            )
        self.numbers = {kind: number for kind, number in wanted.numbers.items() if number and kind in header.sources}
        """Kind -> number of documents to sample."""
        self.shards: dict[str, OpenShards] = {}
        self.before: dict[str, np.ndarray] = {}
        """Kind -> int64 [shards + 1]: number of documents before each shard."""
        for kind in self.numbers:
            source = header.sources[kind]
            theirs = opened.get(source.id) or _opened(source, self.file, kind, cache)
            self.shards[kind] = OpenShards(theirs, split, verify, most_open=OPEN)
            self.before[kind] = np.concatenate(([0], np.cumsum(self.shards[kind].sums("samples"))))
            if self.table.documents(split, kind) != corpus.split(split).samples:
                raise self._damaged(f"it knows of other documents than the split `{split}` has")

    @property
    def table(self) -> RetrievedTable:
        """The table. Each process opens its own."""
        return retrieved_named(self.file)

    def draw(self, document: int, rng: np.random.Generator) -> Iterator[DocumentSlice]:
        """Sample documents similar to `document`, without repetition, each with its kind."""
        for kind, number in self.numbers.items():
            found = self.table.like(self.split, kind, document)
            for one in rng.permutation(found)[:number].tolist():
                yield self._read(kind, one)

    def _read(self, kind: str, number: int) -> DocumentSlice:
        before = self.before[kind]
        if number >= before[-1]:
            raise self._damaged(f"it names document {number:,} of {int(before[-1]):,}")
        place = int(np.searchsorted(before, number, side="right")) - 1
        shard, document = self.shards[kind].get(place), number - int(before[place])
        if kind != "images":
            tokens = shard.tokens(document, 0, self.table.header.longest)
            return DocumentSlice(tokens, slots=0, retrieved=kind)
        files = {name: content for name in self.blobs if (content := shard.blob(name, document))}
        where = f"document {document:,} of {shard.path.name}"
        return DocumentSlice(shard.tokens(document, 0, 0), slots=0, blobs=files, place=where, retrieved=kind)

    def _damaged(self, what: str) -> UserError:
        return UserError(f"retrieved: {self.file} is damaged ({what}): {REMEDY}.")


def _opened(source: RetrievedFrom, file: str, kind: str, cache: Cache | None) -> Corpus:
    try:
        corpus = Corpus.open(source.place, cache)
    except NoCorpusError:
        raise UserError(
            f"retrieved: {file} has {kind} of {source.place}, and no corpus is there: put it back (a symbolic link is "
            f"enough), or {REMEDY} anew."
        ) from None
    if corpus.manifest.id != source.id:
        raise UserError(
            f"retrieved: {corpus.name}, from which {file} has {kind}, was built again since: {REMEDY} anew, or put "
            "back the corpus that was there."
        )
    return corpus
