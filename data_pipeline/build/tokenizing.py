"""The second half of a build: documents of the parts become the tokens of a shard.

A shard depends on its documents and the tokenizer alone; it appears under its name when it is complete, and writing it
again writes the same bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from data_pipeline.annotate.sentences import split_sentences
from data_pipeline.build.parts import Part
from data_pipeline.build.selection import Place, Selection, shards_of
from data_pipeline.build.work import Work, key_of
from data_pipeline.deduplicate import read_part
from data_pipeline.document import Document, Dropped
from data_pipeline.recipe import Recipe
from megaptm.data.shards import ShardInfo, ShardWriter
from megaptm.tokenizers import Tokenizer, load

BATCH_CHARACTERS = 1_000_000
"""Text tokenized at once: enough to keep the tokenizer busy, little enough to hold."""


@dataclass(frozen=True)
class ShardPlace:
    """Some documents of a part."""

    stem: str
    rows: np.ndarray
    """int64, rising"""
    first: int
    """Number of the part's first document in the corpus; numbers of documents are the keys of samples."""


@dataclass(frozen=True)
class ShardJob:
    """What a worker needs to write a shard."""

    folder: str
    """Where to write it, under a name made of what is in it."""
    dtype: str
    places: tuple[ShardPlace, ...]
    tokenizer: str
    """Its folder."""
    fingerprint: str
    sentences: bool


@dataclass
class ShardResult:
    """A finished shard; `info` is None when none of its documents had a token."""

    folder: str
    info: ShardInfo | None
    lengths: np.ndarray
    """int64 [64]: documents of 2**i to 2**(i + 1) - 1 tokens."""
    dropped: Dropped
    languages: Counter[str]


def write_shards(
    recipe: Recipe, selection: Selection, tokenizer: Tokenizer, work: Work
) -> dict[str, list[ShardResult]]:
    """Tokenize and write the shards of every split: split -> results."""
    parts: Sequence[Part] = selection.parts  # type: ignore[assignment]
    firsts = np.cumsum([0, *(part.documents for part in parts)]).tolist()

    def shards() -> Iterator[tuple[str, list[Place]]]:
        for split in ("train", "validation"):
            for shard in shards_of(selection.places(split), parts, recipe.shard_bytes):
                yield split, shard

    splits = [split for split, _ in shards()]
    folder = work.folder / "shards"
    folder.mkdir(exist_ok=True)
    jobs = (
        ShardJob(
            folder=str(folder),
            dtype=stored_as(tokenizer),
            places=tuple(ShardPlace(parts[part].stem, rows, firsts[part]) for part, rows in shard),
            tokenizer=str(work.folder / "tokenizer"),
            fingerprint=tokenizer.fingerprint,
            sentences=needs_sentences(tokenizer),
        )
        for _, shard in shards()
    )
    results = work.run("tokenize and write", write_shard, jobs, total=len(splits))
    return {
        split: [result for result, its in zip(results, splits, strict=True) if its == split]
        for split in ("train", "validation")
    }


def stored_as(tokenizer: Tokenizer) -> str:
    return "uint16" if tokenizer.vocabulary <= 1 << 16 else "uint32"


def needs_sentences(tokenizer: Tokenizer) -> bool:
    """Only objectives on pairs of texts read where sentences begin, and they need a token that separates the two."""
    return tokenizer.special.cls is not None and tokenizer.special.sep is not None


def write_shard(job: ShardJob) -> ShardResult:
    """Tokenize and write one shard."""
    tokenizer = _tokenizer(job.tokenizer, job.fingerprint)
    documents = (document for place in job.places for document in read_part(place.stem, place.rows))
    keys = (place.first + row for place in job.places for row in place.rows.tolist())
    lengths, dropped, languages = np.zeros(64, dtype=np.int64), Dropped(), Counter[str]()
    fields = ("tokens", "sentences") if job.sentences else ("tokens",)
    writer = ShardWriter(Path(job.folder, f"{key_of(write_shard, job)}.tar"), dtype=job.dtype, fields=fields)
    try:
        for batch in _batches(documents):
            for document, (ids, starts) in zip(batch, _encode(tokenizer, batch, job.sentences), strict=True):
                key = next(keys)
                if not len(ids):
                    dropped.add("no tokens", document.source)
                    continue
                lengths[len(ids).bit_length() - 1] += 1
                if language := document.notes.get("language"):
                    languages[language] += 1
                size = len(document.text.encode())
                annotations = {} if starts is None else {"sentences": starts}
                writer.add(key, ids, annotations, meta={"source": document.source}, text_bytes=size)
        info = writer.close() if lengths.any() else None
    finally:
        writer.abort()  # nothing to do after close
    return ShardResult(job.folder, info, lengths, dropped, languages)


def _encode(
    tokenizer: Tokenizer, batch: list[Document], sentences: bool
) -> list[tuple[np.ndarray, np.ndarray]] | list[tuple[np.ndarray, None]]:
    if sentences:
        encoded = tokenizer.encode_batch_with_ends([document.text for document in batch])
        return [(ids, _starts(document, ends)) for document, (ids, ends) in zip(batch, encoded, strict=True)]
    return [(ids, None) for ids in tokenizer.encode_batch([document.text for document in batch])]


def _batches(documents: Iterator[Document]) -> Iterator[list[Document]]:
    batch: list[Document] = []
    characters = 0
    for document in documents:
        batch.append(document)
        characters += len(document.text)
        if characters >= BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


@lru_cache(maxsize=1)
def _tokenizer(folder: str, fingerprint: str) -> Tokenizer:
    """Loaded once in each worker; the fingerprint keeps a worker from using the one that stood here before."""
    tokenizer = load(folder)
    assert tokenizer.fingerprint == fingerprint
    return tokenizer


def _starts(document: Document, ends: np.ndarray) -> np.ndarray:
    begins = np.cumsum([0, *map(len, split_sentences(document.text, document.form)[:-1])])
    starts = np.unique(np.searchsorted(ends, begins, side="right"))
    return starts[starts < len(ends)]
