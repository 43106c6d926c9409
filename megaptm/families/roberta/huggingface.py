"""Hugging Face's RoBERTa: `RobertaForMaskedLM`."""

from megaptm.families.bert.huggingface import BERT, encoder_rules
from megaptm.hub.counterpart import Counterpart
from megaptm.hub.tensor_rules import VOCABULARY, TensorRule, weight_and_bias

ROBERTA = Counterpart(
    family="roberta",
    model="RobertaForMaskedLM",
    fields={
        **{field: name for field, name in BERT.fields.items() if name != "context"},
        "max_position_embeddings": "positions",
    },
    fixed={**BERT.fixed, "type_vocab_size": 1},
    rules=(
        *encoder_rules("roberta"),
        *weight_and_bias("head.mlm.transform", "lm_head.dense"),
        *weight_and_bias("head.mlm.norm", "lm_head.layer_norm"),
        TensorRule("head.mlm.vocabulary.bias", ("lm_head.bias",), VOCABULARY),
    ),
    tied={
        "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    },
    prefix="roberta.",
    special_ids={"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2},
    positions_after_pad=True,
    unused_prefixes=("roberta.pooler.",),
)

COUNTERPARTS = (ROBERTA,)
