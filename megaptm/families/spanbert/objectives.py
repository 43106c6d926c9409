"""Span boundary objective (SpanBERT, arXiv:1907.10529): masked spans are also predicted from their boundaries."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from megaptm.batch import IGNORED, BatchSpec, batch_fields
from megaptm.objectives.masked import MaskedLM, TextSequence
from megaptm.objectives.objective import Sample, SampleContext

MAX_OFFSET = 20
"""Maximum offset in a span that is predicted from boundaries; later tokens are only predicted by masked-lm."""


@dataclass(frozen=True)
class SpanBoundary(MaskedLM):
    """Objective of SpanBERT: masked spans on packed documents. Each masked token is also predicted from the two tokens
    around its span and its offset, unless the span is at the end of a text."""

    hide: str = "spans"
    show: str = "spans"

    name = "masked-lm-span-boundary"  # type: ignore[assignment]
    losses: ClassVar = {"mlm": 1.0, "span-boundary": 1.0}

    def max_predictions(self, sequence: int) -> int:
        return math.ceil(self.rate * self.raw_length(sequence))

    def batch_spec(self, sequence: int, document_mask: bool) -> BatchSpec:
        masked = super().batch_spec(sequence, document_mask)
        span_fields = batch_fields(
            (self.max_predictions(sequence),), "span_left", "span_right", "span_offset", "span_labels"
        )
        return BatchSpec(masked.streams, {**masked.fields, **span_fields})

    def mask_sequence(
        self, text_sequence: TextSequence, context: SampleContext, starts: np.ndarray | None = None
    ) -> Sample:
        special = context.special
        sample = super().mask_sequence(text_sequence, context, starts)
        labels = sample["labels"]
        count = int(np.count_nonzero(labels != IGNORED))
        left_positions, right_positions, offsets = _span_boundaries(sample["masked_positions"][:count])
        # An unknown piece belongs to the text; only these tokens do not.
        outside = np.isin(sample["tokens"], [id_ for id_ in (special.cls, special.sep, special.pad) if id_ is not None])
        has_boundaries = ~outside[left_positions] & ~outside[right_positions] & (offsets < MAX_OFFSET)
        values_by_field = {"span_left": left_positions, "span_right": right_positions, "span_offset": offsets}
        span_fields = {name: np.zeros(len(labels), dtype=np.int64) for name in values_by_field}
        for name, values in values_by_field.items():
            span_fields[name][:count][has_boundaries] = values[has_boundaries]
        span_fields["span_labels"] = np.full(len(labels), IGNORED, dtype=np.int64)
        span_fields["span_labels"][:count][has_boundaries] = labels[:count][has_boundaries]
        return sample | span_fields


def _span_boundaries(positions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the boundaries of SpanBERT's masked spans: for each masked position the position before its span, the
    position after it, and the offset in the span, int64 each."""
    gap = np.diff(positions) > 1
    first, last = np.concatenate(([True], gap))[: len(positions)], np.concatenate((gap, [True]))[: len(positions)]
    span = np.cumsum(first) - 1
    start, stop = positions[first][span], positions[last][span]
    return start - 1, stop + 1, positions - start


TASKS = {"masked-lm-span-boundary": SpanBoundary}
OBJECTIVES = (SpanBoundary(),)
