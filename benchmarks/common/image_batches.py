"""Models that read images, of a size for benchmarks, and batches for them and for Hugging Face's."""

# B rows, C channels, T places of a text

from __future__ import annotations

from math import isqrt

import numpy as np
import torch
from torch import Tensor

from megaptm.batch import CHANNELS, IMAGE, PATCH
from megaptm.objectives.pixels import from_patches
from megaptm.spec import Family, ModelSpec, Size

PIXELS = 16
"""Of a side of a patch."""
GRID = 14
"""Patches of a side of an image, at most: 224 pixels."""
TEXT = 77
"""Places of a text, at most."""
HEAD = 64
"""Width of a head."""


def image_spec(table: Family, *, layers: int, width: int, length: int) -> ModelSpec:
    """`layers` of all stacks; texts have two thirds of the width, as CLIP's B/32, and a row no more than `length`
    places."""
    depth, grid = layers // len(table.stacks), min(GRID, isqrt(length - 1))
    narrow = max(HEAD, width * 2 // 3 // HEAD * HEAD)
    text = Size(layers=depth, width=narrow, heads=narrow // HEAD, ffn=4 * narrow, context=min(TEXT, length))
    stacks = dict.fromkeys(list(table.stacks)[1:], text)
    size = Size(layers=depth, width=width, heads=max(1, width // HEAD), ffn=4 * width, patch=PIXELS, stacks=stacks)
    return ModelSpec(family=table, size=size, vocabulary=table.vocabulary, context=grid**2 + 1, dropout=0.0)


def image_batch(spec: ModelSpec, rows: int) -> dict[str, Tensor]:
    """Images of noise with labels, or with texts of which each ends at a place of its own."""
    generator = torch.Generator().manual_seed(0)

    def drawn(most: int, *shape: int) -> Tensor:
        return torch.randint(most, shape, generator=generator)

    tokens = torch.full((rows, spec.context), PATCH)
    tokens[:, 0] = IMAGE
    patches = drawn(256, rows, spec.context - 1, CHANNELS * PIXELS**2).to(torch.uint8)
    batch = {"tokens": tokens, "patches": patches}
    if not spec.family.has_tokens:
        return batch | {"image_label": drawn(spec.vocabulary, rows)}
    places, end = spec.context_of("text"), spec.vocabulary - 1
    ends = 2 + drawn(places - 2, rows)
    texts = drawn(end - 1, rows, places)
    return batch | {"text_tokens": texts.scatter(1, ends[:, None], end), "text_end": ends}


def image_inputs(spec: ModelSpec, batch: dict[str, Tensor]) -> dict[str, Tensor | bool]:
    """The same for theirs, normalized already, and what a text ends with nowhere else."""
    images = np.stack([from_patches(one, PIXELS) for one in batch["patches"].numpy()])
    mean, std = (torch.tensor(some)[:, None, None] for some in spec.pixels)
    pixels_BCHW = (torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255 - mean) / std
    if "image_label" in batch:
        return {"pixel_values": pixels_BCHW.contiguous(), "labels": batch["image_label"]}
    return {"pixel_values": pixels_BCHW.contiguous(), "input_ids": batch["text_tokens"], "return_loss": True}
