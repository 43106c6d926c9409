"""Masked tokens, on rows of documents and on pairs of texts that are asked about (BERT, arXiv:1810.04805, 3.1)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np

from megaptm.batch import IGNORED, BatchSpec, fields
from megaptm.errors import UserError, nearest
from megaptm.objectives.denoise import HIDES, Denoise, Hide, hidden_in_place, masked
from megaptm.objectives.objective import (
    DocumentSlice,
    Objective,
    Piece,
    Rate,
    RowWindow,
    Sample,
    SentenceGroup,
    Share,
    documents_of,
    padded,
)
from megaptm.objectives.pairs import PAIRS, Pair
from megaptm.objectives.vocabulary import SpecialTokens
from megaptm.plugins import is_plugin, load_plugin

RATE = 0.15
# The caps of the published runs; 0.15 x 128 is 19.2 and 0.15 x 512 is 76.8.
PUBLISHED_MOST_ASKED = {128: 20, 512: 76}


ONE = np.ones(1, dtype=np.int64)


def most_asked(sequence: int, rate: float = RATE) -> int:
    """K: how many positions a row of `sequence` tokens can ask about."""
    most = max(1, round(rate * sequence))
    return PUBLISHED_MOST_ASKED.get(sequence, most) if rate == RATE else most


@dataclass(frozen=True)
class MaskedRow:
    """A row before noise: its text with `cls` and `sep` in place (not padded), segments and documents."""

    text: list[np.ndarray]
    segments: list[int]
    """Segment of each piece of `text`."""
    documents: list[int]
    """Tokens of each document."""


@dataclass(frozen=True)
class MaskedLM(Objective):
    """Masked tokens on rows packed with documents, each `cls` text `sep`."""

    hide: str = "tokens"
    """What is hidden together: one of `denoise.HIDES`, or a function of your own, package.module:NAME."""
    rate: Rate = RATE
    """Share of the tokens that are hidden and asked about."""
    mask: Share = 0.8
    """Share of the hidden tokens that are shown as the mask."""
    random: Share = 0.1
    """Share that is shown as a random token; what remains is shown as it is."""

    losses: ClassVar = {"mlm": 1.0}
    needs = ("pad", "cls", "sep", "mask")
    template: ClassVar = ("cls A sep", "cls A sep B sep")

    def __post_init__(self) -> None:
        _ = self._hiding
        if self.mask + self.random > 1:
            raise UserError(
                f"mask ({self.mask}) and random ({self.random}) are more than all hidden tokens: lower one."
            )

    @property
    def name(self) -> str:  # type: ignore[override]  # a constant of other objectives
        return {"tokens": "masked-lm", "whole-words": "masked-lm-whole-word"}.get(self.hide, f"masked-lm-{self.hide}")

    @property
    def annotations(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("words",) if self.hide == "whole-words" else ()

    @property
    def _hiding(self) -> Callable[..., Hide]:
        if is_plugin(self.hide):
            found: Callable[..., Hide] = load_plugin(self.hide, "hide", "function")
            if not callable(found):
                raise UserError(f"hide: `{self.hide}` is not a function: correct the name.")
            return found
        if self.hide not in HIDES:
            raise UserError(f"hide ({self.hide}) is not known; {nearest(self.hide, HIDES)}")
        return HIDES[self.hide]

    def raw_length(self, sequence: int) -> int:
        return sequence - 2

    def cut(self, sequence: int, document_mask: bool) -> RowWindow:
        # Whatever borders a row holds, only its ends may need a cls or sep that no slot was counted for: hence - 2.
        # Unmasked, the row is one document and a sep stands between neighbors (RoBERTa's FULL-SENTENCES).
        return RowWindow(stride=sequence - 2, slots=2 if document_mask else 1)

    def batch(self, sequence: int, document_mask: bool) -> BatchSpec:
        row = fields((sequence,), "tokens", "segments", "positions", "document_ids")
        return BatchSpec({"": sequence}, row | fields((most_asked(sequence, self.rate),), "masked_positions", "labels"))

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
        begins = None
        if self.annotations:
            begins = np.concatenate(laid_out([_begins(part) for part in piece], piece, ONE, ONE, document_mask))
        return self.mask_row(row, special, rng, sequence, begins)

    def mask_row(
        self,
        row: MaskedRow,
        special: SpecialTokens,
        rng: np.random.Generator,
        sequence: int,
        begins: np.ndarray | None = None,
    ) -> Sample:
        """Hide, show and ask over the whole row, so that the share hidden is the same however many documents it holds.

        `begins` is 1 at the first token of each word, where words are hidden.
        """
        assert special.pad is not None
        text = padded(row.text, sum(row.documents), 0)
        most = most_asked(sequence, self.rate)
        hide = self._hiding(rate=self.rate, most=most, **({} if begins is None else {"begins": begins}))
        masking = Denoise(hide=hide, show=masked(mask=self.mask, random=self.random), ask=hidden_in_place)
        hidden, shown, answers = masking(text, special, rng)
        documents, positions = documents_of(row.documents, sequence)
        segments = [np.full(len(piece), segment) for piece, segment in zip(row.text, row.segments, strict=True)]
        return {
            "tokens": padded([shown], sequence, special.pad),
            "segments": padded(segments, sequence, 0),
            "positions": positions,
            "document_ids": documents,
            "masked_positions": padded([np.flatnonzero(hidden)], most, 0),
            "labels": padded([answers], most, IGNORED),
        }


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


def _begins(part: DocumentSlice) -> np.ndarray:
    """int64 [tokens]: 1 where a word begins; a word that the row cut in two is a word by itself."""
    begins = np.zeros(len(part.tokens), dtype=np.int64)
    begins[part.annotations["words"]] = 1
    begins[:1] = 1
    return begins


@dataclass(frozen=True)
class MaskedLMOnPairs(Objective):
    """Masked tokens in `cls` A `sep` B `sep`, and a question about the two texts; see `pairs` for those there are."""

    question: Literal["next-sentence", "sentence-order"] = "next-sentence"
    masked: MaskedLM = MaskedLM()

    unit = "pair"
    needs = MaskedLM.needs
    template: ClassVar = ("cls A sep", "cls A sep B:1 sep:1")

    def __post_init__(self) -> None:
        if self.masked.annotations:
            raise UserError(f"hide {self.masked.hide} cannot be with {self.question}: a pair is not cut at words.")

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"masked-lm-{self.question}"

    @cached_property
    def losses(self) -> Mapping[str, float]:  # type: ignore[override]
        return {"mlm": 1.0, self.question: 1.0}

    @property
    def answers(self) -> str:
        """The field with the answer to the question."""
        return self.question.replace("-", "_")

    def raw_length(self, sequence: int) -> int:
        return sequence - 3

    def batch(self, sequence: int, document_mask: bool) -> BatchSpec:
        masked = self.masked.batch(sequence, document_mask)
        return BatchSpec(masked.streams, {**masked.fields, **fields((), self.answers)})

    def make(
        self,
        piece: Piece,
        special: SpecialTokens,
        rng: np.random.Generator,
        sequence: int,
        document_mask: bool,
    ) -> Sample:
        assert isinstance(piece, SentenceGroup)
        pair: Pair = PAIRS[self.question](piece, rng, self.raw_length(sequence))
        cls, sep = np.array([special.cls]), np.array([special.sep])
        text = [np.concatenate((cls, pair.first, sep)), np.concatenate((pair.second, sep))]
        row = MaskedRow(text, [0, 1], [sum(map(len, text))])
        sample = self.masked.mask_row(row, special, rng, sequence)
        return sample | {self.answers: np.array(pair.label, dtype=np.int64)}
