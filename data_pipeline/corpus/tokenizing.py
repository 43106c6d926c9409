"""Second half of a build: tokenize the documents of the parts into shards.

A shard depends only on its documents and the tokenizer. It is written atomically, and writing it again gives the same
bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from data_pipeline.annotate import Annotations, annotate_documents
from data_pipeline.annotate.annotate import Annotated
from data_pipeline.clean.step import document_batches
from data_pipeline.corpus.composition import Composition
from data_pipeline.corpus.parts import hash_files
from data_pipeline.corpus.sharding import SPLITS, CorpusDocuments, PartRows
from data_pipeline.corpus.unknown import UnknownWords, count_unknown_words
from data_pipeline.corpus.work import JobRunner, job_key
from data_pipeline.deduplicate import read_part
from data_pipeline.document import ATTACHED, Document, DropCounts, OnError, is_document_error
from data_pipeline.folders import SHARDS
from data_pipeline.packing import PackingSums, packing_sums
from data_pipeline.recipe import Recipe
from data_pipeline.sources.open import SOURCE_PATH_ERRORS
from megaptm.data.shards import ShardInfo, ShardWriter
from megaptm.errors import UserError
from megaptm.storage import is_remote, read_file
from megaptm.storage.retry import OutageError
from megaptm.tokenizers import Tokenizer, load_tokenizer

BATCH_CHARACTERS, BATCH_DOCUMENTS = 1_000_000, 10_000
"""Characters and documents per batch for the tokenizer: large enough to use it fully, small enough for memory."""


@dataclass(frozen=True)
class ShardJob:
    """Job that tokenizes and writes one shard of a corpus."""

    folder: str
    """Folder for the shard. The file name is derived from the job."""
    dtype: str
    part_rows: tuple[PartRows, ...]
    tokenizer: str
    """Folder of the tokenizer of a corpus build."""
    fingerprint: str
    annotations: Annotations
    attached: Mapping[str, str]
    """Suffixes of files that documents may name: `Format.attached`."""
    on_error: OnError
    inputs: tuple[tuple[str, str], ...]
    """Other files that annotation of the shard reads, as (path, sha256)."""


@dataclass
class ShardResult:
    """Tokenized shard of a corpus build. `info` is None if none of its documents had a token."""

    info: ShardInfo | None
    """Description of the shard's files, in the folder SHARDS."""
    lengths: list[int]
    """Number of documents with 2**i to 2**(i + 1) - 1 tokens, for i from 0 to 63."""
    dropped: DropCounts
    languages: Counter[str]
    annotation_counts: Counter[str]
    """Number of occurrences of each annotation in the shard."""
    unknown: dict[str, UnknownWords]
    """Counts of words and unknown words in the shard, by language; empty if the tokenizer knows every word."""
    composition: Composition
    packing: dict[int, PackingSums]
    """Sums for the share of padding and of cut documents, by sequence length."""
    group: int = 0
    """Group of the shard's documents (`corpus.groups`)."""


def write_shards(
    recipe: Recipe,
    documents: CorpusDocuments,
    tokenizer: Tokenizer,
    annotations: Annotations,
    work: JobRunner,
    *,
    attached: Mapping[str, str],
) -> dict[str, list[ShardResult]]:
    """Tokenize documents and write the shards of all splits of a corpus. Returns split -> results."""
    kinds = [(shard.split, shard.group) for shard in documents.shards(recipe.shard_bytes)]
    folder = work.folder / SHARDS
    folder.mkdir(exist_ok=True)
    inputs = hash_files(annotations.input_files())
    jobs = (
        ShardJob(
            folder=str(folder),
            dtype=dtype_of_ids(tokenizer),
            part_rows=shard.parts,
            tokenizer=str(work.folder / "tokenizer"),
            fingerprint=tokenizer.fingerprint,
            annotations=annotations,
            attached=attached,
            on_error=recipe.on_error,
            inputs=inputs,
        )
        for shard in documents.shards(recipe.shard_bytes)
    )
    results = work.run("tokenize and write", write_shard, jobs, total=len(kinds))
    return {
        split: [
            replace(result, group=group) for result, (its, group) in zip(results, kinds, strict=True) if its == split
        ]
        for split in SPLITS
    }


def dtype_of_ids(tokenizer: Tokenizer) -> str:
    return "uint16" if tokenizer.vocabulary <= 1 << 16 else "uint32"


def stored_fields(annotations: Annotations, attached: Mapping[str, str]) -> tuple[str, ...]:
    """Return the fields of metadata and annotations that documents of a corpus may have, as listed in the manifest."""
    return ("tokens", *annotations.fields, *dict.fromkeys(attached.values()))


