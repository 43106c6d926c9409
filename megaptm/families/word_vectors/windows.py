"""Word vectors from context windows: skip-gram and CBOW (arXiv:1301.3781, arXiv:1310.4546).

A sample holds plain text and a seed. The compiled training code (`words`) derives everything random from the seed and
the corpus counts: subsampling of frequent words, window sizes, negative samples.
"""

# S tokens of a sequence

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from megaptm.batch import BatchField, BatchSpec, batch_fields
from megaptm.errors import UserError
from megaptm.objectives.objective import (
    DocumentSlice,
    Objective,
    Piece,
    Sample,
    SampleContext,
    SequenceWindow,
    documents_and_positions,
)
from megaptm.objectives.vocabulary import SpecialTokens

WindowWords = Annotated[int, Field(ge=1, le=100)]
Negatives = Annotated[int, Field(ge=1, le=100)]
NoisePower = Annotated[float, Field(ge=0, le=2)]
Threshold = Annotated[float, Field(ge=0, le=1)]
MinimumCount = Annotated[int, Field(ge=1)]

HUFFMAN, SOFTMAX = "hierarchical-softmax", "softmax"


class PlainTextObjective(Objective):
    """Base of objectives whose samples are plain text without special tokens, and random numbers."""

    template = ("A", "A B")
    prompts = ()

    def raw_length(self, sequence: int) -> int:
        return sequence

    def sequence_window(self, sequence: int, document_mask: bool) -> SequenceWindow:
        return SequenceWindow(stride=sequence)

    @staticmethod
    def text_sample(parts: list[DocumentSlice], document_mask: bool) -> Sample:
        """Return a plain text sample for word vectors, `tokens` and `document_ids`, int64 [S] each."""
        lengths = [len(part.tokens) for part in parts]
        text = np.concatenate([part.tokens for part in parts]).astype(np.int64)
        documents, _ = documents_and_positions(lengths if document_mask else [len(text)], len(text))
        return {"tokens": text, "document_ids": documents}


@dataclass(frozen=True)
class WordWindows(PlainTextObjective):
    """Options of skip-gram and CBOW. Defaults are those of the released code."""

    window: WindowWords = 5
    """Maximum number of context words on each side."""
    shrink: bool = True
    """Whether the size of each window is sampled from 1 to `window`, or is always `window`."""
    output: Literal["negative-sampling", "hierarchical-softmax", "softmax"] = "negative-sampling"
    """Output layer: negative sampling, hierarchical softmax along a Huffman tree, or full softmax, which the others
    approximate (arXiv:1310.4546, equation 2) and whose cost grows with the vocabulary."""
    negatives: Negatives = 5
    """Number of negative samples per label (negative-sampling)."""
    noise_power: NoisePower = 0.75
    """Exponent of word counts in the noise distribution (negative-sampling)."""
    subsample: Threshold = 1e-3
    """Relative frequency above which words are subsampled; 0: never."""
    min_count: MinimumCount = 5
    """Minimum number of occurrences of a word. Less frequent words are skipped, as words without an id are."""
    sigmoid: Literal["table", "exact"] = "table"
    """Sigmoid of skip-gram and CBOW: from a table of 1,000 values without updates beyond ±6 (released code), or
    exact."""

    def batch_spec(self, sequence: int, document_mask: bool) -> BatchSpec:
        return BatchSpec(
            {"": sequence}, {**batch_fields((sequence,), "tokens", "document_ids"), "seed": BatchField(())}
        )

    def make_sample(self, piece: Piece, context: SampleContext) -> Sample:
        assert isinstance(piece, list)
        return self.text_sample(piece, context.document_mask) | {"seed": np.array(context.rng.integers(1 << 62))}

    def check(self, special: SpecialTokens, sequence: int) -> None:
        super().check(special, sequence)
        if self.output == HUFFMAN and len(special.ordinary_ids) < 2:
            raise UserError(
                "output: hierarchical-softmax needs a vocabulary of two words or more: build the corpus "
                "with another tokenizer."
            )


@dataclass(frozen=True)
class SkipGram(WordWindows):
    """Objective skip-gram: predict the center word from each context word."""

    name = "skip-gram"
    losses: ClassVar = {"skip-gram": 1.0}


@dataclass(frozen=True)
class CBOW(WordWindows):
    """Objective CBOW: predict the center word from the mean of its context words."""

    name = "cbow"
    losses: ClassVar = {"cbow": 1.0}
