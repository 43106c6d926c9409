"""Losses of heads: sum over labels, and number of labels."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from megaptm.batch import IGNORED
from megaptm.losses.token import TokenLoss
from megaptm.spec import ModelSpec

Loss = tuple[Tensor, Tensor]
"""Loss of a head, summed over labels, and its number of labels, both float32 scalars."""


def count_labels(labels: Tensor) -> Tensor:
    return (labels != IGNORED).sum().float()


def token_loss(spec: ModelSpec) -> TokenLoss:
    """Build the token loss module of a model."""
    loss = spec.family.loss
    return TokenLoss(
        spec.vocabulary, z_loss=loss.z_loss, label_smoothing=loss.label_smoothing, cap=spec.family.output.cap
    )


def class_loss(logits: Tensor, labels: Tensor) -> Loss:
    """Return the cross-entropy of class logits [..., C] with labels [...], in float32."""
    scores = logits.float().flatten(0, -2)
    return F.cross_entropy(scores, labels.flatten(), reduction="sum", ignore_index=IGNORED), count_labels(labels)


def num_labels(batch: Mapping[str, Tensor], field: str) -> Tensor:
    """Return the number of labels in a batch field, an integer scalar; 0 if the batch lacks the field."""
    if field not in batch:
        return torch.zeros((), dtype=torch.int64, device=batch["tokens"].device)
    return (batch[field] != IGNORED).sum()
