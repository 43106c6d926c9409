"""Causal language modeling."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from megaptm.batch import IGNORED, BatchSpec, batch_fields
from megaptm.objectives.objective import (
    Objective,
    Piece,
    Sample,
    SampleContext,
    SequenceWindow,
    documents_and_positions,
)


@dataclass(frozen=True)
class CausalLM(Objective):
    """Causal language modeling on packed documents, each followed by the `end` token."""

    name = "causal-lm"
    losses: ClassVar = {"lm": 1.0}
    predicts_every_token = True
    uses_rng = False
    required_tokens = ("end",)

    def raw_length(self, sequence: int) -> int:
        return sequence

    def sequence_window(self, sequence: int, document_mask: bool) -> SequenceWindow:
        return SequenceWindow(stride=sequence, lookahead=1, slots=1)

    def batch_spec(self, sequence: int, document_mask: bool) -> BatchSpec:
        # A sequence is always full: without document mask it is one document, and attention uses its fast path.
        names = ("tokens", "positions", *(("document_ids",) if document_mask else ()), "labels")
        return BatchSpec({"": sequence}, batch_fields((sequence,), *names))

    def make_sample(self, piece: Piece, context: SampleContext) -> Sample:
        assert isinstance(piece, list)
        document_mask = context.document_mask
        assert context.special.end is not None
        lengths = [len(part.tokens) + part.slots for part in piece]
        text = np.empty(sum(lengths), dtype=np.int64)
        stops = list(itertools.accumulate(lengths))
        for part, length, stop in zip(piece, lengths, stops, strict=True):
            text[stop - length : stop - part.slots] = part.tokens
            text[stop - part.slots : stop] = context.special.end
        labels = text[1:].copy()
        documents, positions = documents_and_positions(lengths if document_mask else [len(text)], len(text))
        # The last token of a document does not predict the first token of the next, unrelated document.
        if document_mask:
            labels[[stop - 1 for stop in stops[:-1]]] = IGNORED
        sample = {"tokens": text[:-1], "positions": positions[:-1], "labels": labels}
        return sample | {"document_ids": documents[:-1]} if document_mask else sample
