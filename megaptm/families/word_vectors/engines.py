"""Engines of word vectors by kind of model."""

from __future__ import annotations

from typing import Any

from megaptm.config import Config
from megaptm.families.word_vectors import WordSpec
from megaptm.families.word_vectors.windows import WordWindows
from megaptm.run.corpora import RunCorpora


def build_word_engine(config: Config, spec: WordSpec, corpora: RunCorpora, *, timeout_minutes: float) -> Any:
    """Build a training engine of word vectors without weights. Raise ModuleNotFoundError if it needs numba, which is
    not installed."""
    if spec.family.is_network:
        from megaptm.families.word_vectors.network_engine import NetworkEngine

        return NetworkEngine(spec, config, corpora, timeout_minutes=timeout_minutes)
    if spec.family.model == "pairs":
        from megaptm.families.word_vectors.pair_engine import PairEngine

        return PairEngine(spec, config, corpora, timeout_minutes=timeout_minutes)
    from megaptm.families.word_vectors.engine import WordEngine

    task = config.built_objective
    assert isinstance(task, WordWindows)
    return WordEngine(
        spec,
        config.layout,
        task,
        seed=config.train.seed,
        special=corpora.tokenizer.special.specials,
        names=[corpora.tokenizer.name(id_) for id_ in range(spec.vocabulary)] if spec.size.buckets else (),
        count_words=lambda ranks: corpora.word_counts(spec.vocabulary, ranks.rank, ranks.ranks, ranks.all_reduce),
        timeout_minutes=timeout_minutes,
    )
