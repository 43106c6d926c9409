"""Stack of layers with disentangled attention (DeBERTa): distance table, convolution, enhanced mask decoder."""

# S sequence, B batch, D width, R rows of the distance table

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from megaptm.families.deberta.attention import distance_rows
from megaptm.families.deberta.convolution import Convolution
from megaptm.families.deberta.spec import DisentangledSpec
from megaptm.layers.norm import Norm
from megaptm.layers.split import Embedding
from megaptm.layers.stack import AttentionInputs, Stack, StackInputs
from megaptm.spec import AttentionSpec


class DisentangledStack(Stack):
    """Stack with DeBERTa's disentangled attention. Additional children: `distance_table` and
    `distance_norm` (shared by the stack), `convolution` (next to the first layer) and `place_table` (mask decoder)."""

    decodes: bool = False
    """Whether this chunk of the stack has DeBERTa's mask decoder."""

    def add_tables(self, *, dropout: float, context: int) -> None:
        super().add_tables(dropout=dropout, context=context)
        records = [record for record in self.block.attentions if isinstance(record, DisentangledSpec)]
        self["distance_table"] = Embedding(records[0].table_rows, self.size.width)
        if any(record.norm for record in records):
            self["distance_norm"] = Norm(self.size.width, self.block.norm)
        if records[0].convolution and 0 in self.layer_numbers:
            self["convolution"] = Convolution(self.block, self.size.width, dropout=dropout)
        self.decodes = records[0].mask_decoder and self.size.layers - 1 in self.layer_numbers
        if self.decodes:
            self["place_table"] = Embedding(context, self.size.width)

    def attention_inputs(self, x: Tensor, inputs: StackInputs) -> dict[AttentionSpec, AttentionInputs]:
        mask, table = inputs.mask, self._distance_table()
        # Rows are computed once for all layers: it takes about fifteen operations. Scores of distances replace the
        # causal fast path, so the mask must include causality.
        return super().attention_inputs(x, inputs) | {
            record: AttentionInputs(
                mask.dense if mask.causal else mask.for_kernel(None),
                table,
                (distance_rows(mask.length[0], record, device=mask.device),),
            )
            for record in self.block.attentions
            if isinstance(record, DisentangledSpec)
        }

    def run_layer(self, number: int, x: Tensor, inputs: StackInputs, attention: AttentionInputs) -> Tensor:
        if self.decodes and inputs.decode and number == self.size.layers - 1:
            output = x + self._decoder_positions(inputs)
            for _ in range(2):
                output = self.run_attention(number, output, inputs, attention, keys=x)
        else:
            output = self.run_attention(number, x, inputs, attention)
        if number == 0 and "convolution" in self:
            documents = inputs.mask.documents
            convolution = cast(Convolution, self["convolution"])
            output = convolution(x, output, None if documents is None else documents[0])
        return output

    def _distance_table(self) -> Tensor | None:
        """Return the distance table of the stack, [R, D]. None in a chunk without layers."""
        if "distance_table" not in self:
            return None
        table = cast(Embedding, self["distance_table"]).weight
        return self.copy_to_tensor_ranks(self["distance_norm"](table) if "distance_norm" in self else table)

    def _decoder_positions(self, inputs: StackInputs) -> Tensor:
        """Return the position embeddings of a mask decoder, [S, B or 1, D]."""
        positions = inputs.positions
        if positions is None:
            positions = torch.arange(inputs.mask.length[0], device=inputs.mask.device)[None]
        embedded: Tensor = self["place_table"](self.scatter_sequence(positions.t()))
        return embedded
