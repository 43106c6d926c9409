"""Recurrent layers launch kernels per time step; encoder layers process all positions at once."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from megaptm.families import CATALOGUE
from megaptm.families.elmo import LAYER
from megaptm.families.elmo.stack import ProjectedLSTMStack
from megaptm.layers.mask import Mask
from megaptm.layers.stack import Stack, StackInputs
from megaptm.spec import Size


class KernelCount(TorchDispatchMode):
    """Counts launched operations."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def num_kernels(stack: nn.Module, length: int) -> int:
    """Return the number of operations in forward and backward pass of 64 tokens."""
    x_SBD = torch.zeros(length, 64 // length, 16, requires_grad=True)
    with KernelCount() as kernels:
        stack(x_SBD, StackInputs(Mask((length, length), x_SBD.device))).sum().backward()
    return kernels.count


def test_kernel_launches_grow_with_length_for_lstm_only() -> None:
    """The number of tokens is constant. Costs: benchmarks/recurrent.py."""
    lstm = ProjectedLSTMStack(LAYER, Size(layers=1, width=16, heads=1, ffn=12, memory=1), range(1), dropout=0.0)
    encoder = Stack(CATALOGUE["bert"].first_block, Size(layers=1, width=16, heads=2, ffn=64), range(1), dropout=0.0)
    assert num_kernels(lstm, 32) > 3.5 * num_kernels(lstm, 8)
    assert num_kernels(encoder, 32) == num_kernels(encoder, 8)
