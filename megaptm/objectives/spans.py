"""T5's span corruption: the encoder reads text with holes, the decoder fills them (arXiv:1910.10683, 3.1.4)."""

from __future__ import annotations

from bisect import bisect_right
from functools import lru_cache
from typing import ClassVar

import numpy as np

from megaptm.batch import BatchSpec, fields
from megaptm.errors import UserError
from megaptm.objectives.denoise import Denoise, hidden_after_sentinels, random_spans, sentinel_per_span, span_counts
from megaptm.objectives.objective import IGNORED, Objective, Piece, RowWindow, Sample, documents_of, padded
from megaptm.objectives.vocabulary import SpecialTokens

RATE, MEAN = 0.15, 3.0

T5_SPANS = Denoise(hide=random_spans(rate=RATE, mean=MEAN), show=sentinel_per_span, ask=hidden_after_sentinels)


def input_length(raw: int) -> int:
    """Encoder tokens that `raw` tokens become: what is kept, a sentinel a span, the end."""
    noise, spans = span_counts(raw, rate=RATE, mean=MEAN)
    return raw - noise + spans + 1


def target_length(raw: int) -> int:
    """Decoder tokens that `raw` tokens become: what is hidden, a sentinel a span, the end."""
    noise, spans = span_counts(raw, rate=RATE, mean=MEAN)
    return noise + spans + 1


@lru_cache
def raw_length(sequence: int) -> int:
    """The most raw tokens that fit an encoder of `sequence` tokens: 568 for 512, whose targets are 114 long."""
    # One raw token more is one encoder token more or none, so every length of at least 2 is filled exactly.
    return bisect_right(range(2 * sequence), sequence, key=input_length) - 1


class SpanCorruption(Objective):
    """Each document of a row is noised by itself, with its own sentinels, end and number on both sides."""

    name = "span-corruption"
    losses: ClassVar = {"lm": 1.0}
    needs = ("pad", "end")
    template: ClassVar = ("A end", "A end B end")

    def raw_length(self, sequence: int) -> int:
        return raw_length(sequence)

    def cut(self, sequence: int, document_mask: bool) -> RowWindow:
        return RowWindow(stride=raw_length(sequence))

    def batch(self, sequence: int, document_mask: bool) -> BatchSpec:
        targets = target_length(raw_length(sequence))
        said = fields((targets,), "decoder_tokens", "decoder_document_ids", "labels")
        return BatchSpec({"": sequence, "decoder_": targets}, fields((sequence,), "tokens", "document_ids") | said)

    def check(self, special: SpecialTokens, sequence: int) -> None:
        super().check(special, sequence)
        _, spans = span_counts(raw_length(sequence), rate=RATE, mean=MEAN)
        if spans > len(special.sentinels):
            raise UserError(
                f"objective {self.name} hides {spans} spans in a row of {sequence} tokens but the tokenizer has "
                f"{len(special.sentinels)} sentinels: use a tokenizer with more, or a shorter data.sequence."
            )

    def make(
        self,
        piece: Piece,
        special: SpecialTokens,
        rng: np.random.Generator,
        sequence: int,
        document_mask: bool,
    ) -> Sample:
        assert isinstance(piece, list)
        assert special.pad is not None
        targets = target_length(raw_length(sequence))
        texts = [part.tokens.astype(np.int64) for part in piece]
        texts = fitting(texts, sequence, targets) if document_mask else [np.concatenate(texts)]
        start, end = np.array([special.pad]), np.array([special.end])
        inputs, spoken, heard = [], [], []
        for text in texts:
            _, shown, asked = T5_SPANS(text, special, rng)
            inputs.append(np.concatenate((shown, end)))
            spoken.append(np.concatenate((asked, end)))
            heard.append(np.concatenate((start, asked)))
        return {
            "tokens": padded(inputs, sequence, special.pad),
            "document_ids": documents_of([len(text) for text in inputs], sequence)[0],
            "decoder_tokens": padded(heard, targets, special.pad),
            "decoder_document_ids": documents_of([len(text) for text in heard], targets)[0],
            "labels": padded(spoken, targets, IGNORED),
        }


def fitting(texts: list[np.ndarray], inputs: int, targets: int) -> list[np.ndarray]:
    """The texts that fit the two rows once noised; the first that does not is shortened, and those after it dropped.

    A row that holds one document is exactly full. Each further document costs an end on both sides, and the short
    decoder row feels it first: about 7 raw tokens each, 1 to 2% of a corpus whose documents fill a row.
    """
    fit: list[np.ndarray] = []
    for text in texts:
        room = min(
            bisect_right(range(len(text) + 1), inputs, key=input_length) - 1,
            bisect_right(range(len(text) + 1), targets, key=target_length) - 1,
        )
        if room < 1:
            break
        fit.append(text[:room])
        inputs -= input_length(room)
        targets -= target_length(room)
        if room < len(text):
            break
    return fit
