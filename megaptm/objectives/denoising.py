"""Denoising objective of BART: the encoder reads a corrupted text, the decoder generates the original
(arXiv:1910.13461, 2.2)."""

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
    """Denoising of each document of a sequence: permute sentences, mask tokens, rotate. The decoder reads the original
    document shifted by one, starting with `end`.

    Counts are those of the released code, rounded up. Its spans may overlap, so that it masks less than configured (27
    instead of 30%). Here spans are disjoint, and the configured share is masked.
    """

    infill: Share = 0.3
    """Share of tokens masked in spans. Each span becomes one mask; an empty span inserts a mask."""
    mean: MeanLength = 3.0
    """Mean of the Poisson distribution of span lengths."""
    mask: Share = 0.0
    """Share of tokens masked individually."""
    delete: Share = 0.0
    """Share of tokens deleted, without a mark."""
    permute: Share = 1.0
    """Share of sentences that are permuted among themselves."""
    rotate: Share = 0.0
    """Share of documents rotated to start at a random token."""
    random: Share = 0.0
    """Share of masks replaced by a random token."""
    hide: Literal["tokens", "whole-words"] = "tokens"
    """Unit of masking: tokens, or complete words."""
    global_tokens: GlobalTokens = 0
    """Number of global tokens at the start of each document, for an encoder with window attention (LED)."""

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
    def name(self) -> str:  # type: ignore[override] # a constant of other objectives
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
        """Return the corrupted tokens of a document, without `begin` and `end`, int64 [at most as many tokens]."""
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
        """Return tokens with some masked or deleted. `starts`: first tokens of units."""
        units = len(starts)
        infilled = math.ceil(self.infill * units)
        masked = min(math.ceil(self.mask * units), units - infilled)
        deleted = min(math.ceil(self.delete * units), units - infilled - masked)
        spans = span_lengths(infilled, mean=self.mean, rng=rng)
        # Spans, masked units and unmasked ones in random order: all arrangements of spans are equally likely.
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
    """Return the token order after a share of the sentences, which start at `starts`, is permuted uniformly, int64
    [length]."""
    order = np.arange(len(starts))
    moved = rng.permutation(len(starts))[: math.ceil(share * len(starts))]
    order[moved] = rng.permutation(moved)
    stops = np.append(starts[1:], length)
    return np.concatenate([np.arange(starts[number], stops[number]) for number in order])


def span_lengths(total: int, *, mean: float, rng: np.random.Generator) -> np.ndarray:
    """Return Poisson lengths that sum to `total`, the last truncated, some 0, int64 [at most `total`]."""
    lengths = np.zeros(0, dtype=np.int64)
    while lengths.sum() < total:
        lengths = np.concatenate((lengths, rng.poisson(mean, total)))
    ends = np.cumsum(lengths)
    lengths = lengths[: np.searchsorted(ends, total) + 1] if total else lengths
    lengths[-1:] -= lengths.sum() - total
    # At most as many masks as masked tokens, so that no sequence grows: a short text may have sampled many zeros.
    return lengths[np.argsort(lengths == 0, kind="stable")][:total]
