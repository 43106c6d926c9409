"""Tasks as text: the encoder reads the task and its input, the decoder generates the answer (arXiv:1910.10683, 2.4)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field

from megaptm.errors import UserError
from megaptm.objectives.objective import DocumentSlice, SampleObjective, SequenceWindow
from megaptm.objectives.spans import SpanCorruption
from megaptm.objectives.translation import FILL, Translation


@dataclass(frozen=True)
class TextToText(Translation):
    """Objective of generating the second part of a document from the first, both truncated to the sequence length.

    A corpus without parts uses span corruption, so that a run can mix supervised and unsupervised corpora (section
    3.5.3).
    """

    packed: bool = True
    """Whether a sequence holds several examples of a task, or one example and padding."""
    fill: Annotated[float, Field(gt=0, le=2)] = FILL
    """Share of the encoder's sequence length that is filled with tokens of both parts. If targets are as long as
    inputs, 1 leaves both sequences half empty. Examples that do not fit are used in another epoch."""

    name = "text-to-text"
    prompts = ("text", "sentinels")

    def __post_init__(self) -> None:
        if not self.packed and self.fill != FILL:
            raise UserError(f"fill ({self.fill:g}) has no effect with packed: false: remove one.")

    def sequence_window(self, sequence: int, document_mask: bool) -> SequenceWindow:
        # No example counts for more than a sequence, so that one starts in each.
        stride = max(1, int(self.fill * sequence)) if self.packed else 1
        return SequenceWindow(stride=stride, slots=2 * self.num_special_tokens, max_document_length=stride)

    def split_parts(self, document: DocumentSlice, sequence: int, targets: int) -> list[np.ndarray]:
        source, target = super().split_parts(document, sequence, targets)
        return [source[: sequence - self.num_special_tokens], target[: targets - self.num_special_tokens]]

    def for_corpus(self, annotations: Collection[str]) -> SampleObjective:
        return self if "parts" in annotations else SpanCorruption()
