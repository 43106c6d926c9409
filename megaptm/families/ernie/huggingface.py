"""Hugging Face's ERNIE: `ErnieForPreTraining`, with BERT's names and relu; `ErnieForMaskedLM`, with task ids and
without classification heads."""

from dataclasses import replace

from megaptm.families.bert.huggingface import BERT, MASKED, encoder_rules, pretraining_rules
from megaptm.hub.tensor_rules import TensorRule, weight_and_bias

TIED_NAMES = {
    "cls.predictions.decoder.weight": "ernie.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}

ERNIE = replace(
    BERT,
    family="ernie",
    model="ErnieForPreTraining",
    fixed={**BERT.fixed, "hidden_act": "relu", "use_task_id": False},
    rules=pretraining_rules("ernie", "next-sentence"),
    tied=TIED_NAMES,
    prefix="ernie.",
)

ERNIE_2 = replace(
    ERNIE,
    family="ernie-2",
    model="ErnieForMaskedLM",
    model_type="ernie",
    fields={**ERNIE.fields, "task_type_vocab_size": "tasks"},
    fixed={**ERNIE.fixed, "hidden_act": "gelu", "type_vocab_size": 4, "use_task_id": True},
    rules=(
        *encoder_rules("ernie"),
        TensorRule("embed.task.weight", ("ernie.embeddings.task_type_embeddings.weight",)),
        *MASKED,
        *(rule for name in ("capitalization", "token-document") for rule in weight_and_bias(f"head.{name}.classify")),
        *(rule for name in ("pooler", "classify") for rule in weight_and_bias(f"head.sentence-reordering.{name}")),
    ),
    unused_prefixes=("ernie.pooler.", "cls.seq_relationship."),
)

COUNTERPARTS = (ERNIE, ERNIE_2)
