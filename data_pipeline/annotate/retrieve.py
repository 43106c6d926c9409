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

from megaptm.data.retrieved import RetrievedFrom, RetrievedHeader, write_retrieved
from megaptm.data.shards import Corpus
from megaptm.errors import UserError
from megaptm.objectives.objective import RETRIEVED
from megaptm.objectives.region_files import SUFFIX, RefusedRegions, Regions, read_regions
from megaptm.storage import AtomicFile, is_remote, write_whole

ROWS = 128
"""Queries compared with all candidates at a time."""
SPLITS = ("train", "validation")
"""Splits are searched separately: training never retrieves from validation."""


@dataclass(frozen=True, kw_only=True)
class RetrievalOptions:
    """Options of retrieval."""

    top: int = 4
    """Maximum documents retrieved per query and kind."""
    threshold: float = 0.3
    """Minimum similarity, from 0 to 1."""
    block: int = 1 << 16
    """Consecutive documents that are compared with each other. Twice as many take twice as long per document."""
    columns: int = 1
    """Columns into which an image is divided. Objects match if they are in the same column of both images."""
    max_tokens: int = 64
    """Maximum tokens of a text that are compared and read."""
    detector: tuple[int, int] = (2048, 1601)
    """Number of a region's features, and number of classes."""


@dataclass
class FoundOfKind:
    """Retrieval statistics of one kind in a split."""

    documents: int = 0
    some: int = 0
    """Documents with at least one retrieved document."""
    retrieved: int = 0
    similarity: list[float] = field(default_factory=list)
    """Similarity of the nearest document, for each document that has one."""

    def add(self, rows: np.ndarray, nearest: np.ndarray) -> None:
        there = rows >= 0
        self.documents += len(rows)
        self.some += int(there.any(1).sum())
        self.retrieved += int(there.sum())
        self.similarity += nearest[there.any(1)].tolist()

    def __str__(self) -> str:
        if not self.some:
            return f"of {self.documents:,} documents none has any: lower --threshold"
        return (
            f"of {self.documents:,} documents {self.some / self.documents:.0%} have some, "
            f"{self.retrieved / self.some:.1f} each, of which the nearest is like it by {np.mean(self.similarity):.2f}"
        )


@dataclass(frozen=True)
class ComparedDocument:
    """Data of a document that are compared."""

    tokens: np.ndarray
    """int64 [n]"""
    image: bytes = b""
    """Hash of the region file; empty if there is none."""
    classes: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.float32))
    """float32 [D]: maximum probability of each class in each column of the image, without the background class."""


