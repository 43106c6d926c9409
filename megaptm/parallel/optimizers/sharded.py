"""Optimizer of a fully sharded model, with the methods of megatron-core's optimizers that `Optimizer` calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from megatron.core.tensor_parallel import param_is_not_tensor_parallel_duplicate
from torch import Tensor

from megaptm.parallel.full_sharding import FullySharded, own_range


class ShardedOptimizer:
    """Optimizer of a fully sharded model: updates the float32 weights that this data rank owns."""

    def __init__(self, sharded: FullySharded, groups: Sequence[dict[str, Any]], **options: Any) -> None:
        """`groups`: parameters of the model with `lr_mult` and `wd_mult`. `options`: of torch's AdamW, which may be
        replaced before the first step."""
        self._sharded = sharded
        self._parameters = {
            id(own_range(parameter).master): parameter for group in groups for parameter in group["params"]
        }
        for parameter in self._parameters.values():
            own = own_range(parameter)
            own.master.grad = own.gradient
        self.optimizer: torch.optim.Optimizer = torch.optim.AdamW(
            [{**group, "params": [own_range(parameter).master for parameter in group["params"]]} for group in groups],
            fused=True,
            **options,
        )
        self.chained_optimizers = [self]

    def get_parameters(self) -> list[Tensor]:
        return [master for group in self.optimizer.param_groups for master in group["params"]]

    def get_main_grads_for_grad_norm(self) -> list[Tensor]:
        """Return the gradients that count in the norm: of replicated parameters only those of tensor rank 0."""
        return [
            own_range(parameter).gradient
            for parameter in self._parameters.values()
            if param_is_not_tensor_parallel_duplicate(parameter)
        ]

    def prepare_grads(self) -> None:
        """Do nothing: in a fully sharded model, float32 weights have their gradients as `grad`."""

    def zero_grad(self) -> None:
        """Do nothing: the fully sharded stage sets its gradients to zero."""

    def step_with_ready_grads(self) -> None:
        """Update the float32 weights that this data rank owns."""
        self.optimizer.step()
        self._sharded.weights_changed()

    def reload_model_params(self) -> None:
        """Copy float32 weights that were set from outside, such as from a checkpoint, to the model."""
        self._sharded.weights_changed()
