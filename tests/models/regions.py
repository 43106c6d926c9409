"""A tiny model that reads regions of images behind a text, and batches for it."""

from __future__ import annotations

import torch
from torch import Tensor

from megaptm.batch import IGNORED, MASKED_REGION, NUM_BOX_VALUES, REGION
from megaptm.families.uniter import UNITER
from megaptm.models import Model, build_model
from megaptm.spec import ModelSpec, Size, change
from tests.models.vision import moved

VOCABULARY = 150
TEXT, REGIONS, ASKED = 8, 6, 3
"""Places of a text, regions of an image, and how many of them are asked about."""
FEATURES, CLASSES = 12, 7
ALL = change(UNITER, heads=(*UNITER.heads, "mrc"))
"""Asked all six questions."""


def tiny_uniter(*, dropout: float = 0.0, layers: int = 4) -> ModelSpec:
    size = Size(layers=layers, width=32, heads=4, ffn=64, detector=(FEATURES, CLASSES))
    return ModelSpec(family=ALL, size=size, vocabulary=VOCABULARY, context=TEXT + REGIONS, dropout=dropout)


def uniter_batch(rows: int, *, seed: int) -> dict[str, Tensor]:
    """Noise of several lengths, asked everything at once: regions hidden, of which some rows are asked less; every
    fourth row is not asked whether it matches, and texts are asked at one place more than regions."""
    generator = torch.Generator().manual_seed(seed)

    def some(number: int, *shape: int) -> Tensor:
        return torch.randint(number, shape, generator=generator)

    places = torch.stack([torch.randperm(REGIONS, generator=generator)[:ASKED] for _ in range(rows)])
    kinds = torch.full((rows, REGIONS), REGION).scatter(1, places, MASKED_REGION)
    documents = torch.ones(rows, TEXT + REGIONS, dtype=torch.int64)
    documents[::3, TEXT - 3 : TEXT] = 0
    documents[1::2, -1] = 0
    asked = torch.ones(rows, ASKED, dtype=torch.bool)
    asked[::3, -1] = False
    labels = some(VOCABULARY, rows, ASKED + 1)
    labels[1::4, -2:] = IGNORED
    matched = some(2, rows)
    matched[1::4] = IGNORED
    likely = torch.randn(rows, ASKED, CLASSES, generator=generator).softmax(-1)
    return {
        "tokens": torch.cat([some(VOCABULARY, rows, TEXT), kinds], 1),
        "segments": (torch.arange(TEXT + REGIONS) >= TEXT).long().expand(rows, -1).clone(),
        "positions": torch.arange(TEXT + REGIONS).expand(rows, -1).clone(),
        "document_ids": documents,
        "region_features": torch.randn(rows, REGIONS, FEATURES, generator=generator),
        "region_boxes": torch.rand(rows, REGIONS, NUM_BOX_VALUES, generator=generator),
        "masked_positions": torch.cat([places + TEXT, some(TEXT, rows, 1)], 1),
        "labels": labels,
        "masked_region_features": torch.randn(rows, ASKED, FEATURES, generator=generator).masked_fill(
            ~asked[:, :, None], IGNORED
        ),
        "region_labels": some(CLASSES, rows, ASKED).masked_fill(~asked, IGNORED),
        "region_distributions": likely.masked_fill(~asked[:, :, None], IGNORED),
        "matched": matched,
    }


def uniter_model(*, layers: int = 2, noise: float = 0.1) -> Model:
    """As `vit_model`."""
    return moved(build_model(tiny_uniter(layers=layers)), noise)
