"""Classification of unmasked texts: sequence questions and token questions (ERNIE 2.0, arXiv:1907.12412)."""

# S tokens of a row

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from megaptm.batch import IGNORED, BatchSpec, fields
from megaptm.objectives.masked import ROW, MaskedRow, enclosed_window, laid_out
from megaptm.objectives.objective import (
    Objective,
    Piece,
    RowWindow,
    Sample,
    SampleContext,
    SampleObjective,
    SentenceGroup,
    marked,
    padded,
)
from megaptm.objectives.text_questions import LabeledTexts, QuestionObjective, field_of

NOTHING = np.full(1, IGNORED)


@dataclass(frozen=True)
class TextQuestion(QuestionObjective):
    """Question about the texts of a sequence, without masking."""

    needs = ("pad", "cls", "sep")
    prompts = ()

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.question

    @cached_property
    def losses(self) -> Mapping[str, float]:  # type: ignore[override]
        return {self.question: 1.0}

    def batch(self, sequence: int, document_mask: bool) -> BatchSpec:
        answer = fields((), field_of(self.question))
        return BatchSpec({"": sequence}, fields((sequence,), *ROW) | answer)

    def make(self, piece: Piece, context: SampleContext) -> Sample:
        assert isinstance(piece, SentenceGroup)
        made = self.asked.texts_of(piece, context.rng, self.raw_length(context.sequence))
        row = MaskedRow.of_texts([made], context.special)
        answer = {field_of(self.question): np.array(made.label, dtype=np.int64)}
        return row.fields(row.text, context.special, context.sequence) | answer


@dataclass(frozen=True)
class Capitalization(Objective):
    """Whether the word of each token was capitalized before the tokenizer lowercased it (4.2.1)."""

    name: ClassVar = "capitalization"
    losses: ClassVar = {"capitalization": 1.0}
    draws = False
    needs = ("pad", "cls", "sep")
    template: ClassVar = ("cls A sep", "cls A sep B sep")
    prompts = ()
    annotations = ("capitals",)

    def raw_length(self, sequence: int) -> int:
        return sequence - 2

    def cut(self, sequence: int, document_mask: bool) -> RowWindow:
        return enclosed_window(sequence, document_mask)

    def batch(self, sequence: int, document_mask: bool) -> BatchSpec:
        return BatchSpec({"": sequence}, fields((sequence,), *ROW, "capitalization"))

    def make(self, piece: Piece, context: SampleContext) -> Sample:
        assert isinstance(piece, list)
        row = MaskedRow.of_documents(piece, context.special, context.document_mask)
        capitals = [marked(part.tokens, part.annotations)[:, 1] for part in piece]
        answers = padded(laid_out(capitals, piece, NOTHING, NOTHING, context.document_mask), context.sequence, IGNORED)
        return row.fields(row.text, context.special, context.sequence) | {"capitalization": answers}


@dataclass(frozen=True)
class TokenDocument(SampleObjective):
    """Whether each token of a stretch also occurs in the rest of its document (4.2.1)."""

    name: ClassVar = "token-document"
    losses: ClassVar = {"token-document": 1.0}
    unit = "sentence-group"
    needs = ("pad", "cls", "sep")
    template: ClassVar = ("cls A sep", "cls A sep B sep")
    prompts = ()

    def raw_length(self, sequence: int) -> int:
        return sequence - 2

    def batch(self, sequence: int, document_mask: bool) -> BatchSpec:
        return BatchSpec({"": sequence}, fields((sequence,), *ROW, "token_document"))

    def make(self, piece: Piece, context: SampleContext) -> Sample:
        assert isinstance(piece, SentenceGroup)
        special, sequence = context.special, context.sequence
        text, rest = np.concatenate(piece.sentences), piece.outside()
        if not sum(map(len, rest)) and len(text) > 1:
            # The document is no longer than the stretch: split it.
            borders = np.cumsum([*map(len, piece.sentences)])[:-1]
            cut = int(context.rng.choice(borders)) if len(borders) else len(text) // 2
            text, rest = text[:cut], [text[cut:]]
        length = self.raw_length(sequence)
        text, rest = text[:length], [*rest, text[length:]]
        elsewhere = np.zeros(special.size, dtype=np.int64)
        for part in rest:
            elsewhere[part] = 1
        row = MaskedRow.of_texts([LabeledTexts([text], [0])], special)
        answers = padded([NOTHING, elsewhere[text]], sequence, IGNORED)
        return row.fields(row.text, special, sequence) | {"token_document": answers}
