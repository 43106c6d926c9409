"""What every head gives: a summed loss, and how many labels are in it."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from megaptm.batch import IGNORED
from megaptm.losses.token import TokenLoss
from megaptm.spec import ModelSpec

Loss = tuple[Tensor, Tensor]
"""(summed loss, number of labels counted), both float32 scalars."""


def count_labels(labels: Tensor) -> Tensor:
    return (labels != IGNORED).sum().float()


def token_loss(spec: ModelSpec) -> TokenLoss:
    """Of words of the vocabulary, as the family's table has it."""
    family = spec.family
    return TokenLoss(spec.vocabulary, z_loss=family.z_loss, label_smoothing=family.label_smoothing)


def class_loss(logits: Tensor, labels: Tensor) -> Loss:
    """Cross-entropy of logits [..., C] with labels [...], in float32."""
    scores = logits.float().flatten(0, -2)
    return F.cross_entropy(scores, labels.flatten(), reduction="sum", ignore_index=IGNORED), count_labels(labels)


def count_asked(batch: Mapping[str, Tensor], field: str) -> Tensor:
    """How many answers a batch asks for, of which there are none in one without the field; an integer scalar."""
    if field not in batch:
        return torch.zeros((), dtype=torch.int64, device=batch["tokens"].device)
    return (batch[field] != IGNORED).sum()
