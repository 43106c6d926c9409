"""Encoder-decoder denoising on packed documents: each document has its own encoder and decoder text."""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from megaptm.batch import IGNORED, BatchSpec, batch_fields
from megaptm.errors import UserError
from megaptm.objectives.denoise import Denoise
from megaptm.objectives.objective import (
    DocumentSlice,
    Objective,
    Piece,
    Sample,
    SampleContext,
    SequenceWindow,
    documents_and_positions,
    pad_pieces,
)
from megaptm.objectives.vocabulary import SpecialTokens


@dataclass(frozen=True)
class EncoderDecoder(Objective):
    """Base of objectives that corrupt each document separately, with its own sentinels, end token and document id on
    both sides."""

    joined: bool = field(default=False, kw_only=True)
    """Whether a decoder-only model reads encoder text and decoder text in one sequence, with labels for the second only
    (arXiv:1910.10683, section 3.2.1: language model)."""

    mode: Annotated[int, Field(ge=0, le=1000)] = field(default=0, kw_only=True)
    """Sentinel, counted from the last one, that starts each encoder text, so that the model knows the kind of its
    objective (UL2, arXiv:2205.05131, 3.1.3). 0: none."""

    losses: ClassVar = {"lm": 1.0}
    template: ClassVar = ("A end", "A end B end")

    @property
    def required_tokens(self) -> tuple[str, ...]:  # type: ignore[override] # a constant of other objectives
        return ("end",) if self.joined else ("pad", "end")

    @property
    @abstractmethod
    def noise(self) -> Denoise:
        """Return masking, replacement and labels of a denoised document."""

    @abstractmethod
    def input_length(self, raw: int) -> int:
        """Return the maximum encoder length for `raw` tokens, with end token and without mode sentinel; it must not
        decrease with `raw`."""

    @abstractmethod
    def target_length(self, raw: int) -> int:
        """Return the maximum decoder length for `raw` tokens, end token included; it must not decrease with `raw`."""

    def encoder_length(self, raw: int) -> int:
        """Return the maximum encoder length for `raw` tokens, with a mode sentinel if there is one."""
        return self.input_length(raw) + bool(self.mode)

    def joined_length(self, raw: int) -> int:
        """Return the maximum length of encoder and decoder text in one sequence, without the last end token, which is
        only a label."""
        return self.encoder_length(raw) + self.target_length(raw) - 1

    def max_sentinels(self, raw: int) -> int:
        """Return the maximum number of sentinels for `raw` tokens."""
        return 0

    def raw_length(self, sequence: int) -> int:
        """Return the maximum number of raw tokens that fit an encoder of `sequence`. T5 has 568 for 512, with 114
        decoder tokens."""
        return _raw_length(self, sequence)

    def sequence_window(self, sequence: int, document_mask: bool) -> SequenceWindow:
        return SequenceWindow(stride=self.raw_length(sequence))

    def batch_spec(self, sequence: int, document_mask: bool) -> BatchSpec:
        if self.joined:
            names = ("tokens", "document_ids", "positions", "labels")
            return BatchSpec({"": sequence}, batch_fields((sequence,), *names))
        targets = self.target_length(self.raw_length(sequence))
        return encoder_decoder_batch(sequence, targets)

    def check(self, special: SpecialTokens, sequence: int) -> None:
        super().check(special, sequence)
        self.check_sentinels(special, sequence, self.mode)

    def check_sentinels(self, special: SpecialTokens, sequence: int, num_modes: int) -> None:
        """Raise `UserError` if the tokenizer lacks sentinels for the spans of a sequence and for these modes."""
        spans, sentinels = self.max_sentinels(self.raw_length(sequence)), len(special.sentinels)
        if spans + num_modes > sentinels:
            own = f", and {num_modes} of them {'is' if num_modes == 1 else 'are'} for modes" if num_modes else ""
            raise UserError(
                f"objective {self.name} masks {spans} spans in a sequence of {sequence} tokens, but the tokenizer has "
                f"{sentinels} sentinels{own}: use a tokenizer with more (tokenizer.sentinels), or a shorter "
                "data.sequence."
            )

    def add_special_tokens(self, ids: list[int], special: SpecialTokens) -> list[int]:
        return [*self._mode(special).tolist(), *super().add_special_tokens(ids, special)]

    def make_sample(self, piece: Piece, context: SampleContext) -> Sample:
        assert isinstance(piece, list)
        special, sequence = context.special, context.sequence
        if self.joined:
            return self._make_joined(piece, context)
        assert special.pad is not None
        targets = self.target_length(self.raw_length(sequence))
        texts = [part.tokens.astype(np.int64) for part in piece]
        max_lengths: dict[Callable[[int], int], int] = {self.encoder_length: sequence, self.target_length: targets}
        texts = _fit_texts(texts, max_lengths) if context.document_mask else [np.concatenate(texts)]
        mode, start, end = self._mode(special), np.array([special.pad]), np.array([special.end])
        noise = self.noise
        encoder_inputs, labels, decoder_inputs = [], [], []
        for text in texts:
            _, shown, target = noise(text, special, context.rng)
            encoder_inputs.append(np.concatenate((mode, shown, end)))
            labels.append(np.concatenate((target, end)))
            decoder_inputs.append(np.concatenate((start, target)))
        return encoder_decoder_sample(
            encoder_inputs, decoder_inputs, labels, sequence=sequence, targets=targets, pad=special.pad
        )

    def _mode(self, special: SpecialTokens) -> np.ndarray:
        """Return the sentinel that starts each encoder text, if there is one."""
        return np.array([special.sentinels[-self.mode]] if self.mode else [], dtype=np.int64)

    def _make_joined(self, piece: list[DocumentSlice], context: SampleContext) -> Sample:
        special, sequence = context.special, context.sequence
        texts = [part.tokens.astype(np.int64) for part in piece]
        texts = _fit_texts(texts, {self.joined_length: sequence}) if context.document_mask else [np.concatenate(texts)]
        mode, end, noise = self._mode(special), np.array([special.end]), self.noise
        inputs, labels = [], []
        for text in texts:
            _, shown, target = noise(text, special, context.rng)
            inputs.append(np.concatenate((mode, shown, end, target)))
            labels.append(np.concatenate((np.full(len(mode) + len(shown), IGNORED), target, end)))
        documents, positions = documents_and_positions([len(text) for text in inputs], sequence)
        filler = special.end if special.pad is None else special.pad
        assert filler is not None
        return {
            "tokens": pad_pieces(inputs, sequence, filler),
            "document_ids": documents,
            "positions": positions,
            "labels": pad_pieces(labels, sequence, IGNORED),
        }


