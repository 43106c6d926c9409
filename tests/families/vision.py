"""Helpers for tests of image families: comparison with Hugging Face's models."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import transformers
from torch import Tensor

from megaptm.families.vit.pixels import from_patches
from megaptm.families.vit.spec import patch_input
from megaptm.models.model import Model
from tests.models.vision import SIDE


def pixel_values(model: Model, patches: Tensor) -> Tensor:
    """Return [B, C, H, W] from uint8 [B, N, C P], as Hugging Face's processor does."""
    images = np.stack([from_patches(image, SIDE) for image in patches.numpy()])
    record = patch_input(model.spec.family)
    mean, std = (torch.tensor(numbers)[:, None, None] for numbers in (record.mean, record.std))
    return (torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255 - mean) / std


def weights_of(model: Model) -> dict[str, Tensor]:
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def load_reference(folder: Path, model_class: type[transformers.PreTrainedModel]) -> transformers.PreTrainedModel:
    """Load a model with transformers, which must find every key and no other."""
    model, loading_info = model_class.from_pretrained(folder, output_loading_info=True)
    assert not loading_info["missing_keys"]
    assert not loading_info["unexpected_keys"]
    assert not loading_info["mismatched_keys"]
    return model.eval()
