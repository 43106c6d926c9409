"""Construction of megatron-core's optimizer with any update rule: plain, with float32 copies, or divided over data
ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

import torch
from megatron.core.optimizer import (
    ChainedOptimizer,
    _get_param_groups,
    get_megatron_optimizer,
    get_standard_config_overrides,
)
from megatron.core.optimizer import OptimizerConfig as MegatronOptimizerConfig
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from megatron.core.optimizer.optimizer_config import ParamKey, ParamPredicate
from torch import Tensor
from torch.nn import Parameter

from megaptm.config import OptimizerConfig
from megaptm.models.mup import mup_factors
from megaptm.parallel.full_sharding import is_sharded, own_range
from megaptm.parallel.groups import DTYPES
from megaptm.parallel.model import ParallelModel
from megaptm.parallel.optimizers.eager import without_compiler
from megaptm.parallel.optimizers.optimizer import Optimizer
from megaptm.parallel.optimizers.part import TensorPart
from megaptm.parallel.optimizers.rules import build_offloaded, find_rule
from megaptm.parallel.optimizers.sharded import ShardedOptimizer
from megaptm.parallel.split import Placement


@without_compiler()
def build_optimizer(model: ParallelModel, settings: OptimizerConfig) -> Optimizer:
    """Build the optimizer of this rank's parameters.

    megatron-core builds AdamW, from apex if it is installed. Any other update rule replaces it before the first step.
    """
    half = model.precision != "fp32"
    config = MegatronOptimizerConfig(
        optimizer="adam",
        lr=settings.lr,
        weight_decay=settings.weight_decay,
        adam_beta1=settings.betas[0],
        adam_beta2=settings.betas[1],
        adam_eps=settings.eps,
        clip_grad=0.0,  # `Optimizer.clip_gradients` clips
        bf16=half,  # also for fp16, whose gradients `parallel.loss_scale` scales
        params_dtype=DTYPES[model.precision],
        use_distributed_optimizer=model.layout.distributed_optimizer,
    )
    # megatron-core's own overrides: parameters with one axis (norms, biases) do not decay.
    standard = {} if settings.weight_decay_on == "all" else get_standard_config_overrides(config)
    overrides = {**standard, **_mup_overrides(model, settings)}
    megatron: ChainedOptimizer | ShardedOptimizer
    if model.sharded is not None:
        groups = _get_param_groups(model.chunks, config, overrides)
        rates = {"lr": settings.lr, "betas": settings.betas, "eps": settings.eps}
        megatron = ShardedOptimizer(model.sharded, groups, **rates)
    else:
        megatron = get_megatron_optimizer(config, model.chunks, overrides, use_gloo_process_groups=False)
        _copy_together(megatron.chained_optimizers[0])
    [inner] = megatron.chained_optimizers
    shards = _shards_by_parameter(inner)
    parts = [
        _tensor_part(inner, shards, placement, parameter)
        for stage in model.stages
        for placement, parameter in stage.placed_parameters()
    ]
    adam = inner.optimizer
    build = build_offloaded if settings.offload else find_rule(settings).build
    if build is None:
        for group in adam.param_groups:
            # torch's Adam loops over parameters on a CPU unless `fused` is set; apex's has no such option.
            if "fused" in group:
                group["fused"] = True
    else:
        # Built without tensors, which are set afterwards: torch rejects the flat ranges of parameters in the
        # constructor.
        bare = [{"params": [], "lr_mult": group["lr_mult"], "wd_mult": group["wd_mult"]} for group in adam.param_groups]
        trained = [part for part in parts if part.parameter.requires_grad]
        inner.optimizer = build(bare, settings, trained, model.layout.divides_optimizer)
        for group, adam_group in zip(inner.optimizer.param_groups, adam.param_groups, strict=True):
            group["params"] = adam_group["params"]
    return Optimizer(settings, megatron, inner.optimizer, parts, [*parts] if settings.is_custom else [])


def _mup_overrides(model: ParallelModel, settings: OptimizerConfig) -> dict[ParamKey, dict[str, float]]:
    """Return megatron-core's overrides for parameters whose learning rate muP scales. Their weight decay per step stays
    the same."""
    members: dict[tuple[float, bool], set[int]] = defaultdict(set)
    for stage in model.stages:
        for placement, parameter in stage.placed_parameters():
            axes = len(placement.shape)
            if (factor := mup_factors(model.spec, placement.name, axes).lr) != 1.0:
                members[factor, axes > 1 or settings.weight_decay_on == "all"].add(id(parameter))
    return {
        ParamKey(predicate=ParamPredicate(f"muP {factor} {decays}", partial(_has_id, ids))): (
            {"lr_mult": factor, "wd_mult": 1 / factor} if decays else {"lr_mult": factor}
        )
        for (factor, decays), ids in members.items()
    }


def _has_id(ids: Collection[int], parameter: Parameter) -> bool:
    return id(parameter) in ids


def _copy_together(inner: Any) -> None:
    """Make an optimizer with float32 copies of the weights copy them to the model with `_copy_to_model`."""
    if hasattr(inner, "_copy_main_params_to_model_params"):
        inner._copy_main_params_to_model_params = partial(_copy_to_model, inner)


@torch.no_grad()
def _copy_to_model(inner: Any) -> None:
    """Copy the updated float32 weights to the model, with one kernel for many tensors. megatron-core copies them one by
    one."""
    if not isinstance(inner, DistributedOptimizer):
        torch._foreach_copy_(*inner._get_model_and_main_params_data_float16())
        return
    for shard_groups, parameter_groups in (
        (inner.shard_fp32_from_float16_groups, inner.model_float16_groups),
        (inner.shard_fp32_groups, inner.model_fp32_groups),
    ):
        shards = [shard for group in shard_groups for shard in group]
        targets = [_slice_in_model(inner, parameter) for group in parameter_groups for parameter in group]
        if shards:
            torch._foreach_copy_(targets, shards)


def _slice_in_model(inner: Any, parameter: Parameter) -> Tensor:
    """Return this data rank's slice of a parameter, in the buffer from which data ranks gather weights."""
    span = inner._get_model_param_range_map(parameter)["gbuf_world_in_bucket"]
    buffer, _, bucket = inner.model_param_gbuf_map[parameter]
    weights: Tensor = inner.buffers[buffer].buckets[bucket].param_data.view(-1)
    return weights[span.start : span.end]


