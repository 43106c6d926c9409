"""The second part of each document, by the decoder, from the first: supervised translation (arXiv:1706.03762)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from megaptm.batch import BatchSpec
from megaptm.objectives.encoder_decoder import batch_of_two_rows, two_rows
from megaptm.objectives.objective import DocumentSlice, Objective, Piece, RowLength, RowWindow, Sample, SampleContext

FILL = 0.875
"""Share of a row's places for which pairs are dealt to it. Of pairs of sentences, 28 tokens on average on a side, rows
of 448 places then have no room for one in 200, and rows of 256 for one in 50: others in each epoch."""


@dataclass(frozen=True)
class Translation(Objective):
    """Rows of whole pairs: each is read and said by itself, with its own end, places and number on both sides.

    A pair that finds no room in its row waits for another epoch; one that is longer than a row is never read.
    """

    targets: RowLength | None = None
    """Places of the decoder's row; absent: as many as the encoder's."""

    name = "translation"
    losses: ClassVar = {"lm": 1.0}
    unit = "document"
    draws = False
    needs = ("pad", "end")
    template: ClassVar = ("A end", "A end B end")
    annotations = ("parts",)

    def target_length(self, sequence: int) -> int:
        """Places of the decoder's row."""
        return sequence if self.targets is None else self.targets

    def raw_length(self, sequence: int) -> int:
        """Of the longest source."""
        return sequence - 1

    def cut(self, sequence: int, document_mask: bool) -> RowWindow:
        # A pair takes its tokens and an end on either side.
        return RowWindow(stride=max(1, int(FILL * (sequence + self.target_length(sequence)))), slots=2)

    def batch(self, sequence: int, document_mask: bool) -> BatchSpec:
        return batch_of_two_rows(sequence, self.target_length(sequence))

    def texts(self, document: DocumentSlice, sequence: int, targets: int) -> list[np.ndarray]:
        """int64 [n] twice: what the encoder reads of a document, and what the decoder says."""
        return np.split(document.tokens.astype(np.int64), document.annotations["parts"][1:])[:2]

    def has_room(self, document: DocumentSlice, sequence: int) -> bool:
        rooms = sequence, self.target_length(sequence)
        return all(len(text) < room for text, room in zip(self.texts(document, *rooms), rooms, strict=True))

    def make(self, piece: Piece, context: SampleContext) -> Sample:
        assert isinstance(piece, list)
        special, sequence = context.special, context.sequence
        assert special.pad is not None
        targets = self.target_length(sequence)
        start, end = np.array([special.pad]), np.array([special.end])
        encoder_inputs, decoder_inputs, labels = [], [], []
        rooms = [sequence, targets]
        for document in piece:
            if len(document.annotations["parts"]) < 2:  # a text without a token, such as a mark of direction alone
                continue
            texts = self.texts(document, sequence, targets)
            left = [room - len(text) - 1 for room, text in zip(rooms, texts, strict=True)]
            if min(left) < 0:
                continue
            rooms = left
            source, target = texts
            encoder_inputs.append(np.concatenate((source, end)))
            decoder_inputs.append(np.concatenate((start, target)))
            labels.append(np.concatenate((target, end)))
        return two_rows(encoder_inputs, decoder_inputs, labels, sequence=sequence, targets=targets, pad=special.pad)
