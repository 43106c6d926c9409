"""Masked language modeling with an attention order (UniLM, arXiv:1905.03197): one model, four kinds of context."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from megaptm.batch import BatchSpec, batch_fields
from megaptm.objectives.composed import CONSTANT_ONE, Task
from megaptm.objectives.masked import MaskedLM, MaskedLMWithQuestion, TextSequence
from megaptm.objectives.mixtures import NamedMixture, share_of_third
from megaptm.objectives.objective import Piece, Sample, SampleContext, SequenceWindow, pad_pieces
from megaptm.objectives.text_questions import LabeledTexts

Context = Literal["bidirectional", "left-to-right", "right-to-left", "sequence-to-sequence"]
SEGMENTS: dict[str, tuple[int, ...]] = {
    "bidirectional": (0, 1),
    "left-to-right": (2, 2),
    "right-to-left": (3, 3),
    "sequence-to-sequence": (4, 5),
}
"""Segment ids of UniLM's first and second text, which tell the model the kind of context (released code)."""


@dataclass(frozen=True)
class OrderedMaskedLM(MaskedLM):
    """Objective of UniLM: masked tokens, predicted from their visible context, which is the full document, its left or
    right part, or, in the second of two texts, the first text and the left part (arXiv:1905.03197, 2.3)."""

    context: Context = "bidirectional"

    @property
    def name(self) -> str:  # type: ignore[override]
        return super().name if self.context == "bidirectional" else f"{super().name}-{self.context}"

    @property
    def _has_two_texts(self) -> bool:
        return self.context == "sequence-to-sequence"

    def why_no_question(self, num_texts: int) -> str | None:
        if self.context in ("left-to-right", "sequence-to-sequence"):
            return f"its first position, which predicts the label, cannot attend to the second text ({self.context})"
        known = len(SEGMENTS[self.context])
        return f"it has segment ids for {known} texts, not for {num_texts}" if num_texts > known else None

    def text_fields(self, length: int) -> Sample:
        own = {"segments": np.full(length, SEGMENTS[self.context][0]), "order": self._attention_order(length, 0)}
        return super().text_fields(length) | own

    def raw_length(self, sequence: int) -> int:
        return super().raw_length(sequence) - self._has_two_texts

    def sequence_window(self, sequence: int, document_mask: bool) -> SequenceWindow:
        # As for one text, plus a slot for the `sep` between both texts.
        window = super().sequence_window(sequence, document_mask)
        return SequenceWindow(window.stride - self._has_two_texts, slots=window.slots + self._has_two_texts)

    def batch_spec(self, sequence: int, document_mask: bool) -> BatchSpec:
        spec = super().batch_spec(sequence, document_mask)
        return BatchSpec(spec.streams, {**spec.fields, **batch_fields((sequence,), "order")})

    def make_sample(self, piece: Piece, context: SampleContext) -> Sample:
        if not self._has_two_texts:
            return super().make_sample(piece, context)
        assert isinstance(piece, list)
        tokens = [part.tokens for part in piece]
        documents = [text for text in tokens if len(text)] if context.document_mask else [np.concatenate(tokens)]
        # With two tokens or more both texts have one; a single token is a source without target.
        borders = [int(context.rng.integers(1, len(text))) if len(text) > 1 else 1 for text in documents]
        texts = [
            LabeledTexts(np.split(text, [border]), [0, 1]) for text, border in zip(documents, borders, strict=True)
        ]
        return self.mask_sequence(TextSequence.of_texts(texts, context.special), context, None)

    def mask_sequence(
        self, text_sequence: TextSequence, context: SampleContext, starts: np.ndarray | None = None
    ) -> Sample:
        labeled = replace(text_sequence, segments=[SEGMENTS[self.context][index] for index in text_sequence.segments])
        sample = super().mask_sequence(labeled, context, starts)
        order = [
            self._attention_order(len(text), index)
            for text, index in zip(text_sequence.text, text_sequence.segments, strict=True)
        ]
        if self.context in ("left-to-right", "right-to-left"):  # of the document, whose texts are consecutive
            order = [self._attention_order(length, 1) for length in text_sequence.documents]
        return sample | {"order": pad_pieces(order, context.sequence, 0)}

    def _attention_order(self, length: int, index: int) -> np.ndarray:
        """Return UniLM's attention order of a text, first or second (0 or 1): a position attends to those whose order
        is at most its own."""
        match self.context:
            case "left-to-right":
                return np.arange(length)
            case "right-to-left":
                return np.arange(length)[::-1]
            case "sequence-to-sequence" if index:
                return np.arange(1, length + 1)
        return np.zeros(length, dtype=np.int64)


# arXiv:1905.03197, 2.3: 80% of masked spans are one token, 10% bigrams, 10% trigrams.
MASKED_NGRAMS = OrderedMaskedLM(hide="token-ngrams", length_weights=(0.8, 0.1, 0.1))


# Same section: a third bidirectional with next-sentence prediction, a third sequence-to-sequence, a sixth for each
# direction.
UNILM = NamedMixture(
    tasks=(
        Task("bidirectional", MaskedLMWithQuestion("next-sentence", MASKED_NGRAMS), share_of_third()),
        Task("sequence-to-sequence", replace(MASKED_NGRAMS, context="sequence-to-sequence"), share_of_third()),
        Task("left-to-right", replace(MASKED_NGRAMS, context="left-to-right"), share_of_third(2)),
        Task("right-to-left", replace(MASKED_NGRAMS, context="right-to-left"), share_of_third(2)),
    ),
    weights_by_step={"mlm": CONSTANT_ONE, "next-sentence": CONSTANT_ONE},
    label="unilm",
)


TASKS = {"ordered-masked-lm": OrderedMaskedLM}
OBJECTIVES = (UNILM,)
