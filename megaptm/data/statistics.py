"""Statistics of a corpus: baselines that a model must exceed."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from megaptm.data.shards import Corpus, Verify

TOKENS_PER_BATCH = 1 << 20
"""Number of tokens per batch of documents, when statistics are computed."""


def read_texts(
    corpus: Corpus, split: str, *, part: int = 0, parts: int = 1, verify: Verify = "size"
) -> Iterator[list[np.ndarray]]:
    """Yield the documents of every `parts`-th shard of a split, from shard `part` on, in batches. Each is read once.

    A gigabyte takes a second or two from a local disk. Raises `UserError` for a shard that is damaged, as far as
    `verify` checks. Ids outside of the vocabulary raise it as well, because callers use ids as table indexes.
    """
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
            if waiting >= TOKENS_PER_BATCH or document == len(shard) - 1:
                yield texts
                texts, waiting = [], 0


def count_tokens(
    corpus: Corpus, split: str, vocabulary: int, *, part: int = 0, parts: int = 1, verify: Verify = "size"
) -> np.ndarray:
    """Count the tokens of a corpus: return int64 [vocabulary], the count of each id in every `parts`-th shard of a
    split, from shard `part` on. Raises like `texts_of`."""
    counts = np.zeros(vocabulary, np.int64)
    for texts in read_texts(corpus, split, part=part, parts=parts, verify=verify):
        counts += np.bincount(np.concatenate(texts), minlength=vocabulary)
    return counts


def unigram_loss(counts: np.ndarray, model: np.ndarray | None = None) -> float:
    """Return the loss of a unigram model, in nats per token of the text counted by `counts`.

    The frequencies are taken from `model`, by default `counts`, which gives the entropy. Add-one smoothing is applied
    to the counts of another text, for ids that it lacks.
    """
    frequencies = counts if model is None else model + 1
    occurring = counts > 0
    probabilities = frequencies[occurring] / frequencies.sum()
    return float(-(counts[occurring] * np.log(probabilities)).sum() / counts.sum())


def bytes_per_token(corpus: Corpus, split: str) -> float:
    """Return the average UTF-8 bytes of text per token of a split. Each document has one more token, which ends it."""
    part = corpus.split(split)
    return part.bytes / (part.tokens + part.samples)


def bits_per_byte(loss: float, bytes_each: float) -> float:
    """Convert a loss in nats per token to bits per byte of text, which does not depend on the tokenizer."""
    return loss / math.log(2) / bytes_each
