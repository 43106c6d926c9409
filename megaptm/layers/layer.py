"""The one transformer layer, with a slot for each brick of a `Block`, and the stack of them."""

# S sequence, B batch, D width, M memory (encoder) sequence

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

from torch import Tensor, nn

from megaptm.errors import UserError
from megaptm.layers.attention import CrossAttention, SelfAttention
from megaptm.layers.feedforward import GATES, PLAIN, FeedForward
from megaptm.layers.mask import Mask
from megaptm.layers.norm import FinalNorm, Norm
from megaptm.layers.positions import score_bias
from megaptm.layers.split import Dropout, HeadTable
from megaptm.spec import BIAS_BUCKETS, Block, Size

# The words that each slot understands. A family with another word is refused when its model is built.
WORDS: dict[str, tuple[str, ...]] = {
    "attention": ("full", "causal"),
    "norm": ("pre", "post"),
    "normalizer": ("layer", "rms"),
    "ffn": (*PLAIN, *GATES),
    "bias_table": ("none", "t5-bidirectional", "t5-causal"),
    "scale": ("sqrt", "none"),
}


def check_words(block: Block) -> None:
    """An error that names the slot and the words it knows, if the block uses another."""
    for slot, known in WORDS.items():
        if (word := getattr(block, slot)) not in known:
            raise UserError(f"Block.{slot} is {word!r}, which no brick implements; use one of {', '.join(known)}.")


class Layer(nn.Module):
    """Self-attention, cross-attention where the block has it, feed-forward; each with its norm and residual sum."""

    def __init__(self, block: Block, size: Size, *, dropout: float) -> None:
        super().__init__()
        width, heads, key_width = size.width, size.heads, size.key_width
        scale = 1 / math.sqrt(key_width) if block.scale == "sqrt" else 1.0

        def norm() -> Norm:
            return Norm(width, kind=block.normalizer, eps=block.norm_eps)

        self.post = block.norm == "post"
        self.attention_norm = norm()
        self.attention = SelfAttention(
            width,
            heads,
            key_width,
            bias=block.bias,
            causal=block.attention == "causal",
            scale=scale,
            dropout=dropout,
        )
        if block.cross:
            self.cross_norm = norm()
            self.cross = CrossAttention(width, heads, key_width, bias=block.bias, scale=scale, dropout=dropout)
        self.ffn_norm = norm()
        self.ffn = FeedForward(
            width, size.ffn, kind=block.ffn, bias=block.bias, dropout=dropout if block.ffn_dropout else 0.0
        )
        self.dropout = Dropout(dropout, region="residual")

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
    ) -> Tensor:
        """[S, B, D] -> [S, B, D]; a function of tensors only, so that it can be run again instead of remembered."""
        x = self._sublayer(self.attention_norm, self.attention, x, mask)
        if memory is not None:
            x = self._sublayer(self.cross_norm, self.cross, x, memory, memory_mask)
        return self._sublayer(self.ffn_norm, self.ffn, x)

    def _sublayer(self, norm: nn.Module, brick: nn.Module, x: Tensor, *others: Tensor | None) -> Tensor:
        if self.post:
            return norm(x + self.dropout(brick(x, *others)))
        return x + self.dropout(brick(norm(x), *others))


def run(layer: Callable[..., Tensor], *tensors: Any) -> Tensor:
    """Runs the layer: what `Stack.around` is until activations are recomputed."""
    return layer(*tensors)


class Stack(nn.ModuleDict):
    """Some consecutive layers of an encoder or a decoder, under their global numbers.

    Children: `bias_table` (if the block has one; the whole stack shares it), `0` ... `L-1`, and after the last layer
    of a pre-norm stack `final`. A part of a pipeline holds fewer of them, under the same names.
    """

    def __init__(self, block: Block, size: Size, layers: range, *, dropout: float) -> None:
        super().__init__()
        check_words(block)
        self.block, self.numbers = block, layers
        self.around: Callable[..., Tensor] = run
        if block.bias_table != "none" and layers:
            self["bias_table"] = HeadTable(BIAS_BUCKETS, size.heads)
        for number in layers:
            self[str(number)] = Layer(block, size, dropout=dropout)
        if block.norm == "pre" and size.layers - 1 in layers:
            self["final"] = FinalNorm(
                size.width,
                kind=block.normalizer,
                eps=block.norm_eps,
                dropout=dropout if block.final_dropout else 0.0,
            )

    def forward(self, x: Tensor, mask: Mask, memory: Tensor | None = None, memory_mask: Mask | None = None) -> Tensor:
        """[S, B, D] -> [S, B, D]; `memory` [M, B, D] is the encoder's output, for layers that attend to it."""
        scores = mask.scores(self._score_bias(mask))
        memory_scores = memory_mask.scores(None) if memory_mask is not None else None
        for number in self.numbers:
            x = self.around(self[str(number)], x, scores, memory, memory_scores)
        return self["final"](x) if "final" in self else x

    def _score_bias(self, mask: Mask) -> Tensor | None:
        """The stack's learned bias on the scores, [1, H, Q, K], if it has one."""
        if "bias_table" not in self:
            return None
        table = cast(HeadTable, self["bias_table"])
        return score_bias(table, *mask.length, bidirectional=self.block.bias_table == "t5-bidirectional")
