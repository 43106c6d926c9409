"""Losses of heads that are not on the last chunk of a pipeline: each joins the backward pass of the stream that leaves.

A schedule hands on one tensor and waits for its gradient. So a loss is hung on that tensor, which it does not change:
when its gradient comes back, the loss's own begins, with a scale that is known before the pass, as for all losses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from megaptm.models.loss import Loss


class _WithLoss(torch.autograd.Function):
    """The stream as it is; backward, its gradient for it and 1 for the loss."""

    @staticmethod
    def forward(ctx: Any, stream: Tensor, loss: Tensor) -> Tensor:
        ctx.save_for_backward(torch.ones_like(loss))
        return stream.clone()  # a schedule frees what it has sent, and no view of something else

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (one,) = ctx.saved_tensors
        return gradients[0], one


class InnerLosses:
    """What one chunk's `Model.add_losses` is: sums up what its losses are, over the micro-batches of a pass."""

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}
        self._scales: Mapping[str, Tensor] = {}

    def begin(self, scales: Mapping[str, Tensor]) -> None:
        """A pass begins, in which each loss counts with this scale."""
        self.sums, self._scales = {}, scales

    def __call__(self, stream: Tensor, losses: dict[str, Loss]) -> Tensor:
        terms = {name: loss for name, (loss, _) in losses.items() if name in self._scales}
        for name, term in terms.items():
            self.sums[name] = self.sums.get(name, 0) + term.detach().double()
        if not terms:
            return stream
        total: Tensor = torch.stack([term * self._scales[name] for name, term in terms.items()]).sum()
        added: Tensor = _WithLoss.apply(stream, total)
        return added
