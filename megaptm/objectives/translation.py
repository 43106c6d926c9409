"""Supervised translation: the decoder generates the second part of a document from the first (arXiv:1706.03762)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from megaptm.batch import BatchSpec
from megaptm.objectives.encoder_decoder import encoder_decoder_batch, encoder_decoder_sample
from megaptm.objectives.global_tokens import GlobalTokens, mark_global_tokens
from megaptm.objectives.objective import (
    DocumentSlice,
    Objective,
    Piece,
    Sample,
    SampleContext,
    SequenceLength,
    SequenceWindow,
)

FILL = 0.875
"""Share of the sequence length that is filled with pairs of texts. With sentence pairs of 28 tokens per side on
average, 1 pair of 200 does not fit at 448 tokens, and 1 of 50 at 256. In each epoch, other pairs do not fit."""


@dataclass(frozen=True)
class Translation(Objective):
    """Objective of translation, in sequences of complete pairs, each with its own end token, positions and document id
    on both sides.

    Pairs that do not fit are used in another epoch. Pairs longer than a sequence are skipped.
    """

    max_target_length: SequenceLength | None = None
    """Sequence length of the decoder. None: that of the encoder."""
    add_begin_token: bool = False
    """Whether both texts start with `begin`, and the decoder input with `end`, as in denoising models (BART, LED)."""
    global_tokens: GlobalTokens = 0
    """Number of global tokens at the start of each source, for an encoder with window attention (LED)."""

    name = "translation"
    losses: ClassVar = {"lm": 1.0}
    unit = "document"
    uses_rng = False
    annotations = ("parts",)

    @property
    def required_tokens(self) -> tuple[str, ...]:  # type: ignore[override] # a constant of other objectives
        return ("pad", "begin", "end") if self.add_begin_token else ("pad", "end")

    @property
    def template(self) -> tuple[str, str]:  # type: ignore[override]
        return ("begin A end", "begin A end end B end") if self.add_begin_token else ("A end", "A end B end")

    @property
    def decoder_start(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("end", "begin") if self.add_begin_token else ("pad",)

    @property
    def num_special_tokens(self) -> int:
        """Return the number of special tokens of each text of a pair."""
        return 2 if self.add_begin_token else 1

    def text_fields(self, length: int) -> Sample:
        return mark_global_tokens(self.global_tokens, np.arange(length))

    def target_length(self, sequence: int) -> int:
        """Return the sequence length of the translation's decoder."""
        return sequence if self.max_target_length is None else self.max_target_length

    def raw_length(self, sequence: int) -> int:
        """Return the length of the longest source of a translation."""
        return sequence - self.num_special_tokens

    def sequence_window(self, sequence: int, document_mask: bool) -> SequenceWindow:
        # A pair counts with its special tokens on both sides.
        stride = max(1, int(FILL * (sequence + self.target_length(sequence))))
        return SequenceWindow(stride=stride, slots=2 * self.num_special_tokens)

    def batch_spec(self, sequence: int, document_mask: bool) -> BatchSpec:
        return encoder_decoder_batch(sequence, self.target_length(sequence), global_tokens=self.global_tokens > 0)

    def split_parts(self, document: DocumentSlice, sequence: int, targets: int) -> list[np.ndarray]:
        """Return encoder text and decoder text of a document, int64 [n] each."""
        return np.split(document.tokens.astype(np.int64), document.annotations["parts"][1:])[:2]

    def fits(self, document: DocumentSlice, sequence: int) -> bool:
        rooms = sequence, self.target_length(sequence)
        texts = self.split_parts(document, *rooms)
        return all(len(text) + self.num_special_tokens <= room for text, room in zip(texts, rooms, strict=True))

    def make_sample(self, piece: Piece, context: SampleContext) -> Sample:
        assert isinstance(piece, list)
        special, sequence = context.special, context.sequence
        assert special.pad is not None
        targets = self.target_length(sequence)
        start = np.array([special.end if self.add_begin_token else special.pad])
        begin = np.array([special.begin] if self.add_begin_token else [], dtype=np.int64)
        end = np.array([special.end])
        encoder_inputs, decoder_inputs, labels = [], [], []
        rooms = [sequence, targets]
        for document in piece:
            if len(document.annotations["parts"]) < 2:  # a text without tokens, for instance only a language mark
                continue
            texts = self.split_parts(document, sequence, targets)
            left = [room - len(text) - self.num_special_tokens for room, text in zip(rooms, texts, strict=True)]
            if min(left) < 0:
                continue
            rooms = left
            source, target = texts
            encoder_inputs.append(np.concatenate((begin, source, end)))
            decoder_inputs.append(np.concatenate((start, begin, target)))
            labels.append(np.concatenate((begin, target, end)))
        sample = encoder_decoder_sample(
            encoder_inputs, decoder_inputs, labels, sequence=sequence, targets=targets, pad=special.pad
        )
        return sample | mark_global_tokens(self.global_tokens, sample["positions"], sample["document_ids"])
