"""Masked spans that are asked about twice: where they stood, and by their borders (SpanBERT, arXiv:1907.10529)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from megaptm.batch import IGNORED, BatchSpec, fields
from megaptm.objectives.masked import MaskedLM, MaskedRow
from megaptm.objectives.objective import Sample, SampleContext

LONGEST = 20
"""Places of a span that its borders are asked about; of those beyond only the token itself is."""


@dataclass(frozen=True)
class SpanBoundary(MaskedLM):
    """Masked spans on rows of documents; each of their tokens also by the two tokens around the span and its place in
    it, but for spans at the ends of a text, where no token is outside."""

    hide: str = "spans"
    show: str = "spans"

    name = "masked-lm-span-boundary"  # type: ignore[assignment]
    losses: ClassVar = {"mlm": 1.0, "span-boundary": 1.0}

    def most_asked(self, sequence: int) -> int:
        return math.ceil(self.rate * self.raw_length(sequence))

    def batch(self, sequence: int, document_mask: bool) -> BatchSpec:
        masked = super().batch(sequence, document_mask)
        asked = fields((self.most_asked(sequence),), "span_left", "span_right", "span_offset", "span_labels")
        return BatchSpec(masked.streams, {**masked.fields, **asked})

    def mask_row(self, row: MaskedRow, context: SampleContext, begins: np.ndarray | None = None) -> Sample:
        special = context.special
        sample = super().mask_row(row, context, begins)
        labels = sample["labels"]
        count = int(np.count_nonzero(labels != IGNORED))
        left, right, offset = borders(sample["masked_positions"][:count])
        # An unknown piece is of the text; where none of it is masked, only these are not.
        outside = np.isin(sample["tokens"], [id_ for id_ in (special.cls, special.sep, special.pad) if id_ is not None])
        asked = ~outside[left] & ~outside[right] & (offset < LONGEST)
        of_spans = {"span_left": left, "span_right": right, "span_offset": offset}
        made = {name: np.zeros(len(labels), dtype=np.int64) for name in of_spans}
        for name, values in of_spans.items():
            made[name][:count][asked] = values[asked]
        made["span_labels"] = np.full(len(labels), IGNORED, dtype=np.int64)
        made["span_labels"][:count][asked] = labels[:count][asked]
        return sample | made


def borders(places: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """int64 [places] three times, for each hidden place, in order: the place before its span, the one behind it, and
    how many places of the span are before its own."""
    gap = np.diff(places) > 1
    first, last = np.concatenate(([True], gap))[: len(places)], np.concatenate((gap, [True]))[: len(places)]
    span = np.cumsum(first) - 1
    start, stop = places[first][span], places[last][span]
    return start - 1, stop + 1, places - start
