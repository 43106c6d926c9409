"""Spikes of loss and gradient norm (values far above the previous ones): find them, then warn, skip the step or roll
back."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from megaptm.checkpoint.tensors import TensorPiece, TensorReader
from megaptm.config import SpikeConfig
from megaptm.parallel.groups import Ranks

MAX_NOT_FINITE = 3
"""Number of consecutive steps whose loss or gradient is not finite that a run may skip. Then text is not the cause."""
NAME = "spikes"
"""Name of the state in checkpoints, [2, n + 1]: losses and gradient norms of the last n steps; in the last column the
number of skipped steps."""


class Spikes:
    """Loss and gradient norm of the last steps, with which each step is compared.

    As OLMo's optimizers do, a step is a spike if one of the two exceeds its mean by a number of standard deviations.
    Spikes count in later means, so that a lasting change is no spike for long.
    """

    def __init__(self, config: SpikeConfig) -> None:
        self._config = config
        self.action = config.action
        self._values = torch.empty(2, 0, dtype=torch.float64)
        """Losses and gradient norms of at most `window` steps, the newest last."""
        self.skipped = 0
        """Number of steps that were skipped because of a spike."""
        self._num_not_finite = 0
        """Number of the last steps whose loss or gradient norm was not finite."""

    def find(self, *, loss: float, gradient_norm: float) -> str | None:
        """Return a description of the spike if a step is one. Remember its values."""
        self._num_not_finite = 0
        current = torch.tensor([loss, gradient_norm], dtype=torch.float64)
        before = self._values
        self._values = torch.cat([before, current[:, None]], 1)[:, -self._config.window :]
        if before.shape[1] < self._config.window // 2:
            return None
        means, deviations = before.mean(1), before.std(1)
        for index, name in enumerate(("loss", "gradient norm")):
            mean, deviation = means[index].item(), deviations[index].item()
            value = current[index].item()
            if value - mean > self._config.sigmas * deviation:
                ratio = f"{(value - mean) / deviation:.3g}" if deviation else "infinitely many"
                return f"{name} {value:.6g}, {ratio} standard deviations above the mean {mean:.6g}"
        return None

    def count_not_finite_step(self) -> bool:
        """Count a step whose loss or gradient norm is not finite. Return whether the run may continue without it."""
        self._num_not_finite += 1
        may_skip = self.action == "skip-step" and self._num_not_finite <= MAX_NOT_FINITE
        self.skipped += may_skip
        return may_skip or self.action == "roll-back"

    def pieces(self, ranks: Ranks) -> Iterator[TensorPiece]:
        """Yield the state for a checkpoint, on one rank, if spikes change what is trained."""
        if ranks.world == 0 and (self.action != "warn" or self.skipped):
            skipped = torch.tensor([[self.skipped], [self.skipped]], dtype=torch.float64)
            data = torch.cat([self._values, skipped], 1)
            yield TensorPiece(NAME, tuple(data.shape), (0, 0), tuple(data.shape), data)

    def restore(self, reader: TensorReader) -> None:
        """Restore the state from a checkpoint that has it, possibly with a window of another length."""
        if NAME in reader.names():
            values = reader.read(NAME)
            self.skipped = int(values[0, -1])
            self._values = values[:, :-1][:, -self._config.window :]
