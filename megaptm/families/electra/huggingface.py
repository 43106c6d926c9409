"""Hugging Face's ELECTRA: `ElectraForPreTraining` and `ElectraForMaskedLM`, separate models for its two encoders."""

from dataclasses import replace

from megaptm.families.bert.huggingface import BERT
from megaptm.hub.counterpart import Counterpart
from megaptm.hub.tensor_rules import VOCABULARY, TensorRule, has_narrow_tables, rules_for_stack, weight_and_bias


def _encoder_rules(stack: str) -> tuple[TensorRule, ...]:
    """Return the tensor rules of ELECTRA's generator and discriminator: BERT's, and the projection from the width of
    the tables."""
    rules = (rule for rule in BERT.rules if not rule.name.startswith("head."))
    renamed = (
        replace(rule, hf_names=tuple(name.replace("bert.", "electra.", 1) for name in rule.hf_names)) for rule in rules
    )
    return (
        *rules_for_stack(renamed, stack),
        *weight_and_bias("embed.widen", "electra.embeddings_project", when=has_narrow_tables),
    )


DISCRIMINATOR: Counterpart = replace(
    BERT,
    family="electra",
    stack="discriminator",
    model="ElectraForPreTraining",
    fields={**BERT.fields, "embedding_size": "embedding"},
    rules=(
        *_encoder_rules("discriminator"),
        *weight_and_bias("head.replaced-token.transform", "discriminator_predictions.dense"),
        *weight_and_bias("head.replaced-token.classify", "discriminator_predictions.dense_prediction"),
    ),
    tied={},
    prefix="electra.",
)
GENERATOR: Counterpart = replace(
    DISCRIMINATOR,
    stack="generator",
    model="ElectraForMaskedLM",
    rules=(
        *_encoder_rules("generator"),
        *weight_and_bias("head.mlm.transform", "generator_predictions.dense"),
        *weight_and_bias("head.mlm.norm", "generator_predictions.LayerNorm"),
        TensorRule("head.mlm.vocabulary.bias", ("generator_lm_head.bias",), VOCABULARY),
    ),
    tied={"generator_lm_head.weight": "electra.embeddings.word_embeddings.weight"},
)

COUNTERPARTS = (DISCRIMINATOR, GENERATOR)
