"""Deep InfoMax for text (InfoWord, arXiv:1910.08350, section 4): a text and an n-gram masked in it are matched within
the batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from megaptm.batch import IGNORED, BatchSpec, fields
from megaptm.errors import UserError
from megaptm.objectives.masked import ROW, MaskedRow
from megaptm.objectives.objective import Piece, Sample, SampleContext, SampleObjective, SentenceGroup
from megaptm.objectives.vocabulary import SpecialTokens

SPECIALS = 4
"""Special tokens of `cls` A `sep` `cls` n-gram `sep`."""

Tokens = Annotated[int, Field(ge=1, le=10**4)]


@dataclass(frozen=True)
class DeepInfoMax(SampleObjective):
    """Sentences with one masked n-gram, and the n-gram as a second document of the sequence. Neither attends to the
    other."""

    shortest: Tokens = 5
    """Minimum length of an n-gram in tokens, if the text is long enough."""
    longest: Tokens = 10
    """Maximum length of an n-gram in tokens. All lengths are equally likely."""

    name: ClassVar = "infomax"
    losses: ClassVar = {"infomax": 1.0}
    unit = "sentence-group"
    needs = ("pad", "cls", "sep", "mask")
    template: ClassVar = ("cls A sep", "cls A sep B sep")
    prompts = ()

    def __post_init__(self) -> None:
        if self.shortest > self.longest:
            raise UserError(f"shortest ({self.shortest}) is more than longest ({self.longest}): lower it.")

    def raw_length(self, sequence: int) -> int:
        return sequence - SPECIALS - self.longest

    def check(self, special: SpecialTokens, sequence: int) -> None:
        if self.raw_length(sequence) < self.longest:
            raise UserError(
                f"data.sequence ({sequence}) leaves {max(0, self.raw_length(sequence))} tokens for a text in which an "
                f"n-gram of up to {self.longest} is hidden: make it longer, or lower longest of infomax."
            )
        super().check(special, sequence)

    def batch(self, sequence: int, document_mask: bool) -> BatchSpec:
        return BatchSpec({"": sequence}, fields((sequence,), *ROW) | fields((), "ngram_start"))

    def make(self, piece: Piece, context: SampleContext) -> Sample:
        """Return the sample. `ngram_start`: position of the n-gram's document, or `IGNORED` if the text is a single
        token."""
        assert isinstance(piece, SentenceGroup)
        special, rng = context.special, context.rng
        text = np.concatenate(piece.sentences)[: self.raw_length(context.sequence)]
        opens, sep = np.array([special.cls]), np.array([special.sep])
        most = min(self.longest, len(text) - 1)
        if most < 1:
            whole = [np.concatenate((opens, text, sep))]
            row = MaskedRow(whole, [0], [len(whole[0])])
            start = IGNORED
        else:
            length = int(rng.integers(min(self.shortest, most), most, endpoint=True))
            first = int(rng.integers(len(text) - length, endpoint=True))
            shown = text.copy()
            shown[first : first + length] = special.mask
            documents = [np.concatenate((opens, one, sep)) for one in (shown, text[first : first + length])]
            row = MaskedRow(documents, [0, 0], [*map(len, documents)])
            start = len(documents[0])
        return row.fields(row.text, special, context.sequence) | {"ngram_start": np.array(start, dtype=np.int64)}