def _tensor_part(inner: Any, shards: Mapping[int, Tensor], placement: Placement, parameter: Parameter) -> TensorPart:
    if not parameter.requires_grad:
        return TensorPart(placement, parameter, None)
    if is_sharded(parameter):
        own = own_range(parameter)
        return TensorPart(placement, parameter, own.master if own.master.numel() else None, own.span)
    if not isinstance(inner, DistributedOptimizer):
        return TensorPart(placement, parameter, getattr(parameter, "main_param", parameter))
    if id(parameter) not in shards:
        return TensorPart(placement, parameter, None, (0, 0))
    owned = inner._get_model_param_range_map(parameter)["param"]
    return TensorPart(placement, parameter, shards[id(parameter)], (owned.start, owned.end))


def _shards_by_parameter(inner: Any) -> dict[int, Tensor]:
    """Return the float32 shards that this data rank updates with the distributed optimizer, by parameter id.

    megatron-core's own index follows the order of storage, which differs if some parameters are in float32 and others
    are not.
    """
    if not isinstance(inner, DistributedOptimizer):
        return {}
    shard_by_id: dict[int, Tensor] = {}
    for parameter_groups, shard_groups in (
        (inner.model_fp32_groups, inner.shard_fp32_groups),
        (inner.model_float16_groups, inner.shard_fp32_from_float16_groups),
    ):
        for parameters, shards in zip(parameter_groups, shard_groups, strict=True):
            shard_by_id |= {id(parameter): shard for parameter, shard in zip(parameters, shards, strict=True)}
    return shard_by_id
