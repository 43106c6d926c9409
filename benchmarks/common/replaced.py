"""Detection of replaced tokens as it is written around two models of Hugging Face's, which has no class that trains
both: ELECTRA's, and DeBERTa-v3's with its gradient-disentangled tables."""

# B rows, S places of a row

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, embedding

from megaptm.batch import IGNORED
from megaptm.hub.huggingface import hugging_face_config
from megaptm.hub.stacks import alone
from megaptm.spec import ModelSpec, Size, change


def proportions(published: Size, size: Size) -> dict[str, Size]:
    """Stacks beside the last of `size`, as much narrower and shallower as those of a published size are."""

    def part(of: int, whole: int, one: int) -> int:
        return max(1, one * of // whole)

    return {
        stack: change(
            size,
            layers=part(one.layers, published.layers, size.layers),
            width=part(one.width, published.width, size.width),
            heads=part(one.heads, published.heads, size.heads),
            ffn=part(one.ffn, published.ffn, size.ffn),
        )
        for stack, one in published.stacks.items()
    }


class Losses(NamedTuple):
    loss: Tensor
    """The sum of both."""


class ReplacedTokenModels(nn.Module):
    """A generator that guesses masked tokens, and a model that is shown a draw from it and judges every token; both
    read one table of tokens."""

    def __init__(self, spec: ModelSpec) -> None:
        from transformers import DebertaV2ForMaskedLM, DebertaV2Model, ElectraForMaskedLM, ElectraForPreTraining

        super().__init__()
        generator, discriminator = (hugging_face_config(alone(spec, {}, stack)[0]) for stack in spec.family.stacks)
        for config in (generator, discriminator):
            config.use_cache = False
        self.differs = spec.family.drawn_tables == "gradient-disentangled"
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

    def forward(self, input_ids: Tensor, labels: Tensor, **others: Tensor) -> Losses:
        """`labels` [B, S] of masked tokens; `others` [B, S]: segments, and what is padding, as theirs take them."""
        said = self.generator(input_ids=input_ids, labels=labels, **others)
        asked = labels != IGNORED
        with torch.no_grad():
            drawn = torch.multinomial(said.logits[asked].float().softmax(-1), 1)[:, 0]
            shown = input_ids.masked_scatter(asked, drawn)
            replaced = asked & (shown != labels)
        if self.differs:
            tables = (self.generator.deberta.embeddings, self.discriminator.embeddings)
            common, own = (table.word_embeddings.weight for table in tables)
            vectors = embedding(shown, common.detach()) + embedding(shown, own)
            logits = self.judge(self.discriminator(inputs_embeds=vectors, **others)[0])[..., 0]
        else:
            logits = self.discriminator(input_ids=shown, **others).logits
        real = others.get("attention_mask", torch.ones_like(input_ids)) > 0
        return Losses(said.loss + binary_cross_entropy_with_logits(logits[real].float(), replaced[real].float()))
