"""Objective of CLIP (arXiv:2103.00020): contrast of images and texts."""

# T text length

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from megaptm.batch import BatchField
from megaptm.families.vit.objectives import ImageObjective
from megaptm.objectives.objective import (
    DocumentSlice,
    Sample,
    SampleContext,
    SequenceLength,
    pad_pieces,
    refuse_missing_tokens,
)
from megaptm.objectives.vocabulary import SpecialTokens

TEXT = "text_"
"""Prefix of the batch fields for an image's text."""


@dataclass(frozen=True)
class ImageText(ImageObjective):
    """Objective of matching images and texts within a batch (CLIP, arXiv:2103.00020)."""

    crop: Literal["random", "random-square", "center", "none"] = "random-square"
    """Crop of images in training with CLIP's objective; the paper uses a random square."""
    flip: bool = False
    """Whether each training image is flipped horizontally with probability 1/2. Few texts describe left and right."""
    text_length: SequenceLength = 77
    """Maximum length of an image's text, special tokens included. Longer texts are truncated."""

    name = "image-text"
    annotation = "text"
    losses: ClassVar = {"image-text": 1.0}
    required_tokens = ("begin", "end")
    template: ClassVar = ("begin A end", "A B")

    @property
    def is_supervised(self) -> bool:
        return True

    @property
    def other_streams(self) -> dict[str, int]:
        return {TEXT: self.text_length}

    def check(self, special: SpecialTokens, sequence: int) -> None:
        super().check(special, sequence)
        remedy = "`megaptm corpus images ... texts=true`, or with tokenizer.specials=clip (roberta, albert)"
        refuse_missing_tokens(self, special, remedy=remedy)

    def label_fields(self, num_patches: int) -> dict[str, BatchField]:
        return {f"{TEXT}tokens": BatchField((self.text_length,)), "text_end": BatchField(())}

    def add_labels(self, inputs: Sample, document: DocumentSlice, context: SampleContext) -> Sample:
        tokens, end = text_input(document.tokens, context.special, self.text_length)
        return {**inputs, f"{TEXT}tokens": tokens, "text_end": np.array(end, dtype=np.int64)}


def text_input(ids: np.ndarray, special: SpecialTokens, length: int) -> tuple[np.ndarray, int]:
    """Return the tokens of an image's text for CLIP, int64 [T], and its end position. Padding is never attended to, so
    any id serves."""
    assert special.begin is not None
    assert special.end is not None
    content = ids[: length - 2].astype(np.int64)
    pad = special.end if special.pad is None else special.pad
    return pad_pieces([np.array([special.begin]), content, np.array([special.end])], length, pad), len(content) + 1


TASKS = {"image-text": ImageText}
OBJECTIVES = (ImageText(),)
