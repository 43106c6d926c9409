"""Gradient sums of a pipeline chunk: megatron-core's float32 buffers, and how gradients are added to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.tensor_parallel import layers
from megatron.core.transformer import TransformerConfig
from torch import Tensor, nn

from megaptm.layers.accumulate import add_product, allow_direct_sum
from megaptm.layers.split import Linear
from megaptm.parallel.split import ColumnSplit, RowSplit, SharedLinear
from megaptm.parallel.stage import Stage

MAX_POSTPONED = 2**16
"""Maximum elements of a small gradient, which is added to its sum together with others: biases, norms, small tables."""


class MainGrad:
    """`gradient_sum` of a parameter (`layers.accumulate`): megatron-core's `main_grad`, a float32 tensor to which the
    gradients of all micro-batches are added."""

    def __init__(self, parameter: nn.Parameter, *, overlaps: bool) -> None:
        self._parameter, self._overlaps = parameter, overlaps

    @property
    def total(self) -> Tensor:
        return self._parameter.main_grad  # type: ignore[attr-defined]

    def mark_added(self) -> Tensor | None:
        """Mark a parameter's gradient as added to its float32 sum. Return a placeholder whose values are not used: with
        overlap, megatron-core waits for a gradient of every parameter."""
        self._parameter.grad_added_to_main_grad = True  # type: ignore[attr-defined]
        return torch.empty_like(self._parameter) if self._overlaps else None


def attach_main_grads(parameters: Iterable[nn.Parameter], *, overlaps: bool) -> None:
    """Let the modules of these parameters add gradients to `main_grad`. `overlaps`: gradients are reduced during the
    backward pass."""
    for parameter in parameters:
        attached: Any = parameter
        attached.gradient_sum = MainGrad(parameter, overlaps=overlaps)


class ChunkGradients(DistributedDataParallel):
    """Pipeline chunk with its gradient buffers, which are reduced over data ranks.

    Small gradients are collected during a backward pass and added together: a kernel for each would take longer to
    launch than to run.
    """

    def __init__(
        self,
        config: TransformerConfig,
        data_config: DistributedDataParallelConfig,
        stage: Stage,
        *,
        disable_bucketing: bool,
    ) -> None:
        self._postponed: dict[nn.Parameter, Tensor] = {}
        super().__init__(config, data_config, stage, disable_bucketing=disable_bucketing)
        attach_main_grads(stage.parameters(), overlaps=data_config.overlap_grad_reduce)
        for module in stage.modules():
            if isinstance(module, Linear | SharedLinear | ColumnSplit | RowSplit):
                _bypass_autograd(module)
        for group in self.bucket_groups:
            group.start_grad_sync = _call_both(self._add_postponed, group.start_grad_sync)

    def _make_backward_post_hook(self, parameter: nn.Parameter) -> Callable[..., None]:
        """Return a function that autograd calls when a parameter's gradient is complete for a micro-batch."""
        own: Any = parameter
        overlaps = self.ddp_config.overlap_grad_reduce

        def add(*_: object) -> None:
            gradient, own.grad = own.grad, None
            if gradient is not None and not own.grad_added_to_main_grad:
                self._add_gradient(parameter, gradient)
            elif gradient is not None and not overlaps and not getattr(own, "has_placeholder", False):
                # With overlap the second gradient would be lost in the placeholder.
                raise RuntimeError(
                    f"a parameter of shape {[*own.shape]} has two gradients in one pass, one of which bypasses "
                    "autograd (layers.accumulate): all modules that use it must agree."
                )
            if overlaps:
                self.param_to_bucket_group[parameter].register_grad_ready(parameter, self.force_all_reduce)

        return add

    def _add_gradient(self, parameter: nn.Parameter, gradient: Tensor) -> None:
        if parameter.numel() > MAX_POSTPONED:
            parameter.main_grad.add_(gradient)  # type: ignore[attr-defined]
            return
        if parameter in self._postponed:
            self._add_postponed()
        self._postponed[parameter] = gradient

    def _add_postponed(self) -> None:
        if self._postponed:
            parameters: list[Any] = [*self._postponed]
            add_gradients([parameter.main_grad for parameter in parameters], [*self._postponed.values()])
            self._postponed.clear()

    def finish_grad_sync(self, force_all_reduce: bool | None = False) -> None:
        self._add_postponed()
        super().finish_grad_sync(force_all_reduce=force_all_reduce)

    def zero_grad_buffer(self) -> None:
        self._postponed.clear()
        super().zero_grad_buffer()

    def reduce_untouched(self) -> None:
        """Reduce gradient buckets that still wait for parameters that this step did not use; their gradient is zero.
        Only if gradients are reduced during the backward pass.

        All data ranks use the same parameters and therefore reduce in the same order.
        """
        for group in self.bucket_groups if self.ddp_config.overlap_grad_reduce else ():
            for parameter in {*group.params} - group.per_param_grad_ready_counts.keys():
                group.register_grad_ready(parameter)


class _ProductSum:
    """Replacement of apex's kernels, with which megatron-core's linear layers add weight gradients to the float32
    sums."""

    @staticmethod
    def wgrad_gemm_accum_fp32(x_NI: Tensor, d_output_NO: Tensor, total_OI: Tensor) -> None:
        add_product(total_OI, d_output_NO.t(), x_NI)


if not layers._grad_accum_fusion_available:
    layers.fused_weight_gradient_mlp_cuda = _ProductSum


def _bypass_autograd(module: Linear | SharedLinear | ColumnSplit | RowSplit) -> None:
    """Let a linear layer add the gradient of its weight to the float32 sum in one kernel, where torch can."""
    weight: Any = module.weight
    is_direct = allow_direct_sum(weight, is_exclusive=module.adds_products)
    if isinstance(module, ColumnSplit | RowSplit):
        # These modules return a placeholder.
        module.gradient_accumulation_fusion = weight.has_placeholder = is_direct


@torch.no_grad()
def add_gradients(totals: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
    """Add each gradient to its float32 sum, with one kernel for many tensors."""
    by_dtype: dict[torch.dtype, list[tuple[Tensor, Tensor]]] = {}
    for total, gradient in zip(totals, gradients, strict=True):
        by_dtype.setdefault(gradient.dtype, []).append((total.view(-1), gradient.reshape(-1)))
    for dtype, pairs in by_dtype.items():
        sums, terms = map(list, zip(*pairs, strict=True))
        if dtype != torch.float32:
            # A sum of two formats would be a kernel for each tensor.
            flat = torch.empty(sum(map(len, terms)), device=terms[0].device)
            wide = [*flat.split([*map(len, terms)])]
            torch._foreach_copy_(wide, terms)
            terms = wide
        torch._foreach_add_(sums, terms)


def _call_both(first: Callable[[], None], then: Callable[..., None]) -> Callable[..., None]:
    def call(*args: Any, **options: Any) -> None:
        first()
        then(*args, **options)

    return call
