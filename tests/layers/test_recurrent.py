"""What a recurrent layer does one word after the other, and an encoder's layer at once."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from megaptm.families import CATALOGUE
from megaptm.families.elmo import LAYER
from megaptm.layers.layer import Stack
from megaptm.layers.mask import Mask
from megaptm.layers.recurrent import RecurrentStack
from megaptm.spec import Size


class Kernels(TorchDispatchMode):
    """How many are started, one after the other."""

    started = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.started += 1
        return func(*args, **(kwargs or {}))


def started(stack: nn.Module, length: int) -> int:
    """There and back, of 64 tokens."""
    x_SBD = torch.zeros(length, 64 // length, 16, requires_grad=True)
    with Kernels() as kernels:
        stack(x_SBD, Mask((length, length), x_SBD.device)).sum().backward()
    return kernels.started


def test_longer_rows_are_more_steps_and_of_an_encoder_they_are_not() -> None:
    """Of as many tokens, in few rows or in many. What that costs: benchmarks/recurrent.py."""
    lstm = RecurrentStack(LAYER, Size(layers=1, width=16, heads=1, ffn=12, memory=1), range(1), dropout=0.0)
    encoder = Stack(CATALOGUE["bert"].first_block, Size(layers=1, width=16, heads=2, ffn=64), range(1), dropout=0.0)
    assert started(lstm, 32) > 3.5 * started(lstm, 8)
    assert started(encoder, 32) == started(encoder, 8)
