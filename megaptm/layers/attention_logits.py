"""Largest attention logit, computed apart from the attention kernel, because fused kernels do not return logits.

A growing maximum may precede divergence (arXiv:2302.05442); QK-clip limits it (arXiv:2507.20534, 2.1).
"""

# S sequence, B batch, H heads, G heads of keys, K head width, M positions of keys

from __future__ import annotations

import torch
from torch import Tensor

from megaptm.layers.attention_costs import MAX_LOGITS
from megaptm.layers.kernels import repeat_for_heads
from megaptm.layers.mask import Mask


def max_logit(q_SBHK: Tensor, k_MBGK: Tensor, mask: Mask, *, scale: float, max_logits: int = MAX_LOGITS) -> Tensor:
    """Return the largest scaled product of a query and a key that the mask allows, a float32 scalar.

    Queries of padding do not count. Biases on the scores and soft caps are not applied.
    """
    length, batch, heads, _ = q_SBHK.shape
    q_BHSK = q_SBHK.permute(1, 2, 0, 3).float() * scale
    k_BHKM = repeat_for_heads(k_MBGK, heads).permute(1, 2, 3, 0).float()
    largest = q_BHSK.new_full((), -torch.inf)
    rows = max(1, max_logits // (batch * heads * len(k_MBGK)))
    for start in range(0, length, rows):
        queries = slice(start, start + rows)
        logits_BHQM = q_BHSK[:, :, queries] @ k_BHKM
        allowed = mask.dense_rows(queries)
        if mask.documents is not None:
            document_BS = mask.documents[0] if mask.queries is None else mask.documents[0][:, mask.queries]
            allowed = allowed & (document_BS[:, None, queries, None] != 0)
        largest = torch.maximum(largest, logits_BHQM.masked_fill_(~allowed, -torch.inf).amax())
    return largest
