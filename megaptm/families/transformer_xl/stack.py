"""Stack of layers with relative attention: query biases, recurrence cache."""

# S sequence, B batch, D width

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from megaptm.errors import UserError
from megaptm.families.transformer_xl.attention import distance_sines
from megaptm.families.transformer_xl.spec import RelativeSpec
from megaptm.layers.mask import Mask
from megaptm.layers.recurrence_cache import StackRecurrenceCache
from megaptm.layers.split import Dropout, HeadTable
from megaptm.layers.stack import AttentionInputs, Stack, StackInputs
from megaptm.spec import AttentionSpec


class RelativeStack(Stack):
    """Stack with Transformer-XL's relative attention. Additional children: `content_bias` and
    `place_bias`, if the layers share them. The input of each layer enters its recurrence cache."""

    def add_tables(self, *, dropout: float, context: int) -> None:
        super().add_tables(dropout=dropout, context=context)
        self["place_dropout"] = Dropout(dropout, masks="replicated")
        for name in ("content_bias", "place_bias") if self._record.biases == "stack" else ():
            self[name] = HeadTable(self.size.key_width, self.size.heads)

    @property
    def _record(self) -> RelativeSpec:
        return cast(RelativeSpec, self.block.attentions[0])

    def attention_inputs(self, x: Tensor, inputs: StackInputs) -> dict[AttentionSpec, AttentionInputs]:
        attended, cache = self.sequence_mask(inputs), inputs.cache
        if cache is not None:
            attended = _with_cache(attended, inputs.mask, cache)
        own = AttentionInputs(attended, self._sinusoid_table(x.dtype, inputs), self.further_inputs(inputs))
        return dict.fromkeys(self.block.attentions, own)

    def sequence_mask(self, inputs: StackInputs) -> Tensor:
        """Return Transformer-XL's boolean attention mask of the sequence, without the recurrence cache, [B or 1, 1, Q,
        S]."""
        return inputs.mask.dense

    def further_inputs(self, inputs: StackInputs) -> tuple[Tensor | None, ...]:
        """Return the biases of the stack, which relative attention gets after the arguments of
        `Stack.run_attention`."""
        names = ("content_bias", "place_bias")
        return tuple(cast(HeadTable, self[name]).weight if name in self else None for name in names)

    def cached_positions(self, length: int) -> int:
        """Return how many positions of a sequence enter Transformer-XL's recurrence cache, from its start."""
        return length

    def run_layer(self, number: int, x: Tensor, inputs: StackInputs, attention: AttentionInputs) -> Tensor:
        cache = inputs.cache
        if cache is None:
            return self.run_attention(number, x, inputs, attention)
        with torch.no_grad():
            cached = self.gather_sequence(x.detach())[: self.cached_positions(inputs.mask.length[0])]
        cache.current_states[number] = cached
        return self.run_attention(number, x, inputs, attention, cached_states=cache.states[number])

    def _sinusoid_table(self, dtype: torch.dtype, inputs: StackInputs) -> Tensor:
        mask, cache = inputs.mask, inputs.cache
        sines = distance_sines(
            mask.length[0],
            cache.length if cache else 0,
            width=self.size.width,
            both_sides=not self.block.causal,
            farthest=cache.farthest if cache else None,
            backward_B=inputs.fields.get("backward"),
            device=mask.device,
        )
        dropped: Tensor = self["place_dropout"](sines.to(dtype))
        return dropped


def _with_cache(attended: Tensor, mask: Mask, cache: StackRecurrenceCache) -> Tensor:
    """Return the attention mask with the recurrence cache, [B, 1, Q, M + S]. Only its last positions may be filled."""
    if mask.documents is not None:
        raise UserError(
            "a recurrence cache (model.memory) cannot be used with document masks: set "
            "data.document_mask=false, or model.memory=0."
        )
    there = torch.arange(cache.length, device=mask.device) >= cache.length - cache.filled[:, None]
    there = there[:, None, None, :].expand(-1, 1, attended.shape[2], -1)
    if cache.same_length:
        # Each query attends to as many positions as the cache holds, its own included.
        ages = torch.arange(mask.length[0], device=mask.device)[:, None] + cache.length
        there = there & (ages - torch.arange(cache.length, device=mask.device) < cache.length)
        attended = attended.tril().triu(1 - cache.length)
    return torch.cat([there, attended.expand(len(there), -1, -1, -1)], 3)
