"""Disentangled attention (DeBERTa, arXiv:2006.03654): content-to-content, content-to-position, position-to-content."""

# S sequence, B batch, H heads, K head width, A = heads x head width, D width, R rows of the distance table, L distances

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from megaptm.families.deberta.spec import DisentangledSpec
from megaptm.layers.accumulate import linear
from megaptm.layers.attention import SelfAttention
from megaptm.layers.costs import LayerCosts
from megaptm.layers.positions import ROUNDING, align_distances, mask_scores, scores_by_key
from megaptm.layers.split import Dropout, Linear


def distance_rows(length: int, record: DisentangledSpec, *, device: torch.device | None = None) -> Tensor:
    """Return the row of DeBERTa's distance table for each distance from a key to a query, [2, L], clamped to the table:
    from the largest distance down, and from the smallest up.

    With buckets, distances up to half of the buckets have rows of their own; larger distances share logarithmic bins.
    """
    falling = length - 1 - torch.arange(align_distances(2 * length - 1), device=device)
    row = torch.stack([falling, -falling])
    span = record.table_rows // 2
    if record.num_distance_buckets is not None:
        exact = span // 2
        ratio = torch.log(row.abs().clamp(min=exact).double() / exact) / math.log((record.max_distance - 1) / exact)
        far = (torch.ceil(ratio * (exact - 1) - ROUNDING) + exact).long()
        row = torch.where(row.abs() <= exact, row, far * row.sign())
    return (row + span).clamp(0, 2 * span - 1)


class DisentangledAttention(SelfAttention):
    """DeBERTa's self-attention with content-to-position and position-to-content scores.

    The stack owns the distance table [R, D]. Projections of the attention layer, or those of the tokens, give a key and
    a query for each distance.
    """

    position_key: Linear
    position_query: Linear

    def __init__(self, costs: LayerCosts, *, dropout: float) -> None:
        super().__init__(costs, dropout=dropout)
        self.record = costs.attention
        self.has_position_projections = "position_key" in costs.linears
        for name in ("position_key", "position_query") if self.has_position_projections else ():
            self.add_module(name, Linear.from_shape(costs.linears[name]))
        self.position_dropout = Dropout(dropout, masks="replicated")

    def compute_attention(
        self,
        x_SBD: Tensor,
        mask: Tensor | None,
        position_state: Tensor | None = None,
        keys: Tensor | None = None,
        cached_states: None = None,
        rows_2L: Tensor | None = None,
        blocks_BHX: Tensor | None = None,
    ) -> Tensor:
        """Return the output of disentangled attention, [S, B, H*K]. `position_state`: the distance table. `rows_2L`:
        result of `distance_rows`, if already computed."""
        assert position_state is not None
        q, k, v = self._project(x_SBD, keys)
        rows_2L = distance_rows(len(q), self.record, device=q.device) if rows_2L is None else rows_2L
        scores = self._by_distance(q, k, self.position_dropout(position_state), rows_2L)
        return self.attend(q, k, v, scores if mask is None else mask_scores(scores, mask))

    def _by_distance(self, q_SBHK: Tensor, k_SBHK: Tensor, table_RD: Tensor, rows_2L: Tensor) -> Tensor:
        """Return the scaled distance scores of disentangled attention, content-to-position plus position-to-content,
        [B, H, S, S].

        Each distance has a row of its own, so that scores by key are a view of scores by distance.
        """
        # Both terms use the row of query minus key. The paper prints key minus query for the second; the released code
        # uses this. That distance falls with the key and rises with the query.
        from_query, from_key = (
            scores_by_key(
                torch.einsum("sbhk,lhk->bhsl", x_SBHK, row_LA.unflatten(-1, (-1, self.key_width))), len(x_SBHK)
            )
            for x_SBHK, row_LA in zip((q_SBHK, k_SBHK), self._project_distances(table_RD, rows_2L), strict=True)
        )
        return from_query + from_key.transpose(-1, -2)

    def _project_distances(self, table_RD: Tensor, rows_2L: Tensor) -> tuple[Tensor, Tensor]:
        """Return scaled keys of falling distances and queries of rising ones, [L, H*K], for the heads of this rank.

        It uses the weights directly: a tensor-parallel module would treat the table as a sequence.
        """
        scale = self.attend.scale
        if not self.has_position_projections:  # the product includes values, so it has no more rows than the table
            qkv_RA = linear(table_RD, self.qkv.weight, self.qkv.bias) * scale
            query, key, _ = qkv_RA.unflatten(-1, (-1, 3, self.key_width)).unbind(2)
            return F.embedding(rows_2L[0], key.flatten(1)), F.embedding(rows_2L[1], query.flatten(1))
        falling, rising = F.embedding(rows_2L, table_RD)
        key = linear(falling, self.position_key.weight, self.position_key.bias)
        query = linear(rising, self.position_query.weight, self.position_query.bias)
        return key * scale, query * scale
