"""Tiny models of recurrent families, and batches for them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from megaptm.families.cove import COVE
from megaptm.families.elmo import ELMO
from megaptm.spec import Family, ModelSpec, Size, change
from tests.models.own import OwnCase

VOCABULARY = 150
LENGTH = 16
"""Words of a text in `CASES`."""
NUM_CHARACTERS = 7
FILTERS = ((1, 4), (2, 6), (3, 6))


def characters(*, highway: int) -> dict[str, Any]:
    """Return the sizes of tiny word embeddings."""
    return {"filters": FILTERS, "highway": highway, "character_width": 6}


def elmo_table() -> Family:
    """Return ELMo's family with a sampled softmax of few words."""
    return change(ELMO, loss={"negatives": 20})


def tiny_elmo(*, dropout: float = 0.0) -> ModelSpec:
    size = Size(layers=2, width=16, heads=1, ffn=24, memory=1, inputs=characters(highway=2))
    return ModelSpec(family=elmo_table(), size=size, vocabulary=VOCABULARY, context=20, dropout=dropout)


def tiny_cove(*, dropout: float = 0.0) -> ModelSpec:
    decoder = Size(layers=2, width=16, heads=1, ffn=16, embedding=16)
    size = Size(layers=2, width=24, heads=1, ffn=12, embedding=16, stacks={"decoder": decoder})
    return ModelSpec(family=COVE, size=size, vocabulary=VOCABULARY, context=20, dropout=dropout)


def elmo_batch(rows: int, length: int, *, seed: int, resets: slice | None = None) -> dict[str, Tensor]:
    """Return sequences of both directions. Those of `resets` start with an empty recurrent state."""
    generator = torch.Generator().manual_seed(seed)
    batch = {"reset_state": torch.zeros(rows, dtype=torch.int64)}
    for prefix in ("", "backwards_"):
        text = torch.randint(VOCABULARY, (rows, length + 1), generator=generator)
        letters = torch.randint(1, 262, (rows, length, NUM_CHARACTERS), generator=generator, dtype=torch.int16)
        fields = {"tokens": text[:, :-1], "characters": letters, "labels": text[:, 1:]}
        batch |= {f"{prefix}{name}": field for name, field in fields.items()}
    if resets is not None:
        batch["reset_state"][resets] = 1
    return batch


CASES = {
    "elmo": OwnCase(
        lambda *, dropout=0.0, layers=4: tiny_elmo(dropout=dropout),
        lambda rows, step: elmo_batch(rows, LENGTH, seed=100 + step, resets=slice(step % rows, None, 3)),
    ),
    "cove": OwnCase(lambda *, dropout=0.0, layers=4: tiny_cove(dropout=dropout)),
}
