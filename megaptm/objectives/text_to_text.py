"""Tasks as text: what the encoder reads tells the task, and the decoder says the answer (arXiv:1910.10683, 2.4)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field

from megaptm.errors import UserError
from megaptm.objectives.objective import DocumentSlice, RowWindow, SampleObjective
from megaptm.objectives.spans import SpanCorruption
from megaptm.objectives.translation import FILL, Translation


@dataclass(frozen=True)
class TextToText(Translation):
    """The second part of a document from the first, both cut where they are longer than a row.

    A corpus without parts is read in corrupted spans: so one run has supervised corpora and others (section 3.5.3).
    """

    packed: bool = True
    """Whether a row holds several examples, or one and padding."""
    fill: Annotated[float, Field(gt=0, le=2)] = FILL
    """Share of the encoder's row for which tokens, of both parts, are dealt to it. Where answers are as long as what is
    asked, rows are half full of either at 1; examples that find no room in their row wait for another epoch."""

    name = "text-to-text"
    prompts = ("text", "sentinels")

    def __post_init__(self) -> None:
        if not self.packed and self.fill != FILL:
            raise UserError(f"fill ({self.fill:g}) is of rows with several examples, and packed is false: remove one.")

    def cut(self, sequence: int, document_mask: bool) -> RowWindow:
        # No example counts more than a row, so that one begins in each.
        stride = max(1, int(self.fill * sequence)) if self.packed else 1
        return RowWindow(stride=stride, slots=2 * self.around, most=stride)

    def texts(self, document: DocumentSlice, sequence: int, targets: int) -> list[np.ndarray]:
        source, target = super().texts(document, sequence, targets)
        return [source[: sequence - self.around], target[: targets - self.around]]

    def of_corpus(self, annotations: Collection[str]) -> SampleObjective:
        return self if "parts" in annotations else SpanCorruption()
