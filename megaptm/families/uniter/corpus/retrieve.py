"""Retrieve similar documents: images by their detected objects, texts by their words (UNIMO, arXiv:2012.15409, section
2.1)."""

# N queries, M candidates, R regions, L columns, C classes, D = L * C

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from data_pipeline.commands import output_file
from megaptm.console import Console
from megaptm.data.shards import Corpus
from megaptm.errors import UserError
from megaptm.families.uniter.objectives import RETRIEVED
from megaptm.families.uniter.region_files import SUFFIX, RegionError, Regions, read_regions
from megaptm.families.uniter.retrieved import RetrievedCorpus, RetrievedHeader, write_retrieved
from megaptm.storage import AtomicFile, is_remote, write_atomically

QUERIES_AT_ONCE = 128
"""Number of queries of the retrieval compared with all candidates at a time."""
SPLITS = ("train", "validation")
"""Splits, which are searched separately: training never retrieves from validation."""


@dataclass(frozen=True, kw_only=True)
class RetrievalOptions:
    """Options of the retrieval of similar documents."""

    top: int = 4
    """Maximum number of documents retrieved per query and kind."""
    threshold: float = 0.3
    """Minimum similarity of retrieved documents, from 0 to 1."""
    block: int = 1 << 16
    """Number of consecutive documents that are compared with each other. Twice as many take twice as long per
    document."""
    columns: int = 1
    """Number of columns into which an image is divided. Objects match if they are in the same column of both images."""
    max_tokens: int = 64
    """Maximum number of tokens of a text that are compared and read."""
    detector: tuple[int, int] = (2048, 1601)
    """Sizes of the detector: number of a region's features, and number of classes."""


@dataclass
class MatchStatistics:
    """Statistics of the retrieval of one kind in a split."""

    documents: int = 0
    with_matches: int = 0
    """Number of documents with at least one retrieved document."""
    retrieved: int = 0
    similarity: list[float] = field(default_factory=list)
    """Similarity of the nearest document, for each document that has one."""

    def add(self, rows: np.ndarray, nearest: np.ndarray) -> None:
        there = rows >= 0
        self.documents += len(rows)
        self.with_matches += int(there.any(1).sum())
        self.retrieved += int(there.sum())
        self.similarity += nearest[there.any(1)].tolist()

    def __str__(self) -> str:
        if not self.with_matches:
            return f"none of {self.documents:,} documents has a match: lower --threshold"
        return (
            f"{self.with_matches / self.documents:.0%} of {self.documents:,} documents have matches, "
            f"{self.retrieved / self.with_matches:.1f} on average; mean similarity of the nearest "
            f"{np.mean(self.similarity):.2f}"
        )


@dataclass(frozen=True)
class ComparedDocument:
    """Data of a document that the retrieval compares."""

    tokens: np.ndarray
    """Tokens of a document's text that the retrieval compares, int64 [n]."""
    image: bytes = b""
    """Hash of the image's region file; empty if there is none."""
    classes: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.float32))
    """Maximum probability of each class in each column of the image, without the background class: float32 [D]."""


