"""Translation language modeling: masked tokens in pairs of parallel texts (arXiv:1901.07291, 3.3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from megaptm.objectives.masked import SPECIAL_START, MaskedLM, TextSequence
from megaptm.objectives.objective import (
    DocumentSlice,
    Piece,
    Sample,
    SampleContext,
    SequenceWindow,
    mark_tokens,
    pad_pieces,
    unit_starts,
)
from megaptm.objectives.text_questions import LabeledTexts, fit_lengths
from megaptm.objectives.translation import FILL

SLOTS = 3
"""Number of special tokens in a pair of translation language modeling: `cls` A `sep` B `sep`."""
Language = Annotated[int, Field(ge=0, le=10**6)]


@dataclass(frozen=True)
class TranslationLM(MaskedLM):
    """Objective of masked tokens in sequences of complete pairs, the first two parts of a document.

    Pairs that do not fit are used in another epoch. Pairs longer than a sequence are truncated, the longer text first.
    """

    languages: tuple[Language, Language] = (0, 1)
    """Segment ids of both texts, which identify their languages."""
    reset_positions: bool = True
    """Whether positions restart in the second text, so that translations have similar positions."""

    unit = "document"
    template: ClassVar = ("cls A sep", "cls A sep B:1 sep:1")

    @property
    def name(self) -> str:  # type: ignore[override]
        return super().name.replace("masked-lm", "translation-lm", 1)

    @property
    def annotations(self) -> tuple[str, ...]:  # type: ignore[override]
        return (*super().annotations, "parts")

    @property
    def num_segments(self) -> int:  # type: ignore[override]
        return max(self.languages) + 1

    @property
    def resets_positions(self) -> bool:  # type: ignore[override]
        return self.reset_positions

    def why_no_question(self, num_texts: int) -> str | None:
        return "its samples are pairs of the corpus"

    def text_fields(self, length: int) -> Sample:
        return super().text_fields(length) | {"segments": np.full(length, self.languages[0])}

    def raw_length(self, sequence: int) -> int:
        return sequence - SLOTS

    def sequence_window(self, sequence: int, document_mask: bool) -> SequenceWindow:
        # No pair counts for more than a sequence, so that one starts in each.
        stride = max(1, int(FILL * sequence))
        return SequenceWindow(stride=stride, slots=SLOTS, max_document_length=stride)

    def make_sample(self, piece: Piece, context: SampleContext) -> Sample:
        assert isinstance(piece, list)
        sequence = context.sequence
        pairs: list[LabeledTexts] = []
        starts: list[np.ndarray] = []
        room = sequence
        for document in piece:
            if len(document.annotations["parts"]) < 2:  # a text without tokens, for instance only a language mark
                continue
            texts = self._fitted_texts(document, sequence)
            if (left := room - SLOTS - sum(map(len, texts))) < 0:
                continue
            room = left
            pairs.append(LabeledTexts([text[:, 0] for text in texts], [*self.languages]))
            starts += [SPECIAL_START, *(part for text in texts for part in (_unit_starts(text), SPECIAL_START))]
        text_sequence = TextSequence.of_texts(pairs, context.special)
        sample = self.mask_sequence(text_sequence, context, pad_pieces(starts, sum(text_sequence.documents), 1))
        if self.resets_positions:
            sample["positions"] = pad_pieces([np.arange(len(text)) for text in text_sequence.text], sequence, 0)
        return sample

    def _fitted_texts(self, document: DocumentSlice, sequence: int) -> list[np.ndarray]:
        """Return both texts of a translated document, truncated so that they fit a sequence: int64 [n, 1 + k], tokens
        and one column of marks per annotation (`mark_tokens`)."""
        parts = document.annotations["parts"]
        annotations = {name: document.annotations[name] for name in super().annotations}
        tokens = mark_tokens(document.tokens, annotations).reshape(len(document.tokens), 1 + len(annotations))
        texts = np.split(tokens, parts[1:])[:2]
        lengths = fit_lengths([*map(len, texts)], self.raw_length(sequence))
        return [text[:length] for text, length in zip(texts, lengths, strict=True)]


def _unit_starts(text: np.ndarray) -> np.ndarray:
    """Return the starts of units in a text, int64 [n]: 1 at the first token of each unit. Without columns of marks,
    every token is a unit."""
    return unit_starts(text) if text.shape[1] > 1 else np.ones(len(text), dtype=np.int64)
