"""Reversible layers (arXiv:1707.04585; Reformer, arXiv:2001.04451, section 3). The backward pass needs only the last
output, from which it recomputes the inputs of all layers.

y1 = x1 + attention(x2) and y2 = x2 + feed-forward(y1), so x2 = y2 - feed-forward(y1) and x1 = y1 - attention(x2).
"""

# S sequence, B batch, D width

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from megaptm.layers.accumulate import sum_dtype
from megaptm.layers.feedforward_costs import ROWS_FED
from megaptm.layers.rng import RngReplay
from megaptm.layers.split import Dropout

if TYPE_CHECKING:
    from megaptm.layers.layer import Layer


@dataclass(frozen=True)
class LayerInputs:
    """Reversible layer of Reformer and the arguments of its attention."""

    layer: Layer
    mask: Tensor | None
    position_state: Tensor | None


def run_reversible(
    x1_SBD: Tensor, x2_SBD: Tensor, layers: Sequence[LayerInputs], remember: Callable[[], RngReplay]
) -> list[Tensor]:
    """Run Reformer's reversible layers: return both residual streams after them. Streams are float32, because rounding
    errors would not be invertible; layers receive the model's dtype."""
    precise = torch.promote_types(x1_SBD.dtype, torch.float32)
    y1, y2 = _Reversible.apply(x1_SBD.to(precise), x2_SBD.to(precise), layers, remember, x1_SBD.dtype)
    return [y1, y2]


class _Reversible(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x1: Tensor,
        x2: Tensor,
        layers: Sequence[LayerInputs],
        remember: Callable[[], RngReplay],
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        draws, chosen = [], []
        for inputs in layers:
            note = remember if _has_active_dropout(inputs.layer) else _no_context
            before_attention = note()
            mixed, of_layer = inputs.layer.attention_branch(x2.to(dtype), inputs.mask, inputs.position_state)
            x1, before_ffn = x1 + mixed, note()
            x2 = x2 + torch.cat([inputs.layer.ffn_branch(piece) for piece in _split_positions(x1.to(dtype))])
            draws.append((before_attention, before_ffn))
            chosen.append(of_layer)
        # Besides the generator states, each layer saves only its hash buckets.
        ctx.save_for_backward(x1, x2, *chosen)
        ctx.layers, ctx.draws, ctx.dtype = layers, draws, dtype
        return x1, x2

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad1: Tensor, grad2: Tensor) -> tuple[Tensor | None, ...]:
        y1, y2, *chosen = ctx.saved_tensors
        passed = zip(ctx.layers, ctx.draws, chosen, strict=True)
        for inputs, (draw_attention, draw_ffn), of_layer in reversed([*passed]):
            with draw_ffn():
                fed, grad = _recompute_ffn(inputs.layer, y1.to(ctx.dtype), grad2.to(ctx.dtype))
            x2, grad1 = y2 - fed, grad1 + grad
            with draw_attention(), torch.enable_grad():
                x = x2.to(ctx.dtype).detach().requires_grad_()
                mixed, _ = inputs.layer.attention_branch(x, inputs.mask, inputs.position_state, of_layer)
                torch.autograd.backward(mixed, grad1.to(ctx.dtype))
            assert x.grad is not None
            y1, y2, grad2 = y1 - mixed.detach(), x2, grad2 + x.grad
        return grad1, grad2, None, None, None


def _recompute_ffn(layer: Layer, x: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Recompute the feed-forward of a reversible layer: return its output and the gradient of its input. Weight
    gradients are passed on once for all pieces, because gradient reduction counts its calls."""
    weights = [inputs for part in (layer.ffn_norm, layer.ffn) for inputs in part.parameters() if inputs.requires_grad]
    sums = [torch.zeros(inputs.shape, dtype=sum_dtype(inputs.dtype), device=inputs.device) for inputs in weights]
    fed, grads = [], []
    for piece, grad_piece in zip(_split_positions(x), _split_positions(grad), strict=True):
        with torch.enable_grad():
            piece_input = piece.detach().requires_grad_()
            # A view: module hooks must not be attached to a tensor whose gradient is requested.
            fed.append(layer.ffn_branch(piece_input.view_as(piece_input)))
        first, *weight_grads = torch.autograd.grad(fed[-1], [piece_input, *weights], grad_piece)
        grads.append(first)
        for total, weight_grad in zip(sums, weight_grads, strict=True):
            total += weight_grad
        fed[-1] = fed[-1].detach()
    if weights:
        torch.autograd.backward(weights, [total.to(inputs.dtype) for total, inputs in zip(sums, weights, strict=True)])
    return torch.cat(fed), torch.cat(grads)


def _split_positions(x_SBD: Tensor) -> tuple[Tensor, ...]:
    return x_SBD.split(max(1, ROWS_FED // x_SBD.shape[1]))


def _has_active_dropout(layer: Layer) -> bool:
    return any(isinstance(module, Dropout) and module.is_active for module in layer.modules())


def _no_context() -> RngReplay:
    return nullcontext
