"""Small random corpora for tests, written with the product's shard writer."""

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
"""Number of special tokens of `tiny_special`, the smallest ids; `tiny_corpus` samples from the other ids."""


def tiny_special(vocabulary: int = 1000) -> SpecialTokens:
    """Return all special tokens that an objective may need: ids 0 to 5, and 100 sentinels."""
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
    groups: dict | None = None,
) -> Manifest:
    """Write a corpus of random documents: `documents` in the training split, and `validation` in the other.

    With `parts`, the two halves of each document are its parts.
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
                    # Sentences of ten tokens on average. The first starts at 0.
                    starts = np.flatnonzero(rng.random(len(tokens)) < 0.1)
                    annotations = {"sentences": np.union1d([0], starts)} if sentences else {}
                    if words:
                        annotations["words"] = word_starts(tokens)
                        annotations["capitals"] = np.flatnonzero(tokens % 5 == 0)
                    if parts:
                        annotations["parts"] = np.array([0, len(tokens) // 2])
                    writer.add(key, tokens, annotations, meta={"source": split}, text_bytes=4 * len(tokens))
                    key += 1
            splits[split].append(writer.close())
    return write_manifest(
        folder,
        dtype="uint16",
        fields=fields,
        splits=splits,
        tokenizer={"kind": "byte-bpe", "vocabulary": vocabulary, "fingerprint": fingerprint},
        made_from={"seed": seed, **({"groups": groups} if groups else {})},
    )


def word_starts(tokens: np.ndarray) -> np.ndarray:
    """Return the tokens that start a word: the first, and two thirds of the ids."""
    return np.union1d([0], np.flatnonzero(tokens % 3))


def equal_samples(first: dict[str, np.ndarray], second: dict[str, np.ndarray]) -> bool:
    return first.keys() == second.keys() and all(np.array_equal(first[name], second[name]) for name in first)


def publish(folder: Path, url: str, retry: RetryPolicy) -> None:
    """Upload a finished corpus as a build does, the manifest last."""
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
