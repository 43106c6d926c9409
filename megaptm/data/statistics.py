"""What a corpus says of itself before anything is trained: the baselines a model has to beat."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from megaptm.data.shards import Corpus, Verify

COUNTED_AT_ONCE = 1 << 20
"""Tokens."""


def texts_of(
    corpus: Corpus, split: str, *, part: int = 0, parts: int = 1, verify: Verify = "size"
) -> Iterator[list[np.ndarray]]:
    """Documents of every `parts`-th shard of a split, from shard `part` on, some at a time; each is read once: a
    gigabyte of a disk's takes a second or two. A `UserError` names a shard that is damaged, as far as `verify` looks,
    or has an id that its tokenizer has not: who counts looks these up in tables."""
    for number, info in enumerate(corpus.split(split).shards):
        if number % parts != part:
            continue
        shard = corpus.open_shard(info, verify)
        shard.vocabulary = corpus.manifest.tokenizer["vocabulary"]
        texts: list[np.ndarray] = []
        waiting = 0
        for document in range(len(shard)):
            texts.append(shard.tokens(document))
            waiting += len(texts[-1])
            if waiting >= COUNTED_AT_ONCE or document == len(shard) - 1:
                yield texts
                texts, waiting = [], 0


def token_counts(
    corpus: Corpus, split: str, vocabulary: int, *, part: int = 0, parts: int = 1, verify: Verify = "size"
) -> np.ndarray:
    """int64 [vocabulary]: how often each id comes in every `parts`-th shard of a split, from shard `part` on; a
    `UserError` as of `texts_of`."""
    counts = np.zeros(vocabulary, np.int64)
    for texts in texts_of(corpus, split, part=part, parts=parts, verify=verify):
        counts += np.bincount(np.concatenate(texts), minlength=vocabulary)
    return counts


def unigram_loss(counts: np.ndarray, model: np.ndarray | None = None) -> float:
    """Nats per token of text counted by `counts`, coded by the frequencies of `model` (itself: its entropy).

    One is added to each count of another text, for the ids it never saw.
    """
    frequencies = counts if model is None else model + 1
    seen = counts > 0
    probabilities = frequencies[seen] / frequencies.sum()
    return float(-(counts[seen] * np.log(probabilities)).sum() / counts.sum())


def bytes_per_token(corpus: Corpus, split: str) -> float:
    """UTF-8 bytes of text for each token of a split, of which each document has one more, that ends it."""
    part = corpus.split(split)
    return part.bytes / (part.tokens + part.samples)


def bits_per_byte(loss: float, bytes_each: float) -> float:
    """A loss in nats per token as bits per byte of text, which no longer depends on the tokenizer."""
    return loss / math.log(2) / bytes_each
