"""Attention bricks. The heads of a layer are counted nowhere in `forward`: each rank has those its weights hold."""

# S sequence, B batch, D width, H heads, K head width, M memory (encoder) sequence

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor, nn

from megaptm.bricks import Brick
from megaptm.layers.positions import rotate
from megaptm.layers.split import Dropout, Linear


class Attend(nn.Module):
    """Softmax-weighted mean of values, all heads at once, with dropout on the weights."""

    def __init__(self, *, causal: bool, scale: float, dropout: float) -> None:
        super().__init__()
        self.causal, self.scale = causal, scale
        self.dropout = Dropout(dropout, region="heads")

    def forward(self, q_SBHK: Tensor, k_MBHK: Tensor, v_MBHK: Tensor, mask: Tensor | None) -> Tensor:
        """[S, B, H*K]. A mask, boolean or a bias on the scores, says everything; without one, `causal` does."""
        q, k, v = (x.permute(1, 2, 0, 3) for x in (q_SBHK, k_MBHK, v_MBHK))
        with self.dropout.drawing():
            mixed_BHSK = F.scaled_dot_product_attention(
                q,
                k,
                v,
                attn_mask=mask if mask is None or not mask.is_floating_point() else mask.to(q.dtype),
                dropout_p=self.dropout.rate if self.dropout.draws else 0.0,
                is_causal=self.causal and mask is None,
                scale=self.scale,
            )
        return mixed_BHSK.permute(2, 0, 1, 3).flatten(2)


def score_scale(brick: Brick) -> float:
    """What scores are multiplied by."""
    return 1 / math.sqrt(brick.size.key_width) if brick.block.scale == "sqrt" else 1.0


class SelfAttention(nn.Module):
    """Queries, keys and values from one stream.

    Rows of `qkv` are ordered (head, [q, k, v], K), so that a contiguous slice of them is whole heads.
    """

    def __init__(self, brick: Brick, *, dropout: float) -> None:
        super().__init__()
        self.key_width = brick.size.key_width
        self.qkv = Linear.of(brick.maps["qkv"])
        causal = brick.block.visibility == "causal"
        self.attend = Attend(causal=causal, scale=score_scale(brick), dropout=dropout)
        self.output = Linear.of(brick.maps["output"])

    def forward(self, x_SBD: Tensor, mask: Tensor | None, turned: Tensor | None = None) -> Tensor:
        """`turned`: the rotation of queries and keys (`positions.rotation`), where the stack has one."""
        qkv = self.qkv(x_SBD)
        q, k, v = qkv.view(*qkv.shape[:2], -1, 3, self.key_width).unbind(3)
        if turned is not None:
            q, k = rotate(q, turned), rotate(k, turned)
        return self.output(self.attend(q, k, v, mask))


class CrossAttention(nn.Module):
    """Queries from the decoder, keys and values from the encoder's output. Rows of `kv`: (head, [k, v], K)."""

    def __init__(self, brick: Brick, *, dropout: float) -> None:
        super().__init__()
        self.key_width = brick.size.key_width
        self.query, self.kv = Linear.of(brick.maps["query"]), Linear.of(brick.maps["kv"])
        self.attend = Attend(causal=False, scale=score_scale(brick), dropout=dropout)
        self.output = Linear.of(brick.maps["output"])

    def forward(self, x_SBD: Tensor, memory_MBD: Tensor, mask: Tensor | None) -> Tensor:
        q, kv = self.query(x_SBD), self.kv(memory_MBD)
        k, v = kv.view(*kv.shape[:2], -1, 2, self.key_width).unbind(3)
        return self.output(self.attend(q.view(*q.shape[:2], -1, self.key_width), k, v, mask))
