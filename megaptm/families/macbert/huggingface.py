"""Counterpart of MacBERT: `BertForPreTraining`, whose classifier of two texts predicts their order here."""

from dataclasses import replace

from megaptm.families.bert.huggingface import BERT, pretraining

MACBERT = replace(BERT, family="macbert", model_type="bert", rules=pretraining("bert", "sentence-order"))

COUNTERPARTS = (MACBERT,)
