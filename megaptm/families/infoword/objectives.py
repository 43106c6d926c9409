"""Deep InfoMax for text (InfoWord, arXiv:1910.08350, section 4): a text and an n-gram masked in it are matched within
the batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from megaptm.batch import IGNORED, BatchSpec, batch_fields
from megaptm.errors import UserError
from megaptm.objectives.masked import TEXT_FIELDS, TextSequence
from megaptm.objectives.objective import Piece, Sample, SampleContext, SampleObjective, SentenceGroup
from megaptm.objectives.vocabulary import SpecialTokens

SPECIALS = 4
"""Number of special tokens in a sample of InfoWord: `cls` A `sep` `cls` n-gram `sep`."""

Tokens = Annotated[int, Field(ge=1, le=10**4)]


@dataclass(frozen=True)
class DeepInfoMax(SampleObjective):
    """Objective of InfoWord: sentences with one masked n-gram, and the n-gram as a second document of the sequence.
    Neither attends to the other."""

    min_length: Tokens = 5
    """Minimum length of an n-gram in tokens, if the text is long enough."""
    max_length: Tokens = 10
    """Maximum length of an n-gram in tokens. All lengths are equally likely."""

    name: ClassVar = "infomax"
    losses: ClassVar = {"infomax": 1.0}
    unit = "sentences"
    required_tokens = ("pad", "cls", "sep", "mask")
    template: ClassVar = ("cls A sep", "cls A sep B sep")
    prompts = ()

    def __post_init__(self) -> None:
        if self.min_length > self.max_length:
            raise UserError(f"min_length ({self.min_length}) is more than max_length ({self.max_length}): lower it.")

    def raw_length(self, sequence: int) -> int:
        return sequence - SPECIALS - self.max_length

    def check(self, special: SpecialTokens, sequence: int) -> None:
        if self.raw_length(sequence) < self.max_length:
            raise UserError(
                f"data.sequence ({sequence}) leaves {max(0, self.raw_length(sequence))} tokens for a text in which an "
                f"n-gram of up to {self.max_length} tokens is masked: raise it, or lower max_length of infomax."
            )
        super().check(special, sequence)

    def batch_spec(self, sequence: int, document_mask: bool) -> BatchSpec:
        return BatchSpec({"": sequence}, batch_fields((sequence,), *TEXT_FIELDS) | batch_fields((), "ngram_start"))

    def make_sample(self, piece: Piece, context: SampleContext) -> Sample:
        """Make a sample of InfoWord. `ngram_start`: position of the n-gram's document, or `IGNORED` if the text is a
        single token."""
        assert isinstance(piece, SentenceGroup)
        special, rng = context.special, context.rng
        text = np.concatenate(piece.sentences)[: self.raw_length(context.sequence)]
        cls, sep = np.array([special.cls]), np.array([special.sep])
        max_length = min(self.max_length, len(text) - 1)
        if max_length < 1:
            documents = [np.concatenate((cls, text, sep))]
            text_sequence = TextSequence(documents, [0], [len(documents[0])])
            start = IGNORED
        else:
            length = int(rng.integers(min(self.min_length, max_length), max_length, endpoint=True))
            first = int(rng.integers(len(text) - length, endpoint=True))
            shown = text.copy()
            shown[first : first + length] = special.mask
            documents = [np.concatenate((cls, tokens, sep)) for tokens in (shown, text[first : first + length])]
            text_sequence = TextSequence(documents, [0, 0], [*map(len, documents)])
            start = len(documents[0])
        return text_sequence.fields(text_sequence.text, special, context.sequence) | {
            "ngram_start": np.array(start, dtype=np.int64)
        }


TASKS = {"infomax": DeepInfoMax}
OBJECTIVES = (DeepInfoMax(),)
