"""Loss values of heads: summed loss and number of labels."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from megaptm.batch import IGNORED
from megaptm.losses.token import TokenLoss
from megaptm.spec import ModelSpec

Loss = tuple[Tensor, Tensor]
"""Summed loss and number of labels, both float32 scalars."""


def count_labels(labels: Tensor) -> Tensor:
    return (labels != IGNORED).sum().float()


def token_loss(spec: ModelSpec) -> TokenLoss:
    """Build the token loss of a model's family."""
    loss = spec.family.loss
    return TokenLoss(spec.vocabulary, z_loss=loss.z_loss, label_smoothing=loss.label_smoothing)


def class_loss(logits: Tensor, labels: Tensor) -> Loss:
    """Return the cross-entropy of logits [..., C] with labels [...], in float32."""
    scores = logits.float().flatten(0, -2)
    return F.cross_entropy(scores, labels.flatten(), reduction="sum", ignore_index=IGNORED), count_labels(labels)


def num_labels(batch: Mapping[str, Tensor], field: str) -> Tensor:
    """Return the number of labels in a batch field, an integer scalar; 0 without the field."""
    if field not in batch:
        return torch.zeros((), dtype=torch.int64, device=batch["tokens"].device)
    return (batch[field] != IGNORED).sum()