def retrieve(
    corpus: Corpus,
    out: Path,
    how: RetrievalOptions,
    *,
    images: Corpus | None = None,
    texts: Corpus | None = None,
    part: int = 0,
    parts: int = 1,
    tell: Callable[[str], None] = lambda said: None,
) -> dict[str, FoundOfKind] | int:
    """Write the file of retrieved documents; return `<split>.<kind>` -> statistics.

    If this is one part of several, the last part to finish writes the file, and the others return the number of missing
    blocks.

    `corpus` has pairs of texts and regions. Captions come from its other images, images from `images` (by default
    `corpus`), and texts from `texts` (by default none). Nothing is retrieved from another split. Finished blocks are
    stored in a folder beside the file until it is written, so that a stopped run can continue.
    """
    _check(corpus, texts)
    sources = {"images": images or corpus, "captions": corpus} | ({} if texts is None else {"texts": texts})
    for kind in ("images", "captions"):
        if SUFFIX not in sources[kind].manifest.fields:
            raise UserError(
                f"{sources[kind].name} has no regions of images: build it with `megaptm corpus images ... texts=true "
                "regions=true`."
            )
    splits = [split for split in SPLITS if (held := corpus.manifest.splits.get(split)) and held.samples]
    for source in sources.values():
        for split in splits:
            source.split(split)  # raises UserError if the split is empty
    for kind in ("images", "captions"):  # a wrong `detector` fails here, before anything is stored
        _ = [*_documents(sources[kind], splits[0], 0, 1, how, regions=True)]
    places = {kind: RetrievedFrom(one.manifest.id, _place(one)) for kind, one in sources.items()}
    header = RetrievedHeader(corpus.manifest.id, how.max_tokens, places)
    work = _Work.begin(out, header, how)
    blocks = {split: -(-corpus.split(split).samples // how.block) for split in splits}
    every = [(split, block) for split in splits for block in range(blocks[split])]
    for number, (split, block) in enumerate(every):
        if number % parts == part and work.read(split, block, sources) is None:
            tell(f"{split}: block {block + 1:,} of {blocks[split]:,}")
            work.keep(split, block, _block(corpus, sources, split, block, blocks[split], how))
    if missing := sum(work.read(*one, sources) is None for one in every):
        return missing
    report: dict[str, FoundOfKind] = {}
    tables: dict[str, list[np.ndarray]] = {}
    for split, block in every:
        if (done := work.read(split, block, sources)) is None:
            raise UserError(f"{work.folder} is gone or damaged since it was read: did another process end this, too?")
        for kind in (kind for kind in RETRIEVED if kind in sources):
            tables.setdefault(f"{split}.{kind}", []).append(done[kind])
            report.setdefault(f"{split}.{kind}", FoundOfKind()).add(done[kind], done[f"{kind} nearest"])
    write_retrieved({name: np.concatenate(rows) for name, rows in tables.items()}, header, out)
    shutil.rmtree(work.folder, ignore_errors=True)
    return report


@dataclass(frozen=True)
class _Work:
    """Folder of finished blocks."""

    folder: Path

    @classmethod
    def begin(cls, out: Path, header: RetrievedHeader, how: RetrievalOptions) -> Self:
        """Open the folder; raise `UserError` if it was created with other corpora or options."""
        folder = out.with_name(f"{out.name}.blocks")
        folder.mkdir(parents=True, exist_ok=True)
        told, path = json.dumps([asdict(header), asdict(how)], indent=1).encode(), folder / "made-from.json"
        if not path.is_file():
            write_whole(path, told)
        if path.read_bytes() != told:
            raise UserError(
                f"{folder} was begun with other corpora or options: give the same again, or remove that folder."
            )
        return cls(folder)

    def path(self, split: str, block: int) -> Path:
        return self.folder / f"{split}-{block:06d}.safetensors"

    def read(self, split: str, block: int, kinds: Iterable[str]) -> dict[str, np.ndarray] | None:
        """Return a block, or None if it is missing or damaged."""
        try:
            done: dict[str, np.ndarray] = load_file(self.path(split, block))
        except (OSError, SafetensorError):
            return None
        return done if all({kind, f"{kind} nearest"} <= {*done} for kind in kinds) else None

    def keep(self, split: str, block: int, found: Iterator[tuple[str, np.ndarray, np.ndarray]]) -> None:
        arrays: dict[str, np.ndarray] = {}
        for kind, rows, nearest in found:
            arrays |= {kind: rows, f"{kind} nearest": nearest}
        with AtomicFile(self.path(split, block)) as unfinished:
            save_file(arrays, unfinished)


def _check(corpus: Corpus, texts: Corpus | None) -> None:
    if texts is not None and texts.manifest.tokenizer["fingerprint"] != corpus.manifest.tokenizer["fingerprint"]:
        raise UserError(
            f"{texts.name} and {corpus.name} were made with different tokenizers: build one of them again with the "
            "tokenizer of the other."
        )


def _place(corpus: Corpus) -> str:
    # For remote shards, `folder` would be a local cache.
    return corpus.name if is_remote(corpus.name) else str(Path(corpus.name).resolve())


def _block(
    corpus: Corpus, sources: Mapping[str, Corpus], split: str, block: int, blocks: int, how: RetrievalOptions
) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yield for each kind int32 [N, top] for the documents of a block, and float [N] similarity of the nearest."""
    first, stop = _part(corpus, split, block, blocks)
    own = [*_documents(corpus, split, first, stop, how, regions=True)]
    for kind, source in sources.items():
        same = source.manifest.id == corpus.manifest.id
        # Candidates: all documents of another corpus if it is small, else its corresponding part, limited to a block.
        small = not same and source.split(split).samples <= how.block
        begin, end = _part(source, split, 0, 1) if small else _part(source, split, block, blocks)
        end = min(end, begin + how.block)
        among = own if same else [*_documents(source, split, begin, end, how, regions=kind == "images")]
        if not among:
            yield kind, np.full((len(own), how.top), -1, dtype=np.int32), np.zeros(len(own))
            continue
        scores = _like_images(own, among) if kind == "images" else _like_texts(own, among)
        rows, nearest = _nearest(scores, own, among, kind, how)
        yield kind, np.where(rows < 0, -1, rows + begin).astype(np.int32), nearest


def _part(corpus: Corpus, split: str, block: int, blocks: int) -> tuple[int, int]:
    """Return the first document of a block, and the end (exclusive)."""
    number = corpus.split(split).samples
    return block * number // blocks, (block + 1) * number // blocks


def _documents(
    corpus: Corpus, split: str, first: int, stop: int, how: RetrievalOptions, *, regions: bool
) -> Iterator[ComparedDocument]:
    """Yield documents `first` to `stop` of a split, indexed across its shards."""
    at = 0
    for info in corpus.split(split).shards:
        begin, end = max(first - at, 0), min(stop - at, info.samples)
        at += info.samples
        if begin >= end:
            continue
        shard = corpus.open_shard(info, "size")
        for document in range(begin, end):
            tokens = shard.tokens(document, 0, how.max_tokens).astype(np.int64)
            if not regions:
                yield ComparedDocument(tokens)
                continue
            content = shard.blob(SUFFIX, document)
            features, classes = how.detector
            try:
                found = read_regions(content, features=features, classes=classes)
            except RefusedRegions as refused:
                raise UserError(
                    f"the regions of document {document:,} of {shard.path} cannot be read ({refused}): say "
                    "--detector FEATURES CLASSES, or build the corpus again."
                ) from None
            yield ComparedDocument(tokens, hashlib.sha256(content).digest(), likely_in_columns(found, how.columns))


def likely_in_columns(found: Regions, columns: int) -> np.ndarray:
    """Return float32 [D]: maximum probability of each class in each column, by the centers of regions."""
    middle_R = (found.boxes[:, 0].astype(np.float32) + found.boxes[:, 2]) / 2
    column_R = np.clip(middle_R * columns, 0, columns - 1).astype(np.int64)
    likely_LC = np.zeros((columns, found.likely.shape[1] - 1), dtype=np.float32)
    np.maximum.at(likely_LC, column_R, found.likely[:, 1:].astype(np.float32))
    return likely_LC.reshape(-1)


Scores = Iterator[np.ndarray]
"""float32 [rows, M] for consecutive `ROWS` queries: cosine similarity with each candidate."""


def _like_images(own: list[ComparedDocument], among: list[ComparedDocument]) -> Scores:
    """Compare images by the classes detected in both, weighted by inverse document frequency."""
    likely_MD = np.stack([one.classes for one in among])
    rare_D = np.log((1 + len(among)) / (1 + likely_MD.sum(0)))
    theirs_MD = _unit(likely_MD * rare_D)
    for at in range(0, len(own), ROWS):
        mine_ND = _unit(np.stack([one.classes for one in own[at : at + ROWS]]) * rare_D)
        yield mine_ND @ theirs_MD.T


def _unit(rows: np.ndarray) -> np.ndarray:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    unit: np.ndarray = rows / np.maximum(lengths, 1e-12)
    return unit


def _like_texts(own: list[ComparedDocument], among: list[ComparedDocument]) -> Scores:
    """Compare texts by their common tokens (TF-IDF)."""
    known = among if own is among else [*own, *among]
    in_texts = np.bincount(np.concatenate([np.unique(one.tokens) for one in known]))
    rare = np.log((1 + len(known)) / (1 + in_texts)).astype(np.float32)
    counted = [np.unique(one.tokens, return_counts=True) for one in among]
    texts = np.repeat(np.arange(len(among)), [len(ids) for ids, _ in counted])
    ids, counts = (np.concatenate(column) for column in zip(*counted, strict=True))
    weights = counts * rare[ids]
    lengths = np.sqrt(np.bincount(texts, weights**2, len(among)))
    weights /= np.maximum(lengths, 1e-12)[texts]
    # Inverted index by token: only candidates that share a token are visited.
    order = np.argsort(ids, kind="stable")
    texts, weights = texts[order], weights[order].astype(np.float32)
    edges = np.concatenate(([0], np.cumsum(np.bincount(ids, minlength=len(rare)))))
    for at in range(0, len(own), ROWS):
        found = np.zeros((len(own[at : at + ROWS]), len(among)), dtype=np.float32)
        for row, one in zip(found, own[at : at + ROWS], strict=True):
            mine, number = np.unique(one.tokens, return_counts=True)
            of_mine = number * rare[mine]
            of_mine /= max(float(np.linalg.norm(of_mine)), 1e-12)
            for token, weight in zip(mine.tolist(), of_mine.tolist(), strict=True):
                those = slice(edges[token], edges[token + 1])
                row[texts[those]] += weight * weights[those]
        yield found


def _nearest(
    scores: Scores, own: list[ComparedDocument], among: list[ComparedDocument], kind: str, how: RetrievalOptions
) -> tuple[np.ndarray, np.ndarray]:
    """Return int64 [N, top]: candidates by descending similarity, padded with -1, and the similarity of the first.

    Excludes identical documents: the same image, a text with the same tokens, another caption of the same image.
    """
    rows, nearest = np.full((len(own), how.top), -1, dtype=np.int64), np.zeros(len(own))
    images, texts = _numbers_by(among, lambda one: one.image), _numbers_by(among, lambda one: one.tokens.tobytes())
    number = 0
    for block in scores:
        for like in block:
            one = own[number]
            like[[] if kind == "texts" else images.get(one.image, [])] = -1
            like[[] if kind == "images" else texts.get(one.tokens.tobytes(), [])] = -1
            # Ties are in the order of the corpus.
            best = np.lexsort((near := np.flatnonzero(like >= how.threshold), -like[near]))[: how.top]
            chosen = near[best]
            rows[number, : len(chosen)] = chosen
            nearest[number] = like[chosen[0]] if len(chosen) else 0
            number += 1
    return rows, nearest


def _numbers_by(documents: list[ComparedDocument], key: Callable[[ComparedDocument], bytes]) -> dict[bytes, list[int]]:
    found: dict[bytes, list[int]] = {}
    for number, one in enumerate(documents):
        if name := key(one):
            found.setdefault(name, []).append(number)
    return found
