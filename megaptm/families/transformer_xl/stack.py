"""Stack of layers with relative attention (Transformer-XL, XLNet): query biases, recurrence cache."""

# S sequence, B batch, D width

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from megaptm.families.transformer_xl.attention import distance_sines
from megaptm.families.transformer_xl.spec import RelativeSpec
from megaptm.layers.layer import AttentionInputs, Stack, StackInputs
from megaptm.layers.split import Dropout, HeadTable
from megaptm.spec import AttentionSpec


class RelativeStack(Stack):
    """Children besides those of `Stack`: `content_bias` and `place_bias`, if the layers share them. The input of each
    layer enters its recurrence cache."""

    def add_tables(self, *, dropout: float, context: int) -> None:
        super().add_tables(dropout=dropout, context=context)
        self["place_dropout"] = Dropout(dropout, region="replicated")
        for name in ("content_bias", "place_bias") if self._record.biases == "stack" else ():
            self[name] = HeadTable(self.size.key_width, self.size.heads)

    @property
    def _record(self) -> RelativeSpec:
        return cast(RelativeSpec, self.block.attentions[0])

    def attention_inputs(self, x: Tensor, inputs: StackInputs) -> dict[AttentionSpec, AttentionInputs]:
        mask, cache = inputs.mask, inputs.mask.cache
        sines = distance_sines(
            mask.length[0],
            cache.length if cache else 0,
            width=self.size.width,
            both_sides=not self.block.causal,
            farthest=cache.farthest if cache else None,
            backward_B=mask.backward,
            device=mask.device,
        )
        sines = self["place_dropout"](sines.to(x.dtype))
        names = ("content_bias", "place_bias")
        biases = [cast(HeadTable, self[name]).weight if name in self else None for name in names]
        own = AttentionInputs(mask.dense, sines, (*biases, mask.in_other_segment, mask.target_positions))
        return dict.fromkeys(self.block.attentions, own)

    def run_at(self, number: int, x: Tensor, inputs: StackInputs, attention: AttentionInputs) -> Tensor:
        cache = inputs.mask.cache
        if cache is None:
            return self.run_attention(number, x, inputs, attention)
        length = inputs.mask.length[0]
        with torch.no_grad():
            cached = self.gather_sequence(x.detach())[: length // 2 if self._record.cached == "half" else length]
        cache.current_states[number] = cached
        return self.run_attention(number, x, inputs, attention, cached_states=cache.states[number])
