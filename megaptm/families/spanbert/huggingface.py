"""Hugging Face's SpanBERT: `BertForMaskedLM`, which has no span boundary head."""

from dataclasses import replace

from megaptm.families.bert.huggingface import BERT, MASKED, encoder_rules
from megaptm.hub.tensor_rules import TensorRule, weight_and_bias

BOUNDARY = "head.span-boundary"

SPANBERT = replace(
    BERT,
    family="spanbert",
    model="BertForMaskedLM",
    model_type="bert",
    rules=(
        *encoder_rules("bert"),
        *MASKED,
        TensorRule(f"{BOUNDARY}.offset.weight", ()),
        *(
            rule
            for name in ("first", "first_norm", "second", "second_norm")
            for rule in weight_and_bias(f"{BOUNDARY}.{name}")
        ),
        TensorRule(f"{BOUNDARY}.vocabulary.bias", ()),
    ),
    unused_prefixes=("bert.pooler.", "cls.seq_relationship."),
)

COUNTERPARTS = (SPANBERT,)
