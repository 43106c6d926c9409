"""What gensim learns from the text of a run, and how far two sets of vectors agree on what is near."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from megaptm.run.checkpoint import open_checkpoint
from megaptm.run.corpora import RunCorpora


def text_of(run: Path) -> list[list[str]]:
    """The words of each document that a run learns from, without those that have no id."""
    corpora = RunCorpora(open_checkpoint(run).config)
    special, name = corpora.tokenizer.special.specials, corpora.tokenizer.name
    [(_, texts)] = corpora.texts("train", 0, 1)
    return [[name(id_) for id_ in text.tolist() if id_ not in special] for some in texts for text in some]


def gensims(text: list[list[str]], seed: int, **settings: Any) -> Any:
    """Vectors that gensim's skip-gram learns in one thread, whose draws follow from the seed."""
    from gensim.models import Word2Vec

    least = settings["alpha"] * 1e-4
    return Word2Vec(text, sg=1, negative=5, min_count=5, min_alpha=least, workers=1, seed=seed, **settings).wv


def neighbors(vectors: Any, words: list[str], number: int) -> dict[str, set[str]]:
    """What gensim says is nearest to each word."""
    return {word: {near for near, _ in vectors.most_similar(word, topn=number)} for word in words}


def shared(near: Mapping[str, set[str]], theirs: Any, number: int) -> float:
    """Of so many neighbors of each word the share that gensim's vectors have, too, in the mean."""
    others = neighbors(theirs, [*near], number)
    return sum(len(near[word] & others[word]) for word in near) / (number * len(near))
