"""One optimizer step: scheduled rates, norm of the full gradient, clipping, update rule."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.optimizer import ChainedOptimizer
from torch import Tensor

from megaptm.parallel.collectives import numbers
from megaptm.parallel.groups import device
from megaptm.parallel.optimizers.build import Optimizer


def set_rates(optimizer: Optimizer, *, step: int, lr: float) -> None:
    """Set the scheduled rates of the step that follows `step` steps."""
    settings = optimizer.settings
    decay, eps = settings.weight_decay, settings.eps
    if settings.weight_decay_scaling == "lr-squared":
        decay *= lr
    if settings.name == "adamw" and not settings.bias_correction:
        # torch's and apex's kernels always correct the bias: lr * m / (sqrt(v) + eps) equals their result for another
        # lr and eps.
        mean, square = (1 - beta ** (step + 1) for beta in settings.betas)
        by = mean / math.sqrt(square)
        lr, decay, eps = lr * by, decay / by, eps / math.sqrt(square)
    for group in optimizer.rule.param_groups:
        group["lr"] = lr * group["lr_mult"]
        group["weight_decay"] = decay * group["wd_mult"]
        if "eps" in group:
            group["eps"] = eps


def update(optimizer: Optimizer, *, loss: float, replicas: int) -> float:
    """Update the weights with this step's gradient, clipped to the configured norm; return the norm before clipping.

    If the loss or any gradient is not finite on any process, no process updates anything and all return a norm that is
    not finite. `replicas`: number of processes that hold each gradient.
    """
    megatron, clip = optimizer.megatron, optimizer.settings.clip
    megatron.prepare_grads()
    norm = _gradient_norm(megatron, loss, replicas)
    if not math.isfinite(norm):
        return norm
    if clip is not None and (factor := clip / (norm + 1e-6)) < 1.0:
        torch._foreach_mul_([grad for inner in megatron.chained_optimizers for grad in _gradients(inner)], factor)
    megatron.step_with_ready_grads()
    return norm


def _gradient_norm(megatron: ChainedOptimizer, loss: float, replicas: int) -> float:
    counted, copies = [], []
    for inner in megatron.chained_optimizers:
        own = inner.get_main_grads_for_grad_norm()
        counted += own
        # Copies on other tensor ranks and stages do not count in the norm, but are updated too.
        ids = {id(grad) for grad in own}
        copies += [grad for grad in _gradients(inner) if id(grad) not in ids]
    # Filled on the device: a copy from the host would wait for all work launched before it.
    own_loss = torch.full((), loss, dtype=torch.float64, device=device())
    total = torch.stack([_squares(counted), _squares(copies), own_loss])
    dist.all_reduce(total)
    squares, *others = numbers(total)
    norm = math.sqrt(squares / replicas)
    return norm if all(map(math.isfinite, others)) or not math.isfinite(norm) else math.nan


def _squares(gradients: list[Tensor]) -> Tensor:
    """Return the sum of squares with one synchronization; megatron-core's own norm has one per tensor."""
    if not gradients:
        return torch.zeros((), dtype=torch.float64, device=device())
    return torch.stack(torch._foreach_norm(gradients)).double().square().sum()


def _gradients(inner: Any) -> list[Tensor]:
    return [parameter.grad for parameter in inner.get_parameters() if parameter.grad is not None]
