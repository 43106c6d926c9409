"""Order of groups of sentences, or of a document's parts, as in `order.Order`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from megaptm.batch import IGNORED
from megaptm.data.order import Order, check_annotations
from megaptm.data.shards import TOKENS, Corpus, Shard
from megaptm.errors import UserError
from megaptm.objectives.objective import SentenceGroup, mark_tokens

GROUP_ANNOTATIONS = ("parts", "labels")
"""Annotations that apply to a group as a whole, and not to positions in it."""


class SentenceGroupOrder(Order):
    """Order of groups of consecutive sentences, one for every `length` tokens of a document, so that the index alone
    gives their number."""

    def __init__(self, corpus: Corpus, split: str, *, length: int, unit: str = "sentences", **options: Any):
        """Create the order. `unit` is the annotation with the starts of sentences, or of the units used as
        sentences."""
        self.length, self.unit = length, unit
        check_annotations(corpus, (unit, *options.get("annotations", ())))
        if unit != "parts" and corpus.split(split).samples < 2:
            larger = ", or with a larger validation share (validation=0.1)" if split == "validation" else ""
            raise UserError(
                f"{corpus.name} has a single document in its split `{split}`, but a random next sentence comes "
                f"from another document: build the corpus from more documents{larger}, or use objective masked-lm."
            )
        super().__init__(corpus, split, **options)
        self.per_epoch = self.total

    def piece(self, epoch: int, position: int) -> SentenceGroup:
        window, sample = self._find(epoch, position)
        table = self._window((epoch, window))
        sample -= int(self._epoch(epoch).samples[window])
        number = int(np.searchsorted(table.edges, sample, side="right")) - 1
        shard, document = self.shards.get(int(table.shard[number])), int(table.document[number])
        borders = self._borders(shard, document, sample - int(table.edges[number]))
        sentences = [self._sentence(shard, document, *ends) for ends in pairwise(borders)]

        def rest_of_document() -> list[np.ndarray]:
            return [shard.tokens(document, 0, borders[0]), shard.tokens(document, borders[-1])]

        label = int(shard.annotation("labels", document)[0, 1]) if "labels" in self.annotations else IGNORED
        other = partial(self._sample_other, epoch, window, number)
        return SentenceGroup(sentences, sample_other_document=other, label=label, rest_of_document=rest_of_document)

    def _borders(self, shard: Shard, document: int, chunk: int) -> list[int]:
        """Return the bounds of the sentences that start in the part of the document that belongs to a group. Each token
        is in one group."""
        starts, total = self._starts(shard, document), int(shard.index[document, TOKENS])
        low, high, beyond = (np.array((0, 1, 2)) + chunk) * self.length
        first, last = np.searchsorted(starts, (low, high))
        # A sentence that extends past the next stretch is cut at its start, if no other sentence starts there.
        end = starts[last] if last < len(starts) and starts[last] < beyond else min(high, total)
        return [*(int(start) for start in (starts[first:last] if first < last else (low,))), int(end)]

    def _starts(self, shard: Shard, document: int) -> np.ndarray:
        """Return the start of each sentence of a document. Tokens before the first start form a piece, too."""
        starts = shard.annotation(self.unit, document)
        if starts.ndim == 2:
            starts = starts[:, 0]
        return starts if len(starts) and starts[0] == 0 else np.concatenate((np.zeros(1, dtype=starts.dtype), starts))

    def _sentence(self, shard: Shard, document: int, start: int, stop: int) -> np.ndarray:
        """Return the tokens of a sentence of a group, marked with the requested annotations."""
        marks = [name for name in self.annotations if name not in GROUP_ANNOTATIONS]
        annotations = {name: shard.annotation_within(name, document, start, stop) for name in marks}
        return mark_tokens(shard.tokens(document, start, stop), annotations)

    def _sample_other(self, epoch: int, window: int, number: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
        """Sample another document of the window, and yield its sentences from a random one to the last."""
        table = self._window((epoch, window))
        if len(table.shard) > 1:
            index = int(rng.integers(len(table.shard) - 1))
            index += index >= number
        else:
            table = self._window((epoch, (window + 1) % len(self._epoch(epoch))))
            index = int(rng.integers(len(table.shard)))
        shard, document = self.shards.get(int(table.shard[index])), int(table.document[index])
        starts = self._starts(shard, document)
        first = int(rng.integers(len(starts)))
        borders = [*starts[first:].tolist(), int(shard.index[document, TOKENS])]
        return (self._sentence(shard, document, *ends) for ends in pairwise(borders))

    def measure_documents(self, tokens: np.ndarray) -> np.ndarray:
        return np.maximum(1, -(-tokens // self.length))

    def _shard_measures(self) -> np.ndarray:
        return self._count_by_document()

    def _samples_before(self, measures: np.ndarray) -> np.ndarray:
        return measures
