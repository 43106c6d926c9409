"""What every head gives: a summed loss, and how many labels are in it."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from megaptm.batch import IGNORED

Loss = tuple[Tensor, Tensor]
"""(summed loss, number of labels counted), both float32 scalars."""


def count_labels(labels: Tensor) -> Tensor:
    return (labels != IGNORED).sum().float()


def count_asked(batch: Mapping[str, Tensor], field: str) -> Tensor:
    """How many answers a batch asks for, of which there are none in one without the field; an integer scalar."""
    if field not in batch:
        return torch.zeros((), dtype=torch.int64, device=batch["tokens"].device)
    return (batch[field] != IGNORED).sum()
