"""`ErnieForPreTraining`: BERT's names, and relu."""

from dataclasses import replace

from megaptm.hub.counterparts.bert import BERT, MASKED, encoder
from megaptm.hub.tensor_rules import pair

TIED = {
    "cls.predictions.decoder.weight": "ernie.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}

ERNIE = replace(
    BERT,
    family="ernie",
    model="ErnieForPreTraining",
    fixed={**BERT.fixed, "hidden_act": "relu", "use_task_id": False},
    rows=(
        *encoder("ernie"),
        *MASKED,
        *pair("head.next-sentence.pooler", "ernie.pooler.dense"),
        *pair("head.next-sentence.classify", "cls.seq_relationship"),
    ),
    tied=TIED,
    prefix="ernie.",
)
