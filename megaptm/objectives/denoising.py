"""BART's denoising: the encoder reads a spoiled text, the decoder says it as it was (arXiv:1910.13461, 2.2)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from megaptm.batch import BatchSpec
from megaptm.errors import UserError
from megaptm.objectives.encoder_decoder import batch_of_two_rows, two_rows
from megaptm.objectives.global_tokens import GlobalTokens, first_places
from megaptm.objectives.masked import enclosed_window, laid_out, word_begins
from megaptm.objectives.objective import (
    DocumentSlice,
    MeanLength,
    Objective,
    Piece,
    Prompt,
    RowWindow,
    Sample,
    SampleContext,
    Share,
)
from megaptm.objectives.vocabulary import SpecialTokens


@dataclass(frozen=True)
class Denoising(Objective):
    """Each document of a row is spoiled by itself: sentences change places, then tokens are hidden, then it may begin
    elsewhere. The decoder reads the document as it was, one token behind what it says, and first of all the `end`.

    The counts are those of the released code, rounded up. Its spans may fall into each other, so that it hides less
    than it says (27 for 30 in 100); here they lie apart, and hide as much as they say.
    """

    infill: Share = 0.3
    """Share of the tokens that are hidden in spans. For each span one mask is shown; a span of no token inserts one."""
    mean: MeanLength = 3.0
    """Mean of the Poisson distribution of their lengths."""
    mask: Share = 0.0
    """Share of the tokens that are hidden each by itself."""
    delete: Share = 0.0
    """Share of the tokens that are left out, and nothing says where."""
    permute: Share = 1.0
    """Share of the sentences that change places among themselves."""
    rotate: Share = 0.0
    """Share of the documents that begin with any of their tokens; what was before it follows the last."""
    random: Share = 0.0
    """Share of the masks in whose place a random token is shown."""
    hide: Literal["tokens", "whole-words"] = "tokens"
    """What is hidden, and counted: tokens, or words with all of their tokens."""
    global_tokens: GlobalTokens = 0
    """The first places of each document, so many, see all that is left of it for the encoder and are seen by all, where
    its attention is of some places alone (LED)."""

    losses: ClassVar = {"lm": 1.0}
    needs = ("pad", "begin", "end", "mask")
    template: ClassVar = ("begin A end", "begin A end end B end")
    decoder_start: ClassVar = ("end", "begin")

    def __post_init__(self) -> None:
        if (hidden := self.infill + self.mask + self.delete) > 1:
            raise UserError(f"infill, mask and delete ({hidden:g} together) are more than all tokens: lower one.")
        if not hidden and not self.permute and not self.rotate:
            raise UserError("infill, mask, delete, permute and rotate are all 0, which spoils nothing: raise one.")

    @property
    def name(self) -> str:  # type: ignore[override]  # a constant of other objectives
        return "denoising" if self.hide == "tokens" else "denoising-whole-word"

    @property
    def prompts(self) -> tuple[Prompt, ...]:  # type: ignore[override]
        return ("masks",) if self.infill or self.mask else ("text",)

    @property
    def annotations(self) -> tuple[str, ...]:  # type: ignore[override]
        known = {"sentences": self.permute > 0, "words": self.hide == "whole-words"}
        return tuple(kind for kind, wanted in known.items() if wanted)

    def raw_length(self, sequence: int) -> int:
        return sequence - 2

    def cut(self, sequence: int, document_mask: bool) -> RowWindow:
        return enclosed_window(sequence, document_mask)

    def batch(self, sequence: int, document_mask: bool) -> BatchSpec:
        return batch_of_two_rows(sequence, sequence, marks=self.global_tokens > 0)

    def text_fields(self, length: int) -> Sample:
        return first_places(self.global_tokens, np.arange(length))

    def make(self, piece: Piece, context: SampleContext) -> Sample:
        assert isinstance(piece, list)
        special = context.special
        assert special.pad is not None
        begin, end = np.array([special.begin]), np.array([special.end])
        labels = laid_out([part.tokens for part in piece], piece, begin, end, context.document_mask)
        encoder_inputs = laid_out(
            [self.spoil(part, special, context.rng) for part in piece], piece, begin, end, context.document_mask
        )
        decoder_inputs = [np.concatenate((end, text[:-1])) for text in labels]
        rows = two_rows(
            encoder_inputs, decoder_inputs, labels, sequence=context.sequence, targets=context.sequence, pad=special.pad
        )
        return rows | first_places(self.global_tokens, rows["positions"], rows["document_ids"])

    def spoil(self, part: DocumentSlice, special: SpecialTokens, rng: np.random.Generator) -> np.ndarray:
        """int64 [at most as many tokens]: what the encoder reads of a document, between `begin` and `end`."""
        tokens = part.tokens.astype(np.int64)
        begins = word_begins(part) if self.hide == "whole-words" else np.ones(len(tokens), dtype=np.int64)
        if self.permute and len(tokens):
            starts = np.union1d([0], part.annotations["sentences"])
            begins[starts] = 1
            order = permuted_sentences(starts, len(tokens), self.permute, rng)
            tokens, begins = tokens[order], begins[order]
        tokens = self._hidden(tokens, np.flatnonzero(begins), special, rng)
        if self.rotate and len(tokens) and rng.random() < self.rotate:
            tokens = np.roll(tokens, -int(rng.integers(len(tokens))))
        return tokens

    def _hidden(
        self, tokens: np.ndarray, starts: np.ndarray, special: SpecialTokens, rng: np.random.Generator
    ) -> np.ndarray:
        """The tokens with some hidden; `starts` are the first ones of units, the least that is hidden."""
        units = len(starts)
        infilled = math.ceil(self.infill * units)
        masked = min(math.ceil(self.mask * units), units - infilled)
        deleted = min(math.ceil(self.delete * units), units - infilled - masked)
        spans = span_lengths(infilled, mean=self.mean, rng=rng)
        # Spans, hidden units and shown ones, in any order: each way in which spans can lie is as likely.
        kinds = np.repeat(np.arange(3), (len(spans) + masked, deleted, units - infilled - masked - deleted))
        lengths = np.concatenate((spans, np.ones(len(kinds) - len(spans), dtype=np.int64)))
        order = rng.permutation(len(kinds))
        kinds, lengths = kinds[order], lengths[order]
        first = np.cumsum(lengths) - lengths
        shown = np.zeros(units, dtype=bool)
        shown[first[kinds == 2]] = True
        kept = np.repeat(shown, np.diff(starts, append=len(tokens)))
        before = np.concatenate(([0], np.cumsum(kept)))
        places = before[np.append(starts, len(tokens))[first[kinds == 0]]]
        return np.insert(tokens[kept], places, self._masks(len(places), special, rng))

    def _masks(self, count: int, special: SpecialTokens, rng: np.random.Generator) -> np.ndarray:
        masks = np.full(count, special.mask, dtype=np.int64)
        if self.random:
            drawn = rng.random(count) < self.random
            masks[drawn] = rng.choice(special.ordinary, np.count_nonzero(drawn))
        return masks


def permuted_sentences(starts: np.ndarray, length: int, share: float, rng: np.random.Generator) -> np.ndarray:
    """int64 [length]: the places of a text in another order of its sentences, which begin at `starts`; of these a share
    change places, any order of them as likely as another."""
    order = np.arange(len(starts))
    moved = rng.permutation(len(starts))[: math.ceil(share * len(starts))]
    order[moved] = rng.permutation(moved)
    stops = np.append(starts[1:], length)
    return np.concatenate([np.arange(starts[number], stops[number]) for number in order])


def span_lengths(total: int, *, mean: float, rng: np.random.Generator) -> np.ndarray:
    """int64 [at most `total`]: Poisson lengths that sum to `total`, the last cut there; some are 0."""
    lengths = np.zeros(0, dtype=np.int64)
    while lengths.sum() < total:
        lengths = np.concatenate((lengths, rng.poisson(mean, total)))
    ends = np.cumsum(lengths)
    lengths = lengths[: np.searchsorted(ends, total) + 1] if total else lengths
    lengths[-1:] -= lengths.sum() - total
    # No more masks than there are hidden tokens, so that no row grows: a text of few tokens may have drawn many 0.
    return lengths[np.argsort(lengths == 0, kind="stable")][:total]
