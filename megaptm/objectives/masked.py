"""Masked tokens, on rows of documents and on pairs of texts that are asked about (BERT, arXiv:1810.04805, 3.1)."""

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
# The caps of the published runs; 0.15 x 128 is 19.2 and 0.15 x 512 is 76.8.
PUBLISHED_MOST_ASKED = {128: 20, 512: 76}


ANNOTATIONS_OF: dict[str, tuple[str, ...]] = {
    "tokens": (),
    "words": ("words",),
    "phrases": ("words", "phrases"),
    "entities": ("words", "tags"),
}
"""What is one unit -> the annotations that say where such are."""

ROW = ("tokens", "segments", "positions", "document_ids")
"""What a model reads of a row."""

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

    def fields(self, shown: list[np.ndarray], special: SpecialTokens, sequence: int) -> Sample:
        """What a model reads, with `shown` in the place of the text."""
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
        """Each document `cls` A `sep` B `sep`."""
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
        """Each document `cls` text `sep`; without document mask all as one, a `sep` between neighbors."""
        opens, sep = np.array([special.cls]), np.array([special.sep])
        text = laid_out([part.tokens for part in piece], piece, opens, sep, document_mask)
        return cls(text, [0] * len(text), [len(one) for one in text])


@dataclass(frozen=True)
class MaskedLM(Objective):
    """Masked tokens on rows packed with documents, each `cls` text `sep`."""

    hide: str = "tokens"
    """What is hidden together: one of `hide.HIDES`, or a function of your own, package.module:NAME."""
    rate: Rate = RATE
    """Share of the tokens that are hidden and asked about."""
    units: Literal["tokens", "words", "phrases", "entities"] = "words"
    """What is one thing where `hide` hides things whole: a token; a word; a phrase, or an entity (what is tagged), and
    elsewhere a word."""
    lengths: Annotated[tuple[Weight, ...], Field(min_length=1)] = ()
    """How often 1, 2 ... words are hidden together, where `hide` hides several; absent: as its paper has it."""
    show: str = "tokens"
    """What stands in its place: one of `show_ask.SHOWS`, or a function of your own, package.module:NAME."""
    mask: Share = 0.8
    """Share of the hidden tokens that are shown as the mask; with similar words, as one of these."""
    random: Share = 0.1
    """Share that is shown as a random token; what remains is shown as it is."""
    similar: str | None = None
    """Where similar words come from: a file that `megaptm corpus similar-words` made, or a function of your own."""
    global_tokens: GlobalTokens = 0
    """The first places of each document, so many, see all of it and are seen by all, where attention is of some places
    alone (Longformer; BigBird's ETC)."""

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
    def name(self) -> str:  # type: ignore[override]  # a constant of other objectives
        hide = {"tokens": "", "whole-words": "-whole-word"}.get(self.hide, f"-{self.hide}")
        hide += "" if self.units == "words" else f"-{self.units}"
        # What spans are is one thing with what is shown for them.
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
        """Why a question that tells so many texts apart cannot be asked beside it; None where it can."""
        return None

    def text_fields(self, length: int) -> Sample:
        return first_places(self.global_tokens, np.arange(length))

    def raw_length(self, sequence: int) -> int:
        return sequence - 2

    def most_asked(self, sequence: int) -> int:
        """K: how many positions a row can ask about."""
        if self.hide != "independent":
            return most_asked(sequence, self.rate)
        # The number has a binomial's spread, and more where units are long: four deviations for units of three tokens.
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
        """Hide, show and ask over the whole row, so that the share hidden is the same however many documents it holds.

        `begins` is 1 at the first token of each unit; absent: each token is one.
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
    """A way to hide or to show, or the user's own."""
    if is_plugin(name):
        found: Callable[..., Any] = load_plugin(name, option, "function")
        if not callable(found):
            raise UserError(f"{option}: `{name}` is not a function: correct the name.")
        try:
            _parameters(found)
        except ValueError:  # of some that are written in C
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
    """Of rows whose documents stand between two tokens, as `laid_out` puts them."""
    # Whatever borders a row holds, only its ends may need a cls or sep that no slot was counted for: hence - 2.
    # Unmasked, the row is one document and a sep stands between neighbors (RoBERTa's FULL-SENTENCES).
    return RowWindow(stride=sequence - 2, slots=2 if document_mask else 1)


def laid_out(
    pieces: list[np.ndarray], parts: list[DocumentSlice], cls: np.ndarray, sep: np.ndarray, document_mask: bool
) -> list[np.ndarray]:
    """What each document of a row holds: a `cls`, the piece of its part, a `sep`; without document mask all as one."""
    if document_mask:
        return [
            np.concatenate((cls, piece, sep)) for piece, part in zip(pieces, parts, strict=True) if len(part.tokens)
        ]
    between = [
        array for piece, part in zip(pieces, parts, strict=True) for array in (piece, np.repeat(sep, part.slots))
    ]
    return [np.concatenate((cls, *between, sep[: not parts[-1].slots]))]


def word_begins(part: DocumentSlice) -> np.ndarray:
    """int64 [tokens]: 1 where a word begins; a word that the row cut in two is a word by itself."""
    return units(marked(part.tokens, {"words": part.annotations["words"]}))


def tokens_of(text: np.ndarray) -> np.ndarray:
    """Of a text that may come with marks."""
    return text if text.ndim == 1 else text[:, 0]


@dataclass(frozen=True)
class MaskedLMWithQuestion(QuestionObjective):
    """Masked tokens in `cls` A `sep` B `sep`, and a question about the two texts, one of QUESTIONS."""

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
