"""Left to right: say the next token."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from megaptm.objectives.objective import IGNORED, Cut, Objective, Piece, Sample, documents_of, shaped
from megaptm.objectives.vocabulary import SpecialTokens


class CausalLM(Objective):
    """GPT's objective on a row packed with documents, each closed by the `end` token."""

    name = "causal-lm"
    losses: ClassVar = {"lm": 1.0}
    needs = ("end",)

    def raw_length(self, sequence: int) -> int:
        return sequence

    def cut(self, sequence: int, document_mask: bool) -> Cut:
        return Cut(stride=sequence, lookahead=1, slots=1)

    def shapes(self, sequence: int) -> dict[str, tuple[int, ...]]:
        return shaped((sequence,), "tokens", "positions", "documents", "labels")

    def make(
        self,
        piece: Piece,
        special: SpecialTokens,
        rng: np.random.Generator,
        sequence: int,
        document_mask: bool,
    ) -> Sample:
        assert isinstance(piece, list)
        lengths = [len(part.tokens) + part.slots for part in piece]
        text = np.full(sum(lengths), special.end, dtype=np.int64)
        for part, stop in zip(piece, np.cumsum(lengths), strict=True):
            text[stop - len(part.tokens) - part.slots : stop - part.slots] = part.tokens
        labels = text[1:].copy()
        if not document_mask:
            lengths = [len(text)]
        documents, positions = documents_of(lengths, len(text))
        # A document's end cannot tell how the next one, which it does not know, begins.
        labels[documents[1:] != documents[:-1]] = IGNORED
        return {"tokens": text[:-1], "positions": positions[:-1], "documents": documents[:-1], "labels": labels}
