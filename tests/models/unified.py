"""A tiny model that reads texts, images and both, and batches for it."""

from __future__ import annotations

import torch
from torch import Tensor

from megaptm.batch import IGNORED, MAX_COMPARED_IMAGES, MAX_COMPARED_TEXTS
from megaptm.families.unimo import UNIMO
from megaptm.models import Model, build_model
from megaptm.spec import ModelSpec, Size
from tests.models.regions import CLASSES, FEATURES, TEXT, VOCABULARY, uniter_batch
from tests.models.vision import moved

LENGTHS = (3, 2, 2)
"""Of the texts of a row, with one place of padding."""
OTHER = 3
"""Regions before another image that some rows have."""


def tiny_unimo(*, dropout: float = 0.0, layers: int = 4) -> ModelSpec:
    size = Size(layers=layers, width=32, heads=4, ffn=64, detector=(FEATURES, CLASSES))
    return ModelSpec(family=UNIMO, size=size, vocabulary=VOCABULARY, context=TEXT, dropout=dropout)


def unimo_batch(rows: int, *, seed: int) -> dict[str, Tensor]:
    """As `uniter_batch`, asked all that UNIMO is: rows of three texts, each a document, of which two or one say what
    the image shows; some have two, and every fourth asks nothing of them. Two of three rows have another image behind
    their own. Some see what an order says."""
    batch = uniter_batch(rows, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    for name in ("segments", "region_labels", "matched"):
        del batch[name]
    texts = torch.cat([torch.full((length,), 2 + at) for at, length in enumerate(LENGTHS)])
    batch["document_ids"][:, : len(texts)] = texts
    batch["document_ids"][:, len(texts) : TEXT] = 0
    batch["positions"][:, : len(texts)] = torch.cat([torch.arange(length) for length in LENGTHS])
    places = torch.full((rows, MAX_COMPARED_TEXTS), IGNORED)
    places[:, :3] = torch.tensor([0, LENGTHS[0], sum(LENGTHS[:2])])
    images = torch.full((rows, MAX_COMPARED_IMAGES), IGNORED)
    images[:, 0], images[1::3, 1], images[2::3, 1] = TEXT, TEXT + OTHER, TEXT + OTHER
    regions = batch["document_ids"][:, TEXT + OTHER :]
    regions[(regions > 0) & (images[:, 1:2] != IGNORED)] = 9
    right = 1 + torch.randint(2, (rows,), generator=generator)
    places[2::3, 2], right[1::4] = IGNORED, IGNORED
    order = torch.zeros_like(batch["tokens"])
    order[1::2, :TEXT] = torch.arange(TEXT)
    return batch | {"order": order, "image_starts": images, "text_starts": places, "num_positive_texts": right}


def unimo_model(*, layers: int = 2, noise: float = 0.1) -> Model:
    """As `vit_model`."""
    return moved(build_model(tiny_unimo(layers=layers)), noise)
