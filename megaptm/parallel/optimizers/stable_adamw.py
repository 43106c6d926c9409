"""StableAdamW (arXiv:2304.13013, algorithm 2): AdamW whose rate falls for tensors with unexpectedly large gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from megaptm.parallel.optimizers.part import TensorPart, sum_over_ranks, update_batches


class StableAdamW(torch.optim.Optimizer):
    """AdamW with the update clipping of Adafactor: the rate of a tensor is divided by the root mean square of its
    gradients relative to their running mean of squares, if that is more than 1.

    The rate also scales the weight decay. Bias is corrected by decay rates that grow with the steps.
    """

    def __init__(
        self,
        groups: list[dict[str, Any]],
        parts: Sequence[TensorPart],
        *,
        divided: bool,
        betas: tuple[float, float],
        eps: float,
    ) -> None:
        super().__init__(groups, {"lr": 0.0, "weight_decay": 0.0, "betas": betas, "eps": eps, "step": 0})
        self.parts, self.divided = parts, divided

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        """Update the weights by StableAdamW. Gradients are overwritten."""
        group_of = {id(master): group for group in self.param_groups for master in group["params"]}
        for group in self.param_groups:
            group["step"] += 1
        settings = self.param_groups[0]
        held = [(part, part.master) for part in self.parts if part.master is not None]
        # Kernels for many tensors at once: launching one for each would take longer on a GPU than the work.
        batches = [[held[index] for index in batch] for batch in update_batches([master.numel() for _, master in held])]
        for batch in batches:
            self._update_means([master for _, master in batch], settings)
        values = [part.sum_squares(None if part.master is None else part.master.grad) for part in self.parts]
        sliced = [part.placement.axis is not None for part in self.parts]
        sums = sum_over_ranks(values, sliced=sliced, divided=self.divided)
        squares_of = {id(part): sum_M for part, sum_M in zip(self.parts, sums, strict=True)}
        for batch in batches:
            updates = self._directions([master for _, master in batch], settings["eps"])
            for (part, master), update in zip(batch, updates, strict=True):
                group, mean_M = group_of[id(master)], squares_of[id(part)] / (part.full_length * part.full_width)
                rate_M = group["lr"] / mean_M.sqrt().clamp(min=1.0)
                update.add_(master, alpha=group["weight_decay"])
                if part.matrices == 1:
                    update.mul_(rate_M)
                else:
                    update.copy_(part.in_local_shape(part.by_row(update) * part.expand_to_rows(rate_M)[:, None]))
            torch._foreach_sub_([master for _, master in batch], updates)

    def _update_means(self, masters: list[torch.Tensor], settings: dict[str, Any]) -> None:
        """Update the running means; divide each gradient by the root of its running mean of squares."""
        (beta1, beta2), step, eps = settings["betas"], settings["step"], settings["eps"]
        gradients = [master.grad for master in masters if master.grad is not None]
        for master in masters:
            for kind in ("exp_avg", "exp_avg_sq"):
                if kind not in self.state[master]:
                    self.state[master][kind] = torch.zeros_like(master)
        means, squares = ([self.state[master][kind] for master in masters] for kind in ("exp_avg", "exp_avg_sq"))
        keep1, keep2 = ((beta - beta**step) / (1 - beta**step) for beta in (beta1, beta2))
        torch._foreach_lerp_(means, gradients, 1 - keep1)
        torch._foreach_mul_(squares, keep2)
        torch._foreach_addcmul_(squares, gradients, gradients, value=1 - keep2)
        roots = torch._foreach_sqrt(squares)
        torch._foreach_clamp_min_(roots, eps)
        torch._foreach_div_(gradients, roots)

    def _directions(self, masters: list[torch.Tensor], eps: float) -> tuple[torch.Tensor, ...]:
        """Return the updates before rate and weight decay."""
        means, squares = ([self.state[master][kind] for master in masters] for kind in ("exp_avg", "exp_avg_sq"))
        roots = torch._foreach_sqrt(squares)
        torch._foreach_add_(roots, eps)
        return torch._foreach_div(means, roots)
