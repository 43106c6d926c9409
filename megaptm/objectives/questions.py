"""Classification of unmasked texts: sequence questions and token questions (ERNIE 2.0, arXiv:1907.12412)."""

# S tokens of a sequence

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from megaptm.batch import IGNORED, BatchSpec, fields
from megaptm.objectives.masked import TEXT_FIELDS, TextSequence, enclose_documents, window_of_documents
from megaptm.objectives.objective import (
    Objective,
    Piece,
    Sample,
    SampleContext,
    SampleObjective,
    SentenceGroup,
    SequenceWindow,
    mark_tokens,
    pad_pieces,
)
from megaptm.objectives.text_questions import LabeledTexts, QuestionObjective, question_field

NO_LABEL = np.full(1, IGNORED)


@dataclass(frozen=True)
class TextQuestion(QuestionObjective):
    """Question about the texts of a sequence, without masking."""

    required_tokens = ("pad", "cls", "sep")
    prompts = ()

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.question

    @cached_property
    def losses(self) -> Mapping[str, float]:  # type: ignore[override]
        return {self.question: 1.0}

    def batch(self, sequence: int, document_mask: bool) -> BatchSpec:
        label = fields((), question_field(self.question))
        return BatchSpec({"": sequence}, fields((sequence,), *TEXT_FIELDS) | label)

    def make(self, piece: Piece, context: SampleContext) -> Sample:
        assert isinstance(piece, SentenceGroup)
        texts = self.definition.make_texts(piece, context.rng, self.raw_length(context.sequence))
        text_sequence = TextSequence.of_texts([texts], context.special)
        label = {question_field(self.question): np.array(texts.label, dtype=np.int64)}
        return text_sequence.fields(text_sequence.text, context.special, context.sequence) | label


@dataclass(frozen=True)
class Capitalization(Objective):
    """Whether the word of each token was capitalized before the tokenizer lowercased it (4.2.1)."""

    name: ClassVar = "capitalization"
    losses: ClassVar = {"capitalization": 1.0}
    uses_rng = False
    required_tokens = ("pad", "cls", "sep")
    template: ClassVar = ("cls A sep", "cls A sep B sep")
    prompts = ()
    annotations = ("capitals",)

    def raw_length(self, sequence: int) -> int:
        return sequence - 2

    def cut(self, sequence: int, document_mask: bool) -> SequenceWindow:
        return window_of_documents(sequence, document_mask)

    def batch(self, sequence: int, document_mask: bool) -> BatchSpec:
        return BatchSpec({"": sequence}, fields((sequence,), *TEXT_FIELDS, "capitalization"))

    def make(self, piece: Piece, context: SampleContext) -> Sample:
        assert isinstance(piece, list)
        text_sequence = TextSequence.of_documents(piece, context.special, context.document_mask)
        capitals = [mark_tokens(part.tokens, part.annotations)[:, 1] for part in piece]
        labels = enclose_documents(capitals, piece, NO_LABEL, NO_LABEL, context.document_mask)
        inputs = text_sequence.fields(text_sequence.text, context.special, context.sequence)
        return inputs | {"capitalization": pad_pieces(labels, context.sequence, IGNORED)}


@dataclass(frozen=True)
class TokenDocument(SampleObjective):
    """Whether each token of a stretch also occurs in the rest of its document (4.2.1)."""

    name: ClassVar = "token-document"
    losses: ClassVar = {"token-document": 1.0}
    unit = "sentences"
    required_tokens = ("pad", "cls", "sep")
    template: ClassVar = ("cls A sep", "cls A sep B sep")
    prompts = ()

    def raw_length(self, sequence: int) -> int:
        return sequence - 2

    def batch(self, sequence: int, document_mask: bool) -> BatchSpec:
        return BatchSpec({"": sequence}, fields((sequence,), *TEXT_FIELDS, "token_document"))

    def make(self, piece: Piece, context: SampleContext) -> Sample:
        assert isinstance(piece, SentenceGroup)
        special, sequence = context.special, context.sequence
        text, remaining = np.concatenate(piece.sentences), piece.rest_of_document()
        if not sum(map(len, remaining)) and len(text) > 1:
            # The document fits into the sample: split it.
            borders = np.cumsum([*map(len, piece.sentences)])[:-1]
            cut = int(context.rng.choice(borders)) if len(borders) else len(text) // 2
            text, remaining = text[:cut], [text[cut:]]
        length = self.raw_length(sequence)
        text, remaining = text[:length], [*remaining, text[length:]]
        occurs = np.zeros(special.size, dtype=np.int64)
        for part in remaining:
            occurs[part] = 1
        text_sequence = TextSequence.of_texts([LabeledTexts([text], [0])], special)
        labels = pad_pieces([NO_LABEL, occurs[text]], sequence, IGNORED)
        return text_sequence.fields(text_sequence.text, special, sequence) | {"token_document": labels}
