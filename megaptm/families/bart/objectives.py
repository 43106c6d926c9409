"""Denoising objective of BART: the encoder reads a corrupted text, the decoder generates the original
(arXiv:1910.13461, 2.2)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from megaptm.batch import BatchSpec
from megaptm.errors import UserError
from megaptm.objectives.encoder_decoder import encoder_decoder_batch, encoder_decoder_sample
from megaptm.objectives.global_tokens import GlobalTokens, mark_global_tokens
from megaptm.objectives.masked import enclose_documents, window_of_documents, word_starts
from megaptm.objectives.objective import (
    DocumentSlice,
    MeanLength,
    Objective,
    Piece,
    Prompt,
    Sample,
    SampleContext,
    SequenceWindow,
    Share,
)
from megaptm.objectives.vocabulary import SpecialTokens


@dataclass(frozen=True)
class BartDenoising(Objective):
    """Denoising of each document of a sequence: permute sentences, mask tokens, rotate. The decoder reads the original
    document shifted by one, starting with `end`.

    Counts are those of the released code, rounded up. Its spans may overlap, so that it masks less than configured (27
    instead of 30%). Here spans are disjoint, and the configured share is masked.
    """

    infill_rate: Share = 0.3
    """Text infilling of BART: share of tokens masked in spans. Each span becomes one mask; an empty span inserts a
    mask."""
    poisson_lambda: MeanLength = 3.0
    """Lambda of the Poisson distribution of span lengths: their mean."""
    mask_rate: Share = 0.0
    """Token masking of BART: share of tokens masked individually."""
    delete_rate: Share = 0.0
    """Token deletion of BART: share of tokens deleted. Nothing marks their positions."""
    permute_rate: Share = 1.0
    """Sentence permutation of BART: share of sentences that are permuted among themselves."""
    rotate_prob: Share = 0.0
    """Document rotation of BART: probability that a document is rotated to start at a random token."""
    random_token_prob: Share = 0.0
    """Probability that a mask is replaced by a random token."""
    hide: Literal["tokens", "whole-words"] = "tokens"
    """Unit of masking in BART's denoising: tokens, or complete words."""
    global_tokens: GlobalTokens = 0
    """Number of global tokens at the start of each document, for an encoder with window attention (LED)."""

    losses: ClassVar = {"lm": 1.0}
    required_tokens = ("pad", "begin", "end", "mask")
    template: ClassVar = ("begin A end", "begin A end end B end")
    decoder_start: ClassVar = ("end", "begin")

    def __post_init__(self) -> None:
        if (hidden := self.infill_rate + self.mask_rate + self.delete_rate) > 1:
            raise UserError(f"infill_rate, mask_rate and delete_rate sum to {hidden:g}, more than 1: lower one.")
        if not hidden and not self.permute_rate and not self.rotate_prob:
            raise UserError(
                "infill_rate, mask_rate, delete_rate, permute_rate and rotate_prob are all 0, so that the input is the "
                "target: raise one."
            )

    @property
    def name(self) -> str:  # type: ignore[override] # a constant of other objectives
        return "denoising" if self.hide == "tokens" else "denoising-whole-word"

    @property
    def prompts(self) -> tuple[Prompt, ...]:  # type: ignore[override]
        return ("masks",) if self.infill_rate or self.mask_rate else ("text",)

    @property
    def annotations(self) -> tuple[str, ...]:  # type: ignore[override]
        required = {"sentences": self.permute_rate > 0, "words": self.hide == "whole-words"}
        return tuple(kind for kind, is_required in required.items() if is_required)

    def raw_length(self, sequence: int) -> int:
        return sequence - 2

    def sequence_window(self, sequence: int, document_mask: bool) -> SequenceWindow:
        return window_of_documents(sequence, document_mask)

    def batch_spec(self, sequence: int, document_mask: bool) -> BatchSpec:
        return encoder_decoder_batch(sequence, sequence, global_tokens=self.global_tokens > 0)

    def text_fields(self, length: int) -> Sample:
        return mark_global_tokens(self.global_tokens, np.arange(length))

    def make_sample(self, piece: Piece, context: SampleContext) -> Sample:
        assert isinstance(piece, list)
        special = context.special
        assert special.pad is not None
        begin, end = np.array([special.begin]), np.array([special.end])
        labels = enclose_documents([part.tokens for part in piece], piece, begin, end, context.document_mask)
        encoder_inputs = enclose_documents(
            [self.corrupt(part, special, context.rng) for part in piece], piece, begin, end, context.document_mask
        )
        decoder_inputs = [np.concatenate((end, text[:-1])) for text in labels]
        sample = encoder_decoder_sample(
            encoder_inputs, decoder_inputs, labels, sequence=context.sequence, targets=context.sequence, pad=special.pad
        )
        return sample | mark_global_tokens(self.global_tokens, sample["positions"], sample["document_ids"])

    def corrupt(self, part: DocumentSlice, special: SpecialTokens, rng: np.random.Generator) -> np.ndarray:
        """Corrupt a document as BART does: return its tokens without `begin` and `end`, int64 [at most as many
        tokens]."""
        tokens = part.tokens.astype(np.int64)
        is_start = word_starts(part) if self.hide == "whole-words" else np.ones(len(tokens), dtype=np.int64)
        if self.permute_rate and len(tokens):
            starts = np.union1d([0], part.annotations["sentences"])
            is_start[starts] = 1
            order = permute_sentences(starts, len(tokens), self.permute_rate, rng)
            tokens, is_start = tokens[order], is_start[order]
        tokens = self._mask_or_delete(tokens, np.flatnonzero(is_start), special, rng)
        if self.rotate_prob and len(tokens) and rng.random() < self.rotate_prob:
            tokens = np.roll(tokens, -int(rng.integers(len(tokens))))
        return tokens

    def _mask_or_delete(
        self, tokens: np.ndarray, starts: np.ndarray, special: SpecialTokens, rng: np.random.Generator
    ) -> np.ndarray:
        """Return the tokens of a document with some masked or deleted. `starts`: first tokens of units."""
        units = len(starts)
        infilled = math.ceil(self.infill_rate * units)
        masked = min(math.ceil(self.mask_rate * units), units - infilled)
        deleted = min(math.ceil(self.delete_rate * units), units - infilled - masked)
        spans = sample_span_lengths(infilled, poisson_lambda=self.poisson_lambda, rng=rng)
        # Spans, masked units and unmasked ones in random order: all arrangements of spans are equally likely.
        kinds = np.repeat(np.arange(3), (len(spans) + masked, deleted, units - infilled - masked - deleted))
        lengths = np.concatenate((spans, np.ones(len(kinds) - len(spans), dtype=np.int64)))
        order = rng.permutation(len(kinds))
        kinds, lengths = kinds[order], lengths[order]
        first = np.cumsum(lengths) - lengths
        shown = np.zeros(units, dtype=bool)
        shown[first[kinds == 2]] = True
        is_visible = np.repeat(shown, np.diff(starts, append=len(tokens)))
        before = np.concatenate(([0], np.cumsum(is_visible)))
        positions = before[np.append(starts, len(tokens))[first[kinds == 0]]]
        return np.insert(tokens[is_visible], positions, self._mask_tokens(len(positions), special, rng))

    def _mask_tokens(self, count: int, special: SpecialTokens, rng: np.random.Generator) -> np.ndarray:
        masks = np.full(count, special.mask, dtype=np.int64)
        if self.random_token_prob:
            is_random = rng.random(count) < self.random_token_prob
            masks[is_random] = rng.choice(special.ordinary_ids, np.count_nonzero(is_random))
        return masks


