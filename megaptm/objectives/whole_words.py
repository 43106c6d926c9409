"""Masks that hide whole words, on corpora that know where words begin (the whole-word release of BERT, May 2019)."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from megaptm.objectives.denoise import Denoise, hidden_in_place, masked, whole_words
from megaptm.objectives.masked import RATE, MaskedLM, laid_out, most_asked
from megaptm.objectives.objective import DocumentSlice

ONE = np.ones(1, dtype=np.int64)


class MaskedLMWholeWord(MaskedLM):
    """`masked-lm`, but a word is hidden with all of its tokens or not at all."""

    name = "masked-lm-whole-word"
    annotations: ClassVar = ("words",)

    def masking(self, piece: list[DocumentSlice], sequence: int, document_mask: bool) -> Denoise:
        begins = laid_out([_begins(part) for part in piece], piece, ONE, ONE, document_mask)
        hide = whole_words(rate=RATE, most=most_asked(sequence), begins=np.concatenate(begins))
        return Denoise(hide=hide, show=masked(mask=0.8, random=0.1), ask=hidden_in_place)


def _begins(part: DocumentSlice) -> np.ndarray:
    """int64 [tokens]: 1 where a word begins; a word that the row cut in two is a word by itself."""
    assert part.words is not None
    begins = np.zeros(len(part.tokens), dtype=np.int64)
    begins[part.words] = 1
    begins[:1] = 1
    return begins
