"""Words guessed in a random order (XLNet, arXiv:1906.08237): each from those before it in the order, wherever they
stand."""

# S places of a row, R of them remembered, N places asked about

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field as Option

from megaptm.batch import IGNORED, BatchSpec, Field, fields
from megaptm.errors import UserError
from megaptm.objectives.objective import (
    DocumentSlice,
    Objective,
    Piece,
    RowWindow,
    Sample,
    SampleContext,
    Share,
    refuse_document_mask,
)
from megaptm.objectives.vocabulary import SpecialTokens

LONGEST = 5
"""Words of a span, at most; one of n is as likely as 1 / n (the released code, `_sample_mask`)."""
DIVIDES = 8
"""Tensor ranks that can divide a row along the sequence, queries and all, where they can its text."""
CONTEXT = 6
"""A span of n words is drawn within a window of so many times n (the released code's mask_alpha)."""


@dataclass(frozen=True)
class PermutationLM(Objective):
    """A row is a stretch of text that goes on where that of the step before ended, half of the row, and behind it two
    texts: `A sep B sep cls`. A follows the first half, and so does B that, or it is from elsewhere; nothing is asked
    about that. In each half some places are asked, in an order in which all that is not asked comes first; the first
    half sees nothing of the second (the released code, `data_utils.py`).
    """

    partial: Annotated[int, Option(ge=2, le=64)] = 6
    """K: one place of so many is asked (2.3: the last in the order)."""
    units: Literal["words", "tokens"] = "words"
    """What spans are made of; tokens: what the released code's come to, since it looks for word borders at the wrong
    place."""
    both_ways: bool = True
    """Whether every second row of the batch reads its text from the end (3.1: half of the batch)."""
    elsewhere: Share = 0.5
    """Share of rows whose second text is from elsewhere in the corpus (the released code, after BERT)."""
    sentences: bool = False
    """Whether A ends with a sentence, and a text from elsewhere begins with one, as in the released code; else
    anywhere. Where no sentence ends in a place that A may end at, one is cut."""

    name = "permutation-lm"
    losses: ClassVar = {"permutation-lm": 1.0}
    unit = "lane"
    segments = 3
    needs = ("cls", "sep", "end")
    template: ClassVar[tuple[str, str]] = ("A sep cls", "A sep B:1 sep:1 cls:2")
    prompts = ()

    @property
    def annotations(self) -> tuple[str, ...]:  # type: ignore[override]
        known = {"words": self.units == "words", "sentences": self.sentences}
        return tuple(name for name, asked in known.items() if asked)

    def text_fields(self, length: int) -> Sample:
        return {"order": np.zeros(length, dtype=np.int64)}

    def raw_length(self, sequence: int) -> int:
        return sequence - 3

    def cut(self, sequence: int, document_mask: bool) -> RowWindow:
        half = sequence // 2
        return RowWindow(stride=half, lookahead=sequence - half - 3, slots=1)

    def batch(self, sequence: int, document_mask: bool) -> BatchSpec:
        refuse_document_mask(self, document_mask)
        asked = fields((self._slots(sequence),), "masked_positions", "labels")
        row = fields((sequence,), "tokens", "segments", "order")
        return BatchSpec({"": sequence}, {**row, **asked, "begins": Field(()), "backward": Field(())})

    def _slots(self, sequence: int) -> int:
        """Room for the places that are asked, such that a row with as many queries beside it has a multiple of
        `DIVIDES`."""
        return -(-(sequence // self.partial + sequence) // DIVIDES) * DIVIDES - sequence

    def check(self, special: SpecialTokens, sequence: int) -> None:
        super().check(special, sequence)
        if sequence % 2 or sequence < 16:
            raise UserError(
                f"data.sequence ({sequence}) is two halves, of which later rows remember the first: make it even, and "
                "16 or more."
            )

    def make(self, piece: Piece, context: SampleContext) -> Sample:
        assert isinstance(piece, list)
        special, rng, sequence = context.special, context.rng, context.sequence
        assert special.cls is not None
        assert special.sep is not None
        half, asked = sequence // 2, sequence // self.partial
        text, begins, breaks = self._text([part for part in piece if not part.elsewhere], special, piece[0].backward)
        border = self._border(breaks, half, rng)
        if other := [part for part in piece if part.elsewhere]:
            *theirs, breaks = self._text(other, special, piece[0].backward)
            at = next(iter(np.flatnonzero(breaks[: border + 1])), 0)
            text, begins = (
                np.concatenate([one[:border], another[at : at + len(one) - border]])
                for one, another in zip((text, begins), theirs, strict=True)
            )
        sep, cls = (np.array([id_], dtype=np.int64) for id_ in (special.sep, special.cls))
        no_word = np.ones(1, dtype=bool)
        tokens = np.concatenate([text[:border], sep, text[border:], sep, cls])
        begins = np.concatenate([begins[:border], no_word, begins[border:], no_word, no_word])
        segments = np.zeros(sequence, dtype=np.int64)
        segments[border + 1 :], segments[-1] = 1, 2
        ordinary = ~special.is_special[tokens]
        counts = (asked - asked // 2, asked // 2)
        chosen = np.zeros(sequence, dtype=bool)
        for count, part in zip(counts, (slice(0, half), slice(half, sequence)), strict=True):
            chosen[part] = spans(begins[part], ordinary[part], count, rng)
        places = np.flatnonzero(chosen)
        slots = self._slots(sequence)
        masked_positions, labels = np.zeros(slots, dtype=np.int64), np.full(slots, IGNORED, dtype=np.int64)
        masked_positions[: len(places)], labels[: len(places)] = places, tokens[places]
        return {
            "tokens": tokens,
            "segments": segments,
            "order": order_of(chosen | ~ordinary, rng.permutation(half), rng.permutation(half)),
            "masked_positions": masked_positions,
            "labels": labels,
            "begins": np.array(piece[0].begins, dtype=np.int64),
            "backward": np.array(piece[0].backward, dtype=np.int64),
        }

    def _border(self, breaks: np.ndarray, half: int, rng: np.random.Generator) -> int:
        """Where the second text begins: both have a token of what is behind the first half."""
        ends = half + 1 + np.flatnonzero(breaks[half + 1 :])
        return int(rng.choice(ends)) if len(ends) else half + int(rng.integers(1, len(breaks) - half))

    def _text(self, piece: list[DocumentSlice], special: SpecialTokens, backward: bool) -> tuple[np.ndarray, ...]:
        """The tokens of a row, each document closed by `end`; and, as they are read, which of them begin a word, and
        which a sentence, where that is asked for."""
        assert special.end is not None
        tokens, begins, breaks = [], [], []
        for part in piece:
            end = np.full(part.slots, special.end, dtype=np.int64)
            word = np.ones(len(part.tokens), dtype=bool)
            if self.units == "words":
                word[:] = False
                word[part.annotations["words"]] = True
                word[:1] = True  # what was cut in two is a word by itself
            sentence = np.zeros(len(part.tokens) + len(end), dtype=bool)
            if self.sentences:
                sentence[part.annotations["sentences"]] = True
            breaks += [sentence]
            tokens += [part.tokens.astype(np.int64), end]
            begins += [word, np.ones(len(end), dtype=bool)]
        text, word, sentence = np.concatenate(tokens), np.concatenate(begins), np.concatenate(breaks)
        if backward:
            # Read from the end, a word begins with its last token, and so does a sentence.
            last = np.append(word[1:], True), np.append(sentence[1:], False)
            return text[::-1].copy(), *(one[::-1].copy() for one in last)
        return text, word, sentence


def spans(begins: np.ndarray, candidates: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Booleans, `count` of them True where there are as many candidates: spans of whole words, each somewhere in a
    window of its own, and single tokens for what is missing in the end."""
    length = len(begins)
    chosen = np.zeros(length, dtype=bool)
    starts = np.flatnonzero(begins)
    shares = 1 / np.arange(1, LONGEST + 1)
    at, left = 0, min(count, int(candidates.sum()))
    while left > 0 and at < length:
        words = min(int(rng.choice(LONGEST, p=shares / shares.sum())) + 1, left)
        before = int(rng.integers(CONTEXT * words))
        first = int(np.searchsorted(starts, at + before))
        if first + words >= len(starts):
            break
        span = np.arange(starts[first], starts[first + words])
        taken = span[candidates[span]][:left]
        chosen[taken] = True
        left -= len(taken)
        at = int(starts[first + words]) + CONTEXT * words - before
    if left > 0:
        others = np.flatnonzero(candidates & ~chosen)
        chosen[rng.permutation(others)[:left]] = True
    return chosen


def order_of(ordered: np.ndarray, *permutations: np.ndarray) -> np.ndarray:
    """int64 [S]: a place sees those whose number is not above its own. Of each part of a row, as long as its
    permutation, what is not `ordered` comes first, all at once, and the rest by the permutation; then the next part."""
    order, first = np.zeros(len(ordered), dtype=np.int64), 0
    for number, permutation in enumerate(permutations):
        part = slice(first, first + len(permutation))
        order[part] = first + number + np.where(ordered[part], 1 + permutation, 0)
        first = part.stop
    return order
