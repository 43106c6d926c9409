"""Masked language modeling on packed documents and on pairs of texts (BERT, arXiv:1810.04805, 3.1)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from inspect import signature
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from megaptm.batch import IGNORED, BatchSpec, fields
from megaptm.errors import UserError, nearest
from megaptm.objectives.denoise import Denoise, Hide, Show
from megaptm.objectives.global_tokens import GlobalTokens, first_places
from megaptm.objectives.hide import HIDES
from megaptm.objectives.objective import (
    DocumentSlice,
    Objective,
    Piece,
    Rate,
    RowWindow,
    Sample,
    SampleContext,
    SentenceGroup,
    Share,
    Weight,
    documents_of,
    marked,
    padded,
    units,
)
from megaptm.objectives.show_ask import SHOWS, check_shares, hidden_in_place
from megaptm.objectives.similar import REMEDY, SimilarWords, similar_named
from megaptm.objectives.text_questions import LabeledTexts, QuestionObjective, field_of
from megaptm.objectives.vocabulary import SpecialTokens
from megaptm.plugins import is_plugin, load_plugin

RATE = 0.15
# Limits of the published runs; 0.15 x 128 is 19.2 and 0.15 x 512 is 76.8.
PUBLISHED_MOST_ASKED = {128: 20, 512: 76}


ANNOTATIONS_OF: dict[str, tuple[str, ...]] = {
    "tokens": (),
    "words": ("words",),
    "phrases": ("words", "phrases"),
    "entities": ("words", "tags"),
}
"""Unit of masking -> annotations that give the units."""

ROW = ("tokens", "segments", "positions", "document_ids")
"""Batch fields that the model reads."""

ONE = np.ones(1, dtype=np.int64)


def most_asked(sequence: int, rate: float = RATE) -> int:
    """Return K, the largest number of target positions of a sequence."""
    most = max(1, round(rate * sequence))
    return PUBLISHED_MOST_ASKED.get(sequence, most) if rate == RATE else most


@dataclass(frozen=True)
class MaskedRow:
    """Sequence before masking: text with `cls` and `sep` but without padding, segments and documents."""

    text: list[np.ndarray]
    segments: list[int]
    """Segment of each piece of `text`."""
    documents: list[int]
    """Number of tokens of each document."""

    def fields(self, shown: list[np.ndarray], special: SpecialTokens, sequence: int) -> Sample:
        """Return the fields that the model reads, with `shown` instead of the text."""
        assert special.pad is not None
        documents, positions = documents_of(self.documents, sequence)
        segments = [np.full(len(piece), segment) for piece, segment in zip(self.text, self.segments, strict=True)]
        return {
            "tokens": padded(shown, sequence, special.pad),
            "segments": padded(segments, sequence, 0),
            "positions": positions,
            "document_ids": documents,
        }

    @classmethod
    def of_texts(cls, documents: list[LabeledTexts], special: SpecialTokens) -> MaskedRow:
        """Build from documents of texts: `cls` A `sep` B `sep`."""
        opens, sep = np.array([special.cls]), np.array([special.sep])
        row = cls([], [], [])
        for made in documents:
            text = [np.concatenate((tokens_of(one), sep)) for one in made.texts]
            text[0] = np.concatenate((opens, text[0]))
            row.text.extend(text)
            row.segments.extend(made.segments)
            row.documents.append(sum(map(len, text)))
        return row

    @classmethod
    def of_documents(cls, piece: list[DocumentSlice], special: SpecialTokens, document_mask: bool) -> MaskedRow:
        """Build from documents: `cls` text `sep`. Without a document mask all are one document, with `sep` between
        them."""
        opens, sep = np.array([special.cls]), np.array([special.sep])
        text = laid_out([part.tokens for part in piece], piece, opens, sep, document_mask)
        return cls(text, [0] * len(text), [len(one) for one in text])


@dataclass(frozen=True)
class MaskedLM(Objective):
    """Masked language modeling on packed documents, each `cls` text `sep`."""

    hide: str = "tokens"
    """Masking strategy: a key of `hide.HIDES`, or a custom function, package.module:NAME."""
    rate: Rate = RATE
    """Share of tokens that are masked and predicted."""
    units: Literal["tokens", "words", "phrases", "entities"] = "words"
    """Unit of whole-word masking: tokens; words; phrases; or entities (tagged spans). Outside of phrases and entities
    the unit is a word."""
    lengths: Annotated[tuple[Weight, ...], Field(min_length=1)] = ()
    """Relative frequencies of 1, 2 ... words masked together, for n-grams and spans. Empty: as in the paper."""
    show: str = "tokens"
    """Replacement of masked tokens: a key of `show_ask.SHOWS`, or a custom function, package.module:NAME."""
    mask: Share = 0.8
    """Share of masked tokens that are replaced by the mask token, or by a similar word."""
    random: Share = 0.1
    """Share of masked tokens that are replaced by a random token. The rest is unchanged."""
    similar: str | None = None
    """Source of similar words: a file made by `megaptm corpus similar-words`, or a custom function."""
    global_tokens: GlobalTokens = 0
    """Number of global tokens at the start of each document, for window or block attention (Longformer,
    BigBird-ETC)."""

    losses: ClassVar = {"mlm": 1.0}
    needs = ("pad", "cls", "sep", "mask")
    prompts = ("masks",)
    template: ClassVar = ("cls A sep", "cls A sep B sep")

    def __post_init__(self) -> None:
        if self.units != "words" and "begins" not in _parameters(self._hiding):
            raise UserError(f"units ({self.units}) means nothing to hide {self.hide}: remove it, or hide whole-words.")
        for option, ways in (("lengths", self._hiding), ("similar", self._showing)):
            if getattr(self, option) and option not in _parameters(ways):
                said = "hide" if option == "lengths" else "show"
                raise UserError(f"{option} means nothing to {said} {getattr(self, said)}: remove it.")
        if self.lengths and not sum(self.lengths) > 0:
            raise UserError(f"lengths ({[*self.lengths]}) are all 0: say how often 1, 2 ... words are hidden together.")
        if not self.mask + self.random and "mask" in _parameters(self._showing):
            raise UserError("mask and random are both 0, so that all that is asked would be shown: raise one.")
        check_shares(self.mask, self.random)

    @property
    def name(self) -> str:  # type: ignore[override] # a constant of other objectives
        hide = {"tokens": "", "whole-words": "-whole-word"}.get(self.hide, f"-{self.hide}")
        hide += "" if self.units == "words" else f"-{self.units}"
        # SpanBERT's span masking and replacement share one name.
        return "masked-lm" + hide + ("" if self.show in ("tokens", self.hide) else f"-{self.show}")

    @cached_property
    def annotations(self) -> tuple[str, ...]:  # type: ignore[override]
        if "begins" not in _parameters(self._hiding) | _parameters(self._showing):
            return ()
        return ANNOTATIONS_OF[self.units]

    @cached_property
    def _hiding(self) -> Callable[..., Hide]:
        return _named("hide", self.hide, HIDES)

    @cached_property
    def _showing(self) -> Callable[..., Show]:
        return _named("show", self.show, SHOWS)

    def check(self, special: SpecialTokens, sequence: int) -> None:
        super().check(special, sequence)
        if "similar" not in _parameters(self._showing):
            return
        if self.similar is None:
            raise UserError(
                f"objective {self.name} shows similar words and has none: give masked-lm the option `similar`, a file; "
                f"{REMEDY}, and see `megaptm config show macbert/tiny`."
            )
        similar = similar_named(self.similar)
        if isinstance(similar, SimilarWords) and similar.largest >= special.size:
            raise UserError(
                f"similar: {self.similar} has ids up to {similar.largest}, the tokenizer {special.size}: it is of "
                f"another; {REMEDY}."
            )

    def question_misfit(self, texts: int) -> str | None:
        """Return why a question about `texts` texts cannot be combined with this objective. None if it can."""
        return None

    def text_fields(self, length: int) -> Sample:
        return first_places(self.global_tokens, np.arange(length))

    def raw_length(self, sequence: int) -> int:
        return sequence - 2

    def most_asked(self, sequence: int) -> int:
        """Return K, the largest number of target positions of a sequence."""
        if self.hide != "independent":
            return most_asked(sequence, self.rate)
        # The number is binomial, with more variance for long units: four standard deviations for units of three tokens.
        mean = self.rate * sequence
        return min(sequence, math.ceil(mean + 4 * math.sqrt(3 * mean)))

    def cut(self, sequence: int, document_mask: bool) -> RowWindow:
        return enclosed_window(sequence, document_mask)

    def batch(self, sequence: int, document_mask: bool) -> BatchSpec:
        asked = fields((self.most_asked(sequence),), "masked_positions", "labels")
        row = (*ROW, "global_tokens") if self.global_tokens else ROW
        return BatchSpec({"": sequence}, fields((sequence,), *row) | asked)

    def make(self, piece: Piece, context: SampleContext) -> Sample:
        assert isinstance(piece, list)
        row = MaskedRow.of_documents(piece, context.special, context.document_mask)
        begins = None
        if self.annotations:
            begun = [units(marked(part.tokens, part.annotations)) for part in piece]
            begins = np.concatenate(laid_out(begun, piece, ONE, ONE, context.document_mask))
        return self.mask_row(row, context, begins)

    def mask_row(self, row: MaskedRow, context: SampleContext, begins: np.ndarray | None = None) -> Sample:
        """Mask over the whole sequence, so that the masked share does not depend on the number of documents.

        `begins`: 1 at the first token of each unit. None: each token is a unit.
        """
        text = padded(row.text, sum(row.documents), 0)
        most = self.most_asked(context.sequence)
        if begins is None:
            begins = np.ones(len(text), dtype=np.int64)
        masking = Denoise(hide=self._hide(most, begins), show=self._show(begins), ask=hidden_in_place)
        hidden, shown, answers = masking(text, context.special, context.rng)
        read = row.fields([shown], context.special, context.sequence)
        return {
            **read,
            **first_places(self.global_tokens, read["positions"], read["document_ids"]),
            "masked_positions": padded([np.flatnonzero(hidden)], most, 0),
            "labels": padded([answers], most, IGNORED),
        }

    def _hide(self, most: int, begins: np.ndarray) -> Hide:
        told = {"begins": begins, **({"lengths": self.lengths} if self.lengths else {})}
        return self._hiding(rate=self.rate, most=most, **_those_of(self._hiding, told))

    def _show(self, begins: np.ndarray) -> Show:
        told = {"begins": begins, **({"similar": similar_named(self.similar)} if self.similar else {})}
        return self._showing(mask=self.mask, random=self.random, **_those_of(self._showing, told))


def _named(option: str, name: str, known: Mapping[str, Callable[..., Any]]) -> Callable[..., Any]:
    """Return a masking or replacement strategy by name, or a custom function."""
    if is_plugin(name):
        found: Callable[..., Any] = load_plugin(name, option, "function")
        if not callable(found):
            raise UserError(f"{option}: `{name}` is not a function: correct the name.")
        try:
            _parameters(found)
        except ValueError:  # some functions written in C have no signature
            raise UserError(f"{option}: `{name}` does not say what it takes: call it in a function of yours.") from None
        return found
    if name not in known:
        raise UserError(f"{option} ({name}) is not known; {nearest(name, known)}")
    return known[name]


@lru_cache
def _parameters(function: Callable[..., Any]) -> frozenset[str]:
    return frozenset(signature(function).parameters)


def _those_of(function: Callable[..., Any], told: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in told.items() if name in _parameters(function)}


def enclosed_window(sequence: int, document_mask: bool) -> RowWindow:
    """Return the window of sequences whose documents are enclosed by `cls` and `sep`, as `laid_out` does."""
    # Documents may be cut anywhere, so only the ends of a sequence may need a cls or sep without a slot: hence - 2.
    # Without a document mask the sequence is one document with sep between neighbors (RoBERTa's FULL-SENTENCES).
    return RowWindow(stride=sequence - 2, slots=2 if document_mask else 1)


def laid_out(
    pieces: list[np.ndarray], parts: list[DocumentSlice], cls: np.ndarray, sep: np.ndarray, document_mask: bool
) -> list[np.ndarray]:
    """Return `cls` piece `sep` for each document; without a document mask one document of all pieces."""
    if document_mask:
        return [
            np.concatenate((cls, piece, sep)) for piece, part in zip(pieces, parts, strict=True) if len(part.tokens)
        ]
    between = [
        array for piece, part in zip(pieces, parts, strict=True) for array in (piece, np.repeat(sep, part.slots))
    ]
    return [np.concatenate((cls, *between, sep[: not parts[-1].slots]))]


def word_begins(part: DocumentSlice) -> np.ndarray:
    """Return int64 [tokens]: 1 at the first token of each word. A truncated word counts as a word."""
    return units(marked(part.tokens, {"words": part.annotations["words"]}))


def tokens_of(text: np.ndarray) -> np.ndarray:
    """Return the tokens of a text with or without marks."""
    return text if text.ndim == 1 else text[:, 0]


@dataclass(frozen=True)
class MaskedLMWithQuestion(QuestionObjective):
    """Masked language modeling on `cls` A `sep` B `sep`, with a question about the two texts (a key of QUESTIONS)."""

    masked: MaskedLM = MaskedLM()

    needs = MaskedLM.needs
    prompts = MaskedLM.prompts

    def __post_init__(self) -> None:
        if why := self.masked.question_misfit(self.asked.segments):
            raise UserError(f"{self.question} cannot be asked beside it, {why}: remove either.")

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"{self.masked.name}-{self.question}"

    @property
    def annotations(self) -> tuple[str, ...]:  # type: ignore[override]
        return (*self.masked.annotations, *super().annotations)

    @cached_property
    def losses(self) -> Mapping[str, float]:  # type: ignore[override]
        return {**self.masked.losses, self.question: 1.0}

    @property
    def segments(self) -> int:  # type: ignore[override]
        return max(self.masked.segments, super().segments)

    def text_fields(self, length: int) -> Sample:
        return self.masked.text_fields(length)

    def check(self, special: SpecialTokens, sequence: int) -> None:
        super().check(special, sequence)
        self.masked.check(special, sequence)

    def batch(self, sequence: int, document_mask: bool) -> BatchSpec:
        masked = self.masked.batch(sequence, document_mask)
        return BatchSpec(masked.streams, {**masked.fields, **fields((), field_of(self.question))})

    def make(self, piece: Piece, context: SampleContext) -> Sample:
        assert isinstance(piece, SentenceGroup)
        made = self.asked.texts_of(piece, context.rng, self.raw_length(context.sequence))
        row, begins = MaskedRow.of_texts([made], context.special), None
        if self.masked.annotations:
            begins = np.concatenate([ONE, *(part for text in made.texts for part in (units(text), ONE))])
        sample = self.masked.mask_row(row, context, begins)
        return sample | {field_of(self.question): np.array(made.label, dtype=np.int64)}
