"""T5's span corruption: the encoder reads text with holes, the decoder fills them (arXiv:1910.10683, 3.1.4)."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from megaptm.batch import IGNORED, BatchSpec, fields
from megaptm.errors import UserError
from megaptm.objectives.denoise import Denoise, hidden_after_sentinels, random_spans, sentinel_per_span, span_counts
from megaptm.objectives.objective import Objective, Piece, Rate, RowWindow, Sample, documents_of, padded
from megaptm.objectives.vocabulary import SpecialTokens

RATE, MEAN = 0.15, 3.0


@dataclass(frozen=True)
class SpanCorruption(Objective):
    """Each document of a row is noised by itself, with its own sentinels, end and number on both sides."""

    rate: Rate = RATE
    """Share of the tokens that are hidden."""
    mean: Annotated[float, Field(ge=1)] = MEAN
    """Mean length of a hidden span."""

    name = "span-corruption"
    losses: ClassVar = {"lm": 1.0}
    needs = ("pad", "end")
    template: ClassVar = ("A end", "A end B end")

    def input_length(self, raw: int) -> int:
        """Encoder tokens that `raw` tokens become: what is kept, a sentinel a span, the end."""
        noise, spans = span_counts(raw, rate=self.rate, mean=self.mean)
        return raw - noise + spans + 1

    def target_length(self, raw: int) -> int:
        """Decoder tokens that `raw` tokens become: what is hidden, a sentinel a span, the end."""
        noise, spans = span_counts(raw, rate=self.rate, mean=self.mean)
        return noise + spans + 1

    def raw_length(self, sequence: int) -> int:
        """The most raw tokens that fit an encoder of `sequence`: 568 for 512, whose targets are 114 long."""
        return _raw_length(self, sequence)

    def cut(self, sequence: int, document_mask: bool) -> RowWindow:
        return RowWindow(stride=self.raw_length(sequence))

    def batch(self, sequence: int, document_mask: bool) -> BatchSpec:
        targets = self.target_length(self.raw_length(sequence))
        said = fields((targets,), "decoder_tokens", "decoder_document_ids", "labels")
        return BatchSpec({"": sequence, "decoder_": targets}, fields((sequence,), "tokens", "document_ids") | said)

    def check(self, special: SpecialTokens, sequence: int) -> None:
        super().check(special, sequence)
        _, spans = span_counts(self.raw_length(sequence), rate=self.rate, mean=self.mean)
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
        targets = self.target_length(self.raw_length(sequence))
        texts = [part.tokens.astype(np.int64) for part in piece]
        texts = self._fitting(texts, sequence, targets) if document_mask else [np.concatenate(texts)]
        start, end = np.array([special.pad]), np.array([special.end])
        hide = random_spans(rate=self.rate, mean=self.mean)
        noise = Denoise(hide=hide, show=sentinel_per_span, ask=hidden_after_sentinels)
        inputs, spoken, heard = [], [], []
        for text in texts:
            _, shown, asked = noise(text, special, rng)
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

    def _fitting(self, texts: list[np.ndarray], inputs: int, targets: int) -> list[np.ndarray]:
        """The texts that fit the two rows once noised; the first that does not is shortened, the rest dropped.

        A row that holds one document is exactly full. Each further document costs an end on both sides, and the short
        decoder row feels it first: about 7 raw tokens each, 1 to 2% of a corpus whose documents fill a row.
        """
        fit: list[np.ndarray] = []
        for text in texts:
            room = min(
                bisect_right(range(len(text) + 1), inputs, key=self.input_length) - 1,
                bisect_right(range(len(text) + 1), targets, key=self.target_length) - 1,
            )
            if room < 1:
                break
            fit.append(text[:room])
            inputs -= self.input_length(room)
            targets -= self.target_length(room)
            if room < len(text):
                break
        return fit


@lru_cache
def _raw_length(task: SpanCorruption, sequence: int) -> int:
    # One raw token more is one encoder token more or none, so every length of at least 2 is filled exactly; but where
    # spans are long and many, 2 tokens of text may add none, and 1 / (1 - rate) times the row is not enough.
    most = int(sequence / (1 - task.rate)) + sequence + 2
    return bisect_right(range(most), sequence, key=task.input_length) - 1
