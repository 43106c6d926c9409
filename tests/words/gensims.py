"""Vectors that gensim trains on the text of a run, and the share of neighbors that two sets of vectors share."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from megaptm.run.checkpoint import open_checkpoint
from megaptm.run.corpora import RunCorpora


def read_text(run: Path) -> list[list[str]]:
    """Return the words of each training document, without special tokens."""
    corpora = RunCorpora(open_checkpoint(run).config)
    special, name = corpora.tokenizer.special.specials, corpora.tokenizer.name
    [(_, texts)] = corpora.texts("train", 0, 1)
    return [[name(id_) for id_ in text.tolist() if id_ not in special] for batch in texts for text in batch]


def train_gensim(text: list[list[str]], seed: int, **settings: Any) -> Any:
    """Train gensim's skip-gram in one thread, so that its random values follow from the seed."""
    from gensim.models import Word2Vec

    min_alpha = settings["alpha"] * 1e-4
    return Word2Vec(text, sg=1, negative=5, min_count=5, min_alpha=min_alpha, workers=1, seed=seed, **settings).wv


def neighbors(vectors: Any, words: list[str], number: int) -> dict[str, set[str]]:
    """Return the nearest words of each word by gensim."""
    return {word: {near for near, _ in vectors.most_similar(word, topn=number)} for word in words}


def shared_neighbors(near: Mapping[str, set[str]], gensim_vectors: Any, number: int) -> float:
    """Return the mean share of the `number` neighbors of each word that gensim's vectors also have."""
    expected = neighbors(gensim_vectors, [*near], number)
    return sum(len(near[word] & expected[word]) for word in near) / (number * len(near))
