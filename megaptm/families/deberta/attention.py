"""Disentangled attention (DeBERTa, arXiv:2006.03654): content-to-content, content-to-position, position-to-content."""

# S sequence, B batch, H heads, K head width, D width, R rows of the distance table

from __future__ import annotations

import math

import torch
from torch import Tensor

from megaptm.families.deberta.spec import DisentangledSpec
from megaptm.layers.accumulate import linear
from megaptm.layers.attention import SelfAttention
from megaptm.layers.costs import LayerCosts
from megaptm.layers.positions import ROUNDING
from megaptm.layers.split import Dropout, Linear


def distance_rows(length: int, record: DisentangledSpec, *, device: torch.device | None = None) -> Tensor:
    """Return the row of DeBERTa's distance table for each query and key, [S, S], clamped to the table.

    With buckets, distances up to half of the buckets have rows of their own; larger distances share logarithmic bins.
    """
    positions = torch.arange(length, device=device)
    row = positions[:, None] - positions[None, :]
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
            self.add_module(name, Linear.of(costs.linears[name]))
        self.position_dropout = Dropout(dropout, masks="replicated")

    def compute_attention(
        self,
        x_SBD: Tensor,
        mask: Tensor | None,
        position_state: Tensor | None = None,
        keys: Tensor | None = None,
        cached_states: None = None,
        rows_SS: Tensor | None = None,
        blocks_BHX: Tensor | None = None,
    ) -> Tensor:
        """Return the output of disentangled attention, [S, B, H*K]. `position_state`: the distance table. `rows_SS`:
        result of `distance_rows`, if already computed."""
        assert position_state is not None
        q, k, v = self._project(x_SBD, keys)
        rows_SS = distance_rows(len(q), self.record, device=q.device) if rows_SS is None else rows_SS
        scores = self._by_distance(q, k, self.position_dropout(position_state), rows_SS) * self.attend.scale
        if mask is not None:
            scores = scores.masked_fill(~mask, -math.inf)
        return self.attend(q, k, v, scores)

    def _by_distance(self, q_SBHK: Tensor, k_SBHK: Tensor, table_RD: Tensor, rows_SS: Tensor) -> Tensor:
        """Return the distance scores of disentangled attention, content-to-position plus position-to-content, [B, H, S,
        S]."""
        key_RHK, query_RHK = self._project_distances(table_RD)
        shape = (q_SBHK.shape[1], q_SBHK.shape[2], *rows_SS.shape)
        # Both terms use the row of query minus key. The paper prints key minus query for the second; the released code
        # uses this.
        from_query = torch.einsum("sbhk,rhk->bhsr", q_SBHK, key_RHK).gather(-1, rows_SS.expand(shape))
        from_key = torch.einsum("sbhk,rhk->bhsr", k_SBHK, query_RHK).gather(-1, rows_SS.t().expand(shape))
        return from_query + from_key.transpose(-1, -2)

    def _project_distances(self, table_RD: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and queries of distances in disentangled attention, [R, H, K], for the heads of this rank.

        It uses the weights directly: a tensor-parallel module would treat the table as a sequence.
        """
        if not self.has_position_projections:
            qkv = linear(table_RD, self.qkv.weight, self.qkv.bias).unflatten(-1, (-1, 3, self.key_width))
            return qkv[:, :, 1], qkv[:, :, 0]
        key, query = (
            linear(table_RD, module.weight, module.bias).unflatten(-1, (-1, self.key_width))
            for module in (self.position_key, self.position_query)
        )
        return key, query
