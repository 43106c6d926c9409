"""The second part of each document, by the decoder, from the first: supervised translation (arXiv:1706.03762)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from megaptm.batch import BatchSpec
from megaptm.objectives.encoder_decoder import batch_of_two_rows, two_rows
from megaptm.objectives.global_tokens import GlobalTokens, first_places
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
    enclosed: bool = False
    """Whether both texts begin with `begin`, and the decoder hears the `end` first, as those that learned by denoising
    do (BART, LED)."""
    global_tokens: GlobalTokens = 0
    """The first places of each source, so many, see all of it and are seen by all, where the encoder's attention is of
    some places alone (LED)."""

    name = "translation"
    losses: ClassVar = {"lm": 1.0}
    unit = "document"
    draws = False
    annotations = ("parts",)

    @property
    def needs(self) -> tuple[str, ...]:  # type: ignore[override]  # a constant of other objectives
        return ("pad", "begin", "end") if self.enclosed else ("pad", "end")

    @property
    def template(self) -> tuple[str, str]:  # type: ignore[override]
        return ("begin A end", "begin A end end B end") if self.enclosed else ("A end", "A end B end")

    @property
    def decoder_start(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("end", "begin") if self.enclosed else ("pad",)

    @property
    def around(self) -> int:
        """Special tokens of each text."""
        return 2 if self.enclosed else 1

    def text_fields(self, length: int) -> Sample:
        return first_places(self.global_tokens, np.arange(length))

    def target_length(self, sequence: int) -> int:
        """Places of the decoder's row."""
        return sequence if self.targets is None else self.targets

    def raw_length(self, sequence: int) -> int:
        """Of the longest source."""
        return sequence - self.around

    def cut(self, sequence: int, document_mask: bool) -> RowWindow:
        # A pair takes its tokens and the special ones on either side.
        stride = max(1, int(FILL * (sequence + self.target_length(sequence))))
        return RowWindow(stride=stride, slots=2 * self.around)

    def batch(self, sequence: int, document_mask: bool) -> BatchSpec:
        return batch_of_two_rows(sequence, self.target_length(sequence), marks=self.global_tokens > 0)

    def texts(self, document: DocumentSlice, sequence: int, targets: int) -> list[np.ndarray]:
        """int64 [n] twice: what the encoder reads of a document, and what the decoder says."""
        return np.split(document.tokens.astype(np.int64), document.annotations["parts"][1:])[:2]

    def has_room(self, document: DocumentSlice, sequence: int) -> bool:
        rooms = sequence, self.target_length(sequence)
        texts = self.texts(document, *rooms)
        return all(len(text) + self.around <= room for text, room in zip(texts, rooms, strict=True))

    def make(self, piece: Piece, context: SampleContext) -> Sample:
        assert isinstance(piece, list)
        special, sequence = context.special, context.sequence
        assert special.pad is not None
        targets = self.target_length(sequence)
        start = np.array([special.end if self.enclosed else special.pad])
        begin = np.array([special.begin] if self.enclosed else [], dtype=np.int64)
        end = np.array([special.end])
        encoder_inputs, decoder_inputs, labels = [], [], []
        rooms = [sequence, targets]
        for document in piece:
            if len(document.annotations["parts"]) < 2:  # a text without a token, such as a mark of direction alone
                continue
            texts = self.texts(document, sequence, targets)
            left = [room - len(text) - self.around for room, text in zip(rooms, texts, strict=True)]
            if min(left) < 0:
                continue
            rooms = left
            source, target = texts
            encoder_inputs.append(np.concatenate((begin, source, end)))
            decoder_inputs.append(np.concatenate((start, begin, target)))
            labels.append(np.concatenate((begin, target, end)))
        rows = two_rows(encoder_inputs, decoder_inputs, labels, sequence=sequence, targets=targets, pad=special.pad)
        return rows | first_places(self.global_tokens, rows["positions"], rows["document_ids"])
