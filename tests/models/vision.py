"""Tiny models that read images, and batches for them."""

from __future__ import annotations

import torch
from torch import Tensor

from megaptm.batch import IGNORED
from megaptm.families.clip import CLIP
from megaptm.families.vit import VIT
from megaptm.families.vit.spec import CHANNELS, IMAGE, MASKED_PATCH, PATCH
from megaptm.models.initial import init_weights
from megaptm.models.model import Model
from megaptm.spec import ModelSpec, Size, change
from tests.models.own import OwnCase

VOCABULARY = 150
GRID, SIDE = 3, 2
"""Patches per side of an image, and pixels per side of a patch. The ten positions are divisible by two ranks."""
NUM_MASKED = 4
VIT_BOTH_HEADS = change(VIT, heads=("image-label", "masked-patch"), init={"rule": "normal"})
"""ViT with heads for labels and masked patches. No initial weight is zero."""


def tiny_vit(*, dropout: float = 0.0, layers: int = 4, both: bool = True) -> ModelSpec:
    size = Size(layers=layers, width=32, heads=4, ffn=64, inputs={"patch": SIDE})
    family = VIT_BOTH_HEADS if both else change(VIT, init={"rule": "normal"})
    return ModelSpec(family=family, size=size, vocabulary=VOCABULARY, context=GRID**2 + 1, dropout=dropout)


def vit_batch(rows: int, *, seed: int, both: bool = True) -> dict[str, Tensor]:
    """Return random images. Some have no label, and some masked patches no color."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.full((rows, GRID**2 + 1), PATCH)
    tokens[:, 0] = IMAGE
    shape = (rows, GRID**2, CHANNELS * SIDE**2)
    patches = torch.randint(256, shape, generator=generator, dtype=torch.uint8)
    labels = torch.randint(VOCABULARY, (rows,), generator=generator)
    labels[1::4] = IGNORED
    batch = {"tokens": tokens, "patches": patches, "image_label": labels}
    if not both:
        return batch
    positions = torch.stack([torch.randperm(GRID**2, generator=generator)[:NUM_MASKED] for _ in range(rows)]) + 1
    tokens.scatter_(1, positions[:, 1:], MASKED_PATCH)
    colors = torch.randint(512, positions.shape, generator=generator)
    colors[::3, -1] = IGNORED
    return batch | {"masked_positions": positions, "patch_colors": colors}


def vit_model(*, layers: int = 2, both: bool = True, noise: float = 0.1) -> Model:
    """Return a model in eval mode, with noise added to its weights."""
    return fill_with_noise(Model(tiny_vit(layers=layers, both=both)), noise)


TEXT = 8
"""Positions of a text."""
END = VOCABULARY - 1
"""Id of the end token: the largest, as in CLIP's vocabulary."""


def tiny_clip(*, dropout: float = 0.0, layers: int = 4) -> ModelSpec:
    """Return a spec with half of the layers on each side. The text stack is narrower."""
    text = Size(layers=layers // 2, width=16, heads=2, ffn=32, context=TEXT)
    size = Size(layers=layers // 2, width=32, heads=4, ffn=64, inputs={"patch": SIDE}, stacks={"text": text})
    return ModelSpec(family=CLIP, size=size, vocabulary=VOCABULARY, context=GRID**2 + 1, dropout=dropout)


def clip_batch(rows: int, *, seed: int, all_paired: bool = False) -> dict[str, Tensor]:
    """Return random images and texts of several lengths. Every third image has no text, unless `all_paired`."""
    images = vit_batch(rows, seed=seed, both=False)
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(1, END, (rows, TEXT), generator=generator)
    end = torch.randint(2, TEXT, (rows,), generator=generator)
    tokens[torch.arange(TEXT) >= end[:, None]] = END
    if not all_paired:
        end[1::3] = IGNORED
    return {"tokens": images["tokens"], "patches": images["patches"], "text_tokens": tokens, "text_end": end}


def clip_model(*, layers: int = 4, noise: float = 0.1) -> Model:
    """Return a model for tests, as `vit_model`."""
    return fill_with_noise(Model(tiny_clip(layers=layers)), noise)


def fill_with_noise(model: Model, noise: float) -> Model:
    """Fill a model and add noise, so that no bias is 0 and no norm 1. Padding of the vocabulary stays 0."""
    init_weights(model, seed=7)
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += noise * torch.randn(parameter.shape, generator=generator)
            if len(parameter) == model.spec.padded_vocabulary:
                parameter[model.spec.vocabulary :] = 0
    return model.eval()


CASES = {
    "vit": OwnCase(tiny_vit, lambda rows, step: vit_batch(rows, seed=100 + step)),
    "clip": OwnCase(tiny_clip, lambda rows, step: clip_batch(rows, seed=100 + step)),
}
