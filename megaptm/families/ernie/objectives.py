"""Masked tokens of ERNIE 1.0 (arXiv:1904.09223); questions about tokens and the mixture of tasks of ERNIE 2.0
(arXiv:1907.12412)."""

# S tokens of a sequence

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from megaptm.batch import IGNORED, BatchSpec, batch_fields
from megaptm.objectives.composed import CONSTANT_ONE, Task
from megaptm.objectives.masked import (
    TEXT_FIELDS,
    MaskedLM,
    MaskedLMWithQuestion,
    TextSequence,
    enclose_documents,
    window_of_documents,
)
from megaptm.objectives.mixtures import NamedMixture
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
from megaptm.objectives.questions import TextQuestion
from megaptm.objectives.text_questions import LabeledTexts

NO_LABEL = np.full(1, IGNORED)


@dataclass(frozen=True)
class Capitalization(Objective):
    """Task of capitalization: whether the word of each token was capitalized before the tokenizer lowercased it
    (4.2.1)."""

    name: ClassVar = "capitalization"
    losses: ClassVar = {"capitalization": 1.0}
    uses_rng = False
    required_tokens = ("pad", "cls", "sep")
    template: ClassVar = ("cls A sep", "cls A sep B sep")
    prompts = ()
    annotations = ("capitals",)

    def raw_length(self, sequence: int) -> int:
        return sequence - 2

    def sequence_window(self, sequence: int, document_mask: bool) -> SequenceWindow:
        return window_of_documents(sequence, document_mask)

    def batch_spec(self, sequence: int, document_mask: bool) -> BatchSpec:
        return BatchSpec({"": sequence}, batch_fields((sequence,), *TEXT_FIELDS, "capitalization"))

    def make_sample(self, piece: Piece, context: SampleContext) -> Sample:
        assert isinstance(piece, list)
        text_sequence = TextSequence.of_documents(piece, context.special, context.document_mask)
        capitals = [mark_tokens(part.tokens, part.annotations)[:, 1] for part in piece]
        labels = enclose_documents(capitals, piece, NO_LABEL, NO_LABEL, context.document_mask)
        inputs = text_sequence.fields(text_sequence.text, context.special, context.sequence)
        return inputs | {"capitalization": pad_pieces(labels, context.sequence, IGNORED)}


@dataclass(frozen=True)
class TokenDocument(SampleObjective):
    """Task of token-document relation: whether each token of a stretch also occurs in the rest of its document
    (4.2.1)."""

    name: ClassVar = "token-document"
    losses: ClassVar = {"token-document": 1.0}
    unit = "sentences"
    required_tokens = ("pad", "cls", "sep")
    template: ClassVar = ("cls A sep", "cls A sep B sep")
    prompts = ()

    def raw_length(self, sequence: int) -> int:
        return sequence - 2

    def batch_spec(self, sequence: int, document_mask: bool) -> BatchSpec:
        return BatchSpec({"": sequence}, batch_fields((sequence,), *TEXT_FIELDS, "token_document"))

    def make_sample(self, piece: Piece, context: SampleContext) -> Sample:
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


# arXiv:1907.12412, 4.2: the tasks without labeled pairs, all at once. configs/ernie-2 learns them one after the other.
ERNIE_2 = NamedMixture(
    tasks=(
        Task("knowledge", MaskedLM(hide="independent"), CONSTANT_ONE, 0),
        Task("capitals", Capitalization(), CONSTANT_ONE, 1),
        Task("tokens-of-documents", TokenDocument(), CONSTANT_ONE, 2),
        Task("reordering", TextQuestion("sentence-reordering"), CONSTANT_ONE, 3),
    ),
    weights_by_step={
        "mlm": CONSTANT_ONE,
        "capitalization": CONSTANT_ONE,
        "token-document": CONSTANT_ONE,
        "sentence-reordering": CONSTANT_ONE,
    },
    label="ernie-2",
)

TASKS = {"capitalization": Capitalization, "token-document": TokenDocument}
# The first training stage of ERNIE 1.0.
INDEPENDENT_TOKENS = MaskedLMWithQuestion("next-sentence", MaskedLM(hide="independent", units="tokens"))

OBJECTIVES = (INDEPENDENT_TOKENS, ERNIE_2)