def _fit_texts(texts: list[np.ndarray], max_lengths: dict[Callable[[int], int], int]) -> list[np.ndarray]:
    """Return the texts of an encoder-decoder sequence that fit after corruption. The first text that does not fit is
    truncated, later ones are dropped. `max_lengths`: a function that maps a raw length to a length after corruption ->
    the maximum of those lengths.

    A single document fills a sequence exactly. Every further document costs an end token on both sides, mostly in the
    short decoder sequence: about 7 raw tokens each, 1 to 2% of a corpus whose documents fill a sequence.
    """
    left, fitted = dict(max_lengths), []
    for text in texts:
        room = min(bisect_right(range(len(text) + 1), limit, key=length_of) - 1 for length_of, limit in left.items())
        if room < 1:
            break
        fitted.append(text[:room])
        left = {length_of: limit - length_of(room) for length_of, limit in left.items()}
        if room < len(text):
            break
    return fitted


def encoder_decoder_batch(sequence: int, targets: int, *, global_tokens: bool = False) -> BatchSpec:
    """Return the fields of `encoder_decoder_sample`, optionally with `global_tokens` of the encoder."""
    # T5 has relative positions and ignores `positions`; other encoder-decoders use them.
    encoder = batch_fields(
        (sequence,), "tokens", "document_ids", "positions", *(["global_tokens"] if global_tokens else [])
    )
    decoder = batch_fields((targets,), "decoder_tokens", "decoder_document_ids", "decoder_positions", "labels")
    return BatchSpec({"": sequence, "decoder_": targets}, encoder | decoder)


def encoder_decoder_sample(
    encoder_inputs: list[np.ndarray],
    decoder_inputs: list[np.ndarray],
    labels: list[np.ndarray],
    *,
    sequence: int,
    targets: int,
    pad: int,
) -> Sample:
    """Concatenate encoder inputs, decoder inputs and labels of all documents, padded to `sequence` and `targets`
    tokens."""
    sample = {"labels": pad_pieces(labels, targets, IGNORED)}
    for prefix, texts, size in (("", encoder_inputs, sequence), ("decoder_", decoder_inputs, targets)):
        documents, positions = documents_and_positions([len(text) for text in texts], size)
        sample[f"{prefix}tokens"] = pad_pieces(texts, size, pad)
        sample[f"{prefix}document_ids"], sample[f"{prefix}positions"] = documents, positions
    return sample


@lru_cache
def _raw_length(task: EncoderDecoder, sequence: int) -> int:
    # One more raw token adds one encoder token or none, so every length of at least 2 is filled exactly. But with many
    # long spans 2 raw tokens may add none, and the masked share does not bound how many more raw tokens fit.
    length_of = task.joined_length if task.joined else task.encoder_length
    limit = 2 * sequence
    while length_of(limit) <= sequence:
        limit *= 2
    return bisect_right(range(limit), sequence, key=length_of) - 1
