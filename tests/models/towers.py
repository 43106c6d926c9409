"""A family of two towers and its objective, as in a user's own module: match the two halves of a text."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from megaptm.batch import BatchField, BatchSpec, batch_fields
from megaptm.objectives import Objective
from megaptm.objectives.objective import SequenceWindow, pad_pieces
from megaptm.spec import Block, Family, NormSpec, Size, TokenizerSpec
from tests.models import pairs


class Halves(Objective):
    """The inverse cloze task (arXiv:1906.00300, section 5) with halves of equal length."""

    name = "halves"
    losses: ClassVar = {"pairs": 1.0}
    uses_rng = False
    required_tokens = ("cls", "pad")

    def raw_length(self, sequence):
        return 2 * sequence - 2

    def sequence_window(self, sequence, document_mask):
        return SequenceWindow(stride=self.raw_length(sequence))

    def batch_spec(self, sequence, document_mask):
        names = ("tokens", "document_ids")
        streams = {
            **batch_fields((sequence,), *names),
            **batch_fields((sequence,), *(f"right_{name}" for name in names)),
        }
        return BatchSpec({"": sequence, "right_": sequence}, streams | {"pairs": BatchField(())})

    def make_sample(self, piece, context):
        special, sequence = context.special, context.sequence
        text = np.concatenate([part.tokens for part in piece])
        sample = {"pairs": np.array(0)}
        for prefix, half in zip(("", "right_"), np.array_split(text, 2), strict=True):
            sample[f"{prefix}tokens"] = pad_pieces([np.array([special.cls]), half], sequence, special.pad)
            sample[f"{prefix}document_ids"] = (np.arange(sequence) <= len(half)).astype(np.int64)
        return sample


HALVES = Halves()
TOWERS = Family(
    name="towers",
    paper="none",
    tokenizer=TokenizerSpec(kind="wordpiece", vocabulary=512),
    context=64,
    stacks={"left": Block(position="rope"), "right": Block(position="learned", norm=NormSpec(position="post"))},
    heads=(pairs.PairsCosts.name,),
    reads={"pairs": ("left", "right")},
    objectives=("tests.models.towers:HALVES",),
    sizes={"small": Size(layers=2, width=32, heads=2, ffn=64)},
)