def retrieve(
    corpus: Corpus,
    out: Path,
    options: RetrievalOptions,
    *,
    images: Corpus | None = None,
    texts: Corpus | None = None,
    part: int = 0,
    parts: int = 1,
    tell: Callable[[str], None] = lambda message: None,
) -> dict[str, MatchStatistics] | int:
    """Retrieve similar documents for a corpus: write the file of retrieved documents; return `<split>.<kind>` ->
    statistics.

    If this is one part of several, the last part to finish writes the file, and the others return the number of missing
    blocks.

    `corpus` has pairs of texts and regions. Captions come from its other images, images from `images` (by default
    `corpus`), and texts from `texts` (by default none). Nothing is retrieved from another split. Finished blocks are
    stored in a folder beside the file until it is written, so that a stopped run can continue.
    """
    _require_same_tokenizer(corpus, texts)
    sources = {"images": images or corpus, "captions": corpus} | ({} if texts is None else {"texts": texts})
    for kind in ("images", "captions"):
        if SUFFIX not in sources[kind].manifest.fields:
            raise UserError(
                f"{sources[kind].name} has no image regions: build it with `megaptm corpus images ... texts=true "
                "regions=true`."
            )
    splits = [split for split in SPLITS if (held := corpus.manifest.splits.get(split)) and held.samples]
    for source in sources.values():
        for split in splits:
            source.split(split)  # raises UserError if the split is empty
    for kind in ("images", "captions"):  # a wrong `detector` fails here, before anything is stored
        _ = [*_read_documents(sources[kind], splits[0], 0, 1, options, regions=True)]
    source_headers = {
        kind: RetrievedCorpus(document.manifest.id, _corpus_location(document)) for kind, document in sources.items()
    }
    header = RetrievedHeader(corpus.manifest.id, options.max_tokens, source_headers)
    work = _BlockFolder.begin(out, header, options)
    blocks = {split: -(-corpus.split(split).samples // options.block) for split in splits}
    every = [(split, block) for split in splits for block in range(blocks[split])]
    for number, (split, block) in enumerate(every):
        if number % parts == part and work.read(split, block, sources) is None:
            tell(f"{split}: block {block + 1:,} of {blocks[split]:,}")
            work.keep(split, block, _retrieve_block(corpus, sources, split, block, blocks[split], options))
    if missing := sum(work.read(*document, sources) is None for document in every):
        return missing
    report: dict[str, MatchStatistics] = {}
    tables: dict[str, list[np.ndarray]] = {}
    for split, block in every:
        if (done := work.read(split, block, sources)) is None:
            raise UserError(
                f"{work.folder} was removed or damaged while in use: run the command again, in one process per part."
            )
        for kind in (kind for kind in RETRIEVED if kind in sources):
            tables.setdefault(f"{split}.{kind}", []).append(done[kind])
            report.setdefault(f"{split}.{kind}", MatchStatistics()).add(done[kind], done[f"{kind} nearest"])
    write_retrieved({name: np.concatenate(rows) for name, rows in tables.items()}, header, out)
    shutil.rmtree(work.folder, ignore_errors=True)
    return report


@dataclass(frozen=True)
class _BlockFolder:
    """Folder of finished blocks of the retrieval."""

    folder: Path

    @classmethod
    def begin(cls, out: Path, header: RetrievedHeader, options: RetrievalOptions) -> Self:
        """Open the folder of retrieved blocks; raise `UserError` if it was created with other corpora or options."""
        folder = out.with_name(f"{out.name}.blocks")
        folder.mkdir(parents=True, exist_ok=True)
        content, path = json.dumps([asdict(header), asdict(options)], indent=1).encode(), folder / "made-from.json"
        if not path.is_file():
            write_atomically(path, content)
        if path.read_bytes() != content:
            raise UserError(
                f"{folder} was created with other corpora or options: use the same ones, or remove the folder."
            )
        return cls(folder)

    def path(self, split: str, block: int) -> Path:
        return self.folder / f"{split}-{block:06d}.safetensors"

    def read(self, split: str, block: int, kinds: Iterable[str]) -> dict[str, np.ndarray] | None:
        """Return a finished block of retrieved documents, or None if it is missing or damaged."""
        try:
            done: dict[str, np.ndarray] = load_file(self.path(split, block))
        except (OSError, SafetensorError):
            return None
        return done if all({kind, f"{kind} nearest"} <= {*done} for kind in kinds) else None

    def keep(self, split: str, block: int, retrieved: Iterator[tuple[str, np.ndarray, np.ndarray]]) -> None:
        arrays: dict[str, np.ndarray] = {}
        for kind, rows, nearest in retrieved:
            arrays |= {kind: rows, f"{kind} nearest": nearest}
        with AtomicFile(self.path(split, block)) as unfinished:
            save_file(arrays, unfinished)


def _require_same_tokenizer(corpus: Corpus, texts: Corpus | None) -> None:
    if texts is not None and texts.manifest.tokenizer["fingerprint"] != corpus.manifest.tokenizer["fingerprint"]:
        raise UserError(
            f"{texts.name} and {corpus.name} were made with different tokenizers: build one of them again with the "
            "tokenizer of the other."
        )


def _corpus_location(corpus: Corpus) -> str:
    # For remote shards, `folder` would be a local cache.
    return corpus.name if is_remote(corpus.name) else str(Path(corpus.name).resolve())


def _retrieve_block(
    corpus: Corpus, sources: Mapping[str, Corpus], split: str, block: int, blocks: int, options: RetrievalOptions
) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Retrieve documents for those of a block: yield for each kind int32 [N, top], and float [N] similarity of the
    nearest."""
    first, stop = _block_range(corpus, split, block, blocks)
    queries = [*_read_documents(corpus, split, first, stop, options, regions=True)]
    for kind, source in sources.items():
        same = source.manifest.id == corpus.manifest.id
        # Candidates: all documents of another corpus if it is small, else its corresponding part, limited to a block.
        small = not same and source.split(split).samples <= options.block
        begin, end = _block_range(source, split, 0, 1) if small else _block_range(source, split, block, blocks)
        end = min(end, begin + options.block)
        candidates = (
            queries if same else [*_read_documents(source, split, begin, end, options, regions=kind == "images")]
        )
        if not candidates:
            yield kind, np.full((len(queries), options.top), -1, dtype=np.int32), np.zeros(len(queries))
            continue
        scores = _score_images(queries, candidates) if kind == "images" else _score_texts(queries, candidates)
        rows, nearest = _find_nearest(scores, queries, candidates, kind, options)
        yield kind, np.where(rows < 0, -1, rows + begin).astype(np.int32), nearest


def _block_range(corpus: Corpus, split: str, block: int, blocks: int) -> tuple[int, int]:
    """Return the first document of a block of the retrieval, and the end (exclusive)."""
    number = corpus.split(split).samples
    return block * number // blocks, (block + 1) * number // blocks


def _read_documents(
    corpus: Corpus, split: str, first: int, stop: int, options: RetrievalOptions, *, regions: bool
) -> Iterator[ComparedDocument]:
    """Yield documents `first` to `stop` of a split to compare, indexed across its shards."""
    at = 0
    for info in corpus.split(split).shards:
        begin, end = max(first - at, 0), min(stop - at, info.samples)
        at += info.samples
        if begin >= end:
            continue
        shard = corpus.open_shard(info, "size")
        for document in range(begin, end):
            tokens = shard.tokens(document, 0, options.max_tokens).astype(np.int64)
            if not regions:
                yield ComparedDocument(tokens)
                continue
            content = shard.blob(SUFFIX, document)
            features, classes = options.detector
            try:
                retrieved = read_regions(content, features=features, classes=classes)
            except RegionError as refused:
                raise UserError(
                    f"the regions of document {document:,} of {shard.path} cannot be read ({refused}): set "
                    "--detector FEATURES CLASSES, or build the corpus again."
                ) from None
            yield ComparedDocument(
                tokens, hashlib.sha256(content).digest(), max_class_probabilities(retrieved, options.columns)
            )


def max_class_probabilities(retrieved: Regions, columns: int) -> np.ndarray:
    """Divide an image into `columns` vertical strips, and return the maximum probability of each class among the
    regions with their center in a strip: float32 [D], strip by strip."""
    middle_R = (retrieved.boxes[:, 0].astype(np.float32) + retrieved.boxes[:, 2]) / 2
    column_R = np.clip(middle_R * columns, 0, columns - 1).astype(np.int64)
    probabilities_LC = np.zeros((columns, retrieved.probabilities.shape[1] - 1), dtype=np.float32)
    np.maximum.at(probabilities_LC, column_R, retrieved.probabilities[:, 1:].astype(np.float32))
    return probabilities_LC.reshape(-1)


Scores = Iterator[np.ndarray]
"""Type of similarities in the retrieval: float32 [rows, M] for consecutive `ROWS` queries, cosine similarity with each
candidate."""


def _score_images(queries: list[ComparedDocument], candidates: list[ComparedDocument]) -> Scores:
    """Compare images of the retrieval by the classes detected in both, weighted by inverse document frequency."""
    probabilities_MD = np.stack([document.classes for document in candidates])
    rare_D = np.log((1 + len(candidates)) / (1 + probabilities_MD.sum(0)))
    candidates_MD = _unit_vectors(probabilities_MD * rare_D)
    for at in range(0, len(queries), QUERIES_AT_ONCE):
        queries_ND = _unit_vectors(
            np.stack([document.classes for document in queries[at : at + QUERIES_AT_ONCE]]) * rare_D
        )
        yield queries_ND @ candidates_MD.T


def _unit_vectors(rows: np.ndarray) -> np.ndarray:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    unit: np.ndarray = rows / np.maximum(lengths, 1e-12)
    return unit


def _score_texts(queries: list[ComparedDocument], candidates: list[ComparedDocument]) -> Scores:
    """Compare texts of the retrieval by their common tokens (TF-IDF)."""
    known = candidates if queries is candidates else [*queries, *candidates]
    in_texts = np.bincount(np.concatenate([np.unique(document.tokens) for document in known]))
    rare = np.log((1 + len(known)) / (1 + in_texts)).astype(np.float32)
    counted = [np.unique(document.tokens, return_counts=True) for document in candidates]
    texts = np.repeat(np.arange(len(candidates)), [len(ids) for ids, _ in counted])
    ids, counts = (np.concatenate(column) for column in zip(*counted, strict=True))
    weights = counts * rare[ids]
    lengths = np.sqrt(np.bincount(texts, weights**2, len(candidates)))
    weights /= np.maximum(lengths, 1e-12)[texts]
    # Inverted index by token: only candidates that share a token are visited.
    order = np.argsort(ids, kind="stable")
    texts, weights = texts[order], weights[order].astype(np.float32)
    edges = np.concatenate(([0], np.cumsum(np.bincount(ids, minlength=len(rare)))))
    for at in range(0, len(queries), QUERIES_AT_ONCE):
        retrieved = np.zeros((len(queries[at : at + QUERIES_AT_ONCE]), len(candidates)), dtype=np.float32)
        for row, document in zip(retrieved, queries[at : at + QUERIES_AT_ONCE], strict=True):
            query_ids, number = np.unique(document.tokens, return_counts=True)
            query_weights = number * rare[query_ids]
            query_weights /= max(float(np.linalg.norm(query_weights)), 1e-12)
            for token, weight in zip(query_ids.tolist(), query_weights.tolist(), strict=True):
                entries = slice(edges[token], edges[token + 1])
                row[texts[entries]] += weight * weights[entries]
        yield retrieved


def _find_nearest(
    scores: Scores,
    queries: list[ComparedDocument],
    candidates: list[ComparedDocument],
    kind: str,
    options: RetrievalOptions,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the nearest candidates of each query by descending similarity, int64 [N, top], padded with -1, and the
    similarity of the first.

    Excludes identical documents: the same image, a text with the same tokens, another caption of the same image.
    """
    rows, nearest = np.full((len(queries), options.top), -1, dtype=np.int64), np.zeros(len(queries))
    images, texts = (
        _indexes_by(candidates, lambda document: document.image),
        _indexes_by(candidates, lambda document: document.tokens.tobytes()),
    )
    number = 0
    for block in scores:
        for like in block:
            document = queries[number]
            like[[] if kind == "texts" else images.get(document.image, [])] = -1
            like[[] if kind == "images" else texts.get(document.tokens.tobytes(), [])] = -1
            # Ties are in the order of the corpus.
            best = np.lexsort((near := np.flatnonzero(like >= options.threshold), -like[near]))[: options.top]
            chosen = near[best]
            rows[number, : len(chosen)] = chosen
            nearest[number] = like[chosen[0]] if len(chosen) else 0
            number += 1
    return rows, nearest


def _indexes_by(documents: list[ComparedDocument], key: Callable[[ComparedDocument], bytes]) -> dict[bytes, list[int]]:
    retrieved: dict[bytes, list[int]] = {}
    for number, document in enumerate(documents):
        if name := key(document):
            retrieved.setdefault(name, []).append(number)
    return retrieved


def retrieve_documents(
    corpus: str,
    out: str,
    options: RetrievalOptions,
    *,
    images: str | None = None,
    texts: str | None = None,
    part: int = 0,
    parts: int = 1,
    tell: Callable[[str], None] = lambda recipe_settings: None,
    console: Console | None = None,
) -> None:
    """Write the file of similar documents, which an objective reads as `retrieved`, and print statistics."""
    path = output_file(out)
    own, *other_corpora = (None if location is None else Corpus.open(location) for location in (corpus, images, texts))
    assert own is not None
    console = console or Console()
    report = retrieve(
        own, path, options, images=other_corpora[0], texts=other_corpora[1], part=part, parts=parts, tell=tell
    )
    if isinstance(report, int):
        console.print(f"{out}: {report:,} blocks of other parts are missing.", highlight=False)
        return
    for name, counts in report.items():
        console.print(f"{name.replace('.', ', ')}: {counts}", highlight=False, soft_wrap=True)
    console.print(out, highlight=False)
