"""Relative attention (Transformer-XL, arXiv:1901.02860, 3.3; XLNet, arXiv:1906.08237): scores by content and distance,
over the sequence and the recurrence cache."""

# S sequence, A target positions, Q = S + A queries, M positions of the recurrence cache, K = M + S keys, B batch, H
# heads, D width, F features of a head, L distances

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from megaptm.layers.attention import Attend, AttentionModule, score_scale
from megaptm.layers.costs import LayerCosts
from megaptm.layers.split import HeadTable, Linear


def distance_sines(
    length: int,
    cached_positions: int,
    *,
    width: int,
    both_sides: bool,
    farthest: int | None = None,
    backward_B: Tensor | None = None,
    device: torch.device | None = None,
) -> Tensor:
    """Return the sinusoid encodings of the distances from a query back to a key, largest first, [L, 1 or B, D].

    Distances go from M + S - 1 to -1, or to -S if keys are on both sides. Sequences that are read backward have
    distances of opposite sign.
    """
    num_after = length if both_sides else 1
    distances = torch.arange(cached_positions + length - 1, -num_after - 1, -1, device=device, dtype=torch.float64)[
        :, None
    ]
    if farthest is not None:
        distances = distances.clamp(-farthest, farthest)
    if backward_B is not None:
        distances = distances * (1 - 2 * backward_B.double())
    exponents = torch.arange(0, width, 2, device=device, dtype=torch.float64) / width
    angles = distances[..., None] * 10_000.0**-exponents
    return torch.cat([angles.sin(), angles.cos()], -1)


