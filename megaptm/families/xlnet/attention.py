"""Two-stream attention (XLNet, arXiv:1906.08237, 2.3 and 2.5): relative attention of a content stream and a query
stream, with scores by segment."""

# S sequence, A target positions, Q = S + A queries, M positions of the recurrence cache, K = M + S keys, B batch, H
# heads, D width, F features of a head, L distances

from __future__ import annotations

import math

import torch
from torch import Tensor

from megaptm.families.transformer_xl.attention import RelativeAttention, shift_scores
from megaptm.families.xlnet.spec import QueryInput
from megaptm.layers.costs import LayerCosts
from megaptm.layers.split import Embedding, HeadTable
from megaptm.spec import ModelSpec


class QueryTable(Embedding):
    """Input embedding of XLNet's query stream. All queries start equal; only positions distinguish them."""

    def __init__(self, spec: ModelSpec, record: QueryInput) -> None:
        super().__init__(record.rows, spec.size.table_width)

    def forward(self, targets_BA: Tensor) -> Tensor:
        """Return the embeddings of XLNet's query stream, [A, B, D]."""
        return super().forward(torch.zeros_like(targets_BA.t()))


class TwoStreamAttention(RelativeAttention):
    """Relative self-attention of XLNet's two streams. Queries of the query stream, at the end, have no keys.

    To the score of query q and key k, (q + s) e is added, where e is one of two vectors: same segment or different
    segment.
    """

    segment_bias: HeadTable
    segment_table: HeadTable

    def __init__(self, costs: LayerCosts, *, dropout: float) -> None:
        super().__init__(costs, dropout=dropout)
        self.segment_bias = HeadTable(self.key_width, costs.size.heads)
        self.segment_table = HeadTable(2 * self.key_width, costs.size.heads)

    def forward(  # type: ignore[override]
        self,
        x_QBD: Tensor,
        mask: Tensor,
        sines_LXD: Tensor,
        keys: Tensor | None = None,
        cached_MBD: Tensor | None = None,
        content_bias_FH: Tensor | None = None,
        position_bias_FH: Tensor | None = None,
        other_segment_BQK: Tensor | None = None,
        targets_BA: Tensor | None = None,
    ) -> Tensor:
        """Return the output of two-stream attention, [Q, B, D].

        `mask`: [B or 1, 1, Q, K]. The biases are the stack's, if shared. `other_segment_BQK`: whether query and key are
        in different segments. `targets_BA`: positions of the query stream.
        """
        assert keys is None, "queries and keys are projected from the same hidden states"
        if content_bias_FH is None or position_bias_FH is None:
            content_bias_FH, position_bias_FH = self.content_bias.weight, self.place_bias.weight
        length = None if targets_BA is None else mask.shape[2] - targets_BA.shape[1]
        q, k, v = self.project_with_cache(x_QBD, cached_MBD, length=length)
        of_distances = self.by_distance(q + position_bias_FH.t(), sines_LXD)
        scores = (
            shift_scores(of_distances, len(k))
            if targets_BA is None
            else _scores_at_distances(of_distances, len(k), targets_BA)
        )
        if other_segment_BQK is not None:
            scores = scores + self._by_segment(q, other_segment_BQK)
        scores = scores * self.attend.scale
        # The first query of an order may have no key; its softmax would be NaN.
        blind = ~mask.any(-1, keepdim=True) if targets_BA is not None else None
        scores = scores.masked_fill(~mask if blind is None else ~(mask | blind), -math.inf)
        mixed_QBA = self.attend(q + content_bias_FH.t(), k, v, scores)
        if blind is not None:
            mixed_QBA = mixed_QBA.masked_fill(blind[:, 0].transpose(0, 1), 0.0)
        return self.output(mixed_QBA)

    def _by_segment(self, q_QBHF: Tensor, other_segment_BQK: Tensor) -> Tensor:
        """Return XLNet's attention scores by segment, [B, H, Q, K]."""
        table_2FH = self.segment_table.weight.unflatten(0, (2, self.key_width))
        same_or_not = torch.einsum("sbhf,tfh->bhst", q_QBHF + self.segment_bias.weight.t(), table_2FH)
        same, other = same_or_not.unsqueeze(-1).unbind(3)
        return torch.where(other_segment_BQK[:, None], other, same)


def _scores_at_distances(of_distances_BHQL: Tensor, keys: int, targets_BA: Tensor) -> Tensor:
    """Return XLNet's scores of both streams by distance, [B, H, Q, K], from scores of queries and distances."""
    num_targets = targets_BA.shape[1]
    of_text, of_targets = of_distances_BHQL.split([of_distances_BHQL.shape[2] - num_targets, num_targets], 2)
    # The distance grows by one for each position that the query is earlier.
    first_B1A1 = (of_text.shape[2] - 1 - targets_BA)[:, None, :, None]
    rows = first_B1A1 + torch.arange(keys, device=targets_BA.device)
    at_targets = of_targets.gather(-1, rows.expand(-1, of_targets.shape[1], -1, -1))
    return torch.cat([shift_scores(of_text, keys), at_targets], 2)
