"""Documents that were retrieved because they are like another (UNIMO, arXiv:2012.15409, section 2.1): a file that says
which, and their reading beside a row's own.

A safetensors file, which `megaptm corpus retrieve` writes. Of each split and kind `<split>.<kind>`, int32 [documents of
the split, most]: numbers of documents of the same split of a corpus, the most similar first, and -1 behind them.
Documents are numbered through all shards of a split. Its metadata say of which corpora, and how long texts are.
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
"""Shards of retrieved documents that are open at once; they lie anywhere in a split."""


@dataclass(frozen=True)
class RetrievedFrom:
    """A corpus from which documents were retrieved."""

    id: str
    """Its manifest's."""
    place: str
    """Folder or URL."""


@dataclass(frozen=True)
class RetrievedHeader:
    """What a file says of itself."""

    corpus: str
    """Id of the corpus whose documents they were retrieved for."""
    longest: int
    """Tokens that a retrieved text has, at most; what is behind was not compared."""
    sources: Mapping[str, RetrievedFrom]
    """Kind -> where they are."""


class RetrievedTable:
    """A file, whose rows are read when they are asked for."""

    def __init__(self, path: Path) -> None:
        """A `ValueError`, `OSError` or `safetensors.SafetensorError` of what is none."""
        self._file: Any = safe_open(path, framework="numpy").__enter__()
        self.header = _header((self._file.metadata() or {}).get(METADATA, ""))
        self._slices = {name: self._file.get_slice(name) for name in self._file.keys()}  # noqa: SIM118  # a file, which is no mapping
        for name, rows in self._slices.items():
            if rows.get_dtype() != "I32" or len(rows.get_shape()) != 2:
                raise ValueError(f"{name} is no table of documents")

    def documents(self, split: str, kind: str) -> int | None:
        """How many of a split it knows such of; None where it was made without."""
        rows = self._slices.get(f"{split}.{kind}")
        return None if rows is None else int(rows.get_shape()[0])

    def like(self, split: str, kind: str, document: int) -> np.ndarray:
        """int32 [n]: those that are like one."""
        [row] = self._slices[f"{split}.{kind}"][document : document + 1]
        return row[row >= 0]


def _header(said: str) -> RetrievedHeader:
    known: Any = json.loads(said) if said else None
    try:
        sources = {kind: RetrievedFrom(str(one["id"]), str(one["place"])) for kind, one in known["sources"].items()}
        header = RetrievedHeader(str(known["corpus"]), int(known["longest"]), sources)
    except (TypeError, KeyError, AttributeError, ValueError, OverflowError):  # of a number that is infinite
        raise ValueError("it says nothing of corpora") from None
    if not {*sources} <= {*RETRIEVED} or header.longest < 1:
        raise ValueError("what it says of corpora is nothing that a file of this kind has")
    return header


@lru_cache(maxsize=4)
def retrieved_named(name: str) -> RetrievedTable:
    """That of a file."""
    return read_named_file("retrieved", name, RetrievedTable, kind="file of retrieved documents", remedy=REMEDY)


def write_retrieved(tables: Mapping[str, np.ndarray], header: RetrievedHeader, path: Path) -> None:
    """The file of tables, `<split>.<kind>`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with AtomicFile(path) as unfinished:
        unfinished.write_bytes(save(dict(tables), {METADATA: json.dumps(asdict(header))}))


class RetrievedDocuments:
    """Documents like those of a split of a corpus, as a task asks for them."""

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
        """`opened` are corpora that are open, by their ids; others are opened where the file says that they are."""
        self.file, self.split, self.blobs = wanted.file, split, blobs
        header = self.table.header
        if header.corpus != corpus.manifest.id:
            raise UserError(
                f"retrieved: {self.file} is of another corpus than {corpus.name}, or that was built again since: make "
                f"it with `megaptm corpus retrieve {corpus.name} --out FILE`, or name the task's corpus (`corpora`)."
            )
        self.numbers = {kind: number for kind, number in wanted.numbers.items() if number and kind in header.sources}
        """Kind -> how many are drawn."""
        self.shards: dict[str, OpenShards] = {}
        self.before: dict[str, np.ndarray] = {}
        """Kind -> int64 [shards + 1]: documents before each of the shards that they are in."""
        for kind in self.numbers:
            source = header.sources[kind]
            theirs = opened.get(source.id) or _opened(source, self.file, kind, cache)
            self.shards[kind] = OpenShards(theirs, split, verify, most_open=OPEN)
            self.before[kind] = np.concatenate(([0], np.cumsum(self.shards[kind].sums("samples"))))
            if self.table.documents(split, kind) != corpus.split(split).samples:
                raise self._damaged(f"it knows of other documents than the split `{split}` has")

    @property
    def table(self) -> RetrievedTable:
        """The file, which each process opens by itself."""
        return retrieved_named(self.file)

    def draw(self, document: int, rng: np.random.Generator) -> Iterator[DocumentSlice]:
        """Some of those that are like a document of a number, none twice, each with its kind."""
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
