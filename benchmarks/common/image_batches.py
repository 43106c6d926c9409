"""Image models of a size for benchmarks, and batches for them and for Hugging Face models."""

# B samples, C channels, T positions of a text

from __future__ import annotations

from math import isqrt

import numpy as np
import torch
from torch import Tensor

from megaptm.families.vit.pixels import from_patches
from megaptm.families.vit.spec import CHANNELS, IMAGE, PATCH, patch_input
from megaptm.spec import Family, ModelSpec, Size

PIXELS = 16
"""Pixels of the side of a patch."""
GRID = 14
"""Maximum number of patches per side of an image: 224 pixels."""
TEXT = 77
"""Maximum number of positions of a text."""
HEAD = 64
"""Width of an attention head."""


def image_spec(table: Family, *, layers: int, width: int, length: int) -> ModelSpec:
    """Return a spec with `layers` in all stacks. Text stacks have two thirds of the width, as in CLIP's B/32; samples
    have at most `length` positions."""
    depth, grid = layers // len(table.stacks), min(GRID, isqrt(length - 1))
    narrow = max(HEAD, width * 2 // 3 // HEAD * HEAD)
    text = Size(layers=depth, width=narrow, heads=narrow // HEAD, ffn=4 * narrow, context=min(TEXT, length))
    stacks = dict.fromkeys(list(table.stacks)[1:], text)
    size = Size(
        layers=depth, width=width, heads=max(1, width // HEAD), ffn=4 * width, inputs={"patch": PIXELS}, stacks=stacks
    )
    return ModelSpec(family=table, size=size, vocabulary=table.tokenizer.vocabulary, context=grid**2 + 1, dropout=0.0)


def image_batch(spec: ModelSpec, rows: int) -> dict[str, Tensor]:
    """Return images of noise with labels, or with texts of random lengths."""
    generator = torch.Generator().manual_seed(0)

    def sample(maximum: int, *shape: int) -> Tensor:
        return torch.randint(maximum, shape, generator=generator)

    tokens = torch.full((rows, spec.context), PATCH)
    tokens[:, 0] = IMAGE
    patches = sample(256, rows, spec.context - 1, CHANNELS * PIXELS**2).to(torch.uint8)
    batch = {"tokens": tokens, "patches": patches}
    if not spec.family.has_tokens:
        return batch | {"image_label": sample(spec.vocabulary, rows)}
    positions, end = spec.context_of("text"), spec.vocabulary - 1
    ends = 2 + sample(positions - 2, rows)
    texts = sample(end - 1, rows, positions)
    return batch | {"text_tokens": texts.scatter(1, ends[:, None], end), "text_end": ends}


def image_inputs(spec: ModelSpec, batch: dict[str, Tensor]) -> dict[str, Tensor | bool]:
    """Return the inputs for the Hugging Face model: normalized images, and the same labels or texts."""
    images = np.stack([from_patches(patches, PIXELS) for patches in batch["patches"].numpy()])
    record = patch_input(spec.family)
    mean, std = (torch.tensor(values)[:, None, None] for values in (record.mean, record.std))
    pixels_BCHW = (torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255 - mean) / std
    if "image_label" in batch:
        return {"pixel_values": pixels_BCHW.contiguous(), "labels": batch["image_label"]}
    return {"pixel_values": pixels_BCHW.contiguous(), "input_ids": batch["text_tokens"], "return_loss": True}
