"""Retrieved documents that are similar to those of a corpus (UNIMO, arXiv:2012.15409, section 2.1): the file that lists
them, and its reader.

The safetensors file is written by `megaptm corpus retrieve`. For each split and kind, `<split>.<kind>` is int32
[documents of the split, maximum]: indexes of similar documents in the same split of a corpus, the most similar first,
padded with -1. Documents are indexed across all shards of a split. The metadata contain the corpora and the maximum
length of texts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
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
from megaptm.families.uniter.objectives import RETRIEVED
from megaptm.objectives.named_file import read_named_file
from megaptm.objectives.objective import DocumentSlice, Neighbors
from megaptm.storage import AtomicFile, RemoteFileCache

METADATA = "retrieved"
REMEDY = "make it with `megaptm corpus retrieve`"
MAX_OPEN = 64
"""Maximum number of shards that are open for retrieved documents, which are scattered over a split."""


@dataclass(frozen=True)
class RetrievedCorpus:
    """Corpus from which documents were retrieved."""

    id: str
    """Id of the corpus of retrieved documents, from its manifest."""
    location: str
    """Folder or URL of the corpus."""


@dataclass(frozen=True)
class RetrievedHeader:
    """Metadata of a file of retrieved documents."""

    corpus: str
    """Id of the corpus whose documents were the queries."""
    max_text_length: int
    """Maximum number of tokens of a text. The retrieval compared only these tokens, and training reads only these."""
    sources: Mapping[str, RetrievedCorpus]
    """Corpus of the retrieved documents of each kind."""


class RetrievedTable:
    """File of similar documents. Its rows are read on demand."""

    def __init__(self, path: Path) -> None:
        """Open a file of retrieved documents. Raises `ValueError`, `OSError` or `safetensors.SafetensorError` if it is
        invalid."""
        self._file: Any = safe_open(path, framework="numpy").__enter__()
        self.header = _parse_header((self._file.metadata() or {}).get(METADATA, ""))
        self._slices = {name: self._file.get_slice(name) for name in self._file.keys()}  # noqa: SIM118  # a file, which is no mapping
        for name, rows in self._slices.items():
            if rows.get_dtype() != "I32" or len(rows.get_shape()) != 2:
                raise ValueError(f"{name} is not a table of documents")

    def num_documents(self, split: str, kind: str) -> int | None:
        """Return the number of documents of a split in the table of a kind; None without such a table."""
        rows = self._slices.get(f"{split}.{kind}")
        return None if rows is None else int(rows.get_shape()[0])

    def similar_documents(self, split: str, kind: str, document: int) -> np.ndarray:
        """Return the documents that were retrieved for `document`, int32 [n]."""
        [row] = self._slices[f"{split}.{kind}"][document : document + 1]
        return row[row >= 0]


def _parse_header(text: str) -> RetrievedHeader:
    content: Any = json.loads(text) if text else None
    try:
        sources = {
            kind: RetrievedCorpus(str(source["id"]), str(source["location"]))
            for kind, source in content["sources"].items()
        }
        header = RetrievedHeader(str(content["corpus"]), int(content["max_text_length"]), sources)
    except (TypeError, KeyError, AttributeError, ValueError, OverflowError):  # OverflowError for infinity
        raise ValueError("its metadata have no corpora") from None
    if not {*sources} <= {*RETRIEVED} or header.max_text_length < 1:
        raise ValueError("its metadata have an unknown kind of neighbor or an invalid text length")
    return header


@lru_cache(maxsize=4)
def load_retrieved(name: str) -> RetrievedTable:
    """Load the table of retrieved documents from a file; cached."""
    return read_named_file("retrieved", name, RetrievedTable, kind="file of retrieved documents", remedy=REMEDY)


def write_retrieved(tables: Mapping[str, np.ndarray], header: RetrievedHeader, path: Path) -> None:
    """Write a file of retrieved documents, tables `<split>.<kind>`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with AtomicFile(path) as unfinished:
        unfinished.write_bytes(save(dict(tables), {METADATA: json.dumps(asdict(header))}))


