"""Two-stream attention (XLNet, arXiv:1906.08237, 2.3 and 2.5): relative attention of a content stream and a query
stream, with scores by segment."""

# S sequence, A target positions, Q = S + A queries, M positions of the recurrence cache, K = M + S keys, B batch, H
# heads, D width, F features of a head, L distances

from __future__ import annotations

import torch
from torch import Tensor

from megaptm.families.transformer_xl.attention import RelativeAttention, score_distances
from megaptm.families.xlnet.spec import QueryInput
from megaptm.layers.costs import LayerCosts
from megaptm.layers.positions import mask_scores, scores_by_key
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
        blind_B1Q1: Tensor | None = None,
        starts_BA: Tensor | None = None,
    ) -> Tensor:
        """Return the output of two-stream attention, [Q, B, D].

        `mask`: [B or 1, 1, Q, K]. The biases are the stack's, if shared. `other_segment_BQK`: 1 if query and key are in
        different segments, else 0. With a query stream also `blind_B1Q1`: queries that attend to no key, whose mask is
        all True; `starts_BA`: index of the distance of the query stream's positions to the first key.
        """
        assert keys is None, "queries and keys are projected from the same hidden states"
        if content_bias_FH is None or position_bias_FH is None:
            content_bias_FH, position_bias_FH = self.content_bias.weight, self.place_bias.weight
        length = None if starts_BA is None else mask.shape[2] - starts_BA.shape[1]
        q, k, v = self.project_with_cache(x_QBD, cached_MBD, length=length)
        distances = self.project_distances(sines_LXD.to(q.dtype))
        scores = _score_keys(q + position_bias_FH.t(), distances, len(k), starts_BA)
        if other_segment_BQK is not None:
            scores = torch.addcmul(scores, other_segment_BQK[:, None], self._segment_scores(q))
        mixed_QBA = self.attend(q + content_bias_FH.t(), k, v, mask_scores(scores, mask))
        if blind_B1Q1 is not None:
            mixed_QBA = mixed_QBA.masked_fill(blind_B1Q1[:, 0].transpose(0, 1), 0.0)
        return self.output(mixed_QBA)

    def _segment_scores(self, q_QBHF: Tensor) -> Tensor:
        """Return XLNet's scaled score of each query for keys in a different segment minus that for keys in the same
        segment, [B, H, Q, 1]. A term that all keys of a query share does not change the attention weights."""
        same_FH, other_FH = self.segment_table.weight.chunk(2)
        difference_FH = (other_FH - same_FH) * self.attend.scale
        return torch.einsum("sbhf,fh->bhs", q_QBHF + self.segment_bias.weight.t(), difference_FH)[..., None]


def _score_keys(q_QBHF: Tensor, r_LXHF: Tensor, keys: int, starts_BA: Tensor | None) -> Tensor:
    """Return XLNet's scores of queries and keys by distance, [B, H, Q, K], of both streams if there are starts of the
    query stream."""
    if starts_BA is None:
        return scores_by_key(score_distances(q_QBHF, r_LXHF), keys)
    # One product for each stream: the gradient of the parts of one product would be joined in a copy.
    num_targets = starts_BA.shape[1]
    of_text, of_targets = (score_distances(q, r_LXHF) for q in q_QBHF.split([len(q_QBHF) - num_targets, num_targets]))
    distances_B1AK = starts_BA[:, None, :, None] + torch.arange(keys, device=starts_BA.device)
    at_targets = of_targets.gather(-1, distances_B1AK.expand(-1, of_targets.shape[1], -1, -1))
    return torch.cat([scores_by_key(of_text, keys), at_targets], 2)
