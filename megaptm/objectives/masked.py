"""BERT's objectives: say the masked tokens, and whether two texts follow each other (arXiv:1810.04805, 3.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from megaptm.batch import BatchSpec, fields
from megaptm.objectives.denoise import Denoise, hidden_in_place, iid, masked
from megaptm.objectives.objective import (
    IGNORED,
    DocumentSlice,
    Objective,
    Piece,
    RowWindow,
    Sample,
    SentenceGroup,
    documents_of,
    padded,
)
from megaptm.objectives.pairs import Pair, next_sentence_pair
from megaptm.objectives.vocabulary import SpecialTokens

RATE = 0.15
# The caps of the published runs; 0.15 x 128 is 19.2 and 0.15 x 512 is 76.8.
PUBLISHED_MOST_ASKED = {128: 20, 512: 76}


def most_asked(sequence: int) -> int:
    """K: how many positions a row of `sequence` tokens can ask about."""
    return PUBLISHED_MOST_ASKED.get(sequence, max(1, round(RATE * sequence)))


def bert_masking(sequence: int) -> Denoise:
    """15% of the tokens; of these 80% become the mask, 10% a random token, 10% stay."""
    return Denoise(
        hide=iid(rate=RATE, most=most_asked(sequence)), show=masked(mask=0.8, random=0.1), ask=hidden_in_place
    )


@dataclass(frozen=True)
class MaskedRow:
    """A row before noise: its text with `cls` and `sep` in place (not padded), segments and documents."""

    text: list[np.ndarray]
    segments: list[int]
    """Segment of each piece of `text`."""
    documents: list[int]
    """Tokens of each document."""


class MaskedLM(Objective):
    """Masked tokens on rows packed with documents, each `cls` text `sep`."""

    name = "masked-lm"
    losses: ClassVar = {"mlm": 1.0}
    needs = ("pad", "cls", "sep", "mask")
    template: ClassVar = ("cls A sep", "cls A sep B sep")

    def raw_length(self, sequence: int) -> int:
        return sequence - 2

    def cut(self, sequence: int, document_mask: bool) -> RowWindow:
        # Whatever borders a row holds, only its ends may need a cls or sep that no slot was counted for: hence - 2.
        # Unmasked, the row is one document and a sep stands between neighbors (RoBERTa's FULL-SENTENCES).
        return RowWindow(stride=sequence - 2, slots=2 if document_mask else 1)

    def batch(self, sequence: int, document_mask: bool) -> BatchSpec:
        row = fields((sequence,), "tokens", "segments", "positions", "document_ids")
        return BatchSpec({"": sequence}, row | fields((most_asked(sequence),), "masked_positions", "labels"))

    def make(
        self,
        piece: Piece,
        special: SpecialTokens,
        rng: np.random.Generator,
        sequence: int,
        document_mask: bool,
    ) -> Sample:
        assert isinstance(piece, list)
        cls, sep = np.array([special.cls]), np.array([special.sep])
        texts = laid_out([part.tokens for part in piece], piece, cls, sep, document_mask)
        row = MaskedRow(texts, [0] * len(texts), [len(text) for text in texts])
        return mask_row(row, self.masking(piece, sequence, document_mask), special, rng, sequence)

    def masking(self, piece: list[DocumentSlice], sequence: int, document_mask: bool) -> Denoise:
        """How this row is spoiled."""
        return bert_masking(sequence)


def laid_out(
    pieces: list[np.ndarray], parts: list[DocumentSlice], cls: np.ndarray, sep: np.ndarray, document_mask: bool
) -> list[np.ndarray]:
    """What each document of a row holds: a `cls`, the piece of its part, a `sep`; without document mask all as one."""
    if document_mask:
        return [np.concatenate((cls, piece, sep)) for piece in pieces if len(piece)]
    between = [
        array for piece, part in zip(pieces, parts, strict=True) for array in (piece, np.repeat(sep, part.slots))
    ]
    return [np.concatenate((cls, *between, sep[: not parts[-1].slots]))]


class MaskedLMNextSentence(Objective):
    """Masked tokens in `cls` A `sep` B `sep`, and whether B follows A (label 0) or is a random text (label 1)."""

    name = "masked-lm-next-sentence"
    losses: ClassVar = {"mlm": 1.0, "next-sentence": 1.0}
    unit = "pair"
    needs = MaskedLM.needs
    template: ClassVar = ("cls A sep", "cls A sep B:1 sep:1")

    def raw_length(self, sequence: int) -> int:
        return sequence - 3

    def batch(self, sequence: int, document_mask: bool) -> BatchSpec:
        masked = MaskedLM().batch(sequence, document_mask)
        return BatchSpec(masked.streams, {**masked.fields, **fields((), "next_sentence")})

    def make(
        self,
        piece: Piece,
        special: SpecialTokens,
        rng: np.random.Generator,
        sequence: int,
        document_mask: bool,
    ) -> Sample:
        assert isinstance(piece, SentenceGroup)
        pair: Pair = next_sentence_pair(piece, rng, self.raw_length(sequence))
        cls, sep = np.array([special.cls]), np.array([special.sep])
        text = [np.concatenate((cls, pair.first, sep)), np.concatenate((pair.second, sep))]
        row = MaskedRow(text, [0, 1], [sum(map(len, text))])
        sample = mask_row(row, bert_masking(sequence), special, rng, sequence)
        return sample | {"next_sentence": np.array(pair.random, dtype=np.int64)}


def mask_row(
    row: MaskedRow, masking: Denoise, special: SpecialTokens, rng: np.random.Generator, sequence: int
) -> Sample:
    """Hide, show and ask over the whole row, so that the share hidden is the same however many documents it holds."""
    assert special.pad is not None
    text = padded(row.text, sum(row.documents), 0)
    hidden, shown, answers = masking(text, special, rng)
    documents, positions = documents_of(row.documents, sequence)
    segments = [np.full(len(piece), segment) for piece, segment in zip(row.text, row.segments, strict=True)]
    most = most_asked(sequence)
    return {
        "tokens": padded([shown], sequence, special.pad),
        "segments": padded(segments, sequence, 0),
        "positions": positions,
        "document_ids": documents,
        "masked_positions": padded([np.flatnonzero(hidden)], most, 0),
        "labels": padded([answers], most, IGNORED),
    }
