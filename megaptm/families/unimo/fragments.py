"""Fragment generation: fragments are removed from a text and generated from the rest (UNIMO, arXiv:2012.15409, section
2.3; method of ERNIE-GEN, arXiv:2001.11314)."""

# T positions of the text, F fragments of a sequence

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

import numpy as np
from pydantic import Field as Option

from megaptm.batch import IGNORED, BatchSpec, batch_fields
from megaptm.errors import UserError
from megaptm.objectives.masked import TEXT_FIELDS, enclose_documents, window_of_documents
from megaptm.objectives.objective import (
    Objective,
    Piece,
    Rate,
    Sample,
    SampleContext,
    SequenceWindow,
    documents_and_positions,
    pad_pieces,
)
from megaptm.objectives.vocabulary import SpecialTokens

FragmentLength = Annotated[int, Option(ge=1, le=10**6)]


class FragmentedText(NamedTuple):
    """Sequence in which fragments, each from `cls` to `sep`, follow the rest of their text."""

    tokens: list[np.ndarray]
    """Tokens of each text, followed by its fragments."""
    order: list[np.ndarray]
    """Attention order of a text with fragments: every position attends to the rest of the text, and to its own and
    earlier fragment positions."""
    target_positions: np.ndarray
    """Positions in the sequence that predict the next token of a fragment."""
    labels: np.ndarray
    """Labels of the target positions of fragments."""


@dataclass(frozen=True)
class FragmentOptions:
    """Share and lengths of removed fragments: options of fragment generation."""

    rate: Rate = 0.25
    """Share of tokens that fragment generation removes from a text."""
    min_length: FragmentLength = 4
    """Minimum length of a fragment in tokens; shorter ones occur in short texts."""
    max_length: FragmentLength = 32

    def __post_init__(self) -> None:
        if self.min_length > self.max_length:
            raise UserError(f"min_length ({self.min_length}) is more than max_length ({self.max_length}): lower it.")

    def max_fragments(self, tokens: int) -> int:
        """Return F, the maximum number of fragments for a number of tokens: the share divided by the mean length."""
        return max(1, math.ceil(self.rate * tokens / ((self.min_length + self.max_length) / 2)))

    def max_predictions(self, tokens: int) -> int:
        """Return the maximum number of target positions: tokens of UNIMO's fragments, and a `sep` after each."""
        return max(1, round(self.rate * tokens)) + self.max_fragments(tokens)

    def remove_fragments(
        self, texts: Sequence[np.ndarray], special: SpecialTokens, rng: np.random.Generator
    ) -> FragmentedText:
        """Remove UNIMO's fragments from texts enclosed by special tokens, which fragments never contain. Fragments are
        sampled until the share is reached; the last one is truncated."""
        joined = np.concatenate(texts)
        fragments = self._sample_fragments(~special.is_special[joined], rng)
        token_pieces, order_pieces = [], []
        at, first = 0, 0
        empty = np.zeros(0, np.int64)
        target_positions, labels = [empty], [empty]
        cls, sep = np.array([special.cls]), np.array([special.sep])
        for text in texts:
            own = [(a - first, b - first) for a, b in fragments if first <= a < first + len(text)]
            is_source = np.ones(len(text), dtype=bool)
            for a, b in own:
                is_source[a:b] = False
            source = text[is_source]
            at_fragment, pieces = at + len(source), [source]
            for a, b in own:
                labels += [text[a:b], sep]
                target_positions.append(at_fragment + np.arange(b - a + 1))
                pieces.append(np.concatenate([cls, text[a:b], sep]))
                at_fragment += len(pieces[-1])
            token_pieces.append(np.concatenate(pieces))
            order_pieces.append(
                np.concatenate([np.zeros(len(source), np.int64), np.arange(1, at_fragment - at - len(source) + 1)])
            )
            at, first = at_fragment, first + len(text)
        return FragmentedText(token_pieces, order_pieces, np.concatenate(target_positions), np.concatenate(labels))

    def _sample_fragments(self, free: np.ndarray, rng: np.random.Generator) -> list[tuple[int, int]]:
        """Sample fragments to remove: return (start, stop) of each, sorted. `free`: tokens that may be removed, bool
        [T]."""
        left = max(1, round(self.rate * int(free.sum()))) if free.any() else 0
        fragments: list[tuple[int, int]] = []
        free = free.copy()
        while left and free.any() and len(fragments) < self.max_fragments(len(free)):
            run = _free_run_lengths(free)
            # If no remaining stretch is that long, the longest one is used.
            length = min(int(rng.integers(self.min_length, self.max_length, endpoint=True)), left, int(run.max()))
            first = int(rng.choice(np.flatnonzero(run >= length)))
            free[first : first + length] = False
            fragments.append((first, first + length))
            left -= length
        return sorted(fragments)


def _free_run_lengths(free: np.ndarray) -> np.ndarray:
    """Return the number of consecutive free positions from each position on, int64 [T]."""
    positions = np.arange(len(free))
    taken = np.where(free, len(free), positions)
    lengths: np.ndarray = np.minimum.accumulate(taken[::-1])[::-1] - positions
    return lengths


@dataclass(frozen=True)
class FragmentGeneration(FragmentOptions, Objective):
    """Objective of fragment generation: generate removed fragments, each token from the rest of the text and the
    previous generated tokens."""

    name = "fragment-generation"
    losses: ClassVar = {"mlm": 1.0}
    required_tokens = ("pad", "cls", "sep", "mask")
    prompts = ("masks",)
    template: ClassVar = ("cls A sep", "cls A sep B sep")

    def text_fields(self, length: int) -> Sample:
        return {"order": np.zeros(length, dtype=np.int64)}

    def raw_length(self, sequence: int) -> int:
        """Return the number of raw tokens of a text with fragments, where special tokens enclose the text and each
        fragment."""
        return sequence - 2 - 2 * self.max_fragments(sequence)

    def sequence_window(self, sequence: int, document_mask: bool) -> SequenceWindow:
        return window_of_documents(sequence - 2 * self.max_fragments(sequence), document_mask)

    def batch_spec(self, sequence: int, document_mask: bool) -> BatchSpec:
        targets = batch_fields((self.max_predictions(sequence),), "masked_positions", "labels")
        return BatchSpec({"": sequence}, batch_fields((sequence,), *TEXT_FIELDS, "order") | targets)

    def make_sample(self, piece: Piece, context: SampleContext) -> Sample:
        assert isinstance(piece, list)
        special, size = context.special, context.sequence
        assert special.pad is not None
        cls, sep = np.array([special.cls]), np.array([special.sep])
        texts = enclose_documents([part.tokens for part in piece], piece, cls, sep, context.document_mask)
        fragmented = self.remove_fragments(texts, special, context.rng)
        documents, positions = documents_and_positions([len(text) for text in fragmented.tokens], size)
        max_predictions = self.max_predictions(size)
        return {
            "tokens": pad_pieces(fragmented.tokens, size, special.pad),
            "segments": np.zeros(size, dtype=np.int64),
            "positions": positions,
            "document_ids": documents,
            "order": pad_pieces(fragmented.order, size, 0),
            "masked_positions": pad_pieces([fragmented.target_positions], max_predictions, 0),
            "labels": pad_pieces([fragmented.labels], max_predictions, IGNORED),
        }
