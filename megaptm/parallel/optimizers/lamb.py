"""LAMB optimizer (arXiv:1904.00962, algorithm 2): Adam with a step length proportional to the norm of the weight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from megaptm.parallel.optimizers.part import TensorPart, sum_over_ranks


class Lamb(torch.optim.Optimizer):
    """LAMB optimizer: moves each tensor by lr x its norm, in Adam's direction with decoupled weight decay.

    As in the authors' code, tensors without decay (norms and biases) get plain Adam updates.
    """

    def __init__(
        self,
        groups: list[dict[str, Any]],
        parts: Sequence[TensorPart],
        *,
        divided: bool,
        betas: tuple[float, float],
        eps: float,
        bias_correction: bool = True,
    ) -> None:
        super().__init__(groups, {"lr": 0.0, "weight_decay": 0.0, "betas": betas, "eps": eps, "step": 0})
        self.parts, self.divided, self.bias_correction = parts, divided, bias_correction

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        """Update the weights by LAMB. Gradients are overwritten with the update direction."""
        group_of = {id(master): group for group in self.param_groups for master in group["params"]}
        for group in self.param_groups:
            group["step"] += 1
        for part in self.parts:
            if part.master is not None:
                self._compute_direction(part.master, group_of[id(part.master)])
        values = [
            torch.stack(
                [part.sum_squares(part.master), part.sum_squares(None if part.master is None else part.master.grad)]
            )
            for part in self.parts
        ]
        sliced = [part.placement.axis is not None for part in self.parts]
        for part, squares in zip(self.parts, sum_over_ranks(values, sliced=sliced, divided=self.divided), strict=True):
            if part.master is None:
                continue
            assert part.master.grad is not None
            group = group_of[id(part.master)]
            if not group["wd_mult"]:
                part.master.sub_(part.master.grad, alpha=group["lr"])
                continue
            weight_M, direction_M = squares.sqrt()
            trust_M = torch.where((weight_M > 0) & (direction_M > 0), weight_M / direction_M, 1.0)
            trusted = part.by_row(part.master.grad) * part.expand_to_rows(trust_M)[:, None]
            part.master.sub_(part.in_local_shape(trusted), alpha=group["lr"])

    def _compute_direction(self, master: torch.Tensor, group: dict[str, Any]) -> None:
        assert master.grad is not None
        (beta1, beta2), step = group["betas"], group["step"]
        state = self.state[master]
        for kind in ("exp_avg", "exp_avg_sq"):
            if kind not in state:
                state[kind] = torch.zeros_like(master)
        state["exp_avg"].lerp_(master.grad, 1 - beta1)
        state["exp_avg_sq"].mul_(beta2).addcmul_(master.grad, master.grad, value=1 - beta2)
        mean, square = (1 - beta1**step, 1 - beta2**step) if self.bias_correction else (1.0, 1.0)
        root = (state["exp_avg_sq"] / square).sqrt_().add_(group["eps"])
        torch.div(state["exp_avg"] / mean, root, out=master.grad)
        master.grad.add_(master, alpha=group["weight_decay"])
