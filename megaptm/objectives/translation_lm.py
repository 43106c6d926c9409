"""Translation language modeling: masked tokens in pairs of parallel texts (arXiv:1901.07291, 3.3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from megaptm.objectives.masked import ONE, MaskedLM, MaskedRow
from megaptm.objectives.objective import DocumentSlice, Piece, RowWindow, Sample, SampleContext, marked, padded, units
from megaptm.objectives.text_questions import LabeledTexts, fair_shares
from megaptm.objectives.translation import FILL

SLOTS = 3
"""Special tokens of a pair: `cls` A `sep` B `sep`."""
Language = Annotated[int, Field(ge=0, le=10**6)]


@dataclass(frozen=True)
class TranslationLM(MaskedLM):
    """Masked tokens in sequences of complete pairs, the first two parts of a document.

    Pairs that do not fit are used in another epoch. Pairs longer than a sequence are truncated, the longer text first.
    """

    languages: tuple[Language, Language] = (0, 1)
    """Segment ids of both texts, which identify their languages."""
    places: Literal["restarted", "continued"] = "restarted"
    """Whether positions restart in the second text, so that translations have similar positions, or continue."""

    unit = "document"
    template: ClassVar = ("cls A sep", "cls A sep B:1 sep:1")

    @property
    def name(self) -> str:  # type: ignore[override]
        return super().name.replace("masked-lm", "translation-lm", 1)

    @property
    def annotations(self) -> tuple[str, ...]:  # type: ignore[override]
        return (*super().annotations, "parts")

    @property
    def segments(self) -> int:  # type: ignore[override]
        return max(self.languages) + 1

    @property
    def restarts(self) -> bool:  # type: ignore[override]
        return self.places == "restarted"

    def question_misfit(self, texts: int) -> str | None:
        return "whose rows hold pairs of the corpus"

    def text_fields(self, length: int) -> Sample:
        return super().text_fields(length) | {"segments": np.full(length, self.languages[0])}

    def raw_length(self, sequence: int) -> int:
        return sequence - SLOTS

    def cut(self, sequence: int, document_mask: bool) -> RowWindow:
        # No pair counts for more than a sequence, so that one starts in each.
        stride = max(1, int(FILL * sequence))
        return RowWindow(stride=stride, slots=SLOTS, most=stride)

    def make(self, piece: Piece, context: SampleContext) -> Sample:
        assert isinstance(piece, list)
        sequence = context.sequence
        pairs: list[LabeledTexts] = []
        begins: list[np.ndarray] = []
        room = sequence
        for document in piece:
            if len(document.annotations["parts"]) < 2:  # a text without tokens, for instance only a language mark
                continue
            texts = [text[:most] for text, most in self._kept(document, sequence)]
            if (left := room - SLOTS - sum(map(len, texts))) < 0:
                continue
            room = left
            pairs.append(LabeledTexts([text[:, 0] for text in texts], [*self.languages]))
            begins += [ONE, *(part for text in texts for part in (_begins(text), ONE))]
        row = MaskedRow.of_texts(pairs, context.special)
        sample = self.mask_row(row, context, padded(begins, sum(row.documents), 1))
        if self.restarts:
            sample["positions"] = padded([np.arange(len(text)) for text in row.text], sequence, 0)
        return sample

    def _kept(self, document: DocumentSlice, sequence: int) -> list[tuple[np.ndarray, int]]:
        """Return both texts of a document with marks, int64 [n, 1 + marks], and the length of each that a sequence
        takes."""
        parts = document.annotations["parts"]
        known = {name: document.annotations[name] for name in super().annotations}
        tokens = marked(document.tokens, known).reshape(len(document.tokens), 1 + len(known))
        texts = np.split(tokens, parts[1:])[:2]
        return [*zip(texts, fair_shares([*map(len, texts)], self.raw_length(sequence)), strict=True)]


def _begins(text: np.ndarray) -> np.ndarray:
    """Return int64 [n]: 1 at the first token of each unit; without marks every token is one."""
    return units(text) if text.shape[1] > 1 else np.ones(len(text), dtype=np.int64)
