"""Input of a GloVe run: its engine counts co-occurrence pairs and partitions them itself."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from typing import TYPE_CHECKING, Any

from megaptm.batch import BatchSpec
from megaptm.config import Config
from megaptm.run.corpora import RunCorpora

if TYPE_CHECKING:
    from megaptm.families.word_vectors.pair_engine import PairEngine


class PairSamples:
    """Samples of `data.sequence` co-occurrence pairs each; an epoch is all pairs once."""

    def __init__(self, config: Config, corpora: RunCorpora, engine: PairEngine) -> None:
        self.config, self.corpora, self.engine = config, corpora.ids, engine

    @property
    def batch_spec(self) -> BatchSpec:
        return self.config.batch_spec

    def cursors(self, number: int) -> dict[str, int]:
        return {"pairs": number}

    def samples_read(self, number: int) -> dict[str, tuple[int, int]]:
        return {}

    def epochs_started(self, number: int) -> dict[str, int]:
        return {"pairs": -(-number // (self.config.train.batch * self.engine.pairs.steps))}


class PairSource:
    """Input of GloVe: steps without micro-batches, because the index of a step determines its pairs."""

    def __init__(self, config: Config, corpora: RunCorpora, engine: PairEngine) -> None:
        self.config, self.engine = config, engine
        self.tokenizer, self.train = corpora.tokenizer, PairSamples(config, corpora, engine)

    def count_text(self) -> None:
        self.engine.count_words_and_pairs()

    def steps(self, start: int) -> Iterator[list[Any]]:
        return repeat([])

    def validation_batches(self, name: str = "") -> Iterator[list[int]]:
        """Return a list with the index of each validation step; GloVe's engine selects its held-out pairs by it."""
        return iter([[number] for number in range(min(self.config.train.validate_batches, self.engine.held_out.steps))])

    def close(self) -> None: ...
