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

from megaptm.batch import IGNORED, BatchSpec, fields
from megaptm.errors import UserError
from megaptm.objectives.masked import ROW, enclosed_window, laid_out
from megaptm.objectives.objective import (
    Objective,
    Piece,
    Rate,
    RowWindow,
    Sample,
    SampleContext,
    documents_of,
    padded,
)
from megaptm.objectives.vocabulary import SpecialTokens

FragmentLength = Annotated[int, Option(ge=1, le=10**6)]


class FragmentedRow(NamedTuple):
    """Sequence in which fragments, each from `cls` to `sep`, follow the rest of their text."""

    tokens: list[np.ndarray]
    """Tokens of each text with its fragments."""
    order: list[np.ndarray]
    """Attention order: every position attends to the rest of the text, and to its own and earlier fragment
    positions."""
    asked: np.ndarray
    """Target positions in the sequence, which predict the next token of a fragment."""
    answers: np.ndarray
    """Labels of the target positions."""


@dataclass(frozen=True)
class Fragments:
    """Share and lengths of removed fragments."""

    rate: float
    shortest: int
    longest: int

    def most(self, places: int) -> int:
        """Return F, the largest number of fragments for `places` tokens: the share divided by the mean length."""
        return max(1, math.ceil(self.rate * places / ((self.shortest + self.longest) / 2)))

    def most_asked(self, places: int) -> int:
        """Return the largest number of target positions: tokens of fragments, and a `sep` after each."""
        return max(1, round(self.rate * places)) + self.most(places)

    def write(self, texts: Sequence[np.ndarray], special: SpecialTokens, rng: np.random.Generator) -> FragmentedRow:
        """Remove fragments from texts enclosed by special tokens, which fragments never contain. Fragments are sampled
        until the share is reached; the last one is truncated."""
        row = np.concatenate(texts)
        there = self._draw(~special.is_special[row], rng, sum(map(len, texts)))
        made = FragmentedRow([], [], np.zeros(0, np.int64), np.zeros(0, np.int64))
        at, first = 0, 0
        asked, answers = [], []
        opens, closes = np.array([special.cls]), np.array([special.sep])
        for text in texts:
            own = [(a - first, b - first) for a, b in there if first <= a < first + len(text)]
            kept = np.ones(len(text), dtype=bool)
            for a, b in own:
                kept[a:b] = False
            source = text[kept]
            at_fragment, pieces = at + len(source), [source]
            for a, b in own:
                answers += [text[a:b], closes]
                asked.append(at_fragment + np.arange(b - a + 1))
                pieces.append(np.concatenate([opens, text[a:b], closes]))
                at_fragment += len(pieces[-1])
            made.tokens.append(np.concatenate(pieces))
            made.order.append(
                np.concatenate([np.zeros(len(source), np.int64), np.arange(1, at_fragment - at - len(source) + 1)])
            )
            at, first = at_fragment, first + len(text)
        none = np.zeros(0, np.int64)
        return made._replace(asked=np.concatenate([none, *asked]), answers=np.concatenate([none, *answers]))

    def _draw(self, free: np.ndarray, rng: np.random.Generator, places: int) -> list[tuple[int, int]]:
        """Return (start, stop) of each fragment, sorted."""
        left, found = max(1, round(self.rate * int(free.sum()))) if free.any() else 0, list[tuple[int, int]]()
        free = free.copy()
        while left and free.any() and len(found) < self.most(places):
            run = _behind(free)
            # If no remaining stretch is that long, the longest one is used.
            length = min(int(rng.integers(self.shortest, self.longest, endpoint=True)), left, int(run.max()))
            first = int(rng.choice(np.flatnonzero(run >= length)))
            free[first : first + length] = False
            found.append((first, first + length))
            left -= length
        return sorted(found)


def _behind(free: np.ndarray) -> np.ndarray:
    """Return the number of consecutive free positions from each position on, int64 [T]."""
    places = np.arange(len(free))
    taken = np.where(free, len(free), places)
    nearest: np.ndarray = np.minimum.accumulate(taken[::-1])[::-1] - places
    return nearest


@dataclass(frozen=True)
class FragmentOptions:
    """Options of fragment generation."""

    rate: Rate = 0.25
    """Share of tokens that are removed."""
    shortest: FragmentLength = 4
    """Minimum length of a fragment in tokens; less in short texts."""
    longest: FragmentLength = 32

    def __post_init__(self) -> None:
        if self.shortest > self.longest:
            raise UserError(f"shortest ({self.shortest}) is more than longest ({self.longest}): lower it.")

    @property
    def fragments(self) -> Fragments:
        return Fragments(self.rate, self.shortest, self.longest)


@dataclass(frozen=True)
class FragmentGeneration(FragmentOptions, Objective):
    """Generate removed fragments, each token from the rest of the text and the previous generated tokens."""

    name = "fragment-generation"
    losses: ClassVar = {"mlm": 1.0}
    needs = ("pad", "cls", "sep", "mask")
    prompts = ("masks",)
    template: ClassVar = ("cls A sep", "cls A sep B sep")

    def text_fields(self, length: int) -> Sample:
        return {"order": np.zeros(length, dtype=np.int64)}

    def raw_length(self, sequence: int) -> int:
        """Return raw tokens: special tokens enclose the text and each fragment."""
        return sequence - 2 - 2 * self.fragments.most(sequence)

    def cut(self, sequence: int, document_mask: bool) -> RowWindow:
        return enclosed_window(sequence - 2 * self.fragments.most(sequence), document_mask)

    def batch(self, sequence: int, document_mask: bool) -> BatchSpec:
        asked = fields((self.fragments.most_asked(sequence),), "masked_positions", "labels")
        return BatchSpec({"": sequence}, fields((sequence,), *ROW, "order") | asked)

    def make(self, piece: Piece, context: SampleContext) -> Sample:
        assert isinstance(piece, list)
        special, size = context.special, context.sequence
        assert special.pad is not None
        opens, sep = np.array([special.cls]), np.array([special.sep])
        texts = laid_out([part.tokens for part in piece], piece, opens, sep, context.document_mask)
        made = self.fragments.write(texts, special, context.rng)
        documents, positions = documents_of([len(text) for text in made.tokens], size)
        most = self.fragments.most_asked(size)
        return {
            "tokens": padded(made.tokens, size, special.pad),
            "segments": np.zeros(size, dtype=np.int64),
            "positions": positions,
            "document_ids": documents,
            "order": padded(made.order, size, 0),
            "masked_positions": padded([made.asked], most, 0),
            "labels": padded([made.answers], most, IGNORED),
        }
