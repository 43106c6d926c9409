"""Hugging Face's MacBERT: `BertForPreTraining`, whose classifier of two texts predicts their order here."""

from dataclasses import replace

from megaptm.families.bert.huggingface import BERT, pretraining_rules

MACBERT = replace(BERT, family="macbert", model_type="bert", rules=pretraining_rules("bert", "sentence-order"))

COUNTERPARTS = (MACBERT,)
