"""What tests of families that read images share: their models beside Hugging Face's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import transformers
from torch import Tensor

from megaptm.models import Model
from megaptm.objectives.pixels import from_patches
from tests.models.vision import SIDE


def pixel_values(model: Model, patches: Tensor) -> Tensor:
    """[B, C, H, W] of uint8 [B, N, C P], as Hugging Face's processor gives them."""
    images = np.stack([from_patches(one, SIDE) for one in patches.numpy()])
    mean, std = (torch.tensor(numbers)[:, None, None] for numbers in model.spec.pixels)
    return (torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255 - mean) / std


def weights_of(model: Model) -> dict[str, Tensor]:
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def theirs_in(folder: Path, kind: type[transformers.PreTrainedModel]) -> transformers.PreTrainedModel:
    """With transformers' own loader, which must find every key and no other."""
    found, told = kind.from_pretrained(folder, output_loading_info=True)
    assert not told["missing_keys"]
    assert not told["unexpected_keys"]
    assert not told["mismatched_keys"]
    return found.eval()
