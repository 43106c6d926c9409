"""Disentangled attention (DeBERTa, arXiv:2006.03654): scores by content, and by content and distance, both ways."""

# S sequence, B batch, H heads, K head width, D width, R rows of the table of distances

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from megaptm.bricks import Brick
from megaptm.layers.attention import SelfAttention
from megaptm.layers.positions import ROUNDING
from megaptm.layers.split import Dropout, Linear
from megaptm.spec import Block


def distance_rows(length: int, block: Block, *, device: torch.device | None = None) -> Tensor:
    """The row of the table for each query and key, [S, S]: that of their distance, forward ones first.

    With buckets, distances up to half of them have a row each, and farther ones share logarithmic bins.
    """
    places = torch.arange(length, device=device)
    row = places[:, None] - places[None, :]
    span = block.distance_rows // 2
    if block.distance_buckets is not None:
        exact = span // 2
        ratio = torch.log(row.abs().clamp(min=exact).double() / exact) / math.log((block.distances - 1) / exact)
        far = (torch.ceil(ratio * (exact - 1) - ROUNDING) + exact).long()
        row = torch.where(row.abs() <= exact, row, far * row.sign())
    return (row + span).clamp(0, 2 * span - 1)


class DisentangledAttention(SelfAttention):
    """Self-attention whose scores besides compare what is said with how far it is.

    The table of distances [R, D] is the stack's. Here it becomes a key and a query for each distance, by maps of its
    own, or by those of tokens.
    """

    position_key: Linear
    position_query: Linear

    def __init__(self, brick: Brick, *, dropout: float) -> None:
        super().__init__(brick, dropout=dropout)
        self.block = brick.block
        self.own_maps = "position_key" in brick.maps
        for name in ("position_key", "position_query") if self.own_maps else ():
            self.add_module(name, Linear.of(brick.maps[name]))
        self.position_dropout = Dropout(dropout, region="replicated")

    def forward(
        self,
        x_SBD: Tensor,
        mask: Tensor | None,
        position_state: Tensor | None = None,
        keys: Tensor | None = None,
        past: None = None,
        rows_SS: Tensor | None = None,
    ) -> Tensor:
        """`position_state`: the table of distances; `rows_SS`: what `distance_rows` says, where the stack has asked."""
        assert position_state is not None
        q, k, v = self._project(x_SBD, keys)
        rows_SS = distance_rows(len(q), self.block, device=q.device) if rows_SS is None else rows_SS
        scores = self._by_distance(q, k, self.position_dropout(position_state), rows_SS) * self.attend.scale
        if mask is not None:
            scores = scores.masked_fill(~mask, -math.inf)
        return self.output(self.attend(q, k, v, scores))

    def _by_distance(self, q_SBHK: Tensor, k_SBHK: Tensor, table_RD: Tensor, rows_SS: Tensor) -> Tensor:
        """Content of queries with distance, and distance with content of keys, [B, H, S, S]."""
        key_RHK, query_RHK = self._of_distances(table_RD)
        shape = (q_SBHK.shape[1], q_SBHK.shape[2], *rows_SS.shape)
        # Both at the row of query less key: the paper prints another for the second, the released code has this.
        from_query = torch.einsum("sbhk,rhk->bhsr", q_SBHK, key_RHK).gather(-1, rows_SS.expand(shape))
        from_key = torch.einsum("sbhk,rhk->bhsr", k_SBHK, query_RHK).gather(-1, rows_SS.t().expand(shape))
        return from_query + from_key.transpose(-1, -2)

    def _of_distances(self, table_RD: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and queries of distances, [R, H, K]: of the heads that are here.

        By the maps' weights, not by calling them: what is split over ranks would take the table for a sequence.
        """
        if not self.own_maps:
            qkv = F.linear(table_RD, self.qkv.weight, self.qkv.bias).unflatten(-1, (-1, 3, self.key_width))
            return qkv[:, :, 1], qkv[:, :, 0]
        key, query = (
            F.linear(table_RD, one.weight, one.bias).unflatten(-1, (-1, self.key_width))
            for one in (self.position_key, self.position_query)
        )
        return key, query
