"""Adafactor optimizer (arXiv:1804.04235): for a matrix it keeps the mean squared gradient of each row and each column.

As in T5 and PaLM: step size relative to the size of the weight, clipped updates, and a decay of the means that grows
with the steps. Its relative step size is a schedule: `lr: 0.01, decay: rsqrt, stable_steps: 10_000`.
torch.optim.Adafactor is different: its rate is at most 1/sqrt(step) and always relative, it has no momentum, and it
factors every matrix.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from megaptm.parallel.optimizers.part import TensorPart, sum_over_ranks

# Constants of the paper: added to squared gradients; minimum size of a weight; the decay is 1 - step ** DECAY_EXPONENT.
MIN_SQUARE, MIN_SIZE, DECAY_EXPONENT = 1e-30, 1e-3, -0.8


class Adafactor(torch.optim.Optimizer):
    """Adafactor optimizer whose weight sizes and row and column means are those of full tensors, in any layout."""

    def __init__(
        self,
        groups: list[dict[str, Any]],
        parts: Sequence[TensorPart],
        *,
        divided: bool,
        momentum: float,
        min_dim_size_to_factor: int | None,
        clip_threshold: float | None,
        scale_parameter: bool,
    ) -> None:
        super().__init__(groups, {"lr": 0.0, "weight_decay": 0.0, "step": 0})
        self.parts, self.divided, self.momentum = parts, divided, momentum
        self.clip_threshold, self.scale_parameter = clip_threshold, scale_parameter
        self.factored = [part for part in parts if is_factored(part, min_dim_size_to_factor)]
        self._factored_keys = {id(part.key) for part in self.factored}

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        """Update the weights by Adafactor. Gradients are overwritten with the update."""
        group_of = {id(master): group for group in self.param_groups for master in group["params"]}
        for group in self.param_groups:
            group["step"] += 1
        decay = 1.0 - self.param_groups[0]["step"] ** DECAY_EXPONENT
        self._update_factors(decay)
        held = [(part, part.master) for part in self.parts if part.master is not None]
        for part, master in held:
            self._compute_direction(part, master, decay)
        values = [
            torch.stack(
                [part.sum_squares(None if part.master is None else part.master.grad), part.sum_squares(part.master)]
            )
            for part in self.parts
        ]
        sliced = [part.placement.axis is not None for part in self.parts]
        sums = sum_over_ranks(values, sliced=sliced, divided=self.divided)
        squares = [sum_ for part, sum_ in zip(self.parts, sums, strict=True) if part.master is not None]
        self._apply_update(held, squares, [group_of[id(master)] for _, master in held])

    def _update_factors(self, decay: float) -> None:
        values, sliced = [], []
        for part in self.factored:
            rows_R = torch.zeros(part.length, device=part.parameter.device)
            if part.master is None:
                columns_MC = torch.zeros(part.matrices, part.width, device=part.parameter.device)
            else:
                assert part.master.grad is not None
                squares_NC = part.by_row(part.master.grad).square()
                rows_R[part.rows] = squares_NC.sum(1)
                columns_MC = part.sum_by_matrix(squares_NC)
            values += [rows_R, columns_MC]
            sliced += [part.placement.axis == 1, part.placement.axis == 0]
        sums = sum_over_ranks(values, sliced=sliced, divided=self.divided)
        means, counts = [], []
        for part, rows_R, columns_MC in zip(self.factored, sums[::2], sums[1::2], strict=True):
            state = self.state[part.key]
            for kind, sum_, count in (
                ("exp_avg_sq_row", rows_R, part.full_width),
                ("exp_avg_sq_col", columns_MC, part.full_length),
            ):
                if kind not in state:
                    state[kind] = torch.zeros_like(sum_)
                means.append(state[kind])
                counts.append(float(count))
        if means:
            # Kernels for all tensors at once: launching one for each would take longer on a GPU than the work.
            squares = torch._foreach_div(sums, counts)
            torch._foreach_add_(squares, MIN_SQUARE)
            torch._foreach_mul_(means, decay)
            torch._foreach_add_(means, squares, alpha=1 - decay)

    def _compute_direction(self, part: TensorPart, master: Tensor, decay: float) -> None:
        gradient, state = master.grad, self.state[part.key]
        assert gradient is not None
        if id(part.key) not in self._factored_keys:
            if "exp_avg_sq" not in state:
                state["exp_avg_sq"] = torch.zeros_like(master)
            state["exp_avg_sq"].mul_(decay).add_(gradient.square() + MIN_SQUARE, alpha=1 - decay)
            gradient.mul_(state["exp_avg_sq"].rsqrt())
            return
        rows_R, columns_MC = state["exp_avg_sq_row"], state["exp_avg_sq_col"]
        # The mean of all squares is the mean of either factor: use the factor that this rank holds completely.
        if part.placement.axis == 0:
            mean_M = columns_MC.mean(1)
        else:
            mean_M = part.sum_by_matrix(rows_R, slice(0, part.length)) / part.full_length
        rows_N = (rows_R[part.rows] / part.expand_to_rows(mean_M)).rsqrt()
        update_NC = part.by_row(gradient) * rows_N[:, None] * part.expand_to_rows(columns_MC.rsqrt())
        gradient.copy_(part.in_local_shape(update_NC))

    def _apply_update(
        self, held: list[tuple[TensorPart, Tensor]], squares: list[Tensor], groups: list[dict[str, Any]]
    ) -> None:
        """Apply Adafactor's update to the weights of this rank. `squares`: [2, M] for each weight, sums of squares of
        the update and of the weight."""
        if not held:
            return
        sizes = [float(part.full_length * part.full_width) for part, _ in held]
        updates_M, weights_M = zip(*torch._foreach_sqrt(torch._foreach_div(squares, sizes)), strict=True)
        if self.scale_parameter:
            rates_M = torch._foreach_clamp_min(weights_M, MIN_SIZE)
        else:
            rates_M = tuple(torch.ones_like(weight_M) for weight_M in weights_M)
        torch._foreach_mul_(rates_M, [group["lr"] for group in groups])
        if self.clip_threshold is not None:
            excess_M = torch._foreach_div(updates_M, self.clip_threshold)
            torch._foreach_clamp_min_(excess_M, 1.0)
            torch._foreach_div_(rates_M, excess_M)
        updates = []
        for (part, master), rate_M in zip(held, rates_M, strict=True):
            update, state = master.grad, self.state[part.key]
            assert update is not None
            if part.matrices == 1:
                update.mul_(rate_M)
            else:
                update.copy_(part.in_local_shape(part.by_row(update) * part.expand_to_rows(rate_M)[:, None]))
            if self.momentum:
                if "exp_avg" not in state:
                    state["exp_avg"] = torch.zeros_like(master)
                update = state["exp_avg"].lerp_(update, 1 - self.momentum)
            updates.append(update)
        masters = [master for _, master in held]
        torch._foreach_mul_(masters, [1 - group["lr"] * group["weight_decay"] for group in groups])
        torch._foreach_sub_(masters, updates)


def is_factored(part: TensorPart, min_dim_size_to_factor: int | None) -> bool:
    """Whether Adafactor factors the second moment of a tensor: a matrix with both sides long enough. Axes after the
    first count as one."""
    matrix = min_dim_size_to_factor is not None and len(part.placement.shape) > 1
    return matrix and min(part.full_length, part.full_width) >= (min_dim_size_to_factor or 0)
