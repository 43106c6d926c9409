"""megatron-core's `main_grad`: each parameter's float32 tensor, in which gradients of all micro-batches are summed."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from megatron.core.distributed import DistributedDataParallel
from torch import Tensor, nn


class MainGrad:
    """The `gradient_sum` of a parameter: see `layers.accumulate`."""

    def __init__(self, parameter: nn.Parameter, *, overlaps: bool) -> None:
        self._parameter, self._overlaps = parameter, overlaps

    @property
    def total(self) -> Tensor:
        return self._parameter.main_grad  # type: ignore[attr-defined]

    def added(self) -> Tensor | None:
        """Where gradients are reduced during the backward pass, it waits to see one for every parameter: it gets one
        whose values nobody reads."""
        self._parameter.grad_added_to_main_grad = True  # type: ignore[attr-defined]
        return torch.empty_like(self._parameter) if self._overlaps else None


def attach_main_grads(parameters: Iterable[nn.Parameter], *, overlaps: bool) -> None:
    """Let the modules of these parameters add to their `main_grad`; `overlaps`: reduced during the backward pass."""
    for parameter in parameters:
        parameter.gradient_sum = MainGrad(parameter, overlaps=overlaps)  # type: ignore[attr-defined]


def reduce_untouched(chunk: DistributedDataParallel) -> None:
    """Where gradients are reduced during the backward pass: send off what waits for parameters that nothing in this
    step asked, whose gradient is the zero that it began with. All data ranks are asked the same, and so send in the
    same order."""
    for group in chunk.bucket_groups if chunk.ddp_config.overlap_grad_reduce else ():
        for parameter in {*group.params} - group.per_param_grad_ready_counts.keys():
            group.register_grad_ready(parameter)