class RelativeAttention(AttentionModule):
    """Relative self-attention. Rows of `qkv` are ordered (head, [q, k, v], F). Queries of the query stream, at the end,
    have no keys.

    The score of query q and key k at a distance with projection r is (q + u) k + (q + v) r. With segments (q + s) e is
    added, where e is one of two vectors: same segment or different segment.
    """

    attend: Attend
    content_bias: HeadTable
    place_bias: HeadTable
    segment_bias: HeadTable
    segment_table: HeadTable

    def __init__(self, costs: LayerCosts, *, dropout: float) -> None:
        super().__init__()
        record, size = costs.attention, costs.size
        self.key_width = size.key_width
        self.qkv, self.place, self.output = (Linear.of(costs.linears[name]) for name in ("qkv", "place", "output"))
        self.attend = Attend(causal=False, scale=score_scale(costs), dropout=record.dropout_rate(dropout))
        if record.biases == "layer":
            for name in ("content_bias", "place_bias"):
                self.add_module(name, HeadTable(size.key_width, size.heads))
        if record.segments:
            self.segment_bias = HeadTable(size.key_width, size.heads)
            self.segment_table = HeadTable(2 * size.key_width, size.heads)

    def forward(
        self,
        x_QBD: Tensor,
        mask: Tensor,
        sines_LXD: Tensor,
        keys: Tensor | None = None,
        cached_MBD: Tensor | None = None,
        content_bias_FH: Tensor | None = None,
        position_bias_FH: Tensor | None = None,
        apart_BQK: Tensor | None = None,
        targets_BA: Tensor | None = None,
    ) -> Tensor:
        """Return the output of relative attention, [Q, B, D].

        `mask`: [B or 1, 1, Q, K]. The biases are the stack's, if shared. `apart`: keys of another segment. `targets`:
        positions of the query stream.
        """
        assert keys is None, "queries and keys are projected from the same hidden states"
        if content_bias_FH is None or position_bias_FH is None:
            content_bias_FH, position_bias_FH = self.content_bias.weight, self.place_bias.weight
        q, k, v = self.qkv(x_QBD).unflatten(-1, (-1, 3, self.key_width)).unbind(3)
        if targets_BA is not None:
            text = len(q) - targets_BA.shape[1]
            k, v = k[:text], v[:text]
        if cached_MBD is not None:
            k_cached, v_cached = self._project_cache(cached_MBD)
            k, v = torch.cat([k_cached, k]), torch.cat([v_cached, v])
        scores = self._by_distance(q + position_bias_FH.t(), sines_LXD, len(k), targets_BA)
        if apart_BQK is not None:
            scores = scores + self._by_segment(q, apart_BQK)
        scores = scores * self.attend.scale
        # The first query of an order may have no key; its softmax would be NaN.
        blind = ~mask.any(-1, keepdim=True) if targets_BA is not None else None
        scores = scores.masked_fill(~mask if blind is None else ~(mask | blind), -math.inf)
        mixed_QBA = self.attend(q + content_bias_FH.t(), k, v, scores)
        if blind is not None:
            mixed_QBA = mixed_QBA.masked_fill(blind[:, 0].transpose(0, 1), 0.0)
        return self.output(mixed_QBA)

    def _project_cache(self, cached_MBD: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values of the recurrence cache for relative attention, [M, B, H, F].

        It uses the weights directly: each rank has the full cache, which a tensor-parallel module would treat as a part
        of the sequence.
        """
        weight = self.qkv.weight.unflatten(0, (-1, 3, self.key_width))[:, 1:].flatten(0, 2)
        bias = None if self.qkv.bias is None else self.qkv.bias.unflatten(0, (-1, 3, self.key_width))[:, 1:].flatten()
        k, v = F.linear(cached_MBD, weight, bias).unflatten(-1, (-1, 2, self.key_width)).unbind(3)
        return k, v

    def _by_distance(self, q_QBHF: Tensor, sines_LXD: Tensor, keys: int, targets_BA: Tensor | None) -> Tensor:
        """Return the scores of relative attention by distance, [B, H, Q, K]."""
        r_LXHF = F.linear(sines_LXD.to(q_QBHF.dtype), self.place.weight).unflatten(-1, (-1, self.key_width))
        if r_LXHF.shape[1] == 1:
            of_distances = torch.einsum("sbhf,lhf->bhsl", q_QBHF, r_LXHF[:, 0])
        else:
            of_distances = torch.einsum("sbhf,lbhf->bhsl", q_QBHF, r_LXHF)
        if targets_BA is None:
            return shifted(of_distances, keys)
        of_text, of_targets = of_distances.split([len(q_QBHF) - targets_BA.shape[1], targets_BA.shape[1]], 2)
        # The distance grows by one for each position that the query is earlier.
        first_B1A1 = (of_text.shape[2] - 1 - targets_BA)[:, None, :, None]
        rows = first_B1A1 + torch.arange(keys, device=q_QBHF.device)
        at_targets = of_targets.gather(-1, rows.expand(-1, of_targets.shape[1], -1, -1))
        return torch.cat([shifted(of_text, keys), at_targets], 2)

    def _by_segment(self, q_QBHF: Tensor, apart_BQK: Tensor) -> Tensor:
        """Return the scores of relative attention by segment, [B, H, Q, K]."""
        table_2FH = self.segment_table.weight.unflatten(0, (2, self.key_width))
        same_or_not = torch.einsum("sbhf,tfh->bhst", q_QBHF + self.segment_bias.weight.t(), table_2FH)
        same, other = same_or_not.unsqueeze(-1).unbind(3)
        return torch.where(apart_BQK[:, None], other, same)


def shifted(of_distances_BHSL: Tensor, keys: int) -> Tensor:
    """Shift relative attention scores: return [B, H, S, K] from scores by distance, largest first; each query's row
    starts one later than the next query's.

    The result is a view: reading rows with a stride that is one shorter than stored shifts each row by one position.
    """
    length, distances = of_distances_BHSL.shape[2:]
    flat = of_distances_BHSL.flatten(2)[:, :, length - 1 : length - 1 + length * (distances - 1)]
    return flat.unflatten(2, (length, distances - 1))[..., :keys]
