"""Fragments of a text, taken out of it and written again from what is left (UNIMO, arXiv:2012.15409, section 2.3; the
way of ERNIE-GEN, arXiv:2001.11314)."""

# T places of a row's text, F fragments of a row

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
    """A row whose fragments stand behind what is left of their texts, each from a `cls` to a `sep`."""

    tokens: list[np.ndarray]
    """Of each text, with its fragments."""
    order: list[np.ndarray]
    """By which a place sees all that is left, and of fragments itself and what is before it."""
    asked: np.ndarray
    """Places in the row of what is said of the token behind them."""
    answers: np.ndarray
    """The tokens."""


@dataclass(frozen=True)
class Fragments:
    """How much of a text is taken out, and in what pieces."""

    rate: float
    shortest: int
    longest: int

    def most(self, places: int) -> int:
        """F of so many places: what fragments of mean length make of the rate."""
        return max(1, math.ceil(self.rate * places / ((self.shortest + self.longest) / 2)))

    def most_asked(self, places: int) -> int:
        """Tokens of fragments, and a `sep` behind each."""
        return max(1, round(self.rate * places)) + self.most(places)

    def write(self, texts: Sequence[np.ndarray], special: SpecialTokens, rng: np.random.Generator) -> FragmentedRow:
        """Of texts that stand between special tokens, which no fragment has: whole ones are drawn until the rate is
        reached, the last one cut there."""
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
        """First place and the one after the last, of each, in their order."""
        left, found = max(1, round(self.rate * int(free.sum()))) if free.any() else 0, list[tuple[int, int]]()
        free = free.copy()
        while left and free.any() and len(found) < self.most(places):
            run = _behind(free)
            # Where no stretch is left that is as long, the longest is.
            length = min(int(rng.integers(self.shortest, self.longest, endpoint=True)), left, int(run.max()))
            first = int(rng.choice(np.flatnonzero(run >= length)))
            free[first : first + length] = False
            found.append((first, first + length))
            left -= length
        return sorted(found)


def _behind(free: np.ndarray) -> np.ndarray:
    """int64 [T]: how many places, from each on, are free one after another."""
    places = np.arange(len(free))
    taken = np.where(free, len(free), places)
    nearest: np.ndarray = np.minimum.accumulate(taken[::-1])[::-1] - places
    return nearest


@dataclass(frozen=True)
class FragmentOptions:
    """Options of objectives that take fragments out."""

    rate: Rate = 0.25
    """Share of the tokens that are taken out."""
    shortest: FragmentLength = 4
    """Tokens of a fragment, at least; of a short text all that the rate leaves."""
    longest: FragmentLength = 32

    def __post_init__(self) -> None:
        if self.shortest > self.longest:
            raise UserError(f"shortest ({self.shortest}) is more than longest ({self.longest}): lower it.")

    @property
    def fragments(self) -> Fragments:
        return Fragments(self.rate, self.shortest, self.longest)


@dataclass(frozen=True)
class FragmentGeneration(FragmentOptions, Objective):
    """A text whose fragments are written again, each token from what is left and from what is written before it."""

    name = "fragment-generation"
    losses: ClassVar = {"mlm": 1.0}
    needs = ("pad", "cls", "sep", "mask")
    prompts = ("masks",)
    template: ClassVar = ("cls A sep", "cls A sep B sep")

    def text_fields(self, length: int) -> Sample:
        return {"order": np.zeros(length, dtype=np.int64)}

    def raw_length(self, sequence: int) -> int:
        """Of a row there are two tokens around its text, and two around each fragment."""
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
