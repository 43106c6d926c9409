"""Optimizer of this rank: gradient norm, clipping, scheduled learning rates, update rule."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.optimizer import ChainedOptimizer
from torch import Tensor

from megaptm.config import OptimizerConfig
from megaptm.parallel.collectives import copy_to_host
from megaptm.parallel.groups import rank_device
from megaptm.parallel.optimizers.eager import without_compiler
from megaptm.parallel.optimizers.offloaded_adamw import MOMENTS, OffloadedAdamW
from megaptm.parallel.optimizers.part import TensorPart
from megaptm.parallel.optimizers.rules import EMA, refuse_other_state
from megaptm.parallel.optimizers.sharded import ShardedOptimizer


@dataclass(frozen=True)
class Optimizer:
    """Optimizer of a config over this rank's parameters. megatron-core runs its update rule."""

    settings: OptimizerConfig
    megatron: ChainedOptimizer | ShardedOptimizer
    """megatron-core's wrapper of the update rule, or the one of a fully sharded model."""
    rule: torch.optim.Optimizer
    parts: Sequence[TensorPart]
    """Tensor parts of all parameters of this rank's stages, in order. All data and tensor ranks have equally many."""
    unchecked: list[TensorPart] = field(default_factory=list)
    """Parts whose state was not compared yet with what the update rule, if it is one of the user, declares."""

    def gradient_norm(self, *, loss: float, replicas: int) -> tuple[float, float]:
        """Return the norm of the full gradient, and the mean of `loss` over all processes: the same bits on each of
        them. The norm is not finite if the loss or any gradient is not finite on one process.

        `replicas`: number of processes that hold each gradient.
        """
        self.megatron.prepare_grads()
        counted: list[Tensor] = []
        copies: list[Tensor] = []
        for inner in self.megatron.chained_optimizers:
            own = inner.get_main_grads_for_grad_norm()
            counted += own
            # Copies on other tensor ranks and stages do not count in the norm, but are updated too.
            ids = {id(grad) for grad in own}
            copies += [grad for grad in _list_gradients(inner) if id(grad) not in ids]
        # Filled on the device: a copy from the host would wait for all work launched before it.
        own_loss = torch.full((), loss, dtype=torch.float64, device=rank_device())
        total = torch.stack([_sum_of_squares(counted), _sum_of_squares(copies), own_loss])
        dist.all_reduce(total)
        squares, *checked = copy_to_host(total)
        norm = math.sqrt(squares / replicas)
        norm = norm if all(map(math.isfinite, checked)) or not math.isfinite(norm) else math.nan
        return norm, checked[-1] / dist.get_world_size()

    def clip_gradients(self, norm: float, *, scale: float = 1.0) -> None:
        """Divide the gradients by the loss scale `scale`; then scale them down to the configured norm, if their `norm`
        is larger."""
        clip = self.settings.clip
        factor = 1.0 if clip is None else min(1.0, clip / (norm + 1e-6))
        if (factor := factor / scale) != 1.0:
            gradients = [grad for inner in self.megatron.chained_optimizers for grad in _list_gradients(inner)]
            torch._foreach_mul_(gradients, factor)

    def set_rates(self, *, step: int, lr: float) -> None:
        """Set learning rate and weight decay for the step after the first `step` steps."""
        settings = self.settings
        decay, eps = settings.weight_decay, settings.eps
        if settings.weight_decay_scaling == "lr-squared":
            decay *= lr
        if settings.name == "adamw" and not settings.bias_correction:
            # torch's and apex's kernels always correct the bias: lr * m / (sqrt(v) + eps) equals their result for
            # another lr and eps.
            mean, square = (1 - beta ** (step + 1) for beta in settings.betas)
            factor = mean / math.sqrt(square)
            lr, decay, eps = lr * factor, decay / factor, eps / math.sqrt(square)
        for group in self.rule.param_groups:
            group["lr"] = lr * group["lr_mult"]
            group["weight_decay"] = decay * group["wd_mult"]
            if "eps" in group and not settings.is_custom:
                group["eps"] = eps

    def set_state(self, part: TensorPart, kind: str, value: Tensor) -> None:
        """Set an optimizer state tensor, on the device or, if moments are off-loaded, in host memory."""
        if self.settings.offload and kind in MOMENTS:
            self.rule.state[part.key][kind] = value.pin_memory() if torch.cuda.is_available() else value.clone()
        else:
            self.rule.state[part.key][kind] = value.to(part.key.device, copy=True)

    def prepare_to_save(self) -> None:
        """Wait until the host may read optimizer state that is in its memory. Raise `UserError` if an update rule of
        the user has other state than it declares."""
        if self.settings.is_custom:
            refuse_other_state(self.rule, self.parts, self.settings)
        if isinstance(self.rule, OffloadedAdamW):
            self.rule.synchronize()

    def step(self) -> None:
        """Update the weights. Call `gradient_norm` first, which prepares the gradients."""
        with without_compiler():
            self.megatron.step_with_ready_grads()
        if self.unchecked:
            self.unchecked[:] = refuse_other_state(self.rule, self.unchecked, self.settings)
        if self.settings.ema_decay is not None:
            self._update_means(1 - self.settings.ema_decay)

    @torch.no_grad()
    def _update_means(self, share: float) -> None:
        """Move the running mean of each weight towards the weight by a share of their difference. It starts with the
        weight after the first update."""
        masters = [part.master for part in self.parts if part.master is not None and part.parameter.requires_grad]
        for master in masters:
            if EMA not in self.rule.state[master]:
                self.rule.state[master][EMA] = master.detach().clone()
        if masters:
            torch._foreach_lerp_([self.rule.state[master][EMA] for master in masters], masters, share)


def _sum_of_squares(gradients: list[Tensor]) -> Tensor:
    """Return the sum of squares of tensors with one synchronization; megatron-core's own norm has one per tensor."""
    if not gradients:
        return torch.zeros((), dtype=torch.float64, device=rank_device())
    return torch.stack(torch._foreach_norm(gradients)).double().square().sum()


def _list_gradients(inner: Any) -> list[Tensor]:
    return [parameter.grad for parameter in inner.get_parameters() if parameter.grad is not None]
