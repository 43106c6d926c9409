"""Stack of layers with relative attention (Transformer-XL, XLNet): query biases, recurrence cache."""

# S sequence, B batch, D width

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from megaptm.families.transformer_xl.attention import distance_sines
from megaptm.families.transformer_xl.spec import RelativeSpec
from megaptm.layers.layer import Stack
from megaptm.layers.mask import Mask
from megaptm.layers.split import Dropout, HeadTable


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

    def forward(
        self,
        x: Tensor,
        mask: Mask,
        memory: Tensor | None = None,
        memory_mask: Mask | None = None,
        positions: Tensor | None = None,
        outputs: dict[int, Tensor] | None = None,
        decode: bool = True,
    ) -> Tensor:
        stack_cache = mask.cache
        sines = distance_sines(
            mask.length[0],
            stack_cache.length if stack_cache else 0,
            width=self.size.width,
            both_sides=not self.block.causal,
            farthest=stack_cache.farthest if stack_cache else None,
            backward_B=mask.backward,
            device=mask.device,
        )
        sines = self["place_dropout"](sines.to(x.dtype))
        names = ("content_bias", "place_bias")
        biases = [cast(HeadTable, self[name]).weight if name in self else None for name in names]
        num_cached = mask.length[0] // 2 if self._record.cached == "half" else mask.length[0]
        for number in self.numbers:
            before = None
            if stack_cache is not None:
                before = stack_cache.states[number]
                with torch.no_grad():
                    stack_cache.current_states[number] = self.gather_sequence(x.detach())[:num_cached]
            x = self.run_layer(
                self[str(number)],
                x,
                mask.dense,
                None,
                None,
                sines,
                None,
                before,
                *biases,
                mask.apart,
                mask.target_positions,
            )
            if outputs is not None and number in self.read:
                outputs[number] = x
        return self["final"](x) if "final" in self else x
