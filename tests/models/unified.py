"""A tiny model that reads texts, images and pairs of both, and batches for it."""

from __future__ import annotations

import torch
from torch import Tensor

from megaptm.batch import IGNORED
from megaptm.families.unimo import UNIMO
from megaptm.families.unimo.head_costs import MAX_COMPARED_IMAGES, MAX_COMPARED_TEXTS
from megaptm.models.model import Model
from megaptm.spec import ModelSpec, Size
from tests.models.own import OwnCase
from tests.models.regions import CLASSES, FEATURES, TEXT, VOCABULARY, uniter_batch
from tests.models.vision import fill_with_noise

LENGTHS = (3, 2, 2)
"""Lengths of the texts of a sample; one position of padding follows."""
OTHER_IMAGE = 3
"""Number of regions before the second image of a sample."""


def tiny_unimo(*, dropout: float = 0.0, layers: int = 4) -> ModelSpec:
    size = Size(layers=layers, width=32, heads=4, ffn=64, inputs={"detector": (FEATURES, CLASSES)})
    return ModelSpec(family=UNIMO, size=size, vocabulary=VOCABULARY, context=TEXT, dropout=dropout)


def unimo_batch(rows: int, *, seed: int) -> dict[str, Tensor]:
    """Return a batch as `uniter_batch`, with the fields of all heads of UNIMO.

    A sample has two or three texts, each a document, of which one or two are positive; every fourth has no label of
    contrast. Two of three samples have a second image. Every second one has an attention order.
    """
    batch = uniter_batch(rows, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    for name in ("segments", "region_labels", "matched"):
        del batch[name]
    texts = torch.cat([torch.full((length,), 2 + at) for at, length in enumerate(LENGTHS)])
    batch["document_ids"][:, : len(texts)] = texts
    batch["document_ids"][:, len(texts) : TEXT] = 0
    batch["positions"][:, : len(texts)] = torch.cat([torch.arange(length) for length in LENGTHS])
    text_starts = torch.full((rows, MAX_COMPARED_TEXTS), IGNORED)
    text_starts[:, :3] = torch.tensor([0, LENGTHS[0], sum(LENGTHS[:2])])
    image_starts = torch.full((rows, MAX_COMPARED_IMAGES), IGNORED)
    image_starts[:, 0], image_starts[1::3, 1], image_starts[2::3, 1] = TEXT, TEXT + OTHER_IMAGE, TEXT + OTHER_IMAGE
    regions = batch["document_ids"][:, TEXT + OTHER_IMAGE :]
    regions[(regions > 0) & (image_starts[:, 1:2] != IGNORED)] = 9
    num_positive = 1 + torch.randint(2, (rows,), generator=generator)
    text_starts[2::3, 2], num_positive[1::4] = IGNORED, IGNORED
    order = torch.zeros_like(batch["tokens"])
    order[1::2, :TEXT] = torch.arange(TEXT)
    return batch | {
        "order": order,
        "image_starts": image_starts,
        "text_starts": text_starts,
        "num_positive_texts": num_positive,
    }


def unimo_model(*, layers: int = 2, noise: float = 0.1) -> Model:
    """Return a model for tests, as `vit_model`."""
    return fill_with_noise(Model(tiny_unimo(layers=layers)), noise)


CASES = {"unimo": OwnCase(tiny_unimo, lambda rows, step: unimo_batch(rows, seed=100 + step))}