def permute_sentences(starts: np.ndarray, length: int, share: float, rng: np.random.Generator) -> np.ndarray:
    """BART's sentence permutation: return the token order after a share of the sentences, which start at `starts`, is
    permuted uniformly, int64 [length]."""
    order = np.arange(len(starts))
    moved = rng.permutation(len(starts))[: math.ceil(share * len(starts))]
    order[moved] = rng.permutation(moved)
    stops = np.append(starts[1:], length)
    return np.concatenate([np.arange(starts[index], stops[index]) for index in order])


def sample_span_lengths(total: int, *, poisson_lambda: float, rng: np.random.Generator) -> np.ndarray:
    """Sample Poisson lengths of BART's masked spans that sum to `total`, the last truncated, some 0, int64 [at most
    `total`]."""
    lengths = np.zeros(0, dtype=np.int64)
    while lengths.sum() < total:
        lengths = np.concatenate((lengths, rng.poisson(poisson_lambda, total)))
    ends = np.cumsum(lengths)
    lengths = lengths[: np.searchsorted(ends, total) + 1] if total else lengths
    lengths[-1:] -= lengths.sum() - total
    # At most as many masks as masked tokens, so that no sequence grows: a short text may have sampled many zeros.
    return lengths[np.argsort(lengths == 0, kind="stable")][:total]


TASKS = {"denoising": BartDenoising}
OBJECTIVES = (BartDenoising(), BartDenoising(hide="whole-words", poisson_lambda=3.5, random_token_prob=0.1))
