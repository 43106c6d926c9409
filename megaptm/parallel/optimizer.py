"""megatron-core's optimizers: plain, with fp32 masters, or divided over data ranks; Adam by apex where installed."""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.distributed import DistributedDataParallel
from megatron.core.optimizer import MegatronOptimizer, clip_grads, get_megatron_optimizer
from megatron.core.optimizer import OptimizerConfig as MegatronOptimizerConfig
from megatron.core.utils import local_multi_tensor_scale
from torch import Tensor

from megaptm.config import Layout, Optimizer


def _scale(chunk_size: int, overflow: Tensor, tensors: list[list[Tensor]], factor: float) -> None:
    """megatron's own fallback for apex's kernel copies every gradient twice; this scales them where they are."""
    sources, targets = tensors
    assert all(source is target for source, target in zip(sources, targets, strict=True))
    torch._foreach_mul_(sources, factor)


if clip_grads.multi_tensor_scale_impl is local_multi_tensor_scale:
    clip_grads.multi_tensor_scale_impl = _scale


def build_optimizer(
    chunks: list[DistributedDataParallel], layout: Layout, settings: Optimizer, precision: str
) -> MegatronOptimizer:
    """AdamW over this rank's parameters; norms and biases do not decay."""
    config = MegatronOptimizerConfig(
        optimizer="adam",
        lr=settings.lr,
        weight_decay=settings.weight_decay,
        adam_beta1=settings.betas[0],
        adam_beta2=settings.betas[1],
        adam_eps=settings.eps,
        # 0 would skip measuring the norm as well; nothing is as long as this.
        clip_grad=settings.clip or 1e30,
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
