"""Tiny random corpora for tests, written with the writer that real ones use."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from megaptm import storage
from megaptm.data.manifest import MANIFEST
from megaptm.data.shards import Manifest, ShardInfo, ShardWriter, read_manifest, write_manifest
from megaptm.data.table import table_name
from megaptm.objectives.vocabulary import SpecialTokens
from megaptm.storage import RetryPolicy

SPECIALS = 106
"""The first ids of `tiny_special` are special; `tiny_corpus` draws its tokens from the rest."""


def tiny_special(vocabulary: int = 1000) -> SpecialTokens:
    """Every special token an objective may ask for: ids 0 to 5, and 100 sentinels."""
    return SpecialTokens(
        size=vocabulary,
        pad=0,
        end=1,
        begin=2,
        cls=3,
        sep=4,
        mask=5,
        sentinels=tuple(range(SPECIALS - 1, 5, -1)),
        specials=frozenset(range(SPECIALS)),
    )


def tiny_corpus(
    folder: Path,
    *,
    documents: int = 40,
    vocabulary: int = 1000,
    lengths: tuple[int, int] = (5, 120),
    sentences: bool = True,
    words: bool = True,
    parts: bool = False,
    shards: int = 4,
    validation: int = 6,
    seed: int = 0,
    fingerprint: str = "tiny",
) -> Manifest:
    """Write a corpus of random documents into `folder`; `validation` documents come on top of `documents`.

    With `parts` each document is of two, its halves.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    fields = (
        "tokens",
        *(("sentences",) if sentences else ()),
        *(("words", "capitals") if words else ()),
        *(("parts",) if parts else ()),
    )
    splits: dict[str, list[ShardInfo]] = {"train": [], "validation": []}
    key = 0
    for split, count, files in (("train", documents, shards), ("validation", validation, 1)):
        for part, keys in enumerate(np.array_split(np.arange(count), files)):
            with ShardWriter(folder / f"{split}-{part:06d}.tar", "uint16", fields) as writer:
                for _ in keys:
                    tokens = rng.integers(SPECIALS, vocabulary, rng.integers(*lengths, endpoint=True))
                    # A sentence every ten tokens or so; the first always starts at 0.
                    starts = np.flatnonzero(rng.random(len(tokens)) < 0.1)
                    known = {"sentences": np.union1d([0], starts)} if sentences else {}
                    if words:
                        known["words"] = word_starts(tokens)
                        known["capitals"] = np.flatnonzero(tokens % 5 == 0)
                    if parts:
                        known["parts"] = np.array([0, len(tokens) // 2])
                    writer.add(key, tokens, known, meta={"source": split}, text_bytes=4 * len(tokens))
                    key += 1
            splits[split].append(writer.close())
    return write_manifest(
        folder,
        dtype="uint16",
        fields=fields,
        splits=splits,
        tokenizer={"kind": "byte-bpe", "vocabulary": vocabulary, "fingerprint": fingerprint},
        made_from={"seed": seed},
    )


def word_starts(tokens: np.ndarray) -> np.ndarray:
    """Two of three ids begin a word; the first token always does."""
    return np.union1d([0], np.flatnonzero(tokens % 3))


def publish(folder: Path, url: str, retry: RetryPolicy) -> None:
    """Copy a finished corpus to a URL as a build does: the manifest goes last."""
    manifest = read_manifest(folder)
    storage.remove_file(storage.join_path(url, MANIFEST), retry)
    for name in storage.list_files(storage.join_path(folder, "tokenizer")):
        storage.upload(folder / "tokenizer" / name, storage.join_path(url, "tokenizer", name), retry=retry)
    for split_name, split in manifest.splits.items():
        for info in split.shards:
            for name, sha256 in ((info.index_name, info.index_sha256), (info.name, info.sha256)):
                storage.upload(folder / name, storage.join_path(url, name), sha256=sha256, retry=retry)
        storage.upload(folder / table_name(split_name), storage.join_path(url, table_name(split_name)), retry=retry)
    storage.upload(folder / MANIFEST, storage.join_path(url, MANIFEST), retry=retry)
