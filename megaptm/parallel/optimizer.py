"""megatron-core's optimizers: plain, with fp32 masters, or divided over data ranks; Adam by apex where installed."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.distributed import DistributedDataParallel
from megatron.core.optimizer import ChainedOptimizer, get_megatron_optimizer
from megatron.core.optimizer import OptimizerConfig as MegatronOptimizerConfig
from torch import Tensor

from megaptm.config import Layout, OptimizerConfig
from megaptm.parallel.collectives import numbers
from megaptm.parallel.groups import device


def build_optimizer(
    chunks: list[DistributedDataParallel], layout: Layout, settings: OptimizerConfig, precision: str
) -> ChainedOptimizer:
    """AdamW over this rank's parameters; norms and biases do not decay."""
    config = MegatronOptimizerConfig(
        optimizer="adam",
        lr=settings.lr,
        weight_decay=settings.weight_decay,
        adam_beta1=settings.betas[0],
        adam_beta2=settings.betas[1],
        adam_eps=settings.eps,
        clip_grad=0.0,  # `update` clips
        bf16=precision == "bf16",
        params_dtype=torch.bfloat16 if precision == "bf16" else torch.float32,
        use_distributed_optimizer=layout.distributed_optimizer,
    )
    optimizer = get_megatron_optimizer(config, chunks, use_gloo_process_groups=False)
    for group in optimizer.param_groups:
        # torch's own Adam steps parameter by parameter on a CPU unless told to fuse; apex's knows no such word.
        if "fused" in group:
            group["fused"] = True
    return optimizer


def set_rates(optimizer: Any, *, lr: float, weight_decay: float) -> None:
    """The schedule's values for the coming step."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group["lr_mult"]
        group["weight_decay"] = weight_decay * group["wd_mult"]


def update(optimizer: ChainedOptimizer, *, clip: float | None, loss: float, replicas: int) -> float:
    """Move the weights by this step's gradient, clipped to the norm `clip`; returns the norm before clipping.

    Where the loss or any gradient on any process is not finite, nothing is moved anywhere and the norm is not finite
    either: every process hears the same. `replicas` processes hold each gradient.
    """
    optimizer.prepare_grads()
    norm = _gradient_norm(optimizer, loss, replicas)
    if not math.isfinite(norm):
        return norm
    if clip is not None and (factor := clip / (norm + 1e-6)) < 1.0:
        torch._foreach_mul_([grad for inner in optimizer.chained_optimizers for grad in _gradients(inner)], factor)
    optimizer.step_with_ready_grads()
    return norm


def _gradient_norm(optimizer: ChainedOptimizer, loss: float, replicas: int) -> float:
    counted, copies = [], []
    for inner in optimizer.chained_optimizers:
        own = inner.get_main_grads_for_grad_norm()
        counted += own
        # Copies on other tensor ranks and stages do not count in the norm, but their weights are moved all the same.
        ids = {id(grad) for grad in own}
        copies += [grad for grad in _gradients(inner) if id(grad) not in ids]
    # Filled in by the device: a copy of a host's number would make the host wait for all that was launched before it.
    own_loss = torch.full((), loss, dtype=torch.float64, device=device())
    total = torch.stack([_squares(counted), _squares(copies), own_loss])
    dist.all_reduce(total)
    squares, *others = numbers(total)
    norm = math.sqrt(squares / replicas)
    return norm if all(map(math.isfinite, others)) or not math.isfinite(norm) else math.nan


def _squares(gradients: list[Tensor]) -> Tensor:
    """Their sum, in one wait of the host for the device where megatron-core's own norm has one for each tensor."""
    if not gradients:
        return torch.zeros((), dtype=torch.float64, device=device())
    return torch.stack(torch._foreach_norm(gradients)).double().square().sum()


def _gradients(inner: Any) -> list[Tensor]:
    return [parameter.grad for parameter in inner.get_parameters() if parameter.grad is not None]
