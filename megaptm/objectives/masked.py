"""Masked language modeling on packed documents and on pairs of texts (BERT, arXiv:1810.04805, 3.1)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from inspect import signature
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from megaptm.batch import IGNORED, BatchSpec, batch_fields
from megaptm.errors import UserError, nearest_name_advice
from megaptm.objectives.denoise import Denoise, Hide, Show
from megaptm.objectives.global_tokens import GlobalTokens, mark_global_tokens
from megaptm.objectives.masking import MASKING_STRATEGIES
from megaptm.objectives.named_file import FILE
from megaptm.objectives.objective import (
    DocumentSlice,
    Objective,
    Piece,
    Rate,
    Sample,
    SampleContext,
    SentenceGroup,
    SequenceWindow,
    Share,
    Weight,
    documents_and_positions,
    mark_tokens,
    pad_pieces,
    unit_starts,
)
from megaptm.objectives.replacements import REPLACEMENT_STRATEGIES, check_replacement_shares, masked_tokens_in_order
from megaptm.objectives.text_questions import LabeledTexts, QuestionObjective, question_field
from megaptm.objectives.vocabulary import SpecialTokens
from megaptm.plugins import is_plugin, load_plugin

MASKING_RATE = 0.15
# Limits of the published runs; 0.15 x 128 is 19.2 and 0.15 x 512 is 76.8.
PUBLISHED_MAX_PREDICTIONS = {128: 20, 512: 76}


ANNOTATIONS_OF: dict[str, tuple[str, ...]] = {
    "tokens": (),
    "words": ("words",),
    "phrases": ("words", "phrases"),
    "entities": ("words", "tags"),
}
"""Annotations that give the units of masking, by kind of unit."""

TEXT_FIELDS = ("tokens", "segments", "positions", "document_ids")
"""Batch fields of masked text that the model reads."""

SPECIAL_START = np.ones(1, dtype=np.int64)


def max_predictions(sequence: int, rate: float = MASKING_RATE) -> int:
    """Return K, the maximum number of target positions of a masked sequence."""
    maximum = max(1, round(rate * sequence))
    return PUBLISHED_MAX_PREDICTIONS.get(sequence, maximum) if rate == MASKING_RATE else maximum


@dataclass(frozen=True)
class TextSequence:
    """Sequence before masking: text with `cls` and `sep` but without padding, segments and documents."""

    text: list[np.ndarray]
    segments: list[int]
    """Segment of each piece of `text`."""
    documents: list[int]
    """Number of tokens of each document."""

    def fields(self, shown: list[np.ndarray], special: SpecialTokens, sequence: int) -> Sample:
        """Return the batch fields of the sequence, with `shown` instead of the text."""
        assert special.pad is not None
        documents, positions = documents_and_positions(self.documents, sequence)
        segments = [np.full(len(piece), segment) for piece, segment in zip(self.text, self.segments, strict=True)]
        return {
            "tokens": pad_pieces(shown, sequence, special.pad),
            "segments": pad_pieces(segments, sequence, 0),
            "positions": positions,
            "document_ids": documents,
        }

    @classmethod
    def of_texts(cls, documents: list[LabeledTexts], special: SpecialTokens) -> TextSequence:
        """Build the sequence from documents of texts: `cls` A `sep` B `sep`."""
        cls_token, sep = np.array([special.cls]), np.array([special.sep])
        result = cls([], [], [])
        for document in documents:
            pieces = [np.concatenate((_without_marks(text), sep)) for text in document.texts]
            pieces[0] = np.concatenate((cls_token, pieces[0]))
            result.text.extend(pieces)
            result.segments.extend(document.segments)
            result.documents.append(sum(map(len, pieces)))
        return result

    @classmethod
    def of_documents(cls, piece: list[DocumentSlice], special: SpecialTokens, document_mask: bool) -> TextSequence:
        """Build the sequence from documents: `cls` text `sep`. Without a document mask they are one document, with
        `sep` between them."""
        cls_token, sep = np.array([special.cls]), np.array([special.sep])
        text = enclose_documents([part.tokens for part in piece], piece, cls_token, sep, document_mask)
        return cls(text, [0] * len(text), [*map(len, text)])


@dataclass(frozen=True)
class MaskedLM(Objective):
    """Masked language modeling on packed documents, each `cls` text `sep`."""

    hide: str = "tokens"
    """Masking strategy: a key of `hide.MASKING_STRATEGIES`, or a custom function, package.module:NAME."""
    rate: Rate = MASKING_RATE
    """Masking rate: share of tokens that are masked and predicted."""
    units: Literal["tokens", "words", "phrases", "entities"] = "words"
    """Unit of whole-word masking: tokens; words; phrases; or entities (tagged spans). Outside of phrases and entities
    the unit is a word."""
    length_weights: Annotated[tuple[Weight, ...], Field(min_length=1)] = ()
    """Relative frequencies of 1, 2 ... words masked together, for n-grams and spans. Empty: as in the paper."""
    show: str = "tokens"
    """Replacement of masked tokens: a key of `replacements.REPLACEMENT_STRATEGIES`, or a custom function,
    package.module:NAME."""
    mask_token_prob: Share = 0.8
    """Probability that a masked token is replaced by the mask token, or by a similar word (`similar`)."""
    random_token_prob: Share = 0.1
    """Probability that a masked token is replaced by a random token. Otherwise the token is unchanged."""
    similar: str | None = field(default=None, metadata=FILE)
    """Source of similar words: a file made by `megaptm corpus similar-words`, or a custom function."""
    global_tokens: GlobalTokens = 0
    """Number of global tokens at the start of each document, for window or block attention (Longformer,
    BigBird-ETC)."""

    losses: ClassVar = {"mlm": 1.0}
    required_tokens = ("pad", "cls", "sep", "mask")
    prompts = ("masks",)
    template: ClassVar = ("cls A sep", "cls A sep B sep")

    def __post_init__(self) -> None:
        if self.units != "words" and "unit_starts" not in _parameter_names(self._hiding):
            raise UserError(
                f"units ({self.units}) has no effect with hide: {self.hide}: remove it, or set hide: whole-words."
            )
        for option, kind, strategy in (("length_weights", "hide", self._hiding), ("similar", "show", self._showing)):
            if getattr(self, option) and option not in _parameter_names(strategy):
                raise UserError(f"{option} has no effect with {kind}: {getattr(self, kind)}: remove it.")
        if self.length_weights and not sum(self.length_weights) > 0:
            raise UserError(
                f"length_weights ({[*self.length_weights]}) are all 0: set relative frequencies of 1, 2 ... words."
            )
        if not self.mask_token_prob + self.random_token_prob and "mask_token_prob" in _parameter_names(self._showing):
            raise UserError(
                "mask_token_prob and random_token_prob are both 0, so that every label would be visible: raise one."
            )
        check_replacement_shares(self.mask_token_prob, self.random_token_prob)

    @property
    def name(self) -> str:  # type: ignore[override] # a constant of other objectives
        hide = {"tokens": "", "whole-words": "-whole-word"}.get(self.hide, f"-{self.hide}")
        hide += "" if self.units == "words" else f"-{self.units}"
        # SpanBERT's span masking and replacement share one name.
        return "masked-lm" + hide + ("" if self.show in ("tokens", self.hide) else f"-{self.show}")

    @cached_property
    def annotations(self) -> tuple[str, ...]:  # type: ignore[override]
        if "unit_starts" not in _parameter_names(self._hiding) | _parameter_names(self._showing):
            return ()
        return ANNOTATIONS_OF[self.units]

    @cached_property
    def _hiding(self) -> Callable[..., Hide]:
        return _find_strategy("hide", self.hide, MASKING_STRATEGIES)

    @cached_property
    def _showing(self) -> Callable[..., Show]:
        return _find_strategy("show", self.show, REPLACEMENT_STRATEGIES)

    def check(self, special: SpecialTokens, sequence: int) -> None:
        super().check(special, sequence)
        if (check := getattr(self._showing, "check", None)) is not None:
            check(self, special)

    def why_no_question(self, num_texts: int) -> str | None:
        """Return why a question about `num_texts` texts cannot be combined with this objective. None if it can."""
        return None

    def text_fields(self, length: int) -> Sample:
        return mark_global_tokens(self.global_tokens, np.arange(length))

    def raw_length(self, sequence: int) -> int:
        return sequence - 2

    def max_predictions(self, sequence: int) -> int:
        """Return K, the maximum number of target positions of a masked sequence."""
        if self.hide != "independent":
            return max_predictions(sequence, self.rate)
        # The number is binomial, with more variance for long units: four standard deviations for units of three tokens.
        mean = self.rate * sequence
        return min(sequence, math.ceil(mean + 4 * math.sqrt(3 * mean)))

    def sequence_window(self, sequence: int, document_mask: bool) -> SequenceWindow:
        return window_of_documents(sequence, document_mask)

    def batch_spec(self, sequence: int, document_mask: bool) -> BatchSpec:
        targets = batch_fields((self.max_predictions(sequence),), "masked_positions", "labels")
        names = (*TEXT_FIELDS, "global_tokens") if self.global_tokens else TEXT_FIELDS
        return BatchSpec({"": sequence}, batch_fields((sequence,), *names) | targets)

    def make_sample(self, piece: Piece, context: SampleContext) -> Sample:
        assert isinstance(piece, list)
        text_sequence = TextSequence.of_documents(piece, context.special, context.document_mask)
        starts = None
        if self.annotations:
            parts = [unit_starts(mark_tokens(part.tokens, part.annotations)) for part in piece]
            starts = np.concatenate(
                enclose_documents(parts, piece, SPECIAL_START, SPECIAL_START, context.document_mask)
            )
        return self.mask_sequence(text_sequence, context, starts)

    def mask_sequence(
        self, text_sequence: TextSequence, context: SampleContext, starts: np.ndarray | None = None
    ) -> Sample:
        """Mask over the whole sequence, so that the masked share does not depend on the number of documents.

        `starts`: 1 at the first token of each unit. None: each token is a unit.
        """
        text = pad_pieces(text_sequence.text, sum(text_sequence.documents), 0)
        max_masked = self.max_predictions(context.sequence)
        if starts is None:
            starts = np.ones(len(text), dtype=np.int64)
        masking = Denoise(hide=self._hide(max_masked, starts), show=self._show(starts), ask=masked_tokens_in_order)
        hidden, shown, labels = masking(text, context.special, context.rng)
        inputs = text_sequence.fields([shown], context.special, context.sequence)
        return {
            **inputs,
            **mark_global_tokens(self.global_tokens, inputs["positions"], inputs["document_ids"]),
            "masked_positions": pad_pieces([np.flatnonzero(hidden)], max_masked, 0),
            "labels": pad_pieces([labels], max_masked, IGNORED),
        }

    def _hide(self, max_masked: int, starts: np.ndarray) -> Hide:
        arguments = {"unit_starts": starts, **({"length_weights": self.length_weights} if self.length_weights else {})}
        return self._hiding(rate=self.rate, max_masked=max_masked, **_accepted_arguments(self._hiding, arguments))

    def _show(self, starts: np.ndarray) -> Show:
        arguments = {"unit_starts": starts, **({"similar": self.similar} if self.similar else {})}
        return self._showing(
            mask_token_prob=self.mask_token_prob,
            random_token_prob=self.random_token_prob,
            **_accepted_arguments(self._showing, arguments),
        )


def _find_strategy(option: str, name: str, known: Mapping[str, Callable[..., Any]]) -> Callable[..., Any]:
    """Return a masking or replacement strategy by name, or a custom function."""
    if is_plugin(name):
        function: Callable[..., Any] = load_plugin(name, option, "function")
        if not callable(function):
            raise UserError(f"{option}: `{name}` is not a function: correct the name.")
        try:
            _parameter_names(function)
        except ValueError:  # some functions written in C have no signature
            raise UserError(
                f"{option}: `{name}` has no signature that can be inspected: wrap it in a Python function."
            ) from None
        return function
    if name not in known:
        raise UserError(f"{option} ({name}) is unknown; {nearest_name_advice(name, known)}")
    return known[name]


@lru_cache
def _parameter_names(function: Callable[..., Any]) -> frozenset[str]:
    return frozenset(signature(function).parameters)


def _accepted_arguments(function: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if name in _parameter_names(function)}


def window_of_documents(sequence: int, document_mask: bool) -> SequenceWindow:
    """Return the window of sequences whose documents are enclosed by `cls` and `sep`, as `enclose_documents` does."""
    # Documents may be cut anywhere, so only the ends of a sequence may need a cls or sep without a slot: hence - 2.
    # Without a document mask the sequence is one document with sep between neighbors (RoBERTa's FULL-SENTENCES).
    return SequenceWindow(stride=sequence - 2, slots=2 if document_mask else 1)


def enclose_documents(
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


def word_starts(part: DocumentSlice) -> np.ndarray:
    """Return 1 at the first token of each word and 0 elsewhere, int64 [tokens]. A truncated word counts as one."""
    return unit_starts(mark_tokens(part.tokens, {"words": part.annotations["words"]}))


def _without_marks(text: np.ndarray) -> np.ndarray:
    """Return the tokens of a text without the columns of marks, if it has any."""
    return text if text.ndim == 1 else text[:, 0]


@dataclass(frozen=True)
class MaskedLMWithQuestion(QuestionObjective):
    """Masked language modeling on `cls` A `sep` B `sep`, with a question about the two texts (a key of QUESTIONS)."""

    masked: MaskedLM = MaskedLM()

    required_tokens = MaskedLM.required_tokens
    prompts = MaskedLM.prompts

    def __post_init__(self) -> None:
        if why := self.masked.why_no_question(self.definition.num_segments):
            raise UserError(f"{self.question} cannot be combined with this task: {why}. Remove either.")

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
    def num_segments(self) -> int:  # type: ignore[override]
        return max(self.masked.num_segments, super().num_segments)

    def text_fields(self, length: int) -> Sample:
        return self.masked.text_fields(length)

    def check(self, special: SpecialTokens, sequence: int) -> None:
        super().check(special, sequence)
        self.masked.check(special, sequence)

    def batch_spec(self, sequence: int, document_mask: bool) -> BatchSpec:
        masked = self.masked.batch_spec(sequence, document_mask)
        return BatchSpec(masked.streams, {**masked.fields, **batch_fields((), question_field(self.question))})

    def make_sample(self, piece: Piece, context: SampleContext) -> Sample:
        assert isinstance(piece, SentenceGroup)
        texts = self.definition.make_texts(piece, context.rng, self.raw_length(context.sequence))
        text_sequence, starts = TextSequence.of_texts([texts], context.special), None
        if self.masked.annotations:
            parts = (part for text in texts.texts for part in (unit_starts(text), SPECIAL_START))
            starts = np.concatenate([SPECIAL_START, *parts])
        sample = self.masked.mask_sequence(text_sequence, context, starts)
        return sample | {question_field(self.question): np.array(texts.label, dtype=np.int64)}
