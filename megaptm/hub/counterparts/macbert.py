"""`BertForPreTraining`, whose question about pairs is here whether they are in their order."""

from dataclasses import replace

from megaptm.hub.counterparts.bert import BERT, MASKED, encoder
from megaptm.hub.tensor_rules import pair

MACBERT = replace(
    BERT,
    family="macbert",
    model_type="bert",
    rows=(
        *encoder("bert"),
        *MASKED,
        *pair("head.sentence-order.pooler", "bert.pooler.dense"),
        *pair("head.sentence-order.classify", "cls.seq_relationship"),
    ),
)
