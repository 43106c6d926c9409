"""Stack of layers with two-stream attention: masks of content stream and query stream, segments."""

# S sequence, A target positions, Q = S + A queries, M positions of the recurrence cache, K = M + S keys, B batch

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from megaptm.errors import UserError
from megaptm.families.transformer_xl.stack import RelativeStack
from megaptm.layers.mask import Mask
from megaptm.layers.stack import AttentionInputs, StackInputs
from megaptm.spec import AttentionSpec


class TwoStreamStack(RelativeStack):
    """Stack of XLNet: a content stream, and a query stream if the batch has target positions. The first half of a
    sequence enters the recurrence cache."""

    def sequence_mask(self, inputs: StackInputs) -> Tensor:
        targets_BA = inputs.fields.get("masked_positions")
        return inputs.mask.dense if targets_BA is None else two_stream_mask(inputs.mask, targets_BA)

    def attention_inputs(self, x: Tensor, inputs: StackInputs) -> dict[AttentionSpec, AttentionInputs]:
        every, targets_BA = super().attention_inputs(x, inputs), inputs.fields.get("masked_positions")
        own = next(iter(every.values()))
        own = replace(own, further=(*own.further, _in_other_segment(inputs, x.dtype)))
        if targets_BA is not None and own.mask is not None:
            # The first query of an order may have no key; its softmax would be NaN.
            blind = ~own.mask.any(-1, keepdim=True)
            starts = inputs.mask.length[0] - 1 - targets_BA
            own = AttentionInputs(own.mask | blind, own.position_state, (*own.further, blind, starts))
        return dict.fromkeys(every, own)

    def cached_positions(self, length: int) -> int:
        return length // 2


def two_stream_mask(mask: Mask, targets_BA: Tensor) -> Tensor:
    """Return the attention mask of XLNet's two streams, [B, 1, Q, S]."""
    of_queries = _mask_of_queries(mask, targets_BA)
    return torch.cat([mask.dense.expand(len(of_queries), -1, -1, -1), of_queries], 2)


def _mask_of_queries(mask: Mask, targets_BA: Tensor) -> Tensor:
    """Return the attention mask of XLNet's query stream, [B, 1, A, S]."""
    if mask.order is None:
        raise UserError(
            "The batch has no `order`, which queries at target positions need: use an objective that provides it."
        )
    attended = mask.order[:, None, None, :] < mask.order.gather(1, targets_BA)[:, None, :, None]
    if mask.documents is None:
        return attended
    query, key = mask.documents[0].gather(1, targets_BA)[:, None, :, None], mask.documents[1][:, None, None, :]
    return attended & ((query == key) | (query == 0))


def _in_other_segment(inputs: StackInputs, dtype: torch.dtype) -> Tensor | None:
    """Return 1 for keys that are in another segment than the query, else 0, [B, Q, K], for XLNet's scores by segment.
    The recurrence cache is in segment 0."""
    segments_BS, targets_BA = inputs.fields.get("segments"), inputs.fields.get("masked_positions")
    if segments_BS is None:
        return None
    queries = keys = segments_BS
    if targets_BA is not None:
        queries = torch.cat([queries, queries.gather(1, targets_BA)], 1)
    if inputs.cache is not None:
        keys = torch.cat([keys.new_zeros(len(keys), inputs.cache.length), keys], 1)
    return (queries[:, :, None] != keys[:, None, :]).to(dtype)
