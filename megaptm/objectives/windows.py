"""Words from the words around them: skip-gram and CBOW (arXiv:1301.3781, arXiv:1310.4546).

A row holds plain text and one number. What is drawn - which frequent words are passed over, how wide each window is,
which words are noise - follows from that number and the corpus's counts, in the compiled code that learns (`words`).
"""

# S tokens of a row

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from megaptm.batch import BatchSpec, fields
from megaptm.batch import Field as BatchField
from megaptm.errors import UserError
from megaptm.objectives.objective import (
    DocumentSlice,
    Objective,
    Piece,
    RowWindow,
    Sample,
    SampleContext,
    documents_of,
)
from megaptm.objectives.vocabulary import SpecialTokens

WindowWords = Annotated[int, Field(ge=1, le=100)]
Negatives = Annotated[int, Field(ge=1, le=100)]
NoisePower = Annotated[float, Field(ge=0, le=2)]
Threshold = Annotated[float, Field(ge=0, le=1)]
MinimumCount = Annotated[int, Field(ge=1)]

HUFFMAN, SOFTMAX = "hierarchical-softmax", "softmax"


class PlainRows(Objective):
    """Base of tasks whose rows are text as it stands, full of words, and numbers by which something is drawn."""

    template = ("A", "A B")
    prompts = ()

    def raw_length(self, sequence: int) -> int:
        return sequence

    def cut(self, sequence: int, document_mask: bool) -> RowWindow:
        return RowWindow(stride=sequence)

    @staticmethod
    def text_of(parts: list[DocumentSlice], document_mask: bool) -> Sample:
        """int64 [S] twice: `tokens`, and the document of each."""
        lengths = [len(part.tokens) for part in parts]
        text = np.concatenate([part.tokens for part in parts]).astype(np.int64)
        documents, _ = documents_of(lengths if document_mask else [len(text)], len(text))
        return {"tokens": text, "document_ids": documents}


@dataclass(frozen=True)
class WordWindows(PlainRows):
    """What skip-gram and CBOW have in common; the defaults are those of the released code."""

    window: WindowWords = 5
    """Words to a side of the widest window."""
    shrink: bool = True
    """Whether each window is as wide as a draw from 1 to `window`, or as wide as that always."""
    output: Literal["negative-sampling", "hierarchical-softmax", "softmax"] = "negative-sampling"
    """How a word is told from others: from some that are drawn, along its path in a Huffman tree, or from all, which is
    what the others stand for (arXiv:1310.4546, equation 2), and takes as long for each answer as there are words."""
    negatives: Negatives = 5
    """Words that are drawn for each that is asked (negative-sampling)."""
    noise_power: NoisePower = 0.75
    """Words are drawn by this power of their count (negative-sampling)."""
    subsample: Threshold = 1e-3
    """Share of the text from which on a word is passed over now and then; 0: never."""
    min_count: MinimumCount = 5
    """Words that come less often are passed over always, as those without an id are."""
    sigmoid: Literal["table", "exact"] = "table"
    """From a table of 1,000 numbers, and no update beyond ±6, as the released code has it; or exact."""

    def batch(self, sequence: int, document_mask: bool) -> BatchSpec:
        return BatchSpec({"": sequence}, {**fields((sequence,), "tokens", "document_ids"), "seed": BatchField(())})

    def make(self, piece: Piece, context: SampleContext) -> Sample:
        assert isinstance(piece, list)
        return self.text_of(piece, context.document_mask) | {"seed": np.array(context.rng.integers(1 << 62))}

    def check(self, special: SpecialTokens, sequence: int) -> None:
        super().check(special, sequence)
        if self.output == HUFFMAN and len(special.ordinary) < 2:
            raise UserError("hierarchical-softmax needs two words or more: build the corpus with another tokenizer.")


@dataclass(frozen=True)
class SkipGram(WordWindows):
    """Each word of a window says the word in its middle."""

    name = "skip-gram"
    losses: ClassVar = {"skip-gram": 1.0}


@dataclass(frozen=True)
class CBOW(WordWindows):
    """The mean of a window's words says the word in its middle."""

    position_weights: bool = False
    """Whether each place of the window, counted from its middle, has numbers that the vector of the word there is
    multiplied by; they are learned, too (arXiv:1712.09405, section 2.2)."""

    name = "cbow"
    losses: ClassVar = {"cbow": 1.0}
