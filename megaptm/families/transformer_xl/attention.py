"""Relative attention (Transformer-XL, arXiv:1901.02860, 3.3): scores by content and distance, over the sequence and
the recurrence cache."""

# S sequence, Q queries, M positions of the recurrence cache, K = M + S keys, B batch, H heads, D width, F features of a
# head, A = heads x F, L distances

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from megaptm.layers.attention import Attend, AttentionModule, score_scale
from megaptm.layers.costs import LayerCosts
from megaptm.layers.positions import align_distances, mask_scores, scores_by_key
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
    """Return Transformer-XL's sinusoid encodings of the distances from a query back to a key, largest first, [L, 1 or
    B, D].

    Distances go from M + S - 1 to -1, or to -S if keys are on both sides, and on to an aligned number. Sequences that
    are read backward have distances of opposite sign.
    """
    farthest_back = cached_positions + length - 1
    number = align_distances(farthest_back + 1 + (length if both_sides else 1))
    distances = farthest_back - torch.arange(number, device=device, dtype=torch.float64)[:, None]
    if farthest is not None:
        distances = distances.clamp(-farthest, farthest)
    if backward_B is not None:
        distances = distances * (1 - 2 * backward_B.double())
    exponents = torch.arange(0, width, 2, device=device, dtype=torch.float64) / width
    angles = distances[..., None] * 10_000.0**-exponents
    return torch.cat([angles.sin(), angles.cos()], -1)


class RelativeAttention(AttentionModule):
    """Relative self-attention. Rows of `qkv` are ordered (head, [q, k, v], F).

    The score of query q and key k at a distance with projection r is (q + u) k + (q + v) r.
    """

    attend: Attend
    content_bias: HeadTable
    place_bias: HeadTable

    def __init__(self, costs: LayerCosts, *, dropout: float) -> None:
        super().__init__()
        record, size = costs.attention, costs.size
        self.key_width = size.key_width
        self.qkv, self.place, self.output = (
            Linear.from_shape(costs.linears[name]) for name in ("qkv", "place", "output")
        )
        self.qkv.adds_products = self.place.adds_products = False
        self.attend = Attend(causal=False, scale=score_scale(costs), dropout=record.dropout_rate(dropout))
        if record.biases == "layer":
            for name in ("content_bias", "place_bias"):
                self.add_module(name, HeadTable(size.key_width, size.heads))

    def forward(
        self,
        x_SBD: Tensor,
        mask: Tensor,
        sines_LXD: Tensor,
        keys: Tensor | None = None,
        cached_MBD: Tensor | None = None,
        content_bias_FH: Tensor | None = None,
        position_bias_FH: Tensor | None = None,
    ) -> Tensor:
        """Return the output of Transformer-XL's relative attention, [S, B, D].

        `mask`: [B or 1, 1, S, K]. The biases are the stack's, if shared.
        """
        assert keys is None, "queries and keys are projected from the same hidden states"
        if content_bias_FH is None or position_bias_FH is None:
            content_bias_FH, position_bias_FH = self.content_bias.weight, self.place_bias.weight
        q, k, v = self.project_with_cache(x_SBD, cached_MBD)
        distances = self.project_distances(sines_LXD.to(q.dtype))
        scores = scores_by_key(score_distances(q + position_bias_FH.t(), distances), len(k))
        return self.output(self.attend(q + content_bias_FH.t(), k, v, mask_scores(scores, mask)))

    def project_with_cache(
        self, x_QBD: Tensor, cached_MBD: Tensor | None, *, length: int | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Project the input of Transformer-XL's attention and its recurrence cache: return queries [Q, B, H, F], and
        keys and values [K, B, H, F] of the cache and of the first `length` positions (None: all)."""
        q, k, v = self.qkv(x_QBD).unflatten(-1, (-1, 3, self.key_width)).unbind(3)
        k, v = k[:length], v[:length]
        if cached_MBD is not None:
            k_cached, v_cached = self._project_cache(cached_MBD)
            k, v = torch.cat([k_cached, k]), torch.cat([v_cached, v])
        return q, k, v

    def _project_cache(self, cached_MBD: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values of the recurrence cache for relative attention, [M, B, H, F].

        It uses the weights directly: each rank has the full cache, which a tensor-parallel module would treat as a part
        of the sequence.
        """
        weight = self.qkv.weight.unflatten(0, (-1, 3, self.key_width))[:, 1:].flatten(0, 2)
        bias = None if self.qkv.bias is None else self.qkv.bias.unflatten(0, (-1, 3, self.key_width))[:, 1:].flatten()
        k, v = F.linear(cached_MBD, weight, bias).unflatten(-1, (-1, 2, self.key_width)).unbind(3)
        return k, v

    def project_distances(self, sines_LXD: Tensor) -> Tensor:
        """Return the scaled key of each distance, [L, 1 or B, H, F]."""
        r_LXA = F.linear(sines_LXD, self.place.weight) * self.attend.scale
        return r_LXA.unflatten(-1, (-1, self.key_width))


def score_distances(q_QBHF: Tensor, r_LXHF: Tensor) -> Tensor:
    """Return Transformer-XL's attention scores of queries and distances, [B, H, Q, L]."""
    if r_LXHF.shape[1] == 1:
        return torch.einsum("sbhf,lhf->bhsl", q_QBHF, r_LXHF.squeeze(1))
    return torch.einsum("sbhf,lbhf->bhsl", q_QBHF, r_LXHF)