class RetrievedDocuments:
    """Retrieved documents for a split of a corpus, as a task requests them."""

    def __init__(
        self,
        neighbors: Neighbors,
        corpus: Corpus,
        split: str,
        *,
        blobs: tuple[str, ...],
        verify: Verify,
        cache: RemoteFileCache | None,
        opened: Mapping[str, Corpus],
    ) -> None:
        """Open the tables of retrieved documents. `opened`: id -> corpus that is already open. Other corpora are opened
        from the location in the file."""
        self.file, self.split, self.blobs = neighbors.file, split, blobs
        header = self.table.header
        if header.corpus != corpus.manifest.id:
            raise UserError(
                f"retrieved: {self.file} was made for another corpus than {corpus.name}, or the corpus was built "
                f"again: make it with `megaptm corpus retrieve {corpus.name} --out FILE`, or set the task's `corpora`."
            )
        self.numbers = {
            kind: number for kind, number in neighbors.max_numbers.items() if number and kind in header.sources
        }
        """Number of retrieved documents of each kind to sample."""
        self.shards: dict[str, OpenShards] = {}
        self.before: dict[str, np.ndarray] = {}
        """Number of documents before each shard of the retrieved corpus, int64 [shards + 1], by kind."""
        for kind in self.numbers:
            source = header.sources[kind]
            source_corpus = opened.get(source.id) or replace(
                _open_corpus(source, self.file, kind, cache), share=corpus.share
            )
            self.shards[kind] = OpenShards(source_corpus, split, verify, max_open=MAX_OPEN)
            self.before[kind] = np.concatenate(([0], np.cumsum(self.shards[kind].table_column("samples"))))
            if self.table.num_documents(split, kind) != corpus.split(split).samples:
                raise self._damaged_error(f"its number of documents differs from the split `{split}`")

    @property
    def table(self) -> RetrievedTable:
        """Return the table of retrieved documents. Each process opens its own."""
        return load_retrieved(self.file)

    def sample(self, document: int, rng: np.random.Generator) -> Iterator[DocumentSlice]:
        """Sample documents that were retrieved as similar to `document`, without repetition, each with its kind."""
        for kind, number in self.numbers.items():
            similar = self.table.similar_documents(self.split, kind, document)
            for index in rng.permutation(similar)[:number].tolist():
                yield self._read_document(kind, index)

    def _read_document(self, kind: str, index: int) -> DocumentSlice:
        before = self.before[kind]
        if index >= before[-1]:
            raise self._damaged_error(f"it has document index {index:,}, but there are {int(before[-1]):,} documents")
        shard_index = int(np.searchsorted(before, index, side="right")) - 1
        shard, document = self.shards[kind].get(shard_index), index - int(before[shard_index])
        if kind != "images":
            tokens = shard.tokens(document, 0, self.table.header.max_text_length)
            return DocumentSlice(tokens, slots=0, retrieved=kind)
        files = {name: content for name in self.blobs if (content := shard.blob(name, document))}
        location = f"document {document:,} of {shard.path.name}"
        return DocumentSlice(shard.tokens(document, 0, 0), slots=0, blobs=files, location=location, retrieved=kind)

    def _damaged_error(self, reason: str) -> UserError:
        return UserError(f"retrieved: {self.file} is damaged ({reason}): {REMEDY}.")


def _open_corpus(source: RetrievedCorpus, file: str, kind: str, cache: RemoteFileCache | None) -> Corpus:
    try:
        corpus = Corpus.open(source.location, cache)
    except NoCorpusError:
        raise UserError(
            f"retrieved: {file} has {kind} of {source.location}, where there is no corpus: move it back (a symbolic "
            f"link is enough), or {REMEDY} again."
        ) from None
    if corpus.manifest.id != source.id:
        raise UserError(
            f"retrieved: {file} was made from {kind} of {corpus.name}, and that corpus has been built again since: "
            f"{REMEDY} again, or restore the earlier corpus."
        )
    return corpus
