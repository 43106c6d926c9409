"""A tiny model that reads image regions after a text, and batches for it."""

from __future__ import annotations

import torch
from torch import Tensor

from megaptm.batch import IGNORED
from megaptm.families.uniter import UNITER
from megaptm.families.uniter.spec import MASKED_REGION, NUM_BOX_VALUES, REGION
from megaptm.models.model import Model
from megaptm.spec import ModelSpec, Size, change
from tests.models.own import OwnCase
from tests.models.vision import fill_with_noise

VOCABULARY = 150
TEXT, REGIONS, NUM_MASKED = 8, 6, 3
"""Positions of a text, regions of an image, and masked regions."""
FEATURES, CLASSES = 12, 7
UNITER_ALL_HEADS = change(UNITER, heads=(*UNITER.heads, "mrc"))
"""UNITER with all six heads."""


def tiny_uniter(*, dropout: float = 0.0, layers: int = 4) -> ModelSpec:
    size = Size(layers=layers, width=32, heads=4, ffn=64, inputs={"detector": (FEATURES, CLASSES)})
    return ModelSpec(family=UNITER_ALL_HEADS, size=size, vocabulary=VOCABULARY, context=TEXT + REGIONS, dropout=dropout)


def uniter_batch(rows: int, *, seed: int) -> dict[str, Tensor]:
    """Return random texts and regions of several lengths, with labels of all heads at once.

    Some samples have fewer labels of regions, every fourth has no label of matching, and texts have one target position
    more than regions.
    """
    generator = torch.Generator().manual_seed(seed)

    def random_ids(number: int, *shape: int) -> Tensor:
        return torch.randint(number, shape, generator=generator)

    masked_regions = torch.stack([torch.randperm(REGIONS, generator=generator)[:NUM_MASKED] for _ in range(rows)])
    kinds = torch.full((rows, REGIONS), REGION).scatter(1, masked_regions, MASKED_REGION)
    documents = torch.ones(rows, TEXT + REGIONS, dtype=torch.int64)
    documents[::3, TEXT - 3 : TEXT] = 0
    documents[1::2, -1] = 0
    has_label = torch.ones(rows, NUM_MASKED, dtype=torch.bool)
    has_label[::3, -1] = False
    labels = random_ids(VOCABULARY, rows, NUM_MASKED + 1)
    labels[1::4, -2:] = IGNORED
    matched = random_ids(2, rows)
    matched[1::4] = IGNORED
    distributions = torch.randn(rows, NUM_MASKED, CLASSES, generator=generator).softmax(-1)
    return {
        "tokens": torch.cat([random_ids(VOCABULARY, rows, TEXT), kinds], 1),
        "segments": (torch.arange(TEXT + REGIONS) >= TEXT).long().expand(rows, -1).clone(),
        "positions": torch.arange(TEXT + REGIONS).expand(rows, -1).clone(),
        "document_ids": documents,
        "region_features": torch.randn(rows, REGIONS, FEATURES, generator=generator),
        "region_boxes": torch.rand(rows, REGIONS, NUM_BOX_VALUES, generator=generator),
        "masked_positions": torch.cat([masked_regions + TEXT, random_ids(TEXT, rows, 1)], 1),
        "labels": labels,
        "masked_region_features": torch.randn(rows, NUM_MASKED, FEATURES, generator=generator).masked_fill(
            ~has_label[:, :, None], IGNORED
        ),
        "region_labels": random_ids(CLASSES, rows, NUM_MASKED).masked_fill(~has_label, IGNORED),
        "region_distributions": distributions.masked_fill(~has_label[:, :, None], IGNORED),
        "matched": matched,
    }


def uniter_model(*, layers: int = 2, noise: float = 0.1) -> Model:
    """Return a model for tests, as `vit_model`."""
    return fill_with_noise(Model(tiny_uniter(layers=layers)), noise)


CASES = {"uniter": OwnCase(tiny_uniter, lambda rows, step: uniter_batch(rows, seed=100 + step))}
