"""Span boundary objective (SpanBERT, arXiv:1907.10529): masked spans are also predicted from their boundaries."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from megaptm.batch import IGNORED, BatchSpec, fields
from megaptm.objectives.masked import MaskedLM, MaskedRow
from megaptm.objectives.objective import Sample, SampleContext

LONGEST = 20
"""Largest offset in a span that is predicted from boundaries; later tokens are only predicted by masked-lm."""


@dataclass(frozen=True)
class SpanBoundary(MaskedLM):
    """Masked spans on packed documents. Each masked token is also predicted from the two tokens around its span and its
    offset, unless the span is at the end of a text."""

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
        # An unknown piece belongs to the text; only these tokens do not.
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
    """Return for each masked position the position before its span, the position after it, and the offset in the span,
    int64 each."""
    gap = np.diff(places) > 1
    first, last = np.concatenate(([True], gap))[: len(places)], np.concatenate((gap, [True]))[: len(places)]
    span = np.cumsum(first) - 1
    start, stop = places[first][span], places[last][span]
    return start - 1, stop + 1, places - start
