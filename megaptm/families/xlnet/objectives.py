"""Permutation language modeling (XLNet, arXiv:1906.08237): each target is predicted from tokens before it in a random
order."""

# S sequence, R positions of the recurrence cache, N target positions

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field as Option

from megaptm.batch import IGNORED, BatchField, BatchSpec, batch_fields
from megaptm.errors import UserError
from megaptm.objectives.objective import (
    DocumentSlice,
    Objective,
    Piece,
    Sample,
    SampleContext,
    SequenceWindow,
    Share,
    refuse_document_mask,
)
from megaptm.objectives.vocabulary import SpecialTokens

MAX_SPAN_WORDS = 5
"""Maximum length of XLNet's target spans in words; length n has probability proportional to 1 / n (released code,
`_sample_mask`)."""
QUERY_MULTIPLE = 8
"""Number of tensor ranks that can split a sequence with its queries, if they can split the text."""
WINDOW_FACTOR = 6
"""Factor of a span's window: a span of n words is sampled within a window of this many times n words (mask_alpha of the
released code)."""


@dataclass(frozen=True)
class PermutationLM(Objective):
    """Objective of permutation language modeling. A sequence has a continued text, half new, and two texts: `A sep B
    sep cls`. A continues the first half; B continues A, or is from another part of the corpus (no label depends on it).
    Target positions of each half come last in a random order. The first half does not attend to the second (released
    code, `data_utils.py`)."""

    partial_k: Annotated[int, Option(ge=2, le=64)] = 6
    """Number K of XLNet: one of K positions is a target (2.3: the last ones in the factorization order)."""
    units: Literal["words", "tokens"] = "words"
    """Unit of XLNet's target spans. `tokens` is the effective unit of the released code, because it searches word
    boundaries at wrong positions."""
    bidirectional_data: bool = True
    """Whether every second sequence of a batch is read backward (XLNet, 3.1: half of the batch)."""
    random_segment_prob: Share = 0.5
    """Probability that the second text is from another part of the corpus (released code, after BERT)."""
    sentence_boundaries: bool = False
    """Whether A ends at a sentence boundary, and a text from another part of the corpus starts at one, as in the
    released code. Without a boundary in range a sentence is split."""

    name = "permutation-lm"
    losses: ClassVar = {"permutation-lm": 1.0}
    unit = "lane"
    num_segments = 3
    required_tokens = ("cls", "sep", "end")
    template: ClassVar[tuple[str, str]] = ("A sep cls", "A sep B:1 sep:1 cls:2")
    prompts = ()

    @property
    def direction(self) -> Literal["forward", "alternating"]:  # type: ignore[override]
        return "alternating" if self.bidirectional_data else "forward"

    @property
    def annotations(self) -> tuple[str, ...]:  # type: ignore[override]
        required = {"words": self.units == "words", "sentences": self.sentence_boundaries}
        return tuple(name for name, is_required in required.items() if is_required)

    def text_fields(self, length: int) -> Sample:
        return {"order": np.zeros(length, dtype=np.int64)}

    def raw_length(self, sequence: int) -> int:
        return sequence - 3

    def sequence_window(self, sequence: int, document_mask: bool) -> SequenceWindow:
        half = sequence // 2
        return SequenceWindow(stride=half, lookahead=sequence - half - 3, slots=1)

    def batch_spec(self, sequence: int, document_mask: bool) -> BatchSpec:
        refuse_document_mask(self, document_mask)
        targets = batch_fields((self._num_slots(sequence),), "masked_positions", "labels")
        inputs = batch_fields((sequence,), "tokens", "segments", "order")
        return BatchSpec(
            {"": sequence}, {**inputs, **targets, "reset_state": BatchField(()), "backward": BatchField(())}
        )

    def _num_slots(self, sequence: int) -> int:
        """Return the number of target slots of permutation language modeling, rounded so that sequence plus queries is
        a multiple of `QUERY_MULTIPLE`."""
        return -(-(sequence // self.partial_k + sequence) // QUERY_MULTIPLE) * QUERY_MULTIPLE - sequence

    def check(self, special: SpecialTokens, sequence: int) -> None:
        super().check(special, sequence)
        if sequence % 2 or sequence < 16:
            raise UserError(
                f"data.sequence ({sequence}) must be even and at least 16: the recurrence cache holds the first half "
                "of a sequence."
            )

    def make_sample(self, piece: Piece, context: SampleContext) -> Sample:
        assert isinstance(piece, list)
        special, rng, sequence = context.special, context.rng, context.sequence
        assert special.cls is not None
        assert special.sep is not None
        half, num_targets = sequence // 2, sequence // self.partial_k
        text, starts, sentence_starts = self._join_documents(
            [part for part in piece if not part.other_segment], special, piece[0].backward
        )
        split = self._sample_split(sentence_starts, half, rng)
        if other := [part for part in piece if part.other_segment]:
            *other_arrays, sentence_starts = self._join_documents(other, special, piece[0].backward)
            at = next(iter(np.flatnonzero(sentence_starts[: split + 1])), 0)
            text, starts = (
                np.concatenate([own[:split], added[at : at + len(own) - split]])
                for own, added in zip((text, starts), other_arrays, strict=True)
            )
        sep, cls = (np.array([id_], dtype=np.int64) for id_ in (special.sep, special.cls))
        no_word = np.ones(1, dtype=bool)
        tokens = np.concatenate([text[:split], sep, text[split:], sep, cls])
        starts = np.concatenate([starts[:split], no_word, starts[split:], no_word, no_word])
        segments = np.zeros(sequence, dtype=np.int64)
        segments[split + 1 :], segments[-1] = 1, 2
        ordinary = ~special.is_special[tokens]
        counts = (num_targets - num_targets // 2, num_targets // 2)
        chosen = np.zeros(sequence, dtype=bool)
        for count, part in zip(counts, (slice(0, half), slice(half, sequence)), strict=True):
            chosen[part] = choose_spans(starts[part], ordinary[part], count, rng)
        positions = np.flatnonzero(chosen)
        slots = self._num_slots(sequence)
        masked_positions, labels = np.zeros(slots, dtype=np.int64), np.full(slots, IGNORED, dtype=np.int64)
        masked_positions[: len(positions)], labels[: len(positions)] = positions, tokens[positions]
        return {
            "tokens": tokens,
            "segments": segments,
            "order": attention_order(chosen | ~ordinary, rng.permutation(half), rng.permutation(half)),
            "masked_positions": masked_positions,
            "labels": labels,
            "reset_state": np.array(piece[0].starts_lane, dtype=np.int64),
            "backward": np.array(piece[0].backward, dtype=np.int64),
        }

    def _sample_split(self, sentence_starts: np.ndarray, half: int, rng: np.random.Generator) -> int:
        """Sample the start of the second text of a sequence: both texts have a token after the first half."""
        ends = half + 1 + np.flatnonzero(sentence_starts[half + 1 :])
        return int(rng.choice(ends)) if len(ends) else half + int(rng.integers(1, len(sentence_starts) - half))

    def _join_documents(
        self, piece: list[DocumentSlice], special: SpecialTokens, backward: bool
    ) -> tuple[np.ndarray, ...]:
        """Return tokens with `end` after each document, and, in reading order, which tokens start a word and a
        sentence, if requested."""
        assert special.end is not None
        tokens, starts, sentence_starts = [], [], []
        for part in piece:
            end = np.full(part.slots, special.end, dtype=np.int64)
            word = np.ones(len(part.tokens), dtype=bool)
            if self.units == "words":
                word[:] = False
                word[part.annotations["words"]] = True
                word[:1] = True  # a truncated word counts as a word
            sentence = np.zeros(len(part.tokens) + len(end), dtype=bool)
            if self.sentence_boundaries:
                sentence[part.annotations["sentences"]] = True
            sentence_starts += [sentence]
            tokens += [part.tokens.astype(np.int64), end]
            starts += [word, np.ones(len(end), dtype=bool)]
        text, word, sentence = np.concatenate(tokens), np.concatenate(starts), np.concatenate(sentence_starts)
        if backward:
            # In backward order a word starts with its last token, and so does a sentence.
            last = np.append(word[1:], True), np.append(sentence[1:], False)
            return text[::-1].copy(), *(array[::-1].copy() for array in last)
        return text, word, sentence


def choose_spans(is_start: np.ndarray, candidates: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Choose the target spans of XLNet's permutation language modeling: return a boolean mask with `count` positions,
    or all candidates if fewer: spans of complete words, each in a window of its own, then single tokens to reach the
    count."""
    length = len(is_start)
    chosen = np.zeros(length, dtype=bool)
    starts = np.flatnonzero(is_start)
    shares = 1 / np.arange(1, MAX_SPAN_WORDS + 1)
    at, left = 0, min(count, int(candidates.sum()))
    while left > 0 and at < length:
        words = min(int(rng.choice(MAX_SPAN_WORDS, p=shares / shares.sum())) + 1, left)
        before = int(rng.integers(WINDOW_FACTOR * words))
        first = int(np.searchsorted(starts, at + before))
        if first + words >= len(starts):
            break
        span = np.arange(starts[first], starts[first + words])
        taken = span[candidates[span]][:left]
        chosen[taken] = True
        left -= len(taken)
        at = int(starts[first + words]) + WINDOW_FACTOR * words - before
    if left > 0:
        single = np.flatnonzero(candidates & ~chosen)
        chosen[rng.permutation(single)[:left]] = True
    return chosen


def attention_order(ordered: np.ndarray, *permutations: np.ndarray) -> np.ndarray:
    """Return the attention order of XLNet's permutation language modeling, int64 [S]: a position attends to those whose
    order is at most its own. In each part, as long as its permutation, positions that are not `ordered` come first, at
    once, then the others by the permutation."""
    order, first = np.zeros(len(ordered), dtype=np.int64), 0
    for number, permutation in enumerate(permutations):
        part = slice(first, first + len(permutation))
        order[part] = first + number + np.where(ordered[part], 1 + permutation, 0)
        first = part.stop
    return order


TASKS = {"permutation-lm": PermutationLM}
OBJECTIVES = (PermutationLM(),)