def write_shard(job: ShardJob) -> ShardResult:
    """Tokenize documents and write one shard of a corpus."""
    tokenizer = _load_tokenizer_once(job.tokenizer, job.fingerprint)
    documents = (document for part in job.part_rows for document in _read_rows(part))
    keys = (part.first + row for part in job.part_rows for row in part.rows.tolist())
    lengths: list[int] = []
    dropped, languages = DropCounts(), Counter[str]()
    annotation_counts = Counter(dict.fromkeys(job.annotations.fields, 0))
    unknown: dict[str, UnknownWords] = {}
    composition = Composition()
    fields = stored_fields(job.annotations, job.attached)
    writer = ShardWriter(Path(job.folder, f"{job_key(write_shard, job)}.tar"), dtype=job.dtype, fields=fields)
    try:
        for batch in document_batches(documents, BATCH_CHARACTERS, BATCH_DOCUMENTS):
            for document, annotated in zip(batch, _annotate_each(batch, tokenizer, job.annotations), strict=True):
                key = next(keys)
                if isinstance(annotated, Exception):
                    dropped.count_failure("tokenizing", document, annotated, job.on_error)
                    continue
                ids, annotations = annotated
                blobs = _read_attached(document, job.attached) if job.attached else {}
                if blobs is None or (reason := _drop_reason(ids, annotations)):
                    dropped.add(f"no {ATTACHED}" if blobs is None else reason, document.source, document.text)
                    continue
                lengths.append(len(ids))
                language = document.notes.get("language")
                if isinstance(language, str) and language:  # a kept field may hold anything
                    languages[language] += 1
                count_unknown_words(document, ids, tokenizer, unknown)
                annotation_counts.update({name: len(items) for name, items in annotations.items()})
                size = len(document.text.encode())
                composition.add(document, len(ids), size)
                writer.add(key, ids, annotations, blobs, meta=_sample_metadata(document), text_bytes=size)
        info = writer.close() if lengths else None
    finally:
        writer.abort()  # no effect after close
    powers = np.bincount([length.bit_length() - 1 for length in lengths], minlength=64).tolist()
    packing = packing_sums(np.array(lengths, dtype=np.int64))
    return ShardResult(info, powers, dropped, languages, annotation_counts, unknown, composition, packing)


def _read_rows(part: PartRows) -> Iterator[Document]:
    """Yield the documents of a shard in a part, with the note `cluster_size` if it is stored."""
    documents = read_part(part.stem, part.rows)
    if part.cluster_sizes is None:
        return documents
    return (
        replace(document, notes={**document.notes, "cluster_size": size})
        for document, size in zip(documents, part.cluster_sizes.tolist(), strict=True)
    )


def _annotate_each(
    batch: Sequence[Document], tokenizer: Tokenizer, annotations: Annotations
) -> list[Annotated | Exception]:
    """Annotate each document, and return its annotations or the exception."""
    try:
        return [*annotate_documents(batch, tokenizer, annotations)]
    except Exception as error:
        if not is_document_error(error):
            raise
        if len(batch) == 1:
            return [error]
        return [annotated for document in batch for annotated in _annotate_each([document], tokenizer, annotations)]


def _sample_metadata(document: Document) -> dict[str, Any]:
    """Return the metadata of a sample of the corpus: source and notes, without `turns` and `parts`, which are
    annotations."""
    notes = {name: note for name, note in document.notes.items() if name not in ("turns", "parts")}
    return {"source": document.source, **notes}


def _drop_reason(ids: np.ndarray, annotations: Mapping[str, np.ndarray]) -> str:
    """Return the reason to drop a document, or an empty string."""
    if not len(ids):
        return "no tokens"
    # A single part remains if a step changed the full text, or if the other parts have no token.
    return "no parts" if len(annotations.get("parts", (0, 0))) < 2 else ""


def _read_attached(document: Document, suffixes: Mapping[str, str]) -> dict[str, bytes] | None:
    """Return the bytes of the files that a document names, by suffix. Empty without one; None if a file cannot be
    read."""
    part = document.notes.get(ATTACHED)
    if part is None:
        return {}
    if not isinstance(part, str):
        return None
    if not is_remote(part) and not Path(part).is_file():  # reading a pipe could block forever
        return None
    try:
        return {suffixes[Path(part).suffix.lower()]: read_file(part)}
    except OutageError:  # not counted: a later attempt may succeed
        raise
    except (KeyError, UserError):
        return None
    except OSError as error:
        if error.errno not in SOURCE_PATH_ERRORS:
            raise
        return None


@lru_cache(maxsize=1)
def _load_tokenizer_once(folder: str, fingerprint: str) -> Tokenizer:
    """Load the tokenizer of a corpus build once per worker. The fingerprint prevents use of an older tokenizer from the
    same folder."""
    tokenizer = load_tokenizer(folder)
    assert tokenizer.fingerprint == fingerprint
    return tokenizer
