"""What every head gives: a summed loss, and how many labels are in it."""

from __future__ import annotations

from torch import Tensor

from megaptm.batch import IGNORED

Loss = tuple[Tensor, Tensor]
"""(summed loss, number of labels counted), both float32 scalars."""


def count_labels(labels: Tensor) -> Tensor:
    return (labels != IGNORED).sum().float()
