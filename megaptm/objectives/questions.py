"""Classification of unmasked texts."""

# S tokens of a sequence

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from megaptm.batch import BatchSpec, batch_fields
from megaptm.objectives.masked import TEXT_FIELDS, TextSequence
from megaptm.objectives.objective import (
    Piece,
    Sample,
    SampleContext,
    SentenceGroup,
)
from megaptm.objectives.text_questions import QuestionObjective, question_field


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

    def batch_spec(self, sequence: int, document_mask: bool) -> BatchSpec:
        label = batch_fields((), question_field(self.question))
        return BatchSpec({"": sequence}, batch_fields((sequence,), *TEXT_FIELDS) | label)

    def make_sample(self, piece: Piece, context: SampleContext) -> Sample:
        assert isinstance(piece, SentenceGroup)
        texts = self.definition.make_texts(piece, context.rng, self.raw_length(context.sequence))
        text_sequence = TextSequence.of_texts([texts], context.special)
        label = {question_field(self.question): np.array(texts.label, dtype=np.int64)}
        return text_sequence.fields(text_sequence.text, context.special, context.sequence) | label
