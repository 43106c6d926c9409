"""Replaced-token detection around two Hugging Face models, which has no class that trains both: ELECTRA, and DeBERTa-v3
with gradient-disentangled embeddings."""

# B samples, S positions

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, embedding

from megaptm.batch import IGNORED
from megaptm.hub.huggingface import hugging_face_config
from megaptm.hub.stacks import split_stack
from megaptm.spec import ModelSpec, Size, change


def proportions(published: Size, size: Size) -> dict[str, Size]:
    """Return the sizes of the other stacks, scaled relative to `size` as in a published size."""

    def part(of: int, total: int, value: int) -> int:
        return max(1, value * of // total)

    return {
        stack: change(
            size,
            layers=part(stack_size.layers, published.layers, size.layers),
            width=part(stack_size.width, published.width, size.width),
            heads=part(stack_size.heads, published.heads, size.heads),
            ffn=part(stack_size.ffn, published.ffn, size.ffn),
        )
        for stack, stack_size in published.stacks.items()
    }


class Losses(NamedTuple):
    loss: Tensor
    """Sum of both losses."""


class ReplacedTokenModels(nn.Module):
    """Generator that predicts masked tokens, and discriminator that classifies each token of its samples; both share
    one embedding table."""

    def __init__(self, spec: ModelSpec) -> None:
        from transformers import DebertaV2ForMaskedLM, DebertaV2Model, ElectraForMaskedLM, ElectraForPreTraining

        super().__init__()
        generator, discriminator = (
            hugging_face_config(split_stack(spec, {}, stack)[0]) for stack in spec.family.stacks
        )
        for config in (generator, discriminator):
            config.use_cache = False
        self.differs = bool(spec.family.own_tables)
        self.generator: Any
        self.discriminator: Any
        if self.differs:
            self.generator = DebertaV2ForMaskedLM._from_config(generator)
            self.discriminator = DebertaV2Model._from_config(discriminator)
            width = discriminator.hidden_size
            self.judge = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, 1))
            nn.init.zeros_(self.discriminator.embeddings.word_embeddings.weight)
        else:
            self.generator = ElectraForMaskedLM._from_config(generator)
            self.discriminator = ElectraForPreTraining._from_config(discriminator)
            self.generator.electra.embeddings = self.discriminator.electra.embeddings
            self.generator.generator_lm_head.weight = self.discriminator.electra.embeddings.word_embeddings.weight

    def forward(self, input_ids: Tensor, labels: Tensor, **inputs: Tensor) -> Losses:
        """`labels` [B, S]: ids of masked tokens; `inputs` [B, S]: segments and attention mask, with Hugging Face's
        names."""
        output = self.generator(input_ids=input_ids, labels=labels, **inputs)
        targets = labels != IGNORED
        with torch.no_grad():
            sampled_ids = torch.multinomial(output.logits[targets].float().softmax(-1), 1)[:, 0]
            shown = input_ids.masked_scatter(targets, sampled_ids)
            replaced = targets & (shown != labels)
        if self.differs:
            tables = (self.generator.deberta.embeddings, self.discriminator.embeddings)
            common, own = (table.word_embeddings.weight for table in tables)
            vectors = embedding(shown, common.detach()) + embedding(shown, own)
            logits = self.judge(self.discriminator(inputs_embeds=vectors, **inputs)[0])[..., 0]
        else:
            logits = self.discriminator(input_ids=shown, **inputs).logits
        real = inputs.get("attention_mask", torch.ones_like(input_ids)) > 0
        return Losses(output.loss + binary_cross_entropy_with_logits(logits[real].float(), replaced[real].float()))
