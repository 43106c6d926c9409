"""Hugging Face's EuroBERT: `EuroBertForMaskedLM`."""

from dataclasses import replace

from megaptm.families.llama.huggingface import LLAMA
from megaptm.hub.tensor_rules import TensorRule


def _as_encoder(rule: TensorRule) -> TensorRule:
    """Return the rule of a decoder's tensor for an encoder of the same layers."""
    name = rule.name.replace("decoder.", "encoder.", 1).replace("head.lm.", "head.mlm.", 1)
    return replace(rule, name=name)


EUROBERT = replace(
    LLAMA,
    family="eurobert",
    model="EuroBertForMaskedLM",
    rules=tuple(map(_as_encoder, LLAMA.rules)),
    special_ids={"bos_token_id": 128_000, "eos_token_id": 128_001, "pad_token_id": 128_001},
)

COUNTERPARTS = (EUROBERT,)
