"""Forward and backward language modeling over continued sequences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from megaptm.batch import LONGEST_WORD, BatchSpec, Field, fields
from megaptm.errors import UserError
from megaptm.objectives.objective import (
    DocumentSlice,
    Objective,
    Piece,
    RowWindow,
    Sample,
    SampleContext,
    refuse_document_mask,
)
from megaptm.objectives.vocabulary import SpecialTokens

STREAMS = ("", "backwards_")


@dataclass(frozen=True)
class BidirectionalLM(Objective):
    """Objective of ELMo (arXiv:1802.05365, 3.1): next-token prediction in both directions.

    Each sequence of a batch continues the same sequence of the previous batch, forward and backward over the same text.
    Documents are preceded by `begin` and followed by `end`. `begins` is 1 if a sequence starts anew. Words have
    character ids.
    """

    name = "bidirectional-lm"
    losses: ClassVar = {"bidirectional-lm": 1.0}
    unit = "lane"
    from_both_ends = True
    draws = False
    needs = ("end", "begin")
    template: ClassVar[tuple[str, str]] = ("begin A end", "begin A end begin B end")
    prompts = ()

    def raw_length(self, sequence: int) -> int:
        return sequence

    def cut(self, sequence: int, document_mask: bool) -> RowWindow:
        return RowWindow(stride=sequence, lookahead=1, slots=2)

    def batch(self, sequence: int, document_mask: bool) -> BatchSpec:
        refuse_document_mask(self, document_mask)
        row = {
            f"{prefix}{name}": field
            for prefix in STREAMS
            for name, field in {
                **fields((sequence,), "tokens"),
                "characters": Field((sequence, LONGEST_WORD), "int16"),
                **fields((sequence,), "labels"),
            }.items()
        }
        return BatchSpec(dict.fromkeys(STREAMS, sequence), {**row, "begins": Field(())})

    def check(self, special: SpecialTokens, sequence: int) -> None:
        super().check(special, sequence)
        if special.spellings is None:
            raise UserError(
                f"objective {self.name} reads words by their characters, and the tokenizer's tokens are no words: "
                "build the corpus with tokenizer.kind=words, or take another objective."
            )

    def make(self, piece: Piece, context: SampleContext) -> Sample:
        assert isinstance(piece, list)
        special = context.special
        assert special.spellings is not None
        texts = (
            _text([part for part in piece if not part.backward], special),
            _text([part for part in piece if part.backward], special)[::-1],
        )
        made: Sample = {}
        for prefix, text in zip(STREAMS, texts, strict=True):
            made[f"{prefix}tokens"] = text[:-1].copy()
            made[f"{prefix}characters"] = special.spellings[text[:-1]]
            made[f"{prefix}labels"] = text[1:].copy()
        return {**made, "begins": np.array(piece[0].begins, dtype=np.int64)}


def _text(parts: Sequence[DocumentSlice], special: SpecialTokens) -> np.ndarray:
    """Return documents concatenated, each followed by `end` and `begin`. A sequence may start with the second of these,
    and end with the first."""
    assert special.end is not None
    assert special.begin is not None
    between, found = np.array([special.end, special.begin], dtype=np.int64), []
    for number, part in enumerate(parts):
        only_begin = number == 0 and part.slots == 1 and not len(part.tokens) and len(parts) > 1
        found += [part.tokens.astype(np.int64), between[1:] if only_begin else between[: part.slots]]
    return np.concatenate(found)
