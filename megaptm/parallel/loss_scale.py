"""Dynamic loss scale of fp16, without which the smallest gradients would be rounded to zero."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from megaptm.checkpoint.tensors import TensorPiece, TensorReader
from megaptm.config import LossScaleConfig
from megaptm.parallel.groups import Ranks

NAME = "loss_scale"
"""Name of the loss scale's state in checkpoints: scale, updates since its last change, and number of skipped steps."""


class LossScale:
    """Factor of the loss in the backward pass (Mixed Precision Training, arXiv:1710.03740, section 3.2).

    It is halved after a step whose gradients are not finite, which is skipped. It is doubled after
    `train.loss_scale.growth_steps` updates without a skipped step.
    """

    def __init__(self, config: LossScaleConfig) -> None:
        self._config = config
        self.value = config.initial
        self._updates = 0
        """Optimizer updates since the last change of the loss scale."""
        self.skipped = 0
        """Number of skipped steps of the run so far, in which the optimizer made no update."""

    def skip(self) -> bool:
        """Halve the loss scale after a step with gradients that are not finite. Return False if it is already minimal,
        so that the scale cannot be the cause."""
        if self.value <= self._config.min:
            return False
        self.value, self._updates = max(self.value / 2, self._config.min), 0
        self.skipped += 1
        return True

    def update(self) -> None:
        """Count an update of the optimizer, and double the loss scale if it is due."""
        self._updates += 1
        if self._updates >= self._config.growth_steps:
            self.value, self._updates = self.value * 2, 0

    def pieces(self, ranks: Ranks) -> Iterator[TensorPiece]:
        """Yield the state of the loss scale for a checkpoint, on one rank."""
        if ranks.world == 0:
            data = torch.tensor([self.value, self._updates, self.skipped], dtype=torch.float64)
            yield TensorPiece(NAME, (3,), (0,), (3,), data)

    def restore(self, reader: TensorReader) -> None:
        """Restore the state of the loss scale from a checkpoint. An imported model has none."""
        if NAME in reader.names():
            value, updates, skipped = reader.read(NAME).tolist()
            self.value = max(value, self._config.min)  # the minimum may have been raised since
            self._updates, self.skipped = int(updates), int(skipped)
