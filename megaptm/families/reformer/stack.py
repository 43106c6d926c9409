"""Stack of reversible layers."""

# S sequence, B batch, D width

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from megaptm.families.reformer.reversible import LayerInputs, run_reversible
from megaptm.layers.feedforward import FeedForward
from megaptm.layers.layer import Layer
from megaptm.layers.stack import Stack, StackInputs


class ReversibleStack(Stack):
    """Stack of reversible layers. Both residual streams start as x and are concatenated along the sequence, [2S, B, D],
    between chunks. The final norm reads them along the width, [S, B, 2D]."""

    eager_because = "they are reversible, and recompute their inputs"

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        for module in self.modules():
            if isinstance(module, FeedForward):
                # `run_reversible` asks autograd for the gradients of their weights.
                module.up.adds_products = module.down.adds_products = False

    def forward(self, x: Tensor, inputs: StackInputs) -> Tensor:
        x1, x2 = (x, x) if 0 in self.layer_numbers else x.chunk(2)
        attention = self.attention_inputs(x, inputs)
        layers = []
        for number in self.layer_numbers:
            own = attention[self.block.attention_at(number)]
            layers.append(LayerInputs(cast(Layer, self[str(number)]), own.mask, own.position_state))
        streams = [y.to(x.dtype) for y in run_reversible(x1, x2, layers, self.save_rng_state)]
        return self["final"](torch.cat(streams, -1)) if "final" in self else torch.cat(streams)
